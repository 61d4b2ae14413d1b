/* server_conn.c - reading requests.
 *
 *            first byte          head fine             body complete          end           all sent
 *      IDLE -----------> HEAD ------------> BODY ------------------> ANSWER -----> FLUSH ------------> IDLE
 *        ^                 |                  |                         |             |
 *        |                 +----- refuse -----+-------------------------^             +-- close_after: FIN, linger
 *
 * One request at a time: the next one stays unread in the input buffer until the answer before it has left. Until then
 * a slice of the old request's arena may still be queued, and a client that pipelines without reading cannot make us
 * pile up answers.
 *
 * The input buffer is ours, not the stream's (on_alloc), so a head or a small body that arrives in pieces is put
 * together without a copy. Spans of the head and a body in place point into it; they hold references, and bytes behind
 * them are only ever appended. A large body is read straight into a buffer of its own (server_body.c).
 *
 * While an answer is on its way we go on reading, because that is how FIN and RST are seen. When 64 KiB lie ahead,
 * reading stops and the watch timer asks the kernel for POLLRDHUP.
 */
#include "http/server_impl.h"

#include "base/err.h"
#include "base/log.h"
#include "http/head.h"
#include "tls/server.h"

#define ROOM_MIN ((size_t) 1024) /* smaller rests of a buffer are not worth a read */
#define WATCH_GONE_MS 50U
#define WATCH_STALL_MS 1000U

static bt_server_conn_t *conn_of(bt_stream_t *stream)
{
    return bt_container_of(stream, bt_server_conn_t, stream);
}

/* ---- input buffer ---- */

/* Makes the unread bytes begin in a buffer with at least `room` bytes behind them. */
static bool move_input(bt_server_conn_t *c, size_t room)
{
    size_t unread = bt_conn_unread(c);
    bt_buf_t *buf = bt_buf_new(unread + room);

    if (buf == NULL)
        return false;
    if (unread > 0)
        memcpy(buf->data, c->in->data + c->in_at, unread);
    bt_buf_unref(c->in);
    c->in = buf;
    c->in_at = 0;
    c->in_end = unread;
    return true;
}

static size_t input_room(const bt_server_conn_t *c)
{
    return c->in != NULL ? c->in->cap - c->in_end : 0;
}

/* Where the next read goes. Never moves a body that is being put together in place: it was sure to fit. */
static bool make_room(bt_server_conn_t *c)
{
    if (c->state == BT_CONN_BODY && input_room(c) > 0)
        return true;
    if (c->in != NULL && bt_conn_unread(c) == 0 && c->in->refs == 1)
        c->in_at = c->in_end = 0;
    if (input_room(c) >= ROOM_MIN)
        return true;
    size_t unread = bt_conn_unread(c);
    if (unread >= BT_AHEAD_MAX)
        return false;
    return move_input(c, unread > ROOM_MIN ? unread : ROOM_MIN);
}

static bool on_alloc(bt_stream_t *stream, char **p_p, size_t *n_p)
{
    bt_server_conn_t *c = conn_of(stream);

    if (c->state == BT_CONN_BODY && c->direct) {
        *n_p = bt_conn_body_room(c, p_p);
        return true;
    }
    if (!make_room(c))
        return false;
    *p_p = c->in->data + c->in_end;
    *n_p = input_room(c);
    return true;
}

/* ---- steps ---- */

static void drop_input(bt_server_conn_t *c)
{
    bt_buf_unref(c->in);
    c->in = NULL;
    c->in_at = c->in_end = 0;
}

void bt_conn_drop_exchange(bt_server_conn_t *c)
{
    bt_conn_drop_open(c);
    bt_buf_unref(c->head_buf);
    bt_buf_unref(c->x.body_buf);
    c->head_buf = c->x.body_buf = NULL;
    bt_arena_fini(&c->x.arena);
    bt_unfinished_close(&c->x.unfinished);
}

void bt_conn_drop_request(bt_server_conn_t *c)
{
    bt_buf_unref(c->head_buf);
    c->head_buf = NULL;
    if (bt_conn_unread(c) == 0)
        drop_input(c);
}

static void resume_reading(bt_server_conn_t *c)
{
    if (!c->paused)
        return;
    c->paused = false;
    if (bt_stream_read_start(&c->stream) < 0)
        bt_conn_close(c);
}

void bt_conn_set_deadline(bt_server_conn_t *c, uint64_t ms)
{
    if (ms > 0)
        bt_timer_start(&c->deadline, ms);
    else
        bt_timer_stop(&c->deadline);
}

