/* http2_stream.c - an exchange of an HTTP/2 stream.
 *
 *            head fine          request whole          all read              end                 sent
 *      new ------------> body ----------------> ready ----------> handling -------> ended ---------------> freed
 *       +---- refuse ------+----------------------+---------------------------------^
 *
 * nghttp2 may forget a stream at any time (reset, connection lost). One that a handler has lives on until the handler has heard of it or has
 * ended the answer; others are freed at once.
 *
 * The answer waits as slices in `out` until nghttp2 asks for them, as the client's windows allow; they go into the socket's queue as they
 * are. Bytes that only the exchange keeps alive are copied: nghttp2 may be done with a stream before the socket is.
 */
#include "http/http2_impl.h"

#include "base/clock.h"
#include "base/err.h"
#include "http/head.h"

#include <stdio.h>

#define LINGER_MS 1000U
#define HEADERS_FIRST 16U
#define HEADER_OVERHEAD 32U        /* RFC 9113 6.5.2 */
#define COPY_BELOW ((size_t) 1024) /* a small slice that has to wait would keep a large buffer */
#define COPY_BEHIND ((size_t) 4 * 1024) /* it has to wait behind so much */

static bt_http2_stream_t *stream_of(const bt_exchange_t *x)
{
    return (bt_http2_stream_t *) (uintptr_t) x;
}

/* ---- life ---- */

static void on_deadline(bt_timer_t *timer)
{
    bt_http2_stream_t *s = bt_container_of(timer, bt_http2_stream_t, deadline);

    if (s->ended) {
        (void) nghttp2_submit_rst_stream(s->h2->session, NGHTTP2_FLAG_NONE, s->id,
                                         NGHTTP2_NO_ERROR);
        bt_http2_wake(s->h2);
        return;
    }
    s->x.wire->refuse(&s->x, 408, "request body stalled, or came too slowly");
}

bt_http2_stream_t *bt_http2_stream_new(struct bt_http2 *h2, int32_t id)
{
    const bt_exchange_t *first = &h2->conn->x;
    bt_http2_stream_t *s = bt_slab_get(bt_http2_stream_pool(first->server));

    if (s == NULL)
        return NULL;
    s->h2 = h2;
    s->id = id;
    s->is_open = true;
    s->x.loop = first->loop;
    s->x.server = first->server;
    s->x.wire = &bt_http2_wire;
    s->x.start_us = bt_clock_event_us();
    s->x.head.minor = 1;
    memcpy(s->x.peer, first->peer, sizeof(s->x.peer));
    s->x.proxy = first->proxy;
    s->x.stream = first->stream;
    s->x.tls_version = first->tls_version;
    bt_arena_init(&s->x.arena);
    bt_timer_init(first->loop, &s->deadline, on_deadline);
    bt_list_init(&s->ready_link);
    bt_list_init(&s->tell_link);
    bt_list_init(&s->link);
    bt_list_push(&h2->streams, &s->link);
    h2->stream_count++;
    return s;
}

/* RFC 9113 8.1 allows a reset at once; curl then takes the answer for lost, and most bodies are under way as a whole. */
void bt_http2_stream_linger(bt_http2_stream_t *s)
{
    bt_timer_start(&s->deadline, LINGER_MS);
}

static void drop_out(bt_http2_stream_t *s)
{
    while (s->out.first != NULL)
        bt_slice_queue_pop(s->x.loop, &s->out);
    s->out_bytes = 0;
    bt_buf_unref(s->copies);
    s->copies = NULL;
}

void bt_http2_stream_leave(bt_http2_stream_t *s)
{
    s->is_open = false;
    bt_list_remove(&s->ready_link);
    bt_list_remove(&s->tell_link);
    bt_timer_stop(&s->deadline);
    bt_unfinished_close(&s->x.unfinished);
    drop_out(s);
}

void bt_http2_stream_free(bt_http2_stream_t *s)
{
    bt_http2_stream_leave(s);
    bt_list_remove(&s->link);
    s->h2->stream_count--;
    bt_exchange_drop_body(&s->x);
    bt_arena_fini(&s->x.arena);
    bt_slab_put(bt_http2_stream_pool(s->x.server), s);
}

