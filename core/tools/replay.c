/* How it works: files are read a line at a time into one buffer; a record becomes a request and a view (replay_record.c), the
 * policy plans, and what it chose is compared with what was chosen then, or with what another policy chooses now.
 *
 * A record's chance and clock are the decision's own, so the same policy decides the same. Where it has none, chance is made
 * anew before every plan, from the seed and the record's number: a policy that draws lots draws the same ones in
 * every run, whatever another policy has drawn beside it. The one that is compared against is loaded as a shadow, so that the
 * two do not share counters. */
#include "tools/replay.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/rand.h"
#include "script/policy/policy_run.h"
#include "script/policy/policy_source.h"
#include "tools/policy.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define ERR_BYTES 1024
#define SCORES_MAX 1024
#define BUFFER_BYTES (2 * BT_REPLAY_LINE_MAX)
#define PROGRESS_MS 2000
#define PROGRESS_LINES 1024

/* The policy that plans, or the two that plan a half each and the one beside them; and what was given as scores last. */
struct planner {
    bt_policy_t *policies[BT_SLOT_COUNT]; /* PREFILL and DECODE: NULL where BOTH plans all */
    char labels[BT_SLOT_COUNT][128], label[300];
    bt_policy_trace_t trace;
    struct bt_policy_score scores[SCORES_MAX];
};

struct replay {
    const bt_replay_options_t *options;
    struct planner new, old; /* old without policies: the recorded choice */
    bt_replay_workers_t *workers;
    bt_replay_report_t report;
    bt_replay_tally_t *tally;
    bt_replay_plot_t spans;
    bt_plot_t plot;
    uint64_t planned;
    uint64_t start_ms, progress_ms;
    bool has_progress;
};

/* One file, and the part of it that is not used up. */
struct reader {
    const char *name;
    int fd;
    char *buffer;
    size_t at, len;
    uint64_t line;
    bool is_skipping; /* the rest of a line that is too long */
    bool has_failed;
};

/* ---- planning ---- */

static int load(struct planner *p, enum bt_policy_slot slot, const char *name,
                const bt_value_t *params, bool is_shadow)
{
    char err[ERR_BYTES] = "";
    bt_policy_source_t *source;
    bt_policy_spec_t spec = {.params = params, .is_shadow = is_shadow};
    int rc = bt_policy_source_open(&source, name, NULL, err, sizeof err);

    if (rc == 0) {
        spec.path = source->path;
        spec.code = (bt_str_t){source->code, source->size};
        rc = bt_policy_make(&p->policies[slot], &spec, err, sizeof err);
        bt_policy_source_unref(source);
    }
    if (rc < 0) {
        fprintf(stderr, "%s\n", err);
        return rc;
    }
    snprintf(p->labels[slot], sizeof p->labels[slot], "%s@%s", bt_policy_name(p->policies[slot]),
             bt_policy_version(p->policies[slot]));
    return 0;
}

static int load_asked(struct planner *p, enum bt_policy_slot slot, const bt_replay_policy_t *asked)
{
    bt_value_t *params = NULL;
    int rc = bt_replay_params(asked, &params);

    if (rc == 0)
        rc = load(p, slot, asked->name, params->count > 0 ? params : NULL, false);
    else
        fprintf(stderr, "%s\n", bt_err_text(rc));
    bt_value_free(params);
    return rc;
}

/* A half that nobody else plans is the one policy's, in a VM of its own, as in a gateway. */
static int load_all(struct planner *p, const bt_replay_options_t *o)
{
    const bool has_halves =
        o->policies[BT_SLOT_PREFILL].name != NULL || o->policies[BT_SLOT_DECODE].name != NULL;
    int rc = load_asked(p, BT_SLOT_BOTH, &o->policies[BT_SLOT_BOTH]);

    for (unsigned s = BT_SLOT_PREFILL; has_halves && rc == 0 && s < BT_SLOT_COUNT; s++)
        rc = load_asked(p, (enum bt_policy_slot) s,
                        &o->policies[o->policies[s].name != NULL ? s : BT_SLOT_BOTH]);
    if (has_halves)
        snprintf(p->label, sizeof p->label, "prefill %s, decode %s", p->labels[BT_SLOT_PREFILL],
                 p->labels[BT_SLOT_DECODE]);
    else
        snprintf(p->label, sizeof p->label, "%s", p->labels[BT_SLOT_BOTH]);
    return rc;
}

