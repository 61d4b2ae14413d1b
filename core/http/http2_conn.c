/* http2_conn.c - nghttp2's session between a socket and its streams.
 *
 *   socket -> on_read -> nghttp2 -> callbacks: note in streams -> (all read) handlers get whole requests
 *   handlers -> slices in streams -> end of the turn: on_flush -> nghttp2 frames them -> socket, one write
 *
 * Handlers are called only between the two: nghttp2's callbacks note, and bt_http2_run tells. So a handler may call whatever it likes, and
 * never gets a call from within one of its own.
 *
 * What a client may cost. Streams, heads and windows are bounded by SETTINGS. Frames that bring nothing (resets of what was just asked,
 * pings, settings, priorities, empty data) spend credit that time and our own data frames give back; without credit the connection ends with
 * ENHANCE_YOUR_CALM (rapid reset: CVE-2023-44487; floods: CVE-2019-9511 to 9518). A client that takes nothing of its answers for
 * write_stall_ms loses the stream (its window is shut) or the connection (its socket is).
 */
#include "http/http2_impl.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"

#include <stdlib.h>

#define STREAMS_MAX 128U
#define STREAM_WINDOW ((uint32_t) 1 << 20) /* usual prompts come without waiting for a window */
#define CONN_WINDOW ((int32_t) 4 << 20)
#define CREDIT_MAX 10000
#define CREDIT_PER_SEC 200
#define CREDIT_PER_DATA 3 /* its windows are opened by two frames */
#define COST_RESET 20
#define COST_INVALID 50
#define FRAME_HEAD_BYTES 9U /* RFC 9113 4.1 */
#define KEEP 1024U          /* of each, in a pool */

/* What all connections of a server share. */
struct bt_http2_shared {
    nghttp2_session_callbacks *callbacks;
    bt_slab_t pool, stream_pool;
    bt_http2_counts_t *counts;
};

static struct bt_http2 *h2_of(bt_stream_t *stream)
{
    return bt_container_of(stream, bt_server_conn_t, stream)->http2;
}

static bt_http2_stream_t *stream_of(nghttp2_session *session, int32_t id)
{
    return nghttp2_session_get_stream_user_data(session, id);
}

void bt_http2_wake(struct bt_http2 *h2)
{
    bt_stream_want_flush(&h2->conn->stream);
}

void bt_http2_tell(bt_http2_stream_t *s)
{
    if (bt_list_empty(&s->tell_link))
        bt_list_push(&s->h2->to_tell, &s->tell_link);
    bt_http2_watch(s->h2);
}

/* ---- the way out ---- */

static bool is_full(const struct bt_http2 *h2)
{
    return bt_stream_pending(&h2->conn->stream) > BT_STREAM_HIGH_BYTES;
}

static ssize_t on_send(nghttp2_session *session, const uint8_t *p, size_t n, int flags, void *user)
{
    struct bt_http2 *h2 = user;

    (void) session;
    (void) flags;
    if (is_full(h2))
        return NGHTTP2_ERR_WOULDBLOCK;
    if (bt_stream_write_copy(&h2->conn->stream, (const char *) p, n) < 0)
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    return (ssize_t) n;
}

static int on_send_data(nghttp2_session *session, nghttp2_frame *frame, const uint8_t *head,
                        size_t n, nghttp2_data_source *source, void *user)
{
    struct bt_http2 *h2 = user;
    bt_stream_t *stream = &h2->conn->stream;

    (void) session;
    (void) frame; /* never padded */
    if (is_full(h2))
        return NGHTTP2_ERR_WOULDBLOCK;
    if (bt_stream_write_copy(stream, (const char *) head, FRAME_HEAD_BYTES) < 0 ||
        bt_http2_stream_send(source->ptr, n) < 0)
        return NGHTTP2_ERR_CALLBACK_FAILURE;
    if (h2->credit < CREDIT_MAX)
        h2->credit += CREDIT_PER_DATA;
    return 0;
}

static bt_http2_counts_t *counts_of(const struct bt_http2 *h2)
{
    return h2->conn->x.server->http2->counts;
}

