/* stream_cipher.c - a stream's bytes on their way through its cipher.
 *
 *      write -> [queue] -> flush -> record -> cipher -> send_ciphertext -> socket
 *                                                              |  ^
 *                                                  full: out --+  +-- uv_write, on_written
 *
 * The slices of a record stay in the queue until its ciphertext has gone to the kernel (in_write_bytes), so "sent", "pending" and
 * the marks mean what they mean on a plain stream, in plaintext. Small slices are put together: a record costs a header, a tag
 * and a call, and a stream of tokens would pay for three of them an event. What is alone, or long, is encrypted where it lies.
 *
 * Reading. Ciphertext always comes into the loop's buffer; the user's room (on_alloc) gets plaintext. A read may bring several
 * records, and the user may stop between them. The rest then waits in the cipher, and uv is not asked for more: read_start marks
 * the stream dirty, and the flush point goes on with the rest first.
 */
#include "loop/cipher.h"
#include "loop/stream_impl.h"

#include "base/clock.h"
#include "base/err.h"

#include <string.h>

/* A peer that makes us say things (alerts, new keys) and does not read them. A flight with a long chain must fit. */
#define OUT_MAX ((size_t) 256 * 1024)
#define OUT_FIRST ((size_t) 1024) /* both tickets */

/* ---- sending ---- */

static void on_written(uv_write_t *req, int rc);

/* Nothing is written beside what uv writes already. */
static void send_rest(bt_stream_t *s)
{
    bt_cipher_t *c = s->cipher;

    if (c->out == NULL || c->writing != NULL || s->closing || s->write_failed)
        return;
    uv_buf_t bytes = uv_buf_init(c->out->data, (unsigned) c->out->len);
    uv_write_t *req = bt_slab_get(&s->loop->reqs);
    int rc = BT_E_NOMEM;

    if (req != NULL)
        rc = uv_write(req, (uv_stream_t *) &s->tcp, &bytes, 1, on_written);
    if (rc < 0) {
        bt_slab_put(&s->loop->reqs, req);
        bt_stream_fail_writes(s, rc);
        return;
    }
    c->writing = c->out;
    c->out = NULL;
}

static void on_written(uv_write_t *req, int rc)
{
    bt_stream_t *s = req->handle->data;
    bt_cipher_t *c = s->cipher;

    bt_slab_put(&s->loop->reqs, req);
    bt_buf_unref(c->writing);
    c->writing = NULL;
    if (s->closing)
        return;
    if (rc >= 0)
        send_rest(s);
    bt_stream_go_on(s, rc);
}

static int keep_out(bt_cipher_t *c, const char *p, size_t n)
{
    int rc = 0;

    if (c->out == NULL && (c->out = bt_buf_new(n > OUT_FIRST ? n : OUT_FIRST)) == NULL)
        return BT_E_NOMEM;
    if (c->out->len + n > OUT_MAX)
        return BT_E_LIMIT;
    if (c->out->cap - c->out->len < n)
        rc = bt_buf_grow(&c->out, c->out->len + n);
    if (rc == 0) {
        memcpy(c->out->data + c->out->len, p, n);
        c->out->len += n;
    }
    return rc;
}

/* What one step of a handshake has said. Two tickets in one segment wake the peer once, and are one system call. */
static void send_gathered(bt_stream_t *s)
{
    bt_cipher_t *c = s->cipher;

    c->gathers = false;
    if (c->out != NULL && c->writing == NULL && !s->closing && !s->write_failed) {
        const uv_buf_t bytes = uv_buf_init(c->out->data, (unsigned) c->out->len);
        const ssize_t sent = bt_stream_send_now(s, &bytes, 1);
        if (sent == (ssize_t) c->out->len) {
            bt_buf_unref(c->out);
            c->out = NULL;
        } else if (sent > 0) {
            c->out->len -= (size_t) sent;
            memmove(c->out->data, c->out->data + sent, c->out->len);
        }
    }
    send_rest(s); /* an error is told there, too */
}

static int send_ciphertext(void *carrier, const char *p, size_t n)
{
    bt_stream_t *s = carrier;
    bt_cipher_t *c = s->cipher;
    ssize_t sent = 0;

    if (s->closing || s->write_failed || !s->connected)
        return UV_EPIPE;
    if (c->out == NULL && c->writing == NULL && !c->gathers) {
        uv_buf_t bytes = uv_buf_init((char *) (uintptr_t) p, (unsigned) n); /* only read */
        sent = bt_stream_send_now(s, &bytes, 1);
        if (sent == UV_EAGAIN)
            sent = 0;
    }
    if (sent >= 0 && (size_t) sent < n)
        sent = keep_out(c, p + sent, n - (size_t) sent);
    if (sent >= 0)
        return 0;
    bt_stream_fail_writes(s, (int) sent);
    bt_stream_mark_dirty(s); /* told there */
    return (int) sent;
}

