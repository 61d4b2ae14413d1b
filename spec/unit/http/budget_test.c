/* The budget of connections: who is let in, who goes for it, who is told why not; on one loop, over several, for each peer, and for
 * connections to workers. All loops are turned by one thread, so every order of events can be staged. */
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/pages.h"
#include "http/budget.h"
#include "http/client.h"
#include "http/server.h"
#include "loop/util.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/resource.h>

#define LOOPS 3

static struct {
    bt_loop_t loops[LOOPS];
    bt_server_t *servers[LOOPS];
    bt_budget_t *budget;
    bt_exchange_t *held[16]; /* of paths that begin with /keep */
    unsigned held_count, requests;
    unsigned closed;
} w;

static void on_request(bt_exchange_t *x)
{
    w.requests++;
    if (bt_str_starts(x->head.path, BT_STR("/keep")))
        w.held[w.held_count++] = x;
    else
        bt_exchange_respond(x, 200, "text/plain", BT_STR("ok"), NULL, 0);
}

static void on_gone(bt_exchange_t *x)
{
    (void) x;
}

static const bt_server_ops_t handler = {.on_request = on_request, .on_gone = on_gone};

static int setup(void **state)
{
    bt_server_config_t config;

    memset(&w, 0, sizeof(w));
    bt_log_set(BT_LOG_ERROR, false, 2);
    assert_int_equal(bt_budget_new(&w.budget, LOOPS, "client"), 0);
    bt_server_config_defaults(&config);
    config.budget = w.budget;
    for (unsigned i = 0; i < LOOPS; i++) {
        assert_int_equal(bt_loop_init(&w.loops[i], i), 0);
        assert_int_equal(bt_server_new(&w.servers[i], &w.loops[i], &handler, &config, NULL), 0);
    }
    return 0;
}

static void turn_all(void)
{
    for (unsigned i = 0; i < LOOPS; i++)
        turn(&w.loops[i], 2);
}

static void on_closed(void *arg)
{
    ++*(unsigned *) arg;
}

static int teardown(void **state)
{
    for (unsigned i = 0; i < LOOPS; i++)
        bt_server_close(w.servers[i], on_closed, &w.closed);
    STEP_UNTIL(w.closed >= LOOPS, turn_all());
    for (unsigned i = 0; i < LOOPS; i++) {
        assert_int_equal(atomic_load(&w.loops[i].connections), 0);
        bt_loop_fini(&w.loops[i]);
    }
    bt_budget_free(w.budget);
    bt_pages_thread_fini();
    assert_int_equal(bt_soft_count(), 0);
    return 0;
}

static void limit(unsigned clients, unsigned per_peer, unsigned refusals)
{
    const bt_budget_limits_t limits = {
        .clients = clients, .per_peer = per_peer, .refusals = refusals, .workers = 2};

    assert_int_equal(bt_budget_set(w.budget, &limits), 0);
}

/* A client of this loop that comes from the address; returns its end. */
static int join_from(unsigned loop, const char *address)
{
    struct sockaddr_in from = {.sin_family = AF_INET}, to;
    socklen_t len = sizeof(to);
    struct sockaddr_storage at;
    int listener = raw_listen(AF_INET, &at), ours, theirs = socket(AF_INET, SOCK_STREAM, 0);

    inet_pton(AF_INET, address, &from.sin_addr);
    assert_int_equal(bind(theirs, (struct sockaddr *) &from, sizeof(from)), 0);
    getsockname(listener, (struct sockaddr *) &to, &len);
    assert_int_equal(connect(theirs, (struct sockaddr *) &to, sizeof(to)), 0);
    ours = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    close(listener);
    fcntl(theirs, F_SETFL, O_NONBLOCK);
    atomic_fetch_add(&w.loops[loop].connections, 1);
    bt_server_accept(w.servers[loop], ours, NULL);
    return theirs;
}

static int join(unsigned loop)
{
    return join_from(loop, "127.0.0.1");
}

