/* plan.h - who serves: the policy's answer checked, the default choice, who was tried. Private to
 * dispatch.
 *
 * Owner: nobody.
 * Life:  a choice lives in its task.
 * Flow:  candidates.h -> policy_call.c -> checked -> a choice.
 * Cost:  O(1) for the policy's answer; the default choice looks at every candidate.
 */
#ifndef BT_DISPATCH_PLAN_PLAN_H
#define BT_DISPATCH_PLAN_PLAN_H

#include "dispatch/state/attempt_state.h"

/* plan.c */
extern const char bt_plan_cannot_serve[]; /* what is wrong with most plans that cannot be */
/* BT_E_AGAIN: each worker that could serve it is at its limit. BT_E_NO_WORKER, BT_E_INVAL: why says it. */
int bt_plan_choose(bt_request_t *r, bt_choice_t *choice_p, char *why, size_t why_size);
/* For as long as the request lives. */
const bt_kept_choice_t *bt_plan_keep(bt_request_t *r, const bt_choice_t *choice);
/* After a failure. BT_E_NO_WORKER: nobody is left; BT_E_POLICY: the policy ends it. */
int bt_plan_next(bt_task_t *task, const bt_failure_t *f, bt_choice_t *choice_p);
bool bt_plan_has_pair(bt_task_t *task); /* of those that were not tried */
/* Another one, not tried yet, beside the one of `pair` that stays: its work is good. */
int bt_plan_beside(bt_task_t *task, const bt_failure_t *f, const bt_pair_t *pair,
                   enum bt_leg_role kept, bt_pair_t *pair_p);
/* The one of `pair` that its plan left open (role), where the other has the prompt or calls for it; attempt:
 * which that is. < 0: nobody, and why. */
int bt_plan_late(bt_task_t *task, unsigned attempt, enum bt_leg_role role, bt_pair_t *pair,
                 const char **why_p);
/* Another decode of the plan that could read this prefill's KV, or NULL; any, where no policy has
 * planned or the plan left it open. */
bt_worker_t *bt_plan_other_decode(bt_task_t *task, bt_worker_t *prefill);
/* Who encodes the part that this task is made for: one that was not tried; f: it failed so before,
 * NULL = it did not. NULL: nobody, and why. */
bt_worker_t *bt_plan_encoder(bt_task_t *task, const bt_failure_t *f, const char **why_p);
enum bt_plan_kind bt_plan_kind_of(bt_dispatcher_t *d, const bt_pair_t *pair,
                                  const bt_dialect_t **dialect_p);
/* Who was tried is not chosen again. NULL is fine. */
void bt_plan_mark_tried(bt_task_t *task, bt_worker_t *w);
void bt_plan_forget_tried(bt_task_t *task, const bt_worker_t *w);
/* fanout.c: splitting */
bool bt_fanout_needed(const bt_request_t *r, const bt_dialect_t *dialect);
int bt_fanout_make(bt_request_t *r, const char **why_p);

#endif
