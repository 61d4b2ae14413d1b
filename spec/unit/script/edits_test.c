#include "script_fixture.h"

static void keeps_order_and_copies(void **state)
{
    bt_arena_t arena;
    bt_edits_t edits;
    char key[] = "stream", value[] = "false";

    bt_arena_init(&arena);
    bt_edits_init(&edits, &arena);
    assert_int_equal(bt_edits_set(&edits, BT_STR("opts"), bt_str(key), bt_str(value), false), 0);
    assert_int_equal(bt_edits_remove(&edits, BT_STR(""), BT_STR("n")), 0);
    assert_int_equal(bt_edits_header(&edits, BT_STR("A"), BT_STR("1")), 0);
    assert_int_equal(bt_edits_header(&edits, BT_STR("B"), BT_STR_NULL), 0);
    memset(key, 'x', sizeof(key) - 1);
    memset(value, 'x', sizeof(value) - 1);
    assert_int_equal(edits.count, 4);
    assert_true(bt_str_eq(edits.items[0].object, BT_STR("opts")));
    assert_true(bt_str_eq(edits.items[0].key, BT_STR("stream")));
    assert_true(bt_str_eq(edits.items[0].value, BT_STR("false")));
    assert_int_equal(edits.items[1].op, BT_EDIT_REMOVE);
    assert_int_equal(edits.items[2].op, BT_EDIT_HEADER);
    assert_null(edits.items[3].value.p);
    bt_arena_fini(&arena);
}

static void borrows_when_told(void **state)
{
    bt_arena_t arena;
    bt_edits_t edits;
    static const char text[] = "[1,2,3]";

    bt_arena_init(&arena);
    bt_edits_init(&edits, &arena);
    assert_int_equal(bt_edits_set(&edits, BT_STR(""), BT_STR("k"), bt_str(text), true), 0);
    assert_ptr_equal(edits.items[0].value.p, text);
    bt_arena_fini(&arena);
}

static void stops_at_the_limit(void **state)
{
    bt_arena_t arena;
    bt_edits_t edits;

    bt_arena_init(&arena);
    bt_edits_init(&edits, &arena);
    for (int i = 0; i < BT_EDITS_MAX; i++)
        assert_int_equal(bt_edits_remove(&edits, BT_STR(""), BT_STR("k")), 0);
    assert_int_equal(bt_edits_remove(&edits, BT_STR(""), BT_STR("k")), BT_E_LIMIT);
    assert_int_equal(bt_edits_set(&edits, BT_STR(""), BT_STR("k"), BT_STR("1"), false), BT_E_LIMIT);
    assert_int_equal(bt_edits_header(&edits, BT_STR("k"), BT_STR("1")), BT_E_LIMIT);
    assert_int_equal(edits.count, BT_EDITS_MAX);
    bt_arena_fini(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_order_and_copies),
        cmocka_unit_test(borrows_when_told),
        cmocka_unit_test(stops_at_the_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
