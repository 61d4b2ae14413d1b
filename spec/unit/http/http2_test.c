/* HTTP/2: what is served, what handlers see of streams that end early, what is bounded. */
#include "http/http2_rig.h"

#include "http/server_impl.h"
#include "http/short_memory.h"

/* ---- served ---- */

/* What has been counted since the last look. */
static bt_http2_counts_t counted(void)
{
    static bt_http2_counts_t before;
    bt_http2_counts_t now, gained = {0};

    bt_http2_counts_sum(&now);
    gained.connections = now.connections - before.connections;
    gained.streams = now.streams - before.streams;
    for (unsigned i = 0; i < BT_HTTP2_RESETS; i++)
        gained.resets[i] = now.resets[i] - before.resets[i];
    for (unsigned i = 0; i < BT_HTTP2_ENDS; i++)
        gained.ends[i] = now.ends[i] - before.ends[i];
    before = now;
    return gained;
}

/* Nothing is open any more, and only this is counted. */
static void expect_reset(enum bt_http2_reset cause)
{
    const bt_http2_counts_t c = counted();

    for (unsigned i = 0; i < BT_HTTP2_RESETS; i++)
        assert_int_equal(c.resets[i], i == cause);
    for (unsigned i = 0; i < BT_HTTP2_ENDS; i++)
        assert_int_equal(c.ends[i], 0);
}

static void expect_ends(enum bt_http2_end cause, unsigned count)
{
    const bt_http2_counts_t c = counted();

    for (unsigned i = 0; i < BT_HTTP2_ENDS; i++)
        assert_int_equal(c.ends[i], i == cause ? count : 0);
}

static void a_request_is_an_exchange(void **state)
{
    say_head(WHOLE, 1, ASK("GET", "/a?b=1"));
    SEEN(seen.streams[1].ended);
    assert_int_equal(seen.streams[1].status, 200);
    assert_string_equal(seen.streams[1].body, "GET /a|b=1|0:");
    say_head(END_HEADERS, 3, POST ";content-length=6");
    say_frame(DATA, 0, 3, "abc", 3);
    say_frame(DATA, END_STREAM, 3, "def", 3);
    SEEN(seen.streams[3].ended);
    assert_string_equal(seen.streams[3].body, "POST /a||6:abcdef");
    assert_int_equal(seen.goaway, NEVER);
}

static void its_head_is_the_whole_answer(void **state)
{
    say_head(WHOLE, 1, ASK("HEAD", "/a"));
    SEEN(seen.streams[1].ended);
    assert_int_equal(seen.streams[1].status, 200);
    assert_int_equal(seen.streams[1].data_frames, 0);
    assert_int_equal(bt_server_active_count(w.server), 0);
}

static void http1_is_served_on_the_same_port(void **state)
{
    dial();
    say("GET /a HTTP/1.1\r\nHost: h\r\n\r\n");
    UNTIL(has("GET /a||0:"));
    assert_int_equal(status_at(0), 200);
    /* but a connection has one protocol */
    w.len = 0;
    say_n(NGHTTP2_CLIENT_MAGIC, NGHTTP2_CLIENT_MAGIC_LEN);
    UNTIL_CLOSED();
    assert_int_equal(status_at(0), 505);
}

static void it_is_not_served_where_it_is_off(void **state)
{
    bt_server_config_t config;

    bt_server_config_defaults(&config);
    restart_with(config);
    say_preface();
    UNTIL_CLOSED();
    assert_int_equal(status_at(0), 505);
}

/* A preface in pieces, its last byte with the first frames. */
static void a_preface_may_come_byte_by_byte(void **state)
{
    static const char magic[] = NGHTTP2_CLIENT_MAGIC;

    dial();
    see_nothing();
    for (size_t i = 0; i < sizeof(magic) - 1; i++)
        say_n(magic + i, 1);
    say_frame(SETTINGS, 0, 0, "", 0);
    say_head(WHOLE, 1, GET);
    SEEN(seen.streams[1].ended);
}

