/* Writing answers: framing, what leaves together, back-pressure, breaking off. */
#include "base/mem.h"
#include "http/server_util.h"

#include "http/chunk.h"
#include "http/server_impl.h"
#include "http/short_memory.h"

static bt_exchange_t *ask(const char *text)
{
    w.mode = KEEP;
    w.held = NULL;
    w.len = 0;
    say(text);
    UNTIL(w.held != NULL);
    return w.held;
}

#define GET_1 "GET / HTTP/1.1\r\nHost: h\r\n\r\n"

static const bt_header_t type = {{"Content-Type", 12}, {"text/event-stream", 17}};

/* One recv after one turn: head, all of the turn's data under one chunk head, nothing else. */
static void head_and_first_bytes_leave_together(void **state)
{
    bt_exchange_t *x = ask(GET_1);
    bt_buf_t *buf = bt_buf_copy("world", 5);
    bt_exchange_start(x, 200, &type, 1, BT_LENGTH_CHUNKED);
    bt_exchange_write(x, NULL, "hello", 5);
    bt_exchange_write(x, buf, buf->data, buf->len);
    bt_buf_unref(buf);
    take();
    assert_int_equal(w.len, 0);
    turn(&w.loop, 1);
    char text[2048];
    ssize_t n = recv(w.fd, text, sizeof(text) - 1, 0);
    assert_true(n > 0);
    text[n] = '\0';
    assert_non_null(strstr(text, "Content-Type: text/event-stream\r\n"));
    assert_non_null(strstr(text, "Transfer-Encoding: chunked\r\n"));
    assert_non_null(strstr(text, "\r\n\r\na\r\nhelloworld\r\n"));
    assert_int_equal(x->body_sent, 10);

    bt_exchange_write(x, NULL, "x", 1);
    UNTIL(has("1\r\nx\r\n"));
    bt_exchange_write(x, NULL, "y", 1);
    bt_exchange_end(x);
    UNTIL(has("0\r\n\r\n"));
    assert_string_equal(w.got, "1\r\nx\r\n1\r\ny\r\n0\r\n\r\n");
}

static void flush_sends_within_the_turn(void **state)
{
    bt_exchange_t *x = ask(GET_1);
    bt_exchange_start(x, 200, NULL, 0, BT_LENGTH_CHUNKED);
    bt_exchange_write(x, NULL, "first", 5);
    bt_exchange_flush(x);
    struct pollfd probe = {.fd = w.fd, .events = POLLIN};
    poll(&probe, 1, 1000);
    take();
    assert_true(has("\r\n\r\n5\r\nfirst\r\n"));
    bt_exchange_end(x);
    UNTIL(has("0\r\n\r\n"));
}

static void many_slices_of_one_turn_are_split_into_few_chunks(void **state)
{
    bt_exchange_t *x = ask(GET_1);
    bt_exchange_start(x, 200, NULL, 0, BT_LENGTH_CHUNKED);
    for (unsigned i = 0; i < 3 * BT_OPEN_MAX; i++)
        bt_exchange_write(x, NULL, "ab", 2);
    bt_exchange_end(x);
    UNTIL(has("0\r\n\r\n"));
    assert_int_equal(count_text("40\r\nabab"), 3);
    assert_int_equal(count_text("ab"), 3 * BT_OPEN_MAX);
}

static void answers_have_date_server_and_length(void **state)
{
    bt_server_config_t config = w.config;
    config.server_name = "unit";
    restart_with(config);
    bt_exchange_t *x = ask(GET_1);
    bt_header_t extra[] = {{BT_STR("X-A"), BT_STR("1")}, {BT_STR("X-B"), BT_STR("2")}};
    bt_exchange_respond(x, 429, "text/plain", BT_STR("slow down"), extra, 2);
    UNTIL(has("slow down"));
    assert_int_equal(memcmp(w.got, "HTTP/1.1 429 Too Many Requests\r\nDate: ", 38), 0);
    assert_int_equal(memcmp(w.got + 38 + 25, " GMT\r\nServer: unit\r\n", 20), 0);
    assert_true(
        has("Content-Type: text/plain\r\nX-A: 1\r\nX-B: 2\r\nContent-Length: 9\r\n\r\nslow down"));
    assert_false(has("Connection:"));
}

