/* The fleet of a self-test is made of workers that no registry knows: nobody ever connects to them.
 *
 * What is asked and what may come back:
 *   nobody there, everybody down   must return in time; an error is the default choice's turn and no reason to refuse,
 *                                  since the gateway asks no policy about an empty fleet
 *   one of each role, 512          a good answer or nil, for pairs or for single workers: a policy may be written for one kind,
 *                                  and may fail for lack of the other, but for no other reason
 *   in none of these a choice      a mistake, unless it asked for labels, or for what tells clients apart: then it may choose
 *                                  somebody elsewhere, and a note says so. Finding nobody by labels is noted, too
 *   admit, route                   no error; every sleep is over at once and there is no network, which they must bear. Their
 *                                  vars go to the plans that follow, as in the gateway
 */
#include "script/policy/policy_impl.h"
#include "script/policy/policy_run.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <uv.h>

#define FLEET_SIZE 512u   /* split between prefill and decode, and as many hybrids */
#define BUDGET_US 250000u /* of a machine that has other things to do; the watchdog is stricter */

#define WAITS_MAX 64u /* of one hook */
#define ASKED_AGAIN                                                                                \
    2u /* a hypervisor that takes the core away looks like a runaway, which does it again */

struct fleet {
    bt_worker_t *items[3][FLEET_SIZE];
    unsigned count[3]; /* by enum bt_role: prefill, decode, hybrid */
};

static char *copy_of(const char *text)
{
    return text != NULL ? bt_str_dup(bt_str(text)) : NULL;
}

static bt_worker_t *make_worker(enum bt_role role, unsigned i, uint64_t first_id,
                                const bt_policy_trial_t *trial)
{
    static const bt_breaker_config_t breaker;
    char url[64], name[16], err[128];
    bt_worker_spec_t spec;
    bt_worker_t *w;
    int rc;

    snprintf(url, sizeof(url), "http://self-test-%u:8000", i);
    snprintf(name, sizeof(name), "%c%u", "pdw"[role], i);
    bt_worker_spec_init(&spec);
    spec.url = copy_of(url);
    spec.name = copy_of(name);
    spec.role = role;
    spec.engine = BT_ENGINE_VLLM;
    spec.connector = copy_of(role != BT_ROLE_HYBRID ? "NixlConnector" : NULL);
    spec.labels = copy_of(trial->labels);
    spec.zone = copy_of(trial->zone);
    rc = bt_worker_new(&w, &spec, first_id + ((uint64_t) role + 1) * 100000 + i, i, &breaker, err,
                       sizeof(err));
    bt_worker_spec_fini(&spec);
    if (rc < 0)
        return NULL;
    atomic_store_explicit(&w->health, BT_HEALTH_UP, memory_order_relaxed);
    return w;
}

static void free_fleet(struct fleet *f)
{
    for (unsigned role = 0; f != NULL && role < 3; role++)
        for (unsigned i = 0; i < f->count[role]; i++)
            bt_worker_unref(f->items[role][i]);
    free(f);
}

static struct fleet *make_fleet(const bt_policy_trial_t *trial)
{
    static const unsigned wanted[3] = {FLEET_SIZE / 2, FLEET_SIZE / 2, FLEET_SIZE};
    struct fleet *f = calloc(1, sizeof(*f));
    static _Atomic uint64_t fleets; /* a policy may be tested twice, and remembers workers by id */
    const uint64_t first_id = atomic_fetch_add_explicit(&fleets, 1, memory_order_relaxed) << 20;

    for (unsigned role = 0; f != NULL && role < 3; role++)
        for (; f->count[role] < wanted[role]; f->count[role]++) {
            bt_worker_t *w = make_worker((enum bt_role) role, f->count[role], first_id, trial);
            if (w == NULL) {
                free_fleet(f);
                return NULL;
            }
            f->items[role][f->count[role]] = w;
        }
    return f;
}

