#include "script/dialect/json_index.h"
#include "script_fixture.h"

static void finds_members_and_remembers(void **state)
{
    static const char text[] = "{\"a\":1,\"b\":{\"c\":[1,2]},\"a\":2,\"\\u0064\":3}";
    bt_json_index_t index;
    bt_arena_t arena;
    const bt_json_item_t *item;

    bt_arena_init(&arena);
    bt_json_index_reset(&index, &arena, BT_STR_NULL);
    item = bt_json_index_member(&index, bt_str(text), BT_STR("a"));
    assert_true(bt_str_eq(item->value, BT_STR("2"))); /* the last one, as parsers do */
    assert_non_null(bt_json_index_member(&index, bt_str(text), BT_STR("d")));
    assert_null(bt_json_index_member(&index, bt_str(text), BT_STR("e")));
    assert_int_equal(index.used, 1);
    item = bt_json_index_member(
        &index, bt_json_index_member(&index, bt_str(text), BT_STR("b"))->value, BT_STR("c"));
    assert_true(bt_str_eq(bt_json_index_element(&index, item->value, 1), BT_STR("2")));
    assert_null(bt_json_index_element(&index, item->value, 2).p);
    assert_null(bt_json_index_element(&index, BT_STR("{}"), 0).p);
    assert_true(bt_str_eq(bt_json_index_element(&index, BT_STR(" [[1], 2 ]"), 1), BT_STR("2")));
    assert_null(bt_json_index_element(&index, BT_STR("[1,2"), 2).p);
    assert_int_equal(bt_json_index_count(&index, item->value), 2);
    assert_int_equal(bt_json_index_count(&index, BT_STR("[1,[2]]")), 2);
    assert_true(bt_json_index_count(&index, BT_STR("[1,[2]")) < 0);
    bt_arena_fini(&arena);
}

/* What the caller has validated is answered alike. */
static void known_text_is_read_the_same(void **state)
{
    static const char text[] =
        " { \"a\" : 1 , \"b\":{\"c\":[ 1,[2 , 3],{}],\"\\u0064\":\"x\\\",\\u007d\"},\"a\":-2e1}\n";
    bt_json_index_t known;
    bt_arena_t arena;

    bt_arena_init(&arena);
    bt_json_index_reset(&known, &arena, bt_str(text));
    for (int inner = 0; inner < 2; inner++) {
        const bt_str_t object =
            inner ? bt_json_index_member(&known, bt_str(text), BT_STR("b"))->value : bt_str(text);
        bt_json_index_t fresh;
        bt_json_index_reset(&fresh, &arena, BT_STR_NULL);
        const bt_json_object_index_t *a = bt_json_index_object(&fresh, object);
        const bt_json_object_index_t *b = bt_json_index_object(&known, object);
        assert_int_equal(a->count, b->count);
        for (unsigned i = 0; i < a->count; i++) {
            assert_int_equal(a->items[i].start, b->items[i].start);
            assert_int_equal(a->items[i].value_off, b->items[i].value_off);
            assert_int_equal(a->items[i].type, b->items[i].type);
            assert_int_equal(a->items[i].key_escaped, b->items[i].key_escaped);
            assert_true(bt_str_eq(a->items[i].key, b->items[i].key));
            assert_true(bt_str_eq(a->items[i].value, b->items[i].value));
        }
        if (inner) {
            assert_int_equal(bt_json_index_count(&known, b->items[0].value), 3);
            assert_true(
                bt_str_eq(bt_json_index_element(&known, b->items[0].value, 1), BT_STR("[2 , 3]")));
            assert_non_null(bt_json_index_member(&known, object, BT_STR("d")));
        }
    }
    bt_arena_fini(&arena);
}

static void malformed_text_has_no_members(void **state)
{
    bt_json_index_t index;
    bt_arena_t arena;

    bt_arena_init(&arena);
    bt_json_index_reset(&index, &arena, BT_STR_NULL);
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

    bt_arena_init(&arena);
    bt_json_index_reset(&index, &arena, BT_STR_NULL);
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
        cmocka_unit_test(known_text_is_read_the_same),
        cmocka_unit_test(malformed_text_has_no_members),
        cmocka_unit_test(outgrows_its_slots),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
