/* What a replica says in the log: of what it tries, of what has killed it, and of what is
 * committed. */
#include "rig.h"

static unsigned since_of(const replica_t *r)
{
    bt_rollout_view_t view;

    bt_rollout_view(r->rollout, &view);
    return view.log->since;
}

static void on_joined(void *user)
{
    *(bool *) user = true;
}

/* As the gateway begins: with what is committed. */
static void join(replica_t *r, const char *name)
{
    bool has_joined = false;

    make(r, name);
    bt_rollout_join(r->rollout, on_joined, &has_joined);
    WAIT_UNTIL(has_joined);
}

static bool is_blocked(const replica_t *r)
{
    return bt_rollout_is_blocked(r->rollout, bt_rollout_held(r->rollout));
}

static void test_a_proposal_without_texts_ends(void **state)
{
    bt_rollout_entry_t e;
    replica_t a;

    vote_ms = 600;
    start(&a, "a");
    push(&a, "one");
    e = proposal_by_hand(&a, 2, "[\"a\"]");
    add_by_hand(&e);
    WAIT_UNTIL(strcmp(state_of(&a, 2), "proposed") == 0);
    assert_int_equal(ask(&a, "two").status, 409);
    WAIT_UNTIL(strcmp(state_of(&a, 2), "aborted") == 0);
    /* Texts that are not what was proposed are refused at once. */
    e = proposal_by_hand(&a, 3, "[\"a\"]");
    (void) by_hand((bt_store_op_t){.what = BT_STORE_CELL_SET,
                                   .key = BT_STR("policy_set:by-hand-3"),
                                   .value = BT_STR("what is this")},
                   NULL, 0);
    add_by_hand(&e);
    WAIT_UNTIL(strcmp(state_of(&a, 3), "aborted") == 0);
    push(&a, "two");
    assert_int_equal(bt_rollout_number(a.rollout), 4);
    assert_int_equal(a.tries, 2);
    end(&a);
}

/* The log is bounded: what is committed is named again before it is cut off. */
static void test_a_log_that_grows_and_grows(void **state)
{
    bt_rollout_entry_t noise = {.kind = BT_ROLLOUT_YES, .info.uuid = "none"};
    replica_t a, b;

    start(&a, "a");
    push(&a, "one");
    for (unsigned i = 0; i < 20; i++) {
        const unsigned before = since_of(&a);
        for (unsigned k = 0; k < 500; k++)
            add_by_hand(&noise);
        WAIT_UNTIL(since_of(&a) >= before + 500 || since_of(&a) < before);
    }
    start(&b, "b");
    assert_int_equal(bt_rollout_held(b.rollout)->info.number, 1);
    WAIT_UNTIL(bt_rollout_number(b.rollout) == 1);
    end(&a);
    end(&b);
}

static void test_what_brought_a_replica_down_is_not_tried_again(void **state)
{
    replica_t a, b;
    told_t told;

    expiry_ms = 4000; /* a killed one is waited for */
    start(&a, "a");
    start(&b, "b");
    WAIT_UNTIL(knows(&a, "b"));
    push(&a, "one");
    b.mode = SILENT;
    assert_int_equal(begin(&a, "two", &told), 0);
    WAIT_UNTIL(b.trying != NULL);
    assert_true(is_trying("b", 2)); /* before it tries */
    end(&b);
    start(&b, "b");
    WAIT_UNTIL(told.times > 0);
    assert_int_equal(told.status, 400);
    assert_string_equal(
        told.why,
        "set 2 is committed nowhere: replica b refuses: it brought this replica down before");
    assert_int_equal(b.tries, 0);
    WAIT_UNTIL(bt_rollout_number(b.rollout) == 1); /* what served before serves again */
    /* It is about that set: another is tried like any. */
    push(&a, "two");
    assert_int_equal(b.tries, 1);
    assert_int_equal(bt_rollout_number(b.rollout), 3);
    WAIT_UNTIL(!is_trying("b", 2) && !is_trying("b", 3));
    end(&a);
    end(&b);
}