static void set_health(struct fleet *f, enum bt_health health)
{
    for (unsigned role = 0; role < 3; role++)
        for (unsigned i = 0; i < f->count[role]; i++)
            atomic_store_explicit(&f->items[role][i]->health, (int) health, memory_order_relaxed);
}

/* ---- plan ---- */

static const bt_policy_request_t made_up = {.path = {"/v1/completions", 15},
                                            .model = {"self-test", 9},
                                            .n = 1,
                                            .prompt_bytes = 4096,
                                            .prompt_tokens = 1024};

struct run {
    bt_policy_t *policy;
    struct fleet *fleet;
    char *err;
    size_t err_size;
    bt_policy_request_t req;
    bt_policy_vars_t vars;
    enum bt_policy_part part;
    bool has_labels;
    unsigned plans; /* that chose somebody */
    char note[512]; /* what it could not do here but may elsewhere */
};

static int refuse(const struct run *run, const char *what, const char *why)
{
    snprintf(run->err, run->err_size, "%s (self-test: %s)", why, what);
    return BT_E_POLICY;
}

static int ask(struct run *run, const bt_policy_view_t *view, bt_choice_t *choice_p)
{
    int rc = bt_policy_plan(run->policy, run->part, &run->req, view, choice_p);

    if (rc == 0 && run->part == BT_POLICY_BOTH && bt_pair_lacks_decode(&choice_p->first))
        rc = bt_policy_plan_late(run->policy, BT_POLICY_DECODE, &run->req, view,
                                 choice_p->first.prefill, 1, choice_p);
    else if (rc == 0 && run->part == BT_POLICY_BOTH && bt_pair_lacks_prefill(&choice_p->first))
        rc = bt_policy_plan_late(run->policy, BT_POLICY_PREFILL, &run->req, view,
                                 choice_p->first.decode, 1, choice_p);
    return rc;
}

static bool is_over_budget(const struct run *run, int rc)
{
    return rc < 0 && strstr(bt_policy_error(run->policy), "over its budget") != NULL;
}

/* BT_E_POLICY: it took too long. BT_E_AGAIN: it raised, or chose what cannot be; its own words are in policy->error. */
static int try_plan(struct run *run, const char *what, unsigned prefill, unsigned decode,
                    unsigned single)
{
    const bt_worker_set_t p = {run->fleet->items[BT_ROLE_PREFILL], prefill},
                          d = {run->fleet->items[BT_ROLE_DECODE], decode},
                          s = {run->fleet->items[BT_ROLE_HYBRID], single};
    const bt_policy_view_t view = {.sets = {&p, &d, &s, &s}, .pool = {"self-test", 9}};
    const uint64_t start_us = bt_clock_cpu_us();
    bt_choice_t choice;
    int rc;

    run->policy->call.testing = true;
    rc = ask(run, &view, &choice);
    for (unsigned more = 0; more < ASKED_AGAIN && is_over_budget(run, rc); more++)
        rc = ask(run, &view, &choice);
    run->policy->call.testing = false;
    if (bt_clock_cpu_us() - start_us > BUDGET_US)
        return refuse(run, what, "plan took more than 250 ms");
    if (is_over_budget(run, rc))
        return refuse(run, what, bt_policy_error(run->policy));
    run->plans += rc == 0 && !bt_choice_is_nobody(&choice);
    return rc < 0 ? BT_E_AGAIN : 0;
}

/* Only its time counts. */
static int try_without_workers(struct run *run)
{
    int rc = try_plan(run, "no workers", 0, 0, 0);

    if (rc == BT_E_POLICY)
        return rc;
    set_health(run->fleet, BT_HEALTH_DOWN);
    rc = try_plan(run, "all workers down", 8, 8, 0);
    if (rc != BT_E_POLICY)
        rc = try_plan(run, "all workers down", 0, 0, 8);
    set_health(run->fleet, BT_HEALTH_UP);
    return rc == BT_E_POLICY ? rc : 0;
}

