/* Growable text: appends across growth, formats, JSON strings, sticky failure. */
#include "base/text.h"
#include "unit.h"

#include <stdio.h>

static void test_put_and_printf_across_growth(void **state)
{
    bt_text_t t;
    char expected[16];

    bt_text_init(&t);
    assert_int_equal(bt_text_str(&t).n, 0);
    for (int i = 0; i < 3000; i++)
        i % 2 == 0 ? bt_text_printf(&t, "%04d", i) : bt_text_puts(&t, "abcd");
    assert_int_equal(t.len, 12000);
    assert_int_equal(strlen(t.data), 12000);
    for (int i = 0; i < 3000; i++) {
        snprintf(expected, sizeof(expected), "%04d", i);
        assert_memory_equal(t.data + i * 4, i % 2 == 0 ? expected : "abcd", 4);
    }
    assert_false(t.failed);
    bt_text_fini(&t);
    assert_null(t.data);
}

static void test_printf_longer_than_the_rest(void **state)
{
    bt_text_t t;

    for (int width = 1; width < 1000; width += 37) {
        bt_text_init(&t);
        bt_text_puts(&t, "x");
        bt_text_printf(&t, "%*d", width, 7);
        assert_int_equal(t.len, 1 + width);
        assert_int_equal(t.data[width], '7');
        bt_text_fini(&t);
    }
}

static void test_json_member(void **state)
{
    bt_text_t t;
    bt_text_init(&t);
    bt_text_json_member(&t, "a", "x\"y");
    bt_text_json_member(&t, "b", "");
    bt_text_json_member(&t, "c", NULL);
    assert_true(bt_str_eq(bt_text_str(&t), BT_STR(",\"a\":\"x\\\"y\",\"b\":\"\",\"c\":null")));
    bt_text_fini(&t);
}

static void test_json_cut(void **state)
{
    bt_text_t t;

    bt_text_init(&t);
    bt_text_json_cut(&t, BT_STR("abc"), 3);
    bt_text_json_cut(&t, BT_STR("abc\"d"), 4);
    bt_text_json_cut(&t, BT_STR("a\xc3\xa4"), 2);
    bt_text_json_cut(&t, BT_STR_NULL, 0);
    assert_string_equal(t.data, "\"abc\"\"abc\\\"...\"\"a...\"\"\"");
    assert_int_equal(t.len, strlen(t.data));
    bt_text_fini(&t);
}

static void test_json_str(void **state)
{
    bt_text_t t;
    bt_text_init(&t);
    bt_text_json_str(&t, BT_STR("a\"b\\c\n\x01\xff\xc3\xa9"));
    assert_string_equal(t.data, "\"a\\\"b\\\\c\\n\\u0001\xef\xbf\xbd\xc3\xa9\"");
    bt_text_json_str(&t, BT_STR_NULL);
    assert_string_equal(t.data + t.len - 2, "\"\"");
    bt_text_fini(&t);
}

static void test_failure_is_sticky(void **state)
{
    bt_text_t t;
    bt_text_init(&t);
    bt_text_puts(&t, "kept");
    bt_text_put(&t, (bt_str_t){"", BT_TEXT_MAX_BYTES}); /* refused before a byte is read */
    assert_true(t.failed);
    bt_text_puts(&t, "more");
    bt_text_printf(&t, "%d", 1);
    bt_text_json_str(&t, BT_STR("x"));
    assert_string_equal(t.data, "kept");
    assert_int_equal(bt_text_str(&t).n, 4);
    bt_text_fini(&t);
    assert_false(t.failed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_put_and_printf_across_growth),
        cmocka_unit_test(test_printf_longer_than_the_rest),
        cmocka_unit_test(test_json_member),
        cmocka_unit_test(test_json_str),
        cmocka_unit_test(test_json_cut),
        cmocka_unit_test(test_failure_is_sticky),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
