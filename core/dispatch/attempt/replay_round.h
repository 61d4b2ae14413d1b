/* replay_round.h - one replay: may it be, and what the next attempt begins with. Private to dispatch.
 *
 * Owner: the request's token_replay.h.
 * Life:  an attempt has ended in the middle of its answer -> refusal -> begin -> another attempt -> count.
 * Flow:  task.c asks; leg.c takes what was prepared as edits.
 * Cost:  the whole prompt is printed once more.
 */
#ifndef BT_DISPATCH_ATTEMPT_REPLAY_ROUND_H
#define BT_DISPATCH_ATTEMPT_REPLAY_ROUND_H

#include "dispatch/state/attempt_state.h"

/* NULL: it may be; else why not. For requests that have a token replay. */
const char *bt_replay_round_refusal(const bt_task_t *task, const bt_failure_t *f);
/* The next attempt of the task goes on where the last one ended. BT_E_NOMEM: nothing may follow. */
int bt_replay_round_begin(bt_task_t *task, const bt_failure_t *f);
/* It has begun. */
void bt_replay_round_count(bt_task_t *task, const bt_failure_t *f);

#endif
