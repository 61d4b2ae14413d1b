/* Values of a text replaced, whatever the order they are named in. */
#include "api/cuts.h"
#include "unit.h"

static bt_str_t span(const char *text, const char *value)
{
    return (bt_str_t){strstr(text, value), strlen(value)};
}

static void expect(const bt_cuts_t *cuts, const char *text, const char *wanted)
{
    bt_buf_t *buf = NULL;

    assert_int_equal(bt_cuts_write(cuts, bt_str(text), &buf), 0);
    assert_int_equal(buf->len, strlen(wanted));
    assert_memory_equal(buf->data, wanted, buf->len);
    bt_buf_unref(buf);
}

static void test_order_does_not_matter(void **state)
{
    static const char text[] = "{\"a\":1,\"b\":\"two\",\"c\":[3]}";
    bt_cuts_t cuts = {.count = 0};

    expect(&cuts, text, text);
    bt_cuts_replace(&cuts, span(text, "[3]"), BT_STR("null"));
    bt_cuts_number(&cuts, span(text, "1"), 18446744073709551615ULL);
    bt_cuts_replace(&cuts, span(text, "\"two\""), BT_STR(""));
    expect(&cuts, text, "{\"a\":18446744073709551615,\"b\":,\"c\":null}");
}

static void test_what_is_not_there_is_nothing(void **state)
{
    bt_cuts_t cuts = {.count = 0};

    bt_cuts_replace(&cuts, BT_STR_NULL, BT_STR("x"));
    bt_cuts_replace(&cuts, BT_STR("x"), BT_STR_NULL);
    bt_cuts_number(&cuts, BT_STR_NULL, 1);
    assert_int_equal(cuts.count, 0);
}

static void test_grows(void **state)
{
    static char large[40000];
    bt_buf_t *buf = NULL;

    memset(large, 'x', sizeof(large));
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(bt_cuts_append(&buf, (bt_str_t){large, sizeof(large)}), 0);
    assert_int_equal(bt_cuts_append(&buf, BT_STR_NULL), 0);
    assert_int_equal(buf->len, 3 * sizeof(large));
    assert_int_equal(buf->data[3 * sizeof(large) - 1], 'x');
    bt_buf_unref(buf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_does_not_matter),
        cmocka_unit_test(test_what_is_not_there_is_nothing),
        cmocka_unit_test(test_grows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