static void say(int fd, const char *path)
{
    char text[128];
    const int n = snprintf(text, sizeof(text), "GET %s HTTP/1.1\r\nHost: h\r\n\r\n", path);

    assert_int_equal(send(fd, text, (size_t) n, MSG_NOSIGNAL), n);
}

/* The status of the answer; 0: the connection was closed without one. */
static unsigned answer(int fd, char *text, size_t size)
{
    size_t n = 0;
    ssize_t got;

    for (;;) {
        turn_all();
        got = recv(fd, text + n, size - 1 - n, 0);
        if (got == 0 || (got < 0 && errno != EAGAIN))
            return 0;
        n += got > 0 ? (size_t) got : 0;
        text[n] = '\0';
        if (n > 0 && (strstr(text, "\r\n\r\nok") != NULL || strstr(text, "}}") != NULL))
            return (unsigned) atoi(text + 9);
    }
}

static unsigned ask(int fd)
{
    char text[2048];

    say(fd, "/");
    return answer(fd, text, sizeof(text));
}

static void keep_busy(int fd)
{
    const unsigned before = w.held_count;

    say(fd, "/keep");
    STEP_UNTIL(w.held_count != before, turn_all());
}

static bool is_gone(int fd)
{
    char byte;
    ssize_t n;

    for (unsigned i = 0; i < 3; i++)
        turn_all();
    n = recv(fd, &byte, 1, MSG_PEEK);
    return n == 0 || (n < 0 && errno != EAGAIN);
}

static bt_budget_stats_t stats(void)
{
    bt_budget_stats_t s;

    bt_budget_stats(w.budget, &s);
    return s;
}

static void on_over(bt_timer_t *timer)
{
    (void) timer; /* what is asked of it is whether it runs */
}

/* Later than everything before it, by the clock that idle connections are compared by; nobody is new any more. By timers as theirs: after
 * a stall they fire a turn later than the clock shows. */
static void next_moment(void)
{
    bt_timer_t over[LOOPS];

    for (unsigned i = 0; i < LOOPS; i++) {
        bt_timer_init(&w.loops[i], &over[i], on_over);
        bt_timer_start(&over[i], 60);
    }
    for (unsigned i = 0; i < LOOPS; i++)
        STEP_UNTIL(!bt_timer_active(&over[i]), turn_all());
    const uint64_t now_ms = uv_now(&w.loops[0].uv);
    STEP_UNTIL(uv_now(&w.loops[0].uv) > now_ms + 1, turn_all());
}

/* ---- one loop ---- */

static void the_oldest_idle_one_goes(void **state)
{
    limit(3, 0, 2);
    const int busy = join(0);
    keep_busy(busy);
    const int a = join(0), b = join(0);
    next_moment();
    assert_int_equal(ask(a), 200); /* b has waited longer, though it came later */
    const int c = join(0);
    assert_true(is_gone(b));
    assert_int_equal(ask(c), 200);
    const int d = join(0);
    assert_true(is_gone(a));
    assert_int_equal(ask(c), 200);
    assert_int_equal(ask(d), 200);
    assert_false(is_gone(busy));
    assert_int_equal(stats().closed[BT_BUDGET_CLIENTS], 2);
    close(busy), close(a), close(b), close(c), close(d);
}

static void nobody_idle_is_503(void **state)
{
    char text[2048];

    limit(1, 0, 2);
    const int busy = join(0);
    keep_busy(busy);
    const int late = join(0);
    turn_all();
    say(late, "/");
    assert_int_equal(answer(late, text, sizeof(text)), 503);
    assert_non_null(strstr(text, "\r\nRetry-After: 1\r\n"));
    assert_non_null(strstr(text, "\r\nConnection: close\r\n"));
    assert_non_null(strstr(text, "{\"error\":{\"message\":\"too many connections, try again\","));
    assert_int_equal(w.requests, 1);
    assert_int_equal(stats().refused[BT_BUDGET_CLIENTS], 1);
    close(late);
    bt_exchange_respond(w.held[0], 200, "text/plain", BT_STR("ok"), NULL, 0);
    assert_int_equal(answer(busy, text, sizeof(text)), 200);
    const int next = join(0);
    assert_true(is_gone(busy));
    assert_int_equal(ask(next), 200);
    close(busy), close(next);
}

