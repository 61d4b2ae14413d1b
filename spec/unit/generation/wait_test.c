/* What a hook waits for: time, and a server played by hand over loopback; every phase may end the wait, or be given up. */
#include "base/mem.h"
#include "base/pages.h"
#include "generation/wait.h"

#include "base/err.h"
#include "loop/util.h"

#include <pthread.h>
#include <stdio.h>

#define FAR_MS 30000

static bt_loop_t loop;
static const bt_wait_ctx_t room = {.loop = &loop};
static int listener, peer;
static unsigned port;
static struct seen {
    unsigned times;
    int rc;
    unsigned status;
    size_t body_n;
    char body[256], tier[64];
    bool frees, restarts;
    bt_wait_t *next;
} seen;

static int setup(void **state)
{
    struct sockaddr_storage addr;

    seen = (struct seen){.times = 0};
    listener = raw_listen(AF_INET, &addr);
    assert_true(listener >= 0);
    port = ntohs(((struct sockaddr_in *) &addr)->sin_port);
    peer = -1;
    return bt_loop_init(&loop, 0);
}

static void hang_up(void)
{
    if (peer >= 0)
        close(peer);
    peer = -1;
}

static int teardown(void **state)
{
    hang_up();
    close(listener);
    bt_loop_fini(&loop);
    bt_pages_thread_fini();
    assert_int_equal(bt_mem_bytes(BT_MEM_BUFFERS), 0);
    assert_int_equal(bt_soft_count(), 0);
    return 0;
}

static const bt_hook_op_t nap = {.kind = BT_HOOK_OP_SLEEP, .ms = 1};

static void on_done(bt_wait_t *wait, const bt_hook_answer_t *answer)
{
    assert_ptr_equal(bt_wait_user(wait), &seen);
    seen.times++;
    seen.rc = answer->rc;
    seen.status = answer->status;
    seen.body_n = answer->body.n;
    snprintf(seen.body, sizeof(seen.body), "%.*s", BT_STR_ARG(answer->body));
    if (answer->head != NULL)
        snprintf(seen.tier, sizeof(seen.tier), "%.*s",
                 BT_STR_ARG(bt_head_get(answer->head, BT_STR("X-Tier"))));
    if (seen.frees)
        bt_wait_free(&wait);
    if (seen.restarts) {
        seen.restarts = false;
        assert_int_equal(
            bt_wait_start(&seen.next, &room, &nap, bt_clock_ms() + FAR_MS, on_done, &seen), 0);
    }
}

static bt_hook_op_t call_to(const char *host, const char *target)
{
    return (bt_hook_op_t){.kind = BT_HOOK_OP_HTTP,
                          .ms = FAR_MS,
                          .method = BT_STR("GET"),
                          .host = bt_str(host),
                          .target = bt_str(target),
                          .port = port};
}

static bt_wait_t *start(const bt_hook_op_t *hook_op, uint64_t within_ms)
{
    bt_wait_t *wait = NULL;

    assert_int_equal(
        bt_wait_start(&wait, &room, hook_op, bt_clock_ms() + within_ms, on_done, &seen), 0);
    assert_non_null(wait);
    assert_int_equal(seen.times, 0); /* never from inside */
    return wait;
}

/* ---- the server ---- */

static void accept_peer(void)
{
    fcntl(listener, F_SETFL, O_NONBLOCK);
    while ((peer = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) < 0)
        turn_once(&loop);
}

/* Reads until the blank line and `body` bytes after it. */
static void hear(char *out, size_t size, size_t body)
{
    size_t n = 0;

    for (;;) {
        ssize_t got = recv(peer, out + n, size - n - 1, 0);
        const char *blank;

        n += got > 0 ? (size_t) got : 0;
        out[n] = '\0';
        blank = strstr(out, "\r\n\r\n");
        if (blank != NULL && strlen(blank + 4) >= body)
            return;
        turn_once(&loop);
    }
}

/* All of it, as far as the other side wants it. */
static void say(const char *text, size_t n)
{
    while (n > 0) {
        ssize_t sent = send(peer, text, n, MSG_NOSIGNAL);

        if (sent < 0 && errno != EAGAIN)
            return;
        text += sent > 0 ? sent : 0;
        n -= sent > 0 ? (size_t) sent : 0;
        turn_once(&loop);
    }
}

static void say_text(const char *text)
{
    say(text, strlen(text));
}

/* The connection is closed by us: the server sees the end of it. */
static void expect_hung_up(void)
{
    char byte;
    ssize_t n;

    while ((n = recv(peer, &byte, 1, 0)) != 0 && !(n < 0 && errno != EAGAIN))
        turn_once(&loop);
}

static void wait_over(void)
{
    TURN_UNTIL(&loop, seen.times == 1);
}

/* ---- time ---- */

