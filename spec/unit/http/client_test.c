/* Calls: answers, failures, deadlines, retries, cancelling, pausing; the worker is played by hand. */
#include "base/mem.h"
#include "http/client_impl.h"
#include "http/client_rig.h"

#include <sys/resource.h>

#define OK_HEAD "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"

/* ---- answers ---- */

static void test_answer_fills_the_call(void **state)
{
    rig_call_t c = {0};

    int fd = start_and_read(&c);
    worker_write(fd, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 429 Slow Down\r\nRetry-After: "
                     "7\r\nContent-Length: 5\r\n\r\n");
    pump_until(c.heads == 1);
    assert_int_equal(c.status, 429);
    assert_true(bt_str_eq(bt_head_get(c.call->head, BT_STR("retry-after")), BT_STR("7")));
    worker_write(fd, "hello");
    pump_until(c.ends == 1);
    assert_int_equal(c.body_len, 5);
    assert_memory_equal(c.body, "hello", 5);
    assert_int_equal(c.last.body_bytes, 5);
    assert_true(c.last.any_byte_sent);
    assert_false(c.last.reused);
    assert_true(c.last.start_us <= c.last.sent_us && c.last.sent_us <= c.last.first_byte_us);
    assert_true(c.last.first_byte_us > 0 && c.last.sent_us > 0);
    assert_int_equal(bt_upstream_idle_count(rig.up), 1);
    close(fd);
    rig_drop(&c);
}

static void test_chunked_byte_by_byte(void **state)
{
    static const char wire[] = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                               "3\r\nhel\r\n2;x\r\nlo\r\n0\r\nT: 1\r\n\r\n";
    rig_call_t c = {0};

    int fd = start_and_read(&c);
    for (size_t i = 0; i + 1 < sizeof(wire); i++) {
        assert_int_equal(c.ends, 0);
        assert_int_equal(send(fd, wire + i, 1, MSG_NOSIGNAL), 1);
        pump();
    }
    pump_until(c.ends == 1);
    assert_int_equal(c.body_len, 5);
    assert_memory_equal(c.body, "hello", 5);
    assert_int_equal(bt_upstream_idle_count(rig.up), 1);
    close(fd);
    rig_drop(&c);
}

static void test_answer_until_eof(void **state)
{
    rig_call_t c = {0};

    int fd = start_and_read(&c);
    worker_write(fd, "HTTP/1.0 200 OK\r\n\r\nall of it");
    pump_until(c.body_len == 9);
    assert_int_equal(c.ends, 0);
    close(fd);
    pump_until(c.ends == 1);
    assert_int_equal(bt_upstream_idle_count(rig.up), 0);

    fd = start_and_read(&c);
    worker_write(fd, "HTTP/1.0 200 OK\r\n\r\nhalf");
    pump_until(c.body_len == 4);
    worker_reset(fd);
    pump_until(c.fails == 1);
    assert_int_equal(c.rc, BT_E_RESET);
    rig_drop(&c);
}

static void test_head_request_has_no_body(void **state)
{
    const struct bt_slice head[] = {{"HE", 2, NULL},
                                    {"AD / HTTP/1.1\r\nHost: w\r\n\r\n", 26, NULL}};
    rig_call_t c = {0};

    rig_start_with(&c, head, 2, NULL);
    int fd = worker_accept();
    worker_read(fd, "\r\n\r\n");
    worker_write(fd, "HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n");
    pump_until(c.ends == 1);
    assert_true(c.last.head_request);
    assert_int_equal(c.body_len, 0);
    assert_int_equal(bt_upstream_idle_count(rig.up), 1);
    close(fd);
    rig_drop(&c);
}

static void test_connection_is_not_kept(void **state)
{
    static const char *const answers[] = {
        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok?", /* a byte too many */
    };

    for (size_t i = 0; i < 3; i++) {
        rig_call_t c = {0};
        int fd = start_and_read(&c);
        worker_write(fd, answers[i]);
        pump_until(c.ends == 1);
        assert_int_equal(c.body_len, 2);
        assert_int_equal(bt_upstream_idle_count(rig.up), 0);
        pump_until(client_has_left(fd));
        close(fd);
        rig_drop(&c);
    }
}