static void frames_may_come_byte_by_byte(void **state)
{
    char frame[512];
    size_t n;

    n = put_block(frame + 9, POST);
    n += put_head(frame, HEADERS, END_HEADERS, 1, n);
    n += put_head(frame + n, DATA, END_STREAM, 1, 2);
    frame[n++] = 'h';
    frame[n++] = 'i';
    for (size_t i = 0; i < n; i++)
        say_n(frame + i, 1);
    SEEN(seen.streams[1].ended);
    assert_string_equal(seen.streams[1].body, "POST /a||2:hi");
}

/* Bodies larger than any window arrive: windows are opened as bytes are taken. */
static void large_bodies_arrive_whole(void **state)
{
    static char piece[16384];
    const int64_t pieces = 400, n = sizeof(piece); /* 6.5 MB: over both windows */

    w.mode = KEEP;
    for (unsigned stream = 1; stream <= 3; stream += 2) {
        say_head(END_HEADERS, stream, stream == 1 ? POST : POST ";content-length=6553600");
        for (int64_t i = 0; i < pieces; i++) {
            memset(piece, (int) ('a' + i % 26), sizeof(piece));
            SEEN(seen.conn_window >= n && seen.streams[stream].window >= n);
            seen.conn_window -= n;
            seen.streams[stream].window -= n;
            say_frame(DATA, i + 1 == pieces ? END_STREAM : 0, stream, piece, sizeof(piece));
        }
        SEEN(w.held != NULL);
        assert_int_equal(w.held->body.n, pieces * n);
        for (int64_t i = 0; i < pieces; i++)
            assert_int_equal(w.held->body.p[i * n + 7], 'a' + i % 26);
        bt_exchange_respond(w.held, 200, "text/plain", BT_STR("ok"), NULL, 0);
        w.held = NULL;
        SEEN(seen.streams[stream].ended);
    }
}

static void headers_become_those_of_http1(void **state)
{
    w.mode = KEEP;
    say_head(WHOLE, 1, GET ";cookie=a;cookie=b;host=h;x-y=z");
    SEEN(w.held != NULL);
    assert_true(bt_str_eq(bt_head_get(&w.held->head, BT_STR("Cookie")), BT_STR("a; b")));
    assert_true(bt_str_eq(bt_head_get(&w.held->head, BT_STR("Host")), BT_STR("h")));
    assert_int_equal(w.held->head.header_count, 3); /* one host */
    bt_exchange_respond(w.held, 204, NULL, BT_STR(""), NULL, 0);
    w.held = NULL;
    SEEN(seen.streams[1].status == 204);
}

static void crumbs_of_cookies_are_headers_like_others(void **state)
{
    char block[16384];
    size_t n = put_block(block, GET);

    w.mode = KEEP;
    for (unsigned i = 0; i < 100; i++)
        n += put_block(block + n, i % 2 == 0 ? "cookie=ab" : "x=y");
    say_frame(HEADERS, WHOLE, 1, block, n);
    SEEN(w.held != NULL);
    assert_int_equal(w.held->head.header_count, 1 + 1 + 50);
    assert_int_equal(bt_head_get(&w.held->head, BT_STR("cookie")).n, 50 * 4 - 2);
    assert_true(bt_str_starts(bt_head_get(&w.held->head, BT_STR("cookie")), BT_STR("ab; ab; ab")));
    bt_exchange_respond(w.held, 204, NULL, BT_STR(""), NULL, 0);
    w.held = NULL;
    for (unsigned i = 0; i < 100; i++)
        n += put_block(block + n, "cookie=a");
    say_frame(HEADERS, WHOLE, 3, block, n);
    SEEN(seen.streams[3].status == 431);
}

static void continue_is_answered(void **state)
{
    say_head(END_HEADERS, 1, POST ";expect=100-continue");
    SEEN(seen.streams[1].status == 100);
    say_frame(DATA, END_STREAM, 1, "x", 1);
    SEEN(seen.streams[1].status == 200);
}

