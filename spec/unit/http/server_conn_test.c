/* Reading requests: what is refused and how, bodies in every framing, deadlines, and noticing that a client left. */
#include "base/mem.h"
#include "http/bad_heads.h"
#include "http/server_util.h"

#include "http/server_impl.h"

static bool refused_with(unsigned status)
{
    char code[32];

    snprintf(code, sizeof(code), "\"code\":%u}}", status);
    return status_at(0) == status && has("Connection: close\r\n") &&
           has("{\"error\":{\"message\":\"") && has(code) && count_text("HTTP/1.1 ") == 1 &&
           w.requests == 0 && w.heads == 0;
}

static void expect_refusal(const char *name, unsigned status)
{
    UNTIL_CLOSED();
    if (!w.eof || !refused_with(status))
        fail_msg("%s: wanted %u, got (error %d, %u requests): %s", name, status, w.error,
                 w.requests, w.got);
}

static void malformed_heads_at_once(void **state)
{
    for (size_t i = 0; i < BAD_HEADS; i++) {
        dial();
        say_n(bad_heads[i].bytes, bad_heads[i].n);
        expect_refusal(bad_heads[i].name, bad_heads[i].status);
    }
}

static void malformed_heads_byte_by_byte(void **state)
{
    for (size_t i = 0; i < BAD_HEADS; i++) {
        dial();
        for (size_t at = 0; at < bad_heads[i].n; at++) {
            say_n(bad_heads[i].bytes + at, 1);
            turn(&w.loop, 1);
        }
        expect_refusal(bad_heads[i].name, bad_heads[i].status);
    }
}

static void malformed_heads_cut_in_two_anywhere(void **state)
{
    for (size_t i = 0; i < BAD_HEADS; i++) {
        for (size_t cut = 1; cut < bad_heads[i].n; cut++) {
            dial();
            say_n(bad_heads[i].bytes, cut);
            turn(&w.loop, 2);
            say_n(bad_heads[i].bytes + cut, bad_heads[i].n - cut);
            expect_refusal(bad_heads[i].name, bad_heads[i].status);
        }
    }
}

/* The classic: what a lenient reader would take for a second request must never be served. */
static void nothing_behind_a_malformed_request_is_served(void **state)
{
    say(OK_HEAD "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
                "GET /hidden HTTP/1.1\r\nHost: h\r\n\r\n");
    expect_refusal("smuggled", 400);
}

static void too_large_heads(void **state)
{
    char *p = malloc(70000);
    memset(p, 'a', 70000);
    memcpy(p, "GET / HTTP/1.1\r\nHost: h\r\nX: ", 28);
    say_n(p, 70000);
    expect_refusal("one long header", 431);

    dial();
    say("GET / HTTP/1.1\r\nHost: h\r\n");
    for (unsigned i = 1; i < BT_HTTP_HEADERS_MAX + 1; i++)
        say("X: y\r\n");
    say("\r\n");
    expect_refusal("129 headers", 431);

    dial();
    memcpy(p + 60000, "\r\n\r\n", 4);
    say_n(p, 60004);
    UNTIL(has("GET /||0:"));
    assert_int_equal(status_at(0), 200);
    free(p);
}

