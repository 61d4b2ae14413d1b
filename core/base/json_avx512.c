/* json_block.h by one register of 64 bytes; comparing them makes masks at once. */
#include "base/json_scan.h"

#ifdef BT_JSON_X86
#include <immintrin.h>

#define WIDE __attribute__((target("avx512bw,bmi,popcnt")))

typedef __m512i block_t;

WIDE static inline block_t load(const char *at)
{
    return _mm512_loadu_si512(at);
}

WIDE static inline uint64_t equal(block_t b, unsigned char c)
{
    return _mm512_cmpeq_epi8_mask(b, _mm512_set1_epi8((char) c));
}

WIDE static inline uint64_t at_least(block_t b, unsigned char c)
{
    return _mm512_cmpge_epu8_mask(b, _mm512_set1_epi8((char) c));
}

WIDE static inline __m512i find(const uint8_t *table, __m512i nibbles)
{
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const void *) table)),
                               nibbles);
}

WIDE static inline uint64_t of_class(block_t b, const uint8_t *low, const uint8_t *high,
                                     uint8_t wanted)
{
    const __m512i nibble = _mm512_set1_epi8(0x0f);
    const __m512i both =
        _mm512_and_si512(find(low, _mm512_and_si512(b, nibble)),
                         find(high, _mm512_and_si512(_mm512_srli_epi16(b, 4), nibble)));

    return _mm512_test_epi8_mask(both, _mm512_set1_epi8((char) wanted));
}

/* As signed bytes, control characters and what is not ASCII are below 0x20. */
WIDE static inline bool is_plain(block_t b, uint8_t quote, uint8_t slash, uint8_t blank)
{
    return (equal(b, quote) | equal(b, slash) |
            _mm512_cmplt_epi8_mask(b, _mm512_set1_epi8((char) blank))) == 0;
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

const bt_json_wide_t bt_json_avx512 = {find_string_end, find_integers_end};
#endif
