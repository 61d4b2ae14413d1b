/* http2_answer.c - writing answers in HTTP/2.
 *
 * The answer waits as slices in `out` until nghttp2 asks for them, as the client's windows allow; they go into the socket's queue as they
 * are. Bytes that only the exchange keeps alive are copied: nghttp2 may be done with a stream before the socket is.
 */
#include "http/http2_impl.h"

#include "base/clock.h"
#include "base/err.h"

#include <stdio.h>

#define COPY_BELOW ((size_t) 4096) /* a small slice that has to wait would keep a large buffer */
#define COPY_BEHIND ((size_t) 4 * 1024) /* it has to wait behind so much */

static bt_http2_stream_t *stream_of(const bt_exchange_t *x)
{
    return (bt_http2_stream_t *) (uintptr_t) x;
}

/* ---- the answer's head ---- */

static void put_nv(nghttp2_nv *nv, bt_str_t name, bt_str_t value)
{
    *nv = (nghttp2_nv){(uint8_t *) (uintptr_t) name.p, (uint8_t *) (uintptr_t) value.p, name.n,
                       value.n, NGHTTP2_NV_FLAG_NONE}; /* nghttp2 copies */
}

static bt_str_t lower(bt_arena_t *arena, bt_str_t name)
{
    char *p = bt_arena_alloc(arena, name.n);

    for (size_t i = 0; i < name.n; i++)
        p[i] = name.p[i] >= 'A' && name.p[i] <= 'Z' ? (char) (name.p[i] + 32) : name.p[i];
    return (bt_str_t){p, name.n};
}

static unsigned put_headers(bt_exchange_t *x, nghttp2_nv *nv, const bt_header_t *headers,
                            unsigned count)
{
    unsigned n = 0;

    for (unsigned i = 0; i < count; i++)
        if (bt_header_is_clean(&headers[i]))
            put_nv(&nv[n++], lower(&x->arena, headers[i].name), headers[i].value);
    return n;
}

/* How much of the answer may go out now; nghttp2 asks as the windows allow. */
static ssize_t on_wanted(nghttp2_session *session, int32_t id, uint8_t *room, size_t n,
                         uint32_t *flags, nghttp2_data_source *source, void *user)
{
    bt_http2_stream_t *s = source->ptr;

    (void) session;
    (void) id;
    (void) room;
    (void) user;
    if (s->out_bytes == 0 && s->cut)
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE; /* the stream is reset: INTERNAL_ERROR */
    if (s->out_bytes == 0 && !s->ended) {
        s->waiting = true;
        return NGHTTP2_ERR_DEFERRED;
    }
    if (n >= s->out_bytes && s->ended && !s->cut)
        *flags |= NGHTTP2_DATA_FLAG_EOF;
    if (s->out_bytes > 0)
        *flags |= NGHTTP2_DATA_FLAG_NO_COPY;
    return (ssize_t) (n < s->out_bytes ? n : s->out_bytes);
}

static void choose_framing(bt_http2_stream_t *s, unsigned status, uint64_t length)
{
    const bool bodiless = status == 204 || status == 304;

    s->no_body = bodiless || s->x.head.method == BT_HEAD;
    s->has_length = !bodiless && length != BT_LENGTH_CHUNKED;
    s->length_left = s->has_length ? length : 0;
    s->has_no_data = s->no_body || (s->has_length && length == 0);
}

static void http2_start(bt_exchange_t *x, unsigned status, const bt_header_t *headers,
                        unsigned header_count, uint64_t length)
{
    bt_http2_stream_t *s = stream_of(x);
    const nghttp2_data_provider provider = {.source = {.ptr = s}, .read_callback = on_wanted};
    bt_header_t own[BT_OWN_HEADERS_MAX];
    char digits[24], number[24];
    nghttp2_nv *nv;
    unsigned n = 0;

    if (!s->is_open || s->ended || BT_SOFT(x->status != 0 || status < 200 || status > 999))
        return;
    x->status = status;
    choose_framing(s, status, length);
    nv = bt_arena_alloc(&x->arena, (header_count + 2 + BT_OWN_HEADERS_MAX) * sizeof(*nv));
    snprintf(digits, sizeof(digits), "%u", status);
    put_nv(&nv[n++], BT_STR(":status"), bt_str(digits));
    n += put_headers(x, nv + n, own, bt_exchange_own_headers(x, own));
    n += put_headers(x, nv + n, headers, header_count);
    if (s->has_length) {
        snprintf(number, sizeof(number), "%" PRIu64, length);
        put_nv(&nv[n++], BT_STR("content-length"), bt_str(number));
    }
    if (nghttp2_submit_response(s->h2->session, s->id, nv, n, s->has_no_data ? NULL : &provider) !=
        0) {
        s->h2->broken = true;
        bt_http2_watch(s->h2);
    }
    bt_http2_wake(s->h2);
}

/* ---- its body ---- */

static bool is_blocked(const bt_exchange_t *x)
{
    bt_http2_stream_t *s = stream_of(x);
    const bool is = s->out_bytes > BT_STREAM_HIGH_BYTES || s->h2->conn->stream.above_high;

    s->is_above = s->is_above || is; /* whoever asks may pause, and waits to be told */
    return is;
}

/* nghttp2 asks again. */
static void resume(bt_http2_stream_t *s)
{
    if (!s->is_open)
        return;
    if (s->waiting) {
        s->waiting = false;
        (void) nghttp2_session_resume_data(s->h2->session, s->id);
    }
    bt_http2_wake(s->h2);
    bt_http2_watch(s->h2);
}

