/* A store that stops, loses a reply or is flushed, and a replica that is killed, at every step of a push: at the end all replicas serve the
 * new set or all serve the old one, what was told agrees with it, and the next push goes through. */
#include "rig.h"

#define STEPS 22 /* more than a push of three replicas has */

enum accident { STOPPED, LOST_REPLY, FLUSHED, PROPOSER, MEMBER };

static bool is_due; /* the step has come */

static void on_due(void)
{
    is_due = true;
}

static void flush_now(replica_t *r)
{
    fault = NO_FAULT;
    forget_all(r);
}

static void run_accident(enum accident accident, unsigned at)
{
    const char *const names[] = {"a", "b", "c"};
    replica_t r[3];
    told_t told;

    for (unsigned i = 0; i < 3; i++)
        start(&r[i], names[i]);
    for (unsigned i = 0; i < 3; i++)
        TURN_UNTIL(&loop, knows(&r[i], "a") && knows(&r[i], "b") && knows(&r[i], "c"));
    push(&r[0], "one");
    for (unsigned i = 0; i < 3; i++)
        TURN_UNTIL(&loop, !is_trying(names[i], 1));
    steps = 0;
    fault_step = at;
    is_due = false;
    on_step = on_due;
    if (accident == STOPPED || accident == FLUSHED)
        fault = BEFORE;
    if (accident == LOST_REPLY)
        fault = AFTER;
    assert_int_equal(begin(&r[0], "two", &told), 0);
    for (unsigned i = 0; !is_due && told.times == 0 && i < 10000; i++)
        uv_run(&loop.uv, UV_RUN_ONCE);
    on_step = NULL;
    const unsigned victim = accident == PROPOSER ? 0 : 1;
    if (is_due && accident >= PROPOSER)
        end(&r[victim]);
    for (unsigned i = 0; fault != NO_FAULT && i < 10; i++)
        uv_run(&loop.uv, UV_RUN_ONCE); /* the store stands still for a while */
    if (accident == FLUSHED)
        flush_now(&r[2]);
    fault = NO_FAULT;
    if (is_due && accident >= PROPOSER)
        start(&r[victim], names[victim]);
    if (!is_due || accident != PROPOSER)
        TURN_UNTIL(&loop, told.times == 1);
    /* All are of one mind, and it is what was told. */
    for (unsigned i = 0; i < 3; i++)
        TURN_UNTIL(&loop, knows(&r[i], "a") && knows(&r[i], "b") && knows(&r[i], "c") &&
                              strcmp(state_of(&r[i], 2), "proposed") != 0);
    TURN_UNTIL(&loop, bt_rollout_number(r[0].rollout) == bt_rollout_number(r[1].rollout) &&
                          bt_rollout_number(r[1].rollout) == bt_rollout_number(r[2].rollout));
    const bool is_new = bt_rollout_number(r[0].rollout) == 2;
    if (!is_new)
        assert_int_equal(bt_rollout_number(r[0].rollout), 1);
    if (told.times > 0 && told.status == 200)
        assert_true(is_new);
    if (told.times > 0 && told.status != 200 && told.status != 502)
        assert_false(is_new);
    for (unsigned i = 0; i < 3; i++)
        assert_string_equal(text_of(&r[i]), is_new ? "two" : "one");
    push(&r[1], "three"); /* nothing is in the way of the next one */
    for (unsigned i = 0; i < 3; i++)
        TURN_UNTIL(&loop, strcmp(text_of(&r[i]), "three") == 0);
    for (unsigned i = 0; i < 3; i++)
        end(&r[i]);
}

static void run_accidents(enum accident accident)
{
    static unsigned number;

    interval_ms = 3;
    expiry_ms = 100;
    vote_ms = 250;
    for (unsigned at = 0; at < STEPS; at++) {
        snprintf(space, sizeof space, "accident%u", number++);
        run_accident(accident, at);
    }
}

static void test_a_store_that_stops_at_each_step(void **state)
{
    (void) state;
    run_accidents(STOPPED);
}

static void test_a_store_whose_reply_is_lost_at_each_step(void **state)
{
    (void) state;
    run_accidents(LOST_REPLY);
}

static void test_a_store_that_is_flushed_at_each_step(void **state)
{
    (void) state;
    run_accidents(FLUSHED);
}

static void test_a_proposer_that_is_killed_at_each_step(void **state)
{
    (void) state;
    run_accidents(PROPOSER);
}

static void test_a_member_that_is_killed_at_each_step(void **state)
{
    (void) state;
    run_accidents(MEMBER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_store_that_stops_at_each_step),
        TEST(test_a_store_whose_reply_is_lost_at_each_step),
        TEST(test_a_store_that_is_flushed_at_each_step),
        TEST(test_a_proposer_that_is_killed_at_each_step),
        TEST(test_a_member_that_is_killed_at_each_step),
    };

    alarm(120);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
