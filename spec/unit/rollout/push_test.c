/* A change on its way at the replica that was asked: who else is at it, and what can be brought
 * back. */
#include "rig.h"

static void test_a_busy_fleet_says_who(void **state)
{
    replica_t a, b;
    told_t first, second;

    start(&a, "a");
    start(&b, "b");
    WAIT_UNTIL(knows(&a, "b"));
    b.mode = SILENT;
    assert_int_equal(begin(&a, "one", &first), 0);
    WAIT_UNTIL(b.trying != NULL);
    second = ask(&b, "two");
    assert_int_equal(second.status, 409);
    assert_string_equal(second.why,
                        "replica a is rolling something out: try again when it is done");
    bt_rollout_tried(b.rollout, b.trying, 0, "");
    WAIT_UNTIL(first.times > 0);
    assert_int_equal(first.status, 200);
    end(&a);
    end(&b);
}

/* Both have read the same, and both propose: the log's order decides. */
static void test_of_two_at_once_one_is_first(void **state)
{
    replica_t a, b;
    told_t first, second;

    start(&a, "a");
    start(&b, "b");
    WAIT_UNTIL(knows(&a, "b") && knows(&b, "a"));
    push(&a, "zero");
    assert_int_equal(begin(&a, "one", &first), 0);
    assert_int_equal(begin(&b, "two", &second), 0);
    WAIT_UNTIL(first.times > 0 && second.times > 0);
    assert_int_equal(first.status + second.status, 200 + 409);
    assert_int_equal(bt_rollout_number(a.rollout), 2);
    assert_int_equal(bt_rollout_number(b.rollout), 2);
    assert_string_equal(text_of(&a), first.status == 200 ? "one" : "two");
    end(&a);
    end(&b);
}

static void test_back(void **state)
{
    replica_t a;
    told_t told;

    start(&a, "a");
    told = back(&a, 0);
    assert_int_equal(told.status, 409);
    push(&a, "one");
    push(&a, "two");
    push(&a, "three");
    told = back(&a, 0);
    assert_int_equal(told.status, 200);
    assert_string_equal(text_of(&a), "two");
    assert_int_equal(bt_rollout_held(a.rollout)->info.copy_of, 2);
    assert_int_equal(back(&a, 1).status, 200); /* its texts are in the store only */
    assert_string_equal(text_of(&a), "one");
    assert_int_equal(back(&a, 77).status, 400);
    a.mode = REFUSING;
    assert_int_equal(ask(&a, "no").status, 400);
    a.mode = WILLING;
    assert_int_equal(back(&a, 6).status, 400); /* it was aborted */
    for (unsigned i = 0; i < 10; i++) {
        push(&a, "x");
        push(&a, "y");
    }
    told = back(&a, 1);
    assert_int_equal(told.status, 409);
    assert_string_equal(told.why, "the store does not have the texts of set 1 any more");
    end(&a);
}

/* However many were refused since, and whoever is asked. */
static void test_the_set_before_can_always_be_gone_back_to(void **state)
{
    char text[16];
    replica_t a;

    start(&a, "a");
    push(&a, "one");
    push(&a, "two");
    a.mode = REFUSING;
    for (unsigned i = 0; i < 24; i++) {
        snprintf(text, sizeof text, "refused %u", i);
        assert_int_equal(ask(&a, text).status, 400);
    }
    end(&a);
    start(&a, "a"); /* it has its texts from the store only */
    assert_int_equal(back(&a, 0).status, 200);
    assert_string_equal(text_of(&a), "one");
    end(&a);
}

/* Nobody would vote, so nothing is proposed. */
static void test_all_are_pinned(void **state)
{
    told_t told;
    replica_t a;

    start(&a, "a");
    push(&a, "one");
    bt_rollout_pin(a.rollout, true);
    WAIT_UNTIL(knows(&a, "a") && peer_of(&a, "a")->is_pinned);
    told = ask(&a, "two");
    assert_int_equal(told.status, 409);
    assert_string_equal(told.why, "every replica is pinned: nobody can say whether it would serve");
    assert_string_equal(state_of(&a, 2), "");
    bt_rollout_pin(a.rollout, false);
    WAIT_UNTIL(!peer_of(&a, "a")->is_pinned);
    push(&a, "two");
    assert_int_equal(bt_rollout_number(a.rollout), 2);
    end(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_busy_fleet_says_who),
        TEST(test_of_two_at_once_one_is_first),
        TEST(test_back),
        TEST(test_all_are_pinned),
        TEST(test_the_set_before_can_always_be_gone_back_to),
    };

    alarm(120);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
