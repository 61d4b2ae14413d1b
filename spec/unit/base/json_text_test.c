/* JSON spelling: unescape and quote are inverse, integers and doubles in range, nothing trusts its
 * input. */
#include "base/err.h"
#include "base/json.h"
#include "base/rand.h"
#include "unit.h"

static void test_unescape(void **state)
{
    static const struct {
        const char *json;
        bt_str_t text;
    } cases[] = {
        {"\"\"", {"", 0}},
        {"\"plain\"", {"plain", 5}},
        {"\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", {"\"\\/\b\f\n\r\t", 8}},
        {"\"a\\u0041b\"", {"aAb", 3}},
        {"\"\\u00e9\\u20AC\"", {"\xc3\xa9\xe2\x82\xac", 5}},
        {"\"\\uD83D\\uDE00\"", {"\xf0\x9f\x98\x80", 4}},
        {"\"\\uDBFF\\uDFFF\"", {"\xf4\x8f\xbf\xbf", 4}},
        {"\"x\\u0000y\"", {"x\0y", 3}},
        {"\"\\ud800\"", {"\xef\xbf\xbd", 3}},
        {"\"\\udc00\\ud800\"", {"\xef\xbf\xbd\xef\xbf\xbd", 6}},
        {"\"\\ud800\\ud83d\\ude00\"", {"\xef\xbf\xbd\xf0\x9f\x98\x80", 7}},
        {"\"\\ud800\\n\"", {"\xef\xbf\xbd\n", 4}},
        {"\"\\ud800u\"", {"\xef\xbf\xbdu", 4}},
    };
    char out[64];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        long n = bt_json_unescape(bt_str(cases[i].json), out, sizeof(out));
        assert_int_equal(n, cases[i].text.n);
        assert_memory_equal(out, cases[i].text.p, cases[i].text.n);
        if (n > 0)
            assert_int_equal(bt_json_unescape(bt_str(cases[i].json), out, (size_t) n - 1),
                             BT_E_LIMIT);
        assert_int_equal(bt_json_unescape(bt_str(cases[i].json), out, (size_t) n), n);
    }
}

static void test_unescape_refuses(void **state)
{
    static const char *bad[] = {"",       "\"",      "x",         "12",          "\"a",  "a\"",
                                "\"\\\"", "\"\\x\"", "\"\\u12\"", "\"\\u123g\"", "\"\\u"};
    char out[64];
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(bt_json_unescape(bt_str(bad[i]), out, sizeof(out)), BT_E_INVAL);
    assert_int_equal(bt_json_unescape(BT_STR_NULL, out, sizeof(out)), BT_E_INVAL);
    assert_int_equal(bt_json_unescape_raw(BT_STR_NULL, NULL, 0), 0);
    assert_int_equal(bt_json_unescape_raw(BT_STR("a\\nb"), out, sizeof(out)), 3);
    assert_memory_equal(out, "a\nb", 3);
}

static void expect_quoted(bt_str_t s, const char *expected)
{
    char out[128];
    size_t n = bt_json_quote(s, out);
    assert_int_equal(n, strlen(expected));
    assert_memory_equal(out, expected, n);
    assert_int_equal(bt_json_quoted_size(s), n);
}

static void test_quote(void **state)
{
    expect_quoted(BT_STR(""), "\"\"");
    expect_quoted(BT_STR_NULL, "\"\"");
    expect_quoted(BT_STR("plain text that is longer than one block"),
                  "\"plain text that is longer than one block\"");
    expect_quoted(BT_STR("\"\\/\b\f\n\r\t"), "\"\\\"\\\\/\\b\\f\\n\\r\\t\"");
    expect_quoted(BT_STR("\0\x01\x1f\x7f"), "\"\\u0000\\u0001\\u001f\x7f\"");
    expect_quoted(BT_STR("\xc3\xa9\xf0\x9f\x98\x80"), "\"\xc3\xa9\xf0\x9f\x98\x80\"");
    expect_quoted(BT_STR("\xff"
                         "a\xc3"),
                  "\"\xef\xbf\xbd"
                  "a\xef\xbf\xbd\"");
    expect_quoted(BT_STR("\xed\xa0\x80"), "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");
}