/* A connection that comes while the server drains, or that is only to be refused, may bring one request, but nobody waits long
 * for it. */
uint64_t bt_conn_idle_ms(const bt_server_conn_t *c)
{
    const bt_server_config_t *config = &c->x.server->config;
    const bool is_brief = c->x.server->draining || c->ticket.is_refused;
    const bool is_shorter =
        config->head_timeout_ms > 0 &&
        (config->idle_timeout_ms == 0 || config->head_timeout_ms < config->idle_timeout_ms);

    return is_brief && is_shorter ? config->head_timeout_ms : config->idle_timeout_ms;
}

static void become_idle(bt_server_conn_t *c)
{
    const bt_server_config_t *config = &c->x.server->config;

    c->is_new = false;
    bt_conn_set_deadline(c, c->is_shaking ? config->tls_handshake_ms : bt_conn_idle_ms(c));
    if (bt_conn_unread(c) == 0)
        bt_budget_idle(bt_conn_budget(c), &c->ticket);
}

void bt_conn_wait_idle(bt_server_conn_t *c)
{
    c->state = BT_CONN_IDLE;
    c->scan = 0;
    c->blank_seen = false;
    bt_timer_stop(&c->watch);
    if (bt_conn_unread(c) == 0)
        drop_input(c);
    if (c->is_new)
        bt_conn_set_deadline(c, BT_NEW_MS);
    else
        become_idle(c);
    resume_reading(c);
}

static void begin_head(bt_server_conn_t *c)
{
    bt_exchange_t *x = &c->x;

    x->user = NULL;
    x->head = (bt_head_t){0};
    x->body = BT_STR_NULL;
    x->start_us = bt_clock_event_us();
    x->status = 0;
    x->body_sent = 0;
    x->sender = 0;
    x->cors_origin = NULL;
    if (x->proxy != NULL) /* the one before may have been another client's */
        bt_str_copy(x->peer, sizeof(x->peer), x->proxy);
    c->direct = c->chunked = c->has_length = c->no_body = c->close_after = false;
    c->state = BT_CONN_HEAD;
    c->is_new = false;
    bt_budget_busy(bt_conn_budget(c), &c->ticket);
    bt_conn_set_deadline(c, x->server->config.head_timeout_ms);
}

void bt_conn_stop_reading_request(bt_server_conn_t *c)
{
    bt_timer_stop(&c->deadline);
    c->state = BT_CONN_ANSWER;
}

/* What has come of it is freed before the client has read why. */
bool bt_conn_refuse_request(bt_server_conn_t *c, unsigned status, const char *reason)
{
    bt_conn_stop_reading_request(c);
    bt_exchange_drop_body(&c->x);
    c->direct = false;
    bt_conn_refuse(c, status, reason);
    return true;
}

/* The parsed headers move from the server's scratch room to the exchange. */
static void keep_headers(bt_server_conn_t *c)
{
    bt_head_t *head = &c->x.head;
    size_t bytes = head->header_count * sizeof(bt_header_t);
    bt_header_t *kept = bt_arena_alloc(&c->x.arena, bytes + 1);

    memcpy(kept, head->headers, bytes);
    head->headers = kept;
    c->head_buf = bt_buf_ref(c->in);
}

static bool accept_head(bt_server_conn_t *c, size_t n)
{
    bt_head_t *head = &c->x.head;
    int rc = bt_head_parse_request(c->in->data + c->in_at, n, c->x.server->headers, head);

    c->in_at += n;
    if (rc != 0)
        return bt_conn_refuse_request(c, head->refuse, NULL);
    keep_headers(c);
    const char *reason = NULL;
    unsigned status = bt_exchange_check_head(&c->x, &c->ticket, &reason);
    if (status != 0)
        return bt_conn_refuse_request(c, status, reason);
    return bt_conn_begin_body(c);
}

/* One empty line before a request is skipped: old clients send one after a body. */
static void skip_blank_line(bt_server_conn_t *c)
{
    const char *p = c->in->data + c->in_at;

    if (!c->blank_seen && bt_conn_unread(c) >= 2 && p[0] == '\r' && p[1] == '\n') {
        c->blank_seen = true;
        c->in_at += 2;
    }
}

/* The connection's first bytes tell, with TLS too: what ALPN has agreed on begins with them. True: it is HTTP/2's, or may be. */
static bool is_http2(bt_server_conn_t *c)
{
    const bt_str_t first = {c->in->data + c->in_at, bt_conn_unread(c)};
    enum bt_preface preface;

    if (c->has_asked || c->x.server->http2 == NULL)
        return false;
    preface = bt_http2_preface(first);
    if (preface == BT_PREFACE_YES)
        bt_http2_begin(c);
    return preface != BT_PREFACE_NO;
}