static bool find_score(const struct planner *p, const bt_worker_t *w, double *score_p)
{
    for (unsigned i = p->trace.count; w != NULL && i > 0; i--)
        if (p->scores[i - 1].worker == w->id) {
            *score_p = p->scores[i - 1].score;
            return true;
        }
    return false;
}

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t) now.tv_sec * 1000000000u + (uint64_t) now.tv_nsec;
}

/* NULL, or why not. */
static const char *plan_part(struct planner *p, enum bt_policy_slot slot, enum bt_policy_part part,
                             bt_replay_record_t *r, bt_choice_t *choice_p)
{
    bt_policy_t *policy = p->policies[slot];
    bt_policy_vars_t vars = {0};

    r->req.vars = bt_policy_has_entry(policy) ? &vars : NULL;
    int rc = bt_policy_plan(policy, part, &r->req, &r->view, choice_p);
    bt_policy_vars_drop(&vars);
    return rc < 0 ? bt_policy_error(policy) : NULL;
}

/* As dispatch/plan/policy_call.c has it: two halves where there is a prefill to choose from. */
static const char *plan_all(struct planner *p, bt_replay_record_t *r, bt_choice_t *choice_p)
{
    bt_choice_t decode_side = {0};
    const char *why;

    if (p->policies[BT_SLOT_PREFILL] == NULL || r->view.sets[BT_LIST_PREFILL]->count == 0)
        return plan_part(p, BT_SLOT_BOTH, BT_POLICY_BOTH, r, choice_p);
    why = plan_part(p, BT_SLOT_PREFILL, BT_POLICY_PREFILL, r, choice_p);
    if (why == NULL)
        why = plan_part(p, BT_SLOT_DECODE, BT_POLICY_DECODE, r, &decode_side);
    choice_p->first.decode = decode_side.first.decode;
    if (choice_p->first.prefill == NULL || choice_p->first.decode == NULL)
        choice_p->first.prefill = choice_p->first.decode = NULL;
    return why;
}

static uint64_t plan(struct planner *p, bt_replay_record_t *r, uint64_t seed,
                     bt_replay_side_t *side)
{
    bt_choice_t choice = {0};
    bt_json_cursor_t notes;
    const char *why;
    uint64_t start_ns;

    bt_rand_seed(seed);
    p->trace = (bt_policy_trace_t){
        .seed = r->seed, .now_us = r->clock_us, .scores = p->scores, .cap = SCORES_MAX};
    if (r->reads.n > 0 && bt_json_array(&notes, r->reads) == 0)
        p->trace.notes = &notes;
    r->req.trace = &p->trace;
    start_ns = now_ns();
    why = plan_all(p, r, &choice);
    const uint64_t ns = now_ns() - start_ns;
    *side = (bt_replay_side_t){0};
    if (why == NULL && bt_choice_is_nobody(&choice))
        why = "nobody was chosen";
    side->error = why;
    if (why != NULL)
        return ns;
    if (choice.first.prefill != NULL)
        side->prefill = bt_str(choice.first.prefill->name);
    if (choice.first.decode != NULL)
        side->decode = bt_str(choice.first.decode->name);
    side->lacks_prefill = bt_pair_lacks_prefill(&choice.first);
    side->has_prefill_score = find_score(p, choice.first.prefill, &side->prefill_score);
    side->has_decode_score = find_score(p, choice.first.decode, &side->decode_score);
    return ns;
}

static void recorded(const struct replay *p, const bt_replay_record_t *r, bt_replay_side_t *side)
{
    *side = (bt_replay_side_t){.prefill = r->choice.prefill,
                               .decode = r->choice.decode,
                               .lacks_prefill = r->choice.lacks_prefill};
    side->has_prefill_score = bt_replay_score(p->workers, r->choice.prefill, &side->prefill_score);
    side->has_decode_score = bt_replay_score(p->workers, r->choice.decode, &side->decode_score);
}

