/* stream.c - reads, coalesced writes, back-pressure and the ways to close.
 *
 * Writing. Slices wait in a list until the loop's flush point, which gathers up to 64 of them into one uv_try_write: in
 * the usual case that is the whole story, with no request object. What the kernel does not take continues through one
 * small uv_write (at most 4 slices, which libuv keeps in the request itself, and 16 KiB): it is there to wait for room;
 * when it is done, try_write sends the bulk again. While it runs, the stream is not dirty; its callback goes on.
 *
 *      write -> [queue] -> dirty -> try_write -+-> empty
 *                  ^                           +-> rest -> uv_write -> callback -> try_write ...
 *
 * A small slice of a large buffer that has to wait behind a full socket is copied (copy_buf), or a slow reader of 160
 * byte events, or of some that came at once, would hold a 16 KiB buffer for each of them.
 *
 * Callbacks. on_drain and on_write_error come from the flush point or from uv, never from inside a call of the user's.
 * The struct lives until on_closed, which uv calls in a later phase; so after each callback looking at `closing` is
 * enough to know whether to go on.
 *
 * Reading. Streams read into a buffer of the loop's, and an idle stream holds nothing. Those that speak in one turn share
 * it while there is room for a long read, because most say little: a token. What is passed on holds its buffer until it is
 * flushed: where a thousand streams speak in one turn, some are flushed before the others are read.
 *
 * Sockets are written by send and sendmsg: write and writev cost a twentieth more of what a token costs.
 */
#include "loop/stream.h"
#include "loop/loop_impl.h"
#include "loop/stream_impl.h"

#include "base/clock.h"
#include "base/err.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define GATHER_MAX 64U              /* slices of one try_write */
#define WAIT_SLICES 4U              /* slices of one uv_write: more would make libuv allocate */
#define WAIT_BYTES ((size_t) 16384) /* bytes of one uv_write */
#define REQS_KEPT 64U
/* Then what has come is sent on: so much of it stays in the cache, and nobody waits for long. */
#define BUFS_HELD_MAX 32U
#define READS_HELD_MAX 256U
#define SHARED_BELOW ((size_t) 4096)    /* a buffer with more in it is not read into again */
#define LONG_READ_BYTES 32768           /* is sent on at once: now it is in the cache */
#define COPY_BELOW ((size_t) 4096)      /* smaller slices are copied when they have to wait */
#define SHARED_COPY_MAX ((size_t) 2048) /* what is longer is copied into a buffer of its own */

static void drain_events(bt_stream_t *s);

static bt_stream_t *stream_of(const void *handle)
{
    return ((const uv_handle_t *) handle)->data;
}

static int fd_of(const bt_stream_t *s)
{
    uv_os_fd_t fd;

    return uv_fileno((const uv_handle_t *) &s->tcp, &fd) == 0 ? fd : -1;
}

/* ---- what all streams of a loop share ---- */

union req { /* nothing is written before it is connected */
    uv_connect_t connect;
    uv_write_t write;
};

void bt_stream_init_shared(bt_loop_t *loop)
{
    bt_slab_init(&loop->reqs, sizeof(union req), REQS_KEPT);
}

void bt_stream_fini_shared(bt_loop_t *loop)
{
    bt_buf_unref(loop->read_buf);
    bt_buf_unref(loop->copy_buf);
    loop->read_buf = loop->copy_buf = NULL;
    bt_slice_queue_fini_spare(loop);
    bt_slab_fini(&loop->reqs);
}

/* ---- queue ---- */

static void release_copy_buf(bt_stream_t *s)
{
    bt_buf_unref(s->copy_buf);
    s->copy_buf = NULL;
}

static void drop_queue(bt_stream_t *s)
{
    while (s->queue.first != NULL)
        bt_slice_queue_pop(s->loop, &s->queue);
    s->pending_bytes = s->in_write_bytes = 0;
    release_copy_buf(s);
}

/* The first n bytes of the queue have gone to the kernel. */
static void consume(bt_stream_t *s, size_t n)
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

static void mark_dirty(bt_stream_t *s)
{
    if (bt_list_empty(&s->dirty_link))
        bt_list_push(&s->loop->dirty, &s->dirty_link);
}

void bt_stream_consume(bt_stream_t *s, size_t n)
{
    consume(s, n);
}

void bt_stream_mark_dirty(bt_stream_t *s)
{
    mark_dirty(s);
}

static bool takes_writes(const bt_stream_t *s)
{
    return !s->closing && !s->write_failed && !s->lingering;
}

static void note_queued(bt_stream_t *s, size_t n)
{
    s->pending_bytes += n;
    s->sent_untold = 1;
    if (s->pending_bytes > BT_STREAM_HIGH_BYTES)
        s->above_high = 1;
    if (s->connected && s->in_write_bytes == 0)
        mark_dirty(s);
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
    if (n == 0 || !takes_writes(s))
        return 0;
    if (s->in_write_bytes != 0 && owner != NULL && n < COPY_BELOW && n < owner->cap / 4)
        return bt_stream_write_copy(s, p, n);
    return push_slice(s, owner, p, n);
}