/* The loop has not read it yet, but its request is there. */
static void one_whose_request_has_come_is_not_idle(void **state)
{
    char text[2048];

    limit(2, 0, 2);
    const int a = join(0), b = join(0);
    next_moment();
    say(a, "/");
    const int c = join(0);
    assert_int_equal(answer(a, text, sizeof(text)), 200);
    assert_true(is_gone(b));
    say(a, "/");
    say(c, "/");
    const int d = join(0); /* nobody is idle: all have said something */
    assert_int_equal(ask(d), 503);
    assert_int_equal(answer(a, text, sizeof(text)), 200);
    assert_int_equal(answer(c, text, sizeof(text)), 200);
    close(a), close(b), close(c), close(d);
}

/* Who is to be told 503 and says nothing goes for the next one; when all of them are being told, nobody more is. */
static void refusals_are_bounded(void **state)
{
    char text[2048];
    int late[4];

    limit(1, 0, 2);
    const int busy = join(0);
    keep_busy(busy);
    for (unsigned i = 0; i < 3; i++)
        late[i] = join(0);
    assert_true(is_gone(late[0]));
    assert_int_equal(stats().shed[BT_BUDGET_CLIENTS], 1);
    say(late[1], "/");
    say(late[2], "/");
    late[3] = join(0); /* both have a request on its way */
    assert_true(is_gone(late[3]));
    assert_int_equal(answer(late[1], text, sizeof(text)), 503);
    assert_int_equal(answer(late[2], text, sizeof(text)), 503);
    assert_int_equal(stats().shed[BT_BUDGET_CLIENTS], 2);
    assert_int_equal(stats().refused[BT_BUDGET_CLIENTS], 2);
    for (unsigned i = 0; i < 4; i++)
        close(late[i]);
    close(busy);
}

/* It has just come, and its request will: nobody takes its place before that had time to. */
static void a_new_one_is_not_idle_yet(void **state)
{
    limit(1, 0, 2);
    const int a = join(0);
    const int b = join(0);
    assert_int_equal(ask(b), 503);
    assert_int_equal(ask(a), 200);
    const int c = join(0);
    assert_true(is_gone(a));
    next_moment(); /* c has said nothing for too long */
    const int d = join(0);
    assert_true(is_gone(c));
    assert_int_equal(ask(d), 200);
    close(a), close(b), close(c), close(d);
}

/* ---- several loops ---- */

static void the_oldest_of_all_loops_goes(void **state)
{
    limit(3, 0, 2);
    const int a = join(0);
    next_moment();
    const int b = join(1);
    next_moment();
    const int c = join(2);
    next_moment();
    assert_int_equal(ask(a), 200);
    const int d = join(2);
    assert_true(is_gone(b));
    assert_int_equal(ask(c), 200);
    assert_int_equal(ask(a), 200);
    assert_int_equal(ask(d), 200);
    close(a), close(b), close(c), close(d);
}

/* The mail comes too late: one connection too many is there until another one becomes idle. */
static void what_is_owed_is_paid_by_the_next_one(void **state)
{
    char text[2048];

    limit(2, 0, 2);
    const int busy = join(0);
    keep_busy(busy);
    const int a = join(1);
    assert_int_equal(ask(a), 200);
    const int b = join(0); /* for a, on loop 1, which has not turned */
    say(a, "/keep");
    STEP_UNTIL(w.held_count >= 2, turn(&w.loops[1], 1));
    assert_false(is_gone(a));
    assert_int_equal(ask(b), 200); /* the one that becomes idle first */
    assert_true(is_gone(b));
    bt_exchange_respond(w.held[1], 200, "text/plain", BT_STR("ok"), NULL, 0);
    assert_int_equal(answer(a, text, sizeof(text)), 200);
    assert_false(is_gone(a));
    assert_int_equal(stats().closed[BT_BUDGET_CLIENTS], 1);
    close(busy), close(a), close(b);
}