/* The plaintext of the next record; scratch is used where slices are put together. */
static size_t next_record(const bt_stream_t *s, char *scratch, const char **p_p)
{
    const struct bt_queued *q = s->queue.first;
    size_t n = 0;

    if (q->next == NULL || q->slice.n >= BT_CIPHER_RECORD_BYTES) {
        *p_p = q->slice.p;
        return q->slice.n < BT_CIPHER_RECORD_BYTES ? q->slice.n : BT_CIPHER_RECORD_BYTES;
    }
    for (; q != NULL && n < BT_CIPHER_RECORD_BYTES; q = q->next) {
        size_t room = BT_CIPHER_RECORD_BYTES - n;
        size_t take = q->slice.n < room ? q->slice.n : room;
        memcpy(scratch + n, q->slice.p, take);
        n += take;
    }
    *p_p = scratch;
    return n;
}

void bt_stream_flush_cipher(bt_stream_t *s)
{
    bt_cipher_t *c = s->cipher;
    char scratch[BT_CIPHER_RECORD_BYTES];
    const char *p;

    while (c->is_up && c->writing == NULL && s->queue.first != NULL) {
        size_t n = next_record(s, scratch, &p);
        int rc = c->ops->write(c, p, n);
        if (s->write_failed)
            return;
        if (rc < 0) {
            bt_stream_fail_writes(s, rc);
            return;
        }
        if (c->out != NULL) {
            s->in_write_bytes = n;
            send_rest(s);
            return;
        }
        bt_stream_consume(s, n);
    }
}

/* ---- reading ---- */

static void stop_reading(bt_stream_t *s)
{
    s->reading = 0;
    uv_read_stop((uv_stream_t *) &s->tcp);
}

/* False: reading has ended, and the user knows. */
static bool shake_hands(bt_stream_t *s)
{
    bt_cipher_t *c = s->cipher;
    c->gathers = !c->connects;
    int rc = c->ops->handshake(c);

    send_gathered(s);
    if (rc == BT_E_AGAIN)
        return false;
    c->is_up = rc == 0 || rc == BT_E_PLAIN; /* which can be answered, in plain */
    if (c->connects) {
        stop_reading(s); /* who connects says itself when it wants to read */
        c->has_rest = rc == 0;
        s->ops->on_connect(s, rc);
    } else {
        if (rc < 0)
            stop_reading(s);
        if (s->ops->on_handshake != NULL)
            s->ops->on_handshake(s, rc);
        else if (rc < 0)
            s->ops->on_eof(s, rc);
    }
    if (!s->closing && c->is_up && s->queue.first != NULL)
        bt_stream_mark_dirty(s);
    return rc == 0;
}

/* Where plaintext goes: the user's own room, or the turn's buffer (*buf_p, referenced). */
static bool find_room(bt_stream_t *s, bt_buf_t **buf_p, char **p_p, size_t *n_p)
{
    *buf_p = NULL;
    *n_p = 0;
    if (s->ops->on_alloc != NULL && s->ops->on_alloc(s, p_p, n_p) && *n_p > 0)
        return true;
    bt_buf_t *buf = bt_stream_read_buf(s->loop);
    if (buf == NULL)
        return false;
    *buf_p = bt_buf_ref(buf);
    *p_p = buf->data + buf->len;
    *n_p = buf->cap - buf->len;
    return true;
}

/* False: there is nothing more to read now. */
static bool read_some(bt_stream_t *s)
{
    bt_cipher_t *c = s->cipher;
    bt_buf_t *buf;
    char *p;
    size_t n;
    ssize_t rc = BT_E_NOMEM;

    if (c->in_n == 0 && !c->has_pending)
        return false;
    if (find_room(s, &buf, &p, &n))
        rc = c->ops->read(c, p, n < INT32_MAX ? n : INT32_MAX);
    send_rest(s);
    if (rc > 0) {
        if (buf != NULL)
            buf->len += (size_t) rc;
        s->ops->on_read(s, buf, p, (size_t) rc);
    } else if (rc != BT_E_AGAIN) {
        bt_stream_end_reading(s, rc == BT_E_NOMEM ? UV_ENOBUFS : (int) rc);
    }
    bt_buf_unref(buf);
    return rc > 0;
}

/* Reads what has come, as long as the user wants it. */
static void deliver(bt_stream_t *s)
{
    bt_cipher_t *c = s->cipher;
    bool is_more = true;

    c->has_rest = false;
    while (is_more && s->reading && !s->closing && !s->lingering)
        is_more = c->is_up ? read_some(s) : shake_hands(s);
    if (s->closing || s->lingering)
        c->in_n = 0;
    else if (is_more)
        c->has_rest = true; /* stopped by its user */
    if (c->in_n == 0) {
        bt_buf_unref(c->in_buf);
        c->in_buf = NULL;
    }
}