static void sleeps(void **state)
{
    const bt_hook_op_t hook_op = {.kind = BT_HOOK_OP_SLEEP, .ms = 20};
    const uint64_t from_ms = bt_clock_ms();
    bt_wait_t *wait = start(&hook_op, FAR_MS);

    wait_over();
    assert_int_equal(seen.rc, 0);
    assert_true(bt_clock_ms() - from_ms >= 20);
    bt_wait_free(&wait);
    bt_wait_free(&wait);
    assert_null(wait);
}

static void the_deadline_ends_a_sleep(void **state)
{
    const bt_hook_op_t hook_op = {.kind = BT_HOOK_OP_SLEEP, .ms = FAR_MS};
    bt_wait_t *wait = start(&hook_op, 20);

    wait_over();
    assert_int_equal(seen.rc, BT_E_TOTAL_TIMEOUT);
    bt_wait_free(&wait);
}

static void a_deadline_that_has_passed(void **state)
{
    const bt_hook_op_t http = call_to("127.0.0.1", "/"), sleep_0 = {.kind = BT_HOOK_OP_SLEEP};
    bt_wait_t *wait = start(&sleep_0, 0);

    wait_over();
    assert_int_equal(seen.rc, BT_E_TOTAL_TIMEOUT);
    bt_wait_free(&wait);
    seen.times = 0;
    wait = start(&http, 0);
    wait_over();
    assert_int_equal(seen.rc, BT_E_TOTAL_TIMEOUT);
    bt_wait_free(&wait);
    fcntl(listener, F_SETFL, O_NONBLOCK);
    assert_int_equal(accept(listener, NULL, NULL), -1); /* nobody was called */
}

static void freed_and_started_again_from_inside(void **state)
{
    const bt_hook_op_t hook_op = {.kind = BT_HOOK_OP_SLEEP, .ms = 1};

    seen.frees = seen.restarts = true;
    (void) start(&hook_op, FAR_MS);
    TURN_UNTIL(&loop, seen.times == 2); /* the second one frees itself too */
}

static void nothing_to_wait_for(void **state)
{
    const bt_hook_op_t hook_op = {.kind = BT_HOOK_OP_NONE};
    bt_wait_t *wait = NULL;

    assert_int_equal(bt_wait_start(&wait, &room, &hook_op, bt_clock_ms() + 10, on_done, &seen),
                     BT_E_INVAL);
    assert_null(wait);
}

/* ---- calls ---- */

static void asks_and_hears(void **state)
{
    char heard[1024], expected[512];
    bt_hook_op_t hook_op = call_to("127.0.0.1", "/t?x=1");
    bt_wait_t *wait;

    hook_op.method = BT_STR("PUT");
    hook_op.body = BT_STR("hello");
    hook_op.headers[0] = (bt_header_t){BT_STR("x-a"), BT_STR("1")};
    hook_op.header_count = 1;
    wait = start(&hook_op, FAR_MS);
    memset(&hook_op, 0xa5, sizeof(hook_op)); /* it was copied */
    accept_peer();
    hear(heard, sizeof(heard), 5);
    snprintf(expected, sizeof(expected),
             "PUT /t?x=1 HTTP/1.1\r\nHost: 127.0.0.1:%u\r\nConnection: close\r\nx-a: 1\r\n"
             "Content-Length: 5\r\n\r\nhello",
             port);
    assert_string_equal(heard, expected);
    say_text("HTTP/1.1 201 Created\r\nX-Tier: gold\r\nContent-Length: 4\r\n\r\nbo");
    say_text("dy");
    wait_over();
    assert_int_equal(seen.rc, 0);
    assert_int_equal(seen.status, 201);
    assert_string_equal(seen.body, "body");
    assert_string_equal(seen.tier, "gold");
    expect_hung_up();
    bt_wait_free(&wait);
}

static void a_name_is_looked_up(void **state)
{
    char heard[1024];
    const bt_hook_op_t hook_op = call_to("localhost", "/");
    bt_wait_t *wait;

    wait = start(&hook_op, FAR_MS);
    TURN_UNTIL(&loop, seen.times == 1 || wait_readable(listener, 0));
    if (seen.times == 0) { /* where localhost is ::1 only, nobody listens */
        accept_peer();
        hear(heard, sizeof(heard), 0);
        assert_non_null(strstr(heard, "Host: localhost:"));
        say_text("HTTP/1.1 204 No Content\r\n\r\n");
        wait_over();
        assert_int_equal(seen.status, 204);
    } else {
        assert_int_equal(seen.rc, BT_E_CONNECT);
    }
    bt_wait_free(&wait);
}