/* Any bytes quoted are valid JSON; UTF-8 comes back unchanged. */
static void test_quote_and_unescape_are_inverse(void **state)
{
    static const char *const units[] = {"a",
                                        "\"",
                                        "\\",
                                        "\n",
                                        "\x01",
                                        "\xc3\xa9",
                                        "\xe4\xbd\xa0",
                                        "\xf0\x9f\x98\x80",
                                        " 0123456789abcdef"};
    char text[700], quoted[5000], back[5000];
    bt_rand_seed(11);
    for (unsigned round = 0; round < 5000; round++) {
        size_t n = 0;
        bool is_utf8 = bt_rand_below(4) > 0;
        for (uint64_t k = bt_rand_below(40); k > 0; k--) {
            bt_str_t unit = bt_str(units[bt_rand_below(sizeof(units) / sizeof(units[0]))]);
            memcpy(text + n, unit.p, unit.n);
            n += unit.n;
        }
        if (!is_utf8)
            for (size_t i = 0; i < n; i++)
                text[i] = (char) bt_rand_below(256);
        bt_str_t s = {text, n};
        size_t size = bt_json_quote(s, quoted);
        assert_int_equal(size, bt_json_quoted_size(s));
        assert_int_equal(bt_json_validate((bt_str_t){quoted, size}, NULL), 0);
        long len = bt_json_unescape((bt_str_t){quoted, size}, back, sizeof(back));
        assert_true(len >= 0);
        if (is_utf8)
            assert_true(bt_str_eq((bt_str_t){back, (size_t) len}, s));
    }
}

static void test_i64(void **state)
{
    int64_t v = 5;
    assert_int_equal(bt_json_i64(BT_STR("0"), &v), 0);
    assert_true(v == 0);
    assert_int_equal(bt_json_i64(BT_STR("-0"), &v), 0);
    assert_true(v == 0);
    assert_int_equal(bt_json_i64(BT_STR("9223372036854775807"), &v), 0);
    assert_true(v == INT64_MAX);
    assert_int_equal(bt_json_i64(BT_STR("-9223372036854775808"), &v), 0);
    assert_true(v == INT64_MIN);
    static const char *bad[] = {"9223372036854775808",
                                "-9223372036854775809",
                                "99999999999999999999999",
                                "1.0",
                                "1e2",
                                "01",
                                "+1",
                                "-",
                                "",
                                " 1",
                                "1 ",
                                "\"1\"",
                                "true",
                                "0x1"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(bt_json_i64(bt_str(bad[i]), &v), BT_E_INVAL);
    assert_int_equal(bt_json_i64(BT_STR_NULL, &v), BT_E_INVAL);
    assert_true(v == INT64_MIN);
}

static void test_double(void **state)
{
    static const struct {
        const char *json;
        double value;
    } good[] = {{"0", 0},         {"-1.5", -1.5}, {"1e3", 1000}, {"2.5E-1", 0.25},
                {"1e308", 1e308}, {"1e-999", 0},  {"0.1", 0.1}};
    static const char *bad[] = {"1e999", "-1e999", "nan", "inf", "Infinity", "0x1p3", "1.",
                                ".5",    "01",     "",    " 1",  "1 ",       "\"1\""};
    char longer[300];
    double v = 0;
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        assert_int_equal(bt_json_double(bt_str(good[i].json), &v), 0);
        assert_true(v == good[i].value);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(bt_json_double(bt_str(bad[i]), &v), BT_E_INVAL);
    for (size_t n = 60; n < sizeof(longer); n++) { /* around and beyond the small copy */
        memset(longer, '0', n);
        memcpy(longer, "1.5", 3);
        assert_int_equal(bt_json_double((bt_str_t){longer, n}, &v), 0);
        assert_true(v == 1.5);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unescape), cmocka_unit_test(test_unescape_refuses),
        cmocka_unit_test(test_quote),    cmocka_unit_test(test_quote_and_unescape_are_inverse),
        cmocka_unit_test(test_i64),      cmocka_unit_test(test_double),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
