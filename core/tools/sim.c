/* How it works: a run is a process of its own, since what native functions remember is a process's; its outcome lies in memory that both
 * share. So runs do not disturb one another, and a run gives the same whatever is beside it. */
#include "tools/sim.h"

#include "base/err.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define refuse(...) bt_tool_error(BT_TOOL_WRONG, "sim: ", __VA_ARGS__)

#define LEASE_S 30 /* vLLM's */

struct runs {
    const bt_sim_options_t *options;
    bt_sim_model_t model;
    bt_sim_trace_t trace;
    bt_value_t *params[BT_SIM_POLICIES_MAX];
    bt_sim_row_t rows[BT_SIM_RUNS_MAX];
    pid_t pids[BT_SIM_RUNS_MAX];
    bt_sim_outcome_t *outcomes[BT_SIM_RUNS_MAX];
    unsigned count;
    bt_plot_t plot;
};

/* ---- processes ---- */

static int begin(struct runs *all, unsigned i)
{
    const size_t bytes = BT_SIM_OUTCOME_BYTES(all->trace.count);
    void *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (shared == MAP_FAILED)
        return bt_tool_error(BT_TOOL_FAILED, "sim: ", "no memory for a run: %s", strerror(errno));
    all->outcomes[i] = shared;
    all->outcomes[i]->rc = BT_E_POLICY;
    all->pids[i] = fork();
    if (all->pids[i] == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* its answer is for nobody else */
        (void) bt_sim_run(&all->rows[i].setup, all->outcomes[i]);
        _exit(0);
    }
    return all->pids[i] > 0 ? 0
                            : bt_tool_error(BT_TOOL_FAILED, "sim: ", "fork: %s", strerror(errno));
}

static int await_one(struct runs *all)
{
    int status = 0;
    const pid_t pid = wait(&status);
    unsigned i = 0;

    while (i < all->count && all->pids[i] != pid)
        i++;
    if (pid < 0 || i == all->count)
        return bt_tool_error(BT_TOOL_FAILED, "sim: ", "wait: %s", strerror(errno));
    all->pids[i] = 0;
    if (WIFSIGNALED(status))
        return bt_tool_error(BT_TOOL_FAILED, "sim: ", "%s: the run was ended by signal %d",
                             all->rows[i].setup.policy, WTERMSIG(status));
    if (all->outcomes[i]->rc < 0)
        return refuse("%s: %s", all->rows[i].setup.policy, all->outcomes[i]->err);
    return 0;
}

static void show_progress(unsigned done, unsigned count)
{
    if (isatty(STDERR_FILENO) != 0 && count > 1)
        fprintf(stderr, done < count ? "\r%u of %u runs " : "\r\033[K", done, count);
}

static int run_all(struct runs *all)
{
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    const unsigned most = processors > 1 ? (unsigned) processors : 1;
    unsigned begun = 0, done = 0;
    int status = 0;

    while (status == 0 && done < all->count) {
        show_progress(done, all->count);
        if (begun < all->count && begun - done < most) {
            status = begin(all, begun++);
            continue;
        }
        status = await_one(all);
        done++;
    }
    show_progress(all->count, all->count);
    for (unsigned i = 0; i < begun; i++)
        if (all->pids[i] > 0) {
            kill(all->pids[i], SIGKILL);
            waitpid(all->pids[i], NULL, 0);
        }
    return status;
}

/* ---- what to run ---- */

static void add_run(struct runs *all, unsigned policy, unsigned prefills, unsigned decodes,
                    unsigned hybrids)
{
    const bt_sim_options_t *o = all->options;

    all->rows[all->count++].setup =
        (bt_sim_setup_t){.policy = o->policies[policy].name,
                         .params = all->params[policy]->count > 0 ? all->params[policy] : NULL,
                         .model = &all->model,
                         .trace = &all->trace,
                         .prefills = prefills,
                         .decodes = decodes,
                         .hybrids = hybrids,
                         .concurrency = o->concurrency,
                         .preempts = o->preempts,
                         .is_exact = o->prefix_index == BT_SIM_INDEX_EXACT,
                         .event_delay_s = o->event_delay_ms / 1000,
                         .failures = o->failures,
                         .failure_count = o->failure_count,
                         .switches = o->switch_list,
                         .switch_count = o->switch_count,
                         .follows_advice = o->follows_advice,
                         .queue = o->queue,
                         .lease_s = LEASE_S,
                         .seed = o->seed};
}

