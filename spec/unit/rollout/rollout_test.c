/* A set on its way through replicas: taken by all or by none, by whoever is there. */
#include "rig.h"

static void test_all_or_none(void **state)
{
    replica_t a, b;
    told_t told, second;

    start(&a, "a");
    start(&b, "b");
    WAIT_UNTIL(knows(&a, "b") && knows(&b, "a"));
    push(&a, "one");
    assert_int_equal(bt_rollout_number(a.rollout), 1);
    assert_int_equal(bt_rollout_number(b.rollout), 1);
    assert_int_equal(b.tries, 1);
    b.mode = REFUSING;
    told = ask(&a, "two");
    assert_int_equal(told.status, 400);
    assert_string_equal(told.why, "set 2 is committed nowhere: replica b refuses: x.lua:1: no");
    assert_int_equal(bt_rollout_number(a.rollout), 1);
    assert_int_equal(a.takes, 1);
    /* A number is never used twice. */
    b.mode = WILLING;
    push(&b, "two");
    assert_int_equal(bt_rollout_number(a.rollout), 3);
    told = ask(&b, "two");
    assert_int_equal(told.status, 200);
    assert_false(told.is_changed);
    assert_int_equal(told.number, 3);
    told = (told_t){.change = DROP, .name = "none"};
    told = finish(&b, &told, 0);
    assert_int_equal(told.status, 404);
    assert_string_equal(told.why, "none: not there");
    /* One at a time at one replica. */
    assert_int_equal(begin(&a, "three", &told), 0);
    assert_int_equal(begin(&a, "four", &second), BT_E_AGAIN);
    WAIT_UNTIL(told.times > 0);
    end(&a);
    end(&b);
}

static void test_who_is_silent_is_named(void **state)
{
    replica_t a, b;
    told_t told;

    vote_ms = 2000; /* not a's own word, when the machine stands still */
    start(&a, "a");
    start(&b, "b");
    WAIT_UNTIL(knows(&a, "b"));
    b.mode = SILENT;
    told = ask(&a, "one");
    assert_int_equal(told.status, 504);
    assert_string_equal(told.why, "set 1 is committed nowhere: no vote within 2000 ms from b");
    /* Its late word counts for nothing. */
    bt_rollout_tried(b.rollout, b.trying, 0, "");
    WAIT_UNTIL(!is_trying("b", 1) && strcmp(state_of(&b, 1), "aborted") == 0);
    b.mode = WILLING;
    push(&a, "two");
    assert_int_equal(bt_rollout_number(b.rollout), 2);
    end(&a);
    end(&b);
}

static told_t ask_dry(replica_t *r, const char *text)
{
    told_t told = {.change = PUT, .name = "m", .text = text, .is_dry_run = true};

    return finish(r, &told, 0);
}

/* All try it, and that is all. */
static void test_a_dry_run(void **state)
{
    replica_t a, b;
    told_t told;

    start(&a, "a");
    start(&b, "b");
    WAIT_UNTIL(knows(&a, "b") && knows(&b, "a"));
    push(&a, "one");
    told = ask_dry(&b, "two");
    assert_int_equal(told.status, 200);
    assert_true(told.is_changed);
    assert_int_equal(a.tries, 2);
    assert_int_equal(b.tries, 2);
    assert_int_equal(ask_dry(&b, "one").is_changed, false);
    a.mode = REFUSING;
    told = ask_dry(&b, "three");
    assert_int_equal(told.status, 400);
    assert_string_equal(told.why,
                        "not all replicas would serve it (set 2): replica a refuses: x.lua:1: no");
    a.mode = WILLING;
    assert_int_equal(bt_rollout_number(a.rollout), 1);
    assert_int_equal(bt_rollout_number(b.rollout), 1);
    assert_string_equal(text_of(&b), "one");
    push(&a, "four"); /* its number has not been used up */
    assert_int_equal(bt_rollout_number(b.rollout), 2);
    end(&a);
    end(&b);
}

