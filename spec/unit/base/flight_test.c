/* A ring keeps the newest, counts what repeats, and never shows an entry that is half written. */
#include "base/flight.h"
#include "unit.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int open_one(void **state)
{
    if (bt_flight_open(2) < 0)
        return -1;
    bt_flight_bind(0);
    return 0;
}

static int close_all(void **state)
{
    bt_flight_close();
    return 0;
}

static bt_flight_event_t newest(void)
{
    bt_flight_event_t event;

    assert_true(bt_flight_read(0, bt_flight_last(0), &event));
    return event;
}

static void test_wraps(void **state)
{
    const unsigned all = BT_FLIGHT_ENTRIES + 10;
    bt_flight_event_t event;

    assert_int_equal(bt_flight_last(0), 0);
    assert_false(bt_flight_read(0, 0, &event));
    assert_false(bt_flight_read(0, 1, &event));
    for (unsigned i = 1; i <= all; i++)
        bt_flight_note(BT_FLIGHT_WORKER, i, "worker %u", i);
    assert_int_equal(bt_flight_last(0), all);
    assert_int_equal(bt_flight_first(all), 11);
    assert_false(bt_flight_read(0, 10, &event));
    assert_false(bt_flight_read(0, all + 1, &event));
    for (unsigned i = 11; i <= all; i++) {
        char detail[32];
        assert_true(bt_flight_read(0, i, &event));
        snprintf(detail, sizeof(detail), "worker %u", i);
        assert_string_equal(event.detail, detail);
        assert_int_equal(event.us, i);
        assert_int_equal(event.count, 1);
    }
    assert_int_equal(bt_flight_last(1), 0);
}

/* Which of the two is true depends on the clock alone: a machine that stalls for a second between two notes sees two entries. */
static void test_counts_what_repeats(void **state)
{
    bt_flight_event_t event;
    uint64_t sum = 0;

    for (unsigned i = 0; i < 50; i++) {
        bt_flight_note(BT_FLIGHT_POLICY, 1000 + i, "plan of policy slow");
        bt_flight_note(BT_FLIGHT_QUEUE, 0, "pool main: the line is full");
    }
    for (uint64_t n = 1; n <= bt_flight_last(0); n++) {
        assert_true(bt_flight_read(0, n, &event));
        assert_true(event.last_us >= event.at_us && event.last_us - event.at_us < 1000000);
        sum += event.count;
    }
    assert_int_equal(sum, 100);
    assert_true(bt_flight_last(0) < 100);
}

static void test_keeps_the_longest(void **state)
{
    for (unsigned tries = 0; tries < 5 && newest().count < 3; tries++) {
        bt_flight_stall(5000, 4000, "timers");
        bt_flight_stall(9000, 20000, "timers");
        bt_flight_stall(6000, 1, "timers");
    }
    const bt_flight_event_t event = newest();
    assert_int_equal(event.us, 9000);
    assert_int_equal(event.cpu_us, 9000); /* no more than it took */
    assert_string_equal(bt_flight_kind_name(event.kind), "loop_stall");
}

static int open_stalled(void **state)
{
    const int rc = open_one(state);

    bt_flight_stall(1, 1, "timers");
    return rc;
}

static void test_cuts_what_is_long(void **state)
{
    char name[200];

    memset(name, 'n', sizeof(name));
    name[sizeof(name) - 1] = '\0';
    bt_flight_note(BT_FLIGHT_WORKER, 0, "%s is down", name);
    assert_int_equal(strlen(newest().detail), BT_FLIGHT_DETAIL - 1);
}

static void *note_unbound(void *arg)
{
    (void) arg;
    bt_flight_note(BT_FLIGHT_WORKER, 0, "nobody's");
    bt_flight_stall(1000000, 0, "nobody's");
    bt_flight_bind(7);
    bt_flight_note(BT_FLIGHT_WORKER, 0, "nobody's");
    return NULL;
}

static void test_other_threads_note_nothing(void **state)
{
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, note_unbound, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(bt_flight_last(0) + bt_flight_last(1), 0);
    assert_int_equal(bt_flight_last(7), 0);
}

/* ---- one writes, one reads ---- */

#define ROUNDS 20000U

static atomic_bool is_over;

/* Each entry says one number in three ways; new text each time, so that the ring turns. */
static void *write_many(void *arg)
{
    (void) arg;
    bt_flight_bind(1);
    for (unsigned i = 1; i <= ROUNDS; i++)
        bt_flight_note(BT_FLIGHT_WORKER, i, "%060u", i);
    atomic_store(&is_over, true);
    return NULL;
}

static void test_nothing_is_torn(void **state)
{
    bt_flight_event_t event;
    pthread_t thread;
    uint64_t seen = 0;
    bool was_over;

    atomic_store(&is_over, false);
    assert_int_equal(pthread_create(&thread, NULL, write_many, NULL), 0);
    do {
        was_over = atomic_load(&is_over);
        const uint64_t last = bt_flight_last(1);
        for (uint64_t n = bt_flight_first(last); n <= last; n++) {
            if (!bt_flight_read(1, n, &event))
                continue;
            assert_int_equal(event.us, n);
            assert_int_equal(strtoull(event.detail, NULL, 10), n);
            assert_int_equal(strlen(event.detail), 60);
            seen++;
        }
    } while (!was_over);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(seen >= BT_FLIGHT_ENTRIES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_wraps, open_one, close_all),
        cmocka_unit_test_setup_teardown(test_counts_what_repeats, open_one, close_all),
        cmocka_unit_test_setup_teardown(test_keeps_the_longest, open_stalled, close_all),
        cmocka_unit_test_setup_teardown(test_cuts_what_is_long, open_one, close_all),
        cmocka_unit_test_setup_teardown(test_other_threads_note_nothing, open_one, close_all),
        cmocka_unit_test_setup_teardown(test_nothing_is_torn, open_one, close_all),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