/* A buffer that all streams of a loop fill in turn, with so much room; begun anew when nobody has kept what was in it. */
static bt_buf_t *shared_buf(bt_buf_t **buf_p, size_t room)
{
    bt_buf_t *buf = *buf_p;

    if (buf != NULL && buf->refs == 1)
        buf->len = 0;
    if (buf != NULL && buf->cap - buf->len >= room)
        return buf;
    bt_buf_unref(buf);
    return *buf_p = bt_buf_new(BT_BUF_STD_BYTES);
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
                                       : shared_buf(&s->loop->copy_buf, n);
    if (buf == NULL)
        return BT_E_NOMEM;
    if (buf == s->loop->copy_buf)
        bt_buf_ref(buf);
    release_copy_buf(s);
    s->copy_buf = buf;
    return 0;
}

int bt_stream_write_copy(bt_stream_t *s, const char *p, size_t n)
{
    if (n == 0 || !takes_writes(s))
        return 0;
    int rc = need_copy_room(s, n);
    if (rc < 0)
        return rc;
    char *at = s->copy_buf->data + s->copy_buf->len;
    memcpy(at, p, n);
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
    drop_queue(s);
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
        consume(s, n);
        flush_queue(s);
    }
    if (s->replay)
        mark_dirty(s); /* flushing has taken it off the list */
    drain_events(s);
}

