#include "discovery/json_stream.h"

#include "base/err.h"
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>

static char got[4096]; /* values, a '|' behind each */
static unsigned stop_after;

static bool on_value(void *user, bt_str_t value)
{
    (void) user;
    assert_true(strlen(got) + value.n + 2 < sizeof got);
    strncat(got, value.p, value.n);
    strcat(got, "|");
    return stop_after == 0 || --stop_after > 0;
}

/* In pieces of this size. */
static int feed(bt_json_stream_t *s, const char *text, size_t piece)
{
    int rc = 0;
    for (size_t n = strlen(text); n > 0 && rc == 0;) {
        const size_t part = n < piece ? n : piece;
        char *copy = malloc(part); /* an overrun is seen */
        memcpy(copy, text, part);
        rc = bt_json_stream_feed(s, (bt_str_t){copy, part}, on_value, NULL);
        free(copy);
        text += part;
        n -= part;
    }
    return rc;
}

static int run(enum bt_json_stream_kind kind, const char *text, size_t piece, size_t max,
               char *rest, size_t rest_size)
{
    bt_json_stream_t s;
    got[0] = '\0';
    bt_json_stream_init(&s, kind, max);
    int rc = feed(&s, text, piece);
    if (rest != NULL)
        snprintf(rest, rest_size, "%.*s", (int) s.rest.len, s.rest.data != NULL ? s.rest.data : "");
    bt_json_stream_fini(&s);
    return rc;
}

static void items_are_cut_out_however_they_come(void **state)
{
    static const char text[] =
        "{\"kind\":\"PodList\", \"other\":[{\"a\":1}], \"items\" : [ "
        "{\"n\":\"a]}\\\"{\",\"l\":[[1],{}]} ,\n"
        "{\"items\":[{}]},{}], \"metadata\":{\"resourceVersion\":\"7\",\"items\":[2]}}\n";
    char rest[512];
    for (size_t piece = 1; piece < sizeof text; piece++) {
        assert_int_equal(run(BT_JSON_STREAM_ITEMS, text, piece, 100, rest, sizeof rest), 0);
        assert_string_equal(got, "{\"n\":\"a]}\\\"{\",\"l\":[[1],{}]}|{\"items\":[{}]}|{}|");
        assert_string_equal(rest, "{\"kind\":\"PodList\", \"other\":[{\"a\":1}], \"items\" : [], "
                                  "\"metadata\":{\"resourceVersion\":\"7\",\"items\":[2]}}\n");
    }
}

static void an_item_that_is_too_large_is_passed_over(void **state)
{
    static const char text[] = "{\"items\":[{\"a\":1},{\"a\":\"0123456789\"},{\"a\":2}]}";
    bt_json_stream_t s;
    for (size_t piece = 1; piece < sizeof text; piece++) {
        got[0] = '\0';
        bt_json_stream_init(&s, BT_JSON_STREAM_ITEMS, 10);
        assert_int_equal(feed(&s, text, piece), 0);
        assert_string_equal(got, "{\"a\":1}|{\"a\":2}|");
        assert_int_equal(s.too_large, 1);
        assert_false(bt_json_stream_is_within(&s));
        bt_json_stream_fini(&s);
    }
}

static void what_is_no_list_is_refused(void **state)
{
    char *large = malloc((64 << 10) + 100);
    assert_int_equal(run(BT_JSON_STREAM_ITEMS, "{\"items\":[\"a\"]}", 99, 100, NULL, 0), BT_E_JSON);
    assert_int_equal(run(BT_JSON_STREAM_ITEMS, "{\"items\":[[]]}", 99, 100, NULL, 0), BT_E_JSON);
    assert_int_equal(run(BT_JSON_STREAM_ITEMS, "}", 99, 100, NULL, 0), BT_E_JSON);
    memset(large, ' ', (64 << 10) + 99);
    large[(64 << 10) + 99] = '\0';
    assert_int_equal(run(BT_JSON_STREAM_ITEMS, large, 1000, 100, NULL, 0), BT_E_LIMIT);
    free(large);
}

static void lines(void **state)
{
    static const char text[] = "{\"a\":1}\n\n{\"b\":2}\nhalf";
    bt_json_stream_t s;
    for (size_t piece = 1; piece < sizeof text; piece++) {
        got[0] = '\0';
        bt_json_stream_init(&s, BT_JSON_STREAM_LINES, 20);
        assert_int_equal(feed(&s, text, piece), 0);
        assert_string_equal(got, "{\"a\":1}|{\"b\":2}|");
        assert_true(bt_json_stream_is_within(&s));
        bt_json_stream_reset(&s, BT_JSON_STREAM_LINES);
        assert_false(bt_json_stream_is_within(&s));
        bt_json_stream_fini(&s);
    }
    assert_int_equal(run(BT_JSON_STREAM_LINES, "0123456789\n0123", 3, 10, NULL, 0), 0);
    assert_int_equal(run(BT_JSON_STREAM_LINES, "01234567890", 3, 10, NULL, 0), BT_E_LIMIT);
    stop_after = 1;
    assert_int_equal(run(BT_JSON_STREAM_LINES, "a\nb\n", 99, 10, NULL, 0), BT_E_CANCELLED);
    assert_string_equal(got, "a|");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(items_are_cut_out_however_they_come),
        cmocka_unit_test(an_item_that_is_too_large_is_passed_over),
        cmocka_unit_test(what_is_no_list_is_refused),
        cmocka_unit_test(lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
