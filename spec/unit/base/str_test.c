/* Slices: compares, trimming, searching, numbers, edit distance. */
#include "base/err.h"
#include "base/str.h"
#include "unit.h"

#include <stdlib.h>

static void test_compares(void **state)
{
    assert_true(bt_str_eq(BT_STR("abc"), bt_str("abc")));
    assert_false(bt_str_eq(BT_STR("abc"), BT_STR("abd")));
    assert_false(bt_str_eq(BT_STR("abc"), BT_STR("ab")));
    assert_true(bt_str_eq(BT_STR_NULL, BT_STR("")));
    assert_true(bt_str_ieq(BT_STR("Content-Length"), BT_STR("content-LENGTH")));
    assert_true(bt_str_starts(BT_STR("baton"), BT_STR("bat")));
    assert_false(bt_str_starts(BT_STR("ba"), BT_STR("bat")));
    assert_true(bt_str_starts(BT_STR("ba"), BT_STR_NULL));
}

static void test_escaped_byte(void **state)
{
    assert_int_equal(bt_str_escaped_byte(BT_STR("%2fx"), 0), '/');
    assert_int_equal(bt_str_escaped_byte(BT_STR("a%2F"), 1), '/');
    assert_int_equal(bt_str_escaped_byte(BT_STR("%00"), 0), 0);
    assert_int_equal(bt_str_escaped_byte(BT_STR("%2"), 0), -1);
    assert_int_equal(bt_str_escaped_byte(BT_STR("%g0"), 0), -1);
    assert_int_equal(bt_str_escaped_byte(BT_STR("%0g"), 0), -1);
    assert_int_equal(bt_str_escaped_byte(BT_STR("x2f"), 0), -1);
}

static void test_take_hex64(void **state)
{
    static const char *const bad[] = {"",
                                      "123456789abcdef",
                                      "0x34567890abcdef",
                                      "123456789ABCDEF0",
                                      "123456789abcdeg0",
                                      " 23456789abcdef0"};
    bt_str_t text = BT_STR("0123456789abcdef rest");
    uint64_t value = 0;

    assert_true(bt_str_take_hex64(&text, &value));
    assert_true(value == UINT64_C(0x0123456789abcdef));
    assert_true(bt_str_eq(text, BT_STR(" rest")));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        text = bt_str(bad[i]);
        assert_false(bt_str_take_hex64(&text, &value));
        assert_true(text.p == bad[i]);
    }
}

static void test_lines(void **state)
{
    const bt_str_t three = BT_STR("a\nbc\nd\n");
    assert_int_equal(bt_str_lines(BT_STR_NULL), 0);
    assert_int_equal(bt_str_lines(three), 3);
    assert_int_equal(bt_str_lines(BT_STR("a\nb")), 1);
    assert_int_equal(bt_str_cut_lines(three, 100).n, three.n);
    assert_int_equal(bt_str_cut_lines(three, 5).n, 5);
    assert_int_equal(bt_str_cut_lines(three, 4).n, 2);
    assert_int_equal(bt_str_cut_lines(three, 1).n, 2); /* one line at least */
    assert_int_equal(bt_str_cut_lines(three, 0).n, 2);
}

static void test_trim(void **state)
{
    assert_true(bt_str_eq(bt_str_trim(BT_STR(" \t a b \r\n")), BT_STR("a b")));
    assert_int_equal(bt_str_trim(BT_STR("  \n ")).n, 0);
    assert_int_equal(bt_str_trim(BT_STR_NULL).n, 0);
}

static void test_secret(void **state)
{
    assert_true(bt_str_is_secret(BT_STR("sesame"), BT_STR("sesame")));
    assert_false(bt_str_is_secret(BT_STR("sesame"), BT_STR("sesamf")));
    assert_false(bt_str_is_secret(BT_STR("sesame"), BT_STR("Sesame")));
    assert_false(bt_str_is_secret(BT_STR("sesame"), BT_STR("sesam")));
    assert_false(bt_str_is_secret(BT_STR("sesame"), BT_STR("sesamesesame")));
    assert_false(bt_str_is_secret(BT_STR("sesame"), BT_STR_NULL));
    assert_false(bt_str_is_secret(BT_STR_NULL, BT_STR("s")));
    assert_false(bt_str_is_secret(BT_STR_NULL, ((bt_str_t){"\0", 1})));
    assert_true(bt_str_is_secret(BT_STR_NULL, BT_STR("")));
}

static void test_find(void **state)
{
    assert_int_equal(bt_str_find(BT_STR("hello world"), BT_STR("o w")), 4);
    assert_int_equal(bt_str_find(BT_STR("hello"), BT_STR("z")), -1);
    assert_int_equal(bt_str_find(BT_STR("he"), BT_STR("hello")), -1);
    assert_int_equal(bt_str_find(BT_STR_NULL, BT_STR("x")), -1);
    assert_int_equal(bt_str_find(BT_STR("x"), BT_STR_NULL), 0);
    assert_int_equal(bt_str_find(BT_STR("a\0b"), BT_STR("\0b")), 1);
}

/* At every place of texts of every length, beside others that begin and end as it does. */
static void test_find_everywhere(void **state)
{
    const bt_str_t needle = BT_STR("\"usage\"");
    char *text;

    for (size_t n = needle.n; n < 80; n++) {
        text = malloc(n); /* of its length, so that a sanitizer sees a byte too much */
        for (size_t at = 0; at + needle.n <= n; at++) {
            for (size_t i = 0; i < n; i++)
                text[i] = "\"usual\""[i % 8];
            memcpy(text + at, needle.p, needle.n);
            assert_int_equal(bt_str_find((bt_str_t){text, n}, needle), at);
            text[at + 3] = 'A';
            assert_int_equal(bt_str_find((bt_str_t){text, n}, needle), -1);
        }
        free(text);
    }
    char longer[200];
    memset(longer, 'a', sizeof(longer));
    longer[199] = 'b';
    assert_int_equal(bt_str_find((bt_str_t){longer, 200}, (bt_str_t){longer + 100, 100}), 100);
}