static void a_header_cannot_smuggle_another(void **state)
{
    bt_exchange_t *x = ask(GET_1);
    bt_header_t bad[] = {{BT_STR("X-A"), BT_STR("1\r\nX-Evil: 1")},
                         {BT_STR("X\n-Evil"), BT_STR("2")},
                         {BT_STR("X-Fine"), BT_STR("3")}};
    bt_exchange_respond(x, 200, NULL, BT_STR("ok"), bad, 3);
    UNTIL(has("\r\n\r\nok"));
    assert_false(has("Evil"));
    assert_true(has("X-Fine: 3\r\n"));
}

static void large_bodies_and_heads(void **state)
{
    size_t n = 5000000;
    char *body = malloc(n + 1);
    memset(body, 'b', n);
    body[n] = '\0';
    char *value = malloc(40000);
    memset(value, 'v', 40000);
    bt_header_t header = {BT_STR("X-Long"), {value, 40000}};
    bt_exchange_t *x = ask(GET_1);
    bt_exchange_respond(x, 200, NULL, (bt_str_t){body, n}, &header, 1);
    UNTIL(has(body));
    x = ask(GET_1); /* and the connection lives on */
    bt_exchange_respond(x, 200, NULL, BT_STR("next"), NULL, 0);
    UNTIL(has("next"));
    free(body);
    free(value);
}

static void head_answers_have_no_body(void **state)
{
    bt_exchange_t *x = ask("HEAD / HTTP/1.1\r\nHost: h\r\n\r\n");
    bt_exchange_respond(x, 200, "text/plain", BT_STR("hello"), NULL, 0);
    UNTIL(has("\r\n\r\n"));
    assert_true(has("Content-Length: 5\r\n\r\n"));
    x = ask("HEAD / HTTP/1.1\r\nHost: h\r\n\r\n");
    bt_exchange_start(x, 200, NULL, 0, BT_LENGTH_CHUNKED);
    bt_exchange_write(x, NULL, "hello", 5);
    bt_exchange_end(x);
    UNTIL(has("\r\n\r\n"));
    x = ask(GET_1);
    bt_exchange_respond(x, 204, NULL, BT_STR_NULL, NULL, 0);
    UNTIL(has("\r\n\r\n"));
    assert_int_equal(status_at(0), 204);
    assert_false(has("Content-Length") || has("hello") || has("chunked"));
}

