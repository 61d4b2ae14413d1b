/* A set of texts: what is put in comes out of the store as it was, or not at all. */

#include "base/err.h"
#include "rollout/set.h"
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>

static bt_rollout_set_t *with(const char *name, const char *text)
{
    bt_rollout_set_t *set;

    assert_int_equal(bt_rollout_set_new(&set), 0);
    if (name != NULL)
        assert_int_equal(bt_rollout_set_put(set, name, bt_str(text)), 0);
    bt_rollout_set_seal(set);
    return set;
}

static void test_files_are_kept_by_name(void **state)
{
    bt_rollout_set_t *set = with("m", "one");

    assert_int_equal(bt_rollout_set_put(set, "z", BT_STR("two")), 0);
    assert_int_equal(bt_rollout_set_put(set, "a", BT_STR("three")), 0);
    assert_int_equal(bt_rollout_set_put(set, BT_ROLLOUT_RULES, BT_STR("rules")), 0);
    assert_int_equal(bt_rollout_set_put(set, "m", BT_STR("another")), 0);
    assert_int_equal(set->count, 4);
    assert_int_equal(set->text_bytes, 5 + 5 + 7 + 3);
    assert_string_equal(set->files[0].name, "");
    assert_string_equal(set->files[1].name, "a");
    assert_string_equal(bt_rollout_set_find(set, "m")->text, "another");
    assert_null(bt_rollout_set_find(set, "mm"));
    assert_true(bt_rollout_set_drop(set, "a"));
    assert_false(bt_rollout_set_drop(set, "a"));
    assert_int_equal(set->count, 3);
    assert_int_equal(set->text_bytes, 5 + 7 + 3);
    bt_rollout_set_unref(set);
}

static void test_the_hash_is_of_names_and_texts(void **state)
{
    bt_rollout_set_t *a = with("m", "one"), *b = with("m", "two"), *c = with("n", "one"),
                     *none = with(NULL, NULL), *copy;

    assert_string_not_equal(a->info.hash, b->info.hash);
    assert_string_not_equal(a->info.hash, c->info.hash);
    assert_string_not_equal(a->info.hash, none->info.hash);
    assert_int_equal(bt_rollout_set_copy(&copy, a), 0);
    assert_string_equal(a->info.hash, copy->info.hash);
    assert_int_equal(copy->info.number, 0);
    bt_rollout_set_unref(a);
    bt_rollout_set_unref(b);
    bt_rollout_set_unref(c);
    bt_rollout_set_unref(none);
    bt_rollout_set_unref(copy);
}

static void test_it_comes_back_as_it_was(void **state)
{
    static const char bytes[] = "a\0b\"\\\n\t\x01\xc3\xa9\xf0\x9f\x98\x80";
    bt_rollout_set_t *set = with(NULL, NULL), *back;
    bt_text_t json;

    assert_int_equal(bt_rollout_set_put(set, "m", (bt_str_t){bytes, sizeof bytes - 1}), 0);
    assert_int_equal(bt_rollout_set_put(set, BT_ROLLOUT_RULES, BT_STR("r")), 0);
    bt_rollout_set_seal(set);
    set->info.number = 7;
    set->info.previous = 5;
    set->info.copy_of = 3;
    set->info.at_ms = 1700000000123;
    snprintf(set->info.by, sizeof set->info.by, "ann \"x\"");
    snprintf(set->info.replica, sizeof set->info.replica, "gw-1");
    bt_text_init(&json);
    bt_rollout_set_write(set, &json);
    assert_int_equal(bt_rollout_set_read(&back, bt_text_str(&json)), 0);
    assert_string_equal(back->info.hash, set->info.hash);
    assert_int_equal(back->info.number, 7);
    assert_int_equal(back->info.previous, 5);
    assert_int_equal(back->info.copy_of, 3);
    assert_int_equal(back->info.at_ms, 1700000000123);
    assert_string_equal(back->info.by, "ann \"x\"");
    assert_string_equal(back->info.replica, "gw-1");
    assert_int_equal(bt_rollout_set_find(back, "m")->size, sizeof bytes - 1);
    assert_memory_equal(bt_rollout_set_find(back, "m")->text, bytes, sizeof bytes - 1);
    bt_rollout_set_unref(back);
    bt_rollout_set_unref(set);
    bt_text_fini(&json);
}

