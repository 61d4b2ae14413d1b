#include "cluster/checks/loss.h"

#include "help.h"

#include <stdio.h>

#define N 5

static const bt_health_rules_t rules = {.interval_ms = 5000, .failures = 3, .successes = 2};
static bt_loss_book_t book;
static bt_loss_track_t tracks[N];
static bt_worker_t *w[N];
static unsigned told;

static void on_lost(void *user)
{
    (void) user;
    told++;
}

static int setup(void **state)
{
    char url[32];

    bt_loss_init(&book, &rules);
    book.on_lost = on_lost;
    told = 0;
    for (unsigned i = 0; i < N; i++) {
        snprintf(url, sizeof url, "http://127.0.0.1:%u", i + 1);
        w[i] = quick_worker(BT_ROLE_PREFILL, url, "nixl");
        set_up(w[i]);
        bt_loss_watch(&book, &tracks[i], w[i]);
        bt_loss_note(&book, &tracks[i], BT_VERDICT_OK, 1000, 1001);
    }
    return 0;
}

static int teardown(void **state)
{
    for (unsigned i = 0; i < N; i++) {
        bt_loss_unwatch(&tracks[i]);
        bt_worker_unref(w[i]);
    }
    return 0;
}

/* A check that took 2 s. */
static bool note(unsigned i, enum bt_verdict verdict, uint64_t began_ms)
{
    book.heartbeat_ms = began_ms + 2000;
    bt_loss_note(&book, &tracks[i], verdict, began_ms, began_ms + 2000);
    return bt_worker_is_lost(w[i]);
}

static void a_dead_engine_is_lost_at_once_and_once(void **state)
{
    assert_true(note(0, BT_VERDICT_DEAD, 10000));
    assert_int_equal(bt_worker_lost_since(w[0]), 12000);
    assert_int_equal(atomic_load(&w[0]->health), BT_HEALTH_DOWN);
    assert_int_equal(w[0]->breaker.failed_count, 1);
    assert_true(note(0, BT_VERDICT_DEAD, 15000));
    assert_int_equal(told, 1);
    assert_int_equal(atomic_load(&w[0]->losses_total), 1);
    assert_int_equal(w[0]->breaker.failed_count, 1);
    bt_worker_set_health(w[0], BT_HEALTH_UP, "back");
    assert_false(bt_worker_is_lost(w[0]));
    assert_true(note(0, BT_VERDICT_DEAD, 30000));
    assert_int_equal(told, 2);
}

static void bytes_after_the_question_contradict_it(void **state)
{
    bt_worker_note_bytes(w[0], 10001);
    assert_false(note(0, BT_VERDICT_DEAD, 10000));
    assert_int_equal(told, 0);
}

static void what_came_after_a_loss_is_lost_again(void **state)
{
    assert_true(note(0, BT_VERDICT_DEAD, 10000));
    bt_worker_note_bytes(w[0], 12100);
    assert_true(note(0, BT_VERDICT_DEAD, 15000));
    assert_int_equal(told, 2);
    assert_int_equal(bt_worker_lost_since(w[0]), 17000);
}

static void three_failed_checks_without_a_byte(void **state)
{
    bt_worker_note_bytes(w[0], 9000);
    assert_false(note(0, BT_VERDICT_FAIL, 10000));
    assert_false(note(0, BT_VERDICT_FAIL, 15000));
    assert_true(note(0, BT_VERDICT_FAIL, 20000));
    assert_int_equal(bt_worker_lost_since(w[0]), 10000);
}

static void a_byte_begins_the_row_anew(void **state)
{
    assert_false(note(0, BT_VERDICT_FAIL, 10000));
    assert_false(note(0, BT_VERDICT_FAIL, 15000));
    bt_worker_note_bytes(w[0], 18000);
    assert_false(note(0, BT_VERDICT_FAIL, 20000));
    assert_false(note(0, BT_VERDICT_FAIL, 25000));
    assert_true(note(0, BT_VERDICT_FAIL, 30000));
}

static void good_and_refused_checks_break_the_row(void **state)
{
    static const enum bt_verdict between[] = {BT_VERDICT_OK, BT_VERDICT_REFUSED,
                                              BT_VERDICT_SCALING};
    uint64_t at_ms = 10000;

    for (unsigned i = 0; i < 3; i++) {
        assert_false(note(0, BT_VERDICT_FAIL, at_ms += 5000));
        assert_false(note(0, BT_VERDICT_FAIL, at_ms += 5000));
        assert_false(note(0, between[i], at_ms += 5000));
    }
    for (unsigned i = 0; i < 5; i++)
        assert_false(note(0, BT_VERDICT_REFUSED, at_ms += 5000));
}

static void our_own_want_says_nothing(void **state)
{
    note(0, BT_VERDICT_FAIL, 10000);
    note(0, BT_VERDICT_FAIL, 15000);
    assert_false(note(0, BT_VERDICT_OURS, 20000));
    assert_true(note(0, BT_VERDICT_FAIL, 25000));
}

static void one_failure_is_not_enough_while_bytes_come(void **state)
{
    static const bt_health_rules_t one = {.interval_ms = 5000, .failures = 1, .successes = 2};

    book.rules = &one;
    bt_worker_note_bytes(w[0], 9900);
    assert_false(note(0, BT_VERDICT_FAIL, 10000));
    assert_true(note(0, BT_VERDICT_FAIL, 15000));
}