/* ---- requests that do not fit into the socket ---- */

static bt_buf_t *big_buf(size_t n)
{
    bt_buf_t *buf = bt_buf_new(n);

    memset(buf->data, 'u', n);
    buf->len = n;
    return buf;
}

static void start_upload(rig_call_t *c, struct bt_slice *request, bt_buf_t *body,
                         const bt_call_timeouts_t *timeouts)
{
    request[0] = (struct bt_slice){"POST / HTTP/1.1\r\nHost: w\r\nContent-Length: 33554432\r\n\r\n",
                                   54, NULL};
    request[1] = (struct bt_slice){body->data, body->len, body};
    rig_start_with(c, request, 2, timeouts);
}

static void test_early_answer(void **state)
{
    struct bt_slice request[2];
    rig_call_t c = {0};

    start_upload(&c, request, big_buf(32 << 20), NULL);
    int fd = worker_accept();
    for (int i = 0; i < 50; i++)
        pump();
    assert_true(c.call->sent_us == 0);
    worker_write(fd, "HTTP/1.1 413 Too Large\r\nContent-Length: 5\r\n\r\nlarge");
    pump_until(c.ends == 1);
    assert_int_equal(c.status, 413);
    assert_true(c.last.any_byte_sent);
    assert_true(c.last.sent_us == 0);
    assert_int_equal(bt_upstream_idle_count(rig.up), 0);
    close(fd);
    bt_buf_unref(request[1].owner);
    rig_drop(&c);
}

static void test_answer_before_reset_of_an_upload(void **state)
{
    struct bt_slice request[2];
    rig_call_t c = {0};

    start_upload(&c, request, big_buf(32 << 20), NULL);
    int fd = worker_accept();
    pump_until(c.call->sent_us == 0 && recv(fd, (char[1]){0}, 1, MSG_PEEK) == 1);
    worker_write(fd, "HTTP/1.1 413 Too Large\r\nContent-Length: 5\r\n\r\nlarge");
    close(fd); /* unread bytes: RST, and the client's next write fails */
    pump_until(c.ends + c.fails == 1);
    assert_int_equal(c.ends, 1);
    assert_int_equal(c.status, 413);
    bt_buf_unref(request[1].owner);
    rig_drop(&c);
}

static void test_upload_that_nobody_reads_stalls(void **state)
{
    struct bt_slice request[2];
    bt_call_timeouts_t timeouts = {.stall_ms = 80};
    rig_call_t c = {0};

    start_upload(&c, request, big_buf(32 << 20), &timeouts);
    int fd = worker_accept();
    pump_until(c.fails == 1);
    assert_int_equal(c.rc, BT_E_STALL);
    assert_true(c.last.any_byte_sent);
    assert_true(c.last.sent_us == 0);
    close(fd);
    bt_buf_unref(request[1].owner);
    rig_drop(&c);
}

/* Sending takes several times the stall deadline, but there is progress in each of them. */
static void test_slow_upload_goes_on(void **state)
{
    static char drop[512 << 10];
    struct bt_slice request[2];
    bt_call_timeouts_t timeouts = {.stall_ms = 300, .first_byte_ms = 10000};
    rig_call_t c = {0};
    size_t left = 54 + (32 << 20);

    start_upload(&c, request, big_buf(32 << 20), &timeouts);
    int fd = worker_accept();
    while (left > 0) {
        ssize_t got = read(fd, drop, sizeof(drop));
        left -= got > 0 ? (size_t) got : 0;
        uint64_t until_us = bt_clock_us() + 20000;
        pump_until(bt_clock_us() > until_us);
        assert_int_equal(c.fails, 0);
    }
    pump_until(c.call->sent_us > 0);
    assert_true(c.call->sent_us - c.call->start_us > 400000);
    worker_write(fd, OK_HEAD "hello");
    pump_until(c.ends == 1);
    assert_int_equal(bt_upstream_idle_count(rig.up), 1);
    close(fd);
    bt_buf_unref(request[1].owner);
    rig_drop(&c);
}

/* ---- failures ---- */