/* Whoever has asked for it: nghttp2 for what is malformed, or we. */
static void count_reset(const struct bt_http2 *h2, uint32_t code)
{
    const enum bt_http2_reset cause = code == NGHTTP2_CANCEL           ? BT_HTTP2_RESET_STALL
                                      : code == NGHTTP2_INTERNAL_ERROR ? BT_HTTP2_RESET_CUT
                                      : code == NGHTTP2_REFUSED_STREAM ? BT_HTTP2_RESET_REFUSED
                                                                       : BT_HTTP2_RESET_MALFORMED;

    if (code != NGHTTP2_NO_ERROR) /* answered: the rest of the request is not wanted */
        bt_http2_count(&counts_of(h2)->resets[cause]);
}

static void count_goaway(const struct bt_http2 *h2, uint32_t code)
{
    if (code != NGHTTP2_NO_ERROR)
        bt_http2_count(
            &counts_of(h2)
                 ->ends[code == NGHTTP2_ENHANCE_YOUR_CALM ? h2->too_much : BT_HTTP2_END_MALFORMED]);
}

/* An answer may end before its request: what is still to come is not wanted, and dropped for a while. */
static int on_frame_send(nghttp2_session *session, const nghttp2_frame *frame, void *user)
{
    const int32_t id = frame->hd.stream_id;
    const bool has_end = frame->hd.type == NGHTTP2_DATA || frame->hd.type == NGHTTP2_HEADERS;
    bt_http2_stream_t *s = stream_of(session, id);

    if (frame->hd.type == NGHTTP2_RST_STREAM)
        count_reset(user, frame->rst_stream.error_code);
    if (frame->hd.type == NGHTTP2_GOAWAY)
        count_goaway(user, frame->goaway.error_code);
    if (s == NULL || !has_end || (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) == 0)
        return 0;
    s->has_left = true;
    if (nghttp2_session_get_stream_remote_close(session, id) == 0)
        bt_http2_stream_linger(s);
    return 0;
}

static void send_all(struct bt_http2 *h2)
{
    if (nghttp2_session_send(h2->session) != 0) {
        h2->broken = true;
        bt_http2_watch(h2);
    }
}

/* ---- the way in ---- */

/* For a frame that brings nothing. */
static void spend(struct bt_http2 *h2, int cost)
{
    const uint64_t now_ms = bt_clock_event_ms(), gained = now_ms - h2->credit_ms;

    if (gained >= 100) {
        const uint64_t more = gained * CREDIT_PER_SEC / 1000;
        h2->credit = more > CREDIT_MAX || h2->credit + (int) more > CREDIT_MAX
                         ? CREDIT_MAX
                         : h2->credit + (int) more;
        h2->credit_ms = now_ms;
    }
    h2->credit -= cost;
    if (h2->credit >= 0 || nghttp2_session_want_read(h2->session) == 0)
        return;
    h2->too_much = cost == COST_RESET     ? BT_HTTP2_END_RAPID_RESET
                   : cost == COST_INVALID ? BT_HTTP2_END_MALFORMED
                                          : BT_HTTP2_END_FLOOD;
    bt_log_warn("http", "a connection of %s is closed: it sends HTTP/2 frames that bring nothing",
                h2->conn->x.peer);
    (void) nghttp2_session_terminate_session(h2->session, NGHTTP2_ENHANCE_YOUR_CALM);
}

static int on_begin_headers(nghttp2_session *session, const nghttp2_frame *frame, void *user)
{
    struct bt_http2 *h2 = user;
    bt_http2_stream_t *s;

    h2->reading_head = true;
    h2->is_idle = false;
    bt_budget_busy(bt_conn_budget(h2->conn), &h2->conn->ticket);
    bt_conn_set_deadline(h2->conn, h2->conn->x.server->config.head_timeout_ms);
    if (frame->hd.type != NGHTTP2_HEADERS || frame->headers.cat != NGHTTP2_HCAT_REQUEST)
        return 0;
    s = bt_http2_stream_new(h2, frame->hd.stream_id);
    if (s == NULL)
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    (void) nghttp2_session_set_stream_user_data(session, s->id, s);
    return 0;
}

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
                     size_t name_n, const uint8_t *value, size_t value_n, uint8_t flags, void *user)
{
    bt_http2_stream_t *s = stream_of(session, frame->hd.stream_id);

    (void) flags;
    (void) user;
    if (s != NULL && !s->is_head_done) /* nobody reads trailers of requests */
        bt_http2_stream_header(s, (bt_str_t){(const char *) name, name_n},
                               (bt_str_t){(const char *) value, value_n});
    return 0;
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *p, size_t n,
                   void *user)
{
    bt_http2_stream_t *s = stream_of(session, id);

    (void) flags;
    (void) user;
    if (s != NULL && !s->is_refused)
        bt_http2_stream_data(s, (bt_str_t){(const char *) p, n});
    return 0;
}