static void on_written(uv_write_t *req, int rc)
{
    bt_stream_t *s = stream_of(req->handle);

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
    const int fd = fd_of(s);
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
    if (s->ops->on_flush != NULL && takes_writes(s)) {
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
            consume(s, (size_t) rc);
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

static void linger_on(bt_stream_t *s);

/* Tells what flushing has led to. Only from the flush point and from uv's callbacks. */
static void drain_events(bt_stream_t *s)
{
    if (s->closing)
        return;
    if (s->lingering) {
        linger_on(s);
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
        mark_dirty(s); /* the callback waits for the flush point */
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
    if (!takes_writes(s))
        return;
    s->sent_untold = 1;
    if (s->connected && s->in_write_bytes == 0)
        mark_dirty(s);
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

/* ---- reading ---- */

/* The one of this turn, while it has room; NULL = out of memory. */
bt_buf_t *bt_stream_read_buf(bt_loop_t *loop)
{
    const bt_buf_t *before = loop->read_buf;
    bt_buf_t *buf = shared_buf(&loop->read_buf, BT_BUF_STD_BYTES - SHARED_BELOW + 1);

    loop->bufs_held += buf != before;
    return buf;
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *room)
{
    bt_stream_t *s = stream_of(handle);
    char *p = NULL;
    size_t n = 0;

    (void) suggested;
    if (s->ops->on_alloc != NULL && !s->lingering && s->ops->on_alloc(s, &p, &n) && n > 0) {
        s->direct_read = 1;
        *room = uv_buf_init(p, (unsigned) (n < INT32_MAX ? n : INT32_MAX));
        return;
    }
    s->direct_read = 0;
    s->read_buf = bt_stream_read_buf(s->loop);
    if (s->read_buf == NULL) {
        *room = uv_buf_init(NULL, 0); /* uv answers with UV_ENOBUFS */
        return;
    }
    p = bt_buf_ref(s->read_buf)->data + s->read_buf->len;
    *room = uv_buf_init(p, (unsigned) (s->read_buf->cap - s->read_buf->len));
}

static void stop_reading(bt_stream_t *s)
{
    s->reading = 0;
    uv_read_stop((uv_stream_t *) &s->tcp);
}

void bt_stream_end_reading(bt_stream_t *s, int rc)
{
    stop_reading(s);
    if (!s->lingering)
        s->ops->on_eof(s, rc == UV_EOF ? 0 : rc == UV_ENOBUFS ? BT_E_NOMEM : rc);
    else if (s->shut || rc != UV_EOF)
        bt_stream_close(s); /* both directions are finished, or the peer is gone */
    /* else it has sent its FIN before we have sent ours: the rest of the queue still goes out */
}

void bt_stream_note_read(bt_loop_t *loop, ssize_t nread)
{
    if (nread > LONG_READ_BYTES || ++loop->reads_held >= READS_HELD_MAX ||
        loop->bufs_held >= BUFS_HELD_MAX)
        bt_stream_flush_dirty(loop);
}

static void on_read(uv_stream_t *handle, ssize_t nread, const uv_buf_t *room)
{
    bt_stream_t *s = stream_of(handle);
    bt_loop_t *loop = s->loop;
    bt_buf_t *buf = s->read_buf;

    s->read_buf = NULL;
    bt_clock_begin_event();
    if (nread > 0) {
        if (buf != NULL)
            buf->len += (size_t) nread;
        if (!s->lingering)
            s->ops->on_read(s, buf, room->base, (size_t) nread);
    } else if (nread < 0) {
        bt_stream_end_reading(s, (int) nread);
    }
    bt_buf_unref(buf);
    bt_stream_note_read(loop, nread);
}

int bt_stream_read_start(bt_stream_t *s)
{
    if (s->reading || s->closing)
        return 0;
    if (s->cipher != NULL)
        return bt_stream_read_cipher(s);
    int rc = uv_read_start((uv_stream_t *) &s->tcp, on_alloc, on_read);
    if (rc == 0)
        s->reading = 1;
    return rc;
}

void bt_stream_read_stop(bt_stream_t *s)
{
    if (s->reading && !s->closing && !s->lingering)
        stop_reading(s);
}

bool bt_stream_peer_gone(bt_stream_t *s)
{
    struct pollfd probe = {.fd = fd_of(s), .events = POLLRDHUP};

    if (s->closing || !s->connected)
        return s->closing;
    return poll(&probe, 1, 0) == 1 && (probe.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

bool bt_stream_has_input(bt_stream_t *s)
{
    char byte;

    return !s->closing && s->connected && recv(fd_of(s), &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

/* ---- opening ---- */

static void on_linger_timeout(bt_timer_t *timer)
{
    bt_stream_close(bt_container_of(timer, bt_stream_t, linger_timer));
}

int bt_stream_init(bt_stream_t *s, bt_loop_t *loop, const bt_stream_ops_t *ops)
{
    memset(s, 0, sizeof(*s));
    s->loop = loop;
    s->ops = ops;
    bt_list_init(&s->dirty_link);
    bt_timer_init(loop, &s->linger_timer, on_linger_timeout);
    int rc = uv_tcp_init(&loop->uv, &s->tcp);
    s->tcp.data = s;
    return rc;
}

int bt_stream_open(bt_stream_t *s, int fd)
{
    int rc = uv_tcp_open(&s->tcp, fd);

    if (rc < 0) {
        close(fd);
        return rc;
    }
    (void) uv_tcp_nodelay(&s->tcp, 1); /* fails on a socket pair, which has no Nagle either */
    s->connected = 1;
    if (s->queue.first != NULL)
        mark_dirty(s);
    return 0;
}

static void on_connected(uv_connect_t *req, int rc)
{
    bt_stream_t *s = stream_of(req->handle);

    bt_slab_put(&s->loop->reqs, req);
    if (s->closing)
        return;
    if (rc == 0) {
        s->connected = 1;
        if (s->cipher != NULL) {
            bt_stream_greet(s);
            return;
        }
        if (s->queue.first != NULL)
            mark_dirty(s);
    }
    s->ops->on_connect(s, rc);
}

int bt_stream_connect(bt_stream_t *s, const struct sockaddr *addr)
{
    uv_connect_t *req = bt_slab_get(&s->loop->reqs);
    int rc = BT_E_NOMEM;

    (void) uv_tcp_nodelay(&s->tcp, 1); /* there is no socket yet: uv remembers it */
    if (req != NULL)
        rc = uv_tcp_connect(req, &s->tcp, addr, on_connected);
    if (rc < 0)
        bt_slab_put(&s->loop->reqs, req);
    return rc;
}

/* ---- closing ---- */

static void on_closed(uv_handle_t *handle)
{
    bt_stream_t *s = stream_of(handle);

    if (s->cipher != NULL)
        bt_stream_free_cipher(s);
    s->ops->on_closed(s);
}

/* What both ways to close have in common. uv writes nothing after uv_close, so the bytes need not outlive this call. */
static bool begin_close(bt_stream_t *s)
{
    if (s->closing)
        return false;
    s->closing = 1;
    s->reading = 0;
    bt_list_remove(&s->dirty_link);
    bt_timer_stop(&s->linger_timer);
    s->written_bytes = bt_stream_written(s);
    drop_queue(s);
    return true;
}

void bt_stream_close(bt_stream_t *s)
{
    if (begin_close(s))
        uv_close((uv_handle_t *) &s->tcp, on_closed);
}

void bt_stream_reset(bt_stream_t *s)
{
    if (!begin_close(s))
        return;
    if (uv_tcp_close_reset(&s->tcp, on_closed) < 0) /* not connected yet */
        uv_close((uv_handle_t *) &s->tcp, on_closed);
}

/* All sent: FIN, then read until the peer's FIN. */
static void linger_on(bt_stream_t *s)
{
    if (s->write_failed) {
        bt_stream_close(s);
        return;
    }
    if (s->queue.first != NULL || s->shut || (s->cipher != NULL && !bt_stream_end_cipher(s)))
        return;
    s->shut = 1;
    if (shutdown(fd_of(s), SHUT_WR) < 0 || bt_stream_read_start(s) < 0)
        bt_stream_close(s);
}

void bt_stream_close_after_flush(bt_stream_t *s, uint64_t timeout_ms)
{
    if (s->closing || s->lingering)
        return;
    if (!s->connected) {
        bt_stream_close(s);
        return;
    }
    if (s->in_write_bytes != 0 && s->ops->on_flush != NULL && takes_writes(s))
        s->ops->on_flush(
            s); /* the socket is full, so the flush below will not ask, and later nobody may write */
    bt_stream_flush(s);
    bt_list_remove(&s->dirty_link);
    s->lingering = 1;
    bt_timer_start(&s->linger_timer, timeout_ms);
    linger_on(s);
}