static void streams_are_answered_in_any_order(void **state)
{
    bt_exchange_t *first, *second;

    w.mode = KEEP;
    say_head(WHOLE, 1, GET);
    SEEN(w.held != NULL);
    first = w.held;
    w.held = NULL;
    say_head(WHOLE, 3, GET);
    SEEN(w.held != NULL);
    second = w.held;
    assert_int_equal(bt_server_active_count(w.server), 2);
    bt_exchange_respond(second, 200, NULL, BT_STR("2"), NULL, 0);
    SEEN(seen.streams[3].ended);
    assert_false(seen.streams[1].ended);
    bt_exchange_respond(first, 200, NULL, BT_STR("1"), NULL, 0);
    SEEN(seen.streams[1].ended);
    w.held = NULL;
}

/* Slices of one turn go out in one frame, and as they are. */
static void a_turn_is_one_frame(void **state)
{
    bt_buf_t *buf = bt_buf_new(64);

    memcpy(buf->data, "abcdef", 6);
    w.mode = KEEP;
    say_head(WHOLE, 1, GET);
    SEEN(w.held != NULL);
    bt_exchange_start(w.held, 200, NULL, 0, BT_LENGTH_CHUNKED);
    bt_exchange_write(w.held, buf, buf->data, 3);
    bt_exchange_write(w.held, buf, buf->data + 3, 3);
    SEEN(seen.streams[1].data_bytes == 6);
    assert_int_equal(seen.streams[1].data_frames, 1);
    bt_exchange_end(w.held);
    w.held = NULL;
    SEEN(seen.streams[1].ended);
    assert_int_equal(buf->refs, 1);
    bt_buf_unref(buf);
}

/* ---- ends that come early ---- */

static void a_reset_tells_the_handler_once(void **state)
{
    w.mode = KEEP;
    say_head(WHOLE, 1, GET);
    SEEN(w.held != NULL);
    (void) counted();
    say_frame(RST_STREAM, 0, 1, "\0\0\0\10", 4);
    SEEN(w.gones == 1);
    expect_reset(BT_HTTP2_RESET_CLIENT);
    assert_int_equal(bt_server_active_count(w.server), 0);
    w.mode = REPLY;
    say_head(WHOLE, 3, GET);
    SEEN(seen.streams[3].ended);
    assert_int_equal(w.gones, 1);
}

static void end_nothing(bt_exchange_t *x)
{
    (void) x;
}

static bt_exchange_t *both[2];

static void end_the_other(bt_exchange_t *x)
{
    bt_exchange_end(both[x == both[0]]);
}

/* The connection goes with two streams, and the handler of the first ends the other: one is gone, one ended, nothing twice. */
static void gone_may_end_another(void **state)
{
    w.mode = KEEP;
    for (unsigned i = 0; i < 2; i++) {
        say_head(WHOLE, 2 * i + 1, GET);
        SEEN(w.held != NULL);
        both[i] = w.held;
        w.held = NULL;
        bt_exchange_start(both[i], 200, NULL, 0, BT_LENGTH_CHUNKED);
    }
    w.on_gone = end_the_other;
    hang_up();
    TURN_UNTIL(&w.loop, bt_server_connection_count(w.server) == 0);
    assert_int_equal(w.gones, 1);
    assert_int_equal(bt_server_active_count(w.server), 0);
    w.on_gone = NULL;
}

static void an_abort_shows_that_the_answer_is_cut(void **state)
{
    w.mode = KEEP;
    say_head(WHOLE, 1, GET);
    SEEN(w.held != NULL);
    bt_exchange_start(w.held, 200, NULL, 0, BT_LENGTH_CHUNKED);
    bt_exchange_write(w.held, NULL, "abc", 3);
    (void) counted();
    bt_exchange_abort(w.held);
    w.held = NULL;
    SEEN(seen.streams[1].reset == NGHTTP2_INTERNAL_ERROR);
    expect_reset(BT_HTTP2_RESET_CUT);
    assert_string_equal(seen.streams[1].body, "abc");
    assert_false(seen.streams[1].ended);
    assert_int_equal(seen.goaway, NEVER);
}