static void test_what_is_broken_is_not_read(void **state)
{
    static const char *const broken[] = {
        "",
        "null",
        "[]",
        "{}",
        "{\"files\":1}",
        "{\"files\":[],\"hash\":\"\"}",
        "{\"files\":[{}]}",
        "{\"files\":[{\"name\":1,\"text\":\"x\"}]}",
        "{\"files\":[{\"name\":\"a\",\"text\":null}]}",
        "{\"number\":1,\"files\":[{\"name\":\"m\",\"text\":\"one\"}],\"hash\":\"00\"}",
    };
    bt_rollout_set_t *set = with("m", "one"), *back;
    bt_text_t json;

    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++)
        assert_int_equal(bt_rollout_set_read(&back, bt_str(broken[i])), BT_E_INVAL);
    bt_text_init(&json);
    bt_rollout_set_write(set, &json);
    for (size_t n = 0; n < json.len; n++) /* cut anywhere */
        assert_true(bt_rollout_set_read(&back, (bt_str_t){json.data, n}) < 0);
    char *text = strstr(json.data, "one");
    text[0] = 'O'; /* another text than the hash says */
    assert_int_equal(bt_rollout_set_read(&back, bt_text_str(&json)), BT_E_INVAL);
    bt_text_fini(&json);
    bt_rollout_set_unref(set);
}

static void test_bounds(void **state)
{
    bt_rollout_set_t *set = with(NULL, NULL);
    char *large = malloc(BT_ROLLOUT_TEXT_MAX + 1), name[80];

    memset(large, 'x', BT_ROLLOUT_TEXT_MAX + 1);
    assert_int_equal(bt_rollout_set_put(set, "a", (bt_str_t){large, BT_ROLLOUT_TEXT_MAX + 1}),
                     BT_E_LIMIT);
    assert_int_equal(bt_rollout_set_put(set, "a", (bt_str_t){large, BT_ROLLOUT_TEXT_MAX}), 0);
    assert_int_equal(bt_rollout_set_put(set, "b", BT_STR("x")), BT_E_LIMIT);
    assert_int_equal(bt_rollout_set_put(set, "a", BT_STR("x")), 0); /* instead of the large one */
    for (unsigned i = 1; i < BT_ROLLOUT_FILES_MAX; i++) {
        snprintf(name, sizeof name, "f%u", i);
        assert_int_equal(bt_rollout_set_put(set, name, BT_STR("x")), 0);
    }
    assert_int_equal(bt_rollout_set_put(set, "more", BT_STR("x")), BT_E_LIMIT);
    memset(name, 'n', BT_ROLLOUT_NAME_MAX + 1);
    name[BT_ROLLOUT_NAME_MAX + 1] = '\0';
    assert_int_equal(bt_rollout_set_put(set, name, BT_STR("x")), BT_E_LIMIT);
    assert_int_equal(bt_rollout_set_put(set, "a", BT_STR("\xff")), BT_E_JSON_UTF8);
    assert_int_equal(bt_rollout_set_put(set, "a", BT_STR("\xed\xa0\x80")), BT_E_JSON_UTF8);
    free(large);
    bt_rollout_set_unref(set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files_are_kept_by_name),
        cmocka_unit_test(test_the_hash_is_of_names_and_texts),
        cmocka_unit_test(test_it_comes_back_as_it_was),
        cmocka_unit_test(test_what_is_broken_is_not_read),
        cmocka_unit_test(test_bounds),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