static void good_requests_cut_in_two_anywhere(void **state)
{
    static const struct {
        const char *text, *answer;
    } cases[] = {
        {"GET /x?q HTTP/1.1\r\nHost: h\r\n\r\n", "GET /x|q|0:"},
        {"\r\nGET /blank HTTP/1.1\r\nHost: h\r\n\r\n", "GET /blank||0:"},
        {"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
         "GET /||0:"},
        {OK_HEAD "Content-Length: 5\r\n\r\nhello", "POST /a||5:hello"},
        {OK_HEAD "Transfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;ext=\"a "
                 "b\"\r\nlo\r\n0\r\nTrailer: x\r\n\r\n",
         "POST /a||5:hello"},
        {OK_HEAD "Transfer-Encoding: CHUNKED\r\n\r\n0000A\r\n0123456789\r\n0\r\n\r\n",
         "POST /a||10:0123456789"},
        {OK_HEAD "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "POST /a||0:"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t n = strlen(cases[i].text);
        for (size_t cut = 1; cut <= n; cut++) {
            dial();
            say_n(cases[i].text, cut);
            turn(&w.loop, 2);
            say_n(cases[i].text + cut, n - cut);
            UNTIL(has("\r\n\r\n") && has(cases[i].answer));
            assert_int_equal(status_at(0), 200);
        }
    }
}

static void malformed_chunks(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
    } cases[] = {
#define C(text) {text, sizeof(text) - 1}
        C("x\r\n"),
        C("\r\n"),
        C("-1\r\n"),
        C("+1\r\n"),
        C("0x1\r\na\r\n"),
        C("1 \r\na\r\n"),
        C(" 1\r\na\r\n"),
        C("1\na\r\n"),
        C("1\r\nab\r\n"),
        C("1\r\na\n"),
        C("1\r\na0\r\n"),
        C("1\r\na\r\r\n"),
        C("10000000000000000\r\n"),
        C("1;a\nb\r\na\r\n"),
        C("1;a\0b\r\n"),
        C("0\r\nX: y\n\r\n"),
        C("0\r\n x: y\r\n\r\n"),
        C("0\r\n\n"),
#undef C
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        dial();
        say(OK_HEAD "Transfer-Encoding: chunked\r\n\r\n");
        for (size_t at = 0; at < cases[i].n; at++) {
            say_n(cases[i].bytes + at, 1);
            turn(&w.loop, 1);
        }
        w.heads = 0;
        expect_refusal(cases[i].bytes, 400);
    }
}

static char *pattern(size_t n)
{
    char *p = malloc(n + 1);
    for (size_t i = 0; i < n; i++)
        p[i] = (char) ('a' + i * 7 % 26);
    p[n] = '\0';
    return p;
}

static void say_length_request(const char *body, size_t n)
{
    char head[128];
    snprintf(head, sizeof(head), OK_HEAD "Content-Length: %zu\r\n\r\n", n);
    say(head);
    say_n(body, n);
}

/* Sizes around the ways a body is kept: in the input buffer, or in one of its own; each twice on one connection. */
static void bodies_of_every_size_arrive_whole(void **state)
{
    static const size_t sizes[] = {1, 100, 16000, 16300, 16384, 16385, 40000, 3000000};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        char *body = pattern(sizes[i]);
        w.len = 0;
        say_length_request(body, sizes[i]);
        say_length_request(body, sizes[i]);
        char *answer = malloc(sizes[i] + 32);
        sprintf(answer, "POST /a||%zu:%s", sizes[i], body);
        UNTIL(count_text(answer) == 2);
        free(answer);
        assert_int_equal(count_text("HTTP/1.1 200 OK"), 2);
        free(body);
    }
    assert_int_equal(w.requests, 16);
    assert_int_equal(bt_server_connection_count(w.server), 1);
}

static void large_chunked_body(void **state)
{
    size_t n = 1000000, at = 0;
    char *body = pattern(n), head[32];

    say(OK_HEAD "Transfer-Encoding: chunked\r\n\r\n");
    for (size_t size = 1; at < n; size = size * 5 % 70001 + 1) {
        size_t now = size < n - at ? size : n - at;
        snprintf(head, sizeof(head), "%zx\r\n", now);
        say(head);
        say_n(body + at, now);
        say("\r\n");
        at += now;
    }
    say("0\r\n\r\n");
    UNTIL(has(body));
    assert_true(has("POST /a||1000000:"));
    free(body);
}

static void body_limit_is_answered_before_the_body_comes(void **state)
{
    bt_server_config_t config = w.config;
    config.max_body_bytes = 1000;
    restart_with(config);

    say(OK_HEAD "Content-Length: 1001\r\n\r\n");
    expect_refusal("announced", 413);

    dial();
    say(OK_HEAD "Expect: 100-continue\r\nContent-Length: 1001\r\n\r\n");
    expect_refusal("announced, expecting", 413);

    dial();
    say(OK_HEAD "Transfer-Encoding: chunked\r\n\r\n3e9\r\n");
    char *body = pattern(1001);
    say_n(body, 1001);
    UNTIL_CLOSED();
    assert_int_equal(status_at(0), 413);
    assert_int_equal(w.requests, 0);

    dial();
    body[1000] = '\0';
    say_length_request(body, 1000);
    UNTIL(has(body));
    free(body);
}