/* Nor does one that has lost bytes, for want of memory, look like a whole one. */
static void an_answer_that_has_lost_bytes_does_not_end_well(void **state)
{
    w.mode = KEEP;
    say_head(WHOLE, 1, GET);
    SEEN(w.held != NULL);
    bt_exchange_start(w.held, 200, NULL, 0, BT_LENGTH_CHUNKED);
    is_memory_short = true;
    bt_exchange_write(w.held, NULL, "lost", 4);
    assert_false(is_memory_short);
    bt_exchange_write(w.held, NULL, "last", 4);
    bt_exchange_end(w.held);
    w.held = NULL;
    SEEN(w.eof || w.error != 0);
    assert_false(seen.streams[1].ended);
}

static void refuse_body(uint64_t dropped_ms)
{
    bt_server_config_t config;

    bt_server_config_defaults(&config);
    config.refused_body_ms = dropped_ms;
    restart_http2(config);
    w.refuse_with = 413;
    say_head(END_HEADERS, 1, POST);
}

static void another_is_served(void)
{
    w.refuse_with = 0;
    say_head(WHOLE, 3, GET);
    SEEN(seen.streams[3].ended);
    assert_int_equal(w.requests, 1);
}

/* The rest of a refused request is dropped as long as it comes soon: a reset behind the answer would be the answer to some clients. */
static void a_refused_body_is_dropped(void **state)
{
    refuse_body(600000);
    SEEN(seen.streams[1].ended);
    assert_int_equal(seen.streams[1].status, 413);
    say_frame(DATA, END_STREAM, 1, "abc", 3);
    another_is_served();
    assert_int_equal(seen.streams[1].reset, NEVER);
}

static void a_refused_body_that_does_not_come_is_reset(void **state)
{
    refuse_body(20);
    SEEN(seen.streams[1].reset == NGHTTP2_NO_ERROR);
    assert_int_equal(seen.streams[1].status, 413);
    another_is_served();
}

/* ---- back-pressure ---- */

static void drained(bt_exchange_t *x)
{
    assert_false(bt_exchange_blocked(x));
}

static void a_shut_window_blocks_its_stream_alone(void **state)
{
    static char data[65536];
    bt_exchange_t *x;

    greet_with("\0\4\0\0\0\0", 6); /* SETTINGS_INITIAL_WINDOW_SIZE 0 */
    w.mode = KEEP;
    w.on_drain = drained;
    say_head(WHOLE, 1, GET);
    SEEN(w.held != NULL);
    x = w.held;
    bt_exchange_start(x, 200, NULL, 0, BT_LENGTH_CHUNKED);
    for (unsigned i = 0; i < 2; i++)
        bt_exchange_write(x, NULL, data, sizeof(data));
    assert_true(bt_exchange_blocked(x));
    SEEN(seen.streams[1].status == 200);
    w.mode = REPLY;
    say_head(WHOLE, 3, GET);
    say_frame(WINDOW_UPDATE, 0, 3, "\0\0\1\0", 4);
    SEEN(seen.streams[3].ended);
    assert_int_equal(seen.streams[1].data_bytes, 0);
    assert_int_equal(w.drains, 0);
    say_frame(WINDOW_UPDATE, 0, 1, "\0\2\0\0", 4);
    SEEN(seen.streams[1].data_bytes > 0 &&
         seen.streams[1].data_bytes <= 65535);     /* the connection's */
    say_frame(WINDOW_UPDATE, 0, 1, "\0\0\0\1", 4); /* or nghttp2 could not say that it has ended */
    say_frame(WINDOW_UPDATE, 0, 0, "\0\2\0\0", 4);
    SEEN(seen.streams[1].data_bytes == 2 * sizeof(data) && w.drains == 1);
    bt_exchange_end(x);
    SEEN(seen.streams[1].ended);
    w.held = NULL;
}