static void head_ended(struct bt_http2 *h2)
{
    h2->reading_head = false;
    bt_conn_set_deadline(h2->conn, 0);
}

static int on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *user)
{
    struct bt_http2 *h2 = user;
    bt_http2_stream_t *s = stream_of(session, frame->hd.stream_id);
    const bool is_last = (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;

    switch (frame->hd.type) {
    case NGHTTP2_HEADERS:
        head_ended(h2);
        if (s != NULL && !s->is_head_done)
            bt_http2_stream_head_done(s, is_last);
        else if (s != NULL && is_last)
            bt_http2_stream_whole(s);
        break;
    case NGHTTP2_DATA:
        if (s != NULL && is_last)
            bt_http2_stream_whole(s);
        else if (frame->hd.length == 0)
            spend(h2, 1);
        break;
    case NGHTTP2_RST_STREAM:
        bt_http2_count(&counts_of(h2)->resets[BT_HTTP2_RESET_CLIENT]);
        spend(h2, s == NULL || s->x.status == 0 ? COST_RESET : 1);
        break;
    default:
        spend(h2, 1);
        break;
    }
    return 0;
}

static int on_invalid_frame(nghttp2_session *session, const nghttp2_frame *frame, int rc,
                            void *user)
{
    struct bt_http2 *h2 = user;

    (void) session;
    bt_log_debug("http", "an HTTP/2 frame of type %u is malformed: %s", frame->hd.type,
                 nghttp2_strerror(rc));
    if (frame->hd.type == NGHTTP2_HEADERS)
        head_ended(h2);
    spend(h2, COST_INVALID);
    return 0;
}

static int on_stream_close(nghttp2_session *session, int32_t id, uint32_t code, void *user)
{
    bt_http2_stream_t *s = stream_of(session, id);

    (void) code;
    (void) user;
    if (s != NULL)
        bt_http2_stream_closed(s);
    return 0;
}

/* ---- between the two ---- */

static void note_idle(struct bt_http2 *h2)
{
    bt_server_conn_t *c = h2->conn;

    if (h2->is_idle || h2->stream_count > 0 || h2->reading_head)
        return;
    h2->is_idle = true;
    bt_conn_set_deadline(c, bt_conn_idle_ms(c));
    bt_budget_idle(bt_conn_budget(c), &c->ticket);
}

/* Handlers hear what has come. Any of them may end the connection. */
static void tell_handlers(struct bt_http2 *h2)
{
    bt_server_conn_t *c = h2->conn;

    while (c->state != BT_CONN_CLOSED && !bt_list_empty(&h2->ready)) {
        bt_http2_stream_t *s = bt_container_of(h2->ready.next, bt_http2_stream_t, ready_link);
        bt_list_remove(&s->ready_link);
        bt_http2_stream_handle(s);
    }
    while (c->state != BT_CONN_CLOSED && !bt_list_empty(&h2->to_tell)) {
        bt_http2_stream_t *s = bt_container_of(h2->to_tell.next, bt_http2_stream_t, tell_link);
        bt_list_remove(&s->tell_link);
        bt_http2_stream_told(s);
    }
}

/* Goes on after anything has happened: tells handlers, writes, ends what has ended. */
void bt_http2_run(struct bt_http2 *h2)
{
    bt_server_conn_t *c = h2->conn;

    tell_handlers(h2);
    if (c->state == BT_CONN_CLOSED)
        return;
    if (nghttp2_session_want_write(h2->session) != 0) {
        bt_http2_wake(h2);
        bt_http2_watch(h2);
    } else if (nghttp2_session_want_read(h2->session) == 0 && bt_stream_pending(&c->stream) == 0) {
        if (h2->stream_count > 0)
            bt_conn_gone(c);
        else
            bt_conn_retire(c);
        return;
    }
    note_idle(h2);
}

static void receive(struct bt_http2 *h2, const char *p, size_t n)
{
    const ssize_t rc = nghttp2_session_mem_recv(h2->session, (const uint8_t *) p, n);
    if (rc >= 0) {
        bt_http2_run(h2);
        return;
    }
    bt_log_debug("http", "HTTP/2: %s", nghttp2_strerror((int) rc));
    if (rc == NGHTTP2_ERR_FLOODED || rc == NGHTTP2_ERR_BAD_CLIENT_MAGIC)
        bt_http2_count(&counts_of(h2)->ends[rc == NGHTTP2_ERR_FLOODED ? BT_HTTP2_END_FLOOD
                                                                      : BT_HTTP2_END_MALFORMED]);
    bt_conn_gone(h2->conn);
}

static void on_read(bt_stream_t *stream, bt_buf_t *buf, char *p, size_t n)
{
    (void) buf;
    receive(h2_of(stream), p, n);
}

static void on_eof(bt_stream_t *stream, int rc)
{
    (void) rc;
    bt_conn_gone(h2_of(stream)->conn);
}

static void on_drain(bt_stream_t *stream)
{
    struct bt_http2 *h2 = h2_of(stream);
    bt_list_t *it, *tmp;

    bt_list_each (&h2->streams, it, tmp) {
        bt_http2_stream_t *s = bt_container_of(it, bt_http2_stream_t, link);
        if (s->is_above && s->out_bytes < BT_STREAM_LOW_BYTES)
            bt_http2_tell(s);
    }
    bt_http2_run(h2);
}

static void on_write_error(bt_stream_t *stream, int rc)
{
    (void) rc;
    bt_conn_gone(h2_of(stream)->conn);
}

static void on_sent(bt_stream_t *stream)
{
    bt_http2_run(h2_of(stream));
}

static void on_flush(bt_stream_t *stream)
{
    send_all(h2_of(stream));
}

static const bt_stream_ops_t stream_ops = {
    .on_read = on_read,
    .on_eof = on_eof,
    .on_drain = on_drain,
    .on_write_error = on_write_error,
    .on_closed = bt_conn_closed,
    .on_sent = on_sent,
    .on_flush = on_flush,
};

/* ---- life ---- */

int bt_http2_share(bt_server_t *server)
{
    struct bt_http2_shared *shared = calloc(1, sizeof(*shared));
    nghttp2_session_callbacks *cbs;

    if (shared == NULL || nghttp2_session_callbacks_new(&cbs) != 0) {
        free(shared);
        return BT_E_NOMEM;
    }
    nghttp2_session_callbacks_set_send_callback(cbs, on_send);
    nghttp2_session_callbacks_set_send_data_callback(cbs, on_send_data);
    nghttp2_session_callbacks_set_on_frame_send_callback(cbs, on_frame_send);
    nghttp2_session_callbacks_set_on_begin_headers_callback(cbs, on_begin_headers);
    nghttp2_session_callbacks_set_on_header_callback(cbs, on_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(cbs, on_data);
    nghttp2_session_callbacks_set_on_frame_recv_callback(cbs, on_frame);
    nghttp2_session_callbacks_set_on_invalid_frame_recv_callback(cbs, on_invalid_frame);
    nghttp2_session_callbacks_set_on_stream_close_callback(cbs, on_stream_close);
    shared->callbacks = cbs;
    shared->counts = bt_http2_counts_take();
    bt_slab_init(&shared->pool, sizeof(struct bt_http2), KEEP);
    bt_slab_init(&shared->stream_pool, sizeof(bt_http2_stream_t), KEEP);
    server->http2 = shared;
    return 0;
}

void bt_http2_unshare(bt_server_t *server)
{
    struct bt_http2_shared *shared = server->http2;

    if (shared == NULL)
        return;
    nghttp2_session_callbacks_del(shared->callbacks);
    bt_slab_fini(&shared->pool);
    bt_slab_fini(&shared->stream_pool);
    free(shared);
}

bt_http2_counts_t *bt_http2_counts_of(const bt_server_t *server)
{
    return server->http2->counts;
}

bt_slab_t *bt_http2_stream_pool(bt_server_t *server)
{
    return &server->http2->stream_pool;
}

enum bt_preface bt_http2_preface(bt_str_t first)
{
    const size_t n = first.n < BT_HTTP2_PREFACE_BYTES ? first.n : BT_HTTP2_PREFACE_BYTES;

    if (memcmp(first.p, NGHTTP2_CLIENT_MAGIC, n) != 0)
        return BT_PREFACE_NO;
    return n < BT_HTTP2_PREFACE_BYTES ? BT_PREFACE_MAYBE : BT_PREFACE_YES;
}

static int begin_session(struct bt_http2 *h2)
{
    static const nghttp2_settings_entry settings[] = {
        {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, STREAMS_MAX},
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, STREAM_WINDOW},
        {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, BT_HTTP_HEAD_MAX},
    };
    const struct bt_http2_shared *shared = h2->conn->x.server->http2;

    if (nghttp2_session_server_new(&h2->session, shared->callbacks, h2) != 0)
        return BT_E_NOMEM;
    if (nghttp2_submit_settings(h2->session, NGHTTP2_FLAG_NONE, settings,
                                sizeof(settings) / sizeof(settings[0])) != 0 ||
        nghttp2_session_set_local_window_size(h2->session, NGHTTP2_FLAG_NONE, 0, CONN_WINDOW) != 0)
        return BT_E_NOMEM;
    return 0;
}

void bt_http2_begin(bt_server_conn_t *c)
{
    struct bt_http2 *h2 = bt_slab_get(&c->x.server->http2->pool);
    bt_buf_t *in = c->in;
    const size_t at = c->in_at, n = bt_conn_unread(c);

    if (h2 == NULL) {
        bt_conn_close(c);
        return;
    }
    c->http2 = h2;
    h2->conn = c;
    bt_http2_count(&counts_of(h2)->connections);
    h2->credit = CREDIT_MAX;
    h2->credit_ms = bt_clock_event_ms();
    bt_list_init(&h2->streams);
    bt_list_init(&h2->ready);
    bt_list_init(&h2->to_tell);
    if (begin_session(h2) < 0) {
        bt_conn_close(c);
        return;
    }
    c->state = BT_CONN_HTTP2;
    c->stream.ops = &stream_ops;
    bt_timer_stop(&c->deadline);
    bt_timer_stop(&c->watch);
    bt_unfinished_close(&c->x.unfinished);
    bt_http2_init_timers(c);
    c->in = NULL;
    c->in_at = c->in_end = 0;
    if (c->x.server->draining)
        bt_http2_say_goodbye(h2);
    receive(h2, in->data + at, n);
    bt_buf_unref(in);
}

void bt_http2_drain(bt_server_conn_t *c)
{
    struct bt_http2 *h2 = c->http2;

    if (h2->stream_count == 0) {
        (void) nghttp2_session_terminate_session(h2->session, NGHTTP2_NO_ERROR);
    } else {
        bt_http2_say_goodbye(h2);
    }
    bt_http2_wake(h2);
}

void bt_http2_leave(bt_server_conn_t *c)
{
    bt_list_t *it, *tmp;

    bt_list_each (&c->http2->streams, it, tmp)
        bt_http2_stream_leave(bt_container_of(it, bt_http2_stream_t, link));
}

/* A handler that is told may end other exchanges, whose streams are then freed: the walk begins anew each time. */
void bt_http2_gone(bt_server_conn_t *c)
{
    struct bt_http2 *h2 = c->http2;

    while (!bt_list_empty(&h2->streams)) {
        bt_http2_stream_t *s = bt_container_of(h2->streams.next, bt_http2_stream_t, link);
        if (s->handling)
            bt_http2_stream_told(s);
        else
            bt_http2_stream_free(s);
    }
}

void bt_http2_free(bt_server_conn_t *c)
{
    struct bt_http2 *h2 = c->http2;

    while (!bt_list_empty(&h2->streams))
        bt_http2_stream_free(bt_container_of(h2->streams.next, bt_http2_stream_t, link));
    nghttp2_session_del(h2->session);
    bt_http2_count(&counts_of(h2)->connections_closed);
    bt_slab_put(&c->x.server->http2->pool, h2);
    c->http2 = NULL;
}
