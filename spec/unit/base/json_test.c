/* JSON: what is accepted and what is not, the cursor's spans, look-ups by unescaped key, counts,
 * the depth limit. */
#include "base/err.h"
#include "base/json.h"
#include "base/json_scan.h"
#include "base/rand.h"
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/json_corpus.h"

static bt_str_t exact_copy(bt_str_t s)
{
    char *copy =
        malloc(s.n > 0 ? s.n : 1); /* no byte to spare: a sanitizer sees each read too far */
    if (s.n > 0)
        memcpy(copy, s.p, s.n);
    return (bt_str_t){copy, s.n};
}

static void drop(bt_str_t s)
{
    free((void *) (uintptr_t) s.p);
}

static int validate(bt_str_t s)
{
    bt_str_t copy = exact_copy(s);
    int rc = bt_json_validate(copy, NULL);
    drop(copy);
    return rc;
}

/* Walks an object or array by cursor; the result and the offset must be those of validate(). */
static int walk(bt_str_t s, size_t *err_off_p)
{
    bt_str_t bare = bt_str_trim(s);
    bt_json_cursor_t c;
    bt_json_item_t item;
    int rc = bt_json_type_of(bare) == BT_JSON_OBJECT ? bt_json_object(&c, s) : bt_json_array(&c, s);
    while (rc == 0 && (rc = bt_json_next(&c, &item)) > 0)
        rc = 0;
    if (rc < 0) {
        assert_int_equal(bt_json_next(&c, &item), rc); /* and stays so */
        *err_off_p = c.err_off;
    }
    return rc;
}

static bool is_container(bt_str_t s)
{
    enum bt_json_type type = bt_json_type_of(bt_str_trim(s));
    return type == BT_JSON_OBJECT || type == BT_JSON_ARRAY;
}

static void test_accepts(void **state)
{
    size_t off;
    for (size_t i = 0; i < JSON_GOOD_COUNT; i++) {
        if (validate(json_good[i]) != 0)
            fail_msg("refused: %.*s", BT_STR_ARG(json_good[i]));
        if (is_container(json_good[i]))
            assert_int_equal(walk(json_good[i], &off), 0);
    }
}

static void test_refuses(void **state)
{
    size_t off;
    for (size_t i = 0; i < JSON_BAD_COUNT; i++) {
        int rc = validate(json_bad[i].text);
        if (rc != json_bad[i].rc)
            fail_msg("%d for #%zu: %.*s", rc, i, BT_STR_ARG(json_bad[i].text));
        if (is_container(json_bad[i].text))
            assert_int_equal(walk(json_bad[i].text, &off), json_bad[i].rc);
    }
    assert_int_equal(bt_json_validate(BT_STR_NULL, NULL), BT_E_JSON);
}

static void test_every_prefix_of_a_text_is_refused(void **state)
{
    for (size_t i = 0; i < JSON_GOOD_COUNT; i++) {
        bt_str_t s = bt_str_trim(json_good[i]);
        if (!is_container(s) && s.p[0] != '"')
            continue;
        for (size_t n = 0; n < s.n; n++)
            assert_true(validate((bt_str_t){s.p, n}) < 0);
    }
}

static void test_error_offsets(void **state)
{
    static const struct {
        const char *text;
        size_t off;
    } cases[] = {{"[1,x]", 3},     {"{\"a\":1,}", 7}, {"[\"a\nb\"]", 3}, {"{\"a\" 1}", 5},
                 {"[\"\\q\"]", 3}, {"[1] x", 4},      {"", 0},           {"[\"\xff\"]", 2}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t off = 999;
        const char *text = cases[i].text;
        assert_true(bt_json_validate(bt_str(text), &off) < 0);
        assert_int_equal(off, cases[i].off);
    }
}

/* One special byte at each offset of strings around the block sizes of the scanner. */
static void test_special_bytes_at_every_offset(void **state)
{
    static const struct {
        bt_str_t special;
        int rc;
    } cases[] = {{{"\x01", 1}, BT_E_JSON},
                 {{"\x1f", 1}, BT_E_JSON},
                 {{"\"", 1}, BT_E_JSON},
                 {{"\\q", 2}, BT_E_JSON},
                 {{"\xff", 1}, BT_E_JSON_UTF8},
                 {{"\xc3", 1}, BT_E_JSON_UTF8},
                 {{"\xc3\xa9", 2}, 0},
                 {{"\\n", 2}, 0},
                 {{"\x7f", 1}, 0},
                 {{" ", 1}, 0},
                 {{"!", 1}, 0},
                 {{"#", 1}, 0},
                 {{"[", 1}, 0},
                 {{"]", 1}, 0},
                 {{"\xf0\x9f\x98\x80", 4}, 0}};
    char text[64];
    for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++)
        for (size_t before = 0; before < 40; before++) {
            size_t n = 0, after = 41 - before;
            text[n++] = '"';
            memset(text + n, 'a', before);
            n += before;
            memcpy(text + n, cases[k].special.p, cases[k].special.n);
            n += cases[k].special.n;
            memset(text + n, 'z', after);
            n += after;
            text[n++] = '"';
            assert_int_equal(validate((bt_str_t){text, n}), cases[k].rc);
        }
}