/* Some events that came at once hold the buffer that they came in no longer than one does. */
static void small_slices_that_wait_do_not_pin_buffers(void **state)
{
    const size_t before = bt_mem_bytes(BT_MEM_BUFFERS);

    greet_with("\0\4\0\0\0\0", 6); /* SETTINGS_INITIAL_WINDOW_SIZE 0 */
    w.mode = KEEP;
    say_head(WHOLE, 1, GET);
    SEEN(w.held != NULL);
    bt_exchange_start(w.held, 200, NULL, 0, BT_LENGTH_CHUNKED);
    for (unsigned i = 0; i < 80; i++) {
        bt_buf_t *buf = bt_buf_new(BT_BUF_STD_BYTES);
        memset(buf->data, 'x', 1100);
        bt_exchange_write(w.held, buf, buf->data, 1100);
        bt_buf_unref(buf);
    }
    assert_true(bt_mem_bytes(BT_MEM_BUFFERS) - before <= 20 * BT_BUF_STD_BYTES);
    bt_exchange_end(w.held);
    w.held = NULL;
    say_frame(WINDOW_UPDATE, 0, 1, "\0\2\0\0", 4);
    say_frame(WINDOW_UPDATE, 0, 0, "\0\2\0\0", 4);
    SEEN(seen.streams[1].ended);
    assert_int_equal(seen.streams[1].data_bytes, 80 * 1100);
}

static bt_exchange_t *drained_ones[8];
static unsigned drained_count;

static void note_drained(bt_exchange_t *x)
{
    if (drained_count < 8)
        drained_ones[drained_count++] = x;
}

static bool is_drained(const bt_exchange_t *x)
{
    for (unsigned i = 0; i < drained_count; i++)
        if (drained_ones[i] == x)
            return true;
    return false;
}

/* It has written nothing, and finds the socket full of another one's bytes: whoever asks and stops is told when he may go on. */
static void who_finds_the_socket_full_is_told(void **state)
{
    bt_exchange_t *large, *small;

    w.mode = KEEP;
    w.on_drain = note_drained;
    drained_count = 0;
    say_head(WHOLE, 1, GET);
    SEEN(w.held != NULL);
    large = w.held;
    w.held = NULL;
    say_head(WHOLE, 3, GET);
    SEEN(w.held != NULL);
    small = w.held;
    bt_exchange_start(large, 200, NULL, 0, BT_LENGTH_CHUNKED);
    bt_exchange_start(small, 200, NULL, 0, BT_LENGTH_CHUNKED);
    bt_container_of(w.server->conns.next, bt_server_conn_t, link)->stream.above_high = 1;
    assert_true(bt_exchange_blocked(small));
    bt_exchange_write(large, NULL, "x", 1);
    SEEN(is_drained(small));
    bt_exchange_end(small);
    bt_exchange_end(large);
    w.held = NULL;
    SEEN(seen.streams[1].ended && seen.streams[3].ended);
}

/* The client has taken all, and its window is shut: the frame that ends the stream waits for it. */
static void an_end_that_waits_for_a_window_does_not_wait_for_ever(void **state)
{
    bt_server_config_t config;

    bt_server_config_defaults(&config);
    config.write_stall_ms = 100;
    restart_http2(config);
    greet_with("\0\4\0\0\0\3", 6);
    w.mode = KEEP;
    say_head(WHOLE, 1, GET);
    SEEN(w.held != NULL);
    bt_exchange_start(w.held, 200, NULL, 0, BT_LENGTH_CHUNKED);
    bt_exchange_write(w.held, NULL, "abc", 3);
    SEEN(seen.streams[1].data_bytes == 3);
    bt_exchange_end(w.held);
    w.held = NULL;
    SEEN(seen.streams[1].reset == NGHTTP2_CANCEL);
}

