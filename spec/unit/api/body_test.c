/* Splicing: untouched bytes stay, edited members change, nothing else. */
#include "api/body.h"

#include "base/err.h"
#include "base/rand.h"
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>

struct fixture {
    bt_arena_t arena;
    bt_body_t body;
    bt_edits_t edits;
};

static void begin(struct fixture *f, const char *text)
{
    size_t err_off;

    bt_arena_init(&f->arena);
    bt_edits_init(&f->edits, &f->arena);
    assert_int_equal(bt_body_index(&f->body, &f->arena, bt_str(text), &err_off), 0);
}

static void expect(struct fixture *f, const char *wanted)
{
    bt_slices_t out = {0};
    char joined[4096];
    size_t n = 0;

    assert_int_equal(bt_body_apply(&f->body, &f->edits, &f->arena, &out), 0);
    for (unsigned i = 0; i < out.count; i++) {
        memcpy(joined + n, out.items[i].p, out.items[i].n);
        n += out.items[i].n;
    }
    joined[n] = '\0';
    assert_int_equal(n, out.bytes);
    assert_string_equal(joined, wanted);
    bt_arena_fini(&f->arena);
}

static void set(struct fixture *f, const char *object, const char *key, const char *value)
{
    assert_int_equal(bt_edits_set(&f->edits, bt_str(object), bt_str(key), bt_str(value), false), 0);
}

static void drop(struct fixture *f, const char *object, const char *key)
{
    assert_int_equal(bt_edits_remove(&f->edits, bt_str(object), bt_str(key)), 0);
}

static void test_no_edits_is_one_copy(void **state)
{
    struct fixture f;
    static const char text[] = " { \"a\" : 1.0 ,\n\"b\":[1, 2 ],  \"c\":\"\\u00e9\" } \n";

    begin(&f, text);
    expect(&f, text);
}

static void test_empty_object(void **state)
{
    struct fixture f;

    begin(&f, "{}");
    set(&f, "", "x", "1");
    set(&f, "", "y", "\"z\"");
    expect(&f, "{\"x\":1,\"y\":\"z\"}");
}

static void test_set_keeps_place_and_neighbours(void **state)
{
    struct fixture f;

    begin(&f, "{\"temperature\":0.70000, \"stream\" : true, \"big\":12345678901234567890123}");
    set(&f, "", "stream", "false");
    expect(&f, "{\"temperature\":0.70000,\"stream\" : false,\"big\":12345678901234567890123}");
}

static void test_remove_everywhere(void **state)
{
    struct fixture f;

    begin(&f, "{\"rid\":\"x\",\"a\":1}");
    drop(&f, "", "rid");
    expect(&f, "{\"a\":1}");
    begin(&f, "{\"a\":1,\"rid\":\"x\"}");
    drop(&f, "", "rid");
    expect(&f, "{\"a\":1}");
    begin(&f, "{\"rid\":\"x\"}");
    drop(&f, "", "rid");
    expect(&f, "{}");
    begin(&f, "{\"a\":1,\"rid\":\"x\",\"bootstrap_room\":4,\"b\":2}");
    drop(&f, "", "rid");
    drop(&f, "", "bootstrap_room");
    expect(&f, "{\"a\":1,\"b\":2}");
    begin(&f, "{\"rid\":\"x\",\"a\":1,\"bootstrap_room\":4}");
    drop(&f, "", "rid");
    drop(&f, "", "bootstrap_room");
    set(&f, "", "z", "0");
    expect(&f, "{\"a\":1,\"z\":0}");
}

static void test_escaped_key_is_the_same_key(void **state)
{
    struct fixture f;

    begin(&f, "{\"kv\\u005ftransfer_params\":{\"a\":1},\"a\":1}");
    drop(&f, "", "kv_transfer_params");
    expect(&f, "{\"a\":1}");
}

static void test_all_duplicates_of_an_edited_key_go(void **state)
{
    struct fixture f;

    begin(&f, "{\"x\":1,\"y\":2,\"x\":3}");
    set(&f, "", "x", "9");
    expect(&f, "{\"x\":9,\"y\":2}");
    begin(&f, "{\"u\":1,\"u\":2}");
    expect(&f, "{\"u\":1,\"u\":2}");
}

static void test_last_edit_wins(void **state)
{
    struct fixture f;

    begin(&f, "{\"rid\":\"client\"}");
    drop(&f, "", "rid");
    set(&f, "", "rid", "\"ours\"");
    expect(&f, "{\"rid\":\"ours\"}");
    begin(&f, "{\"a\":1}");
    set(&f, "", "b", "1");
    set(&f, "", "b", "2");
    expect(&f, "{\"a\":1,\"b\":2}");
}

static void test_nested(void **state)
{
    struct fixture f;

    begin(&f, "{\"sampling_params\":{\"n\":2,\"t\":0.1},\"text\":\"a\"}");
    set(&f, "sampling_params", "max_tokens", "1");
    drop(&f, "sampling_params", "n");
    expect(&f, "{\"sampling_params\":{\"t\":0.1,\"max_tokens\":1},\"text\":\"a\"}");
    begin(&f, "{\"text\":\"a\"}");
    set(&f, "sampling_params", "max_tokens", "1");
    set(&f, "sampling_params", "k", "2");
    expect(&f, "{\"text\":\"a\",\"sampling_params\":{\"max_tokens\":1,\"k\":2}}");
    begin(&f, "{\"text\":\"a\"}");
    drop(&f, "sampling_params", "n"); /* nothing to remove: nothing made */
    expect(&f, "{\"text\":\"a\"}");
    begin(&f, "{\"sampling_params\":7}");
    set(&f, "sampling_params", "n", "1"); /* the engine shall say that this is wrong */
    expect(&f, "{\"sampling_params\":7}");
}