static void test_depth_limit(void **state)
{
    char *text = malloc(100000);
    size_t off = 0;
    for (int shape = 0; shape < 2; shape++)
        for (size_t depth = BT_JSON_DEPTH_MAX - 1; depth <= BT_JSON_DEPTH_MAX + 1; depth++) {
            size_t n = 0;
            for (size_t i = 0; i < depth; i++) {
                bool is_object = shape == 1 && i % 3 == 0;
                memcpy(text + n, is_object ? "{\"a\":" : "[", is_object ? 5 : 1);
                n += is_object ? 5 : 1;
            }
            text[n++] = '0';
            for (size_t i = depth; i > 0; i--)
                text[n++] = shape == 1 && (i - 1) % 3 == 0 ? '}' : ']';
            bt_str_t s = {text, n};
            int expected = depth <= BT_JSON_DEPTH_MAX ? 0 : BT_E_JSON_DEPTH;
            assert_int_equal(validate(s), expected);
            assert_int_equal(walk(s, &off), expected);
        }
    memset(text, '[', 100000);
    assert_int_equal(validate((bt_str_t){text, 100000}), BT_E_JSON_DEPTH);
    free(text);
}

static void test_object_spans(void **state)
{
    bt_str_t text = BT_STR(" { \"a\" : 1 ,\"b\\n\":\"x\" , \"c\":[1, 2]}  ");
    bt_json_cursor_t c;
    bt_json_item_t item;

    assert_int_equal(bt_json_object(&c, text), 0);
    assert_int_equal(c.open_off, 1);
    assert_int_equal(bt_json_next(&c, &item), 1);
    assert_true(bt_str_eq(item.key, BT_STR("a")));
    assert_false(item.key_escaped);
    assert_int_equal(item.start, 3);
    assert_int_equal(item.value_off, 9);
    assert_true(bt_str_eq(item.value, BT_STR("1")));
    assert_int_equal(item.type, BT_JSON_NUMBER);
    assert_int_equal(item.prev_end, 2);
    assert_int_equal(item.ordinal, 0);
    assert_int_equal(bt_json_next(&c, &item), 1);
    assert_true(bt_str_eq(item.key, BT_STR("b\\n")));
    assert_true(item.key_escaped);
    assert_int_equal(item.type, BT_JSON_STRING);
    assert_true(bt_str_eq(item.value, BT_STR("\"x\"")));
    assert_int_equal(item.prev_end, 10);
    assert_int_equal(text.p[item.start], '"');
    assert_ptr_equal(text.p + item.value_off, item.value.p);
    size_t end = item.value_off + item.value.n;
    assert_int_equal(bt_json_next(&c, &item), 1);
    assert_int_equal(item.prev_end, end);
    assert_int_equal(item.ordinal, 2);
    assert_int_equal(item.type, BT_JSON_ARRAY);
    assert_true(bt_str_eq(item.value, BT_STR("[1, 2]")));
    assert_int_equal(bt_json_next(&c, &item), 0);
    assert_int_equal(c.close_off, text.n - 3);
    assert_int_equal(c.count, 3);
    assert_int_equal(bt_json_next(&c, &item), 0);
}

static void test_array_spans(void **state)
{
    bt_str_t text = BT_STR("[null, \"a\",{} ]");
    static const enum bt_json_type types[] = {BT_JSON_NULL, BT_JSON_STRING, BT_JSON_OBJECT};
    bt_json_cursor_t c;
    bt_json_item_t item;

    assert_int_equal(bt_json_array(&c, text), 0);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(bt_json_next(&c, &item), 1);
        assert_int_equal(item.type, types[i]);
        assert_int_equal(item.ordinal, i);
        assert_int_equal(item.key.n, 0);
        assert_int_equal(item.start, item.value_off);
    }
    assert_int_equal(bt_json_next(&c, &item), 0);
}

static void test_open_wants_the_right_bracket(void **state)
{
    bt_json_cursor_t c;
    bt_json_item_t item;
    assert_int_equal(bt_json_object(&c, BT_STR("[]")), BT_E_JSON);
    assert_int_equal(bt_json_next(&c, &item), BT_E_JSON);
    assert_int_equal(bt_json_array(&c, BT_STR("{}")), BT_E_JSON);
    assert_int_equal(bt_json_object(&c, BT_STR("\"{}\"")), BT_E_JSON);
    assert_int_equal(bt_json_object(&c, BT_STR_NULL), BT_E_JSON);
    assert_int_equal(c.err_off, 0);
}

