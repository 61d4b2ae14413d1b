/* default_choice.h - the least loaded among what was not tried: where no policy chooses, or one of a pair is exchanged. Private to
 * dispatch.
 *
 * Owner: nobody.
 * Life:  static; workers are borrowed from the sets.
 * Flow:  plan.c asks with the lists that a request may use.
 * Cost:  one look at every candidate; for a pair's prefill at its partners too.
 */
#ifndef BT_DISPATCH_PLAN_DEFAULT_CHOICE_H
#define BT_DISPATCH_PLAN_DEFAULT_CHOICE_H

#include "dispatch/plan/candidates.h"
#include "dispatch/state/attempt_state.h"

/* A pair, else who serves alone. False: nobody. */
bool bt_default_pair(bt_request_t *r, const bt_task_t *task, const bt_choice_view_t *v,
                     bt_choice_t *choice_p);
/* Of this set, beside that partner; NULL partner: of itself. NULL: nobody. */
bt_worker_t *bt_default_prefill(bt_request_t *r, const bt_task_t *task, const bt_worker_set_t *set,
                                bt_worker_t *decode);
bt_worker_t *bt_default_decode(bt_request_t *r, const bt_task_t *task, const bt_worker_set_t *set,
                               bt_worker_t *prefill);

#endif
