/* json_block.h - JSON's long strings and lists of integers 64 bytes at a time: what json_avx2.c, json_avx512.c and json_neon.c make for their
 * processors.
 *
 * Owner: the caller; internal to base.
 * Life:  before it is included, WIDE (the attributes of its functions) and block_t must be there, with load; equal, at_least, below (as
 *        signed bytes), is_listed, of_class and is_plain, which tell of each byte by one of 64 bits, the first byte's the lowest;
 *        not_ascii and wrong_utf8 (by json_utf8.h), which do so, too; and take_numbers: numbers of up to eight digits by such masks of
 *        where they begin, and of what follows them. It may write half a BLOCK of them, and read eight bytes more.
 * Flow:  all that is asked of a string is asked of such masks, and so is written once. It only ever says yes: what is not plainly right is
 *        left to the scalar scan, which finds the byte in error. So errors are gathered, and looked at when the string is over.
 * Cost:  no branch for a single escape or character; ASCII pays nothing for UTF-8, and what has no \u nothing for digits.
 */
#ifndef BT_BASE_JSON_BLOCK_H
#define BT_BASE_JSON_BLOCK_H

#include "base/json_scan.h"

#define BLOCK 64

/* What the blocks before leave to the next one, whose lowest bits are its first bytes. */
typedef struct amid {
    uint64_t is_escaped; /* its first byte is */
    uint64_t digits;     /* of \u, still to come */
    uint64_t high;       /* its last byte is not ASCII: the character may go on */
    block_t high_block;  /* the last one that had such bytes */
} amid_t;

/* Moved to the byte behind. *over_p: what the block before left over, and what this one leaves. */
static inline uint64_t follow(uint64_t mask, uint64_t *over_p)
{
    const uint64_t moved = mask << 1 | *over_p;

    *over_p = mask >> (BLOCK - 1);
    return moved;
}

/* ---- what is asked of each byte ---- */

/* What may stand behind a backslash, each in the place of its low four bits. The quote and r have b's, so they are asked for by name, as the
 * backslash is; \u is looked at by itself. No byte has its own value in place 0. */
static const uint8_t escapes[16] = {
    [0] = 0xff, [2] = 'b', [4] = 't', [6] = 'f', [0xe] = 'n', [0xf] = '/'};

/* Classes: what the tables of both nibbles agree on. */
enum { DECIMAL = 1, A_TO_F = 2 };
static const uint8_t hex_low[16] = {1, 3, 3, 3, 3, 3, 3, 1, 1, 1};
static const uint8_t hex_high[16] = {[3] = DECIMAL, [4] = A_TO_F, [6] = A_TO_F};

/* ---- escapes ---- */

/* What stands behind a backslash that is no escaped one itself. Where a run of them begins at an odd place, taking it from all odd
 * places carries through to its end (Langdale and Lemire, "Parsing Gigabytes of JSON per Second", section 3.1.1). */
static inline uint64_t find_escaped(uint64_t slashes, amid_t *amid)
{
    const uint64_t odd = UINT64_C(0xaaaaaaaaaaaaaaaa), before = amid->is_escaped;
    const uint64_t begin = slashes & ~before;
    const uint64_t ends = ((begin << 1 | odd) - begin) ^ odd;

    amid->is_escaped = (ends & slashes) >> (BLOCK - 1);
    return ends ^ (slashes | before);
}

/* Of escaped bytes that are not among `escapes` those that are no u either, and what should be a digit of one and is none. */
WIDE static inline uint64_t wrong_digits(block_t b, uint64_t others, amid_t *amid)
{
    const uint64_t u = others & equal(b, 'u');
    const uint64_t two = u << 1 | u << 2, two_over = u >> 60 | u >> 61;
    const uint64_t digits = two | two << 2 | amid->digits;

    amid->digits = two_over | two_over >> 2;
    return (others & ~u) | (digits & ~of_class(b, hex_low, hex_high, DECIMAL | A_TO_F));
}

/* ---- the string ---- */

/* The last bytes of a text, and zeros, which are control characters. */
WIDE static inline block_t load_tail(const char *at, const char *end)
{
    char bytes[BLOCK] = {0};

    memcpy(bytes, at, (size_t) (end - at));
    return load(bytes);
}

