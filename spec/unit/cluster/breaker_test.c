#include "help.h"

#include <pthread.h>

static bt_breaker_t b;

static int setup(void **state)
{
    bt_breaker_init(&b, NULL);
    return 0;
}

static int teardown(void **state)
{
    bt_breaker_fini(&b);
    return 0;
}

static void fail_times(unsigned n, uint64_t now_ms)
{
    for (unsigned i = 0; i < n; i++)
        (void) bt_breaker_failure(&b, false, now_ms);
}

static void five_in_the_window_open_it(void **state)
{
    bool probe = true;
    fail_times(4, 1000);
    assert_true(bt_breaker_allows(&b, 1000));
    assert_true(bt_breaker_enter(&b, 1000, &probe));
    assert_false(probe);
    assert_true(
        bt_breaker_failure(&b, false, 11000)); /* exactly 10 s after the first: still inside */
    assert_int_equal(bt_breaker_state(&b, 11000), BT_BREAKER_OPEN);
    assert_false(bt_breaker_allows(&b, 20999));
    assert_false(bt_breaker_enter(&b, 20999, &probe));
    assert_int_equal(atomic_load(&b.opened_total), 1);
}

static void spread_out_failures_do_not(void **state)
{
    for (uint64_t i = 0; i < 40; i++)
        assert_false(bt_breaker_failure(&b, false, 1000 + i * 2501));
    assert_int_equal(bt_breaker_state(&b, 200000), BT_BREAKER_CLOSED);
}

static void one_failure_is_enough_while_anothers_is_open(void **state)
{
    bool probe = true;
    bt_breaker_hint(&b, 2000);
    assert_true(bt_breaker_enter(&b, 1000, &probe)); /* a hint takes nobody out */
    assert_false(probe);
    assert_true(bt_breaker_failure(&b, false, 1999));
    assert_int_equal(bt_breaker_state(&b, 2000), BT_BREAKER_OPEN);
    assert_true(bt_breaker_enter(&b, 20000, &probe));
    bt_breaker_success(&b, probe);
    assert_false(bt_breaker_failure(&b, false, 20000)); /* over */
}

static void innocent_and_success_never_count(void **state)
{
    for (int i = 0; i < 100; i++) {
        bt_breaker_innocent(&b, false);
        bt_breaker_success(&b, false);
    }
    assert_int_equal(bt_breaker_state(&b, 1), BT_BREAKER_CLOSED);
}

static void one_probe_then_closed(void **state)
{
    bool probe = false, second = false;
    fail_times(5, 1000);
    assert_int_equal(bt_breaker_state(&b, 11000), BT_BREAKER_HALF_OPEN);
    assert_true(bt_breaker_allows(&b, 11000));
    assert_true(bt_breaker_enter(&b, 11000, &probe));
    assert_true(probe);
    assert_false(bt_breaker_allows(&b, 11000));
    assert_false(bt_breaker_enter(&b, 11000, &second));
    bt_breaker_success(&b, false); /* an old leg ends well: proves nothing about now */
    assert_false(bt_breaker_allows(&b, 11000));
    bt_breaker_success(&b, true);
    assert_int_equal(bt_breaker_state(&b, 11000), BT_BREAKER_CLOSED);
    fail_times(4, 11000);
    assert_int_equal(bt_breaker_state(&b, 11000),
                     BT_BREAKER_CLOSED); /* counts from nothing again */
}

static void innocent_probe_gives_the_slot_back(void **state)
{
    bool probe = false;
    fail_times(5, 1000);
    assert_true(bt_breaker_enter(&b, 11000, &probe));
    bt_breaker_innocent(&b, true);
    assert_int_equal(bt_breaker_state(&b, 11001), BT_BREAKER_HALF_OPEN);
    probe = false;
    assert_true(bt_breaker_enter(&b, 11001, &probe));
    assert_true(probe);
}

static void open_time_doubles_to_its_cap(void **state)
{
    static const uint64_t open_ms[] = {10000, 20000, 40000, 80000, 120000, 120000};
    uint64_t now_ms = 1000;
    bool probe;
    fail_times(5, now_ms);
    for (size_t i = 0; i < sizeof open_ms / sizeof open_ms[0]; i++) {
        assert_false(bt_breaker_allows(&b, now_ms + open_ms[i] - 1));
        now_ms += open_ms[i];
        assert_true(bt_breaker_enter(&b, now_ms, &probe));
        assert_true(probe);
        assert_true(bt_breaker_failure(&b, true, now_ms));
    }
    now_ms += 120000;
    assert_true(bt_breaker_enter(&b, now_ms, &probe));
    bt_breaker_success(&b, true);
    fail_times(5, now_ms);
    assert_true(bt_breaker_allows(&b, now_ms + 10000)); /* back to the first step */
}