static void on_alloc(uv_handle_t *handle, size_t suggested, uv_buf_t *room)
{
    bt_stream_t *s = handle->data;

    (void) suggested;
    s->read_buf = bt_stream_read_buf(s->loop);
    if (s->read_buf == NULL) {
        *room = uv_buf_init(NULL, 0); /* uv answers with UV_ENOBUFS */
        return;
    }
    bt_buf_ref(s->read_buf);
    *room = uv_buf_init(s->read_buf->data + s->read_buf->len,
                        (unsigned) (s->read_buf->cap - s->read_buf->len));
}

/* The socket has ended, and the session has not: whoever cut it could have cut an answer. */
static void end_cut(bt_stream_t *s, int rc)
{
    bt_cipher_t *c = s->cipher;

    if (s->lingering || c->is_up) {
        bt_stream_end_reading(s, rc == UV_EOF && !s->lingering ? UV_ECONNRESET : rc);
        return;
    }
    stop_reading(s);
    if (c->ops->cut != NULL)
        c->ops->cut(c, rc);
    if (c->connects)
        s->ops->on_connect(s, BT_E_TLS);
    else if (s->ops->on_handshake != NULL)
        s->ops->on_handshake(s, UV_ECONNRESET);
    else
        s->ops->on_eof(s, UV_ECONNRESET);
}

static void on_read(uv_stream_t *handle, ssize_t nread, const uv_buf_t *room)
{
    bt_stream_t *s = handle->data;
    bt_loop_t *loop = s->loop;
    bt_cipher_t *c = s->cipher;
    bt_buf_t *buf = s->read_buf;

    s->read_buf = NULL;
    bt_clock_begin_event();
    if (nread > 0 && !s->lingering) {
        buf->len += (size_t) nread;
        c->in = room->base;
        c->in_n = (size_t) nread;
        c->in_buf = bt_buf_ref(buf);
        if (!c->has_begun && !c->connects && s->ops->on_handshake != NULL)
            s->ops->on_handshake(s, BT_E_AGAIN);
        c->has_begun = true;
        deliver(s);
    } else if (nread < 0) {
        end_cut(s, (int) nread);
    }
    bt_buf_unref(buf);
    bt_stream_note_read(loop, nread);
}

static int start_uv(bt_stream_t *s)
{
    int rc = uv_read_start((uv_stream_t *) &s->tcp, on_alloc, on_read);

    if (rc == 0)
        s->reading = 1;
    return rc;
}

int bt_stream_read_cipher(bt_stream_t *s)
{
    if (!s->cipher->has_rest || s->lingering)
        return start_uv(s);
    s->reading = 1;
    s->replay = 1;
    bt_stream_mark_dirty(s);
    return 0;
}

void bt_stream_replay(bt_stream_t *s)
{
    s->replay = 0;
    if (!s->reading || s->closing || s->lingering)
        return;
    deliver(s);
    if (s->closing || !s->reading || s->cipher->has_rest)
        return;
    int rc = start_uv(s);
    if (rc < 0 && rc != UV_EALREADY) /* the user may have stopped and begun again meanwhile */
        bt_stream_end_reading(s, rc);
}

/* ---- beginning and end ---- */

void bt_stream_set_cipher(bt_stream_t *s, bt_cipher_t *cipher)
{
    cipher->send = send_ciphertext;
    cipher->carrier = s;
    s->cipher = cipher;
}

void bt_stream_greet(bt_stream_t *s)
{
    int rc = start_uv(s);

    s->cipher->connects = true;
    if (rc < 0)
        s->ops->on_connect(s, rc);
    else
        shake_hands(s);
}

bool bt_stream_end_cipher(bt_stream_t *s)
{
    bt_cipher_t *c = s->cipher;

    if (c->is_up && !c->has_ended) {
        c->has_ended = true;
        c->ops->end(c);
        send_rest(s);
    }
    return s->write_failed || (c->writing == NULL && c->out == NULL);
}

void bt_stream_say_end(bt_stream_t *s)
{
    if (s->cipher != NULL && !s->closing && s->queue.first == NULL)
        (void) bt_stream_end_cipher(s);
}

void bt_stream_free_cipher(bt_stream_t *s)
{
    bt_cipher_t *c = s->cipher;

    bt_buf_unref(c->in_buf);
    bt_buf_unref(c->out);
    bt_buf_unref(c->writing);
    s->cipher = NULL;
    c->ops->free(c);
}