/* One that is killed and has not begun to try it votes like any other when it is back. */
static void test_who_was_killed_before_it_tried_may_try(void **state)
{
    replica_t a, b;
    told_t told;

    expiry_ms = 4000;
    start(&a, "a");
    start(&b, "b");
    WAIT_UNTIL(knows(&a, "b"));
    a.mode = SILENT; /* the proposal stays open */
    assert_int_equal(begin(&a, "one", &told), 0);
    end(&b); /* its row lives on */
    WAIT_UNTIL(a.trying != NULL);
    start(&b, "b");
    WAIT_UNTIL(b.tries == 1);
    bt_rollout_tried(a.rollout, a.trying, 0, "");
    WAIT_UNTIL(told.times > 0);
    assert_int_equal(told.status, 200);
    end(&a);
    end(&b);
}

static void test_a_replica_begins_without_what_brought_it_down(void **state)
{
    replica_t a, b;

    start(&a, "a");
    push(&a, "one");
    join(&b, "b");
    assert_true(is_trying("b", 1));
    assert_false(is_blocked(&b));
    bt_rollout_begin(b.rollout, bt_rollout_held(b.rollout));
    WAIT_UNTIL(!is_trying("b", 1)); /* it has begun */
    end(&b);
    join(&b, "b");
    end(&b); /* killed while it begins */
    for (int i = 0; i < 2; i++) {
        join(&b, "b");
        assert_true(is_blocked(&b));
        bt_rollout_begin(b.rollout, NULL);
        TURN_UNTIL(
            &loop,
            has_trouble(&a, "b", "set 1 does not serve here: it brought this replica down before"));
        assert_int_equal(b.takes, 0);
        assert_int_equal(bt_rollout_number(b.rollout), 0);
        assert_true(is_trying("b", 1));
        if (i == 0)
            end(&b);
    }
    push(&a, "two");
    assert_int_equal(bt_rollout_number(b.rollout), 2);
    WAIT_UNTIL(!has_trouble(&a, "b", "brought this replica down"));
    end(&a);
    end(&b);
}

/* Whoever ends in order was not brought down, and is not waited for. */
static void test_who_leaves_says_so(void **state)
{
    replica_t a, b;
    told_t told;

    expiry_ms = 4000;
    start(&a, "a");
    start(&b, "b");
    WAIT_UNTIL(knows(&a, "b"));
    b.mode = SILENT;
    assert_int_equal(begin(&a, "one", &told), 0);
    WAIT_UNTIL(b.trying != NULL);
    bt_rollout_leave(b.rollout);
    WAIT_UNTIL(!is_trying("b", 1));
    end(&b);
    WAIT_UNTIL(told.times > 0);
    assert_int_equal(told.status, 200);
    join(&b, "b");
    assert_false(is_blocked(&b));
    bt_rollout_begin(b.rollout, bt_rollout_held(b.rollout));
    assert_int_equal(bt_rollout_number(b.rollout), 1);
    end(&a);
    end(&b);
}

static unsigned entries_of_log(void)
{
    return by_hand((bt_store_op_t){.what = BT_STORE_LOG_READ,
                                   .key = BT_STR("policy_log"),
                                   .field = BT_STR("0"),
                                   .limit = 10000},
                   NULL, 0)
        .entries;
}

/* A store that has forgotten everything is given the texts before the log names them, wherever it fails meanwhile. */
static void test_texts_are_back_before_they_are_named(void **state)
{
    const char *uuid;
    replica_t a;

    start(&a, "a");
    push(&a, "one");
    uuid = bt_rollout_held(a.rollout)->info.uuid;
    for (unsigned k = 0; k < 2; k++) { /* it takes two steps */
        fault = BEFORE;
        steps = fault_step = 0;
        forget_all(&a);
        steps = 0;
        fault_step = k;
        fault = AFTER;
        WAIT_UNTIL(steps > k);
        assert_true(entries_of_log() == 0 || has_cell("policy_set", uuid));
        fault = NO_FAULT;
        WAIT_UNTIL(entries_of_log() > 0 && has_cell("policy_set", uuid));
    }
    end(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_proposal_without_texts_ends),
        TEST(test_a_log_that_grows_and_grows),
        TEST(test_what_brought_a_replica_down_is_not_tried_again),
        TEST(test_who_was_killed_before_it_tried_may_try),
        TEST(test_a_replica_begins_without_what_brought_it_down),
        TEST(test_who_leaves_says_so),
        TEST(test_texts_are_back_before_they_are_named),
    };

    alarm(120);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