/* One that is as large as may be is edited; one byte more is refused, and only where an edit goes into it. */
static void test_nested_has_a_limit(void **state)
{
    const size_t frame = strlen("{\"metadata\":}"), most = BT_BODY_NESTED_MAX;
    char *text = malloc(frame + most + 2);

    for (size_t more = 0; more < 2; more++) {
        struct fixture f;
        bt_slices_t out = {0};
        memset(text, ' ', frame + most + 1);
        memcpy(text, "{\"metadata\":{", 13);
        memcpy(text + frame - 1 + most + more - 1, "}}", 3);
        begin(&f, text);
        assert_int_equal(f.body.items[0].value.n, most + more);
        assert_int_equal(bt_body_apply(&f.body, &f.edits, &f.arena, &out), 0);
        set(&f, "metadata", "a", "1");
        assert_int_equal(bt_body_apply(&f.body, &f.edits, &f.arena, &out),
                         more == 0 ? 0 : BT_E_LIMIT);
        bt_arena_fini(&f.arena);
    }
    free(text);
}

static void test_refuses_what_is_no_object(void **state)
{
    static const char *const bad[] = {"",           "[]",         "1",       "{",
                                      "{\"a\":1,}", "{\"a\":1}x", "{'a':1}", "\xef\xbb\xbf{}"};
    bt_arena_t arena;
    bt_body_t body;
    size_t err_off;

    bt_arena_init(&arena);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_true(bt_body_index(&body, &arena, bt_str(bad[i]), &err_off) < 0);
    bt_arena_fini(&arena);
}

/* Whatever is edited, the result is valid JSON with the wanted members, and the others are byte for byte there. */
static void test_random_edits_stay_valid(void **state)
{
    static const char *const keys[] = {"a", "b", "c", "d", "e", "f"};

    bt_rand_seed(7);
    for (unsigned round = 0; round < 20000; round++) {
        char text[256], *at = text, joined[1024];
        bool wanted[6] = {false};
        struct fixture f;
        bt_slices_t out = {0};
        size_t n = 0;
        bool first = true;

        at += sprintf(at, "{");
        for (unsigned k = 0; k < 6; k++) {
            if (bt_rand_below(2) == 0)
                continue;
            at += sprintf(at, "%s\"%s\"%s:%s%u", first ? " " : " , ", keys[k],
                          bt_rand_below(2) ? " " : "", bt_rand_below(2) ? " " : "", k);
            first = false;
            wanted[k] = true;
        }
        sprintf(at, "}");
        begin(&f, text);
        for (unsigned e = (unsigned) bt_rand_below(5); e > 0; e--) {
            unsigned k = (unsigned) bt_rand_below(6);
            bool add = bt_rand_below(2) == 0;
            if (add)
                set(&f, "", keys[k], "null");
            else
                drop(&f, "", keys[k]);
            wanted[k] = add;
        }
        assert_int_equal(bt_body_apply(&f.body, &f.edits, &f.arena, &out), 0);
        for (unsigned i = 0; i < out.count; i++) {
            memcpy(joined + n, out.items[i].p, out.items[i].n);
            n += out.items[i].n;
        }
        assert_int_equal(bt_json_validate((bt_str_t){joined, n}, NULL), 0);
        for (unsigned k = 0; k < 6; k++) {
            bt_json_item_t item;
            assert_int_equal(bt_json_get((bt_str_t){joined, n}, bt_str(keys[k]), &item), 0);
            assert_int_equal(item.type != BT_JSON_NONE, wanted[k]);
        }
        bt_arena_fini(&f.arena);
    }
}

static void a_slice_is_filled_later(void **state)
{
    bt_slices_t slices = {0};
    bt_arena_t arena;

    bt_arena_init(&arena);
    bt_slices_put(&slices, &arena, BT_STR("a"));
    const unsigned at = bt_slices_reserve(&slices, &arena);
    for (unsigned i = 0; i < 40; i++) /* it moves */
        bt_slices_put(&slices, &arena, i % 2 == 0 ? BT_STR("xx") : BT_STR("y"));
    assert_int_equal(slices.bytes, 61);
    bt_slices_fill(&slices, at, BT_STR("head"));
    assert_int_equal(slices.bytes, 65);
    assert_int_equal(slices.count, 42);
    assert_true(bt_str_eq((bt_str_t){slices.items[1].p, slices.items[1].n}, BT_STR("head")));
    assert_int_equal(slices.items[2].n, 2);
    bt_arena_fini(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_edits_is_one_copy),
        cmocka_unit_test(a_slice_is_filled_later),
        cmocka_unit_test(test_empty_object),
        cmocka_unit_test(test_set_keeps_place_and_neighbours),
        cmocka_unit_test(test_remove_everywhere),
        cmocka_unit_test(test_escaped_key_is_the_same_key),
        cmocka_unit_test(test_all_duplicates_of_an_edited_key_go),
        cmocka_unit_test(test_last_edit_wins),
        cmocka_unit_test(test_nested),
        cmocka_unit_test(test_nested_has_a_limit),
        cmocka_unit_test(test_refuses_what_is_no_object),
        cmocka_unit_test(test_random_edits_stay_valid),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
