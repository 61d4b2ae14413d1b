/* What a replica keeps in the store: texts, as long as anybody may need them, and its pin. */
#include "rig.h"

static bool is_pinned_there(const replica_t *r, const char *name)
{
    return knows(r, name) && peer_of(r, name)->is_pinned;
}

static void test_texts_of_what_is_forgotten_are_removed(void **state)
{
    char first[BT_ROLLOUT_UUID_BYTES], text[16];
    replica_t a;

    start(&a, "a");
    push(&a, "first");
    memcpy(first, bt_rollout_held(a.rollout)->info.uuid, sizeof first);
    for (unsigned i = 0; i < 12; i++) {
        assert_true(i > 7 || has_cell("policy_set", first));
        snprintf(text, sizeof text, "%u", i);
        push(&a, text);
    }
    WAIT_UNTIL(!has_cell("policy_set", first));
    assert_true(has_cell("policy_set", bt_rollout_held(a.rollout)->info.uuid));
    end(&a);
}

static void test_it_is_put_back_when_the_store_forgets(void **state)
{
    char uuid[BT_ROLLOUT_UUID_BYTES], key[64];
    replica_t a, b;

    start(&a, "a");
    push(&a, "one");
    push(&a, "two");
    memcpy(uuid, bt_rollout_held(a.rollout)->info.uuid, sizeof uuid);
    forget_all(&a);
    WAIT_UNTIL(has_cell("policy_set", uuid));
    WAIT_UNTIL(strcmp(state_of(&a, 2), "committed") == 0);
    start(&b, "b");
    assert_int_equal(bt_rollout_held(b.rollout)->info.number, 2);
    WAIT_UNTIL(bt_rollout_number(b.rollout) == 2);
    assert_int_equal(back(&a, 0).status, 200); /* it still has what was before */
    assert_string_equal(text_of(&b), "one");
    /* The texts alone: whoever needs them says so, whoever has them puts them there. */
    snprintf(key, sizeof key, "policy_set:%s", bt_rollout_held(a.rollout)->info.uuid);
    drop(key);
    end(&b);
    make(&b, "b");
    bt_rollout_join(b.rollout, NULL, NULL);
    bt_rollout_begin(b.rollout, NULL);
    WAIT_UNTIL(bt_rollout_number(b.rollout) == 3);
    end(&a);
    end(&b);
}

static void test_pins(void **state)
{
    replica_t a, b;
    told_t told;

    spread_ms = 60000;
    start(&a, "a");
    start(&b, "b");
    WAIT_UNTIL(knows(&a, "b"));
    push(&a, "one");
    bt_rollout_pin(b.rollout, true);
    assert_true(b.is_pinned);
    WAIT_UNTIL(is_pinned_there(&a, "b"));
    b.mode = SILENT; /* it is not asked, and not waited for */
    assert_int_equal(bt_rollout_number(b.rollout), 1);
    push(&a, "two");
    assert_int_equal(bt_rollout_number(b.rollout), 1);
    WAIT_UNTIL(bt_rollout_committed(b.rollout) == 2);
    assert_int_equal(b.tries, 1);
    end(&b);
    start(&b, "b");
    assert_true(b.is_pinned);
    assert_int_equal(bt_rollout_held(b.rollout)->info.number, 1);
    WAIT_UNTIL(bt_rollout_number(b.rollout) == 1);
    bt_rollout_pin(a.rollout, true);
    told = ask(&a, "three");
    assert_int_equal(told.status, 409);
    assert_non_null(strstr(told.why, "every replica is pinned"));
    bt_rollout_pin(b.rollout, false);
    WAIT_UNTIL(bt_rollout_number(b.rollout) == 2);
    WAIT_UNTIL(!has_cell("policy_pin", "b") && has_cell("policy_pin", "a"));
    end(&b);
    start(&b, "b");
    assert_false(b.is_pinned);
    end(&a);
    end(&b);
}

/* It stays with it however many come after it, and after a flush, and over a restart after both. */
static void test_a_pin_needs_nobody(void **state)
{
    char text[16];
    replica_t a, b;

    start(&a, "a");
    start(&b, "b");
    WAIT_UNTIL(knows(&a, "b"));
    push(&a, "stay");
    bt_rollout_pin(b.rollout, true);
    WAIT_UNTIL(is_pinned_there(&a, "b"));
    for (unsigned i = 0; i < 12; i++) {
        snprintf(text, sizeof text, "%u", i);
        push(&a, text);
    }
    forget_all(&a);
    WAIT_UNTIL(has_cell("policy_pin", "b"));
    end(&b);
    start(&b, "b");
    assert_true(b.is_pinned);
    assert_string_equal(text_of(&b), "stay");
    end(&a);
    end(&b);
}

static void test_a_pin_made_while_the_store_is_away(void **state)
{
    replica_t a;
    told_t told;

    vote_ms = 600;
    start(&a, "a");
    push(&a, "one");
    fault = BEFORE;
    fault_step = 0;
    told = ask(&a, "two");
    assert_int_equal(told.status, 503);
    assert_string_equal(told.why,
                        "the shared store does not do it: the spec has stopped it; nothing has "
                        "changed");
    const unsigned before = steps;
    bt_rollout_pin(a.rollout, true);
    WAIT_UNTIL(steps > before + 3); /* told, and told again */
    fault = NO_FAULT;
    WAIT_UNTIL(has_cell("policy_pin", "a"));
    end(&a);
    start(&a, "a");
    assert_true(a.is_pinned);
    fault = BEFORE;
    bt_rollout_pin(a.rollout, false);
    const unsigned again = steps;
    WAIT_UNTIL(steps > again + 3);
    fault = NO_FAULT;
    WAIT_UNTIL(!has_cell("policy_pin", "a"));
    end(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_texts_of_what_is_forgotten_are_removed),
        TEST(test_it_is_put_back_when_the_store_forgets),
        TEST(test_pins),
        TEST(test_a_pin_needs_nobody),
        TEST(test_a_pin_made_while_the_store_is_away),
    };

    alarm(120);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
