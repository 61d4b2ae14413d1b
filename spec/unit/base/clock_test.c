/* Clocks run forward and agree on units; dates agree with the C library over four centuries. */
#include "base/clock.h"
#include "unit.h"

#include <time.h>

static void test_monotonic(void **state)
{
    uint64_t ms = bt_clock_ms();
    uint64_t us = bt_clock_us();
    assert_true(us / 1000 >= ms);
    for (int i = 0; i < 1000; i++) {
        uint64_t next = bt_clock_us();
        assert_true(next >= us);
        us = next;
    }
    assert_true(bt_clock_ms() >= us / 1000);
}

static void test_wall(void **state)
{
    uint64_t before = (uint64_t) time(NULL);
    uint64_t wall = bt_clock_wall_ms() / 1000;
    assert_true(wall + 1 >= before && wall <= (uint64_t) time(NULL) + 1);
}

static void test_iso8601(void **state)
{
    char text[32];
    bt_clock_iso8601(0, text, sizeof(text));
    assert_string_equal(text, "1970-01-01T00:00:00.000Z");
    bt_clock_iso8601(UINT64_C(1769860800123), text, 25);
    assert_string_equal(text, "2026-01-31T12:00:00.123Z");
    bt_clock_iso8601(UINT64_C(951782400000), text, sizeof(text));
    assert_string_equal(text, "2000-02-29T00:00:00.000Z");
    bt_clock_iso8601(UINT64_C(4107542399999), text, sizeof(text)); /* 2100 is no leap year */
    assert_string_equal(text, "2100-02-28T23:59:59.999Z");
}

static void test_every_day_for_four_centuries(void **state)
{
    char mine[32], theirs[32];
    for (uint64_t day = 0; day < 146100; day++) {
        time_t seconds = (time_t) (day * 86400 + day % 86400);
        struct tm tm;
        gmtime_r(&seconds, &tm);
        strftime(theirs, sizeof(theirs), "%Y-%m-%dT%H:%M:%S.000Z", &tm);
        bt_clock_iso8601((uint64_t) seconds * 1000, mine, sizeof(mine));
        assert_string_equal(mine, theirs);
    }
}

static void wait_a_little(void)
{
    const uint64_t from_us = bt_clock_us();

    while (bt_clock_us() < from_us + 50)
        continue;
}

/* Waiting reads the clock, which others' reads of an event's time may not fall behind. */
static void an_event_has_one_time(void **state)
{
    uint64_t at_us, later_us;

    bt_clock_begin_event();
    at_us = bt_clock_event_us();
    for (int i = 0; i < 100000; i++)
        assert_true(bt_clock_event_us() == at_us && bt_clock_event_ms() == at_us / 1000);
    later_us = bt_clock_us();
    assert_true(later_us > at_us);
    assert_true(bt_clock_event_us() == later_us);
    wait_a_little();
    bt_clock_begin_event(); /* the next one */
    at_us = bt_clock_event_us();
    assert_true(at_us >= later_us + 50);
    bt_clock_end_event();
    wait_a_little();
    assert_true(bt_clock_event_us() >= at_us + 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_monotonic),
        cmocka_unit_test(an_event_has_one_time),
        cmocka_unit_test(test_wall),
        cmocka_unit_test(test_iso8601),
        cmocka_unit_test(test_every_day_for_four_centuries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
