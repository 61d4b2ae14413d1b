/* What must hold for every text:
 *   - bt_json_validate and jansson accept the same texts;
 *   - a walk by cursor ends as validate does, with the same error at the same place;
 *   - the elements of an accepted list, and how many each has itself, and the members of an accepted
 * object are the same to bt_json_walk;
 *   - an accepted text, taken apart into spans down to its scalars, keys and strings unescaped and
 * quoted anew, and put together again, has the same value;
 *   - any bytes, quoted, are a JSON string.
 * Where jansson is asked for less or more than RFC 8259, by its documentation and source:
 *   - lone surrogate escapes are refused there; they are turned into \ufffd first, which is how
 * ours unescapes them;
 *   - U+0000 in a key, and numbers beyond the range of a double, are refused there: not compared;
 *   - it nests 2048 deep, ours 512: not compared beyond;
 *   - a NUL byte right after a number or word is lost in it: no JSON has one, so refusing is asked
 * of ours alone.
 */
#include "json_oracle.h"

#include "base/err.h"
#include "base/json.h"
#include "base/text.h"

#include <ctype.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#define MUST(cond, text)                                                                           \
    do {                                                                                           \
        if (!(cond))                                                                               \
            disagree(#cond, __LINE__, (text));                                                     \
    } while (0)

static void disagree(const char *what, int line, bt_str_t text)
{
    fprintf(stderr, "json_oracle.c:%d: not so: %s\ntext (%zu bytes): ", line, what, text.n);
    for (size_t i = 0; i < text.n; i++)
        fprintf(stderr, isprint((unsigned char) text.p[i]) ? "%c" : "\\x%02x",
                (unsigned char) text.p[i]);
    fputc('\n', stderr);
    abort();
}

static long surrogate_at(bt_str_t s, size_t at)
{
    char digits[5] = "";
    if (at + 6 > s.n || s.p[at] != '\\' || s.p[at + 1] != 'u')
        return -1;
    memcpy(digits, s.p + at + 2, 4);
    if (strspn(digits, "0123456789abcdefABCDEF") != 4)
        return -1;
    long unit = strtol(digits, NULL, 16);
    return unit >= 0xd800 && unit <= 0xdfff ? unit : -1;
}

/* A copy whose lone surrogate escapes read \ufffd: same length, same grammar. */
static char *without_lone_surrogates(bt_str_t s)
{
    char *copy = bt_str_dup(s);
    for (size_t i = 0; i < s.n; i++) {
        long unit = surrogate_at(s, i);
        if (unit >= 0 && unit < 0xdc00 && surrogate_at(s, i + 6) >= 0xdc00)
            i += 11;
        else if (unit >= 0)
            memcpy(copy + i + 2, "fffd", 4);
        else if (s.p[i] == '\\')
            i++;
    }
    return copy;
}

static json_t *load(const char *p, size_t n, json_error_t *error_p)
{
    return json_loadb(p, n, JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, error_p);
}

static void put_string(bt_text_t *t, bt_str_t raw, bt_str_t whole)
{
    char *text = malloc(raw.n + 1);
    long n = bt_json_unescape_raw(raw, text, raw.n);
    MUST(n >= 0, whole);
    bt_text_json_str(t, (bt_str_t){text, (size_t) n});
    free(text);
}

static void rebuild(bt_text_t *t, bt_str_t value, bt_str_t whole);

static void check_walk(bt_json_cursor_t c, bt_str_t whole)
{
    bt_json_walk_t walk;
    bt_json_item_t item;
    bt_str_t element;
    size_t inner;

    bt_json_walk(&walk, c.text);
    while (bt_json_next(&c, &item) > 0) {
        const bool is_scalar = item.type != BT_JSON_ARRAY && item.type != BT_JSON_OBJECT;
        MUST(bt_json_walk_next(&walk, &element, &inner), whole);
        MUST(element.p == item.value.p && element.n == item.value.n, whole);
        MUST(inner == (is_scalar ? 0 : (size_t) bt_json_count(item.value)), whole);
    }
    MUST(!bt_json_walk_next(&walk, &element, &inner), whole);
}

static void check_members(bt_json_cursor_t c, bt_str_t whole)
{
    bt_json_walk_t walk;
    bt_json_item_t item, walked;
    size_t count = 0;

    bt_json_walk(&walk, c.text);
    for (; bt_json_next(&c, &item) > 0; count++) {
        MUST(bt_json_walk_member(&walk, &walked), whole);
        MUST(walked.key.p == item.key.p && walked.key.n == item.key.n, whole);
        MUST(walked.key_escaped == item.key_escaped && walked.type == item.type, whole);
        MUST(walked.start == item.start && walked.value_off == item.value_off, whole);
        MUST(walked.value.p == item.value.p && walked.value.n == item.value.n, whole);
    }
    MUST(!bt_json_walk_member(&walk, &walked), whole);
    MUST(bt_json_size(c.text) == count, whole);
}

static void rebuild_items(bt_text_t *t, bt_json_cursor_t *c, bool is_object, bt_str_t whole)
{
    bt_json_item_t item;
    size_t end = c->open_off + 1;
    int rc;

    while ((rc = bt_json_next(c, &item)) > 0) {
        MUST(item.prev_end == end, whole);
        MUST(item.start >= end && item.value_off >= item.start, whole);
        MUST(item.value.p == c->text.p + item.value_off, whole);
        end = item.value_off + item.value.n;
        if (item.ordinal > 0)
            bt_text_puts(t, ",");
        if (is_object) {
            put_string(t, item.key, whole);
            bt_text_puts(t, ":");
        }
        rebuild(t, item.value, whole);
    }
    MUST(rc == 0, whole);
    MUST(c->close_off >= end && c->text.p[c->close_off] == (is_object ? '}' : ']'), whole);
}

static void rebuild(bt_text_t *t, bt_str_t value, bt_str_t whole)
{
    bt_json_cursor_t c;
    double number;

    switch (bt_json_type_of(value)) {
    case BT_JSON_OBJECT:
        MUST(bt_json_object(&c, value) == 0, whole);
        check_members(c, whole);
        bt_text_puts(t, "{");
        rebuild_items(t, &c, true, whole);
        bt_text_puts(t, "}");
        break;
    case BT_JSON_ARRAY:
        MUST(bt_json_array(&c, value) == 0, whole);
        check_walk(c, whole);
        bt_text_puts(t, "[");
        rebuild_items(t, &c, false, whole);
        bt_text_puts(t, "]");
        break;
    case BT_JSON_STRING:
        put_string(t, (bt_str_t){value.p + 1, value.n - 2}, whole);
        break;
    case BT_JSON_NUMBER:
        MUST(bt_json_double(value, &number) == 0, whole);
        bt_text_printf(t, "%.17e", number);
        break;
    default:
        bt_text_put(t, value);
    }
}

static void check_rebuilt(bt_str_t text, const json_t *expected)
{
    json_error_t error;
    bt_text_t t;

    bt_text_init(&t);
    rebuild(&t, bt_str_trim(text), text);
    MUST(!t.failed, text);
    json_t *again = load(t.data, t.len, &error);
    MUST(again != NULL && json_equal(again, expected), text);
    json_decref(again);
    bt_text_fini(&t);
}

static void check_cursor(bt_str_t text, int rc, size_t err_off)
{
    enum bt_json_type type = bt_json_type_of(bt_str_trim(text));
    bt_json_cursor_t c;
    bt_json_item_t item;

    if (type != BT_JSON_OBJECT && type != BT_JSON_ARRAY)
        return;
    int walked = type == BT_JSON_OBJECT ? bt_json_object(&c, text) : bt_json_array(&c, text);
    while (walked == 0 && (walked = bt_json_next(&c, &item)) > 0)
        walked = 0;
    MUST(walked == rc, text);
    MUST(rc == 0 || c.err_off == err_off, text);
}

static void check_quote(bt_str_t bytes)
{
    bt_text_t t;

    bt_text_init(&t);
    bt_text_json_str(&t, bytes);
    MUST(bt_json_validate(bt_text_str(&t), NULL) == 0, bytes);
    char *back = malloc(t.len);
    long n = bt_json_unescape(bt_text_str(&t), back, t.len);
    MUST(n >= 0, bytes);
    /* Unchanged, or some of it was not UTF-8 and became U+FFFD. */
    MUST(bt_str_eq((bt_str_t){back, (size_t) n}, bytes) ||
             bt_str_find((bt_str_t){back, (size_t) n}, BT_STR("\xef\xbf\xbd")) >= 0,
         bytes);
    free(back);
    bt_text_fini(&t);
}

enum json_verdict json_oracle_check(bt_str_t text)
{
    enum json_verdict verdict = JSON_NOT_COMPARED;
    json_error_t error;
    size_t err_off = 0;

    int rc = bt_json_validate(text, &err_off);
    MUST(rc == 0 || err_off <= text.n, text);
    check_cursor(text, rc, err_off);
    check_quote(text);
    if (text.n > 0 && memchr(text.p, '\0', text.n) != NULL) {
        MUST(rc != 0, text);
        return JSON_BOTH_REFUSE;
    }
    char *plain = without_lone_surrogates(text);
    json_t *theirs = load(plain, text.n, &error);
    if (theirs != NULL && rc != BT_E_JSON_DEPTH) {
        MUST(rc == 0, text);
        check_rebuilt(text, theirs);
        verdict = JSON_BOTH_ACCEPT;
    } else if (theirs == NULL && rc != 0) {
        verdict = JSON_BOTH_REFUSE;
    } else if (theirs == NULL) {
        enum json_error_code code = json_error_code(&error);
        MUST(code == json_error_numeric_overflow || code == json_error_null_byte_in_key, text);
    }
    json_decref(theirs);
    free(plain);
    return verdict;
}
