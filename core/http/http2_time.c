/* http2_time.c - what an HTTP/2 connection waits for: its client's next request or the rest of a head (deadline), and that the client takes
 * what is written to it (watch, while anything waits).
 */
#include "http/http2_impl.h"

#include "base/clock.h"

#define WATCH_MS 1000U

static void on_deadline(bt_timer_t *timer)
{
    bt_server_conn_t *c = bt_container_of(timer, bt_server_conn_t, deadline);

    c->http2->too_much = BT_HTTP2_END_SLOW_HEAD;
    (void) nghttp2_session_terminate_session(
        c->http2->session, c->http2->reading_head ? NGHTTP2_ENHANCE_YOUR_CALM : NGHTTP2_NO_ERROR);
    bt_http2_run(c->http2);
}

/* Since when has the client taken nothing? */
static bool is_stalled(uint64_t limit_ms, uint64_t since_ms)
{
    return limit_ms > 0 && bt_clock_event_ms() - since_ms >= limit_ms;
}

static bool is_socket_stalled(struct bt_http2 *h2)
{
    const bt_stream_t *stream = &h2->conn->stream;
    const uint64_t written = bt_stream_written(stream);

    if (written != h2->stall_written || bt_stream_pending(stream) == 0) {
        h2->stall_written = written;
        h2->stall_ms = bt_clock_event_ms();
    }
    return is_stalled(h2->conn->x.server->config.write_stall_ms, h2->stall_ms);
}

/* Resets streams whose client takes nothing. True: some wait. */
static bool check_streams(struct bt_http2 *h2)
{
    const uint64_t limit_ms = h2->conn->x.server->config.write_stall_ms;
    bool waits = false;
    bt_list_t *it, *tmp;

    bt_list_each (&h2->streams, it, tmp) {
        bt_http2_stream_t *s = bt_container_of(it, bt_http2_stream_t, link);
        if (s->out_bytes == 0 && (!s->ended || s->has_left))
            continue; /* the last frame, too, may wait for a window */
        waits = true;
        if (s->is_open && is_stalled(limit_ms, s->moved_ms))
            (void) nghttp2_submit_rst_stream(h2->session, NGHTTP2_FLAG_NONE, s->id, NGHTTP2_CANCEL);
    }
    return waits;
}

static void on_watch(bt_timer_t *timer)
{
    bt_server_conn_t *c = bt_container_of(timer, bt_server_conn_t, watch);
    struct bt_http2 *h2 = c->http2;
    bool waits;

    if (h2->broken || is_socket_stalled(h2)) {
        if (!h2->broken)
            bt_http2_count(&bt_http2_counts_of(c->x.server)->ends[BT_HTTP2_END_STALL]);
        bt_stream_reset(&c->stream);
        bt_conn_gone(c);
        return;
    }
    waits = check_streams(h2);
    if (h2->noticed) {
        h2->noticed = false;
        (void) nghttp2_submit_goaway(h2->session, NGHTTP2_FLAG_NONE,
                                     nghttp2_session_get_last_proc_stream_id(h2->session),
                                     NGHTTP2_NO_ERROR, NULL, 0);
    }
    bt_http2_run(h2);
    if (c->state != BT_CONN_CLOSED && (waits || bt_stream_pending(&c->stream) > 0))
        bt_http2_watch(h2);
}

void bt_http2_watch(struct bt_http2 *h2)
{
    const uint64_t stall_ms = h2->conn->x.server->config.write_stall_ms;
    uint64_t ms = stall_ms > 0 && stall_ms / 4 < WATCH_MS ? stall_ms / 4 : WATCH_MS;

    if (!bt_timer_active(&h2->conn->watch)) {
        h2->stall_written = bt_stream_written(&h2->conn->stream);
        h2->stall_ms = bt_clock_event_ms();
    }
    if (h2->broken || !bt_list_empty(&h2->to_tell))
        ms = 0;
    else if (bt_timer_active(&h2->conn->watch))
        return;
    bt_timer_start(&h2->conn->watch, ms);
}

/* Two steps, so that what is on its way is answered: all streams, then those that have come by the next tick. */
void bt_http2_say_goodbye(struct bt_http2 *h2)
{
    (void) nghttp2_submit_shutdown_notice(h2->session);
    h2->noticed = true;
    bt_http2_watch(h2);
}

void bt_http2_init_timers(bt_server_conn_t *c)
{
    bt_timer_init(c->x.loop, &c->deadline, on_deadline);
    bt_timer_init(c->x.loop, &c->watch, on_watch);
}
