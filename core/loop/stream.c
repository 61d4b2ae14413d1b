/* stream.c - a stream from open to closed, and what it reads. What it writes: stream_write.c.
 *
 * Reading. Streams read into a buffer of the loop's, and an idle stream holds nothing. Those that speak in one turn share
 * it while there is room for a long read, because most say little: a token. What is passed on holds its buffer until it is
 * flushed: where a thousand streams speak in one turn, some are flushed before the others are read.
 *
 * The struct lives until on_closed, which uv calls in a later phase; so after each callback looking at `closing` is
 * enough to know whether to go on.
 */
#include "loop/loop_impl.h"
#include "loop/stream_impl.h"

#include "base/clock.h"
#include "base/err.h"

#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define REQS_KEPT 64U
/* Then what has come is sent on: so much of it stays in the cache, and nobody waits for long. */
#define BUFS_HELD_MAX 32U
#define READS_HELD_MAX 256U
#define SHARED_BELOW ((size_t) 4096) /* a buffer with more in it is not read into again */
#define LONG_READ_BYTES 32768        /* is sent on at once: now it is in the cache */

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

/* ---- reading ---- */

/* A buffer that all streams of a loop fill in turn, with so much room; begun anew when nobody has kept what was in it. */
bt_buf_t *bt_stream_shared_buf(bt_buf_t **buf_p, size_t room)
{
    bt_buf_t *buf = *buf_p;

    if (buf != NULL && buf->refs == 1)
        buf->len = 0;
    if (buf != NULL && buf->cap - buf->len >= room)
        return buf;
    bt_buf_unref(buf);
    return *buf_p = bt_buf_new(BT_BUF_STD_BYTES);
}

/* The one of this turn, while it has room; NULL = out of memory. */
bt_buf_t *bt_stream_read_buf(bt_loop_t *loop)
{
    const bt_buf_t *before = loop->read_buf;
    bt_buf_t *buf = bt_stream_shared_buf(&loop->read_buf, BT_BUF_STD_BYTES - SHARED_BELOW + 1);

    loop->bufs_held += buf != before;
    return buf;
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *room)
{
    bt_stream_t *s = bt_stream_of(handle);
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
    bt_stream_t *s = bt_stream_of(handle);
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
    struct pollfd probe = {.fd = bt_stream_fd(s), .events = POLLRDHUP};

    if (s->closing || !s->connected)
        return s->closing;
    return poll(&probe, 1, 0) == 1 && (probe.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

bool bt_stream_has_input(bt_stream_t *s)
{
    char byte;

    return !s->closing && s->connected &&
           recv(bt_stream_fd(s), &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
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
        bt_stream_mark_dirty(s);
    return 0;
}

static void on_connected(uv_connect_t *req, int rc)
{
    bt_stream_t *s = bt_stream_of(req->handle);

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
            bt_stream_mark_dirty(s);
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
    bt_stream_t *s = bt_stream_of(handle);

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
    bt_stream_drop_queue(s);
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
void bt_stream_linger_on(bt_stream_t *s)
{
    if (s->write_failed) {
        bt_stream_close(s);
        return;
    }
    if (s->queue.first != NULL || s->shut || (s->cipher != NULL && !bt_stream_end_cipher(s)))
        return;
    s->shut = 1;
    if (shutdown(bt_stream_fd(s), SHUT_WR) < 0 || bt_stream_read_start(s) < 0)
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
    if (s->in_write_bytes != 0 && s->ops->on_flush != NULL && bt_stream_takes_writes(s))
        s->ops->on_flush(
            s); /* the socket is full, so the flush below will not ask, and later nobody may write */
    bt_stream_flush(s);
    bt_list_remove(&s->dirty_link);
    s->lingering = 1;
    bt_timer_start(&s->linger_timer, timeout_ms);
    bt_stream_linger_on(s);
}
