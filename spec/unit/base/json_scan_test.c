/* The portable scanner against the one the library was built with (SSE2 where there is any), and against each scan of long strings that
 * this processor can run: same verdict, same place. */
#define BT_JSON_PORTABLE
#define bt_json_scan_init portable_scan_init
#define bt_json_scan_space portable_scan_space
#define bt_json_scan_string portable_scan_string
#define bt_json_scan_number portable_scan_number
#define bt_json_scan_value portable_scan_value
#define bt_json_plain_end portable_plain_end
#define bt_json_utf8_len portable_utf8_len
#define bt_json_escape_len portable_escape_len
#define bt_json_integers_end portable_integers_end
#define bt_json_read_integers portable_read_integers
#include "base/json_scan.c"
#include "unit.h"
#undef bt_json_scan_init
#undef bt_json_scan_space
#undef bt_json_scan_string
#undef bt_json_scan_number
#undef bt_json_scan_value
#undef bt_json_plain_end
#undef bt_json_utf8_len
#undef bt_json_escape_len
#undef bt_json_integers_end
#undef bt_json_read_integers

#include "base/rand.h"

#include <stdlib.h>

#include "base/json_corpus.h"

/* The library's own, whose names the lines above had hidden. */
void bt_json_scan_init(bt_json_scan_t *s, const char *at, const char *end, unsigned depth);
int bt_json_scan_value(bt_json_scan_t *s);
const char *bt_json_plain_end(const char *at, const char *end);
size_t bt_json_utf8_len(const char *at, const char *end);

static const bt_json_wide_t *wides[8];

static int find_wide(void **state)
{
    for (unsigned i = 0; (wides[i] = bt_json_wide(i)) != NULL; i++)
        continue;
    return 0;
}

/* `at` behind a string's opening quote. */
static void expect_same_end(const char *at, const char *end)
{
    bt_json_scan_t portable;
    const char *expected;

    portable_scan_init(&portable, at - 1, end, 0);
    expected = portable_scan_string(&portable) == 0 ? portable.at : NULL;
    for (unsigned i = 0; wides[i] != NULL; i++) {
        bool escaped = false;
        const char *found = wides[i]->string_end(at, end, &escaped);
        if (found != expected || (found != NULL && escaped != portable.escaped))
            fail_msg("scan %u: %td instead of %td: %.*s", i, found != NULL ? found - at : -1,
                     expected != NULL ? expected - at : -1, (int) (end - at), at);
    }
}

static void expect_same(bt_str_t text)
{
    char *copy = malloc(text.n != 0 ? text.n : 1), *end = copy + text.n; /* no byte more */
    bt_json_scan_t ours, portable;

    memcpy(copy, text.p, text.n);
    bt_json_scan_init(&ours, copy, end, 0);
    portable_scan_init(&portable, copy, end, 0);
    assert_int_equal(bt_json_scan_value(&ours), portable_scan_value(&portable));
    assert_ptr_equal(ours.at, portable.at);
    assert_int_equal(ours.escaped, portable.escaped);
    assert_ptr_equal(bt_json_plain_end(copy, end), portable_plain_end(copy, end));
    if (text.n > 0 && *copy == '"')
        expect_same_end(copy + 1, end);
    free(copy);
}

