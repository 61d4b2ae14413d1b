#include "cluster/pair_breaker.h"
#include "help.h"

#define REST 10000
#define REST_MAX 40000

static bt_worker_t *p0, *p1, *d0, *d1;
static uint64_t now_ms = 1000;

static bt_worker_t *worker(enum bt_role role)
{
    bt_worker_t *w = quick_worker(role, "http://127.0.0.1:1", "NixlConnector");

    w->breaker.config.open_ms = REST;
    w->breaker.config.open_max_ms = REST_MAX;
    return w;
}

static int make(void **state)
{
    p0 = worker(BT_ROLE_PREFILL);
    p1 = worker(BT_ROLE_PREFILL);
    d0 = worker(BT_ROLE_DECODE);
    d1 = worker(BT_ROLE_DECODE);
    return 0;
}

static int drop(void **state)
{
    bt_worker_unref(p0);
    bt_worker_unref(p1);
    bt_worker_unref(d0);
    bt_worker_unref(d1);
    return 0;
}

static uint64_t fails(bt_worker_t *p, bt_worker_t *d, unsigned times)
{
    uint64_t rest_ms = 0;

    while (times-- > 0)
        rest_ms = bt_pair_breaker_failure(p, d, false, now_ms);
    return rest_ms;
}

static bool rests(const bt_worker_t *p, const bt_worker_t *d)
{
    return bt_pair_breaker_rests(p, d, now_ms);
}

static void a_pair_rests_after_three_failures_in_a_row_and_no_other_does(void **state)
{
    assert_int_equal(fails(p0, d1, 2), 0);
    assert_false(rests(p0, d1) || bt_pair_breaker_may_rest(p0, now_ms));
    assert_false(bt_pair_breaker_success(p0, d1));
    assert_int_equal(fails(p0, d1, 2), 0); /* in a row */
    assert_int_equal(fails(p0, d1, 1), REST);
    assert_true(rests(p0, d1));
    assert_false(rests(p0, d0) || rests(p1, d1) || rests(p1, d0));
    assert_int_equal(bt_pair_breaker_left_ms(p0, d1, now_ms), REST);
    assert_int_equal(fails(p0, d1, 5), 0); /* of requests that had begun before */
    now_ms += REST;
    assert_false(rests(p0, d1));
}

static void one_tries_it_and_the_others_wait_for_what_it_finds(void **state)
{
    fails(p0, d0, 3);
    assert_false(bt_pair_breaker_enter(p0, d0, now_ms)); /* it is the only pair, and still rests */
    now_ms += REST;
    assert_false(bt_pair_breaker_enter(p0, d1, now_ms));
    assert_true(bt_pair_breaker_enter(p0, d0, now_ms));
    assert_true(rests(p0, d0));
    assert_false(bt_pair_breaker_enter(p0, d0, now_ms));
    assert_true(bt_pair_breaker_success(p0, d0));
    assert_false(rests(p0, d0));
    assert_int_equal(fails(p0, d0, 2), 0); /* as new */
    assert_int_equal(fails(p0, d0, 1), REST);
}

static void what_fails_again_rests_longer_up_to_a_limit(void **state)
{
    const uint64_t longer[] = {2 * REST, REST_MAX, REST_MAX};

    fails(p0, d0, 3);
    for (unsigned i = 0; i < 3; i++) {
        now_ms += REST_MAX;
        assert_true(bt_pair_breaker_enter(p0, d0, now_ms));
        assert_int_equal(bt_pair_breaker_failure(p0, d0, true, now_ms), longer[i]);
        assert_int_equal(bt_pair_breaker_left_ms(p0, d0, now_ms), longer[i]);
    }
}

/* Nobody heard what became of it. */
static void a_try_that_says_nothing_is_followed_by_another(void **state)
{
    fails(p0, d0, 3);
    now_ms += REST;
    assert_true(bt_pair_breaker_enter(p0, d0, now_ms));
    now_ms += 2 * REST;
    assert_false(rests(p0, d0));
    assert_true(bt_pair_breaker_enter(p0, d0, now_ms));
}

static void a_restart_of_either_is_a_new_pair(void **state)
{
    fails(p0, d0, 3);
    fails(p0, d1, 2);
    bt_worker_restarted(d0);
    assert_false(rests(p0, d0));
    assert_int_equal(fails(p0, d0, 2), 0);
    bt_worker_restarted(p0);
    assert_int_equal(fails(p0, d1, 2), 0);
    assert_int_equal(fails(p0, d1, 1), REST);
}

static void what_failed_long_ago_is_forgotten(void **state)
{
    fails(p0, d0, 2);
    now_ms += 3600000;
    assert_int_equal(fails(p0, d0, 2), 0);
}

static void without_breakers_nothing_rests(void **state)
{
    d0->breaker.config.disabled = true;
    assert_int_equal(fails(p0, d0, 10), 0);
    assert_false(rests(p0, d0));
}

static void a_full_table_keeps_the_newest_and_counts(void **state)
{
    enum { MANY = 2 * BT_PAIR_BREAKER_PLACES };
    bt_worker_t *d[MANY];
    bt_pair_breaker_stats_t stats;

    for (unsigned i = 0; i < MANY; i++) {
        d[i] = worker(BT_ROLE_DECODE);
        now_ms++;
        assert_int_equal(fails(p0, d[i], 3), REST);
        assert_true(rests(p0, d[i]));
    }
    assert_true(bt_pair_breaker_count <= BT_PAIR_BREAKER_PLACES);
    bt_pair_breaker_stats(&stats, now_ms);
    assert_true(stats.resting > 0 && stats.resting <= BT_PAIR_BREAKER_PLACES);
    assert_true(stats.opened_total >= MANY);
    for (unsigned i = 0; i < MANY; i++) {
        (void) bt_pair_breaker_success(p0, d[i]);
        bt_worker_unref(d[i]);
    }
    bt_pair_breaker_stats(&stats, now_ms + 2 * REST_MAX);
    assert_int_equal(stats.resting, 0);
}

#define WITH_PAIRS(test) cmocka_unit_test_setup_teardown(test, make, drop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_PAIRS(a_pair_rests_after_three_failures_in_a_row_and_no_other_does),
        WITH_PAIRS(one_tries_it_and_the_others_wait_for_what_it_finds),
        WITH_PAIRS(what_fails_again_rests_longer_up_to_a_limit),
        WITH_PAIRS(a_try_that_says_nothing_is_followed_by_another),
        WITH_PAIRS(a_restart_of_either_is_a_new_pair),
        WITH_PAIRS(what_failed_long_ago_is_forgotten),
        WITH_PAIRS(without_breakers_nothing_rests),
        WITH_PAIRS(a_full_table_keeps_the_newest_and_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
