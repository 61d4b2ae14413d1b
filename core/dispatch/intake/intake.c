/* intake.c - what happens to a request before anybody is chosen: rules, then admit and route of all
 * policies that its pool names. They may wait, on the loop. The first admit that rejects ends it:
 * status, Retry-After and reason are the policy's. Where a route names another pool, that pool's
 * admits follow, but no other route.
 *
 * A hook that fails or waits longer than --policy-wait-ms admits and changes nothing. After its
 * deadline it is told so once (its wait ends with an error) and ended when it wants to wait again.
 */
#include "dispatch/intake/intake.h"

#include "base/log.h"
#include "dispatch/answer/answer.h"
#include "dispatch/plan/policy_call.h"
#include "dispatch/plan/request_pool.h"
#include "script/value/value.h"

/* ---- hooks ---- */

static int begin(bt_request_t *r)
{
    struct bt_intake *e = r->intake;
    bt_policy_t *policy = e->gates[e->at];

    e->since_us = bt_clock_us();
    bt_hook_run_begin(&e->hook);
    e->req = bt_policy_call_describe(r);
    e->req.vars = &e->vars[e->at];
    return e->is_admit ? bt_policy_admit(policy, &e->hook.run, &e->req)
                       : bt_policy_route(policy, &e->hook.run, &e->req);
}

static void note_failure(bt_request_t *r, int rc)
{
    const struct bt_intake *e = r->intake;
    const char *text = bt_policy_error(e->gates[e->at]);

    if (rc == BT_E_TOTAL_TIMEOUT)
        text = bt_arena_printf(&r->arena, "%s waited longer than %llu ms (--policy-wait-ms)",
                               e->is_admit ? "admit" : "route",
                               (unsigned long long) r->d->shared->config.policy_wait_ms)
                   .p;
    bt_policy_call_error(r, e->policies, e->gates[e->at], text);
}

static bool is_rejected(bt_request_t *r)
{
    const bt_policy_admission_t *a = &r->intake->hook.run.admission;

    if (a->status == 0)
        return false;
    bt_stats_inc(&r->d->stats, policy_rejected);
    r->fail_name = "rejected";
    bt_answer_error(r, a->status,
                    a->reason[0] != '\0' ? a->reason : "refused by the gateway's policy",
                    a->retry_after_s);
    return true;
}

/* Of all hooks together; for limits that have this name when the request comes to them. */
static void keep_factors(bt_request_t *r, bt_policy_admission_t *a)
{
    for (unsigned i = 0; a->limits != NULL && i < a->limits->count; i++) {
        struct bt_limit_factor *f = bt_arena_zalloc(&r->arena, sizeof(*f));
        f->limit = bt_arena_str(&r->arena, bt_str(a->limits->items[i].key));
        f->by = a->limits->items[i].number;
        f->next = r->limit_factors;
        r->limit_factors = f;
    }
    bt_value_free(a->limits);
    a->limits = NULL;
}

/* True: to another pool, whose own policies have their say from here on. */
static bool take_direction(bt_request_t *r)
{
    const struct bt_intake *e = r->intake;
    const bt_policy_direction_t *to = &e->hook.run.direction;

    if (to->klass[0] != '\0')
        r->record.klass = bt_arena_str(&r->arena, bt_str(to->klass)).p;
    if (to->key[0] != '\0')
        r->record.key = bt_arena_str(&r->arena, bt_str(to->key)).p;
    if (to->pool[0] == '\0' || r->pinned != NULL || strcmp(to->pool, r->pool->spec.name) == 0)
        return false;
    if (bt_request_set_pool(r, to->pool)) {
        r->rule.target = NULL;
        return true;
    }
    bt_policy_call_error(
        r, e->policies, e->gates[e->at],
        bt_arena_printf(&r->arena, "route named pool '%s', and there is none", to->pool).p);
    return false;
}

enum end { END_ON, END_ELSEWHERE, END_REJECTED };

