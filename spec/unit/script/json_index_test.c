#include "script/dialect/json_index.h"
#include "script_fixture.h"

static void finds_members_and_remembers(void **state)
{
    static const char text[] = "{\"a\":1,\"b\":{\"c\":[1,2]},\"a\":2,\"\\u0064\":3}";
    bt_json_index_t index;
    bt_arena_t arena;
    const bt_json_item_t *item;
    (void) state;

    bt_arena_init(&arena);
    bt_json_index_reset(&index, &arena);
    item = bt_json_index_member(&index, bt_str(text), BT_STR("a"));
    assert_true(bt_str_eq(item->value, BT_STR("2"))); /* the last one, as parsers do */
    assert_non_null(bt_json_index_member(&index, bt_str(text), BT_STR("d")));
    assert_null(bt_json_index_member(&index, bt_str(text), BT_STR("e")));
    assert_int_equal(index.used, 1);
    item = bt_json_index_member(
        &index, bt_json_index_member(&index, bt_str(text), BT_STR("b"))->value, BT_STR("c"));
    assert_true(bt_str_eq(bt_json_element(item->value, 1), BT_STR("2")));
    assert_null(bt_json_element(item->value, 2).p);
    assert_null(bt_json_element(BT_STR("{}"), 0).p);
    bt_arena_fini(&arena);
}

static void malformed_text_has_no_members(void **state)
{
    bt_json_index_t index;
    bt_arena_t arena;
    (void) state;

    bt_arena_init(&arena);
    bt_json_index_reset(&index, &arena);
    assert_null(bt_json_index_member(&index, BT_STR("{\"a\":1,"), BT_STR("a")));
    assert_null(bt_json_index_member(&index, BT_STR("[1]"), BT_STR("a")));
    assert_null(bt_json_index_member(&index, BT_STR(""), BT_STR("a")));
    bt_arena_fini(&arena);
}

/* More objects than are remembered, and more members than the first allocation: still right. */
static void outgrows_its_slots(void **state)
{
    char texts[BT_JSON_INDEX_OBJECTS + 2][1024];
    bt_json_index_t index;
    bt_arena_t arena;
    (void) state;

    bt_arena_init(&arena);
    bt_json_index_reset(&index, &arena);
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < BT_JSON_INDEX_OBJECTS + 2; i++) {
            size_t at = (size_t) sprintf(texts[i], "{\"first\":%d", i);
            for (int k = 0; k < 40; k++)
                at += (size_t) sprintf(texts[i] + at, ",\"k%d\":%d", k, k);
            sprintf(texts[i] + at, "}");
            const bt_json_item_t *first =
                bt_json_index_member(&index, bt_str(texts[i]), BT_STR("first"));
            assert_int_equal(first->value.p[0], '0' + i);
            assert_non_null(bt_json_index_member(&index, bt_str(texts[i]), BT_STR("k39")));
        }
    bt_arena_fini(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_members_and_remembers),
        cmocka_unit_test(malformed_text_has_no_members),
        cmocka_unit_test(outgrows_its_slots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
