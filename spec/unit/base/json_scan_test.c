/* The portable scanner against the one the library was built with (SSE2 where there is any): same
 * verdict, same place. */
#define BT_JSON_PORTABLE
#define bt_json_scan_init portable_scan_init
#define bt_json_scan_space portable_scan_space
#define bt_json_scan_string portable_scan_string
#define bt_json_scan_number portable_scan_number
#define bt_json_scan_value portable_scan_value
#define bt_json_plain_end portable_plain_end
#define bt_json_utf8_len portable_utf8_len
#include "base/json_scan.c"
#undef bt_json_scan_init
#undef bt_json_scan_space
#undef bt_json_scan_string
#undef bt_json_scan_number
#undef bt_json_scan_value
#undef bt_json_plain_end
#undef bt_json_utf8_len

#include "base/rand.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>

#include "base/json_corpus.h"

/* The library's own, whose names the lines above had hidden. */
void bt_json_scan_init(bt_json_scan_t *s, const char *at, const char *end, unsigned depth);
int bt_json_scan_value(bt_json_scan_t *s);
const char *bt_json_plain_end(const char *at, const char *end);
size_t bt_json_utf8_len(const char *at, const char *end);

static void expect_same(bt_str_t text)
{
    char *copy = malloc(text.n + 1), *end = copy + text.n;
    bt_json_scan_t ours, portable;

    memcpy(copy, text.p, text.n);
    bt_json_scan_init(&ours, copy, end, 0);
    portable_scan_init(&portable, copy, end, 0);
    assert_int_equal(bt_json_scan_value(&ours), portable_scan_value(&portable));
    assert_ptr_equal(ours.at, portable.at);
    assert_ptr_equal(bt_json_plain_end(copy, end), portable_plain_end(copy, end));
    free(copy);
}

static void test_corpus(void **state)
{
    (void) state;
    bt_json_scan_t s;
    for (size_t i = 0; i < JSON_GOOD_COUNT; i++) {
        expect_same(json_good[i]);
        portable_scan_init(&s, json_good[i].p, json_good[i].p + json_good[i].n, 0);
        portable_scan_space(&s);
        assert_int_equal(portable_scan_value(&s), 0);
        portable_scan_space(&s);
        assert_ptr_equal(s.at, s.end);
    }
    for (size_t i = 0; i < JSON_BAD_COUNT; i++)
        expect_same(json_bad[i].text);
}

static void test_random_strings(void **state)
{
    (void) state;
    char text[80];
    bt_rand_seed(3);
    for (unsigned i = 0; i < 100000; i++) {
        size_t n = 1 + bt_rand_below(sizeof(text) - 2);
        memset(text, 'a', n);
        text[0] = '"';
        for (uint64_t edits = bt_rand_below(4); edits > 0; edits--)
            text[bt_rand_below(n)] = (char) bt_rand_below(256);
        text[n] = '"';
        expect_same((bt_str_t){text, n + 1});
    }
}

/* Each byte value on each place of a block, alone and with a neighbour that could borrow from it.
 */
static void test_plain_end_is_exact(void **state)
{
    (void) state;
    char block[40];
    for (unsigned value = 0; value < 256; value++)
        for (size_t at = 0; at < 24; at++)
            for (unsigned neighbour = 0; neighbour < 2; neighbour++) {
                memset(block, ' ', sizeof(block));
                block[at] = (char) value;
                block[at + 1] = neighbour == 0 ? ' ' : '#';
                bool is_special = value < 0x20 || value >= 0x80 || value == '"' || value == '\\';
                const char *expected = block + (is_special ? at : sizeof(block));
                assert_ptr_equal(portable_plain_end(block, block + sizeof(block)), expected);
                assert_ptr_equal(bt_json_plain_end(block, block + sizeof(block)), expected);
            }
}

/* All code points, and all two-byte beginnings. */
static void test_utf8_len(void **state)
{
    (void) state;
    char text[4];
    unsigned valid = 0;
    for (unsigned a = 0; a < 256; a++)
        for (unsigned b = 0; b < 256; b++) {
            memcpy(text, (char[]){(char) a, (char) b, (char) 0x80, (char) 0x80}, 4);
            size_t n = bt_json_utf8_len(text, text + 4);
            valid += n > 1;
            for (size_t cut = 1; cut < n; cut++)
                assert_int_equal(bt_json_utf8_len(text, text + cut), 0);
        }
    /* leads C2..DF, E1..EC, EE..EF, F1..F3 take 64 seconds each, E0 and ED 32, F0 48, F4 16 */
    assert_int_equal(valid, 30 * 64 + 14 * 64 + 3 * 64 + 2 * 32 + 48 + 16);
    assert_int_equal(bt_json_utf8_len(text, text), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_corpus),
        cmocka_unit_test(test_random_strings),
        cmocka_unit_test(test_plain_end_is_exact),
        cmocka_unit_test(test_utf8_len),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