static void add_runs(struct runs *all)
{
    const bt_sim_options_t *o = all->options;

    for (unsigned p = 0; !o->advises && p < o->policy_count; p++)
        add_run(all, p, o->prefills, o->decodes, o->engines);
    for (unsigned n = 1; o->advises && n < o->engines; n++)
        add_run(all, 0, n, o->engines - n, 0);
    if (!o->advises)
        return;
    add_run(all, 0, 0, 0, o->engines);
    if (o->engines < 3)
        return; /* nobody could be switched */
    add_run(all, 0, o->engines / 2, o->engines - o->engines / 2, 0);
    all->rows[all->count - 1].setup.follows_advice = true;
}

static int read_trace(struct runs *all)
{
    const bt_sim_options_t *o = all->options;
    char err[1024] = "";
    int rc = bt_sim_is_generator(o->trace)
                 ? bt_sim_trace_generate(&all->trace, o->trace, o->seed, err, sizeof err)
                 : bt_sim_trace_read(&all->trace, o->trace, err, sizeof err);

    if (rc < 0)
        return refuse("%s", err);
    bt_sim_trace_cut(&all->trace, o->skip, o->requests, o->speed);
    return all->trace.count > 0 ? 0 : refuse("--skip %u: nothing is left of the trace", o->skip);
}

static int prepare(struct runs *all)
{
    char err[1024] = "";

    if (bt_sim_model_load(&all->model, all->options->model, err, sizeof err) < 0)
        return refuse("%s", err);
    for (unsigned p = 0; p < all->options->policy_count; p++)
        if (bt_replay_params(&all->options->policies[p], &all->params[p]) < 0)
            return refuse("%s", bt_err_text(BT_E_NOMEM));
    int status = read_trace(all);
    if (status == 0 && all->options->plot != NULL)
        status = bt_plot_open(&all->plot, "sim: ", all->options->plot);
    if (status == 0)
        add_runs(all);
    return status;
}

static int answer(struct runs *all)
{
    const bt_sim_setup_t *s = &all->rows[0].setup;
    const unsigned engines = s->prefills + s->decodes + s->hybrids;
    bt_sim_ceilings_t ceilings;
    int status = 0;

    /* advise has as many engines in all rows, and other prefills in each. */
    if (bt_sim_ceilings(&all->trace, (uint32_t) (all->model.kv_tokens / all->trace.block_tokens),
                        s->hybrids > 0 || all->options->advises ? engines : s->prefills, engines,
                        &ceilings) < 0)
        return refuse("%s", bt_err_text(BT_E_NOMEM));
    for (unsigned i = 0; i < all->count; i++) {
        all->rows[i].outcome = all->outcomes[i];
        if (bt_sim_summarise(all->outcomes[i], &all->trace, &all->model, ceilings.endless,
                             &all->options->slo, &all->rows[i].summary) < 0)
            return refuse("%s", bt_err_text(BT_E_NOMEM));
    }
    bt_sim_print(all->options, &all->model, &all->trace, &ceilings, all->rows, all->count);
    if (all->options->plot != NULL)
        status = bt_sim_plot(&all->plot, &all->trace, all->rows, all->count);
    return status != 0 ? status : bt_tool_flushed();
}

int bt_sim_tool(int argc, const char *const *argv)
{
    bt_sim_options_t options;
    int status = bt_sim_options(&options, argc, argv);

    if (status != 0)
        return status;
    struct runs *all = calloc(1, sizeof *all);
    if (all == NULL)
        return refuse("%s", bt_err_text(BT_E_NOMEM));
    all->options = &options;
    status = prepare(all);
    if (status == 0)
        status = run_all(all);
    if (status == 0)
        status = answer(all);
    for (unsigned i = 0; i < all->count; i++)
        if (all->outcomes[i] != NULL)
            munmap(all->outcomes[i], BT_SIM_OUTCOME_BYTES(all->trace.count));
    for (unsigned p = 0; p < options.policy_count; p++)
        bt_value_free(all->params[p]);
    bt_sim_trace_fini(&all->trace);
    bt_plot_close(&all->plot);
    free(all);
    return status;
}
