/* server_answer.c - writing answers.
 *
 * Heads and short bodies are written where the stream gathers what it copies, so that they leave as one piece; longer data
 * goes into its queue as it is. In a chunked answer the slices of one turn are first kept in
 * `open`, because the size of their chunk is known only when the turn ends: then on_flush writes size, slices and CRLF,
 * and the stream sends them with whatever head stands before them in one system call. While the client is slow there is no
 * such moment; slices are then passed on at once, so that the stream can copy small ones out of large buffers.
 *
 * Nothing here calls the handler. What goes wrong while it writes is told by on_gone in a later turn.
 */
#include "base/err.h"
#include "http/server_impl.h"

#define STATUS_LINE_MAX 256U
#define CORS_MAX 1024U     /* an origin has 256 at most */
#define CHUNK_HEAD_MAX 18U /* 16 digits, CRLF */
#define COPY_MAX 1024U     /* of a body; what is longer costs more than a slice */

static void fail(bt_server_conn_t *c)
{
    c->broken = true;
    bt_conn_watch(c);
}

/* Nothing goes out behind what there was no memory for, or the rest would look like a whole answer. */
static void queue(bt_server_conn_t *c, bt_buf_t *owner, const char *p, size_t n)
{
    if (!c->broken && bt_stream_write(&c->stream, owner, p, n) < 0)
        fail(c);
}

static void queue_copy(bt_server_conn_t *c, const char *p, size_t n)
{
    if (!c->broken && bt_stream_write_copy(&c->stream, p, n) < 0)
        fail(c);
}

/* ---- chunks ---- */

void bt_conn_drop_open(bt_server_conn_t *c)
{
    for (unsigned i = 0; i < c->open_count; i++)
        bt_buf_unref(c->open[i].owner);
    if (c->open != &c->open_first)
        bt_slab_put(&c->x.server->open_pool, c->open);
    c->open = NULL;
    c->open_count = 0;
    c->open_bytes = 0;
}

/* Chunk size and CRLF into the end of `text`; its first character. */
static const char *chunk_head(size_t bytes, char text[CHUNK_HEAD_MAX])
{
    char *at = text + CHUNK_HEAD_MAX;

    *--at = '\n';
    *--at = '\r';
    do {
        *--at = "0123456789abcdef"[bytes & 15];
        bytes >>= 4;
    } while (bytes != 0);
    return at;
}

static void emit_slices(bt_server_conn_t *c)
{
    char text[CHUNK_HEAD_MAX];
    const char *head = chunk_head(c->open_bytes, text);

    queue_copy(c, head, (size_t) (text + CHUNK_HEAD_MAX - head));
    for (unsigned i = 0; i < c->open_count; i++)
        queue(c, c->open[i].owner, c->open[i].p, c->open[i].n);
    queue_copy(c, "\r\n", 2);
}

/* A token is copied: three slices cost more than its bytes, here and in the kernel. */
static void emit_copy(bt_server_conn_t *c)
{
    char text[CHUNK_HEAD_MAX + COPY_MAX + 2], *at = text + CHUNK_HEAD_MAX;
    const char *head = chunk_head(c->open_bytes, text);

    for (unsigned i = 0; i < c->open_count; i++) {
        memcpy(at, c->open[i].p, c->open[i].n);
        at += c->open[i].n;
    }
    *at++ = '\r';
    *at++ = '\n';
    queue_copy(c, head, (size_t) (at - head));
}

void bt_conn_emit(bt_server_conn_t *c, bool last)
{
    if (c->open_count > 0) {
        if (c->open_bytes <= COPY_MAX)
            emit_copy(c);
        else
            emit_slices(c);
        bt_conn_drop_open(c);
    }
    if (last)
        queue_copy(c, "0\r\n\r\n", 5);
}

/* Most turns bring one piece. */
static bool has_open_room(bt_server_conn_t *c)
{
    struct bt_slice *more;

    if (c->open_count == 0)
        c->open = &c->open_first;
    if (c->open_count != 1)
        return true;
    more = bt_slab_get(&c->x.server->open_pool);
    if (more == NULL)
        return false;
    more[0] = c->open_first;
    c->open = more;
    return true;
}

static void add_to_chunk(bt_server_conn_t *c, bt_buf_t *owner, const char *p, size_t n)
{
    if (c->open_count == BT_OPEN_MAX)
        bt_conn_emit(c, false);
    if (!has_open_room(c)) {
        fail(c);
        return;
    }
    c->open[c->open_count++] = (struct bt_slice){p, n, owner != NULL ? bt_buf_ref(owner) : NULL};
    c->open_bytes += n;
    if (c->stream.in_write_bytes != 0)
        bt_conn_emit(c, false);
    else
        bt_stream_want_flush(&c->stream);
}

