#include "admin/call/query.h"
#include "base/err.h"
#include "unit.h"

static void decodes(const char *raw, bool plus, const char *want)
{
    bt_text_t t;

    bt_text_init(&t);
    assert_int_equal(bt_query_decode(&t, bt_str(raw), plus), 0);
    assert_string_equal(t.len > 0 ? t.data : "", want);
    bt_text_fini(&t);
}

static void test_decode(void **state)
{
    decodes("", false, "");
    decodes("http%3A%2F%2Fh%3a1", false, "http://h:1");
    decodes("%41%42", false, "AB");
    decodes("a+b", false, "a+b");
    decodes("a+b", true, "a b");
    decodes("%2b", true, "+");
}

static void test_broken_escapes(void **state)
{
    static const char *const bad[] = {"%", "%4", "a%", "a%4", "%zz", "%4z", "%00", "%-1"};

    for (unsigned i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        bt_text_t t;
        bt_text_init(&t);
        assert_int_equal(bt_query_decode(&t, bt_str(bad[i]), true), BT_E_INVAL);
        bt_text_fini(&t);
    }
}

static void test_pairs(void **state)
{
    bt_str_t rest = BT_STR("&a=1&&b&c=x=y&=v&"), name, value;
    static const char *const want[][2] = {{"a", "1"}, {"b", ""}, {"c", "x=y"}, {"", "v"}};

    for (unsigned i = 0; i < 4; i++) {
        assert_true(bt_query_next(&rest, &name, &value));
        assert_true(bt_str_eq(name, bt_str(want[i][0])));
        assert_true(bt_str_eq(value, bt_str(want[i][1])));
    }
    assert_false(bt_query_next(&rest, &name, &value));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode),
        cmocka_unit_test(test_broken_escapes),
        cmocka_unit_test(test_pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
