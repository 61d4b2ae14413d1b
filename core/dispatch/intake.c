/* intake.c - what happens to a request before anybody is chosen: rules, then its policy's admit and route.
 *
 *   rules -> admit -> route -> bt_request_go
 *              |  ^     |  ^
 *              +--+     +--+   waits for time or an allowed host, on the loop
 *              |
 *              +-> rejected: status, Retry-After and reason as the policy says
 *
 * A hook that fails or waits longer than --policy-wait-ms admits and changes nothing. After its deadline it is told so once (its
 * wait ends with an error) and ended when it wants to wait again.
 */
#include "base/log.h"
#include "dispatch/request.h"

enum intake_step { ADMIT, ROUTE };

static void advance(bt_request_t *r, int rc);

static const struct bt_pool_policies *asked(bt_request_t *r)
{
    const struct bt_pool_policies *p = bt_policy_call_policies(r);

    return p != NULL && p->both != NULL && bt_policy_has_entry(p->both) ? p : NULL;
}

void bt_intake_end(bt_request_t *r)
{
    struct bt_intake *e = r->entry;

    bt_wait_free(&e->wait);
    bt_policy_run_drop(&e->run);
    r->kept_count = bt_policy_vars_kept(&e->vars, r->kept);
    if (r->kept_count > 0 && r->policies == NULL) /* nobody has planned, but it wants to hear */
        r->policies = bt_arena_str(&r->arena, bt_str(e->policies->bundle->name)).p;
    bt_policy_vars_drop(&e->vars);
    r->entry = NULL;
}

/* ---- waiting ---- */

static void on_wait(bt_wait_t *wait, const bt_want_answer_t *answer)
{
    bt_request_t *r = bt_wait_user(wait);
    struct bt_intake *e = r->entry;
    int rc;

    e->is_late = bt_clock_ms() >= e->until_ms;
    rc = bt_policy_resume(&e->run, answer);
    bt_wait_free(&e->wait);
    advance(r, rc);
}

/* 1: it waits. Else what the hook came to. */
static int wait_for(bt_request_t *r)
{
    const bt_wait_ctx_t room = bt_dispatcher_wait_ctx(r->d);
    struct bt_intake *e = r->entry;
    bt_want_answer_t refused = {0}, answer;
    bt_store_reply_t reply;

    if (!e->is_late) {
        if (bt_wait_store_now(&room, &e->run.want, &answer, &reply))
            return bt_policy_resume(&e->run, &answer);
        refused.rc = bt_wait_start(&e->wait, &room, &e->run.want, e->until_ms, on_wait, r);
        if (refused.rc == 0)
            return 1;
        e->is_late = true; /* one that asks for what cannot be had must not spin */
        return bt_policy_resume(&e->run, &refused);
    }
    bt_policy_run_drop(&e->run);
    return BT_E_TOTAL_TIMEOUT;
}

/* ---- steps ---- */

static int begin(bt_request_t *r, enum intake_step step)
{
    struct bt_intake *e = r->entry;
    bt_policy_t *policy = e->policies->both;

    e->step = step;
    e->since_us = bt_clock_us();
    e->until_ms = bt_clock_ms() + r->d->shared->config.policy_wait_ms;
    e->is_late = false;
    e->req = bt_policy_call_describe(r);
    e->req.vars = &e->vars;
    return step == ADMIT ? bt_policy_admit(policy, &e->run, &e->req)
                         : bt_policy_route(policy, &e->run, &e->req);
}

static void note_failure(bt_request_t *r, int rc)
{
    const struct bt_intake *e = r->entry;
    const char *text = bt_policy_error(e->policies->both);

    if (rc == BT_E_TOTAL_TIMEOUT)
        text = bt_arena_printf(&r->arena, "%s waited longer than %llu ms (--policy-wait-ms)",
                               e->step == ADMIT ? "admit" : "route",
                               (unsigned long long) r->d->shared->config.policy_wait_ms)
                   .p;
    bt_policy_call_error(r, e->policies, e->policies->both, text);
}

static bool is_rejected(bt_request_t *r)
{
    const bt_policy_admission_t *a = &r->entry->run.admission;

    if (a->status == 0)
        return false;
    bt_stats_inc(&r->d->stats, policy_rejected);
    r->fail_name = "rejected";
    bt_answer_error(r, a->status, NULL,
                    a->reason[0] != '\0' ? a->reason : "refused by the gateway's policy",
                    a->retry_after_s);
    return true;
}

static void take_direction(bt_request_t *r)
{
    const bt_policy_direction_t *to = &r->entry->run.direction;
    const bt_policy_t *policy = r->entry->policies->both;

    if (to->klass[0] != '\0')
        r->record.klass = bt_arena_str(&r->arena, bt_str(to->klass)).p;
    if (to->key[0] != '\0')
        r->record.key = bt_arena_str(&r->arena, bt_str(to->key)).p;
    if (to->pool[0] == '\0' || r->pinned != NULL || strcmp(to->pool, r->pool->spec.name) == 0)
        return;
    if (bt_request_set_pool(r, to->pool)) {
        r->rule.target = NULL; /* the other pool's own policies plan */
        return;
    }
    bt_policy_call_error(
        r, r->entry->policies, policy,
        bt_arena_printf(&r->arena, "route named pool '%s', and there is none", to->pool).p);
}

/* One hook is over: true when the request has been answered. */
static bool end_step(bt_request_t *r, int rc)
{
    struct bt_intake *e = r->entry;
    const uint64_t us = bt_clock_us() - e->since_us;

    if (e->step == ADMIT)
        r->record.admit_us = us;
    else
        r->record.route_us = us;
    if (rc < 0 && rc != BT_E_AGAIN)
        note_failure(r, rc);
    bt_policy_run_drop(&e->run);
    if (rc == 0 && e->step == ROUTE)
        take_direction(r);
    return rc == 0 && e->step == ADMIT && is_rejected(r);
}

static void advance(bt_request_t *r, int rc)
{
    for (;;) {
        while (rc == 1) {
            rc = wait_for(r);
            if (rc == 1 && r->entry->wait != NULL)
                return; /* on_wait goes on */
        }
        if (end_step(r, rc))
            return;
        if (r->entry->step == ROUTE)
            break;
        rc = begin(r, ROUTE);
    }
    bt_request_go(r);
}

void bt_intake_start(bt_request_t *r)
{
    const struct bt_pool_policies *p;

    bt_policy_call_rules(r);
    if (!bt_request_find_pool(r))
        return;
    p = asked(r);
    if (p == NULL) {
        bt_request_go(r);
        return;
    }
    r->entry = bt_arena_zalloc(&r->arena, sizeof(*r->entry));
    r->entry->policies = p;
    advance(r, begin(r, ADMIT));
}