static enum end end_hook(bt_request_t *r, int rc)
{
    struct bt_intake *e = r->intake;
    const uint64_t us = bt_clock_us() - e->since_us;
    enum end end = END_ON;

    if (e->is_admit)
        r->record.admit_us += us;
    else
        r->record.route_us += us;
    bt_histogram_note(e->is_admit ? &r->d->stats.admission : &r->d->stats.route, us, 1);
    bt_request_trace_mark(r, e->is_admit ? BT_MARK_ADMISSION : BT_MARK_ROUTE, e->since_us, us);
    if (rc < 0 && rc != BT_E_AGAIN)
        note_failure(r, rc);
    if (rc == 0 && e->is_admit && is_rejected(r))
        end = END_REJECTED;
    else if (rc == 0 && e->is_admit)
        keep_factors(r, &e->hook.run.admission);
    else if (rc == 0 && take_direction(r))
        end = END_ELSEWHERE;
    bt_policy_run_drop(&e->hook.run);
    return end;
}

static enum bt_progress go_on(bt_request_t *r, int rc);

static void on_end(bt_hook_run_t *hook, int rc)
{
    bt_request_t *r = bt_container_of(hook, struct bt_intake, hook)->request;

    r->ops->go_on(r, go_on(r, rc));
}

/* The gates of the request's pool; false: it has none. */
static bool open_gates(bt_request_t *r, bool is_directed)
{
    const struct bt_pool_policies *p = bt_policy_call_policies(r);
    bt_policy_t *all[BT_SLOT_COUNT];
    const unsigned count = p != NULL ? bt_pool_policies_all(p, all) : 0;
    struct bt_intake *e = NULL;

    for (unsigned i = 0; i < count; i++) {
        if (!bt_policy_has_entry(all[i]))
            continue;
        if (e == NULL)
            e = bt_arena_zalloc(&r->arena, sizeof(*e));
        e->gates[e->gate_count++] = all[i];
    }
    if (e == NULL)
        return false;
    e->request = r;
    e->policies = p;
    e->hook.d = r->d;
    e->hook.on_end = on_end;
    e->is_admit = true;
    e->is_directed = is_directed;
    r->intake = e;
    return true;
}

/* To the hook after the one that has ended; false: it was the last. */
static bool next_hook(bt_request_t *r, enum end end)
{
    if (end != END_ELSEWHERE)
        return ++r->intake->at < r->intake->gate_count;
    bt_policy_call_end_intake(r);
    return open_gates(r, true);
}

/* rc: what the hook that has ended came to. */
static enum bt_progress go_on(bt_request_t *r, int rc)
{
    for (;;) {
        const enum end end = end_hook(r, rc);
        if (end == END_REJECTED)
            return BT_PROGRESS_ENDED;
        if (!next_hook(r, end))
            return BT_PROGRESS_NEXT;
        rc = bt_hook_run_settle(&r->intake->hook, begin(r));
        if (rc == 1)
            return BT_PROGRESS_WAITS;
    }
}

static enum bt_progress run_hooks(bt_request_t *r)
{
    const int rc = bt_hook_run_settle(&r->intake->hook, begin(r));

    return rc == 1 ? BT_PROGRESS_WAITS : go_on(r, rc);
}

/* ---- stations ---- */

enum bt_progress bt_intake_rules(bt_request_t *r)
{
    bt_policy_call_rules(r);
    return bt_request_find_pool(r) ? BT_PROGRESS_NEXT : BT_PROGRESS_ENDED;
}

enum bt_progress bt_intake_admit(bt_request_t *r)
{
    return open_gates(r, false) ? run_hooks(r) : BT_PROGRESS_NEXT;
}

enum bt_progress bt_intake_route(bt_request_t *r)
{
    struct bt_intake *e = r->intake;

    if (e == NULL || e->is_directed)
        return BT_PROGRESS_NEXT;
    e->at = 0;
    e->is_admit = false;
    return run_hooks(r);
}
