/* json_block.h by two registers of 32 bytes. */
#include "base/json_scan.h"

#ifdef BT_JSON_X86
#include <immintrin.h>

#define WIDE __attribute__((target("avx2,bmi,bmi2,popcnt")))

typedef struct block {
    __m256i low, high;
} block_t;

WIDE static inline block_t load(const char *at)
{
    const __m256i *p = (const void *) at;

    return (block_t){_mm256_loadu_si256(p), _mm256_loadu_si256(p + 1)};
}

WIDE static inline uint64_t bits(__m256i low, __m256i high)
{
    return (uint32_t) _mm256_movemask_epi8(low) | (uint64_t) (uint32_t) _mm256_movemask_epi8(high)
                                                      << 32;
}

WIDE static inline uint64_t equal(block_t b, unsigned char c)
{
    const __m256i all = _mm256_set1_epi8((char) c);

    return bits(_mm256_cmpeq_epi8(b.low, all), _mm256_cmpeq_epi8(b.high, all));
}

WIDE static inline uint64_t at_least(block_t b, unsigned char c)
{
    const __m256i all = _mm256_set1_epi8((char) c);

    return bits(_mm256_cmpeq_epi8(_mm256_max_epu8(b.low, all), b.low),
                _mm256_cmpeq_epi8(_mm256_max_epu8(b.high, all), b.high));
}

/* As signed bytes. */
WIDE static inline uint64_t below(block_t b, unsigned char c)
{
    const __m256i all = _mm256_set1_epi8((char) c);

    return bits(_mm256_cmpgt_epi8(all, b.low), _mm256_cmpgt_epi8(all, b.high));
}

WIDE static inline uint64_t not_ascii(block_t b)
{
    return bits(b.low, b.high);
}

typedef __m256i row_t;

WIDE static inline row_t fill(uint8_t c)
{
    return _mm256_set1_epi8((char) c);
}

/* By the low four bits of each byte; the highest must be 0. */
WIDE static inline row_t find(const uint8_t *table, row_t which)
{
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const void *) table)),
                               which);
}

WIDE static inline row_t high_nibbles(row_t v, row_t nibble)
{
    return _mm256_and_si256(_mm256_srli_epi16(v, 4), nibble);
}

WIDE static inline __m256i class_of(__m256i v, const uint8_t *low, const uint8_t *high,
                                    uint8_t wanted)
{
    const row_t nibble = fill(0x0f);
    const row_t both = find(low, v & nibble) & find(high, high_nibbles(v, nibble));

    return _mm256_cmpeq_epi8(both & fill(wanted), _mm256_setzero_si256());
}

WIDE static inline uint64_t of_class(block_t b, const uint8_t *low, const uint8_t *high,
                                     uint8_t wanted)
{
    return ~bits(class_of(b.low, low, high, wanted), class_of(b.high, low, high, wanted));
}

WIDE static inline uint64_t is_listed(block_t b, const uint8_t *list)
{
    return bits(_mm256_cmpeq_epi8(find(list, b.low), b.low),
                _mm256_cmpeq_epi8(find(list, b.high), b.high));
}

WIDE static inline void move_behind(row_t v, row_t before, row_t moved[3])
{
    const __m256i middle = _mm256_permute2x128_si256(before, v, 0x21);

    moved[0] = _mm256_alignr_epi8(v, middle, 15);
    moved[1] = _mm256_alignr_epi8(v, middle, 14);
    moved[2] = _mm256_alignr_epi8(v, middle, 13);
}

WIDE static inline row_t over(row_t v, row_t limit)
{
    return _mm256_subs_epu8(v, limit);
}

#include "base/json_utf8.h"

WIDE static inline uint64_t wrong_utf8(block_t b, block_t before, const utf8_t *of)
{
    const __m256i none = _mm256_setzero_si256();

    return ~bits(_mm256_cmpeq_epi8(wrong_row(b.low, before.high, of), none),
                 _mm256_cmpeq_epi8(wrong_row(b.high, b.low, of), none));
}

/* As signed bytes, control characters and what is not ASCII are below 0x20. */
WIDE static inline __m256i special(__m256i v, uint8_t quote, uint8_t slash, uint8_t blank)
{
    return _mm256_or_si256(_mm256_or_si256(_mm256_cmpeq_epi8(v, _mm256_set1_epi8((char) quote)),
                                           _mm256_cmpeq_epi8(v, _mm256_set1_epi8((char) slash))),
                           _mm256_cmpgt_epi8(_mm256_set1_epi8((char) blank), v));
}

WIDE static inline bool is_plain(block_t b, uint8_t quote, uint8_t slash, uint8_t blank)
{
    const __m256i any =
        _mm256_or_si256(special(b.low, quote, slash, blank), special(b.high, quote, slash, blank));

    return _mm256_testz_si256(any, any) != 0;
}

WIDE static inline unsigned first_bit(uint64_t mask)
{
    return (unsigned) _tzcnt_u64(mask);
}

/* Two digits, then four, in each place as many bits; then both fours of a word. */
WIDE static inline __m256i decimals(const uint64_t words[4])
{
    const __m256i bytes = _mm256_set_epi64x((long long) words[3], (long long) words[2],
                                            (long long) words[1], (long long) words[0]);
    const __m256i digits = _mm256_and_si256(bytes, _mm256_set1_epi8(0x0f));
    const __m256i twos = _mm256_maddubs_epi16(digits, _mm256_set1_epi16(0x010a));
    const __m256i fours = _mm256_madd_epi16(twos, _mm256_set1_epi32(0x00010064));

    return _mm256_add_epi64(_mm256_mul_epu32(fours, _mm256_set1_epi64x(10000)),
                            _mm256_srli_epi64(fours, 32));
}

/* The words come out of registers: memory that was just written by eight bytes would be waited for when it is read by 32. */
WIDE static inline void decimal_8(const uint64_t words[8], uint32_t *numbers)
{
    const __m256 low = _mm256_castsi256_ps(decimals(words));
    const __m256 high = _mm256_castsi256_ps(decimals(words + 4));
    const __m256i both = _mm256_castps_si256(_mm256_shuffle_ps(low, high, _MM_SHUFFLE(2, 0, 2, 0)));

    _mm256_storeu_si256((void *) numbers, _mm256_permute4x64_epi64(both, _MM_SHUFFLE(3, 1, 2, 0)));
}

#include "base/json_words.h"

WIDE static inline void take_numbers(block_t b, const char *at, uint64_t starts, uint64_t ends,
                                     unsigned count, uint32_t *numbers)
{
    (void) b;
    take_words(at, starts, ends, count, numbers);
}

#include "base/json_block.h"

WIDE static const char *find_string_end(const char *at, const char *end, bool *escaped_p)
{
    return string_end(at, end, escaped_p);
}

WIDE static const char *find_integers_end(const char *at, const char *end, size_t *count_p)
{
    return integers_end(at, end, count_p);
}

WIDE static const char *take_integers(const char *at, const char *end, uint32_t *numbers,
                                      unsigned cap, unsigned *count_p)
{
    return read_integers(at, end, numbers, cap, count_p);
}

const bt_json_wide_t bt_json_avx2 = {find_string_end, find_integers_end, take_integers};
#endif
