/* attempt_workers.c - what an attempt takes of its workers: a place, its breaker's leave, a rank; and who fills the place that its plan
 * has left open.
 *
 * Decode is chosen when prefill has finished (a hand-off), prefill when decode's engine has called for it (a trigger). Whoever does not
 * let us in, because somebody else's probe is under way or the last place has gone, is passed over.
 */
#include "cluster/pair_breaker.h"
#include "dispatch/attempt/attempt.h"
#include "dispatch/attempt/leg.h"
#include "dispatch/plan/plan.h"

/* Does this request's probe of the worker run already? Its other children then go with it: sent away, they would fail the
 * request, and a fleet that is asked for nothing but lists would never see a probe end. */
static bool rides_along(const bt_leg_t *leg)
{
    const bt_request_t *r = leg->attempt->task->request;

    for (unsigned i = 0; i < r->task_count; i++) {
        const bt_attempt_t *a = r->tasks[i].attempt;
        for (unsigned k = 0; a != NULL && k < 2; k++)
            if (a->legs[k].worker == leg->worker && a->legs[k].probe && !a->legs[k].settled)
                return true;
    }
    return false;
}

/* A pinned worker has its rank by its url. Who is not told one is left to its engine. */
static void take_rank(bt_leg_t *leg, int *rank_p, bool is_needed)
{
    if (leg->worker->dp_size > 1 && leg->worker->spec.dp_rank < 0 && (*rank_p >= 0 || is_needed))
        *rank_p = leg->rank = bt_worker_take_rank(leg->worker, *rank_p);
}

/* Before both have met, decode must be told prefill's rank. A list's rooms go to all ranks in turn. */
void bt_attempt_take_ranks(bt_attempt_t *a)
{
    const bool is_same = a->dialect != NULL && a->dialect->needs_same_rank;

    if (a->pair.prefill != NULL)
        take_rank(&a->legs[0], &a->pair.prefill_rank,
                  is_same || ((a->kind == BT_PLAN_BOOTSTRAP || a->dialect->needs_rank) &&
                              a->task->prompt_count == 0));
    if (is_same)
        a->pair.decode_rank = a->pair.prefill_rank;
    if (!a->is_late)
        take_rank(&a->legs[1], &a->pair.decode_rank, false);
}

bool bt_attempt_enter(bt_leg_t *leg)
{
    leg->entered = bt_leg_take_place(leg) &&
                   (bt_breaker_enter(&leg->worker->breaker, bt_clock_event_ms(), &leg->probe) ||
                    rides_along(leg));
    return leg->entered;
}

void bt_attempt_enter_pair(bt_attempt_t *a)
{
    a->pair_probe = a->pair.prefill != NULL && a->pair.decode != NULL &&
                    bt_pair_breaker_enter(a->pair.prefill, a->pair.decode, bt_clock_event_ms());
}

/* ---- the one that the plan left open ---- */

bool bt_attempt_choose_late(bt_attempt_t *a, enum bt_leg_role role)
{
    const bool is_prefill = role == BT_LEG_PREFILL;
    bt_leg_t *leg = is_prefill ? bt_attempt_prefill(a) : bt_attempt_answer(a);
    bt_failure_t f = {.rc = BT_E_NO_WORKER, .leg = role};

    for (unsigned spins = 0; spins < BT_TRIED_MAX; spins++) {
        bt_pair_t pair = a->pair;
        if (bt_plan_late(a->task, a->task->attempts, role, &pair, &f.reason) < 0)
            break;
        bt_leg_init(leg, a, role, is_prefill ? pair.prefill : pair.decode);
        if (bt_attempt_enter(leg)) {
            a->pair = pair;
            bt_attempt_enter_pair(a);
            take_rank(leg, is_prefill ? &a->pair.prefill_rank : &a->pair.decode_rank, false);
            return true;
        }
        bt_plan_mark_tried(a->task, leg->worker);
        bt_leg_drop(leg);
    }
    bt_attempt_fail(a, &f, NULL, 0);
    return false;
}