static void test_who_is_gone_is_not_waited_for(void **state)
{
    replica_t a, b;

    start(&a, "a");
    start(&b, "b");
    WAIT_UNTIL(knows(&a, "b"));
    end(&b);
    push(&a, "one");
    assert_int_equal(bt_rollout_number(a.rollout), 1);
    assert_false(knows(&a, "b"));
    end(&a);
}

static void test_nothing_needs_the_proposer(void **state)
{
    replica_t a, b, c;
    told_t told;

    vote_ms = 600;
    start(&a, "a");
    start(&b, "b");
    start(&c, "c");
    WAIT_UNTIL(knows(&a, "b") && knows(&a, "c"));
    c.mode = SILENT;
    assert_int_equal(begin(&a, "one", &told), 0);
    WAIT_UNTIL(c.trying != NULL);
    end(&a);
    assert_int_equal(told.times, 0);
    bt_rollout_tried(c.rollout, c.trying, 0, "");
    WAIT_UNTIL(bt_rollout_number(b.rollout) == 1 && bt_rollout_number(c.rollout) == 1);
    /* And where a vote never comes, anybody ends it. */
    start(&a, "a");
    WAIT_UNTIL(knows(&a, "b") && knows(&a, "c"));
    bt_rollout_set_unref(c.trying);
    c.trying = NULL;
    assert_int_equal(begin(&a, "two", &told), 0);
    WAIT_UNTIL(c.trying != NULL);
    end(&a);
    WAIT_UNTIL(strcmp(state_of(&b, 2), "aborted") == 0);
    bt_rollout_tried(c.rollout, c.trying, 0, "");
    c.mode = WILLING;
    push(&b, "three");
    assert_int_equal(bt_rollout_number(c.rollout), 3);
    end(&b);
    end(&c);
}

/* The highest wins: a store that has lost its newest entries does not take a replica back. */
static void test_a_store_that_has_lost_the_newest(void **state)
{
    bt_rollout_entry_t older = {.kind = BT_ROLLOUT_BASE, .info.number = 1, .info.uuid = "u1"};
    replica_t a, b;

    start(&a, "a");
    push(&a, "one");
    push(&a, "two");
    drop("policy_log");
    add_by_hand(&older);
    WAIT_UNTIL(strcmp(state_of(&a, 2), "committed") == 0);
    start(&b, "b");
    WAIT_UNTIL(bt_rollout_number(b.rollout) == 2);
    assert_int_equal(bt_rollout_number(a.rollout), 2);
    push(&b, "three");
    assert_int_equal(bt_rollout_number(a.rollout), 3);
    end(&a);
    end(&b);
}

static void test_what_cannot_be_taken_is_tried_again(void **state)
{
    replica_t a, b;

    start(&a, "a");
    start(&b, "b");
    WAIT_UNTIL(knows(&a, "b"));
    b.take_mode = REFUSING;
    push(&a, "one"); /* it is committed; who is behind is in the answer */
    assert_true(has_trouble(&a, "b", "set 1 does not serve here: no room"));
    assert_int_equal(bt_rollout_number(b.rollout), 0);
    b.take_mode = WILLING;
    WAIT_UNTIL(bt_rollout_number(b.rollout) == 1);
    WAIT_UNTIL(!has_trouble(&a, "b", "no room"));
    snprintf(b.trouble, sizeof b.trouble, "taken back");
    WAIT_UNTIL(has_trouble(&a, "b", "taken back"));
    end(&a);
    end(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_all_or_none),
        TEST(test_who_is_silent_is_named),
        TEST(test_a_dry_run),
        TEST(test_who_is_gone_is_not_waited_for),
        TEST(test_nothing_needs_the_proposer),
        TEST(test_a_store_that_has_lost_the_newest),
        TEST(test_what_cannot_be_taken_is_tried_again),
    };

    alarm(120);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