static void who_never_was_well_cannot_be_lost(void **state)
{
    tracks[0].has_answered = false;
    for (unsigned i = 0; i < 5; i++)
        assert_false(note(0, BT_VERDICT_FAIL, 10000 + 5000 * i));
    assert_false(note(0, BT_VERDICT_DEAD, 50000));
}

/* count of the five fall silent, one after the other within an interval. */
static unsigned lose_many(unsigned count)
{
    unsigned lost = 0;

    for (unsigned round = 0; round < 3; round++)
        for (unsigned i = 0; i < count; i++)
            (void) note(i, BT_VERDICT_FAIL, 10000 + 5000 * round + 1000 * i);
    for (unsigned i = 0; i < count; i++)
        lost += bt_worker_is_lost(w[i]);
    return lost;
}

static void two_of_five_are_lost(void **state)
{
    assert_int_equal(lose_many(2), 2);
}

static void most_of_a_role_is_not_cut(void **state)
{
    uint64_t before = bt_loss_withheld(BT_LOSS_WITHHELD_ROLE);

    assert_int_equal(lose_many(3), 0);
    assert_int_equal(told, 0);
    assert_int_equal(bt_loss_withheld(BT_LOSS_WITHHELD_ROLE), before + 3);
    assert_false(note(0, BT_VERDICT_FAIL, 25000));
    assert_int_equal(bt_loss_withheld(BT_LOSS_WITHHELD_ROLE), before + 3); /* once a silence */
    (void) note(1, BT_VERDICT_OK, 26000); /* the others are back: now it is only this one */
    (void) note(2, BT_VERDICT_OK, 27000);
    assert_true(note(0, BT_VERDICT_FAIL, 30000));
}

static void a_small_role_has_no_most(void **state)
{
    w[3]->spec.role = w[4]->spec.role = BT_ROLE_DECODE;
    assert_int_equal(lose_many(3), 3);
}

static void those_that_fell_silent_before_do_not_count(void **state)
{
    for (unsigned i = 0; i < 3; i++)
        (void) note(0, BT_VERDICT_FAIL, 10000 + 5000 * i);
    for (unsigned i = 0; i < 3; i++)
        for (unsigned k = 1; k < 3; k++)
            (void) note(k, BT_VERDICT_FAIL, 30000 + 5000 * i);
    assert_true(bt_worker_is_lost(w[0]));
    assert_true(bt_worker_is_lost(w[1]));
    assert_true(bt_worker_is_lost(w[2]));
}

static void checks_that_ran_out_while_we_stood_still_do_not_count(void **state)
{
    uint64_t before = bt_loss_withheld(BT_LOSS_WITHHELD_STALL);

    note(0, BT_VERDICT_FAIL, 10000);
    note(0, BT_VERDICT_FAIL, 15000);
    bt_loss_heartbeat(&book, 17500);
    bt_loss_note(&book, &tracks[0], BT_VERDICT_FAIL, 18000,
                 20000); /* the last heartbeat was 17500 */
    assert_int_equal(bt_loss_withheld(BT_LOSS_WITHHELD_STALL), before + 1);
    assert_false(bt_worker_is_lost(w[0]));
    assert_false(note(0, BT_VERDICT_FAIL, 25000));
    assert_true(note(0, BT_VERDICT_FAIL, 30000));
}

/* Nobody waits on a worker that has been stopped as it should be: its end is no failure. */
static void a_process_that_is_gone_is_lost_with_its_legs(void **state)
{
    bt_loss_gone(&book, w[0], "gone", 10000);
    assert_int_equal(told, 0);
    assert_int_equal(atomic_load(&w[0]->health), BT_HEALTH_UP);
    for (unsigned phase = 0; phase < BT_PHASE_COUNT; phase++) {
        atomic_store(&bt_worker_total(w[phase], phase)->requests, 1);
        bt_loss_gone(&book, w[phase], "gone", 10000);
        assert_true(bt_worker_is_lost(w[phase]));
        assert_int_equal(bt_worker_lost_since(w[phase]), 10000);
        assert_int_equal(atomic_load(&w[phase]->health), BT_HEALTH_DOWN);
        bt_loss_gone(&book, w[phase], "gone", 10001); /* two agents of one process */
        atomic_store(&bt_worker_total(w[phase], phase)->requests, 0);
        assert_int_equal(atomic_load(&w[phase]->losses_total), 1);
    }
    assert_int_equal(told, 2);
}

int main(void)
{
#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(a_dead_engine_is_lost_at_once_and_once),
        CASE(bytes_after_the_question_contradict_it),
        CASE(what_came_after_a_loss_is_lost_again),
        CASE(three_failed_checks_without_a_byte),
        CASE(a_byte_begins_the_row_anew),
        CASE(good_and_refused_checks_break_the_row),
        CASE(our_own_want_says_nothing),
        CASE(one_failure_is_not_enough_while_bytes_come),
        CASE(who_never_was_well_cannot_be_lost),
        CASE(two_of_five_are_lost),
        CASE(most_of_a_role_is_not_cut),
        CASE(a_small_role_has_no_most),
        CASE(those_that_fell_silent_before_do_not_count),
        CASE(checks_that_ran_out_while_we_stood_still_do_not_count),
        CASE(a_process_that_is_gone_is_lost_with_its_legs),
    };
    bt_log_set(BT_LOG_ERROR, false, 2);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