static bool read_head(bt_server_conn_t *c)
{
    if (is_http2(c))
        return false;
    c->has_asked = true;
    skip_blank_line(c);
    const char *p = c->in->data + c->in_at;
    size_t n = bt_conn_unread(c);
    if (n == 0 || (n == 1 && p[0] == '\r' && !c->blank_seen))
        return false;
    long head = bt_head_scan(p, n, &c->scan);
    if (head == BT_E_HTTP_HEAD_SIZE)
        return bt_conn_refuse_request(c, 431, NULL);
    if (head < 0)
        return bt_conn_refuse_request(c, 400, NULL);
    return head > 0 && accept_head(c, (size_t) head);
}

/* One step; false when more input, the handler or the client has to come first. */
static bool step(bt_server_conn_t *c)
{
    switch (c->state) {
    case BT_CONN_IDLE:
        if (bt_conn_unread(c) == 0)
            return false;
        begin_head(c);
        return true;
    case BT_CONN_HEAD:
        return read_head(c);
    case BT_CONN_BODY:
        return bt_conn_read_body(c);
    default:
        return false;
    }
}

static void pause_when_far_ahead(bt_server_conn_t *c)
{
    bool answering = c->state == BT_CONN_ANSWER || c->state == BT_CONN_FLUSH;

    if (!answering || c->paused || bt_conn_unread(c) < BT_AHEAD_MAX)
        return;
    c->paused = true;
    bt_stream_read_stop(&c->stream);
    bt_conn_watch(c);
}

/* A loop instead of recursion: 64 KiB of pipelined requests that are answered on the spot would go deep. */
void bt_conn_advance(bt_server_conn_t *c)
{
    if (c->advancing)
        return;
    c->advancing = true;
    while (step(c))
        continue;
    c->advancing = false;
    pause_when_far_ahead(c);
}

/* ---- watch ---- */

static bool awaits_client(const bt_server_conn_t *c)
{
    return (c->state == BT_CONN_ANSWER || c->state == BT_CONN_FLUSH) &&
           (c->paused || c->broken || bt_exchange_pending(&c->x) > 0);
}

static void arm_watch(bt_server_conn_t *c)
{
    uint64_t stall_ms = c->x.server->config.write_stall_ms;
    uint64_t ms = stall_ms > 0 && stall_ms / 4 < WATCH_STALL_MS ? stall_ms / 4 : WATCH_STALL_MS;

    if (c->paused && ms > WATCH_GONE_MS)
        ms = WATCH_GONE_MS;
    bt_timer_start(&c->watch, c->broken ? 0 : ms);
}

/* The time since which the client has taken nothing counts anew from each byte that left. */
static bool is_stalled(bt_server_conn_t *c)
{
    uint64_t written = bt_stream_written(&c->stream);
    uint64_t now_ms = bt_clock_event_ms();

    if (written != c->stall_written || bt_exchange_pending(&c->x) == 0) {
        c->stall_written = written;
        c->stall_ms = now_ms;
    }
    uint64_t limit_ms = c->x.server->config.write_stall_ms;
    return limit_ms > 0 && now_ms - c->stall_ms >= limit_ms;
}

static void on_watch(bt_timer_t *timer)
{
    bt_server_conn_t *c = bt_container_of(timer, bt_server_conn_t, watch);

    if (c->broken || is_stalled(c)) {
        bt_stream_reset(&c->stream);
        bt_conn_gone(c);
    } else if (c->paused && c->state == BT_CONN_ANSWER && bt_stream_peer_gone(&c->stream)) {
        bt_conn_gone(c);
    } else if (awaits_client(c)) {
        arm_watch(c);
    }
}

void bt_conn_watch(bt_server_conn_t *c)
{
    if (!awaits_client(c))
        return;
    if (!bt_timer_active(&c->watch)) {
        c->stall_written = bt_stream_written(&c->stream);
        c->stall_ms = bt_clock_event_ms();
    } else if (!c->broken && !c->paused) {
        return; /* it runs already, at the right pace */
    }
    arm_watch(c);
}

