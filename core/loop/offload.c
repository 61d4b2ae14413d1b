#include "loop/offload.h"

#include "base/err.h"
#include "base/mem.h"

static void on_thread(uv_work_t *req)
{
    bt_offload_t *work = req->data;

    work->run(work);
    bt_mem_hand_over(); /* what it has taken counts at once: this thread may sleep for hours */
}

static void on_done(uv_work_t *req, int rc)
{
    bt_offload_t *work = req->data;

    (void) rc; /* who cancels knows */
    work->done(work);
}

void bt_offload_start(bt_offload_t *work, bt_loop_t *loop, bt_offload_cb run, bt_offload_cb done)
{
    work->run = run;
    work->done = done;
    work->req.data = work;
    /* uv_queue_work(3): the only error is a missing callback. */
    BT_BUG_ON(uv_queue_work(&loop->uv, &work->req, on_thread, on_done) < 0);
}

void bt_offload_cancel(bt_offload_t *work)
{
    (void) uv_cancel((uv_req_t *) &work->req); /* too late is fine */
}