/* Two come for one idle connection of another loop. */
static void one_idle_connection_is_closed_for_one(void **state)
{
    limit(2, 0, 2);
    const int busy = join(0);
    keep_busy(busy);
    const int a = join(1);
    assert_int_equal(ask(a), 200);
    const int b = join(0), c = join(0);
    assert_int_equal(ask(c), 503); /* b is new */
    assert_true(is_gone(a));
    assert_int_equal(ask(b), 200);
    close(busy), close(a), close(b), close(c);
}

/* ---- peers ---- */

static void a_peer_pays_for_itself(void **state)
{
    limit(100, 2, 2);
    const int other = join_from(0, "127.0.0.2");
    next_moment();
    const int a = join(0);
    next_moment();
    const int b = join(1);
    next_moment();
    const int c = join(2);
    assert_true(is_gone(a));
    assert_int_equal(ask(other), 200);
    keep_busy(b);
    keep_busy(c);
    const int d = join(0);
    assert_int_equal(ask(d), 503);
    assert_int_equal(ask(join_from(1, "127.0.0.3")), 200);
    assert_int_equal(stats().closed[BT_BUDGET_PEER], 1);
    assert_int_equal(stats().refused[BT_BUDGET_PEER], 1);
    close(other), close(a), close(b), close(c), close(d);
}

/* A client that gives way for its own address makes no other one give way. */
static void a_peer_that_is_full_takes_no_other_place(void **state)
{
    limit(3, 2, 2);
    const int other = join_from(0, "127.0.0.2");
    next_moment();
    const int a = join(0), b = join(0);
    next_moment();
    const int c = join(0);
    assert_true(is_gone(a));
    assert_false(is_gone(other));
    assert_false(is_gone(b));
    assert_int_equal(ask(c), 200);
    close(other), close(a), close(b), close(c);
}

/* IPv4 within IPv6 is the IPv4 address. */
static void addresses_of_both_families_meet(void **state)
{
    struct sockaddr_in6 any = {.sin6_family = AF_INET6};
    struct sockaddr_in to = {.sin_family = AF_INET};
    socklen_t len = sizeof(any);
    int off = 0, listener = socket(AF_INET6, SOCK_STREAM, 0), theirs[2];

    limit(100, 1, 2);
    if (listener < 0 || setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)) < 0 ||
        bind(listener, (struct sockaddr *) &any, sizeof(any)) < 0 || listen(listener, 4) < 0) {
        close(listener);
        skip(); /* no IPv6 on this host */
    }
    getsockname(listener, (struct sockaddr *) &any, &len);
    to.sin_port = any.sin6_port;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int first = join(0);
    for (unsigned i = 0; i < 2; i++) {
        theirs[i] = socket(AF_INET, SOCK_STREAM, 0);
        assert_int_equal(connect(theirs[i], (struct sockaddr *) &to, sizeof(to)), 0);
        fcntl(theirs[i], F_SETFL, O_NONBLOCK);
        next_moment();
        atomic_fetch_add(&w.loops[0].connections, 1);
        bt_server_accept(w.servers[0], accept4(listener, NULL, NULL, SOCK_NONBLOCK), NULL);
    }
    assert_true(is_gone(first));
    assert_true(is_gone(theirs[0]));
    assert_int_equal(ask(theirs[1]), 200);
    close(listener), close(first), close(theirs[0]), close(theirs[1]);
}

/* ---- workers ---- */

struct leg {
    bt_call_t call;
    bool ended;
    int rc;
};

static void on_head(bt_call_t *call)
{
    (void) call;
}

static void on_body(bt_call_t *call, bt_buf_t *buf, const char *p, size_t n)
{
    (void) call, (void) buf, (void) p, (void) n;
}

