/* A JSON string 32 bytes at a time, its UTF-8 checked on the way. It only ever says yes: what is not plainly right is left to the scalar
 * scan, which finds the byte in error.
 *
 * UTF-8 by the look-up method of Keiser and Lemire, "Validating UTF-8 In Less Than One Instruction Per Byte" (arXiv 2010.03090), section 6:
 * each of the ways in which two neighbouring bytes can be wrong has a bit. Three tables, by the nibbles of the first byte and the high one
 * of the second, tell which of them are still possible; what all three agree on is so. That a byte continues the lead two or three before
 * it is no pair's affair: it is where TWO_TAILS must be, and nowhere else.
 */
#include "base/json_scan.h"

#ifdef BT_JSON_AVX2
#include <immintrin.h>

#define WIDE __attribute__((target("avx2,bmi")))
#define BLOCK 32

enum {
    TOO_SHORT = 1 << 0,  /* a lead, and no tail behind it */
    TOO_LONG = 1 << 1,   /* ASCII, and a tail behind it */
    OVERLONG_3 = 1 << 2, /* E0 and below A0 */
    TOO_LARGE = 1 << 3,  /* F4 and above 8F, F5 and more */
    SURROGATE = 1 << 4,  /* ED and above 9F */
    OVERLONG_2 = 1 << 5, /* C0, C1 */
    OVERLONG_4 = 1 << 6, /* F0 and below 90; F5 and more with such a tail, too */
    TWO_TAILS = 1 << 7,
    ANY_LOW =
        TOO_SHORT | TOO_LONG | TWO_TAILS /* the first byte's low nibble says nothing of these */
};

#define TWICE(...)                                                                                 \
    {                                                                                              \
        __VA_ARGS__, __VA_ARGS__                                                                   \
    }
#define ROW4(x) (x), (x), (x), (x)

static const uint8_t first_high[BLOCK] =
    TWICE(ROW4(TOO_LONG), ROW4(TOO_LONG), ROW4(TWO_TAILS), TOO_SHORT | OVERLONG_2, TOO_SHORT,
          TOO_SHORT | OVERLONG_3 | SURROGATE, TOO_SHORT | TOO_LARGE | OVERLONG_4);
static const uint8_t first_low[BLOCK] =
    TWICE(ANY_LOW | OVERLONG_2 | OVERLONG_3 | OVERLONG_4, ANY_LOW | OVERLONG_2, ANY_LOW, ANY_LOW,
          ANY_LOW | TOO_LARGE, ROW4(ANY_LOW | TOO_LARGE | OVERLONG_4),
          ROW4(ANY_LOW | TOO_LARGE | OVERLONG_4), ANY_LOW | TOO_LARGE | OVERLONG_4 | SURROGATE,
          ANY_LOW | TOO_LARGE | OVERLONG_4, ANY_LOW | TOO_LARGE | OVERLONG_4);
static const uint8_t second_high[BLOCK] = TWICE(
    ROW4(TOO_SHORT), ROW4(TOO_SHORT), TOO_LONG | OVERLONG_2 | TWO_TAILS | OVERLONG_3 | OVERLONG_4,
    TOO_LONG | OVERLONG_2 | TWO_TAILS | OVERLONG_3 | TOO_LARGE,
    TOO_LONG | OVERLONG_2 | TWO_TAILS | SURROGATE | TOO_LARGE,
    TOO_LONG | OVERLONG_2 | TWO_TAILS | SURROGATE | TOO_LARGE, ROW4(TOO_SHORT));
/* What a block may end with when nothing is to follow: its last three bytes begin no longer sequence. */
static const uint8_t most_at_end[BLOCK] = {ROW4(0xff), ROW4(0xff), ROW4(0xff), ROW4(0xff),
                                           ROW4(0xff), ROW4(0xff), ROW4(0xff), 0xff,
                                           0xef,       0xdf,       0xbf};
/* Read at BLOCK - n: n bytes to keep. */
static const uint8_t keep[2 * BLOCK] = {ROW4(0xff), ROW4(0xff), ROW4(0xff), ROW4(0xff),
                                        ROW4(0xff), ROW4(0xff), ROW4(0xff), ROW4(0xff)};

struct utf8 {
    __m256i before, open, wrong; /* the last block, what it still waits for, errors so far */
};

WIDE static inline __m256i load(const void *at)
{
    return _mm256_loadu_si256(at);
}

WIDE static inline __m256i find(const uint8_t *table, __m256i nibbles)
{
    return _mm256_shuffle_epi8(load(table), nibbles);
}

WIDE static inline __m256i high_nibbles(__m256i v)
{
    return _mm256_and_si256(_mm256_srli_epi16(v, 4), _mm256_set1_epi8(0x0f));
}

/* Before ASCII any block of ASCII is as good as another: it may be left out. */
WIDE static inline void check_utf8(struct utf8 *u, __m256i v, bool is_ascii)
{
    if (is_ascii) {
        u->wrong = _mm256_or_si256(u->wrong, u->open);
        u->open = _mm256_setzero_si256();
        u->before = v;
        return;
    }
    const __m256i joint = _mm256_permute2x128_si256(u->before, v, 0x21);
    const __m256i one = _mm256_alignr_epi8(v, joint, 15), two = _mm256_alignr_epi8(v, joint, 14),
                  three = _mm256_alignr_epi8(v, joint, 13);
    const __m256i pairs = _mm256_and_si256(
        _mm256_and_si256(find(first_high, high_nibbles(one)),
                         find(first_low, _mm256_and_si256(one, _mm256_set1_epi8(0x0f)))),
        find(second_high, high_nibbles(v)));
    const __m256i third = _mm256_subs_epu8(two, _mm256_set1_epi8(0xe0 - 0x80)),
                  fourth = _mm256_subs_epu8(three, _mm256_set1_epi8((char) (0xf0 - 0x80)));
    const __m256i tails =
        _mm256_and_si256(_mm256_or_si256(third, fourth), _mm256_set1_epi8((char) TWO_TAILS));

    u->wrong = _mm256_or_si256(u->wrong, _mm256_xor_si256(pairs, tails));
    u->open = _mm256_subs_epu8(v, load(most_at_end));
    u->before = v;
}