static void a_client_that_takes_nothing_loses_the_stream(void **state)
{
    bt_server_config_t config;

    bt_server_config_defaults(&config);
    config.write_stall_ms = 100;
    restart_http2(config);
    greet_with("\0\4\0\0\0\0", 6);
    w.mode = KEEP;
    say_head(WHOLE, 1, GET);
    SEEN(w.held != NULL);
    bt_exchange_start(w.held, 200, NULL, 0, BT_LENGTH_CHUNKED);
    bt_exchange_write(w.held, NULL, "abc", 3);
    (void) counted();
    SEEN(seen.streams[1].reset == NGHTTP2_CANCEL && w.gones == 1);
    expect_reset(BT_HTTP2_RESET_STALL);
    assert_int_equal(seen.goaway, NEVER);
}

/* ---- time ---- */

static bt_server_config_t quick(void)
{
    bt_server_config_t config;

    bt_server_config_defaults(&config);
    config.head_timeout_ms = config.body_stall_ms = config.idle_timeout_ms = 60;
    return config;
}

static void a_slow_head_ends_the_connection(void **state)
{
    char block[256];
    const size_t n = put_block(block, GET);

    restart_http2(quick());
    (void) counted();
    say_frame(HEADERS, END_STREAM, 1, block, n); /* no END_HEADERS */
    SEEN(seen.goaway == NGHTTP2_ENHANCE_YOUR_CALM && is_over());
    expect_ends(BT_HTTP2_END_SLOW_HEAD, 1);
}

static void a_slow_body_is_408(void **state)
{
    restart_http2(quick());
    say_head(END_HEADERS, 1, POST);
    say_frame(DATA, 0, 1, "a", 1);
    SEEN(seen.streams[1].status == 408);
}

static void an_idle_connection_is_told_and_closed(void **state)
{
    restart_http2(quick());
    SEEN(seen.goaway == NGHTTP2_NO_ERROR && is_over());
}

static void draining_takes_what_was_on_its_way(void **state)
{
    w.mode = KEEP;
    say_head(WHOLE, 1, GET);
    SEEN(w.held != NULL);
    bt_server_drain(w.server, false);
    SEEN(seen.goaway == NGHTTP2_NO_ERROR && seen.last == INT32_MAX);
    bt_exchange_respond(w.held, 200, NULL, BT_STR("1"), NULL, 0);
    w.held = NULL;
    w.mode = REPLY;
    say_head(WHOLE, 3, GET);
    SEEN(seen.streams[1].ended && seen.streams[3].ended);
    SEEN(seen.last == 3);
    SEEN(is_over());
    assert_int_equal(w.gones, 0);
}

static void who_comes_while_it_drains_is_told(void **state)
{
    dial();
    turn(&w.loop, 2);
    bt_server_drain(w.server, true);
    say_preface();
    say_frame(SETTINGS, 0, 0, "", 0);
    say_head(WHOLE, 1, GET);
    SEEN(seen.goaway == NGHTTP2_NO_ERROR && seen.streams[1].ended);
    SEEN(is_over());
}

/* ---- bounds ---- */

