/* stream_write.c - a stream's coalesced writes, and back-pressure.
 *
 * Slices wait in a list until the loop's flush point, which gathers up to 64 of them into one sendmsg: in the usual case
 * that is the whole story, with no request object. What the kernel does not take continues through one small uv_write (at
 * most 4 slices, which libuv keeps in the request itself, and 16 KiB): it is there to wait for room; when it is done,
 * send_now sends the bulk again. While it runs, the stream is not dirty; its callback goes on.
 *
 *      write -> [queue] -> dirty -> send_now -+-> empty
 *                  ^                          +-> rest -> uv_write -> callback -> send_now ...
 *
 * A small slice of a large buffer that has to wait behind a full socket is copied (copy_buf), or a slow reader of 160
 * byte events, or of some that came at once, would hold a 16 KiB buffer for each of them.
 *
 * on_drain and on_write_error come from the flush point or from uv, never from inside a call of the user's.
 *
 * Sockets are written by send and sendmsg: write and writev cost a twentieth more of what a token costs.
 */
#include "loop/loop_impl.h"
#include "loop/stream_impl.h"

#include "base/err.h"
#include "base/str.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#define GATHER_MAX 64U                  /* slices of one sendmsg */
#define WAIT_SLICES 4U                  /* slices of one uv_write: more would make libuv allocate */
#define WAIT_BYTES ((size_t) 16384)     /* bytes of one uv_write */
#define COPY_BELOW ((size_t) 4096)      /* smaller slices are copied when they have to wait */
#define SHARED_COPY_MAX ((size_t) 4096) /* what is longer is copied into a buffer of its own */

static void drain_events(bt_stream_t *s);

/* ---- queue ---- */

static void release_copy_buf(bt_stream_t *s)
{
    bt_buf_unref(s->copy_buf);
    s->copy_buf = NULL;
}

void bt_stream_drop_queue(bt_stream_t *s)
{
    while (s->queue.first != NULL)
        bt_slice_queue_pop(s->loop, &s->queue);
    s->pending_bytes = s->in_write_bytes = 0;
    release_copy_buf(s);
}

/* The first n bytes of the queue have gone to the kernel. */
void bt_stream_consume(bt_stream_t *s, size_t n)
{
    s->written_bytes += n;
    s->pending_bytes -= n;
    while (n > 0) {
        struct bt_slice *slice = &s->queue.first->slice;
        if (n < slice->n) {
            slice->p += n;
            slice->n -= n;
            return;
        }
        n -= slice->n;
        bt_slice_queue_pop(s->loop, &s->queue);
    }
    if (s->queue.first == NULL)
        release_copy_buf(s);
}

void bt_stream_mark_dirty(bt_stream_t *s)
{
    if (bt_list_empty(&s->dirty_link))
        bt_list_push(&s->loop->dirty, &s->dirty_link);
}

static void note_queued(bt_stream_t *s, size_t n)
{
    s->pending_bytes += n;
    s->sent_untold = 1;
    if (s->pending_bytes > BT_STREAM_HIGH_BYTES)
        s->above_high = 1;
    if (s->connected && s->in_write_bytes == 0)
        bt_stream_mark_dirty(s);
}

static int push_slice(bt_stream_t *s, bt_buf_t *owner, const char *p, size_t n)
{
    if (!bt_slice_queue_push(s->loop, &s->queue, (struct bt_slice){p, n, owner}))
        return BT_E_NOMEM;
    note_queued(s, n);
    return 0;
}

int bt_stream_write(bt_stream_t *s, bt_buf_t *owner, const char *p, size_t n)
{
    if (n == 0 || !bt_stream_takes_writes(s))
        return 0;
    if (s->in_write_bytes != 0 && owner != NULL && n < COPY_BELOW && n < owner->cap / 4)
        return bt_stream_write_copy(s, p, n);
    return push_slice(s, owner, p, n);
}

/* Room for n bytes at the end of copy_buf. What leaves in this turn is gathered in one buffer of the loop's; what waits for a slow
 * reader lies in the stream's own, or each of those would hold many streams' bytes. */
static int need_copy_room(bt_stream_t *s, size_t n)
{
    const bool waits = s->in_write_bytes != 0;
    bt_buf_t *buf = s->copy_buf;

    if (buf != NULL && buf->cap - buf->len >= n && !(waits && buf == s->loop->copy_buf))
        return 0;
    buf = waits || n > SHARED_COPY_MAX ? bt_buf_new(n > BT_BUF_STD_BYTES ? n : BT_BUF_STD_BYTES)
                                       : bt_stream_shared_buf(&s->loop->copy_buf, n);
    if (buf == NULL)
        return BT_E_NOMEM;
    if (buf == s->loop->copy_buf)
        bt_buf_ref(buf);
    release_copy_buf(s);
    s->copy_buf = buf;
    return 0;
}