static void test_corpus(void **state)
{
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

/* Long ones of words, escapes and letters of all lengths, whole or cut short, with something behind them: what is found in the
 * middle of a block of 64 bytes, across two of them, and in the last bytes of the text. */
static void test_random_prose(void **state)
{
    static const char *const pieces[] = {
        "word",
        "a longer piece of plain text, of more than 64 bytes, which is what is looked at at once ",
        "\\n",
        "\\\"",
        "\\\\",
        "\\u00e9",
        "\xc3\xa9",
        "\xe4\xbd\xa0\xe5\xa5\xbd",
        "\xf0\x9f\x98\x80",
        "x"};
    static const char *const bad[] = {
        "\\x",  "\\u00g0",          "\x1f", "\xe4\xbd", "\xc0\xaf", "\xed\xa0\x80", "\x80",
        "\xff", "\xf4\x90\x80\x80", "\"",   "\\"};
    char text[640];
    unsigned good = 0;

    bt_rand_seed(5);
    for (unsigned i = 0; i < 100000; i++) {
        size_t n = 1, most = 1 + bt_rand_below(400);
        text[0] = '"';
        while (n < most) {
            const char *piece = bt_rand_below(64) == 0
                                    ? bad[bt_rand_below(sizeof(bad) / sizeof(bad[0]))]
                                    : pieces[bt_rand_below(sizeof(pieces) / sizeof(pieces[0]))];
            size_t size = strlen(piece);
            memcpy(text + n, piece, size);
            n += bt_rand_below(64) == 0 ? bt_rand_below(size + 1) : size;
        }
        if (bt_rand_below(16) != 0)
            text[n++] = '"';
        for (uint64_t more = bt_rand_below(2) * bt_rand_below(40); more > 0; more--)
            text[n++] = "]}\xff\", "[bt_rand_below(6)];
        expect_same((bt_str_t){text, n});
        bt_json_scan_t s;
        bt_json_scan_init(&s, text, text + n, 0);
        good += bt_json_scan_value(&s) == 0;
    }
    assert_in_range(good, 30000, 95000);
}

/* Runs of backslashes before each byte, and digits behind a \u, at all places around the end of a block. */
static void test_escapes_across_blocks(void **state)
{
    char text[160];

    for (size_t at = 50; at < 70; at++)
        for (size_t run = 1; run < 9; run++)
            for (unsigned value = 0; value < 256; value++) {
                memset(text, 'a', sizeof(text));
                text[0] = text[150] = '"';
                memset(text + at, '\\', run);
                text[at + run] = (char) value;
                expect_same_end(text + 1, text + sizeof(text));
                for (size_t digit = 1; value == 'u' && digit <= 5; digit++) {
                    text[at + run + digit] = 'g';
                    expect_same_end(text + 1, text + sizeof(text));
                    text[at + run + digit] = 'F';
                }
            }
}

/* What is wrong at any place of a block, however many blocks of whatever kind follow before the string ends. */
static void test_errors_are_kept(void **state)
{
    static const char *const bad[] = {"\\x",  "\\u00g0", "\x1f",        "\xe4\xbd",
                                      "\xc3", "\x80",    "\xed\xa0\x80"};
    static const char *const fillers[] = {"plain", "line\\n", "caf\xc3\xa9 ", "\xf0\x9f\x98\x80",
                                          "\\u00e9"};
    char text[700];

    for (size_t at = 1; at < 130; at++)
        for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
            for (size_t k = 0; k < sizeof(fillers) / sizeof(fillers[0]); k++)
                for (size_t blocks = 0; blocks < 5; blocks++) {
                    size_t n = at;
                    memset(text, 'a', at);
                    text[0] = '"';
                    memcpy(text + n, bad[i], strlen(bad[i]));
                    n += strlen(bad[i]);
                    for (const size_t most = n + blocks * 64; n < most; n += strlen(fillers[k]))
                        memcpy(text + n, fillers[k], strlen(fillers[k]));
                    text[n++] = '"';
                    expect_same_end(text + 1, text + n);
                }
}

/* Which bytes are digits of a \u. */
static void test_every_digit(void **state)
{
    char text[] = "\"\\u0000\"";

    for (unsigned value = 0; value < 256; value++)
        for (size_t at = 3; at < 7; at++) {
            text[at] = (char) value;
            expect_same_end(text + 1, text + sizeof(text) - 1);
            text[at] = '0';
        }
}

/* What has been gone over is integers up to a comma, and counted. */
static size_t check_integers(const bt_json_wide_t *wide, const char *at, const char *end)
{
    size_t count = 0, commas = 0, digits = 0;
    const char *done = wide->integers_end(at, end, &count);

    assert_true(done == at || (done > at && done <= end && done[-1] == ','));
    for (const char *p = at; p < done; p++) {
        if (*p == ',') {
            assert_true(digits > 0 && (digits == 1 || p[-(ptrdiff_t) digits] != '0'));
            digits = 0;
            commas++;
        } else if (*p == ' ') {
            assert_true(digits == 0 && (p == at || p[-1] == ','));
        } else {
            assert_in_range(*p, '0', '9');
            digits++;
        }
    }
    assert_int_equal(count, commas);
    return (size_t) (done - at);
}

/* What has been read is numbers one after the other, with nothing but white space and commas between them. */
static size_t check_numbers(const bt_json_wide_t *wide, const char *at, const char *end)
{
    uint32_t numbers[400];
    unsigned count = 3, found = 3;
    const char *done = wide->read_integers(at, end, numbers, 400, &count), *p = at;

    assert_true(done >= at && done <= end && count <= 400);
    while (p < done) {
        uint64_t number = 0;
        if (*p < '0' || *p > '9') {
            assert_non_null(memchr(", \n\t\r", *p++, 5));
            continue;
        }
        while (p < end && *p >= '0' && *p <= '9')
            number = number * 10 + (unsigned) (*p++ - '0');
        assert_true(p <= done && found < count);
        assert_int_equal(numbers[found++], number);
    }
    assert_int_equal(found, count);
    return (size_t) (done - at);
}

static void test_integers(void **state)
{
    static const char *const pieces[] = {
        "7,",        "128000,", " 0,",    "10,",  " 31,", "00,", "0,",   "1.5,", "  2,",
        "-3,",       ",",       "\"9\",", "1 ,",  "2]",   " ,",  "1e3,", "01,",  "123456789,",
        "98765432,", "7\n,",    "\t2,\r", "1\v,", "5/,",  "6:,", "\xc2,"};
    char text[640];
    size_t most = 0, most_read = 0;

    bt_rand_seed(9);
    for (unsigned i = 0; i < 100000; i++) {
        size_t n = 1;
        const uint64_t rare = 1 + bt_rand_below(200);
        text[0] = '[';
        while (n < 600) {
            const char *piece = pieces[bt_rand_below(bt_rand_below(rare) == 0 ? 25 : 5)];
            memcpy(text + n, piece, strlen(piece));
            n += strlen(piece);
        }
        memcpy(text + n, "5]", 2);
        n += 2;
        expect_same((bt_str_t){text, n});
        for (unsigned k = 0; wides[k] != NULL; k++) {
            const size_t done = check_integers(wides[k], text + 1, text + n);
            const size_t read = check_numbers(wides[k], text + 1, text + n);
            most = done > most ? done : most;
            most_read = read > most_read ? read : most_read;
        }
    }
    assert_true(wides[0] == NULL || (most > 512 && most_read > 500));
}

/* Every pair of bytes before every kind of third and fourth, at places around the end of a block. */
static void test_every_utf8_pair(void **state)
{
    static const unsigned char thirds[] = {'a', 0x80, 0x9f, 0xbf, 0xc3};
    char text[80];

    memset(text, 'a', sizeof(text));
    text[0] = text[sizeof(text) - 1] = '"';
    for (unsigned pair = 0x8000; pair < 0x10000; pair++)
        for (size_t at = 61; at < 66; at++)
            for (unsigned k = 0; k < 25; k++) {
                memcpy(text + at,
                       (char[]){(char) (pair >> 8), (char) pair, (char) thirds[k / 5],
                                (char) thirds[k % 5]},
                       4);
                expect_same_end(text + 1, text + sizeof(text));
                memcpy(text + at, "aaaa", 4);
            }
}

/* Each byte value on each place of a block, alone and with a neighbour that could borrow from it.
 */
static void test_plain_end_is_exact(void **state)
{
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
        cmocka_unit_test(test_random_prose),
        cmocka_unit_test(test_escapes_across_blocks),
        cmocka_unit_test(test_errors_are_kept),
        cmocka_unit_test(test_every_digit),
        cmocka_unit_test(test_integers),
        cmocka_unit_test(test_every_utf8_pair),
        cmocka_unit_test(test_plain_end_is_exact),
        cmocka_unit_test(test_utf8_len),
    };
    return cmocka_run_group_tests(tests, find_wide, NULL);
}