/* Kilobytes of head cost their sender bytes: what all streams of a connection keep is bounded, and what is answered is kept no more. */
static void heads_of_a_connection_are_bounded(void **state)
{
    char block[8192], value[4000];
    size_t n = put_block(block, GET);
    unsigned refused = 0;

    memset(value, 'v', sizeof(value));
    block[n++] = 0x40;
    n += put_string(block + n, "x", 1);
    n += put_string(block + n, value, sizeof(value));
    say_frame(HEADERS, WHOLE, 1, block, n);
    SEEN(seen.streams[1].ended);
    n = put_block(block, GET);
    memset(block + n, 0x80 | 62, 15); /* 60 KB */
    for (unsigned i = 0; i < 100; i++)
        say_frame(HEADERS, WHOLE, 3 + 2 * i, block, n + 15);
    SEEN(seen.streams[3 + 2 * 99].ended);
    w.mode = KEEP;
    w.on_gone = end_nothing;
    for (unsigned i = 100; i < 120; i++)
        say_frame(HEADERS, WHOLE, 3 + 2 * i, block, n + 15);
    SEEN(seen.streams[3 + 2 * 119].status == 503);
    for (unsigned i = 0; i < 120; i++)
        refused += seen.streams[3 + 2 * i].status == 503;
    assert_in_range(refused, 1, 4); /* 1 MiB are 17 */
    hang_up();
    TURN_UNTIL(&w.loop, bt_server_connection_count(w.server) == 0);
    w.held = NULL;
}

static void more_streams_than_told_are_refused(void **state)
{
    w.mode = KEEP;
    (void) counted();
    for (unsigned i = 0; i < 129; i++)
        say_head(END_HEADERS, 2 * i + 1, POST);
    SEEN(seen.streams[257].reset == NGHTTP2_REFUSED_STREAM);
    expect_reset(BT_HTTP2_RESET_REFUSED);
    assert_int_equal(w.heads, 128);
}

static bool is_calmed(void)
{
    see_more();
    return seen.goaway == NGHTTP2_ENHANCE_YOUR_CALM || is_over();
}

#define FLOOD(action)                                                                              \
    do {                                                                                           \
        for (unsigned i_ = 0; i_ < 40000 && !is_calmed(); i_++)                                    \
            for (unsigned j_ = 0; j_ < 50; j_++)                                                   \
                action;                                                                            \
        assert_true(seen.goaway == NGHTTP2_ENHANCE_YOUR_CALM || is_over());                        \
    } while (0)

static void floods_end_the_connection(void **state)
{
    (void) counted();
    FLOOD(say_frame(PING, 0, 0, "12345678", 8));
    greet();
    FLOOD(say_frame(SETTINGS, 0, 0, "", 0));
    greet();
    FLOOD(say_frame(PRIORITY, 0, 1, "\0\0\0\0\1", 5));
    greet();
    FLOOD(say_frame(WINDOW_UPDATE, 0, 0, "\0\0\0\1", 4));
    greet();
    say_head(END_HEADERS, 1, POST);
    FLOOD(say_frame(DATA, 0, 1, "", 0));
    assert_int_equal(w.requests, 0);
    expect_ends(BT_HTTP2_END_FLOOD, 5);
}

/* CVE-2023-44487: each request is begun and reset at once. */
static void rapid_resets_end_the_connection(void **state)
{
    unsigned id = 1;

    w.mode = KEEP;
    (void) counted();
    for (; id < STREAMS * 4 && !is_over(); id += 2) {
        char block[128];
        say_frame(HEADERS, WHOLE, id, block, put_block(block, GET));
        say_frame(RST_STREAM, 0, id, "\0\0\0\10", 4);
        if (w.held != NULL)
            SEEN(w.held == NULL || is_over());
        see();
    }
    assert_true(id < STREAMS * 4);
    assert_int_equal(w.gones, w.requests);
    assert_int_equal(bt_server_active_count(w.server), 0);
    expect_ends(BT_HTTP2_END_RAPID_RESET, 1);
}

/* Of all tests so far: what was begun was closed. */
static void counts_end_even(void **state)
{
    bt_http2_counts_t c;

    hang_up();
    TURN_UNTIL(&w.loop, bt_server_connection_count(w.server) == 0);
    bt_http2_counts_sum(&c);
    assert_true(c.connections > 30 && c.streams > 100);
    assert_int_equal(c.connections, c.connections_closed);
    assert_int_equal(c.streams, c.streams_closed);
}