static void on_deadline(bt_timer_t *timer)
{
    bt_server_conn_t *c = bt_container_of(timer, bt_server_conn_t, deadline);

    if (c->state == BT_CONN_IDLE && c->is_new) {
        become_idle(c);
        return;
    }
    if (c->state == BT_CONN_IDLE) {
        bt_conn_close(c);
        return;
    }
    bt_conn_refuse_request(c, 408,
                           c->state == BT_CONN_HEAD ? "request head took too long"
                                                    : "request body stalled, or came too slowly");
}

void bt_conn_init_timers(bt_server_conn_t *c)
{
    bt_timer_init(c->x.loop, &c->deadline, on_deadline);
    bt_timer_init(c->x.loop, &c->watch, on_watch);
}

/* ---- stream events ---- */

/* What came with the body's end is the next request's. */
static bool take_spare(bt_server_conn_t *c, bt_str_t spare)
{
    if (spare.n == 0)
        return true;
    if (!make_room(c))
        return false;
    memcpy(c->in->data + c->in_end, spare.p, spare.n);
    c->in_end += spare.n;
    return true;
}

static void on_read(bt_stream_t *stream, bt_buf_t *buf, char *p, size_t n)
{
    bt_server_conn_t *c = conn_of(stream);

    (void) p;
    if (buf != NULL) { /* on_alloc had no memory */
        bt_conn_gone(c);
        return;
    }
    if (c->state != BT_CONN_BODY || !c->direct) {
        c->in_end += n;
    } else if (!take_spare(c, bt_conn_add_body(c, n))) {
        bt_conn_gone(c);
        return;
    }
    bt_conn_advance(c);
    bt_conn_note_unfinished(c);
}

/* ---- TLS ---- */

/* Who has begun is as little idle as one that has sent half a head. */
static void begin_handshake(bt_server_conn_t *c)
{
    c->is_new = false;
    bt_budget_busy(bt_conn_budget(c), &c->ticket);
    bt_conn_set_deadline(c, c->x.server->config.tls_handshake_ms);
}

static void end_handshake(bt_server_conn_t *c)
{
    bt_tls_info_t info;

    c->is_shaking = false;
    c->is_new = bt_conn_budget(c) != NULL && !c->ticket.is_refused;
    c->x.tls_version = bt_tls_info(&c->stream, &info) ? info.version : NULL;
    bt_conn_wait_idle(c);
}

static void refuse_plain(bt_server_conn_t *c)
{
    begin_head(c);
    (void) bt_conn_refuse_request(c, 400, "this port speaks TLS: use https://");
}

static void on_handshake(bt_stream_t *stream, int rc)
{
    bt_server_conn_t *c = conn_of(stream);
    const char *why = bt_tls_why(stream);

    if (rc == BT_E_AGAIN) {
        begin_handshake(c);
    } else if (rc == 0) {
        end_handshake(c);
    } else if (rc == BT_E_PLAIN) {
        refuse_plain(c);
    } else {
        bt_log_debug("http", "TLS handshake of %s failed: %s", c->x.peer,
                     why != NULL ? why : bt_err_name(rc));
        bt_conn_retire(c); /* an alert may be on its way */
    }
}

/* A client that only shuts its sending side counts as gone too: it cannot be told from one that left, and engines
 * must not work for those. What is already on its way to it (FLUSH) is still sent.
 */
static void on_eof(bt_stream_t *stream, int rc)
{
    bt_server_conn_t *c = conn_of(stream);

    if (c->state == BT_CONN_FLUSH && rc == 0) {
        c->close_after = true;
        return;
    }
    bt_conn_gone(c);
}

static void on_drain(bt_stream_t *stream)
{
    bt_server_conn_t *c = conn_of(stream);

    if (c->handling && c->x.server->ops->on_drain != NULL)
        c->x.server->ops->on_drain(&c->x);
}

static void on_write_error(bt_stream_t *stream, int rc)
{
    (void) rc;
    bt_conn_gone(conn_of(stream));
}

/* Comes from the flush point or from uv, so the next request begins on a fresh stack, never inside the handler's call
 * that ended the answer before it.
 */
static void on_sent(bt_stream_t *stream)
{
    bt_conn_answered(conn_of(stream));
}

/* The end of a turn: the slices of the open chunk get their head. */
static void on_flush(bt_stream_t *stream)
{
    bt_conn_emit(conn_of(stream), false);
}

const bt_stream_ops_t bt_server_stream_ops = {
    .on_read = on_read,
    .on_eof = on_eof,
    .on_drain = on_drain,
    .on_write_error = on_write_error,
    .on_closed = bt_conn_closed,
    .on_alloc = on_alloc,
    .on_sent = on_sent,
    .on_flush = on_flush,
    .on_handshake = on_handshake,
};
