/* sink.h - where a task's answer goes. Private to dispatch.
 *
 * Owner: a request; the ops are constant.
 * Life:  a sink is chosen before its request runs.
 * Flow:  relay.c -> attempt.c -> sink -> http/server.
 * Cost:  direct: bytes are passed on; merged: one answer is kept whole.
 */
#ifndef BT_DISPATCH_ANSWER_SINK_H
#define BT_DISPATCH_ANSWER_SINK_H

#include "dispatch/state/attempt_state.h"

/* Where a task's answer goes. Calls come from one running attempt at a time. */
struct bt_sink_ops {
    void (*head)(bt_task_t *task, const bt_head_t *head, bool is_sse);
    void (*data)(bt_task_t *task, bt_buf_t *buf, const char *p, size_t n);
    void (*end)(bt_task_t *task);
    /* before or after head; the task is over */
    void (*fail)(bt_task_t *task, const bt_failure_t *failure);
    bool (*blocked)(bt_task_t *task);
};

/* sink_direct.c / sink_merge.c / sink_replay.c; one more in first_token.c */
extern const bt_sink_ops_t bt_sink_direct, bt_sink_merge, bt_sink_replay;
/* 200 and the head of an event stream, before a worker has said so; nothing when it is out. */
void bt_sink_begin_stream(bt_request_t *r);
/* All sinks: some of the answer; all of it is out; it has failed; may no more come for now? */
void bt_sink_send(bt_request_t *r, bt_buf_t *buf, const char *p, size_t n);
void bt_sink_end(bt_request_t *r);
void bt_sink_fail(bt_task_t *task, const bt_failure_t *f);
/* What workers say makes no answer: reason (static) says why, unless it is memory that is short. */
void bt_sink_break_off(bt_task_t *task, int rc, const char *reason);
bool bt_sink_blocked(bt_task_t *task);
void bt_sink_merge_init(bt_request_t *r);
void bt_sink_merge_fini(bt_request_t *r);

#endif
