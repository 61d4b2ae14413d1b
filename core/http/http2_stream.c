/* http2_stream.c - an exchange of an HTTP/2 stream: its life and its request. Answers: http2_answer.c.
 *
 *            head fine          request whole          all read              end                 sent
 *      new ------------> body ----------------> ready ----------> handling -------> ended ---------------> freed
 *       +---- refuse ------+----------------------+---------------------------------^
 *
 * nghttp2 may forget a stream at any time (reset, connection lost). One that a handler has lives on until the handler has heard of it or has
 * ended the answer; others are freed at once.
 */
#include "http/http2_impl.h"

#include "base/clock.h"
#include "base/err.h"
#include "http/head.h"

#define HEADERS_FIRST 16U
#define HEADS_MAX                                                                                  \
    ((size_t) 1 << 20)      /* of all streams of a connection: HPACK makes kilobytes of a byte */
#define HEADER_OVERHEAD 32U /* RFC 9113 6.5.2 */

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
    bt_http2_count(&bt_http2_counts_of(first->server)->streams);
    return s;
}

/* RFC 9113 8.1 allows a reset at once; curl then takes the answer for lost, and most bodies are under way as a whole. */
void bt_http2_stream_linger(bt_http2_stream_t *s)
{
    bt_timer_start(&s->deadline, s->x.server->config.refused_body_ms);
}

void bt_http2_stream_drop_out(bt_http2_stream_t *s)
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
    bt_http2_stream_drop_out(s);
}

void bt_http2_stream_drop_request(bt_http2_stream_t *s)
{
    bt_exchange_drop_request(&s->x);
    s->h2->head_bytes -= s->kept_bytes;
    s->kept_bytes = 0;
}

void bt_http2_stream_free(bt_http2_stream_t *s)
{
    bt_http2_stream_leave(s);
    bt_list_remove(&s->link);
    s->h2->stream_count--;
    bt_http2_count(&bt_http2_counts_of(s->x.server)->streams_closed);
    bt_http2_stream_drop_request(s);
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

void bt_http2_stream_let_go(bt_http2_stream_t *s)
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
    bt_http2_stream_let_go(s);
    if (ops->on_gone != NULL)
        ops->on_gone(&s->x);
    bt_http2_stream_free(s);
}

/* ---- the request ---- */

void bt_http2_refuse(bt_exchange_t *x, unsigned status, const char *reason)
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

/* Cookies may come in pieces, and are one header where there is no HTTP/2 (RFC 9113 8.2.3). Once, when all are there: a piece costs its
 * sender a byte. */
static void join_cookies(bt_http2_stream_t *s)
{
    bt_head_t *head = &s->x.head;
    const bt_str_t name = BT_STR("cookie");
    bt_header_t *first = NULL;
    unsigned kept = 0, pieces = 0;
    size_t n = 0;
    char *at;

    for (unsigned i = 0; i < head->header_count; i++)
        if (bt_str_eq(head->headers[i].name, name)) {
            n += head->headers[i].value.n + 2;
            pieces++;
        }
    if (pieces < 2)
        return;
    at = bt_arena_alloc(&s->x.arena, n);
    for (unsigned i = 0; i < head->header_count; i++) {
        const bt_header_t h = head->headers[i];
        if (!bt_str_eq(h.name, name) || first == NULL)
            head->headers[kept++] = h;
        if (!bt_str_eq(h.name, name))
            continue;
        if (first == NULL) {
            first = &head->headers[kept - 1];
            first->value.p = at;
        } else {
            *at++ = ';';
            *at++ = ' ';
        }
        if (h.value.n > 0)
            memcpy(at, h.value.p, h.value.n);
        at += h.value.n;
    }
    first->value.n = (size_t) (at - first->value.p);
    head->header_count = kept;
}

void bt_http2_stream_header(bt_http2_stream_t *s, bt_str_t name, bt_str_t value)
{
    bt_head_t *head = &s->x.head;
    bt_arena_t *arena = &s->x.arena;

    s->head_bytes += name.n + value.n + HEADER_OVERHEAD;
    if (is_too_large(s))
        return;
    s->kept_bytes += name.n + value.n + HEADER_OVERHEAD;
    s->h2->head_bytes += name.n + value.n + HEADER_OVERHEAD;
    if (bt_str_eq(name, BT_STR(":method")))
        head->method_text = bt_arena_str(arena, value);
    else if (bt_str_eq(name, BT_STR(":path")))
        head->target = bt_arena_str(arena, value);
    else if (bt_str_eq(name, BT_STR(":authority")))
        *next_header(s) = (bt_header_t){BT_STR("host"), bt_arena_str(arena, value)};
    else if (name.p[0] != ':')
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
    join_cookies(s);
    if (bt_head_check_http2(head) != 0)
        return head->refuse;
    head->chunked = !is_whole && !head->has_length; /* a body of unknown length */
    if (bt_str_starts(bt_head_get(head, BT_STR("content-type")), BT_STR("application/grpc"))) {
        *reason_p = "gRPC is not proxied; this gateway speaks the engines' HTTP APIs";
        return 415;
    }
    if (s->h2->head_bytes > HEADS_MAX || !bt_exchange_has_room(&s->x)) {
        *reason_p = bt_exchange_no_room;
        return 503;
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
        bt_http2_refuse(&s->x, status, reason);
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
        bt_http2_refuse(x, status,
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
        bt_http2_refuse(x, 503,
                        "memory is short, and this client's requests hold most of it; try again");
        return;
    }
    if (x->body_buf != NULL)
        x->body = (bt_str_t){x->body_buf->data, x->body_buf->len};
    s->handling = true;
    x->server->active_count++;
    x->server->ops->on_request(x);
}