static bool push(bt_http2_stream_t *s, bt_buf_t *owner, const char *p, size_t n)
{
    return bt_slice_queue_push(s->x.loop, &s->out, (struct bt_slice){p, n, owner});
}

static bool push_copy(bt_http2_stream_t *s, const char *p, size_t n)
{
    bt_buf_t *buf = s->copies;

    if (buf == NULL || buf->cap - buf->len < n) {
        buf = bt_buf_new(n > BT_BUF_STD_BYTES ? n : BT_BUF_STD_BYTES);
        if (buf == NULL)
            return false;
        bt_buf_unref(s->copies);
        s->copies = buf;
    }
    memcpy(buf->data + buf->len, p, n);
    buf->len += n;
    return push(s, buf, buf->data + buf->len - n, n);
}

static void http2_write(bt_exchange_t *x, bt_buf_t *owner, const char *p, size_t n)
{
    bt_http2_stream_t *s = stream_of(x);
    bool is_copied;

    if (!s->is_open || s->ended || BT_SOFT(x->status == 0) || s->has_no_data)
        return;
    if (s->has_length) {
        if (BT_SOFT(n > s->length_left))
            n = (size_t) s->length_left;
        s->length_left -= n;
    }
    if (s->out_bytes == 0)
        s->moved_ms = bt_clock_event_ms();
    is_copied =
        owner == NULL || (s->out_bytes >= COPY_BEHIND && n < COPY_BELOW && n < owner->cap / 4);
    if (!(is_copied ? push_copy(s, p, n) : push(s, owner, p, n))) {
        s->cut = s->h2->broken = true; /* a stream that ends well would be a whole answer */
        bt_http2_watch(s->h2);
        return;
    }
    x->body_sent += n;
    s->out_bytes += n;
    (void) is_blocked(x);
    resume(s);
}

static void http2_write_copy(bt_exchange_t *x, const char *p, size_t n)
{
    http2_write(x, NULL, p, n);
}

int bt_http2_stream_send(bt_http2_stream_t *s, size_t n)
{
    s->moved_ms = bt_clock_event_ms();
    s->out_bytes -= n;
    while (n > 0) {
        struct bt_slice *slice = &s->out.first->slice;
        const size_t now = n < slice->n ? n : slice->n;
        if (bt_stream_write(&s->h2->conn->stream, slice->owner, slice->p, now) < 0)
            return BT_E_NOMEM;
        slice->p += now;
        slice->n -= now;
        n -= now;
        if (slice->n == 0)
            bt_slice_queue_pop(s->x.loop, &s->out);
    }
    if (s->out_bytes == 0)
        bt_http2_stream_drop_out(s); /* the room for copies */
    if (s->is_above && s->out_bytes < BT_STREAM_LOW_BYTES)
        bt_http2_tell(s);
    return 0;
}

/* ---- its end ---- */

static void finish(bt_http2_stream_t *s)
{
    s->ended = true;
    s->moved_ms = bt_clock_event_ms();
    bt_http2_stream_let_go(s);
    if (s->is_open) {
        bt_http2_stream_drop_request(s); /* a client that takes nothing must not make us keep it */
        resume(s);
    } else {
        bt_http2_stream_free(s);
    }
}

static void submit_reset(bt_http2_stream_t *s)
{
    if (s->is_open)
        (void) nghttp2_submit_rst_stream(s->h2->session, NGHTTP2_FLAG_NONE, s->id,
                                         NGHTTP2_INTERNAL_ERROR);
}

static void http2_reset(bt_exchange_t *x)
{
    bt_http2_stream_t *s = stream_of(x);

    if (s->ended)
        return;
    submit_reset(
        s); /* what nghttp2 has taken of `out` for its next frame stays until the stream is closed */
    finish(s);
}

/* What was written before still goes out; then a reset shows that it is not all. */
static void http2_abort(bt_exchange_t *x)
{
    bt_http2_stream_t *s = stream_of(x);

    if (s->ended)
        return;
    if (x->status == 0)
        submit_reset(s);
    else
        s->cut = !s->has_no_data;
    finish(s);
}

static void http2_end(bt_exchange_t *x)
{
    bt_http2_stream_t *s = stream_of(x);

    if (s->ended)
        return;
    if (s->is_open && (BT_SOFT(x->status == 0) || (!s->no_body && BT_SOFT(s->length_left > 0))))
        http2_abort(x);
    else
        finish(s);
}

static size_t http2_pending(const bt_exchange_t *x)
{
    const bt_http2_stream_t *s = stream_of(x);

    return s->out_bytes + bt_stream_pending(&s->h2->conn->stream);
}

static void http2_flush(bt_exchange_t *x)
{
    bt_stream_flush(&stream_of(x)->h2->conn->stream);
}

static void http2_drop_request(bt_exchange_t *x)
{
    (void) x; /* all of it lay in the arena */
}

const bt_exchange_wire_t bt_http2_wire = {
    .start = http2_start,
    .write = http2_write,
    .write_copy = http2_write_copy,
    .end = http2_end,
    .abort = http2_abort,
    .reset = http2_reset,
    .flush = http2_flush,
    .drop_request = http2_drop_request,
    .pending = http2_pending,
    .is_blocked = is_blocked,
    .refuse = bt_http2_refuse,
};
