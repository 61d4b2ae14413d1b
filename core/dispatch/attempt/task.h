/* task.h - one unit of generation: tries attempts until one answers or none is left. Private to
 * dispatch.
 *
 * Owner: a request.
 * Life:  start -> attempts -> done.
 * Flow:  plan -> attempt -> (failed: another plan) -> sink.
 * Cost:  everything lives in the request's arena.
 */
#ifndef BT_DISPATCH_ATTEMPT_TASK_H
#define BT_DISPATCH_ATTEMPT_TASK_H

#include "dispatch/state/attempt_state.h"

void bt_task_start(bt_task_t *task, const bt_kept_choice_t *choice);
void bt_task_cancel(bt_task_t *task);
/* Keeps the failure that tells the client most, in task->best. */
void bt_task_remember(bt_task_t *task, const bt_failure_t *f);
/* Another attempt, or a worker in the place of one that failed: what holds for both. */
bool bt_task_may_go_on(const bt_task_t *task);
/* Of the pool's budget; asked last, because it counts. */
bool bt_task_take_retry(bt_task_t *task);

#endif
