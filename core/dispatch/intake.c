/* intake.c - what happens to a request before anybody is chosen: rules, then its policy's admit and route.
 * admit and route may wait for time or an allowed host, on the loop; admit may reject: status, Retry-After and reason as the policy says.
 *
 * A hook that fails or waits longer than --policy-wait-ms admits and changes nothing. After its deadline it is told so once (its
 * wait ends with an error) and ended when it wants to wait again.
 */
#include "dispatch/intake.h"
#include "base/log.h"
#include "dispatch/policy_call.h"
#include "dispatch/sink.h"

static enum bt_progress settle(bt_request_t *r, int rc);

static const struct bt_pool_policies *asked(bt_request_t *r)
{
    const struct bt_pool_policies *p = bt_policy_call_policies(r);

    return p != NULL && p->both != NULL && bt_policy_has_entry(p->both) ? p : NULL;
}

void bt_intake_end(bt_request_t *r)
{
    struct bt_intake *e = r->intake;

    bt_wait_free(&e->wait);
    bt_policy_run_drop(&e->run);
    r->kept_count = bt_policy_vars_kept(&e->vars, r->kept);
    if (r->kept_count > 0 && r->policies == NULL) /* nobody has planned, but it wants to hear */
        r->policies = bt_arena_str(&r->arena, bt_str(e->policies->bundle->name)).p;
    bt_policy_vars_drop(&e->vars);
    r->intake = NULL;
}

/* ---- waiting ---- */

static void on_wait(bt_wait_t *wait, const bt_hook_answer_t *answer)
{
    bt_request_t *r = bt_wait_user(wait);
    struct bt_intake *e = r->intake;
    int rc;

    e->is_late = bt_clock_ms() >= e->until_ms;
    rc = bt_policy_resume(&e->run, answer);
    bt_wait_free(&e->wait);
    bt_request_go_on(r, settle(r, rc));
}

/* 1: it waits. Else what the hook came to. */
static int wait_for(bt_request_t *r)
{
    const bt_wait_ctx_t room = bt_dispatcher_wait_ctx(r->d);
    struct bt_intake *e = r->intake;
    bt_hook_answer_t refused = {0}, answer;
    bt_store_reply_t reply;

    if (!e->is_late) {
        if (bt_wait_store_now(&room, &e->run.hook_op, &answer, &reply))
            return bt_policy_resume(&e->run, &answer);
        refused.rc = bt_wait_start(&e->wait, &room, &e->run.hook_op, e->until_ms, on_wait, r);
        if (refused.rc == 0)
            return 1;
        e->is_late = true; /* one that asks for what cannot be had must not spin */
        return bt_policy_resume(&e->run, &refused);
    }
    bt_policy_run_drop(&e->run);
    return BT_E_TOTAL_TIMEOUT;
}

/* ---- hooks ---- */

static void begin(bt_request_t *r)
{
    struct bt_intake *e = r->intake;

    e->since_us = bt_clock_us();
    e->until_ms = bt_clock_ms() + r->d->shared->config.policy_wait_ms;
    e->is_late = false;
    e->req = bt_policy_call_describe(r);
    e->req.vars = &e->vars;
}

static void note_failure(bt_request_t *r, int rc)
{
    const struct bt_intake *e = r->intake;
    const char *text = bt_policy_error(e->policies->both);

    if (rc == BT_E_TOTAL_TIMEOUT)
        text = bt_arena_printf(&r->arena, "%s waited longer than %llu ms (--policy-wait-ms)",
                               r->step == BT_STEP_ADMIT ? "admit" : "route",
                               (unsigned long long) r->d->shared->config.policy_wait_ms)
                   .p;
    bt_policy_call_error(r, e->policies, e->policies->both, text);
}

static bool is_rejected(bt_request_t *r)
{
    const bt_policy_admission_t *a = &r->intake->run.admission;

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
    const bt_policy_direction_t *to = &r->intake->run.direction;
    const bt_policy_t *policy = r->intake->policies->both;

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
        r, r->intake->policies, policy,
        bt_arena_printf(&r->arena, "route named pool '%s', and there is none", to->pool).p);
}

static enum bt_progress end_hook(bt_request_t *r, int rc)
{
    struct bt_intake *e = r->intake;
    const uint64_t us = bt_clock_us() - e->since_us;
    const bool is_admit = r->step == BT_STEP_ADMIT;

    if (is_admit)
        r->record.admit_us = us;
    else
        r->record.route_us = us;
    if (rc < 0 && rc != BT_E_AGAIN)
        note_failure(r, rc);
    bt_policy_run_drop(&e->run);
    if (rc == 0 && is_admit && is_rejected(r))
        return BT_PROGRESS_ENDED;
    if (rc == 0 && !is_admit)
        take_direction(r);
    return BT_PROGRESS_NEXT;
}

/* rc: what the hook came to, 1 = it wants to wait. */
static enum bt_progress settle(bt_request_t *r, int rc)
{
    while (rc == 1) {
        rc = wait_for(r);
        if (rc == 1 && r->intake->wait != NULL)
            return BT_PROGRESS_WAITS; /* on_wait goes on */
    }
    return end_hook(r, rc);
}

/* ---- stations ---- */

enum bt_progress bt_intake_rules(bt_request_t *r)
{
    bt_policy_call_rules(r);
    return bt_request_find_pool(r) ? BT_PROGRESS_NEXT : BT_PROGRESS_ENDED;
}

enum bt_progress bt_intake_admit(bt_request_t *r)
{
    const struct bt_pool_policies *p = asked(r);

    if (p == NULL)
        return BT_PROGRESS_NEXT;
    r->intake = bt_arena_zalloc(&r->arena, sizeof(*r->intake));
    r->intake->policies = p;
    begin(r);
    return settle(r, bt_policy_admit(p->both, &r->intake->run, &r->intake->req));
}

enum bt_progress bt_intake_route(bt_request_t *r)
{
    struct bt_intake *e = r->intake;

    if (e == NULL)
        return BT_PROGRESS_NEXT;
    begin(r);
    return settle(r, bt_policy_route(e->policies->both, &e->run, &e->req));
}
