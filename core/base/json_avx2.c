/* json_block.h by two registers of 32 bytes. */
#include "base/json_scan.h"

#ifdef BT_JSON_X86
#include <immintrin.h>

#define WIDE __attribute__((target("avx2,bmi,popcnt")))

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

WIDE static inline __m256i find(const uint8_t *table, __m256i nibbles)
{
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128((const void *) table)),
                               nibbles);
}

WIDE static inline __m256i class_of(__m256i v, const uint8_t *low, const uint8_t *high,
                                    uint8_t wanted)
{
    const __m256i nibble = _mm256_set1_epi8(0x0f);
    const __m256i both =
        _mm256_and_si256(find(low, _mm256_and_si256(v, nibble)),
                         find(high, _mm256_and_si256(_mm256_srli_epi16(v, 4), nibble)));

    return _mm256_cmpeq_epi8(_mm256_and_si256(both, _mm256_set1_epi8((char) wanted)),
                             _mm256_setzero_si256());
}

WIDE static inline uint64_t of_class(block_t b, const uint8_t *low, const uint8_t *high,
                                     uint8_t wanted)
{
    return ~bits(class_of(b.low, low, high, wanted), class_of(b.high, low, high, wanted));
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

#include "base/json_block.h"

WIDE static const char *find_string_end(const char *at, const char *end, bool *escaped_p)
{
    return string_end(at, end, escaped_p);
}

WIDE static const char *find_integers_end(const char *at, const char *end, size_t *count_p)
{
    return integers_end(at, end, count_p);
}

const bt_json_wide_t bt_json_avx2 = {find_string_end, find_integers_end};
#endif