bool bt_policy_is_absence(const char *err)
{
    static const char *const marks[] = {" nil", "no prefill worker", "no decode worker",
                                        "with no worker"};

    for (size_t i = 0; i < sizeof(marks) / sizeof(marks[0]); i++)
        if (strstr(err, marks[i]) != NULL)
            return true;
    return false;
}

/* A policy may be written for one kind of workers, and find nobody of its kind in the other; any other error is a mistake. */
static int try_with_workers(struct run *run, const char *what, unsigned each, unsigned single)
{
    char why[512];
    int rc = try_plan(run, what, each, each, 0), pair_rc = rc;

    if (rc == BT_E_POLICY)
        return rc;
    snprintf(why, sizeof(why), "%s", bt_policy_error(run->policy));
    if (rc < 0 && !bt_policy_is_absence(why))
        return refuse(run, what, why);
    rc = try_plan(run, what, 0, 0, single);
    if (rc == BT_E_AGAIN && !bt_policy_is_absence(bt_policy_error(run->policy)))
        return refuse(run, what, bt_policy_error(run->policy));
    if (rc != BT_E_AGAIN || pair_rc == 0)
        return rc == BT_E_POLICY ? rc : 0;
    if (!run->policy->asked_labels)
        return refuse(run, what, why);
    snprintf(run->note, sizeof(run->note), "%.400s", why);
    return 0;
}

static const char *never(const bt_policy_t *policy, char *why, size_t why_size)
{
    snprintf(why, why_size, "%s: plan of %s never chose anybody", policy->path,
             bt_policy_name(policy));
    return why;
}

/* Nobody was ever chosen: is it the policy, or what it was shown? */
static int judge(struct run *run)
{
    const bt_policy_t *policy = run->policy;
    char why[256];

    run->err[0] = '\0';
    if (run->plans > 0)
        return 0;
    if (!policy->asked_labels && !policy->asked_client)
        return refuse(run, "pairs and single workers, one of each and 512",
                      never(policy, why, sizeof(why)));
    snprintf(run->err, run->err_size, "%s in the self-test%s%s%s%s",
             never(policy, why, sizeof(why)),
             !policy->asked_labels ? ""
             : run->has_labels     ? ", whose workers have the labels and the zone that were given"
                                   : ", whose workers have no labels and no zone",
             policy->asked_client ? ", whose request has no headers, tenant, session or class and "
                                    "model \"self-test\""
                                  : "",
             run->note[0] != '\0' ? ": " : "", run->note);
    return 0;
}

/* ---- admit and route ---- */

/* After so many waits its time is over; one that then waits again would do so until its deadline for every request. */
static int finish(struct run *run, const char *what, bt_policy_run_t *hook, int rc)
{
    bt_hook_answer_t answer = {0};

    for (unsigned waits = 1; rc == 1 && waits <= WAITS_MAX + 1; waits++) {
        answer.rc = waits > WAITS_MAX                       ? BT_E_TOTAL_TIMEOUT
                    : hook->hook_op.kind == BT_HOOK_OP_HTTP ? UV_ENETUNREACH
                                                            : 0;
        rc = bt_policy_resume(hook, &answer);
    }
    bt_policy_run_drop(hook);
    return rc == 1 ? refuse(run, what, "it waits without end, also when its time is over") : rc;
}

static int try_entry(struct run *run, const char *what,
                     int (*begin)(bt_policy_t *, bt_policy_run_t *, const bt_policy_request_t *))
{
    const uint64_t start_us = bt_clock_cpu_us();
    bt_policy_run_t hook;
    int rc;

    run->err[0] = '\0';
    rc = finish(run, what, &hook, begin(run->policy, &hook, &run->req));
    if (rc == BT_E_AGAIN)
        return 0;
    if (rc < 0 && run->err[0] == '\0')
        return refuse(run, what, bt_policy_error(run->policy));
    if (rc == 0 && bt_clock_cpu_us() - start_us > BUDGET_US)
        return refuse(run, what, "it took more than 250 ms");
    return rc;
}

