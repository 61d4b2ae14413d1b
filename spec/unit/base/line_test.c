/* Lines of bounded size: numbers, cuts between characters, what others wrote spelled out. */
#include "base/json.h"
#include "base/line.h"
#include "unit.h"

static char memory[4096];
static bt_line_t line;

static void begin(size_t size)
{
    memset(memory, '#', sizeof(memory));
    bt_line_init(&line, memory, size);
}

static void expect(const char *expected)
{
    const bt_str_t s = bt_line_str(&line);

    assert_int_equal(s.n, strlen(expected));
    assert_memory_equal(s.p, expected, s.n);
    assert_int_equal(memory[line.end - memory], '#'); /* nothing behind the end */
}

static void test_numbers(void **state)
{
    begin(200);
    bt_line_u64(&line, 0);
    bt_line_lit(&line, " ");
    bt_line_u64(&line, UINT64_MAX);
    bt_line_lit(&line, " ");
    bt_line_decimal(&line, 1234, 3);
    bt_line_lit(&line, " ");
    bt_line_decimal(&line, 7, 3);
    bt_line_lit(&line, " ");
    bt_line_decimal(&line, UINT64_MAX, 1);
    bt_line_lit(&line, " ");
    bt_line_decimal(&line, 0, 9);
    expect("0 18446744073709551615 1.234 0.007 1844674407370955161.5 0.000000000");
}

static void test_what_does_not_fit_is_left_out(void **state)
{
    begin(5);
    bt_line_z(&line, "abc");
    bt_line_put(&line, BT_STR("defg"));
    bt_line_u64(&line, 1);
    bt_line_plain(&line, BT_STR("h\n"), 10);
    expect("abcde");
    begin(3);
    bt_line_quoted(&line, BT_STR("abc"), 10);
    expect("\"a\"");
    begin(1);
    bt_line_quoted(&line, BT_STR("abc"), 10);
    expect("");
    begin(0);
    bt_line_put(&line, BT_STR_NULL);
    expect("");
}

static void test_plain_text_is_spelled_out(void **state)
{
    begin(200);
    bt_line_plain(&line, BT_STR("a\nb\x1b[0m\x7f \xc3\xa4 \xc2\x9b \xff\xe2\x82 \xe2\x82\xac"),
                  100);
    expect("a\\x0ab\\x1b[0m\\x7f \xc3\xa4 \\xc2\\x9b \\xff\\xe2\\x82 \xe2\x82\xac");
}

static void test_cuts_are_marked_and_between_characters(void **state)
{
    begin(200);
    bt_line_plain(&line, BT_STR("abcdef"), 6);
    bt_line_lit(&line, " ");
    bt_line_plain(&line, BT_STR("abcdefg"), 6);
    bt_line_lit(&line, " ");
    bt_line_plain(&line, BT_STR("ab\xe2\x82\xac"), 4);
    bt_line_lit(&line, " ");
    bt_line_quoted(&line, BT_STR("ab\xe2\x82\xac"), 4);
    bt_line_quoted(&line, BT_STR("ab\xe2\x82\xac"), 5);
    bt_line_quoted(&line, BT_STR("abc\"def"), 4);
    expect("abcdef abcdef... ab... \"ab...\"\"ab\xe2\x82\xac\"\"abc\\\"...\"");
}

/* Every byte grows sixfold, threefold or not, at every size: what comes out is JSON or nothing. */
static void test_quoted_fits_at_any_size(void **state)
{
    static const char fills[] = {'a', '\x01', '\xff', '"'};
    char given[300];

    for (unsigned f = 0; f < sizeof(fills); f++) {
        memset(given, fills[f], sizeof(given));
        for (size_t size = 0; size < 2000; size++) {
            begin(size);
            bt_line_quoted(&line, (bt_str_t){given, sizeof(given)}, 256);
            const bt_str_t s = bt_line_str(&line);
            assert_int_equal(memory[size], '#');
            assert_true(s.n == 0 || bt_json_validate(s, NULL) == 0);
            assert_true(s.n > 0 || size < 5);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_what_does_not_fit_is_left_out),
        cmocka_unit_test(test_plain_text_is_spelled_out),
        cmocka_unit_test(test_cuts_are_marked_and_between_characters),
        cmocka_unit_test(test_quoted_fits_at_any_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