/* Errors late in the text are found although the members before them were fine. */
static void test_error_after_good_members(void **state)
{
    bt_json_cursor_t c;
    bt_json_item_t item;
    assert_int_equal(bt_json_object(&c, BT_STR("{\"a\":1,\"b\":[1,2,]}")), 0);
    assert_int_equal(bt_json_next(&c, &item), 1);
    assert_int_equal(bt_json_next(&c, &item), BT_E_JSON);
    assert_int_equal(c.err_off, 16);
    assert_true(bt_str_eq(item.key, BT_STR("a"))); /* untouched */
}

static void test_keys_are_compared_unescaped(void **state)
{
    static const char *same[] = {"{\"kv_transfer_params\":1}", "{\"kv\\u005ftransfer_params\":1}",
                                 "{\"kv\\u005Ftransfer\\u005fparams\":1}",
                                 "{\"\\u006b\\u0076_transfer_param\\u0073\":1}"};
    static const char *other[] = {"{\"kv_transfer_param\":1}",
                                  "{\"kv_transfer_params2\":1}",
                                  "{\"kv\\u005ftransfer_param\":1}",
                                  "{\"kv\\u005ftransfer_params\\u0000\":1}",
                                  "{\"KV_transfer_params\":1}",
                                  "{\"kv\\\\u005ftransfer_params\":1}",
                                  "{\"\":1}"};
    bt_json_item_t item;
    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
        assert_int_equal(bt_json_get(bt_str(same[i]), BT_STR("kv_transfer_params"), &item), 0);
        assert_int_equal(item.type, BT_JSON_NUMBER);
    }
    for (size_t i = 0; i < sizeof(other) / sizeof(other[0]); i++) {
        assert_int_equal(bt_json_get(bt_str(other[i]), BT_STR("kv_transfer_params"), &item), 0);
        assert_int_equal(item.type, BT_JSON_NONE);
    }
    assert_int_equal(
        bt_json_get(BT_STR("{\"\\ud83d\\ude00/\\/\":1}"), BT_STR("\xf0\x9f\x98\x80//"), &item), 0);
    assert_int_equal(item.type, BT_JSON_NUMBER);
    assert_int_equal(bt_json_get(BT_STR("{\"\\u0000\":1}"), BT_STR("\0"), &item), 0);
    assert_int_equal(item.type, BT_JSON_NUMBER);
    assert_int_equal(bt_json_get(BT_STR("{\"\\ud800x\":1}"), BT_STR("\xef\xbf\xbdx"), &item), 0);
    assert_int_equal(item.type, BT_JSON_NUMBER);
}

static void test_get(void **state)
{
    bt_json_item_t item;
    assert_int_equal(bt_json_get(BT_STR("{\"a\":1,\"b\":2,\"a\":3}"), BT_STR("a"), &item), 0);
    assert_true(bt_str_eq(item.value, BT_STR("1")));
    assert_int_equal(bt_json_get(BT_STR("{\"a\":1,\"b\":}"), BT_STR("a"), &item), BT_E_JSON);
    assert_int_equal(bt_json_get(BT_STR("[1]"), BT_STR("a"), &item), BT_E_JSON);
}

static void test_path(void **state)
{
    bt_str_t text = BT_STR("{\"x\":0,\"a\":{\"b\":{\"c\":\"deep\"},\"n\":1}}");
    bt_json_item_t item;
    assert_int_equal(bt_json_path(text, &item, "a", "b", "c", NULL), 0);
    assert_true(bt_str_eq(item.value, BT_STR("\"deep\"")));
    assert_ptr_equal(text.p + item.value_off,
                     item.value.p); /* offsets count from the outermost text */
    assert_int_equal(text.p[item.start], '"');
    assert_int_equal(bt_json_path(text, &item, "a", "n", "c", NULL), 0);
    assert_int_equal(item.type, BT_JSON_NONE);
    assert_int_equal(bt_json_path(text, &item, "q", "b", NULL), 0);
    assert_int_equal(item.type, BT_JSON_NONE);
    assert_int_equal(bt_json_path(text, &item, "x", NULL), 0);
    assert_int_equal(item.type, BT_JSON_NUMBER);
    assert_int_equal(bt_json_path(BT_STR("{\"a\":{}"), &item, "a", "b", NULL), BT_E_JSON);
}

static void test_count(void **state)
{
    assert_int_equal(bt_json_count(BT_STR("[]")), 0);
    assert_int_equal(bt_json_count(BT_STR(" [1,[2,3],\"4,5\"] ")), 3);
    assert_int_equal(bt_json_count(BT_STR("{\"a\":1,\"b\":{}}")), 2);
    assert_int_equal(bt_json_count(BT_STR("[1,]")), BT_E_JSON);
    assert_int_equal(bt_json_count(BT_STR("\"text\"")), BT_E_JSON);
    assert_int_equal(bt_json_count(BT_STR("")), BT_E_JSON);
}