char *bt_stream_room(bt_stream_t *s, size_t n)
{
    return need_copy_room(s, n) == 0 ? s->copy_buf->data + s->copy_buf->len : NULL;
}

int bt_stream_write_room(bt_stream_t *s, size_t n)
{
    if (n == 0 || !bt_stream_takes_writes(s))
        return 0;
    char *at = s->copy_buf->data + s->copy_buf->len;
    s->copy_buf->len += n;
    /* Right behind the last slice? Then that one grows. (uv has its own copy of the lengths it writes.) */
    struct bt_slice *last = s->queue.first != NULL ? &s->queue.last->slice : NULL;
    if (last != NULL && last->owner == s->copy_buf && last->p + last->n == at) {
        last->n += n;
        note_queued(s, n);
        return 0;
    }
    return push_slice(s, s->copy_buf, at, n);
}

int bt_stream_write_copy(bt_stream_t *s, const char *p, size_t n)
{
    if (n == 0 || !bt_stream_takes_writes(s))
        return 0;
    char *at = bt_stream_room(s, n);
    if (at == NULL)
        return BT_E_NOMEM;
    memcpy(at, p, n);
    return bt_stream_write_room(s, n);
}

static int write_each(bt_stream_t *s, const struct bt_slice *slices, unsigned count)
{
    int rc = 0;

    for (unsigned i = 0; i < count && rc == 0; i++)
        rc = bt_stream_write(s, slices[i].owner, slices[i].p, slices[i].n);
    return rc;
}

int bt_stream_write_slices(bt_stream_t *s, const struct bt_slice *slices, unsigned count)
{
    size_t n = 0;
    char *at;

    for (unsigned i = 0; i < count; i++)
        n += slices[i].n;
    if (n > SHARED_COPY_MAX || !bt_stream_takes_writes(s))
        return write_each(s, slices, count);
    at = bt_stream_room(s, n);
    if (at == NULL)
        return BT_E_NOMEM;
    for (unsigned i = 0; i < count; i++)
        bt_str_put(&at, (bt_str_t){slices[i].p, slices[i].n});
    return bt_stream_write_room(s, n);
}

/* ---- flush ---- */

static unsigned gather(const bt_stream_t *s, uv_buf_t *bufs, unsigned max, size_t max_bytes,
                       size_t *bytes_p)
{
    unsigned count = 0;
    size_t bytes = 0;

    for (const struct bt_queued *q = s->queue.first; q != NULL && count < max && bytes < max_bytes;
         q = q->next) {
        const struct bt_slice *slice = &q->slice;
        size_t n = slice->n < max_bytes - bytes ? slice->n : max_bytes - bytes;
        bufs[count++] =
            uv_buf_init((char *) (uintptr_t) slice->p, (unsigned) n); /* uv only reads it */
        bytes += n;
    }
    *bytes_p = bytes;
    return count;
}

void bt_stream_fail_writes(bt_stream_t *s, int rc)
{
    bt_stream_drop_queue(s);
    s->write_failed = 1;
    s->write_rc = rc;
    s->above_high = 0;
}

static void flush_queue(bt_stream_t *s);

void bt_stream_go_on(bt_stream_t *s, int rc)
{
    size_t n = s->in_write_bytes;

    s->in_write_bytes = 0;
    if (rc < 0) {
        s->written_bytes +=
            n; /* a part of it may have left, and "nothing was sent" must be certain */
        bt_stream_fail_writes(s, rc);
    } else {
        bt_stream_consume(s, n);
        flush_queue(s);
    }
    if (s->replay)
        bt_stream_mark_dirty(s); /* flushing has taken it off the list */
    drain_events(s);
}

static void on_written(uv_write_t *req, int rc)
{
    bt_stream_t *s = bt_stream_of(req->handle);

    bt_slab_put(&s->loop->reqs, req);
    if (!s->closing) /* else the queue is gone */
        bt_stream_go_on(s, rc);
}

/* The socket is full: let uv send the next few slices when there is room. */
static void wait_for_room(bt_stream_t *s)
{
    uv_buf_t bufs[WAIT_SLICES];
    size_t bytes;
    unsigned count = gather(s, bufs, WAIT_SLICES, WAIT_BYTES, &bytes);
    uv_write_t *req = bt_slab_get(&s->loop->reqs);
    int rc = BT_E_NOMEM;

    s->in_write_bytes = bytes;
    if (req != NULL)
        rc = uv_write(req, (uv_stream_t *) &s->tcp, bufs, count, on_written);
    if (rc < 0) {
        bt_slab_put(&s->loop->reqs, req);
        bt_stream_fail_writes(s, rc);
    }
}

