#include "cluster/checks/probe.h"

#include "help.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

/* The listening socket is never accepted from: the kernel completes connects, and every probe stays without an answer. */
static bt_loop_t loop;
static bt_upstream_t *up;
static bt_probe_limit_t limit;
static bt_probe_t probes[5];
static bt_probe_target_t target;
static int listener;
static unsigned ended;
static int last_rc;

static void on_end(bt_probe_t *p, int rc)
{
    assert_int_equal(p->state, BT_PROBE_IDLE);
    ended++;
    last_rc = rc;
}

static int setup(void **state)
{
    struct sockaddr_in addr = {.sin_family = AF_INET};
    socklen_t size = sizeof addr;
    ended = 0;
    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(listener, (struct sockaddr *) &addr, sizeof addr), 0);
    assert_int_equal(listen(listener, 64), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *) &addr, &size), 0);
    assert_int_equal(bt_loop_init(&loop, 0), 0);
    assert_int_equal(bt_upstream_new(&up, &loop, (struct sockaddr *) &addr, NULL), 0);
    bt_probe_limit_init(&limit, 2);
    for (int i = 0; i < 5; i++)
        bt_probe_init(&probes[i], &limit);
    target = (bt_probe_target_t){.up = up, .authority = "x", .base_path = "", .path = "/health"};
    return 0;
}

static int teardown(void **state)
{
    for (int i = 0; i < 5; i++)
        bt_probe_fini(&probes[i]);
    bt_upstream_free(up);
    bt_loop_fini(&loop);
    close(listener);
    return 0;
}

static void start_all(uint64_t timeout_ms)
{
    for (int i = 0; i < 5; i++)
        assert_int_equal(bt_probe_start(&probes[i], &target, timeout_ms, 100, on_end), 0);
    assert_int_equal(limit.running, 2);
}

static void no_more_than_the_gate_lets_through(void **state)
{
    start_all(40);
    assert_int_equal(probes[1].state, BT_PROBE_RUNNING);
    assert_int_equal(probes[2].state, BT_PROBE_WAITING);
    uint64_t limit_ms = bt_clock_ms() + 20000;
    while (ended < 5 && bt_clock_ms() < limit_ms) {
        uv_run(&loop.uv, UV_RUN_ONCE);
        assert_true(limit.running <= 2);
    }
    assert_int_equal(ended,
                     5); /* each has a deadline of its own, counted from when it was let through */
    assert_int_equal(last_rc, BT_E_TOTAL_TIMEOUT);
    assert_int_equal(limit.running, 0);
}

static void cancel_lets_the_next_one_through(void **state)
{
    start_all(10000);
    bt_probe_cancel(&probes[3]); /* waiting: takes no place */
    assert_int_equal(limit.running, 2);
    bt_probe_cancel(&probes[0]);
    bt_probe_cancel(&probes[0]);
    assert_int_equal(limit.running, 2);
    assert_int_equal(probes[2].state, BT_PROBE_RUNNING);
    assert_int_equal(probes[4].state, BT_PROBE_WAITING);
    assert_int_equal(bt_probe_start(&probes[2], &target, 10, 100, on_end), BT_E_AGAIN);
    assert_int_equal(ended, 0);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(no_more_than_the_gate_lets_through),
        CASE(cancel_lets_the_next_one_through),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
