/* Bodies: what they cost while they arrive, how slowly they may, and whose goes when memory is short. */
#include "http/server_util.h"

#include "base/text.h"

static bt_unfinished_t *table;

/* A server with a table, and `w` its client. */
static void start(bt_server_config_t config)
{
    bt_unfinished_loop_t *at;

    restart_with(config);
    assert_int_equal(bt_unfinished_new(&table, config.max_buffered_bytes, bt_exchange_evict), 0);
    assert_int_equal(bt_unfinished_join(table, &w.loop, &at), 0);
    bt_server_share_memory(w.server, at);
    dial();
}

static int stop(void **state)
{
    int rc = teardown(state);

    bt_unfinished_free(table);
    table = NULL;
    return rc;
}

static bt_server_config_t settings(void)
{
    bt_server_config_t config;

    bt_server_config_defaults(&config);
    return config;
}

static char *pattern(size_t n)
{
    char *p = malloc(n + 1);

    for (size_t i = 0; i < n; i++)
        p[i] = (char) ('a' + i * 7 % 23);
    p[n] = '\0';
    return p;
}

static void bodies_of_all_sizes_arrive_whole(void **state)
{
    static const size_t sizes[] = {16000,  16384,  16385,  65536,   262143, 262144,
                                   262145, 524288, 524289, 1000000, 3000001};

    start(settings());
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        char head[128], *body = pattern(sizes[i]);
        for (unsigned chunked = 0; chunked < 2; chunked++) {
            dial();
            snprintf(head, sizeof(head),
                     chunked ? "Transfer-Encoding: chunked\r\n\r\n%zx\r\n"
                             : "Content-Length: %zu\r\n\r\n",
                     sizes[i]);
            say(OK_HEAD);
            say(head);
            say_n(body, sizes[i]);
            if (chunked)
                say("\r\n0\r\n\r\n");
            UNTIL(w.len > sizes[i] && has(body + sizes[i] - 20));
            assert_int_equal(status_at(0), 200);
            assert_non_null(memmem(w.got, w.len, body, sizes[i]));
        }
        free(body);
    }
}

/* Around the size of a read buffer, and beyond it. The server reads when all has been said. */
static void what_stands_behind_a_body_is_the_next_request(void **state)
{
    static const size_t sizes[] = {16000, 16300, 16310, 16330, 16351, 16352, 16353, 20000, 60000};

    start(settings());
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        char head[128], length[32], *body = pattern(sizes[i]);
        const unsigned before = w.requests;
        bt_text_t text;
        dial();
        bt_text_init(&text);
        snprintf(head, sizeof(head), OK_HEAD "Content-Length: %zu\r\n\r\n", sizes[i]);
        bt_text_puts(&text, head);
        bt_text_puts(&text, body);
        bt_text_puts(&text, OK_HEAD "Content-Length: 3\r\n\r\nabc");
        say_n(text.data, text.len);
        bt_text_fini(&text);
        UNTIL(has("|3:abc"));
        snprintf(length, sizeof(length), "|%zu:", sizes[i]);
        assert_true(has(length));
        assert_non_null(memmem(w.got, w.len, body, sizes[i]));
        assert_int_equal(w.requests, before + 2);
        free(body);
    }
}

static void a_promise_costs_its_sender_nothing(void **state)
{
    bt_server_config_t config = settings();
    int others[8];

    config.max_buffered_bytes = (size_t) 4 << 20;
    start(config);
    for (unsigned i = 0; i < 8; i++) { /* 512 MiB are announced */
        say(OK_HEAD "Content-Length: 67108864\r\n\r\nx");
        turn(&w.loop, 4);
        others[i] = w.fd;
        w.fd = -1;
        dial();
    }
    assert_true(bt_mem_total_bytes() < (size_t) 3 << 20);
    char *body = pattern(300000);
    say(OK_HEAD "Content-Length: 300000\r\n\r\n");
    say_n(body, 300000);
    UNTIL(has(body + 300000 - 20));
    assert_int_equal(status_at(0), 200);
    free(body);
    for (unsigned i = 0; i < 8; i++)
        close(others[i]);
}

/* Bytes for w.fd until its server has no more to give. */
static void fill(size_t promised, size_t bytes)
{
    char head[128], *body = pattern(bytes);

    snprintf(head, sizeof(head), OK_HEAD "Content-Length: %zu\r\n\r\n", promised);
    say(head);
    say_n(body, bytes);
    turn(&w.loop, 8);
    free(body);
}

