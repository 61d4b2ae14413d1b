/* A store that stops, loses a reply or is flushed, and a replica that is killed, at every step of a
 * push: at the end all replicas serve the new set or all serve the old one, what was told agrees
 * with it, and the next push goes through. */
#include "rig.h"

#define STEPS 16 /* more than a push of three replicas has */

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

/* A machine that is slow lets a vote expire: then once more. */
static void push_until_it_is_taken(replica_t *r, const char *text)
{
    unsigned tries = 0;

    while (ask(r, text).status != 200)
        assert_true(tries++ < 50);
}

static bool has_open(const replica_t *r)
{
    bt_rollout_view_t view;

    bt_rollout_view(r->rollout, &view);
    return bt_rollout_open(view.log) != NULL;
}

static bool are_of_one_mind(const replica_t *r)
{
    for (unsigned i = 0; i < 3; i++)
        if (!knows(&r[i], "a") || !knows(&r[i], "b") || !knows(&r[i], "c") || has_open(&r[i]) ||
            bt_rollout_number(r[i].rollout) != bt_rollout_committed(r[i].rollout) ||
            bt_rollout_number(r[i].rollout) != bt_rollout_number(r[0].rollout))
            return false;
    return true;
}

static void run_accident(enum accident accident, unsigned at)
{
    const char *const names[] = {"a", "b", "c"};
    replica_t r[3];
    told_t told;

    for (unsigned i = 0; i < 3; i++)
        start(&r[i], names[i]);
    for (unsigned i = 0; i < 3; i++)
        WAIT_UNTIL(knows(&r[i], "a") && knows(&r[i], "b") && knows(&r[i], "c"));
    push_until_it_is_taken(&r[0], "one");
    WAIT_UNTIL(are_of_one_mind(r));
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
        WAIT_UNTIL(told.times == 1);
    /* All are of one mind, and it is what was told. */
    WAIT_UNTIL(are_of_one_mind(r));
    const bool is_new = strcmp(text_of(&r[0]), "two") == 0;
    if (told.times > 0 && told.status == 200)
        assert_true(is_new);
    if (told.times > 0 && told.status != 200 && told.status != 502)
        assert_false(is_new);
    for (unsigned i = 0; i < 3; i++)
        assert_string_equal(text_of(&r[i]), is_new ? "two" : "one");
    push_until_it_is_taken(&r[1], "three"); /* nothing is in the way of the next one */
    for (unsigned i = 0; i < 3; i++)
        WAIT_UNTIL(strcmp(text_of(&r[i]), "three") == 0);
    for (unsigned i = 0; i < 3; i++)
        end(&r[i]);
}

static void run_accidents(enum accident accident)
{
    static unsigned number;

    interval_ms = 3;
    expiry_ms = 100;
    vote_ms = 300;
    for (unsigned at = 0; at < STEPS; at++) {
        snprintf(space, sizeof space, "accident%u", number++);
        run_accident(accident, at);
    }
}

static void test_a_store_that_stops_at_each_step(void **state)
{
    run_accidents(STOPPED);
}

static void test_a_store_whose_reply_is_lost_at_each_step(void **state)
{
    run_accidents(LOST_REPLY);
}

static void test_a_store_that_is_flushed_at_each_step(void **state)
{
    run_accidents(FLUSHED);
}

static void test_a_proposer_that_is_killed_at_each_step(void **state)
{
    run_accidents(PROPOSER);
}

static void test_a_member_that_is_killed_at_each_step(void **state)
{
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