static void on_end(bt_call_t *call)
{
    ((struct leg *) call->user)->ended = true;
}

static void on_fail(bt_call_t *call, int rc)
{
    ((struct leg *) call->user)->rc = rc;
}

static const bt_call_ops_t ops = {on_head, on_body, on_end, on_fail};
static const struct bt_slice get[] = {{"GET / HTTP/1.1\r\nHost: w\r\n\r\n", 27, NULL}};

static int worker; /* listens */
static bt_upstream_t *ups[LOOPS];

static void start_workers(void)
{
    struct sockaddr_storage addr;
    const bt_upstream_config_t config = {.idle_max = 4, .budget = w.budget};

    worker = raw_listen(AF_INET, &addr);
    fcntl(worker, F_SETFL, O_NONBLOCK);
    for (unsigned i = 0; i < LOOPS; i++)
        assert_int_equal(bt_upstream_new(&ups[i], &w.loops[i], (struct sockaddr *) &addr, &config),
                         0);
}

static void stop_workers(void)
{
    for (unsigned i = 0; i < LOOPS; i++)
        bt_upstream_free(ups[i]);
    close(worker);
    turn_all();
}

static void start_leg(struct leg *leg, unsigned loop)
{
    static const bt_call_timeouts_t timeouts = {.connect_ms = 20000};

    *leg = (struct leg){.ended = false};
    assert_int_equal(bt_call_start(&leg->call, ups[loop], &ops, leg, get, 1, &timeouts), 0);
}

static int worker_takes(void)
{
    int fd;

    STEP_UNTIL((fd = accept(worker, NULL, NULL)) >= 0, turn_all());
    return fd;
}

static void worker_answers(int fd, struct leg *leg)
{
    static const char text[] = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";

    assert_int_equal(send(fd, text, sizeof(text) - 1, MSG_NOSIGNAL), sizeof(text) - 1);
    STEP_UNTIL(leg->ended, turn_all());
}

/* Two are the limit. */
static void idle_connections_to_workers_make_place(void **state)
{
    struct leg legs[4];
    int fds[4];

    limit(10, 0, 2);
    start_workers();
    start_leg(&legs[0], 0);
    start_leg(&legs[1], 1);
    fds[0] = worker_takes();
    fds[1] = worker_takes();
    start_leg(&legs[2], 0); /* both are in use */
    STEP_UNTIL(legs[2].rc != 0, turn_all());
    assert_int_equal(legs[2].rc, BT_E_DESCRIPTORS);
    assert_int_equal(stats().workers_refused, 1);
    worker_answers(fds[0], &legs[0]);
    worker_answers(fds[1], &legs[1]);
    start_leg(&legs[2], 2); /* the oldest idle one is on another loop: it waits for it */
    assert_true(bt_call_running(&legs[2].call));
    fds[2] = worker_takes();
    worker_answers(fds[2], &legs[2]);
    assert_int_equal(stats().workers_closed, 1);
    assert_int_equal(bt_upstream_idle_count(ups[0]) + bt_upstream_idle_count(ups[1]), 1);
    start_leg(&legs[3], 2); /* its own */
    worker_answers(fds[2], &legs[3]);
    assert_int_equal(stats().workers_closed, 1);
    for (unsigned i = 0; i < 3; i++)
        close(fds[i]);
    stop_workers();
}

static void a_call_that_waits_can_be_cancelled(void **state)
{
    struct leg legs[3];
    int fds[2];

    limit(10, 0, 2);
    start_workers();
    start_leg(&legs[0], 0);
    start_leg(&legs[1], 1);
    fds[0] = worker_takes();
    fds[1] = worker_takes();
    worker_answers(fds[0], &legs[0]);
    start_leg(&legs[2], 2);
    bt_call_cancel(&legs[2].call);
    bt_call_cancel(&legs[1].call);
    turn_all();
    start_leg(&legs[2], 2); /* nothing was lost on the way */
    start_leg(&legs[1], 1);
    STEP_UNTIL(legs[1].rc != 0 || accept(worker, NULL, NULL) >= 0, turn_all());
    assert_int_equal(legs[1].rc, 0);
    bt_call_cancel(&legs[1].call);
    bt_call_cancel(&legs[2].call);
    close(fds[0]), close(fds[1]);
    stop_workers();
}