static void test_types(void **state)
{
    assert_int_equal(bt_json_type_of(BT_STR("-1")), BT_JSON_NUMBER);
    assert_int_equal(bt_json_type_of(BT_STR("9")), BT_JSON_NUMBER);
    assert_int_equal(bt_json_type_of(BT_STR("true")), BT_JSON_TRUE);
    assert_int_equal(bt_json_type_of(BT_STR("false")), BT_JSON_FALSE);
    assert_int_equal(bt_json_type_of(BT_STR("null")), BT_JSON_NULL);
    assert_int_equal(bt_json_type_of(BT_STR("")), BT_JSON_NONE);
    assert_int_equal(bt_json_type_of(BT_STR("?")), BT_JSON_NONE);
}

/* Random damage to good texts: one pass by cursor and one by validate() agree on verdict and place.
 */
static void test_cursor_agrees_with_validate_on_damaged_texts(void **state)
{
    static const char alphabet[] = "{}[],:\"\\ntfu0123456789eE+-. \n\x01\xc3\xa9\xe4\xff";
    char text[512];
    unsigned accepted = 0, refused = 0;
    bt_rand_seed(7);
    for (unsigned i = 0; i < 60000; i++) {
        bt_str_t base = json_good[bt_rand_below(JSON_GOOD_COUNT)];
        memcpy(text, base.p, base.n);
        size_t n = base.n;
        for (uint64_t edits = 1 + bt_rand_below(3); edits > 0 && n > 0; edits--) {
            size_t at = bt_rand_below(n);
            if (bt_rand_below(4) == 0)
                memmove(text + at, text + at + 1, --n - at);
            else
                text[at] = alphabet[bt_rand_below(sizeof(alphabet) - 1)];
        }
        bt_str_t copy = exact_copy((bt_str_t){text, n});
        size_t off = 0, walk_off = 0;
        int rc = bt_json_validate(copy, &off);
        rc == 0 ? accepted++ : refused++;
        if (is_container(copy)) {
            assert_int_equal(walk(copy, &walk_off), rc);
            assert_int_equal(walk_off, off);
        }
        drop(copy);
    }
    assert_true(accepted > 1000 && refused > 1000);
}

/* Lists of every length around a block, with what goes over integers at once and what must not. */
static void size_of_what_is_right(void **state)
{
    static const char *const items[] = {"7",   "12345, ", "[1,2]",         "-3",
                                        "0.5", "\"1,2\"", "{\"a\":[4,5]}", "[]"};

    for (unsigned kind = 0; kind < 64; kind++)
        for (unsigned count = 0; count < 60; count++) {
            char text[2048] = "[";
            for (unsigned i = 0; i < count; i++)
                snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%.*s",
                         i == 0 ? "" : ",",
                         (int) strcspn(items[i % 3 == 2 ? kind / 8 : kind % 8], " "),
                         i % 3 == 1 ? "12345" : items[i % 3 == 2 ? kind / 8 : kind % 8]);
            for (char *comma; (comma = strstr(text, ",,")) != NULL;)
                memmove(comma, comma + 1, strlen(comma));
            if (text[strlen(text) - 1] == ',')
                text[strlen(text) - 1] = '\0';
            strcat(text, "]");
            const long size = bt_json_count(bt_str(text));
            assert_true(size >= 0);
            assert_int_equal(bt_json_size(bt_str(text)), size);
            strcat(text,
                   ",1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28]");
            memmove(text + 1, text, strlen(text) + 1);
            text[0] = '['; /* the same as the first element of another, with more behind it */
            bt_json_walk_t walk;
            bt_str_t element;
            size_t inner;
            bt_json_walk(&walk, bt_str(text));
            assert_true(bt_json_walk_next(&walk, &element, &inner));
            assert_int_equal(inner, size);
            assert_int_equal(bt_json_size(bt_str(text)), 29);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepts),
        cmocka_unit_test(size_of_what_is_right),
        cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_every_prefix_of_a_text_is_refused),
        cmocka_unit_test(test_error_offsets),
        cmocka_unit_test(test_special_bytes_at_every_offset),
        cmocka_unit_test(test_depth_limit),
        cmocka_unit_test(test_object_spans),
        cmocka_unit_test(test_array_spans),
        cmocka_unit_test(test_open_wants_the_right_bracket),
        cmocka_unit_test(test_error_after_good_members),
        cmocka_unit_test(test_keys_are_compared_unescaped),
        cmocka_unit_test(test_get),
        cmocka_unit_test(test_path),
        cmocka_unit_test(test_count),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_cursor_agrees_with_validate_on_damaged_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