/* A label of 64 mail is in no name system: nothing is sent to find that out. */
static void a_name_that_is_none(void **state)
{
    const bt_hook_op_t hook_op =
        call_to("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "/");
    bt_wait_t *wait = start(&hook_op, FAR_MS);

    wait_over();
    assert_int_equal(seen.rc, BT_E_RESOLVE);
    bt_wait_free(&wait);
}

static void nobody_listens(void **state)
{
    struct sockaddr_storage addr;
    bt_hook_op_t hook_op = call_to("127.0.0.1", "/");
    bt_wait_t *wait;
    int gone = raw_listen(AF_INET, &addr);

    hook_op.port = ntohs(((struct sockaddr_in *) &addr)->sin_port);
    close(gone);
    wait = start(&hook_op, FAR_MS);
    wait_over();
    assert_int_equal(seen.rc, BT_E_CONNECT);
    assert_int_equal(seen.status, 0);
    bt_wait_free(&wait);
}

/* Its own time, or the hook's, whichever is shorter. */
static void a_slow_server(void **state)
{
    bt_hook_op_t hook_op = call_to("127.0.0.1", "/");
    bt_wait_t *wait;

    hook_op.ms = 40;
    wait = start(&hook_op, FAR_MS);
    accept_peer();
    say_text("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf");
    wait_over();
    assert_int_equal(seen.rc, UV_ETIMEDOUT);
    assert_int_equal(seen.body_n, 0); /* half an answer is none */
    expect_hung_up();
    bt_wait_free(&wait);
    hang_up();
    seen.times = 0;
    hook_op.ms = FAR_MS;
    wait = start(&hook_op, 40);
    accept_peer();
    wait_over();
    assert_int_equal(seen.rc, BT_E_TOTAL_TIMEOUT);
    expect_hung_up();
    bt_wait_free(&wait);
}

static void an_answer_that_is_too_large(void **state)
{
    static char much[65536];
    const bt_hook_op_t hook_op = call_to("127.0.0.1", "/");
    char heard[1024];
    bt_wait_t *wait;

    memset(much, 'x', sizeof(much));
    for (int chunked = 0; chunked < 2; chunked++) {
        seen.times = 0;
        wait = start(&hook_op, FAR_MS);
        accept_peer();
        hear(heard, sizeof(heard), 0);
        say_text(chunked ? "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                         : "HTTP/1.1 200 OK\r\nContent-Length: 1048577\r\n\r\n");
        for (int i = 0; i < 20 && seen.times == 0; i++) {
            say_text(chunked ? "10000\r\n" : "");
            say(much, sizeof(much));
            say_text(chunked ? "\r\n" : "");
        }
        wait_over();
        assert_int_equal(seen.rc, BT_E_HTTP_BODY_SIZE);
        bt_wait_free(&wait);
        hang_up();
    }
}

static void an_answer_of_just_the_limit(void **state)
{
    static char much[65536];
    const bt_hook_op_t hook_op = call_to("127.0.0.1", "/");
    char heard[1024];
    bt_wait_t *wait = start(&hook_op, FAR_MS);

    memset(much, 'x', sizeof(much));
    accept_peer();
    hear(heard, sizeof(heard), 0);
    say_text("HTTP/1.1 200 OK\r\nContent-Length: 1048576\r\n\r\n");
    for (int i = 0; i < 16; i++)
        say(much, sizeof(much));
    wait_over();
    assert_int_equal(seen.rc, 0);
    assert_int_equal(seen.body_n, BT_WAIT_BODY_MAX);
    bt_wait_free(&wait);
}

static void broken_answers(void **state)
{
    static const struct {
        const char *text;
        int rc;
    } cases[] = {{"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf", BT_E_RESET},
                 {"", BT_E_RESET},
                 {"SSH-2.0-none\r\n\r\n", BT_E_UPSTREAM_HTTP}};
    const bt_hook_op_t hook_op = call_to("127.0.0.1", "/");
    char heard[1024];
    bt_wait_t *wait;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        seen.times = 0;
        wait = start(&hook_op, FAR_MS);
        accept_peer();
        hear(heard, sizeof(heard), 0);
        say_text(cases[i].text);
        hang_up();
        wait_over();
        assert_int_equal(seen.rc, cases[i].rc);
        bt_wait_free(&wait);
    }
}

static void errors_are_answers(void **state)
{
    const bt_hook_op_t hook_op = call_to("127.0.0.1", "/");
    char heard[1024];
    bt_wait_t *wait = start(&hook_op, FAR_MS);

    accept_peer();
    hear(heard, sizeof(heard), 0);
    say_text("HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n");
    wait_over();
    assert_int_equal(seen.rc, 0);
    assert_int_equal(seen.status, 503);
    bt_wait_free(&wait);
}

/* ---- giving up ---- */

static void given_up_in_every_phase(void **state)
{
    const bt_hook_op_t hook_op = call_to("127.0.0.1", "/"), name = call_to("localhost", "/"),
                       longer = {.kind = BT_HOOK_OP_SLEEP, .ms = 20};
    char heard[1024];
    bt_wait_t *wait;

    for (int phase = 0; phase < 7; phase++) {
        wait = start(phase == 0 ? &longer : phase == 1 ? &name : &hook_op, FAR_MS);
        if (phase == 3)
            turn_once(&loop); /* the number has become an address: it connects */
        if (phase >= 4)
            accept_peer();
        if (phase >= 5)
            hear(heard, sizeof(heard), 0);
        if (phase == 6)
            say_text("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf");
        bt_wait_free(&wait);
        assert_null(wait);
        if (phase >= 4)
            expect_hung_up();
        turn(&loop, 20);
        hang_up();
    }
    assert_int_equal(seen.times, 0);
}

static void the_loop_ends_under_a_lookup(void **state)
{
    const bt_hook_op_t name = call_to("localhost", "/"), number = call_to("127.0.0.1", "/");
    bt_wait_t *a = start(&name, FAR_MS), *b = start(&number, FAR_MS);

    bt_wait_free(&a);
    bt_wait_free(&b);
    assert_int_equal(seen.times, 0); /* teardown ends the loop, and ASan would see what is left */
}

static void freed_from_inside_by_every_end(void **state)
{
    static const char *const answers[] = {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx",
                                          "HTTP/1.1 200 OK\r\nContent-Length: 1048577\r\n\r\n",
                                          "garbage\r\n\r\n"};
    const bt_hook_op_t hook_op = call_to("127.0.0.1", "/");
    char heard[1024];

    seen.frees = true;
    for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
        seen.times = 0;
        (void) start(&hook_op, FAR_MS);
        accept_peer();
        hear(heard, sizeof(heard), 0);
        say_text(answers[i]);
        wait_over();
        hang_up();
    }
}

