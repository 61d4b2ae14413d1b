/* json_block.h - JSON's long strings and lists of integers 64 bytes at a time: what json_avx2.c, json_avx512.c and json_neon.c make for their
 * processors.
 *
 * Owner: the caller; internal to base.
 * Life:  before it is included, WIDE (the attributes of its functions) and block_t must be there, with load, is_plain, equal, at_least
 *        and of_class, which tell of each byte by one of 64 bits, the first byte's the lowest, and take_numbers: numbers of up to eight
 *        digits by such masks of where they begin, and of what follows them. It may write half a BLOCK of them, and read eight bytes more.
 * Flow:  all that is asked of a string is asked of such masks, and so is written once. It only ever says yes: what is not plainly right is
 *        left to the scalar scan, which finds the byte in error.
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
    uint64_t tails;      /* of a UTF-8 sequence, still to come */
    uint64_t narrow;     /* of the leads in narrow_leads, that which has just been, a bit each */
} amid_t;

/* Moved to the byte behind. *over_p: what the block before left over, and what this one leaves. */
static inline uint64_t follow(uint64_t mask, uint64_t *over_p)
{
    const uint64_t moved = mask << 1 | *over_p;

    *over_p = mask >> (BLOCK - 1);
    return moved;
}

/* ---- what is asked of each byte ---- */

/* Classes: what the tables of both nibbles agree on. */
enum {
    ESCAPABLE = 0x0f, /* may stand behind a backslash: a bit for 2x, 5x, 6x and 7x */
    RARE = 0x70,      /* no lead at all, or one of narrow_leads: a bit for Cx, Ex and Fx */
    DECIMAL = 1,
    A_TO_F = 2,
};
static const uint8_t class_low[16] = {0x70, 0x50, 0x4d, 0x40, 0x48, 0x48, 0x44, 0x40,
                                      0x40, 0x40, 0x40, 0x40, 0x42, 0x60, 0x44, 0x41};
static const uint8_t class_high[16] = {
    [2] = 0x01, [5] = 0x02, [6] = 0x04, [7] = 0x08, [0xc] = 0x10, [0xe] = 0x20, [0xf] = 0x40};
static const uint8_t hex_low[16] = {1, 3, 3, 3, 3, 3, 3, 1, 1, 1};
static const uint8_t hex_high[16] = {[3] = DECIMAL, [4] = A_TO_F, [6] = A_TO_F};

/* Asked for in every block. Where gcc knows a byte, it makes a register of it anew each time (a quarter of the whole cost). */
typedef struct often {
    uint8_t quote, slash, blank, not_ascii, u, lead_2, lead_3, escapable, rare;
} often_t;

static inline often_t hidden_often(void)
{
    often_t often = {'"', '\\', ' ', 0x80, 'u', 0xc0, 0xe0, ESCAPABLE, RARE};

    __asm__("" : "+m"(often));
    return often;
}

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

/* Escaped bytes that must not be, and what should be a digit and is none. */
WIDE static inline uint64_t wrong_escapes(block_t b, uint64_t escaped, const often_t *of,
                                          amid_t *amid)
{
    const uint64_t u = escaped & equal(b, of->u);
    const uint64_t digits = u << 1 | u << 2 | u << 3 | u << 4 | amid->digits;
    uint64_t wrong = escaped & ~of_class(b, class_low, class_high, of->escapable);

    if (digits != 0)
        wrong |= digits & ~of_class(b, hex_low, hex_high, DECIMAL | A_TO_F);
    amid->digits = u >> 63 | u >> 62 | u >> 61 | u >> 60;
    return wrong;
}

/* ---- UTF-8 by RFC 3629 ---- */

static const struct {
    unsigned char lead, second;
    bool is_below; /* second: what its second byte must be below, or else at least */
} narrow_leads[] = {
    {0xe0, 0xa0, false}, {0xed, 0xa0, true}, {0xf0, 0x90, false}, {0xf4, 0x90, true}};

/* C0, C1, F5 and more, and second bytes that are right behind other leads only. */
WIDE static inline uint64_t wrong_rare(block_t b, amid_t *amid)
{
    uint64_t wrong = (at_least(b, 0xc0) & ~at_least(b, 0xc2)) | at_least(b, 0xf5), next = 0;

#pragma GCC unroll 4
    for (unsigned i = 0; i < 4; i++) {
        const uint64_t leads = equal(b, narrow_leads[i].lead);
        const uint64_t seconds = leads << 1 | (amid->narrow >> i & 1);
        const uint64_t high = at_least(b, narrow_leads[i].second);
        wrong |= seconds & (narrow_leads[i].is_below ? high : ~high);
        next |= leads >> (BLOCK - 1) << i;
    }
    amid->narrow = next;
    return wrong;
}

/* Tails are where leads want them, and nowhere else. */
WIDE static inline uint64_t wrong_utf8(block_t b, uint64_t high, const often_t *of, amid_t *amid)
{
    const uint64_t two = at_least(b, of->lead_2), three = at_least(b, of->lead_3);
    const uint64_t rare = of_class(b, class_low, class_high, of->rare);
    uint64_t tails = two << 1 | three << 2 | amid->tails, wrong = 0;

    amid->tails = two >> 63 | three >> 62;
    if ((rare | amid->narrow) != 0) {
        const uint64_t four = at_least(b, 0xf0);
        tails |= four << 3;
        amid->tails |= four >> 61;
        wrong = wrong_rare(b, amid);
    }
    return wrong | (tails ^ (high & ~two));
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
    const often_t of = hidden_often();
    amid_t amid = {0};
    uint64_t any_slash = 0;

    for (; at < end; at += BLOCK) {
        const block_t b = end - at >= BLOCK ? load(at) : load_tail(at, end);
        if ((amid.is_escaped | amid.digits | amid.tails) == 0 &&
            is_plain(b, of.quote, of.slash, of.blank))
            continue;
        const uint64_t quotes = equal(b, of.quote), slashes = equal(b, of.slash);
        const uint64_t high = at_least(b, of.not_ascii);
        uint64_t escaped = 0, wrong = ~at_least(b, of.blank);
        if ((slashes | amid.is_escaped | amid.digits) != 0) {
            escaped = find_escaped(slashes, &amid);
            wrong |= wrong_escapes(b, escaped, &of, &amid);
        }
        if ((high | amid.tails) != 0)
            wrong |= wrong_utf8(b, high, &of, &amid);
        const uint64_t ends = quotes & ~escaped;
        const uint64_t seen =
            ends ^ (ends - 1); /* up to the first of them; all when there is none */
        if ((wrong & seen) != 0)
            return NULL;
        any_slash |= slashes & seen;
        if (ends != 0) {
            *escaped_p |= any_slash != 0;
            return at + __builtin_ctzll(ends) + 1;
        }
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
