/* plan.h - who serves: usable workers, the policy's answer checked, the default choice. Private to dispatch.
 *
 * Owner: nobody; candidates are the dispatcher's.
 * Life:  a choice lives in its task.
 * Flow:  candidates.c -> policy_call.c -> checked -> a choice.
 * Cost:  O(1) for the policy's answer; the default choice looks at every candidate.
 */
#ifndef BT_DISPATCH_PLAN_H
#define BT_DISPATCH_PLAN_H

#include "dispatch/task.h"

/* plan.c */
int bt_plan_choose(bt_request_t *r, bt_choice_t *choice_p, char *why, size_t why_size);
int bt_plan_next(bt_task_t *task, const bt_failure_t *f, bt_choice_t *choice_p);
/* Another decode, not tried yet, for a finished prefill, or NULL. */
bt_worker_t *bt_plan_other_decode(bt_task_t *task, bt_worker_t *prefill);
/* Another prefill, not tried yet, for the decode of this pair. */
bool bt_plan_other_prefill(bt_task_t *task, const bt_pair_t *pair, bt_pair_t *pair_p);
enum bt_plan_kind bt_plan_kind_of(bt_dispatcher_t *d, const bt_pair_t *pair,
                                  const bt_dialect_t **dialect_p);
/* candidates.c */
/* The pool that part `pool` of the bundle plans for; NULL: there is none. A variant that names no pool serves any: the first. */
const bt_worker_pool_t *bt_candidates_pool(const bt_dispatcher_t *d,
                                           const bt_policy_bundle_t *bundle, unsigned pool);
const struct bt_candidates *bt_candidates_get(bt_dispatcher_t *d, const bt_worker_pool_t *pool,
                                              bt_str_t model);
/* For generations (user: the dispatcher): copies of the sets that the pool's requests choose from now. */
bt_warm_t *bt_candidates_warm(void *user, const bt_policy_bundle_t *bundle, unsigned pool);

#endif