static void late_failures_while_open_do_not_prolong(void **state)
{
    fail_times(5, 1000);
    fail_times(20, 5000);
    assert_true(bt_breaker_allows(&b, 11000));
    assert_int_equal(atomic_load(&b.opened_total), 1);
}

static void disabled_never_opens(void **state)
{
    b.config.disabled = true;
    fail_times(100, 1000);
    assert_true(bt_breaker_allows(&b, 1000));
}

static void thresholds_are_bounded(void **state)
{
    bt_breaker_t other;
    bt_breaker_config_t config;
    bt_breaker_config_defaults(&config);
    config.failures = 1000;
    bt_breaker_init(&other, &config);
    assert_int_equal(other.config.failures, BT_BREAKER_RING);
    for (unsigned i = 1; i < BT_BREAKER_RING; i++)
        assert_false(bt_breaker_failure(&other, false, 50));
    assert_true(bt_breaker_failure(&other, false, 50));
    bt_breaker_fini(&other);
}

static void a_worker_that_came_back_may_be_probed_at_once(void **state)
{
    bool probe = false;

    fail_times(5, 1000);
    assert_false(bt_breaker_allows(&b, 1001));
    bt_breaker_recovered(&b);
    assert_true(bt_breaker_enter(&b, 1002, &probe));
    assert_true(probe);
    assert_false(bt_breaker_allows(&b, 1002)); /* one, not many */
    bt_breaker_success(&b, true);
    bt_breaker_recovered(&b); /* closed: nothing */
    assert_int_equal(bt_breaker_state(&b, 1003), BT_BREAKER_CLOSED);
}

/* ---- a group ---- */

#define GROUP 4
static bt_breaker_t members[GROUP];
static bt_breaker_group_t *group;

static int setup_group(void **state)
{
    group = bt_breaker_group_new();
    for (unsigned i = 0; i < GROUP; i++) {
        bt_breaker_init(&members[i], NULL);
        bt_breaker_join(&members[i], group);
        bt_breaker_set_usable(&members[i], true);
    }
    return 0;
}

static int teardown_group(void **state)
{
    for (unsigned i = 0; i < GROUP; i++)
        bt_breaker_fini(&members[i]);
    assert_int_equal(atomic_load(&group->usable), 0);
    assert_int_equal(atomic_load(&group->out), 0);
    bt_breaker_group_unref(group);
    return 0;
}

static enum bt_breaker_effect fail_member(unsigned i, uint64_t now_ms)
{
    for (unsigned k = 0; k < 4; k++)
        (void) bt_breaker_failure(&members[i], false, now_ms);
    return bt_breaker_failure(&members[i], false, now_ms);
}

static unsigned allowed(uint64_t now_ms)
{
    unsigned count = 0;
    for (unsigned i = 0; i < GROUP; i++)
        count += bt_breaker_allows(&members[i], now_ms);
    return count;
}

static void half_stay_in_though_all_fail(void **state)
{
    assert_int_equal(fail_member(0, 1000), BT_BREAKER_OPENED);
    assert_int_equal(fail_member(1, 1000), BT_BREAKER_OPENED);
    assert_int_equal(fail_member(2, 1000), BT_BREAKER_SPARED);
    assert_int_equal(fail_member(3, 1000), BT_BREAKER_SPARED);
    assert_int_equal(allowed(1000), 2);
    assert_int_equal(bt_breaker_state(&members[2], 1000), BT_BREAKER_CLOSED);
    assert_true(bt_breaker_is_spared(&members[2], 10999));
    assert_false(bt_breaker_is_spared(&members[2], 11000));
    assert_int_equal(bt_breaker_failure(&members[2], false, 1000), BT_BREAKER_COUNTED);
    assert_int_equal(atomic_load(&members[2].spared_total), 1); /* told once */
}

static void a_free_place_goes_to_the_next_failure(void **state)
{
    bool probe;
    (void) fail_member(0, 1000);
    (void) fail_member(1, 1000);
    assert_int_equal(fail_member(2, 5000), BT_BREAKER_SPARED);
    assert_true(bt_breaker_enter(&members[0], 11000, &probe));
    bt_breaker_success(&members[0], probe);
    assert_int_equal(bt_breaker_failure(&members[2], false, 11000), BT_BREAKER_OPENED);
    assert_false(bt_breaker_is_spared(&members[2], 11000));
    assert_true(bt_breaker_enter(&members[1], 11000, &probe));
    assert_int_equal(bt_breaker_failure(&members[1], probe, 11000), BT_BREAKER_OPENED);
    assert_int_equal(atomic_load(&group->out), 2); /* it had its place already */
}