/* The client writes its whole large body before it looks: it must still get the answer, not a reset. */
static void refusal_reaches_a_client_that_goes_on_sending(void **state)
{
    bt_server_config_t config = w.config;
    config.max_body_bytes = 1000;
    restart_with(config);
    char *body = pattern(4000000);
    say_length_request(body, 4000000);
    UNTIL_CLOSED();
    assert_int_equal(w.error, 0);
    assert_int_equal(status_at(0), 413);
    free(body);
}

static void too_much_buffered_is_503_with_retry_after(void **state)
{
    bt_server_config_t config = w.config;
    config.max_buffered_bytes = 300000;
    restart_with(config);
    bt_buf_t *held = bt_buf_new(300000);
    say(OK_HEAD "Content-Length: 3\r\n\r\n");
    expect_refusal("full", 503);
    assert_true(has("Retry-After: 1\r\n"));
    bt_buf_unref(held);
    dial();
    say(OK_HEAD "Content-Length: 3\r\n\r\nabc");
    UNTIL(has("3:abc"));
}

static void unknown_expectation_is_417(void **state)
{
    say(OK_HEAD "Expect: tea\r\nContent-Length: 1\r\n\r\n");
    expect_refusal("tea", 417);
}

static void continue_comes_before_the_body_is_sent(void **state)
{
    say(OK_HEAD "Expect: 100-Continue\r\nContent-Length: 5\r\n\r\n");
    UNTIL(has("\r\n\r\n"));
    assert_string_equal(w.got, "HTTP/1.1 100 Continue\r\n\r\n");
    say("hello");
    UNTIL(has("5:hello"));
    assert_int_equal(count_text("HTTP/1.1 "), 2);

    w.len = 0; /* the body is there already: no need to ask for it */
    say(OK_HEAD "Expect: 100-continue\r\nContent-Length: 5\r\n\r\nhello");
    UNTIL(has("5:hello"));
    assert_int_equal(count_text("100 Continue"), 0);
}

static void handler_can_refuse_by_the_head(void **state)
{
    w.refuse_with = 415;
    w.refuse_reason = "no \"coded\" bodies";
    say(OK_HEAD "Content-Length: 5000\r\n\r\n");
    UNTIL_CLOSED();
    assert_int_equal(status_at(0), 415);
    assert_true(has("{\"error\":{\"message\":\"no \\\"coded\\\" "
                    "bodies\",\"type\":\"invalid_request_error\",\"code\":415}}"));
    assert_int_equal(w.heads, 1);
    assert_int_equal(w.requests, 0);
}

static void three_requests_in_one_segment(void **state)
{
    say("GET /1 HTTP/1.1\r\nHost: h\r\n\r\n" OK_HEAD "Content-Length: 2\r\n\r\nxy"
        "GET /3 HTTP/1.1\r\nHost: h\r\n\r\n");
    UNTIL(has("GET /3||0:"));
    char *first = strstr(w.got, "GET /1||0:"), *second = strstr(w.got, "POST /a||2:xy");
    assert_true(first != NULL && second > first && strstr(w.got, "GET /3||0:") > second);
    assert_int_equal(count_text("HTTP/1.1 200 OK"), 3);
}

static void pipelined_requests_wait_for_the_answer_before(void **state)
{
    w.mode = KEEP;
    say("GET /1 HTTP/1.1\r\nHost: h\r\n\r\nGET /2 HTTP/1.1\r\nHost: h\r\n\r\nGET /3 "
        "HTTP/1.1\r\nHost: h\r\n\r\n");
    for (unsigned i = 1; i <= 3; i++) {
        UNTIL(w.held != NULL);
        turn(&w.loop, 5);
        assert_int_equal(w.requests, i);
        assert_int_equal(bt_server_active_count(w.server), 1);
        bt_exchange_t *x = w.held;
        w.held = NULL;
        echo(x);
        assert_null(w.held); /* the next one never begins inside our own call */
    }
    UNTIL(has("GET /3||0:"));
    assert_int_equal(bt_server_active_count(w.server), 0);
}