WIDE static inline const char *string_end(const char *at, const char *end, bool *escaped_p)
{
    static const char zeros[BLOCK] = {0};
    const uint8_t quote = hidden('"'), slash = hidden('\\'), blank = hidden(' '), r = hidden('r');
    const utf8_t utf8 = open_utf8();
    amid_t amid = {.high_block = load(zeros)};
    uint64_t any_slash = 0, any_wrong = 0;

    for (; at < end; at += BLOCK) {
        const block_t b = end - at >= BLOCK ? load(at) : load_tail(at, end);
        if ((amid.is_escaped | amid.digits | amid.high) == 0 && is_plain(b, quote, slash, blank))
            continue;
        const uint64_t quotes = equal(b, quote), slashes = equal(b, slash);
        uint64_t escaped = 0, wrong = below(b, blank);
        if ((wrong | amid.high) != 0) {
            const uint64_t high = not_ascii(b);
            wrong = (wrong & ~high) | wrong_utf8(b, amid.high_block, &utf8);
            amid.high = high >> (BLOCK - 1);
            amid.high_block = b;
        }
        if ((slashes | amid.is_escaped | amid.digits) != 0) {
            escaped = find_escaped(slashes, &amid);
            const uint64_t others =
                escaped & ~(quotes | slashes | equal(b, r) | is_listed(b, escapes));
            if ((others | amid.digits) != 0)
                wrong |= wrong_digits(b, others, &amid);
        }
        const uint64_t ends = quotes & ~escaped;
        if (ends != 0) {
            const uint64_t seen = ends ^ (ends - 1); /* up to the first of them */
            if ((any_wrong | (wrong & seen)) != 0)
                return NULL;
            *escaped_p |= (any_slash | (slashes & seen)) != 0;
            return at + __builtin_ctzll(ends) + 1;
        }
        any_slash |= slashes;
        any_wrong |= wrong;
    }
    return NULL;
}

/* ---- integers ---- */

/* Token ids are long lists of them. */
WIDE static inline const char *integers_end(const char *at, const char *end, size_t *count_p)
{
    uint64_t digit = 0, comma = 1, zero = 0; /* what the byte before is */
    const char *last = at;

    for (uint64_t wrong = 0; wrong == 0 && end - at >= BLOCK; at += BLOCK) {
        const block_t b = load(at);
        const uint64_t digits = at_least(b, '0') & ~at_least(b, '9' + 1);
        const uint64_t commas = equal(b, ','), spaces = equal(b, ' ');
        const uint64_t after_digit = follow(digits, &digit);
        const uint64_t zeros = digits & ~after_digit & equal(b, '0');
        wrong = ~(digits | commas | spaces) | (commas & ~after_digit);
        wrong |= spaces & ~follow(commas, &comma);
        wrong |= digits & follow(zeros, &zero); /* 01 */
        const uint64_t done =
            commas & ((wrong & -wrong) - 1); /* before the first of them; or all */
        if (done != 0)
            last = at + BLOCK - __builtin_clzll(done);
        *count_p += (size_t) __builtin_popcountll(done);
    }
    return last;
}

/* What stands between numbers, and in them: tables as above. */
enum { COMMA_SPACE = 1, CONTROL = 2, DIGIT = 4 };
static const uint8_t list_low[16] = {5, 4, 4, 4, 4, 4, 4, 4, 4, 6, 2, 0, 1, 2};
static const uint8_t list_high[16] = {[0] = CONTROL, [2] = COMMA_SPACE, [3] = DIGIT};

/* Where nine digits stand in a row, the first of each nine. */
static inline uint64_t find_nine(uint64_t digits)
{
    const uint64_t two = digits & digits >> 1, four = two & two >> 2;

    return four & four >> 4 & digits >> 8;
}

/* The last bytes of a block are the first ones of the next: what ends there counts once, and no number has its end in one and its beginning in
 * another. So a block need not wait for the one before it. */
#define SHARED 8
#define NOT_SHARED (UINT64_MAX << SHARED)

WIDE static inline const char *read_integers(const char *at, const char *end, uint32_t *numbers,
                                             unsigned cap, unsigned *count_p)
{
    const char *last = at;
    unsigned count = *count_p;
    uint64_t wrong = 0;

    for (uint64_t own = UINT64_MAX; wrong == 0 && end - at >= BLOCK + 8 && cap - count >= BLOCK / 2;
         own = NOT_SHARED, at += BLOCK - SHARED) {
        const block_t b = load(at);
        const uint64_t digits = of_class(b, list_low, list_high, DIGIT);
        const uint64_t between = of_class(b, list_low, list_high, COMMA_SPACE | CONTROL);
        wrong = ~(digits | between) | find_nine(digits);
        const uint64_t all = between & digits << 1 & ((wrong & -wrong) - 1);
        const uint64_t ends = all & own, others = all & ~own;
        if (ends == 0)
            break;
        const uint64_t starts =
            digits & ~(digits << 1) & UINT64_MAX << (63 - __builtin_clzll(others | 1));
        take_numbers(b, at, starts, ends, (unsigned) __builtin_popcountll(ends), numbers + count);
        count += (unsigned) __builtin_popcountll(ends);
        last = at + BLOCK - 1 - __builtin_clzll(ends);
    }
    *count_p = count;
    return last;
}

#endif