/* ---- head ---- */

struct writer {
    char *at;
};

static void put(struct writer *w, bt_str_t s)
{
    if (s.n > 0)
        memcpy(w->at, s.p, s.n);
    w->at += s.n;
}

static void put_header(struct writer *w, const bt_header_t *header)
{
    if (!bt_header_is_clean(header))
        return;
    put(w, header->name);
    put(w, BT_STR(": "));
    put(w, header->value);
    put(w, BT_STR("\r\n"));
}

static void put_status(bt_server_conn_t *c, struct writer *w, unsigned status)
{
    bt_header_t own[BT_OWN_HEADERS_MAX];
    const unsigned count = bt_exchange_own_headers(&c->x, own);

    put(w, BT_STR("HTTP/1.1 "));
    bt_str_put_u64(&w->at, status);
    put(w, BT_STR(" "));
    put(w, bt_str(bt_http_reason(status)));
    put(w, BT_STR("\r\n"));
    for (unsigned i = 0; i < count; i++)
        put_header(w, &own[i]);
}

static void put_framing(bt_server_conn_t *c, struct writer *w)
{
    if (c->has_length) {
        put(w, BT_STR("Content-Length: "));
        bt_str_put_u64(&w->at, c->length_left);
        put(w, BT_STR("\r\n"));
    } else if (c->chunked) {
        put(w, BT_STR("Transfer-Encoding: chunked\r\n"));
    }
    if (c->close_after)
        put(w, BT_STR("Connection: close\r\n"));
    else if (c->x.head.minor == 0)
        put(w, BT_STR("Connection: keep-alive\r\n"));
    put(w, BT_STR("\r\n"));
}

static size_t head_bytes(const bt_server_t *server, const bt_header_t *headers, unsigned count)
{
    size_t n = STATUS_LINE_MAX;

    if (server->config.server_name != NULL)
        n += strlen(server->config.server_name) + 16;
    if (server->config.edge != NULL && server->config.edge->cors.origins != NULL)
        n += CORS_MAX;
    for (unsigned i = 0; i < count; i++)
        n += headers[i].name.n + headers[i].value.n + 4;
    return n;
}

static void choose_framing(bt_server_conn_t *c, unsigned status, uint64_t length)
{
    bool bodiless = status == 204 || status == 304;

    c->no_body = bodiless || c->x.head.method == BT_HEAD;
    c->has_length = !bodiless && length != BT_LENGTH_CHUNKED;
    c->chunked = !bodiless && length == BT_LENGTH_CHUNKED && c->x.head.minor > 0;
    c->length_left = c->has_length ? length : 0;
    if (!c->x.head.keep_alive || c->x.server->draining)
        c->close_after = true;
    if (!bodiless && !c->has_length && !c->chunked)
        c->close_after = true; /* HTTP/1.0: the end of the connection is the end of the body */
}

static void http1_start(bt_exchange_t *x, unsigned status, const bt_header_t *headers,
                        unsigned header_count, uint64_t length)
{
    bt_server_conn_t *c = bt_conn_of(x);

    if (c->state != BT_CONN_ANSWER || BT_SOFT(x->status != 0 || status < 200 || status > 999))
        return;
    x->status = status;
    choose_framing(c, status, length);
    struct writer w = {bt_stream_room(&c->stream, head_bytes(x->server, headers, header_count))};
    if (w.at == NULL) {
        fail(c);
        return;
    }
    const char *start = w.at;
    put_status(c, &w, status);
    for (unsigned i = 0; i < header_count; i++)
        put_header(&w, &headers[i]);
    put_framing(c, &w);
    if (!c->broken && bt_stream_write_room(&c->stream, (size_t) (w.at - start)) < 0)
        fail(c);
}

/* ---- body and end ---- */

/* How many of n more bytes of body the answer takes. */
static size_t count_body(bt_exchange_t *x, size_t n)
{
    bt_server_conn_t *c = bt_conn_of(x);

    if (c->state != BT_CONN_ANSWER || BT_SOFT(x->status == 0) || c->no_body)
        return 0;
    if (c->has_length) {
        if (BT_SOFT(n > c->length_left))
            n = (size_t) c->length_left;
        c->length_left -= n;
    }
    x->body_sent += n;
    return n;
}

static void http1_write(bt_exchange_t *x, bt_buf_t *owner, const char *p, size_t n)
{
    bt_server_conn_t *c = bt_conn_of(x);

    n = count_body(x, n);
    if (n == 0)
        return;
    if (c->chunked)
        add_to_chunk(c, owner, p, n);
    else if (n <= COPY_MAX)
        queue_copy(c, p, n);
    else
        queue(c, owner, p, n);
    if (bt_exchange_blocked(x))
        bt_conn_watch(c);
}