WIDE static inline uint32_t bits(__m256i v)
{
    return (uint32_t) _mm256_movemask_epi8(v);
}

WIDE static inline __m256i equal(__m256i v, char c)
{
    return _mm256_cmpeq_epi8(v, _mm256_set1_epi8(c));
}

/* Quotes, backslashes, control characters and what is not ASCII: as signed bytes these are below 0x20. */
WIDE static inline uint32_t not_plain(__m256i v)
{
    return bits(_mm256_or_si256(_mm256_or_si256(equal(v, '"'), equal(v, '\\')),
                                _mm256_cmpgt_epi8(_mm256_set1_epi8(0x20), v)));
}

/* What may stand behind a backslash: by low nibble the high ones that go with it, as bits: 2, 5, 6, 7 are 1, 2, 4, 8. */
static const uint8_t escapable_low[BLOCK] =
    TWICE(0, 0, 1 | 4 | 8, 0, 8, 8, 4, 0, 0, 0, 0, 0, 2, 0, 4, 1);
static const uint8_t escapable_high[BLOCK] = TWICE(0, 0, 1, 0, 0, 2, 4, 8, ROW4(0), ROW4(0));

WIDE static inline uint32_t escapable(__m256i v)
{
    const __m256i both =
        _mm256_and_si256(find(escapable_low, _mm256_and_si256(v, _mm256_set1_epi8(0x0f))),
                         find(escapable_high, high_nibbles(v)));

    return ~bits(equal(both, 0));
}

/* Where in a block the string ends; BLOCK: behind it, and *skip_p bytes of the next one are an escape's. -1: it is not right. One escape
 * after the other, with a branch for each. */
static int walk_block(const char *at, const char *end, uint32_t marks, unsigned *skip_p)
{
    uint32_t left = marks & (UINT32_MAX << *skip_p);

    *skip_p = 0;
    while (left != 0) {
        const unsigned i = (unsigned) __builtin_ctz(left);
        if ((ptrdiff_t) i >= end - at)
            return -1;
        if (at[i] == '"')
            return (int) i;
        const unsigned n = at[i] == '\\' ? bt_json_escape_len(at + i, end) : 0;
        if (n == 0)
            return -1;
        if (i + n >= BLOCK) {
            *skip_p = i + n - BLOCK;
            break;
        }
        left &= UINT32_MAX << (i + n);
    }
    return BLOCK;
}

/* The same for all of them at once, where no backslash follows another and there is no \u. */
WIDE static inline int block_end(const char *at, const char *end, __m256i v, unsigned *skip_p,
                                 bool *escaped_p)
{
    const uint32_t quotes = bits(equal(v, '"')), slashes = bits(equal(v, '\\'));
    const uint32_t controls =
        bits(_mm256_cmpeq_epi8(_mm256_min_epu8(v, _mm256_set1_epi8(0x1f)), v));
    const uint32_t escaped = slashes << 1 | (*skip_p == 1);
    const uint32_t ends = quotes & ~escaped;
    const int n = ends != 0 ? __builtin_ctz(ends) : BLOCK;
    const uint32_t inside = ends != 0 ? (UINT32_C(1) << n) - 1 : UINT32_MAX;

    *escaped_p |= (slashes & inside) != 0;
    if (*skip_p > 1 || (slashes & escaped) != 0 || (escaped & inside & bits(equal(v, 'u'))) != 0)
        return walk_block(at, end, quotes | slashes | controls, skip_p);
    if ((controls & inside) != 0 || (escaped & inside & ~escapable(v)) != 0)
        return -1;
    *skip_p = 0;
    if (n == BLOCK && slashes >> (BLOCK - 1) != 0) {
        *skip_p = bt_json_escape_len(at + BLOCK - 1, end);
        return (*skip_p)-- > 0 ? n : -1;
    }
    return n;
}

/* The last bytes of a text, and zeros, which are control characters. */
WIDE static inline __m256i load_tail(const char *at, const char *end)
{
    char bytes[BLOCK] = {0};

    memcpy(bytes, at, (size_t) (end - at));
    return load(bytes);
}

WIDE const char *bt_json_string_end_avx2(const char *at, const char *end, bool *escaped_p)
{
    struct utf8 u = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
    bool was_ascii = true, escaped = false;
    unsigned skip = 0;

    for (; at < end; at += BLOCK) {
        __m256i v = end - at >= BLOCK ? load(at) : load_tail(at, end);
        if (was_ascii && skip == 0 && not_plain(v) == 0)
            continue;
        const int n = block_end(at, end, v, &skip, &escaped);
        if (n < 0)
            return NULL;
        if (n < BLOCK)
            v = _mm256_and_si256(v, load(keep + BLOCK - n));
        const bool is_ascii = bits(v) == 0;
        if (!is_ascii || !was_ascii)
            check_utf8(&u, v, is_ascii);
        was_ascii = is_ascii;
        if (n < BLOCK) {
            if (!_mm256_testz_si256(u.wrong, u.wrong))
                return NULL;
            *escaped_p |= escaped;
            return at + n + 1;
        }
    }
    return NULL;
}
#endif
