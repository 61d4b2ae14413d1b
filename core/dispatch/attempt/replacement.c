/* replacement.c - another worker in the place of one that failed, where what its partner has done stays good.
 *
 *   decode:  prefill has finished, and decode got no byte of the hand-off: another decode gets it.
 *   prefill: decode waits for the first byte of a gateway-managed room: another prefill computes the prompt anew under a room of its own,
 *            and the hub tells decode's agents where it comes from now. Decode's engine never hears of it.
 *            Or decode has called for it (a trigger), and it got no byte: another one is asked with what the call says.
 *
 * Both count as attempts, and respect what attempts respect: the deadline, their number, the budget, --disable-retries, breakers.
 */
#include "base/log.h"
#include "dispatch/attempt/attempt.h"
#include "dispatch/attempt/leg.h"
#include "dispatch/attempt/task.h"
#include "dispatch/plan/plan.h"

static void note_replacement(const bt_leg_t *leg, int rc)
{
    bt_attempt_t *a = leg->attempt;
    bt_arena_t *arena = &a->task->request->arena;
    struct bt_replaced *s = bt_arena_alloc(arena, sizeof(*s));

    *s = (struct bt_replaced){
        a->replaced, leg->role,          bt_arena_str(arena, bt_str(leg->worker->name)).p,
        rc,          leg->call.start_us, bt_clock_event_us()};
    a->replaced = s;
}

/* The old leg is settled; the new one is entered already. */
static void renew_leg(bt_leg_t *leg, enum bt_leg_role role, bt_worker_t *worker, bool probe)
{
    bt_attempt_t *a = leg->attempt;
    bt_request_t *r = a->task->request;

    bt_leg_drop(leg);
    bt_leg_init(leg, a, role, worker);
    leg->entered = true;
    leg->probe = probe;
    bt_attempt_enter_pair(a);
    bt_leg_take_place(leg); /* another loop may have the last one since: one too many, for once */
    a->task->attempts++;
    r->attempts++;
}

/* ---- decode ---- */

/* It got no byte of the request. */
static bool has_not_heard(const bt_leg_t *leg, const bt_failure_t *f)
{
    return !leg->call.any_byte_sent && f->status == 0 &&
           (f->rc == BT_E_CONNECT || f->rc == BT_E_CONNECT_TIMEOUT || f->rc == BT_E_RESOLVE ||
            f->rc == BT_E_TLS || f->rc == BT_E_LOST);
}

/* A finished prefill may serve another decode only if the first one has not heard of it: after that decode may have
 * read or rejected it, and prefill's blocks are free for others. And not if prefill was told which decode it is for. */
bool bt_replacement_decode(bt_attempt_t *a, const bt_failure_t *f)
{
    bt_leg_t *d = bt_attempt_answer(a);
    bt_pair_t pair;
    bool probe;

    if (a->dialect->needs_decode_first || !has_not_heard(d, f) || !f->retryable ||
        !bt_task_may_go_on(a->task))
        return false;
    if (!bt_task_take_retry(a->task))
        return false;
    bt_plan_mark_tried(a->task, a->pair.decode);
    if (bt_plan_beside(a->task, f, &a->pair, BT_LEG_PREFILL, &pair) < 0 ||
        !bt_breaker_enter(&pair.decode->breaker, bt_clock_event_ms(), &probe))
        return false;
    note_replacement(d, f->rc);
    bt_leg_settle(d, BT_BLAME_GUILTY);
    a->pair = pair;
    bt_stats_inc(&a->task->request->d->stats, decode_replacements);
    renew_leg(d, BT_LEG_DECODE, pair.decode, probe);
    bt_attempt_start_decode(a);
    return true;
}

/* ---- prefill ---- */

/* What a client's own request is to blame for would fail at any prefill. */
static bool is_room_repairable(const bt_attempt_t *a, const bt_failure_t *f)
{
    return a->kv.room != 0 && !a->kv.is_moving && f->rc != BT_E_DIALECT &&
           (f->status == 0 || f->status >= 500);
}

/* One that was asked may write into decode's blocks yet, beside another one, or when they are somebody else's. */
static bool is_call_unheard(const bt_attempt_t *a, const bt_failure_t *f)
{
    return a->kind == BT_PLAN_TRIGGER && a->called_us != 0 && has_not_heard(&a->legs[0], f);
}

static bool may_repair(bt_attempt_t *a, const bt_failure_t *f)
{
    return (is_room_repairable(a, f) || is_call_unheard(a, f)) && !a->ended && !a->committed &&
           bt_leg_running(bt_attempt_answer(a)) && f->retryable && bt_task_may_go_on(a->task) &&
           bt_task_take_retry(a->task);
}

/* Another prefill that lets us in; those that do not are marked as tried. */
static bool try_prefills(bt_attempt_t *a, const bt_failure_t *f, bt_pair_t *pair_p, bool *probe_p)
{
    while (bt_plan_beside(a->task, f, &a->pair, BT_LEG_DECODE, pair_p) == 0) {
        if (bt_breaker_enter(&pair_p->prefill->breaker, bt_clock_event_ms(), probe_p))
            return true;
        bt_plan_mark_tried(a->task, pair_p->prefill); /* somebody else's probe is under way */
    }
    return false;
}

/* A trigger keeps its number: decode calls it, whoever prefills. */
static int repair_room(bt_attempt_t *a)
{
    uint64_t room;
    int rc;

    if (a->kv.room == 0)
        return 0;
    rc = bt_attempt_mint_room(a, &room);
    return rc == 0 ? bt_attempt_kv_repair(a, room) : rc;
}

/* 0, or BT_E_NOMEM with nothing changed but that the new worker's breaker has been entered. */
static int take_over(bt_attempt_t *a, const bt_pair_t *pair, bool probe, int rc, bool is_guilty)
{
    bt_leg_t *p = bt_attempt_prefill(a);
    const bt_pair_t before = a->pair;
    int failed;

    a->pair = *pair;
    failed = repair_room(a);
    if (failed < 0) {
        a->pair = before;
        bt_breaker_innocent(&pair->prefill->breaker, probe);
        return failed;
    }
    note_replacement(p, rc);
    if (is_guilty)
        bt_leg_settle(p, BT_BLAME_GUILTY);
    bt_attempt_stop_leg(p);
    a->prefill_done_us = a->lease_until_ms = 0;
    bt_stats_inc(&a->task->request->d->stats, prefill_replacements);
    renew_leg(p, BT_LEG_PREFILL, pair->prefill, probe);
    return 0;
}

bool bt_replacement_prefill(bt_attempt_t *a, const bt_failure_t *f, bool is_guilty)
{
    bt_leg_t *p = bt_attempt_prefill(a);
    bt_request_t *r = a->task->request;
    bt_failure_t next = *f;
    bt_pair_t pair;
    bool is_another = false, probe;

    while (may_repair(a, &next)) {
        bt_plan_mark_tried(a->task, a->pair.prefill);
        if (!try_prefills(a, &next, &pair, &probe))
            break;
        BT_REQUEST_LOG(debug, "dispatch", r, NULL, "prefill %s goes on in the place of %s: %s",
                       pair.prefill->name, a->pair.prefill->name, bt_err_name(next.rc));
        if (take_over(a, &pair, probe, next.rc, is_guilty) < 0)
            break;
        is_another = true;
        if (bt_leg_start(p, a->kind == BT_PLAN_TRIGGER ? a->trigger->said : BT_STR(""), &next) == 0)
            return true;
        is_guilty = bt_blame_is_guilty(&next);
    }
    if (is_another)
        bt_attempt_fail_leg(p, &next);
    return is_another;
}