static void replay_line(struct replay *p, const struct reader *in, bt_str_t line)
{
    char err[ERR_BYTES] = "";
    bt_replay_record_t r;
    bt_replay_side_t old, new;
    int rc = bt_replay_read(p->workers, line, &r, err, sizeof err);

    if (rc < 0) {
        bt_replay_malformed(p->tally, in->name, in->line, rc == BT_E_INVAL ? err : bt_err_text(rc));
        return;
    }
    if (!r.has_candidates) {
        bt_replay_skip(p->tally);
        return;
    }
    const uint64_t seed = p->options->seed ^ (p->planned++ * UINT64_C(0x9e3779b97f4a7c15));
    if (p->old.policies[BT_SLOT_BOTH] != NULL)
        (void) plan(&p->old, &r, seed, &old);
    else
        recorded(p, &r, &old);
    bt_replay_time(p->tally, plan(&p->new, &r, seed, &new));
    const enum bt_replay_outcome outcome = bt_replay_compare(p->tally, &r, &old, &new);
    if (p->options->plot != NULL)
        bt_replay_plot_add(&p->spans, p->workers, outcome, &old, &new);
}

/* ---- files ---- */

static void show_progress(struct replay *p, const struct reader *in)
{
    const uint64_t now_ms = bt_clock_ms();

    if (!p->has_progress || now_ms - p->progress_ms < PROGRESS_MS)
        return;
    p->progress_ms = now_ms;
    fprintf(stderr, "\r%s:%llu, %.0f records a second ", in->name, (unsigned long long) in->line,
            (double) bt_replay_total(p->tally) * 1000.0 / (double) (now_ms - p->start_ms));
}

/* More bytes behind those that wait. False: there are none. */
static bool fill(struct reader *in)
{
    ssize_t n;

    memmove(in->buffer, in->buffer + in->at, in->len - in->at);
    in->len -= in->at;
    in->at = 0;
    do
        n = read(in->fd, in->buffer + in->len, BUFFER_BYTES - in->len);
    while (n < 0 && errno == EINTR);
    in->has_failed = n < 0;
    in->len += n > 0 ? (size_t) n : 0;
    return n > 0;
}

static void use_line(struct replay *p, struct reader *in, bt_str_t line)
{
    if (++in->line % PROGRESS_LINES == 0)
        show_progress(p, in);
    line = bt_str_trim(line);
    if (in->is_skipping)
        in->is_skipping = false;
    else if (line.n > BT_REPLAY_LINE_MAX)
        bt_replay_malformed(p->tally, in->name, in->line, "the line is longer than 1 MiB");
    else if (line.n > 0)
        replay_line(p, in, line);
}

/* A line that does not end is told once and its rest thrown away. */
static void drop_long(struct replay *p, struct reader *in)
{
    if (!in->is_skipping)
        bt_replay_malformed(p->tally, in->name, in->line + 1, "the line is longer than 1 MiB");
    in->is_skipping = true;
    in->at = in->len;
}

static int read_lines(struct replay *p, struct reader *in)
{
    do {
        const char *end;
        while ((end = memchr(in->buffer + in->at, '\n', in->len - in->at)) != NULL) {
            const char *begin = in->buffer + in->at;
            in->at = (size_t) (end - in->buffer) + 1;
            use_line(p, in, (bt_str_t){begin, (size_t) (end - begin)});
        }
        if (in->len - in->at > BT_REPLAY_LINE_MAX)
            drop_long(p, in);
    } while (fill(in));
    if (in->has_failed)
        return bt_policy_tool_refuse("%s: %s", in->name, strerror(errno));
    if (in->len > in->at)
        use_line(p, in, (bt_str_t){in->buffer + in->at, in->len - in->at});
    return 0;
}

static int replay_file(struct replay *p, const char *name, char *buffer)
{
    const bool is_stdin = strcmp(name, "-") == 0;
    struct reader in = {.name = is_stdin ? "stdin" : name, .buffer = buffer};
    int status;

    in.fd = is_stdin ? STDIN_FILENO : open(name, O_RDONLY | O_CLOEXEC);
    if (in.fd < 0)
        return bt_policy_tool_refuse("%s: %s", name, strerror(errno));
    status = read_lines(p, &in);
    if (!is_stdin)
        close(in.fd);
    return status;
}