static void stop_handling(bt_server_conn_t *c)
{
    if (c->handling)
        c->x.server->active_count--;
    c->handling = false;
}

/* The rest happens in bt_conn_answered, which the flush point calls even if nothing is left to send. */
static void end_answer(bt_server_conn_t *c)
{
    stop_handling(c);
    c->state = BT_CONN_FLUSH;
    bt_stream_want_flush(&c->stream);
    bt_conn_watch(c);
}

/* A missing last chunk or missing bytes show that the answer is cut; where the end of the connection would look like
 * the regular end, only a reset does.
 */
static void http1_abort(bt_exchange_t *x)
{
    bt_server_conn_t *c = bt_conn_of(x);
    bool shows = x->status != 0 && (c->chunked || c->length_left > 0);

    if (c->state != BT_CONN_ANSWER)
        return;
    if (shows) {
        bt_conn_emit(c, false);
        c->close_after = true;
        end_answer(c);
        return;
    }
    stop_handling(c);
    if (x->status != 0)
        bt_stream_reset(&c->stream);
    bt_conn_close(c);
}

static void http1_end(bt_exchange_t *x)
{
    bt_server_conn_t *c = bt_conn_of(x);

    if (c->state != BT_CONN_ANSWER)
        return;
    if (BT_SOFT(x->status == 0) || (!c->no_body && BT_SOFT(c->length_left > 0))) {
        http1_abort(x);
        return;
    }
    bt_conn_emit(c, c->chunked && !c->no_body);
    end_answer(c);
}

static void http1_reset(bt_exchange_t *x)
{
    bt_server_conn_t *c = bt_conn_of(x);

    if (c->state != BT_CONN_ANSWER)
        return;
    stop_handling(c);
    bt_stream_reset(&c->stream);
    bt_conn_close(c);
}

void bt_conn_answered(bt_server_conn_t *c)
{
    if (c->state != BT_CONN_FLUSH || bt_stream_pending(&c->stream) > 0)
        return;
    if (c->broken) {
        bt_stream_reset(&c->stream);
        bt_conn_close(c);
        return;
    }
    bt_timer_stop(&c->watch);
    if (c->close_after) {
        bt_conn_retire(c);
        return;
    }
    bt_conn_drop_exchange(c);
    if (c->x.server->draining && !c->x.server->lets_idle_ask && bt_conn_unread(c) == 0) {
        bt_conn_retire(c);
        return;
    }
    bt_conn_wait_idle(c);
    bt_conn_advance(c);
}

static void http1_write_copy(bt_exchange_t *x, const char *p, size_t n)
{
    bt_server_conn_t *c = bt_conn_of(x);

    n = count_body(x, n);
    if (n > 0 && BT_SOFT(c->chunked))
        fail(c);
    else
        queue_copy(c, p, n);
}

static size_t http1_pending(const bt_exchange_t *x)
{
    const bt_server_conn_t *c = bt_conn_of(x);
    return bt_stream_pending(&c->stream) + c->open_bytes;
}

static bool http1_is_blocked(const bt_exchange_t *x)
{
    return http1_pending(x) > BT_STREAM_HIGH_BYTES || bt_conn_of(x)->stream.above_high;
}

static void http1_flush(bt_exchange_t *x)
{
    bt_stream_flush(&bt_conn_of(x)->stream);
}

static void http1_drop_request(bt_exchange_t *x)
{
    bt_conn_drop_request(bt_conn_of(x));
}

static void http1_refuse(bt_exchange_t *x, unsigned status, const char *reason)
{
    bt_server_conn_t *c = bt_conn_of(x);

    if (!BT_SOFT(c->state != BT_CONN_HEAD && c->state != BT_CONN_BODY))
        (void) bt_conn_refuse_request(c, status, reason);
}

/* Always the connection's last answer: the body of the refused request may still be on its way. */
void bt_conn_refuse(bt_server_conn_t *c, unsigned status, const char *reason)
{
    c->close_after = true;
    bt_exchange_put_refusal(&c->x, status, reason);
}

const bt_exchange_wire_t bt_http1_wire = {
    .start = http1_start,
    .write = http1_write,
    .write_copy = http1_write_copy,
    .end = http1_end,
    .abort = http1_abort,
    .reset = http1_reset,
    .flush = http1_flush,
    .drop_request = http1_drop_request,
    .pending = http1_pending,
    .is_blocked = http1_is_blocked,
    .refuse = http1_refuse,
};
