/* slice_queue.h - slices that wait to be sent, in entries that a loop's streams share. stream_write.c pushes and pops.
 *
 * Owner: the loop keeps free entries; a stream has those of its queue.
 * Life:  push -> pop; bt_slice_queue_fini_spare at the loop's end.
 * Flow:  a list and not a ring of the stream's own: most streams wait for the next token and queue nothing.
 * Cost:  O(1); malloc only where more wait than ever before, or than SPARE_MAX and some were given back.
 */
#ifndef BT_LOOP_SLICE_QUEUE_H
#define BT_LOOP_SLICE_QUEUE_H

#include "base/buf.h"
#include "base/sanitize.h"
#include "loop/loop.h"

#include <stdlib.h>

#define BT_SLICES_SPARE_MAX (BT_ASAN ? 0U : 1024U)

/* owner == NULL: the bytes must stay valid until drained or until bt_stream_close was called. */
struct bt_slice {
    const char *p;
    size_t n;
    bt_buf_t *owner;
};

struct bt_queued {
    struct bt_queued *next;
    struct bt_slice slice;
};

struct bt_slice_queue {
    struct bt_queued *first, *last; /* first NULL = nothing waits */
};

/* At the end; takes a reference to the owner. False: out of memory. */
static inline bool bt_slice_queue_push(bt_loop_t *loop, struct bt_slice_queue *queue,
                                       struct bt_slice slice)
{
    struct bt_queued *q = loop->spare_slices;

    if (q != NULL) {
        loop->spare_slices = q->next;
        loop->spare_slice_count--;
    } else {
        q = malloc(sizeof(*q));
        if (q == NULL)
            return false;
    }
    if (slice.owner != NULL)
        bt_buf_ref(slice.owner);
    *q = (struct bt_queued){NULL, slice};
    if (queue->first == NULL)
        queue->first = q;
    else
        queue->last->next = q;
    queue->last = q;
    return true;
}

/* The first one. */
static inline void bt_slice_queue_pop(bt_loop_t *loop, struct bt_slice_queue *queue)
{
    struct bt_queued *q = queue->first;

    queue->first = q->next;
    bt_buf_unref(q->slice.owner);
    if (loop->spare_slice_count >= BT_SLICES_SPARE_MAX) {
        free(q);
        return;
    }
    q->next = loop->spare_slices;
    loop->spare_slices = q;
    loop->spare_slice_count++;
}

static inline void bt_slice_queue_fini_spare(bt_loop_t *loop)
{
    struct bt_queued *q;

    while ((q = loop->spare_slices) != NULL) {
        loop->spare_slices = q->next;
        free(q);
    }
}

#endif