static int try_enqueue(struct run *run)
{
    bt_policy_queueing_t queueing;
    const int rc = bt_policy_enqueue(run->policy, &run->req, &queueing);

    return rc < 0 && rc != BT_E_AGAIN ? refuse(run, "enqueue", bt_policy_error(run->policy)) : 0;
}

static int try_plans(struct run *run)
{
    int rc;

    run->plans = 0;
    rc = try_without_workers(run);
    if (rc == 0)
        rc = try_with_workers(run, "one worker of each role", 1, 1);
    if (rc == 0)
        rc = try_with_workers(run, "512 workers", FLEET_SIZE / 2, FLEET_SIZE);
    return rc == 0 ? judge(run) : rc;
}

/* It fails for want of the other half. */
static bool is_half(const char *err, enum bt_policy_part *part_p)
{
    if (strstr(err, "no prefill worker") != NULL)
        *part_p = BT_POLICY_DECODE;
    else if (strstr(err, "no decode worker") != NULL)
        *part_p = BT_POLICY_PREFILL;
    else
        return false;
    return true;
}

int bt_policy_self_test(bt_policy_t *policy, const bt_policy_trial_t *trial, char *err,
                        size_t err_size)
{
    struct run run = {.policy = policy,
                      .fleet = make_fleet(trial),
                      .err = err,
                      .err_size = err_size,
                      .part = trial->part,
                      .has_labels = trial->labels != NULL || trial->zone != NULL,
                      .req = made_up};
    int rc = BT_E_NOMEM;

    policy->asked_labels = policy->asked_client = false;
    snprintf(err, err_size, "out of memory");
    run.req.vars = bt_policy_has_entry(policy) ? &run.vars : NULL;
    if (run.fleet != NULL)
        rc = try_entry(&run, "admit", bt_policy_admit);
    if (rc == 0)
        rc = try_entry(&run, "route", bt_policy_route);
    if (rc == 0)
        rc = try_enqueue(&run);
    if (rc == 0)
        rc = try_plans(&run);
    if (rc < 0 && trial->or_half && is_half(err, &run.part))
        rc = try_plans(&run);
    if (policy->native->prefix.serial != 0) /* it looks at prompts: the index will be used */
        bt_prefix_warm();
    bt_policy_vars_drop(&run.vars);
    free_fleet(run.fleet);
    return rc;
}

int bt_policy_self_test_kind(bt_policy_t *policy, bool single, char *err, size_t err_size)
{
    struct run run = {.policy = policy,
                      .fleet = make_fleet(&(bt_policy_trial_t){.part = BT_POLICY_BOTH}),
                      .err = err,
                      .err_size = err_size,
                      .req = made_up};
    int rc = BT_E_NOMEM;

    run.req.vars = bt_policy_has_entry(policy) ? &run.vars : NULL;
    (void) try_entry(&run, "admit", bt_policy_admit); /* for what they leave in ctx.vars */
    (void) try_entry(&run, "route", bt_policy_route);
    snprintf(err, err_size, "out of memory");
    if (run.fleet != NULL) {
        const bt_worker_set_t p = {run.fleet->items[BT_ROLE_PREFILL], !single},
                              d = {run.fleet->items[BT_ROLE_DECODE], !single},
                              s = {run.fleet->items[BT_ROLE_HYBRID], single};
        const bt_policy_view_t view = {.sets = {&p, &d, &s, &s}, .pool = {"self-test", 9}};
        bt_choice_t choice;

        rc = bt_policy_plan(policy, BT_POLICY_BOTH, &run.req, &view, &choice);
        if (rc < 0)
            snprintf(err, err_size, "%s", bt_policy_error(policy));
        else if (bt_choice_is_nobody(&choice))
            rc = refuse(&run, single ? "one hybrid" : "one pair", "plan returned nil");
    }
    bt_policy_vars_drop(&run.vars);
    free_fleet(run.fleet);
    return rc;
}