/* Somebody who is not counted has the last descriptor: an idle client gives its own. */
static void an_idle_client_gives_its_descriptor(void **state)
{
    struct leg leg;
    struct rlimit old, tight;

    limit(10, 0, 2);
    start_workers();
    const int a = join(0), b = join(0);
    next_moment();
    const int probe = dup(a);
    close(probe);
    getrlimit(RLIMIT_NOFILE, &old);
    tight = (struct rlimit){(rlim_t) probe, old.rlim_max};
    setrlimit(RLIMIT_NOFILE, &tight);
    start_leg(&leg, 0);
    assert_true(is_gone(a));
    setrlimit(RLIMIT_NOFILE, &old);
    const int fd = worker_takes();
    worker_answers(fd, &leg);
    assert_false(is_gone(b));
    assert_int_equal(stats().closed[BT_BUDGET_DESCRIPTORS], 1);
    close(a), close(b), close(fd);
    stop_workers();
}

static unsigned lines_in(int fd)
{
    unsigned count = 0;

    for (char c; read(fd, &c, 1) == 1;)
        count += c == '\n';
    return count;
}

static void *enter_a_moment_later(void *client)
{
    const uint64_t from_ms = bt_clock_ms();

    while (bt_clock_ms() <= from_ms + 1)
        continue;
    (void) bt_budget_enter(w.budget, client, NULL);
    return NULL;
}

/* A loop that is amid an event has a time that is older than that of another loop, which has told just now. */
static void it_is_told_once_by_all_loops(void **state)
{
    bt_budget_client_t clients[3] = {
        {.loop = &w.loops[0]}, {.loop = &w.loops[1]}, {.loop = &w.loops[0]}};
    pthread_t other;
    int log[2];

    limit(1, 0, 2);
    assert_int_equal(pipe2(log, O_NONBLOCK | O_CLOEXEC), 0);
    bt_log_set(BT_LOG_WARN, false, log[1]);
    bt_clock_begin_event();
    (void) bt_clock_event_ms();
    assert_true(bt_budget_enter(w.budget, &clients[0], NULL));
    assert_int_equal(pthread_create(&other, NULL, enter_a_moment_later, &clients[1]), 0);
    assert_int_equal(pthread_join(other, NULL), 0);
    assert_true(bt_budget_enter(w.budget, &clients[2], NULL));
    bt_clock_end_event();
    bt_log_set(BT_LOG_ERROR, false, 2);
    assert_true(clients[1].is_refused && clients[2].is_refused);
    assert_int_equal(lines_in(log[0]), 1);
    for (unsigned i = 0; i < 3; i++)
        bt_budget_leave(w.budget, &clients[i]);
    close(log[0]), close(log[1]);
}

#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(the_oldest_idle_one_goes),
        CASE(nobody_idle_is_503),
        CASE(one_whose_request_has_come_is_not_idle),
        CASE(refusals_are_bounded),
        CASE(a_new_one_is_not_idle_yet),
        CASE(the_oldest_of_all_loops_goes),
        CASE(what_is_owed_is_paid_by_the_next_one),
        CASE(one_idle_connection_is_closed_for_one),
        CASE(a_peer_pays_for_itself),
        CASE(a_peer_that_is_full_takes_no_other_place),
        CASE(addresses_of_both_families_meet),
        CASE(idle_connections_to_workers_make_place),
        CASE(a_call_that_waits_can_be_cancelled),
        CASE(an_idle_client_gives_its_descriptor),
        CASE(it_is_told_once_by_all_loops),
    };
    alarm(55);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