static void test_u64(void **state)
{
    uint64_t value = 7;
    assert_int_equal(bt_str_u64(BT_STR("0"), &value), 0);
    assert_true(value == 0);
    assert_int_equal(bt_str_u64(BT_STR("18446744073709551615"), &value), 0);
    assert_true(value == UINT64_MAX);
    assert_int_equal(bt_str_u64(BT_STR("18446744073709551616"), &value), BT_E_LIMIT);
    assert_int_equal(bt_str_u64(BT_STR("99999999999999999999999999"), &value), BT_E_LIMIT);
    const char *bad[] = {"", "-1", "+1", " 1", "1 ", "1.0", "0x10", "99999999999999999999999x"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(bt_str_u64(bt_str(bad[i]), &value), BT_E_INVAL);
    assert_true(value == UINT64_MAX); /* untouched on failure */
}

static void test_dup(void **state)
{
    char *copy = bt_str_dup((bt_str_t){"abcdef", 3});
    assert_string_equal(copy, "abc");
    free(copy);
    copy = bt_str_dup(BT_STR_NULL);
    assert_string_equal(copy, "");
    free(copy);
}

static void test_distance(void **state)
{
    char a[100], b[100];
    assert_int_equal(bt_str_distance(BT_STR("kitten"), BT_STR("sitting")), 3);
    assert_int_equal(bt_str_distance(BT_STR("Port"), BT_STR("port")), 0);
    assert_int_equal(bt_str_distance(BT_STR(""), BT_STR("abc")), 3);
    assert_int_equal(bt_str_distance(BT_STR("abc"), BT_STR_NULL), 3);
    assert_int_equal(bt_str_distance(BT_STR("polciy"), BT_STR("policy")), 2);
    memset(a, 'a', sizeof(a));
    memset(b, 'b', sizeof(b));
    assert_int_equal(bt_str_distance((bt_str_t){a, 100}, (bt_str_t){b, 100}), 64);
}

static size_t cut(const char *z, size_t max)
{
    return bt_str_cut(bt_str(z), max).n;
}

static void test_cut(void **state)
{
    assert_int_equal(cut("abc", 3), 3);
    assert_int_equal(cut("abc", 2), 2);
    assert_int_equal(cut("abc", 0), 0);
    assert_int_equal(bt_str_cut(BT_STR_NULL, 0).n, 0);
    assert_int_equal(cut("a\xc3\xa4z", 3), 3);
    assert_int_equal(cut("a\xc3\xa4z", 2), 1);
    assert_int_equal(cut("\xf0\x9f\x8d\x83z", 4), 4);
    for (size_t max = 0; max < 4; max++)
        assert_int_equal(cut("\xf0\x9f\x8d\x83z", max), 0);
    assert_int_equal(cut("\x80\x80\x80\x80\x80\x80", 5), 5); /* no UTF-8: any place is as good */
}

static void test_tame(void **state)
{
    char text[] = "a\x1b[2J\x7f\n\xc2\x9b\xc2\xa0\xc3\xa9\xc2";
    bt_str_tame(text, sizeof(text) - 1);
    assert_string_equal(text, "a?[2J?\?\?\?\xc2\xa0\xc3\xa9\xc2");
    bt_str_tame(NULL, 0);
}

static void check_number(uint64_t value, const char *decimal, const char *hex)
{
    char z[64], *at = z;

    bt_str_put_u64(&at, value);
    *at++ = ' ';
    bt_str_put_hex64(&at, value);
    *at = '\0';
    assert_int_equal((size_t) (at - z), strlen(decimal) + 1 + 16);
    assert_memory_equal(z, decimal, strlen(decimal));
    assert_string_equal(z + strlen(decimal) + 1, hex);
}

static void test_numbers(void **state)
{
    char z[4] = "....";
    check_number(0, "0", "0000000000000000");
    check_number(109, "109", "000000000000006d");
    check_number(UINT64_MAX, "18446744073709551615", "ffffffffffffffff");
    assert_ptr_equal(bt_str_digits(z + 3, 7, 2), z + 1);
    assert_memory_equal(z, ".07.", 4);
}

static void test_without_controls(void **state)
{
    char text[33];

    for (size_t at = 0; at < sizeof(text) - 1; at++)
        for (unsigned c = 0; c < 256; c++) {
            memset(text, c % 2 == 0 ? 0xff : ' ', sizeof(text));
            text[at] = (char) c;
            const size_t n = bt_str_without_controls((bt_str_t){text, sizeof(text) - 1});
            assert_int_equal(n, c < 0x20 ? at / 8 * 8 : sizeof(text) - 1);
        }
    assert_int_equal(bt_str_without_controls(BT_STR("1234567")), 0);
    assert_int_equal(bt_str_without_controls(BT_STR_NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_controls),
        cmocka_unit_test(test_compares),
        cmocka_unit_test(test_trim),
        cmocka_unit_test(test_secret),
        cmocka_unit_test(test_find),
        cmocka_unit_test(test_find_everywhere),
        cmocka_unit_test(test_u64),
        cmocka_unit_test(test_dup),
        cmocka_unit_test(test_distance),
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_tame),
        cmocka_unit_test(test_escaped_byte),
        cmocka_unit_test(test_take_hex64),
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