static void the_largest_of_the_heaviest_goes(void **state)
{
    bt_server_config_t config = settings();
    int large, small;

    config.max_buffered_bytes = (size_t) 3 << 20;
    start(config);
    fill(10 << 20, 2000000); /* has 2 MiB */
    large = w.fd;
    w.fd = -1;
    dial();
    fill(1 << 20, 300000);
    small = w.fd;
    w.fd = -1;
    dial();
    char *body = pattern(900000);
    say(OK_HEAD "Content-Length: 900000\r\n\r\n");
    say_n(body, 900000);
    UNTIL(has(body + 900000 - 20));
    assert_int_equal(status_at(0), 200);
    free(body);
    assert_int_equal(bt_unfinished_evicted(table), 1);
    hang_up();
    w.fd = large;
    UNTIL(has("\r\n\r\n"));
    assert_int_equal(status_at(0), 503);
    assert_true(has("Retry-After: 1\r\n") && has("memory is short"));
    hang_up();
    w.fd = small; /* goes on as if nothing had been */
    char *rest = pattern(1 << 20);
    say_n(rest + 300000, (1 << 20) - 300000);
    free(rest);
    UNTIL(w.len > 1 << 20);
    assert_int_equal(status_at(0), 200);
}

static void who_grows_beyond_all_others_is_refused_himself(void **state)
{
    bt_server_config_t config = settings();

    config.max_buffered_bytes = (size_t) 4 << 20;
    start(config);
    fill(60 << 20, 20 << 20);
    UNTIL(has("\r\n\r\n"));
    assert_int_equal(status_at(0), 503);
    assert_int_equal(w.requests, 0);
    UNTIL(bt_mem_total_bytes() < (size_t) 1 << 20);
    dial();
    say(OK_HEAD "Content-Length: 3\r\n\r\nabc");
    UNTIL(has("3:abc"));
}

/* Where memory is scarce, beginnings of requests count too: each holds a read buffer. */
static void beginnings_of_requests_go_too(void **state)
{
    bt_server_config_t config = settings();
    int others[64];

    config.max_buffered_bytes = (size_t) 512 << 10;
    start(config);
    for (unsigned i = 0; i < 64; i++) { /* a MiB of read buffers */
        say(OK_HEAD "X: ");
        turn(&w.loop, 4);
        others[i] = w.fd;
        w.fd = -1;
        dial();
    }
    say(OK_HEAD "Content-Length: 3\r\n\r\nabc");
    UNTIL(has("3:abc"));
    assert_true(bt_unfinished_evicted(table) > 0);
    for (unsigned i = 0; i < 64; i++)
        close(others[i]);
}

static void slow_bodies_are_408(void **state)
{
    bt_server_config_t config = settings();

    config.body_grace_ms = 50;
    config.body_min_rate = 1 << 20;
    start(config);
    say(OK_HEAD "Content-Length: 1000000\r\n\r\n");
    while (!w.eof && w.error == 0 && status_at(0) == 0) { /* far from silent */
        say("a");
        pump();
    }
    assert_int_equal(status_at(0), 408);

    config.body_min_rate = 1;
    config.body_timeout_ms = 100;
    teardown(NULL);
    bt_unfinished_free(table);
    setup(NULL);
    start(config);
    say(OK_HEAD "Transfer-Encoding: chunked\r\n\r\n");
    while (!w.eof && w.error == 0 && status_at(0) == 0) {
        say("5\r\nabcde\r\n");
        pump();
    }
    assert_int_equal(status_at(0), 408);
}

static void bodies_that_keep_the_rate_are_fine(void **state)
{
    bt_server_config_t config = settings();
    char piece[131];

    config.body_grace_ms = 0;
    config.body_min_rate = 1; /* a byte pays for a second */
    start(config);
    say(OK_HEAD "Content-Length: 30000\r\n\r\na");
    for (unsigned i = 1; i < 30000; i += 131) {
        memset(piece, 'b', sizeof(piece));
        say_n(piece, sizeof(piece));
        turn(&w.loop, 1);
    }
    UNTIL(has("30000:abbb"));
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, setup, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(bodies_of_all_sizes_arrive_whole),
        TEST(what_stands_behind_a_body_is_the_next_request),
        TEST(a_promise_costs_its_sender_nothing),
        TEST(the_largest_of_the_heaviest_goes),
        TEST(who_grows_beyond_all_others_is_refused_himself),
        TEST(beginnings_of_requests_go_too),
        TEST(slow_bodies_are_408),
        TEST(bodies_that_keep_the_rate_are_fine),
    };

    alarm(50);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
