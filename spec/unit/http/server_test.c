/* The server as a whole: counting, draining, closing, and connections that live through many requests. */
#include "http/server_util.h"

static void defaults(void **state)
{
    bt_server_config_t config;
    bt_server_config_defaults(&config);
    assert_int_equal(config.max_body_bytes, 64 << 20);
    assert_int_equal(config.max_buffered_bytes, 1 << 30);
    assert_int_equal(config.head_timeout_ms, 10000);
    assert_int_equal(config.body_stall_ms, 30000);
    assert_int_equal(config.idle_timeout_ms, 75000);
    assert_int_equal(config.write_stall_ms, 60000);
    assert_int_equal(config.refused_body_ms, 1000);
    assert_null(config.server_name);
}

static void a_connection_is_used_again(void **state)
{
    for (unsigned i = 0; i < 50; i++) {
        char text[64];
        snprintf(text, sizeof(text), "GET /%u HTTP/1.1\r\nHost: h\r\n\r\n", i);
        w.len = 0;
        say(text);
        snprintf(text, sizeof(text), "GET /%u||0:", i);
        UNTIL(has(text));
    }
    assert_int_equal(w.requests, 50);
    assert_int_equal(bt_server_connection_count(w.server), 1);
    assert_int_equal(bt_server_active_count(w.server), 0);
}

static void exchange_tells_peer_and_times(void **state)
{
    w.mode = KEEP;
    uint64_t before = bt_clock_us();
    say(OK_HEAD "Content-Length: 2\r\n\r\na");
    turn(&w.loop, 3);
    say("b");
    UNTIL(w.held != NULL);
    assert_string_equal(w.held->peer, "127.0.0.1");
    assert_true(before <= w.held->start_us && w.held->start_us <= bt_clock_us());
    assert_ptr_equal(w.held->server, w.server);
    bt_buf_t *kept = bt_buf_ref(w.held->body_buf);
    bt_str_t body = w.held->body;
    echo(w.held);
    UNTIL(has("2:ab"));
    assert_memory_equal(body.p, "ab", 2); /* the handler's reference outlives the exchange */
    bt_buf_unref(kept);
}

static void drain_closes_idle_connections_and_finishes_others(void **state)
{
    w.mode = KEEP;
    say("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    UNTIL(w.held != NULL);
    int busy = w.fd;
    w.fd = -1;
    dial();
    turn(&w.loop, 3);
    assert_int_equal(bt_server_connection_count(w.server), 2);

    bt_server_drain(w.server, false);
    UNTIL_CLOSED();
    assert_true(w.eof && w.len == 0);
    hang_up();
    TURN_UNTIL(&w.loop, bt_server_connection_count(w.server) == 1);

    w.fd = busy;
    echo(w.held);
    UNTIL_CLOSED();
    assert_true(w.eof && has("Connection: close\r\n") && has("GET /||0:"));
    hang_up();
    TURN_UNTIL(&w.loop, bt_server_connection_count(w.server) == 0);
}

/* The head had gone out before the drain began: it promises nothing, the connection closes behind the answer anyway. */
static void drain_during_an_answer_closes_behind_it(void **state)
{
    w.mode = KEEP;
    say("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    UNTIL(w.held != NULL);
    bt_exchange_start(w.held, 200, NULL, 0, BT_LENGTH_CHUNKED);
    bt_exchange_write(w.held, NULL, "x", 1);
    UNTIL(has("1\r\nx\r\n"));
    bt_server_drain(w.server, false);
    bt_exchange_end(w.held);
    UNTIL_CLOSED();
    assert_true(w.eof && has("0\r\n\r\n"));
}

/* What was accepted just before the listener closed is served once, and cannot keep the drain waiting. */
static void connections_that_come_during_a_drain(void **state)
{
    bt_server_config_t config = w.config;
    config.head_timeout_ms = 60;
    restart_with(config);
    bt_server_drain(w.server, false);
    dial();
    say("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    UNTIL_CLOSED();
    assert_true(w.eof && has("Connection: close\r\n") && has("GET /||0:"));
    dial();
    UNTIL_CLOSED();
    assert_true(w.eof && w.len == 0);
}

static void close_tells_open_exchanges(void **state)
{
    w.mode = KEEP;
    say("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    UNTIL(w.held != NULL);
    bool done = false;
    bt_server_close(w.server, on_closed, &done);
    assert_int_equal(w.gones, 1);
    TURN_UNTIL(&w.loop, done);
    UNTIL_CLOSED();
    assert_int_equal(bt_server_new(&w.server, &w.loop, &handler, NULL, NULL), 0); /* for teardown */
}

static void many_connections(void **state)
{
    enum { N = 200 };
    int fds[N];
    for (unsigned i = 0; i < N; i++) {
        w.fd = -1;
        dial();
        fds[i] = w.fd;
        say("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    }
    TURN_UNTIL(&w.loop, w.requests == N);
    for (unsigned i = 0; i < N; i++) {
        w.fd = fds[i];
        w.len = 0;
        UNTIL(has("GET /||0:"));
        hang_up();
    }
    TURN_UNTIL(&w.loop, bt_server_connection_count(w.server) <= 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),
        TEST(a_connection_is_used_again),
        TEST(exchange_tells_peer_and_times),
        TEST(drain_closes_idle_connections_and_finishes_others),
        TEST(drain_during_an_answer_closes_behind_it),
        TEST(connections_that_come_during_a_drain),
        TEST(close_tells_open_exchanges),
        TEST(many_connections),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
