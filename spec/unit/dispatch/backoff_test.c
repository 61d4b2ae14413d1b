/* Pairs that fail wait longer each time, and none for another's sake. */
#include "dispatch/backoff.h"
#include "unit.h"

static bt_backoff_t b;

static int setup(void **state)
{
    b = (bt_backoff_t){0};
    return 0;
}

static uint64_t fail_once(uint64_t prefill, uint64_t decode, uint64_t now_ms, unsigned count)
{
    uint64_t wait_ms;
    assert_int_equal(bt_backoff_failed(&b, prefill, decode, now_ms, &wait_ms), count);
    return wait_ms;
}

static void waits_longer_each_time(void **state)
{
    assert_false(bt_backoff_must_wait(&b, 1, 2, 0));
    assert_int_equal(fail_once(1, 2, 1000, 1), 500);
    assert_true(bt_backoff_must_wait(&b, 1, 2, 1499));
    assert_false(bt_backoff_must_wait(&b, 1, 2, 1500));
    assert_int_equal(fail_once(1, 2, 1500, 2), 1000);
    for (unsigned i = 3; i <= 7; i++)
        assert_int_equal(fail_once(1, 2, 1500, i), 500 << (i - 1));
    assert_int_equal(fail_once(1, 2, 1500, 8), 60000);
    assert_int_equal(fail_once(1, 2, 1500, 9), 60000);
}

/* The same prefill's with several decodes, and all of them with several prefills. */
static void waits_for_no_other_pair(void **state)
{
    for (unsigned round = 1; round <= 3; round++)
        for (uint64_t p = 1; p <= 8; p++)
            for (uint64_t d = 1; d <= 16; d++)
                if ((p + d) % 2 == 0)
                    (void) fail_once(p << 24, d, 1000, round);
    for (uint64_t p = 1; p <= 8; p++)
        for (uint64_t d = 1; d <= 16; d++)
            assert_int_equal(bt_backoff_must_wait(&b, p << 24, d, 1001), (p + d) % 2 == 0);
}

static void a_full_table_gives_up_what_waits_least(void **state)
{
    unsigned waiting = 0;
    for (unsigned i = 1; i <= 6; i++)
        (void) fail_once(7, 7, 1000, i);
    for (uint64_t i = 0; i < 8 * BT_BACKOFF_PLACES; i++)
        (void) fail_once(100 + i, 1, 1000, 1);
    assert_true(bt_backoff_must_wait(&b, 7, 7, 1000 + (500 << 5) - 1));
    for (uint64_t i = 0; i < 8 * BT_BACKOFF_PLACES; i++)
        waiting += bt_backoff_must_wait(&b, 100 + i, 1, 1001);
    assert_int_equal(waiting, BT_BACKOFF_PLACES - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(waits_longer_each_time, setup),
        cmocka_unit_test_setup(waits_for_no_other_pair, setup),
        cmocka_unit_test_setup(a_full_table_gives_up_what_waits_least, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