/* A table entry of 4 KB that each later byte stands for: 64 KB of head from 20 bytes. */
static void a_header_bomb_is_431(void **state)
{
    char block[8192], value[4000];
    size_t n = put_block(block, GET);

    memset(value, 'v', sizeof(value));
    block[n++] = 0x40; /* literal, indexed */
    n += put_string(block + n, "x", 1);
    n += put_string(block + n, value, sizeof(value));
    memset(block + n, 0x80 | 62, 40); /* the newest entry, forty times */
    say_frame(HEADERS, WHOLE, 1, block, n + 40);
    SEEN(seen.streams[1].ended);
    assert_int_equal(seen.streams[1].status, 431);
    assert_int_equal(w.heads, 0);
}

static void too_many_headers_are_431(void **state)
{
    char block[8192];
    size_t n = put_block(block, GET);

    for (unsigned i = 0; i < 200; i++)
        n += put_block(block + n, "x=y");
    say_frame(HEADERS, WHOLE, 1, block, n);
    SEEN(seen.streams[1].status == 431);
}

/* CVE-2024-27316 and its like: a head that never ends. */
static void endless_continuations_end_the_connection(void **state)
{
    char block[256];

    say_frame(HEADERS, END_STREAM, 1, block, put_block(block, GET));
    for (unsigned i = 0; i < 4000 && !is_over(); i++) {
        say_frame(CONTINUATION, 0, 1, block, put_block(block, "x=y"));
        see_more();
    }
    assert_true(is_over());
    assert_int_equal(w.heads, 0);
}

static void a_body_over_the_limit_is_413(void **state)
{
    bt_server_config_t config;
    static char data[2000];

    bt_server_config_defaults(&config);
    config.max_body_bytes = 1000;
    restart_http2(config);
    say_head(END_HEADERS, 1, POST);
    say_frame(DATA, END_STREAM, 1, data, sizeof(data));
    SEEN(seen.streams[1].status == 413);
    say_head(END_HEADERS, 3, POST ";content-length=1001");
    SEEN(seen.streams[3].status == 413);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start_http2, stop_http2)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_request_is_an_exchange),
        TEST(its_head_is_the_whole_answer),
        TEST(http1_is_served_on_the_same_port),
        TEST(it_is_not_served_where_it_is_off),
        TEST(a_preface_may_come_byte_by_byte),
        TEST(frames_may_come_byte_by_byte),
        TEST(large_bodies_arrive_whole),
        TEST(headers_become_those_of_http1),
        TEST(crumbs_of_cookies_are_headers_like_others),
        TEST(continue_is_answered),
        TEST(streams_are_answered_in_any_order),
        TEST(a_turn_is_one_frame),
        TEST(a_reset_tells_the_handler_once),
        TEST(gone_may_end_another),
        TEST(an_abort_shows_that_the_answer_is_cut),
        TEST(an_answer_that_has_lost_bytes_does_not_end_well),
        TEST(a_refused_body_is_dropped),
        TEST(a_refused_body_that_does_not_come_is_reset),
        TEST(a_shut_window_blocks_its_stream_alone),
        TEST(small_slices_that_wait_do_not_pin_buffers),
        TEST(who_finds_the_socket_full_is_told),
        TEST(an_end_that_waits_for_a_window_does_not_wait_for_ever),
        TEST(a_client_that_takes_nothing_loses_the_stream),
        TEST(a_slow_head_ends_the_connection),
        TEST(a_slow_body_is_408),
        TEST(an_idle_connection_is_told_and_closed),
        TEST(draining_takes_what_was_on_its_way),
        TEST(who_comes_while_it_drains_is_told),
        TEST(heads_of_a_connection_are_bounded),
        TEST(more_streams_than_told_are_refused),
        TEST(floods_end_the_connection),
        TEST(rapid_resets_end_the_connection),
        TEST(counts_end_even),
        TEST(a_header_bomb_is_431),
        TEST(too_many_headers_are_431),
        TEST(endless_continuations_end_the_connection),
        TEST(a_body_over_the_limit_is_413),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
