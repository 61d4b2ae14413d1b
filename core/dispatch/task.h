/* task.h - one unit of generation: tries attempts until one answers or none is left. Private to dispatch.
 *
 * Owner: a request.
 * Life:  start -> attempts -> done.
 * Flow:  plan -> attempt -> (failed: another plan) -> sink.
 * Cost:  everything lives in the request's arena.
 */
#ifndef BT_DISPATCH_TASK_H
#define BT_DISPATCH_TASK_H

#include "dispatch/leg.h"

#define BT_TRIED_MAX 16

struct bt_task {
    bt_request_t *request;
    unsigned index;
    bt_attempt_t *attempt; /* the running one */
    unsigned attempts;
    bt_edits_t child;   /* edits that make this child's body; empty for an unsplit request */
    const char *suffix; /* "-3" for child 3, "" otherwise */
    bt_choice_t choice; /* policy's last answer: alternates left to try */
    unsigned alternate_next;
    bt_worker_t *tried[BT_TRIED_MAX]; /* references */
    unsigned tried_count;
    uint64_t prompt_tokens;
    unsigned prompt_count; /* as the legs of this task see it */
    bool done, committed;
    bt_failure_t best; /* the most telling failure so far */
};

/* task.c */
void bt_task_start(bt_task_t *task, const bt_choice_t *choice);
void bt_task_attempt_failed(bt_task_t *task, bt_attempt_t *a, const bt_failure_t *f,
                            bt_worker_t *const *guilty, unsigned guilty_count);
void bt_task_attempt_done(bt_task_t *task);
void bt_task_mark_tried(bt_task_t *task, bt_worker_t *w); /* NULL is fine */
void bt_task_cancel(bt_task_t *task);
/* fanout.c */
bool bt_fanout_needed(const bt_request_t *r, const bt_dialect_t *dialect);
int bt_fanout_make(bt_request_t *r, const bt_dialect_t *dialect, const char **why_p);

#endif