static void http_1_0(void **state)
{
    bt_exchange_t *x = ask("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    bt_exchange_respond(x, 200, NULL, BT_STR("known"), NULL, 0);
    UNTIL(has("known"));
    assert_true(has("Content-Length: 5\r\nConnection: keep-alive\r\n\r\nknown"));

    x = ask("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    bt_exchange_start(x, 200, NULL, 0, BT_LENGTH_CHUNKED);
    bt_exchange_write(x, NULL, "until ", 6);
    bt_exchange_write(x, NULL, "eof", 3);
    bt_exchange_end(x);
    UNTIL_CLOSED();
    assert_true(w.eof && has("Connection: close\r\n\r\nuntil eof") && !has("chunked"));

    dial();
    x = ask("GET / HTTP/1.0\r\n\r\n");
    bt_exchange_respond(x, 200, NULL, BT_STR("bye"), NULL, 0);
    UNTIL_CLOSED();
    assert_true(w.eof && has("Connection: close\r\n\r\nbye"));
}

static void connection_close_is_honoured(void **state)
{
    bt_exchange_t *x =
        ask("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\nGET /never HTTP/1.1\r\n");
    bt_exchange_respond(x, 200, NULL, BT_STR("bye"), NULL, 0);
    UNTIL_CLOSED();
    assert_true(w.eof && has("Connection: close\r\n") && has("bye"));
    assert_int_equal(w.requests, 1);
}

static void fixed_length_answers_are_held_to_it(void **state)
{
    bt_exchange_t *x = ask(GET_1);
    bt_exchange_start(x, 200, NULL, 0, 4);
    bt_exchange_write(x, NULL, "ab", 2);
    bt_exchange_write(x, NULL, "cdef", 4);
    bt_exchange_end(x);
    UNTIL(has("abcd"));
    assert_false(has("cde"));

    x = ask(GET_1); /* too short: the client must not take it for whole */
    bt_exchange_start(x, 200, NULL, 0, 4);
    bt_exchange_write(x, NULL, "ab", 2);
    bt_exchange_end(x);
    UNTIL_CLOSED();
    assert_true(has("\r\n\r\nab") && w.len == (size_t) (answer_body() - w.got) + 2);
}

/* The end may come in a turn of its own, with no byte left to send. */
static void end_without_a_byte_goes_on_with_the_next_request(void **state)
{
    bt_exchange_t *x = ask(GET_1);
    bt_exchange_start(x, 200, NULL, 0, 2);
    bt_exchange_write(x, NULL, "ab", 2);
    UNTIL(has("\r\n\r\nab"));
    turn(&w.loop, 3);
    bt_exchange_end(x);
    x = ask(GET_1);
    bt_exchange_respond(x, 200, NULL, BT_STR("next"), NULL, 0);
    UNTIL(has("next"));
}

static void abort_shows_that_the_answer_is_cut(void **state)
{
    bt_exchange_t *x = ask(GET_1);
    bt_exchange_start(x, 200, NULL, 0, BT_LENGTH_CHUNKED);
    bt_exchange_write(x, NULL, "event", 5);
    bt_exchange_abort(x);
    UNTIL_CLOSED();
    assert_true(w.eof && has("5\r\nevent\r\n") && !has("0\r\n\r\n"));

    dial();
    x = ask("GET / HTTP/1.0\r\n\r\n");
    bt_exchange_start(x, 200, NULL, 0, BT_LENGTH_CHUNKED);
    bt_exchange_write(x, NULL, "event", 5);
    UNTIL(has("event"));
    bt_exchange_abort(x);
    UNTIL_CLOSED();
    assert_int_equal(w.error, ECONNRESET);

    dial();
    x = ask(GET_1);
    bt_exchange_abort(x);
    UNTIL_CLOSED();
    assert_int_equal(w.len, 0);
    assert_int_equal(w.gones, 0);
    assert_int_equal(bt_server_active_count(w.server), 0);
}

/* There was no memory for one of its chunks: what is left must not look like the whole answer. */
static void an_answer_that_has_lost_a_chunk_does_not_end_well(void **state)
{
    bt_exchange_t *x = ask(GET_1);
    bt_exchange_start(x, 200, NULL, 0, BT_LENGTH_CHUNKED);
    bt_exchange_flush(x);
    bt_buf_unref(w.loop.copy_buf); /* so that another one is needed */
    w.loop.copy_buf = NULL;
    bt_exchange_write(x, NULL, "lost", 4);
    is_memory_short = true;
    bt_exchange_end(x);
    assert_false(is_memory_short);
    UNTIL_CLOSED();
    assert_false(has("lost") || has("0\r\n\r\n"));
}

/* Who answers twice gets no bytes between the chunks, where a proxy would take them for the size of one. */
static void a_whole_body_is_none_of_chunks(void **state)
{
    bt_exchange_t *x = ask(GET_1);
    bt_exchange_start(x, 200, NULL, 0, BT_LENGTH_CHUNKED);
    bt_exchange_flush(x);
    bt_exchange_respond(x, 500, "text/plain", BT_STR("ffff\r\n"), NULL, 0);
    UNTIL_CLOSED();
    assert_true(has("chunked\r\n"));
    assert_false(has("ffff") || has("0\r\n\r\n"));
}

/* ---- back-pressure ---- */

#define FLOOD_BYTES ((size_t) 50 * 1000 * 1000)

static struct {
    size_t left, slice, max_pending, max_total;
    uint64_t length;
} flood;

static void produce(bt_exchange_t *x)
{
    while (flood.left > 0 && !bt_exchange_blocked(x)) {
        bt_buf_t *buf = bt_buf_new(BT_BUF_STD_BYTES);
        size_t n = flood.slice < flood.left ? flood.slice : flood.left;
        memset(buf->data, 'z', n);
        buf->len = n;
        bt_exchange_write(x, buf, buf->data, n);
        bt_buf_unref(buf);
        flood.left -= n;
        if (bt_exchange_pending(x) > flood.max_pending)
            flood.max_pending = bt_exchange_pending(x);
        if (bt_mem_bytes(BT_MEM_BUFFERS) > flood.max_total)
            flood.max_total = bt_mem_bytes(BT_MEM_BUFFERS);
    }
    if (flood.left == 0)
        bt_exchange_end(x);
}

static void start_flood(size_t slice, uint64_t length)
{
    memset(&flood, 0, sizeof(flood));
    flood.left = FLOOD_BYTES;
    flood.slice = slice;
    w.on_drain = produce;
    bt_exchange_t *x = ask(GET_1);
    bt_exchange_start(x, 200, NULL, 0, length);
    produce(x);
}

/* Not reading: turns until the kernel takes no more. */
static void let_it_block(void)
{
    size_t left;
    do {
        left = flood.left;
        turn(&w.loop, 50);
    } while (flood.left != left);
    assert_true(flood.left > 0);
    assert_true(bt_exchange_blocked(w.held));
}

static size_t decoded_bytes(void)
{
    bt_chunk_t chunk;
    bt_str_t body = {answer_body(), 0}, data;
    size_t at = 0, sum = 0;
    int rc;

    body.n = w.len - (size_t) (body.p - w.got);
    bt_chunk_init(&chunk);
    while ((rc = bt_chunk_next(&chunk, body, &at, &data)) == BT_CHUNK_DATA)
        sum += data.n;
    assert_int_equal(rc, BT_CHUNK_END);
    assert_int_equal(at, body.n);
    return sum;
}

static void a_client_that_does_not_read_costs_little(void **state)
{
    start_flood(BT_BUF_STD_BYTES, BT_LENGTH_CHUNKED);
    let_it_block();
    assert_in_range(flood.max_pending, BT_STREAM_HIGH_BYTES, 256 * 1024);
    assert_in_range(flood.max_total, 0, 512 * 1024);
    UNTIL(flood.left == 0 && w.len > FLOOD_BYTES && memcmp(w.got + w.len - 5, "0\r\n\r\n", 5) == 0);
    assert_in_range(flood.max_pending, BT_STREAM_HIGH_BYTES, 256 * 1024);
    assert_int_equal(decoded_bytes(), FLOOD_BYTES);
    assert_true(w.drains > 0);
}

static void fixed_length_flood_arrives_whole(void **state)
{
    start_flood(BT_BUF_STD_BYTES, FLOOD_BYTES);
    let_it_block();
    UNTIL(w.len > FLOOD_BYTES);
    turn(&w.loop, 5);
    take();
    assert_int_equal(w.len - (size_t) (answer_body() - w.got), FLOOD_BYTES);
}

/* 160 byte events, each the only user of a 16 KiB buffer: what waits must not hold them all. */
static void small_events_do_not_hold_large_buffers(void **state)
{
    start_flood(160, BT_LENGTH_CHUNKED);
    flood.left = 12 * 1000 * 1000;
    for (uint64_t until = bt_clock_ms() + 20000;
         !bt_exchange_blocked(w.held) || bt_exchange_pending(w.held) == 0;) {
        turn(&w.loop, 1);
        assert_true(bt_clock_ms() < until);
    }
    size_t before = 0;
    while (flood.left != before) {
        before = flood.left;
        turn(&w.loop, 50);
    }
    /* All is stuck. One more turn of single events: */
    size_t held = bt_mem_bytes(BT_MEM_BUFFERS);
    for (unsigned i = 0; i < 200; i++) {
        bt_buf_t *buf = bt_buf_new(BT_BUF_STD_BYTES);
        memset(buf->data, 'z', 160);
        bt_exchange_write(w.held, buf, buf->data, 160);
        bt_buf_unref(buf);
    }
    assert_in_range(bt_mem_bytes(BT_MEM_BUFFERS), held, held + 5 * BT_BUF_STD_BYTES);
    hang_up();
    TURN_UNTIL(&w.loop, w.gones == 1);
}

static void a_client_that_never_reads_is_reset(void **state)
{
    bt_server_config_t config = w.config;
    config.write_stall_ms = 100;
    restart_with(config);
    start_flood(BT_BUF_STD_BYTES, BT_LENGTH_CHUNKED);
    TURN_UNTIL(&w.loop, w.gones == 1);
    TURN_UNTIL(&w.loop, bt_server_connection_count(w.server) == 0);
    UNTIL_CLOSED();
    assert_int_equal(w.error, ECONNRESET);
    assert_int_equal(w.gones, 1);

    dial(); /* also when the handler has ended its answer */
    char *body = calloc(1, 20000000);
    bt_exchange_t *x = ask(GET_1);
    bt_exchange_respond(x, 200, NULL, (bt_str_t){body, 20000000}, NULL, 0);
    free(body);
    TURN_UNTIL(&w.loop, bt_server_connection_count(w.server) == 0);
    assert_int_equal(w.gones, 1);
}

/* Slow is not stalled: a client that takes a little within each deadline gets everything. */
static void a_slow_client_gets_everything(void **state)
{
    bt_server_config_t config = w.config;
    config.write_stall_ms = 400;
    restart_with(config);
    size_t n = 12000000, got = 0;
    char *body = calloc(1, n), *piece = malloc(1 << 20);
    bt_exchange_t *x = ask(GET_1);
    bt_exchange_respond(x, 200, NULL, (bt_str_t){body, n}, NULL, 0);
    while (got < n) {
        ssize_t now = recv(w.fd, piece, 1 << 20, 0);
        assert_true(now > 0 || (now < 0 && errno == EAGAIN));
        got += now > 0 ? (size_t) now : 0;
        for (uint64_t until = bt_clock_ms() + 60; bt_clock_ms() < until;)
            turn(&w.loop, 1);
    }
    free(body);
    free(piece);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(head_and_first_bytes_leave_together),
        TEST(flush_sends_within_the_turn),
        TEST(many_slices_of_one_turn_are_split_into_few_chunks),
        TEST(answers_have_date_server_and_length),
        TEST(a_header_cannot_smuggle_another),
        TEST(large_bodies_and_heads),
        TEST(head_answers_have_no_body),
        TEST(http_1_0),
        TEST(connection_close_is_honoured),
        TEST(fixed_length_answers_are_held_to_it),
        TEST(end_without_a_byte_goes_on_with_the_next_request),
        TEST(abort_shows_that_the_answer_is_cut),
        TEST(an_answer_that_has_lost_a_chunk_does_not_end_well),
        TEST(a_whole_body_is_none_of_chunks),
        TEST(a_client_that_does_not_read_costs_little),
        TEST(fixed_length_flood_arrives_whole),
        TEST(small_events_do_not_hold_large_buffers),
        TEST(a_client_that_never_reads_is_reset),
        TEST(a_slow_client_gets_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