/* ---- the command ---- */

static int open_policies(struct replay *p)
{
    int rc = load_all(&p->new, p->options);

    if (rc == 0 && p->options->against != NULL)
        rc = load(&p->old, BT_SLOT_BOTH, p->options->against, NULL, true);
    snprintf(p->old.label, sizeof p->old.label, "%s",
             p->options->against != NULL ? p->old.labels[BT_SLOT_BOTH] : "recorded");
    return rc < 0 ? 2 : 0;
}

static void close_policies(struct planner *p)
{
    for (unsigned s = 0; s < BT_SLOT_COUNT; s++)
        bt_policy_free(p->policies[s]);
}

static int end(struct replay *p)
{
    const uint64_t differing = bt_replay_count(p->tally, BT_REPLAY_DIFFERENT) +
                               bt_replay_count(p->tally, BT_REPLAY_FAILED);
    const bool is_empty = differing + bt_replay_count(p->tally, BT_REPLAY_SAME) == 0;

    if (p->has_progress && p->progress_ms > p->start_ms)
        fputs("\r\033[K", stderr);
    bt_replay_print(p->tally, (double) (bt_clock_ms() - p->start_ms) / 1e3);
    if (fflush(stdout) != 0)
        return 1;
    if (p->options->plot != NULL && bt_replay_plot_save(&p->spans, &p->report, &p->plot) != 0)
        return 1;
    if (is_empty)
        fputs("baton: nothing was compared: no record has both candidates and a policy's choice\n",
              stderr);
    return p->options->fail_on_difference && (differing > 0 || is_empty) ? 1 : 0;
}

static const char *learner_of(const struct planner *p)
{
    for (unsigned s = 0; s < BT_SLOT_COUNT; s++)
        if (p->policies[s] != NULL && (bt_policy_has_hook(p->policies[s], "observe") ||
                                       bt_policy_has_hook(p->policies[s], "tick")))
            return p->labels[s];
    return NULL;
}

static int run(struct replay *p)
{
    char *buffer = malloc(BUFFER_BYTES);
    int status = open_policies(p);

    if (status == 0 && p->options->plot != NULL)
        status = bt_plot_open(&p->plot, "replay: ", p->options->plot);
    if (status == 0) {
        const char *learner = learner_of(&p->new);
        if (learner == NULL)
            learner = learner_of(&p->old);
        p->report = (bt_replay_report_t){.old_name = p->old.label,
                                         .new_name = p->new.label,
                                         .is_against = p->options->against != NULL,
                                         .learner = learner,
                                         .json = p->options->json,
                                         .show = p->options->show};
        p->tally = bt_replay_tally_new(&p->report);
        p->workers = bt_replay_workers_new();
        if (buffer == NULL || p->tally == NULL || p->workers == NULL)
            status = bt_policy_tool_refuse("%s", bt_err_text(BT_E_NOMEM));
    }
    p->start_ms = p->progress_ms = bt_clock_ms();
    for (unsigned i = 0; status == 0 && i < p->options->file_count; i++)
        status = replay_file(p, p->options->files[i], buffer);
    if (status == 0)
        status = end(p);
    close_policies(&p->new);
    close_policies(&p->old);
    bt_replay_workers_free(p->workers);
    bt_replay_tally_free(p->tally);
    bt_plot_close(&p->plot);
    free(buffer);
    return status;
}

int bt_replay(int argc, const char *const *argv)
{
    bt_replay_options_t options;
    char err[ERR_BYTES];
    struct replay *p;
    int status = bt_replay_options(&options, argc, argv);

    if (status != 0)
        return status;
    if (options.dialect_dir != NULL &&
        bt_dialects_register(options.dialect_dir, err, sizeof err) < 0)
        return bt_policy_tool_refuse("--dialect-dir: %s", err);
    p = calloc(1, sizeof *p);
    if (p == NULL)
        return bt_policy_tool_refuse("%s", bt_err_text(BT_E_NOMEM));
    p->options = &options;
    p->has_progress = isatty(STDERR_FILENO) != 0 && !options.json;
    status = run(p);
    free(p);
    return status;
}