/* From nghttp2, so the handler is told later. What had no body has been sent whole: its handler just has not said so yet. */
void bt_http2_stream_closed(bt_http2_stream_t *s)
{
    const bool is_sent = s->x.status != 0 && s->has_no_data;

    if (!s->handling) {
        bt_http2_stream_free(s);
        return;
    }
    bt_http2_stream_leave(s);
    if (!is_sent)
        bt_http2_tell(s);
}

static void stop_handling(bt_http2_stream_t *s)
{
    if (s->handling)
        s->x.server->active_count--;
    s->handling = false;
}

void bt_http2_stream_told(bt_http2_stream_t *s)
{
    const bt_server_ops_t *ops = s->x.server->ops;

    if (s->is_open) {
        if (s->handling && s->is_above && !bt_exchange_blocked(&s->x)) {
            s->is_above = false;
            if (ops->on_drain != NULL)
                ops->on_drain(&s->x);
        }
        return;
    }
    stop_handling(s);
    if (ops->on_gone != NULL)
        ops->on_gone(&s->x);
    bt_http2_stream_free(s);
}

/* ---- the request ---- */

static void refuse(bt_exchange_t *x, unsigned status, const char *reason)
{
    bt_http2_stream_t *s = stream_of(x);

    if (BT_SOFT(s->handling) || s->ended)
        return;
    s->is_refused = true;
    bt_list_remove(&s->ready_link);
    bt_timer_stop(&s->deadline);
    bt_exchange_drop_body(x);
    bt_exchange_put_refusal(x, status, reason);
}

static bool is_too_large(const bt_http2_stream_t *s)
{
    return s->head_bytes > BT_HTTP_HEAD_MAX || s->x.head.header_count > BT_HTTP_HEADERS_MAX;
}

/* Room for one more header. */
static bt_header_t *next_header(bt_http2_stream_t *s)
{
    bt_head_t *head = &s->x.head;

    if (head->header_count == s->header_cap) {
        const unsigned cap = s->header_cap > 0 ? 2 * s->header_cap : HEADERS_FIRST;
        bt_header_t *more = bt_arena_alloc(&s->x.arena, cap * sizeof(*more));
        if (s->header_cap > 0)
            memcpy(more, head->headers, head->header_count * sizeof(*more));
        head->headers = more;
        s->header_cap = cap;
    }
    return &head->headers[head->header_count++];
}

/* Cookies may come in pieces, and are one header where there is no HTTP/2 (RFC 9113 8.2.3). */
static bool join_cookie(bt_http2_stream_t *s, bt_str_t name, bt_str_t value)
{
    bt_header_t *cookie = bt_str_eq(name, BT_STR("cookie"))
                              ? (bt_header_t *) (uintptr_t) bt_head_find(&s->x.head, name)
                              : NULL;

    if (cookie == NULL)
        return false;
    cookie->value =
        bt_arena_printf(&s->x.arena, "%.*s; %.*s", BT_STR_ARG(cookie->value), BT_STR_ARG(value));
    return true;
}

void bt_http2_stream_header(bt_http2_stream_t *s, bt_str_t name, bt_str_t value)
{
    bt_head_t *head = &s->x.head;
    bt_arena_t *arena = &s->x.arena;

    s->head_bytes += name.n + value.n + HEADER_OVERHEAD;
    if (is_too_large(s))
        return;
    if (bt_str_eq(name, BT_STR(":method")))
        head->method_text = bt_arena_str(arena, value);
    else if (bt_str_eq(name, BT_STR(":path")))
        head->target = bt_arena_str(arena, value);
    else if (bt_str_eq(name, BT_STR(":authority")))
        *next_header(s) = (bt_header_t){BT_STR("host"), bt_arena_str(arena, value)};
    else if (name.p[0] != ':' && !join_cookie(s, name, value))
        *next_header(s) = (bt_header_t){bt_arena_str(arena, name), bt_arena_str(arena, value)};
}

/* Beside :authority a Host may stand that says the same (RFC 9113 8.3.1). One that says otherwise stays, and is one too many. */
static void drop_second_host(bt_head_t *head)
{
    unsigned hosts = 0;
    bt_str_t first = BT_STR_NULL;

    for (unsigned i = 0; i < head->header_count; i++) {
        bt_header_t *h = &head->headers[i];
        if (!bt_str_ieq(h->name, BT_STR("host")))
            continue;
        if (hosts++ == 0) {
            first = h->value;
        } else if (bt_str_ieq(h->value, first)) {
            *h = head->headers[--head->header_count];
            i--;
        }
    }
}