static void one_that_is_down_takes_no_place(void **state)
{
    bool probe;
    bt_breaker_set_usable(&members[0], false);
    bt_breaker_set_usable(&members[1], false);
    assert_int_equal(fail_member(0, 1000), BT_BREAKER_OPENED);
    assert_int_equal(fail_member(2, 1000), BT_BREAKER_OPENED); /* one of two */
    assert_int_equal(fail_member(3, 1000), BT_BREAKER_SPARED);
    bt_breaker_set_usable(&members[0], true); /* two out of three were too many */
    assert_int_equal(atomic_load(&group->out), 1);
    assert_true(bt_breaker_enter(&members[0], 1001, &probe));
    assert_true(probe);
    assert_int_equal(bt_breaker_failure(&members[0], true, 1001), BT_BREAKER_SPARED);
    assert_true(bt_breaker_allows(&members[0], 1001));
}

static void those_out_are_let_in_when_the_others_go_down(void **state)
{
    (void) fail_member(0, 1000);
    (void) fail_member(1, 1000);
    assert_int_equal(allowed(1001), 2);
    bt_breaker_set_usable(&members[2], false);
    assert_true(bt_breaker_allows(&members[0], 1001) && bt_breaker_allows(&members[1], 1001));
    assert_int_equal(bt_breaker_state(&members[0], 1001), BT_BREAKER_HALF_OPEN);
    bt_breaker_set_usable(&members[2], true);
    assert_int_equal(allowed(1001), 2);
}

static void one_may_be_out_be_it_alone(void **state)
{
    for (unsigned i = 1; i < GROUP; i++)
        bt_breaker_set_usable(&members[i], false);
    assert_int_equal(fail_member(0, 1000), BT_BREAKER_OPENED);
    assert_false(bt_breaker_allows(&members[0], 1001));
}

/* ---- threads ---- */

static _Atomic unsigned probes, refused, now_at;
static pthread_barrier_t barrier;

static void *race_for_probe(void *arg)
{
    (void) arg;
    for (int round = 0; round < 200; round++) {
        bool probe = false;
        pthread_barrier_wait(&barrier);
        uint64_t now_ms = atomic_load(&now_at);
        if (!bt_breaker_enter(&b, now_ms, &probe))
            atomic_fetch_add(&refused, 1);
        else if (probe)
            atomic_fetch_add(&probes, 1);
        pthread_barrier_wait(&barrier);
        if (probe && round % 2 == 0)
            bt_breaker_innocent(&b, true);
        else if (probe)
            (void) bt_breaker_failure(&b, true, now_ms);
        pthread_barrier_wait(&barrier);
        if (probe)
            atomic_store(&now_at, (unsigned) now_ms + 130000);
    }
    return NULL;
}

static void one_probe_among_eight_threads(void **state)
{
    pthread_t threads[8];
    fail_times(5, 1000);
    atomic_store(&now_at, 200000);
    pthread_barrier_init(&barrier, NULL, 8);
    for (int i = 0; i < 8; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, race_for_probe, NULL), 0);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&barrier);
    assert_int_equal(atomic_load(&probes), 200);
    assert_int_equal(atomic_load(&refused), 200 * 7);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(five_in_the_window_open_it),
        CASE(spread_out_failures_do_not),
        CASE(one_failure_is_enough_while_anothers_is_open),
        CASE(innocent_and_success_never_count),
        CASE(one_probe_then_closed),
        CASE(innocent_probe_gives_the_slot_back),
        CASE(open_time_doubles_to_its_cap),
        CASE(late_failures_while_open_do_not_prolong),
        CASE(disabled_never_opens),
        CASE(thresholds_are_bounded),
        CASE(a_worker_that_came_back_may_be_probed_at_once),
        CASE(one_probe_among_eight_threads),
#define GROUP_CASE(f) cmocka_unit_test_setup_teardown(f, setup_group, teardown_group)
        GROUP_CASE(half_stay_in_though_all_fail),
        GROUP_CASE(a_free_place_goes_to_the_next_failure),
        GROUP_CASE(one_that_is_down_takes_no_place),
        GROUP_CASE(those_out_are_let_in_when_the_others_go_down),
        GROUP_CASE(one_may_be_out_be_it_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
