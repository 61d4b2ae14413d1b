#include "admin/prom_check.h"

#include "admin/metrics/prom.h"

#include <stdio.h>

static bt_text_t out;
static bt_prom_t p;

static int open_text(void **state)
{
    bt_text_init(&out);
    p = (bt_prom_t){.out = &out};
    return 0;
}

static int close_text(void **state)
{
    bt_text_fini(&out);
    return 0;
}

static void test_exact_text(void **state)
{
    const bt_label_t labels[] = {{"a", BT_STR("x")}, {"b", BT_STR("")}};

    bt_prom_family(&p, "baton_x", "gauge", "Help text");
    bt_prom_count(&p, NULL, 0, 18446744073709551615ULL);
    bt_prom_int(&p, labels, 1, -5);
    bt_prom_micro(&p, labels, 2, 1500001);
    assert_string_equal(out.data, "# HELP baton_x Help text\n# TYPE baton_x gauge\n"
                                  "baton_x 18446744073709551615\n"
                                  "baton_x{a=\"x\"} -5\n"
                                  "baton_x{a=\"x\",b=\"\"} 1.500001\n");
    prom_check(bt_text_str(&out));
}

static void test_hostile_label_values(void **state)
{
    static const struct {
        const char *raw, *want;
    } rows[] = {
        {"\"} 1\nbaton_fake 2", "\\\"} 1\\nbaton_fake 2"},
        {"a\\", "a\\\\"},
        {"\xff", "\xef\xbf\xbd"},
        {"\xc3", "\xef\xbf\xbd"},
        {"\xc3\xa9", "\xc3\xa9"},
        {"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80"},
        {"\xf0\x9f\x98", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xf5\x80\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
    };

    bt_prom_family(&p, "baton_x", "gauge", "h");
    for (unsigned i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        size_t before = out.len;
        char want[128];
        const bt_label_t labels[] = {{"v", bt_str(rows[i].raw)},
                                     {"i", {(const char *) "0123456789" + i, 1}}};
        bt_prom_count(&p, labels, 2, 1);
        snprintf(want, sizeof want, "baton_x{v=\"%s\",i=\"%u\"} 1\n", rows[i].want, i);
        assert_string_equal(out.data + before, want);
    }
    assert_int_equal(prom_check(bt_text_str(&out)), sizeof rows / sizeof rows[0]);
}

static void test_histograms_are_summed(void **state)
{
    static bt_histogram_t a, b;
    const bt_histogram_t *const parts[] = {&a, &b};

    bt_histogram_note(&a, 1000, 1);      /* le 0.001 */
    bt_histogram_note(&b, 1001, 2);      /* le 0.005 */
    bt_histogram_note(&b, 999000000, 1); /* +Inf */
    bt_prom_family(&p, "baton_h_seconds", "histogram", "h");
    bt_prom_histogram(&p, &(bt_prom_histogram_t){.parts = parts, .part_count = 2});
    prom_check(bt_text_str(&out));
    assert_non_null(strstr(out.data, "baton_h_seconds_bucket{le=\"0.001\"} 1\n"));
    assert_non_null(strstr(out.data, "baton_h_seconds_bucket{le=\"0.005\"} 3\n"));
    assert_non_null(strstr(out.data, "baton_h_seconds_bucket{le=\"2.5\"} 3\n"));
    assert_non_null(strstr(out.data, "baton_h_seconds_bucket{le=\"240\"} 3\n"));
    assert_non_null(strstr(out.data, "baton_h_seconds_bucket{le=\"+Inf\"} 4\n"));
    assert_non_null(strstr(out.data, "baton_h_seconds_sum 999.003002\n"));
    assert_non_null(strstr(out.data, "baton_h_seconds_count 4\n"));
}

/* A scrape may fall between two stores of the loop: count may not disagree with the buckets. */
static void test_count_is_made_of_the_buckets(void **state)
{
    static bt_histogram_t h;
    const bt_histogram_t *const parts[] = {&h};

    h.buckets[3] = 7;
    h.count = 6;
    bt_prom_family(&p, "baton_h_seconds", "histogram", "h");
    bt_prom_histogram(&p, &(bt_prom_histogram_t){.parts = parts, .part_count = 1});
    prom_check(bt_text_str(&out));
    assert_non_null(strstr(out.data, "baton_h_seconds_count 7\n"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_exact_text, open_text, close_text),
        cmocka_unit_test_setup_teardown(test_hostile_label_values, open_text, close_text),
        cmocka_unit_test_setup_teardown(test_histograms_are_summed, open_text, close_text),
        cmocka_unit_test_setup_teardown(test_count_is_made_of_the_buckets, open_text, close_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