static void thousands_of_pipelined_requests(void **state)
{
    static const char text[] = "GET /1 HTTP/1.1\r\nHost: h\r\n\r\n";
    for (unsigned i = 0; i < 4000; i++) {
        say(text);
        if (i % 64 == 0)
            take();
    }
    UNTIL(w.requests == 4000 && count_text("GET /1||0:") == 4000);
}

static void leaves_while_a_request_is_incomplete(void **state)
{
    static const char *const cases[] = {"", "GET / HT", OK_HEAD "Content-Length: 5\r\n\r\nhel",
                                        OK_HEAD "Content-Length: 50000\r\n\r\nhel",
                                        OK_HEAD "Transfer-Encoding: chunked\r\n\r\n5\r\nhel"};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        dial();
        say(cases[i]);
        hang_up();
        TURN_UNTIL(&w.loop, bt_server_connection_count(w.server) == 0);
    }
    assert_int_equal(w.requests + w.gones, 0);
}

static void hold_one(const char *text)
{
    w.mode = KEEP;
    w.gones = 0;
    dial();
    say(text);
    UNTIL(w.held != NULL);
}

static void expect_gone_once(void)
{
    TURN_UNTIL(&w.loop, w.gones == 1);
    TURN_UNTIL(&w.loop, bt_server_connection_count(w.server) == 0);
    turn(&w.loop, 5);
    assert_int_equal(w.gones, 1);
    assert_int_equal(bt_server_active_count(w.server), 0);
}

