/* offload.h - work that would hold a loop for too long, done by a thread of uv's pool.
 *
 * Owner: the caller owns the struct until `done` has run.
 * Life:  start -> run, on a pool thread -> done, on the loop, exactly once (also after cancel).
 * Flow:  between start and done the work belongs to the pool thread: the loop may look at nothing that it writes.
 * Cost:  a mutex and a wake-up each way. Threads: UV_THREADPOOL_SIZE (4), shared by all loops.
 */
#ifndef BT_LOOP_OFFLOAD_H
#define BT_LOOP_OFFLOAD_H

#include "loop/loop.h"

typedef struct bt_offload bt_offload_t;
typedef void (*bt_offload_cb)(bt_offload_t *work);
struct bt_offload {
    uv_work_t req;
    bt_offload_cb run, done;
};

void bt_offload_start(bt_offload_t *work, bt_loop_t *loop, bt_offload_cb run, bt_offload_cb done);
/* If no thread has begun it, none will. What runs already runs to its end. */
void bt_offload_cancel(bt_offload_t *work);

#endif