/* What the kernel takes at once; UV_EAGAIN: nothing. */
ssize_t bt_stream_send_now(const bt_stream_t *s, const uv_buf_t *bufs, unsigned count)
{
    /* uv_buf_t is an iovec where there are iovecs (libuv's documentation) */
    struct msghdr m = {.msg_iov = (struct iovec *) (uintptr_t) bufs, .msg_iovlen = count};
    const int fd = bt_stream_fd(s);
    ssize_t n;

    do
        n = count == 1 ? send(fd, bufs[0].base, bufs[0].len, MSG_NOSIGNAL | MSG_DONTWAIT)
                       : sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n >= 0)
        return n;
    return errno == ENOBUFS ? UV_EAGAIN : -errno; /* as uv_try_write */
}

static void flush_queue(bt_stream_t *s)
{
    uv_buf_t bufs[GATHER_MAX];

    if (!s->connected || s->in_write_bytes != 0)
        return;
    if (s->ops->on_flush != NULL && bt_stream_takes_writes(s)) {
        s->ops->on_flush(s);
        bt_list_remove(&s->dirty_link); /* what it wrote leaves right here */
    }
    if (s->cipher != NULL) {
        bt_stream_flush_cipher(s);
        return;
    }
    while (s->queue.first != NULL) {
        size_t bytes;
        unsigned count = gather(s, bufs, GATHER_MAX, (size_t) INT32_MAX, &bytes);
        ssize_t rc = bt_stream_send_now(s, bufs, count);
        if (rc < 0 && rc != UV_EAGAIN) {
            bt_stream_fail_writes(s, (int) rc);
            return;
        }
        if (rc > 0)
            bt_stream_consume(s, (size_t) rc);
        if (rc < 0 || (size_t) rc < bytes) {
            wait_for_room(s);
            return;
        }
    }
}

static bool is_drained(const bt_stream_t *s)
{
    return s->above_high && s->pending_bytes < BT_STREAM_LOW_BYTES;
}

static bool is_sent(const bt_stream_t *s)
{
    return s->sent_untold && s->queue.first == NULL && !s->write_failed;
}

/* Tells what flushing has led to. Only from the flush point and from uv's callbacks. */
static void drain_events(bt_stream_t *s)
{
    if (s->closing)
        return;
    if (s->lingering) {
        bt_stream_linger_on(s);
    } else if (s->write_failed && !s->error_told) {
        s->error_told = 1;
        if (s->ops->on_write_error != NULL)
            s->ops->on_write_error(s, s->write_rc);
    } else {
        if (is_sent(s)) {
            s->sent_untold = 0;
            if (s->ops->on_sent != NULL)
                s->ops->on_sent(s);
        }
        if (!s->closing && !s->lingering && is_drained(s)) {
            s->above_high = 0;
            if (s->ops->on_drain != NULL)
                s->ops->on_drain(s);
        }
    }
}

void bt_stream_flush(bt_stream_t *s)
{
    if (s->closing)
        return;
    bt_list_remove(&s->dirty_link);
    flush_queue(s);
    if ((s->write_failed && !s->error_told) || is_drained(s) || is_sent(s) || s->replay)
        bt_stream_mark_dirty(s); /* the callback waits for the flush point */
}

static void flush_all(bt_loop_t *loop)
{
    bt_list_t batch;

    /* The whole list moves to batch; what its callbacks write anew waits for the next flush point. */
    bt_list_push(&loop->dirty, &batch);
    bt_list_remove(&loop->dirty);
    while (!bt_list_empty(&batch)) {
        bt_stream_t *s = bt_container_of(batch.next, bt_stream_t, dirty_link);
        bt_list_remove(&s->dirty_link);
        flush_queue(s);
        drain_events(s);
        if (s->replay)
            bt_stream_replay(s);
    }
}

/* Then the buffer that was read into is empty again, but for what somebody keeps: that is his. */
void bt_stream_flush_dirty(bt_loop_t *loop)
{
    if (!bt_list_empty(&loop->dirty))
        flush_all(loop);
    if (loop->read_buf != NULL && loop->read_buf->refs > 1) {
        bt_buf_unref(loop->read_buf);
        loop->read_buf = NULL;
    }
    loop->reads_held = 0;
    loop->bufs_held = loop->read_buf != NULL;
}

void bt_stream_want_flush(bt_stream_t *s)
{
    if (!bt_stream_takes_writes(s))
        return;
    s->sent_untold = 1;
    if (s->connected && s->in_write_bytes == 0)
        bt_stream_mark_dirty(s);
}

size_t bt_stream_pending(const bt_stream_t *s)
{
    return s->pending_bytes;
}

uint64_t bt_stream_written(const bt_stream_t *s)
{
    size_t left = uv_stream_get_write_queue_size((const uv_stream_t *) &s->tcp);

    return s->written_bytes + (s->in_write_bytes > left ? s->in_write_bytes - left : 0);
}