/* ---- without a loop ---- */

static void *serve_one(void *unused)
{
    char heard[1024];
    size_t n = 0;
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    static const char answer[] = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody";

    (void) unused;
    while (n < sizeof(heard) - 1) {
        ssize_t got = recv(fd, heard + n, sizeof(heard) - 1 - n, 0);
        if (got <= 0)
            break;
        n += (size_t) got;
        heard[n] = '\0';
        if (strstr(heard, "\r\n\r\n") != NULL)
            break;
    }
    (void) send(fd, answer, sizeof(answer) - 1, MSG_NOSIGNAL);
    close(fd);
    return NULL;
}

static void blocks_for_an_answer(void **state)
{
    const bt_hook_op_t hook_op = call_to("127.0.0.1", "/"),
                       sleep_20 = {.kind = BT_HOOK_OP_SLEEP, .ms = 20};
    bt_hook_answer_t answer = {.rc = 1};
    const uint64_t from_ms = bt_clock_ms();
    char *body = NULL;
    pthread_t thread;

    assert_int_equal(bt_wait_blocking(&sleep_20, from_ms + FAR_MS, &answer, &body), 0);
    assert_int_equal(answer.rc, 0);
    assert_null(body);
    assert_true(bt_clock_ms() - from_ms >= 20);
    assert_int_equal(pthread_create(&thread, NULL, serve_one, NULL), 0);
    assert_int_equal(bt_wait_blocking(&hook_op, bt_clock_ms() + FAR_MS, &answer, &body), 0);
    pthread_join(thread, NULL);
    assert_int_equal(answer.rc, 0);
    assert_int_equal(answer.status, 200);
    assert_int_equal(answer.body.n, 4);
    assert_string_equal(body, "body");
    free(body);
    body = NULL;
    /* The listener's queue takes the connection and nobody answers. */
    assert_int_equal(bt_wait_blocking(&hook_op, bt_clock_ms() + 30, &answer, &body), 0);
    assert_int_equal(answer.rc, BT_E_TOTAL_TIMEOUT);
    assert_null(body);
    assert_int_equal(bt_wait_blocking(&(bt_hook_op_t){.kind = BT_HOOK_OP_NONE}, bt_clock_ms() + 30,
                                      &answer, &body),
                     BT_E_INVAL);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(sleeps),
        TEST(the_deadline_ends_a_sleep),
        TEST(a_deadline_that_has_passed),
        TEST(freed_and_started_again_from_inside),
        TEST(nothing_to_wait_for),
        TEST(asks_and_hears),
        TEST(a_name_is_looked_up),
        TEST(a_name_that_is_none),
        TEST(nobody_listens),
        TEST(a_slow_server),
        TEST(an_answer_that_is_too_large),
        TEST(an_answer_of_just_the_limit),
        TEST(broken_answers),
        TEST(errors_are_answers),
        TEST(given_up_in_every_phase),
        TEST(the_loop_ends_under_a_lookup),
        TEST(freed_from_inside_by_every_end),
        TEST(blocks_for_an_answer),
    };

    alarm(50); /* a condition that never comes true */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