static void test_truncated_and_malformed(void **state)
{
    static const struct {
        const char *wire;
        int rc;
    } cases[] = {
        {"", BT_E_RESET},
        {"HTTP/1.1 2", BT_E_RESET},
        {OK_HEAD, BT_E_RESET},
        {OK_HEAD "hell", BT_E_RESET},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", BT_E_RESET},
        {"SSH-2.0-OpenSSH\r\n", BT_E_UPSTREAM_HTTP},
        {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nhello\r\n", BT_E_UPSTREAM_HTTP},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        rig_call_t c = {0};
        int fd = start_and_read(&c);
        worker_write(fd, cases[i].wire);
        shutdown(fd, SHUT_WR);
        pump_until(c.fails == 1);
        assert_int_equal(c.rc, cases[i].rc);
        assert_true(c.last.any_byte_sent);
        assert_false(c.last.retried);
        assert_int_equal(bt_upstream_idle_count(rig.up), 0);
        assert_true(nobody_waits());
        close(fd);
        rig_drop(&c);
    }
}

static void test_connect_refused(void **state)
{
    rig_call_t c = {0};

    close(rig.listener);
    rig_start(&c);
    pump_until(c.fails == 1);
    assert_int_equal(c.rc, BT_E_CONNECT);
    assert_false(c.last.any_byte_sent);
    assert_int_equal(bt_upstream_active_count(rig.up), 0);
    rig.listener = rig_listen(&rig.addr, 4);
    rig_drop(&c);
}

/* No descriptor left: the connect call itself fails, and still the failure comes from the loop, under its own code. */
static void test_own_shortage_is_told_from_the_loop(void **state)
{
    struct rlimit old, none;
    rig_call_t c = {0};
    int next = dup(0);

    close(next);
    getrlimit(RLIMIT_NOFILE, &old);
    none = (struct rlimit){(rlim_t) next, old.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
    rig_start(&c);
    setrlimit(RLIMIT_NOFILE, &old);
    pump_until(c.fails == 1);
    assert_int_equal(c.rc, BT_E_DESCRIPTORS);
    assert_false(c.last.any_byte_sent);
    rig_drop(&c);
}

/* ---- deadlines ---- */

#define FILLERS 8

/* Connections until the listener's queue is full and one more would wait. */
static void fill_backlog(const struct sockaddr_in *addr, int *fds)
{
    for (int i = 0; i < FILLERS; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        connect(fds[i], (const struct sockaddr *) addr, sizeof(*addr));
    }
}

static void use_full_listener(int *fds)
{
    close(rig.listener);
    rig.listener = rig_listen(&rig.addr, 0);
    fill_backlog(&rig.addr, fds);
    rig_use(NULL);
}

static void test_connect_timeout(void **state)
{
    int fds[FILLERS];
    rig_call_t c = {0};

    use_full_listener(fds);
    rig_start_timed(
        &c, (bt_call_timeouts_t){.connect_ms = 60, .first_byte_ms = 5000, .total_ms = 10000});
    uint64_t since_us = bt_clock_us();
    pump_until(c.fails == 1);
    assert_int_equal(c.rc, BT_E_CONNECT_TIMEOUT);
    assert_true(bt_clock_us() - since_us >= 50000);
    assert_false(c.last.any_byte_sent);
    for (int i = 0; i < FILLERS; i++)
        close(fds[i]);
    rig_drop(&c);
}

/* What the worker says before it falls silent, and the deadline that ends it. */
static void expect_deadline(const char *said, bt_call_timeouts_t timeouts, int rc)
{
    rig_call_t c = {0};

    rig_start_timed(&c, timeouts);
    uint64_t since_us = bt_clock_us();
    int fd = worker_accept();
    worker_read(fd, "\r\n\r\n");
    worker_write(fd, said);
    pump_until(c.fails == 1);
    assert_int_equal(c.rc, rc);
    assert_true(bt_clock_us() - since_us >= 50000);
    pump_until(client_has_left(fd));
    close(fd);
    rig_drop(&c);
}

static void test_deadlines(void **state)
{
    const bt_call_timeouts_t first = {
        .connect_ms = 5000, .first_byte_ms = 60, .stall_ms = 9000, .total_ms = 9000};
    const bt_call_timeouts_t stall = {
        .connect_ms = 5000, .first_byte_ms = 9000, .stall_ms = 60, .total_ms = 9000};
    const bt_call_timeouts_t total = {
        .connect_ms = 5000, .first_byte_ms = 9000, .stall_ms = 9000, .total_ms = 60};
    const bt_call_timeouts_t stall_only = {.stall_ms = 60};

    expect_deadline("", first, BT_E_FIRST_BYTE_TIMEOUT);
    expect_deadline("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1", first, BT_E_FIRST_BYTE_TIMEOUT);
    expect_deadline(OK_HEAD, first,
                    BT_E_FIRST_BYTE_TIMEOUT); /* engines send the head at once: it says nothing */
    expect_deadline(OK_HEAD "hel", stall, BT_E_STALL);
    expect_deadline(OK_HEAD, stall_only, BT_E_STALL);
    expect_deadline("HTTP/1.1 2", stall_only, BT_E_STALL);
    expect_deadline("", total, BT_E_TOTAL_TIMEOUT);
    expect_deadline(OK_HEAD "hel", total, BT_E_TOTAL_TIMEOUT);
}

static void test_trickle_outlives_the_stall_deadline(void **state)
{
    rig_call_t c = {0};

    rig_start_timed(&c, (bt_call_timeouts_t){.first_byte_ms = 400, .stall_ms = 400});
    int fd = worker_accept();
    worker_read(fd, "\r\n\r\n");
    uint64_t since_us = bt_clock_us();
    worker_write(fd, "HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n");
    for (int i = 0; i < 30; i++) {
        worker_write(fd, ".");
        uint64_t until_us = bt_clock_us() + 20000;
        pump_until(bt_clock_us() > until_us);
    }
    pump_until(c.ends + c.fails == 1);
    assert_true(bt_clock_us() - since_us > 400000);
    assert_int_equal(c.ends, 1);
    close(fd);
    rig_drop(&c);
}

/* The gateway's process was stopped, the worker was not. */
static void test_nobody_is_silent_while_we_stand_still(void **state)
{
    rig_call_t c = {0};

    rig_start_timed(&c, (bt_call_timeouts_t){.first_byte_ms = 200});
    int fd = worker_accept();
    worker_read(fd, "\r\n\r\n");
    worker_write(fd, OK_HEAD "hello");
    usleep(500000);
    pump_until(c.ends + c.fails == 1);
    assert_int_equal(c.ends, 1);
    close(fd);
    rig_drop(&c);
}

/* The timer fires where it was first set, and is then set for what is left since the last byte. */
static void test_silence_counts_from_the_last_byte(void **state)
{
    rig_call_t c = {0};

    rig_start_timed(&c, (bt_call_timeouts_t){.stall_ms = 100000});
    int fd = worker_accept();
    worker_read(fd, "\r\n\r\n");
    worker_write(fd, "HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n.");
    pump_until(c.bodies == 1);
    bt_conn_t *conn = c.call->conn;
    const uint64_t due_ms = conn->timer.due_ms;
    conn->heard_ms = bt_clock_ms() - 40000;
    bt_timer_stop(&conn->timer);
    bt_call_on_deadline(&conn->timer);
    assert_int_equal(c.fails, 0);
    assert_true(bt_timer_active(&conn->timer));
    assert_in_range(conn->timer.due_ms, conn->heard_ms + 100000, due_ms - 20000);
    worker_write(fd, ".");
    pump_until(c.bodies == 2);
    assert_true(bt_clock_ms() - conn->heard_ms < 40000);
    conn->heard_ms = bt_clock_ms() - 100000;
    bt_timer_stop(&conn->timer);
    bt_call_on_deadline(&conn->timer);
    assert_int_equal(c.fails, 1);
    assert_int_equal(c.rc, BT_E_STALL);
    close(fd);
    rig_drop(&c);
}

/* ---- stale connections ---- */

static void test_stale_connection_is_retried_unseen(void **state)
{
    rig_call_t c = {0};

    int fd = rig_exchange(-1);
    close(fd); /* and the loop does not turn: the client cannot know yet */
    rig_start(&c);
    fd = worker_accept();
    worker_read(fd, "GET / HTTP/1.1\r\nHost: w\r\n\r\n");
    worker_write(fd, OK_HEAD "hello");
    pump_until(c.ends == 1);
    assert_true(c.last.retried);
    assert_false(c.last.reused);
    assert_int_equal(bt_upstream_active_count(rig.up), 0);
    assert_int_equal(bt_upstream_idle_count(rig.up), 1);
    close(fd);
    rig_drop(&c);
}

static void test_stale_connection_is_retried_once(void **state)
{
    rig_call_t c = {0};

    int fd = rig_exchange(-1);
    rig_start(&c);
    worker_read(fd, "\r\n\r\n");
    worker_reset(fd);
    fd = worker_accept();
    worker_read(fd, "\r\n\r\n");
    worker_reset(fd);
    pump_until(c.fails == 1);
    assert_int_equal(c.rc, BT_E_RESET);
    assert_true(c.last.retried);
    assert_true(c.last.any_byte_sent);
    assert_true(nobody_waits());

    fd = rig_exchange(-1);
    rig_start(&c);
    close(fd);
    close(rig.listener); /* the fresh one finds nobody */
    pump_until(c.fails == 1);
    assert_int_equal(c.rc, BT_E_CONNECT);
    assert_true(c.last.retried);
    assert_false(c.last.any_byte_sent);
    rig.listener = rig_listen(&rig.addr, 4);
    rig_drop(&c);
}

static void test_once_is_never_sent_twice(void **state)
{
    rig_call_t c = {0};

    int fd = rig_exchange(-1);
    rig_start(&c);
    c.call->once = true;
    worker_read(fd, "\r\n\r\n");
    worker_reset(fd);
    pump_until(c.fails == 1);
    assert_int_equal(c.rc, BT_E_RESET);
    assert_true(c.last.reused);
    assert_false(c.last.retried);
    assert_true(c.last.any_byte_sent);
    assert_int_equal(bt_upstream_idle_count(rig.up), 0);
    assert_true(nobody_waits());
    rig_drop(&c);
}

static void test_no_retry_after_an_answer_byte(void **state)
{
    rig_call_t c = {0};

    int fd = rig_exchange(-1);
    rig_start(&c);
    worker_read(fd, "\r\n\r\n");
    worker_write(fd, "H");
    close(fd);
    pump_until(c.fails == 1);
    assert_int_equal(c.rc, BT_E_RESET);
    assert_true(c.last.reused);
    assert_false(c.last.retried);
    assert_true(nobody_waits());
    rig_drop(&c);
}

static void test_no_retry_after_a_deadline(void **state)
{
    rig_call_t c = {0};

    int fd = rig_exchange(-1);
    rig_start_timed(&c, (bt_call_timeouts_t){.first_byte_ms = 50});
    worker_read(fd, "\r\n\r\n");
    pump_until(c.fails == 1);
    assert_int_equal(c.rc, BT_E_FIRST_BYTE_TIMEOUT);
    assert_false(c.last.retried);
    assert_true(nobody_waits());
    close(fd);
    rig_drop(&c);
}

/* epoll hands events out in the order in which they came, once what it has told before is off its list. */
static void settle(void)
{
    for (int i = 0; i < 5; i++)
        pump();
}

static void start_other(rig_call_t *c, void *arg)
{
    (void) c;
    rig_start(arg);
}

/* The farewell of an idle connection, read in the very turn in which a call has taken it, is not that call's answer. */
static void test_farewell_is_not_an_answer(void **state)
{
    rig_call_t b = {0}, a = {.at = RIG_ON_END, .act = start_other, .arg = &b};
    rig_call_t other = {0};

    int fd_a = start_and_read(&a);
    rig_start(&other); /* a second connection, which becomes idle */
    int fd_b = worker_accept();
    worker_read(fd_b, "\r\n\r\n");
    worker_write(fd_b, "HTTP/1.1 204 No Content\r\n\r\n");
    pump_until(other.ends == 1);
    settle();
    worker_write(fd_a, "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n");
    worker_write(fd_b, "HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n");
    pump_until(a.ends == 1);
    int fd = worker_accept();
    worker_read(fd, "\r\n\r\n");
    worker_write(fd, OK_HEAD "hello");
    pump_until(b.ends == 1);
    assert_int_equal(b.status, 200);
    close(fd);
    close(fd_a);
    close(fd_b);
    rig_drop(&a);
    rig_drop(&b);
    rig_drop(&other);
}

/* ---- cancelling ---- */

static void cancel_and_free(rig_call_t *c, void *arg)
{
    (void) arg;
    bt_call_cancel(c->call);
    assert_false(bt_call_running(c->call));
    bt_call_cancel(c->call);
    memset(c->call, 0xa5, sizeof(*c->call));
    rig_drop(c);
}

static void expect_silence(rig_call_t *c, int fd)
{
    unsigned before = c->heads + c->bodies + c->ends + c->fails;

    pump_until(client_has_left(fd));
    for (int i = 0; i < 20; i++)
        pump();
    assert_int_equal(c->heads + c->bodies + c->ends + c->fails, before);
    assert_int_equal(bt_upstream_active_count(rig.up), 0);
    assert_int_equal(bt_upstream_idle_count(rig.up), 0);
    close(fd);
}

static void test_cancel_in_every_state(void **state)
{
    static const char *const said[] = {"", "HTTP/1.1 100 Continue\r\n\r\n",
                                       "HTTP/1.1 200 OK\r\nCont", OK_HEAD, OK_HEAD "hel"};
    rig_call_t c = {0};

    rig_start(&c); /* before the loop has turned: connecting */
    cancel_and_free(&c, NULL);
    expect_silence(&c, worker_accept());
    for (size_t i = 0; i < sizeof(said) / sizeof(*said); i++) {
        int fd = start_and_read(&c);
        worker_write(fd, said[i]);
        pump_until(c.heads == (i >= 3) && c.body_len == (i == 4 ? 3 : 0) &&
                   (i == 0 || c.call->first_byte_us > 0));
        if (i == 4)
            bt_call_pause(c.call);
        cancel_and_free(&c, NULL);
        expect_silence(&c, fd);
    }
    int fd = rig_exchange(-1); /* a pooled one, before its request has left */
    rig_start(&c);
    cancel_and_free(&c, NULL);
    expect_silence(&c, fd);
    bt_call_cancel(&(bt_call_t){0});
}

static void test_cancel_of_a_connect_that_hangs(void **state)
{
    int fds[FILLERS];
    rig_call_t c = {0};

    use_full_listener(fds);
    rig_start_timed(&c, (bt_call_timeouts_t){.connect_ms = 30, .total_ms = 30});
    for (int i = 0; i < 5; i++)
        pump();
    cancel_and_free(&c, NULL);
    uint64_t until_us = bt_clock_us() + 60000;
    pump_until(bt_clock_us() > until_us);
    assert_int_equal(c.fails, 0);
    for (int i = 0; i < FILLERS; i++)
        close(fds[i]);
}

static void test_cancel_of_an_upload(void **state)
{
    struct bt_slice request[2];
    rig_call_t c = {0};

    bt_buf_t *body = big_buf(32 << 20);
    request[0] =
        (struct bt_slice){body->data, body->len, NULL}; /* not owned: free to go after the cancel */
    rig_start_with(&c, request, 1, NULL);
    int fd = worker_accept();
    for (int i = 0; i < 20; i++)
        pump();
    assert_true(c.call->sent_us == 0);
    cancel_and_free(&c, NULL);
    bt_buf_unref(body);
    expect_silence(&c, fd);
}

static void test_cancel_from_callbacks(void **state)
{
    rig_call_t c = {.at = RIG_ON_HEAD, .act = cancel_and_free};

    int fd = start_and_read(&c);
    worker_write(fd, OK_HEAD "hello");
    pump_until(c.heads == 1);
    assert_int_equal(c.bodies + c.ends, 0);
    expect_silence(&c, fd);

    c.at = RIG_ON_BODY;
    fd = start_and_read(&c);
    worker_write(
        fd, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n1\r\nb\r\n0\r\n\r\n");
    pump_until(c.bodies == 1);
    expect_silence(&c, fd);
    assert_int_equal(c.bodies, 1);

    c.at = RIG_ON_FAIL;
    fd = start_and_read(&c);
    worker_write(fd, "nonsense");
    pump_until(c.fails == 1);
    expect_silence(&c, fd);

    c.at = RIG_ON_END; /* too late to close anything: the connection is pooled already */
    fd = start_and_read(&c);
    worker_write(fd, OK_HEAD "hello");
    pump_until(c.ends == 1);
    assert_int_equal(bt_upstream_idle_count(rig.up), 1);
    close(fd);
}

static void test_next_call_from_on_end_takes_the_same_connection(void **state)
{
    rig_call_t b = {0}, a = {.at = RIG_ON_END, .act = start_other, .arg = &b};

    int fd = start_and_read(&a);
    worker_write(fd, OK_HEAD "hello");
    pump_until(a.ends == 1);
    worker_read(fd, "\r\n\r\n");
    worker_write(fd, OK_HEAD "again");
    pump_until(b.ends == 1);
    assert_true(b.last.reused);
    assert_memory_equal(b.body, "again", 5);
    close(fd);
    rig_drop(&a);
    rig_drop(&b);
}

static void cancel_other(rig_call_t *c, void *arg)
{
    (void) c;
    cancel_and_free(arg, NULL);
}

/* First failure wins: one leg's callback ends the other leg, whose bytes wait in the same turn. */
static void test_cancel_of_another_call_in_the_same_turn(void **state)
{
    rig_call_t b = {0}, a = {.at = RIG_ON_FAIL, .act = cancel_other, .arg = &b};

    int fd_a = start_and_read(&a);
    rig_start(&b);
    int fd_b = worker_accept();
    worker_read(fd_b, "\r\n\r\n");
    settle();
    worker_reset(fd_a);
    worker_write(fd_b, OK_HEAD "hello");
    pump_until(a.fails == 1);
    expect_silence(&b, fd_b);
    assert_int_equal(b.heads, 0);
    rig_drop(&a);
}

/* ---- pausing ---- */

static void pause_now(rig_call_t *c, void *arg)
{
    (void) arg;
    bt_call_pause(c->call);
}

#define FLOOD_BYTES ((size_t) 50 << 20)

/* Writes what the socket takes; returns the new total. */
static size_t flood(int fd, size_t done)
{
    static char zeros[65536];

    while (done < FLOOD_BYTES) {
        size_t n = FLOOD_BYTES - done < sizeof(zeros) ? FLOOD_BYTES - done : sizeof(zeros);
        ssize_t put = send(fd, zeros, n, MSG_NOSIGNAL);
        if (put < 0)
            break;
        done += (size_t) put;
    }
    return done;
}

static void test_paused_call_holds_no_memory(void **state)
{
    rig_call_t c = {.at = RIG_ON_BODY, .act = pause_now};
    size_t done = 0;

    int fd = start_and_read(&c);
    worker_write(fd, "HTTP/1.1 200 OK\r\nContent-Length: 52428800\r\n\r\n");
    while (c.ends == 0) {
        done = flood(fd, done);
        size_t before = c.body_len;
        pump_until(c.body_len > before);
        before = c.body_len;
        for (int i = 0; i < 3; i++)
            pump();
        assert_true(c.ends == 1 || c.body_len == before);                  /* paused is paused */
        assert_true(bt_mem_bytes(BT_MEM_BUFFERS) <= 2 * BT_BUF_STD_BYTES); /* the loop's */
        if (c.ends == 0)
            bt_call_resume(c.call);
    }
    assert_int_equal(c.body_len, FLOOD_BYTES);
    assert_int_equal(c.last.body_bytes, FLOOD_BYTES);
    assert_int_equal(bt_upstream_idle_count(rig.up), 1); /* and reads again while idle: */
    close(fd);
    pump_until(bt_upstream_idle_count(rig.up) == 0);
    rig_drop(&c);
}

static void pump_for_ms(uint64_t ms)
{
    uint64_t until_us = bt_clock_us() + ms * 1000;

    pump_until(bt_clock_us() > until_us);
}

static void test_clocks_stand_still_while_paused(void **state)
{
    rig_call_t c = {.at = RIG_ON_BODY, .act = pause_now};

    rig_start_timed(&c, (bt_call_timeouts_t){.first_byte_ms = 60, .stall_ms = 60});
    bt_call_pause(c.call); /* before it is even connected */
    int fd = worker_accept();
    worker_read(fd, "\r\n\r\n");
    pump_for_ms(120);
    assert_int_equal(c.fails, 0);
    bt_call_resume(c.call);
    bt_call_pause(c.call);
    pump_for_ms(120);
    assert_int_equal(c.fails, 0);
    bt_call_resume(c.call);
    worker_write(fd, OK_HEAD "hel"); /* pauses in on_body */
    pump_until(c.body_len == 3);
    pump_for_ms(120);
    assert_int_equal(c.fails, 0);
    bt_call_resume(c.call);
    pump_until(c.fails == 1);
    assert_int_equal(c.rc, BT_E_STALL);
    close(fd);

    c.at = RIG_NEVER; /* the first byte's clock goes on where it stood, the total never stops */
    rig_start_timed(&c, (bt_call_timeouts_t){.first_byte_ms = 200, .total_ms = 100});
    fd = worker_accept();
    worker_read(fd, "\r\n\r\n");
    bt_call_pause(c.call);
    pump_until(c.fails == 1);
    assert_int_equal(c.rc, BT_E_TOTAL_TIMEOUT);
    close(fd);
    rig_drop(&c);
}

/* A pause takes nothing from the time that is left for the first byte, and adds nothing to it. */
static void test_the_first_byte_is_still_due_after_a_pause(void **state)
{
    rig_call_t c = {0};

    rig_start_timed(&c, (bt_call_timeouts_t){.first_byte_ms = 60});
    int fd = worker_accept();
    worker_read(fd, "\r\n\r\n");
    pump_until(c.call->sent_us > 0);
    bt_call_pause(c.call);
    bt_call_resume(c.call);
    pump_until(c.fails == 1);
    assert_int_equal(c.rc, BT_E_FIRST_BYTE_TIMEOUT);
    close(fd);
    rig_drop(&c);
}

static void test_end_is_read_after_the_pause(void **state)
{
    rig_call_t c = {0};

    int fd = start_and_read(&c);
    worker_write(fd, OK_HEAD);
    pump_until(c.heads == 1);
    bt_call_pause(c.call);
    worker_write(fd, "hello");
    close(fd);
    for (int i = 0; i < 20; i++)
        pump();
    assert_int_equal(c.body_len, 0);
    bt_call_resume(c.call);
    bt_call_resume(c.call);
    pump_until(c.ends == 1);
    assert_int_equal(c.body_len, 5);
    pump_until(bt_upstream_idle_count(rig.up) == 0);
    rig_drop(&c);
}

#define SPEC(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SPEC(test_answer_fills_the_call),
        SPEC(test_chunked_byte_by_byte),
        SPEC(test_answer_until_eof),
        SPEC(test_head_request_has_no_body),
        SPEC(test_connection_is_not_kept),
        SPEC(test_early_answer),
        SPEC(test_answer_before_reset_of_an_upload),
        SPEC(test_upload_that_nobody_reads_stalls),
        SPEC(test_slow_upload_goes_on),
        SPEC(test_truncated_and_malformed),
        SPEC(test_connect_refused),
        SPEC(test_own_shortage_is_told_from_the_loop),
        SPEC(test_connect_timeout),
        SPEC(test_deadlines),
        SPEC(test_trickle_outlives_the_stall_deadline),
        SPEC(test_nobody_is_silent_while_we_stand_still),
        SPEC(test_silence_counts_from_the_last_byte),
        SPEC(test_stale_connection_is_retried_unseen),
        SPEC(test_stale_connection_is_retried_once),
        SPEC(test_once_is_never_sent_twice),
        SPEC(test_no_retry_after_an_answer_byte),
        SPEC(test_no_retry_after_a_deadline),
        SPEC(test_farewell_is_not_an_answer),
        SPEC(test_cancel_in_every_state),
        SPEC(test_cancel_of_a_connect_that_hangs),
        SPEC(test_cancel_of_an_upload),
        SPEC(test_cancel_from_callbacks),
        SPEC(test_next_call_from_on_end_takes_the_same_connection),
        SPEC(test_cancel_of_another_call_in_the_same_turn),
        SPEC(test_paused_call_holds_no_memory),
        SPEC(test_clocks_stand_still_while_paused),
        SPEC(test_the_first_byte_is_still_due_after_a_pause),
        SPEC(test_end_is_read_after_the_pause),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
