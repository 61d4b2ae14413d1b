/* The fleet of a self-test is made of workers that no registry knows: nobody ever connects to them.
 *
 * What is asked and what may come back:
 *   nobody there, everybody down   must return in time; an error is the default choice's turn and no reason to refuse,
 *                                  since the gateway asks no policy about an empty fleet
 *   one of each role, 512          a good answer or nil, for pairs or for single workers: a policy may be written for one kind,
 *                                  and may fail for lack of the other, but for no other reason
 *   admit, route                   no error; every sleep is over at once and there is no network, which they must bear. Their
 *                                  vars go to the plans that follow, as in the gateway
 */
#include "script/policy/policy_impl.h"
#include "script/policy/policy_source.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <uv.h>

#define FLEET_SIZE 512u   /* split between prefill and decode, and as many hybrids */
#define BUDGET_US 250000u /* of a machine that has other things to do; the watchdog is stricter */

#define WAITS_MAX 64u /* of one hook */

struct fleet {
    bt_worker_t *items[3][FLEET_SIZE];
    unsigned count[3]; /* by enum bt_role: prefill, decode, hybrid */
};

static bt_worker_t *make_worker(enum bt_role role, unsigned i, uint64_t first_id)
{
    static const bt_breaker_config_t breaker;
    char url[64], name[16], connector[] = "NixlConnector", err[128];
    bt_worker_spec_t spec;
    bt_worker_t *w;

    snprintf(url, sizeof(url), "http://self-test-%u:8000", i);
    snprintf(name, sizeof(name), "%c%u", "pdw"[role], i);
    bt_worker_spec_init(&spec);
    spec.url = url;
    spec.name = name;
    spec.role = role;
    spec.engine = BT_ENGINE_VLLM;
    spec.connector = role != BT_ROLE_HYBRID ? connector : NULL;
    if (bt_worker_new(&w, &spec, first_id + ((uint64_t) role + 1) * 100000 + i, i, &breaker, err,
                      sizeof(err)) < 0)
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

static struct fleet *make_fleet(void)
{
    static const unsigned wanted[3] = {FLEET_SIZE / 2, FLEET_SIZE / 2, FLEET_SIZE};
    struct fleet *f = calloc(1, sizeof(*f));
    static _Atomic uint64_t fleets; /* a policy may be tested twice, and remembers workers by id */
    const uint64_t first_id = atomic_fetch_add_explicit(&fleets, 1, memory_order_relaxed) << 20;

    for (unsigned role = 0; f != NULL && role < 3; role++)
        for (; f->count[role] < wanted[role]; f->count[role]++) {
            bt_worker_t *w = make_worker((enum bt_role) role, f->count[role], first_id);
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
};

static int refuse(const struct run *run, const char *what, const char *why)
{
    snprintf(run->err, run->err_size, "%s (self-test: %s)", why, what);
    return BT_E_POLICY;
}

/* BT_E_POLICY: it took too long. BT_E_AGAIN: it raised, or chose what cannot be; its own words are in policy->error. */
static int try_plan(struct run *run, const char *what, unsigned prefill, unsigned decode,
                    unsigned single)
{
    const bt_worker_set_t p = {run->fleet->items[BT_ROLE_PREFILL], prefill},
                          d = {run->fleet->items[BT_ROLE_DECODE], decode},
                          s = {run->fleet->items[BT_ROLE_HYBRID], single};
    const bt_policy_view_t view = {
        .prefill = &p, .decode = &d, .single = &s, .pool = {"self-test", 9}};
    const uint64_t start_us = bt_clock_us();
    bt_choice_t choice;
    int rc;

    run->policy->call.testing = true;
    rc = bt_policy_plan(run->policy, BT_POLICY_BOTH, &run->req, &view, &choice);
    run->policy->call.testing = false;
    if (bt_clock_us() - start_us > BUDGET_US)
        return refuse(run, what, "plan took more than 250 ms");
    if (rc < 0 && strstr(bt_policy_error(run->policy), "over its budget") != NULL)
        return refuse(run, what, bt_policy_error(run->policy));
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
    return refuse(run, what, why);
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
    const uint64_t start_us = bt_clock_us();
    bt_policy_run_t hook;
    int rc;

    run->err[0] = '\0';
    rc = finish(run, what, &hook, begin(run->policy, &hook, &run->req));
    if (rc == BT_E_AGAIN)
        return 0;
    if (rc < 0 && run->err[0] == '\0')
        return refuse(run, what, bt_policy_error(run->policy));
    if (rc == 0 && bt_clock_us() - start_us > BUDGET_US)
        return refuse(run, what, "it took more than 250 ms");
    return rc;
}

int bt_policy_self_test(bt_policy_t *policy, char *err, size_t err_size)
{
    struct run run = {policy, make_fleet(), err, err_size, made_up, {0}};
    int rc = BT_E_NOMEM;

    snprintf(err, err_size, "out of memory");
    run.req.vars = bt_policy_has_entry(policy) ? &run.vars : NULL;
    if (run.fleet != NULL)
        rc = try_entry(&run, "admit", bt_policy_admit);
    if (rc == 0)
        rc = try_entry(&run, "route", bt_policy_route);
    if (rc == 0)
        rc = try_without_workers(&run);
    if (rc == 0)
        rc = try_with_workers(&run, "one worker of each role", 1, 1);
    if (rc == 0)
        rc = try_with_workers(&run, "512 workers", FLEET_SIZE / 2, FLEET_SIZE);
    if (policy->native->prefix.serial != 0) /* it looks at prompts: the index will be used */
        bt_prefix_warm();
    bt_policy_vars_drop(&run.vars);
    free_fleet(run.fleet);
    return rc;
}

int bt_policy_self_test_kind(bt_policy_t *policy, bool single, char *err, size_t err_size)
{
    struct run run = {policy, make_fleet(), err, err_size, made_up, {0}};
    int rc = BT_E_NOMEM;

    run.req.vars = bt_policy_has_entry(policy) ? &run.vars : NULL;
    (void) try_entry(&run, "admit", bt_policy_admit); /* for what they leave in ctx.vars */
    (void) try_entry(&run, "route", bt_policy_route);
    snprintf(err, err_size, "out of memory");
    if (run.fleet != NULL) {
        const bt_worker_set_t p = {run.fleet->items[BT_ROLE_PREFILL], !single},
                              d = {run.fleet->items[BT_ROLE_DECODE], !single},
                              s = {run.fleet->items[BT_ROLE_HYBRID], single};
        const bt_policy_view_t view = {
            .prefill = &p, .decode = &d, .single = &s, .pool = {"self-test", 9}};
        bt_choice_t choice;

        rc = bt_policy_plan(policy, BT_POLICY_BOTH, &run.req, &view, &choice);
        if (rc < 0)
            snprintf(err, err_size, "%s", bt_policy_error(policy));
    }
    bt_policy_vars_drop(&run.vars);
    free_fleet(run.fleet);
    return rc;
}