static void fin_reset_and_half_close_tell_gone_once(void **state)
{
    hang_up();
    TURN_UNTIL(&w.loop, bt_server_connection_count(w.server) == 0);
    hold_one("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    hang_up();
    expect_gone_once();

    hold_one("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    close_with_reset(w.fd);
    w.fd = -1;
    expect_gone_once();

    hold_one("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    shutdown(w.fd, SHUT_WR);
    expect_gone_once();

    hold_one("GET / HTTP/1.1\r\nHost: h\r\n\r\n"); /* in the middle of an answer */
    bt_exchange_start(w.held, 200, NULL, 0, BT_LENGTH_CHUNKED);
    bt_exchange_write(w.held, NULL, "data", 4);
    UNTIL(has("data"));
    close_with_reset(w.fd);
    w.fd = -1;
    expect_gone_once();
}

/* So much is pipelined that reading has stopped; the FIN stands behind bytes nobody reads. */
static void gone_is_seen_behind_unread_bytes(void **state)
{
    hang_up();
    TURN_UNTIL(&w.loop, bt_server_connection_count(w.server) == 0);
    hold_one("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    bt_server_conn_t *c = bt_conn_of(w.held);
    char *more = pattern(10000);
    while (!c->paused)
        say_n(more, 10000);
    say_n(more, 10000);
    free(more);
    turn(&w.loop, 20);
    assert_in_range(bt_conn_unread(c), BT_AHEAD_MAX, 2 * BT_AHEAD_MAX);
    assert_int_equal(w.gones, 0);
    hang_up();
    expect_gone_once();
}

static void reading_goes_on_after_a_pause(void **state)
{
    w.mode = KEEP;
    char *body = pattern(150000);
    say("GET /1 HTTP/1.1\r\nHost: h\r\n\r\n");
    UNTIL(w.held != NULL);
    bt_server_conn_t *c = bt_conn_of(w.held);
    char head[128];
    snprintf(head, sizeof(head), OK_HEAD "Content-Length: 150000\r\n\r\n");
    say(head);
    size_t sent = 0;
    while (!c->paused) {
        ssize_t n = send(w.fd, body + sent, 150000 - sent, MSG_NOSIGNAL);
        sent += n > 0 ? (size_t) n : 0;
        turn(&w.loop, 1);
    }
    w.mode = REPLY;
    bt_exchange_t *x = w.held;
    w.held = NULL;
    echo(x);
    say_n(body + sent, 150000 - sent);
    UNTIL(has(body));
    assert_int_equal(w.requests, 2);
    free(body);
}

static void slow_heads_and_bodies_are_408_and_idle_ones_close(void **state)
{
    bt_server_config_t config = w.config;
    config.head_timeout_ms = 60;
    config.body_stall_ms = 60;
    config.idle_timeout_ms = 60;
    restart_with(config);

    UNTIL_CLOSED(); /* never said a thing */
    assert_true(w.eof && w.len == 0);

    dial();
    say("GET / HTTP/1.1\r\n");
    expect_refusal("head", 408);

    dial(); /* a byte now and then does not help: the deadline is the whole head's */
    say("GET / HTTP/1.1\r\nX: ");
    while (!w.eof && w.error == 0) {
        say("a");
        pump();
    }
    assert_int_equal(status_at(0), 408);

    dial();
    say(OK_HEAD "Content-Length: 5\r\n\r\nab");
    UNTIL_CLOSED();
    assert_int_equal(status_at(0), 408);

    dial();
    say(OK_HEAD "Transfer-Encoding: chunked\r\n\r\n5\r\nab");
    UNTIL_CLOSED();
    assert_int_equal(status_at(0), 408);
    assert_int_equal(w.requests, 0);

    dial(); /* idle again after an answer */
    say("GET /1 HTTP/1.1\r\nHost: h\r\n\r\n");
    UNTIL_CLOSED();
    assert_true(w.eof && status_at(0) == 200);
}

/* The stall deadline counts from the last byte, so a slow but steady body of several deadlines' length is fine. */
static void steady_bodies_are_not_stalled(void **state)
{
    bt_server_config_t config = w.config;
    config.body_stall_ms = 100;
    restart_with(config);
    say(OK_HEAD "Content-Length: 15\r\n\r\n");
    for (unsigned i = 0; i < 15; i++) {
        for (uint64_t until = bt_clock_ms() + 20; bt_clock_ms() < until;)
            pump();
        say("x");
    }
    UNTIL(has("15:xxxxxxxxxxxxxxx"));
}

static void an_idle_connection_holds_no_buffer(void **state)
{
    say(OK_HEAD "Content-Length: 5\r\n\r\nhello");
    UNTIL(has("5:hello"));
    turn(&w.loop, 3);
    assert_int_equal(bt_mem_bytes(BT_MEM_BUFFERS), BT_BUF_STD_BYTES); /* the loop's */
    assert_int_equal(w.loop.copy_buf->refs, 1);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(malformed_heads_at_once),
        TEST(malformed_heads_byte_by_byte),
        TEST(malformed_heads_cut_in_two_anywhere),
        TEST(nothing_behind_a_malformed_request_is_served),
        TEST(too_large_heads),
        TEST(good_requests_cut_in_two_anywhere),
        TEST(malformed_chunks),
        TEST(bodies_of_every_size_arrive_whole),
        TEST(large_chunked_body),
        TEST(body_limit_is_answered_before_the_body_comes),
        TEST(refusal_reaches_a_client_that_goes_on_sending),
        TEST(too_much_buffered_is_503_with_retry_after),
        TEST(unknown_expectation_is_417),
        TEST(continue_comes_before_the_body_is_sent),
        TEST(handler_can_refuse_by_the_head),
        TEST(three_requests_in_one_segment),
        TEST(pipelined_requests_wait_for_the_answer_before),
        TEST(thousands_of_pipelined_requests),
        TEST(leaves_while_a_request_is_incomplete),
        TEST(fin_reset_and_half_close_tell_gone_once),
        TEST(gone_is_seen_behind_unread_bytes),
        TEST(reading_goes_on_after_a_pause),
        TEST(slow_heads_and_bodies_are_408_and_idle_ones_close),
        TEST(steady_bodies_are_not_stalled),
        TEST(an_idle_connection_holds_no_buffer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