/* The status it is refused with, 0 = go on. */
static unsigned check_head(bt_http2_stream_t *s, bool is_whole, const char **reason_p)
{
    bt_head_t *head = &s->x.head;

    if (is_too_large(s))
        return 431;
    drop_second_host(head);
    if (bt_head_check_http2(head) != 0)
        return head->refuse;
    head->chunked = !is_whole && !head->has_length; /* a body of unknown length */
    if (bt_str_starts(bt_head_get(head, BT_STR("content-type")), BT_STR("application/grpc"))) {
        *reason_p = "gRPC is not proxied; this gateway speaks the engines' HTTP APIs";
        return 415;
    }
    return bt_exchange_check_head(&s->x, &s->h2->conn->ticket, reason_p);
}

static void submit_continue(bt_http2_stream_t *s)
{
    nghttp2_nv nv = {(uint8_t *) (uintptr_t) ":status", (uint8_t *) (uintptr_t) "100", 7, 3,
                     NGHTTP2_NV_FLAG_NONE};

    if (bt_head_find(&s->x.head, BT_STR("expect")) != NULL)
        (void) nghttp2_submit_headers(s->h2->session, NGHTTP2_FLAG_NONE, s->id, NULL, &nv, 1, NULL);
}

static void wait_for_body(bt_http2_stream_t *s)
{
    const uint64_t ms =
        bt_exchange_body_wait_ms(&s->x, s->x.body_buf != NULL ? s->x.body_buf->len : 0);

    if (ms > 0)
        bt_timer_start(&s->deadline, ms);
}

void bt_http2_stream_head_done(bt_http2_stream_t *s, bool is_whole)
{
    const char *reason = NULL;
    const unsigned status = check_head(s, is_whole, &reason);

    s->is_head_done = true;
    if (status != 0) {
        refuse(&s->x, status, reason);
        return;
    }
    s->x.body_ms = bt_clock_event_ms();
    if (is_whole) {
        bt_http2_stream_whole(s);
        return;
    }
    bt_exchange_note(&s->x, s->head_bytes);
    submit_continue(s);
    wait_for_body(s);
}

void bt_http2_stream_data(bt_http2_stream_t *s, bt_str_t data)
{
    bt_exchange_t *x = &s->x;
    const char *reason = bt_exchange_no_room;
    unsigned status = 0;

    if (x->body_buf == NULL && x->head.has_length && x->head.length > 0) {
        x->body_buf = bt_exchange_first_buf(x, (size_t) x->head.length, &reason);
        status = x->body_buf == NULL ? 503 : 0;
    }
    if (status == 0)
        status = bt_exchange_add_body(x, data);
    if (status != 0)
        refuse(x, status,
               status == 503 ? reason : "request body is too large (--max-payload-size)");
    else
        wait_for_body(s);
}

void bt_http2_stream_whole(bt_http2_stream_t *s)
{
    if (s->is_refused)
        return;
    bt_timer_stop(&s->deadline);
    bt_list_push(&s->h2->ready, &s->ready_link);
}

void bt_http2_stream_handle(bt_http2_stream_t *s)
{
    bt_exchange_t *x = &s->x;

    if (bt_unfinished_complete(&x->unfinished) < 0) {
        refuse(x, 503, "memory is short, and this client's requests hold most of it; try again");
        return;
    }
    if (x->body_buf != NULL)
        x->body = (bt_str_t){x->body_buf->data, x->body_buf->len};
    s->handling = true;
    x->server->active_count++;
    x->server->ops->on_request(x);
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
    const bt_http2_stream_t *s = stream_of(x);

    return s->out_bytes > BT_STREAM_HIGH_BYTES || s->h2->conn->stream.above_high;
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
        s->h2->broken = true;
        bt_http2_watch(s->h2);
        return;
    }
    x->body_sent += n;
    s->out_bytes += n;
    s->is_above = s->is_above || is_blocked(x);
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
        drop_out(s); /* the room for copies */
    if (s->is_above && s->out_bytes < BT_STREAM_LOW_BYTES)
        bt_http2_tell(s);
    return 0;
}

/* ---- its end ---- */

static void finish(bt_http2_stream_t *s)
{
    s->ended = true;
    stop_handling(s);
    if (s->is_open)
        resume(s);
    else
        bt_http2_stream_free(s);
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
    drop_out(s);
    submit_reset(s);
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
    .refuse = refuse,
};
