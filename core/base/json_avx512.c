/* json_block.h by one register of 64 bytes; comparing them makes masks at once. */
#include "base/json_scan.h"

#ifdef BT_JSON_X86
#include <immintrin.h>

#define WIDE __attribute__((target("avx512bw,avx512vbmi,avx512vbmi2,bmi,popcnt")))

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

/* As signed bytes. */
WIDE static inline uint64_t below(block_t b, unsigned char c)
{
    return _mm512_cmplt_epi8_mask(b, _mm512_set1_epi8((char) c));
}

WIDE static inline uint64_t not_ascii(block_t b)
{
    return _mm512_movepi8_mask(b);
}

typedef __m512i row_t;

WIDE static inline row_t fill(uint8_t c)
{
    return _mm512_set1_epi8((char) c);
}

/* By the low four bits of each byte; the highest must be 0. */
WIDE static inline row_t find(const uint8_t *table, row_t which)
{
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const void *) table)),
                               which);
}

WIDE static inline row_t high_nibbles(row_t v, row_t nibble)
{
    return _mm512_and_si512(_mm512_srli_epi16(v, 4), nibble);
}

WIDE static inline uint64_t of_class(block_t b, const uint8_t *low, const uint8_t *high,
                                     uint8_t wanted)
{
    const row_t nibble = fill(0x0f);

    return _mm512_test_epi8_mask(find(low, b & nibble) & find(high, high_nibbles(b, nibble)),
                                 fill(wanted));
}

WIDE static inline uint64_t is_listed(block_t b, const uint8_t *list)
{
    return _mm512_cmpeq_epi8_mask(find(list, b), b);
}

WIDE static inline void move_behind(row_t v, row_t before, row_t moved[3])
{
    const __m512i middle = _mm512_alignr_epi32(v, before, 12);

    moved[0] = _mm512_alignr_epi8(v, middle, 15);
    moved[1] = _mm512_alignr_epi8(v, middle, 14);
    moved[2] = _mm512_alignr_epi8(v, middle, 13);
}

WIDE static inline row_t over(row_t v, row_t limit)
{
    return _mm512_subs_epu8(v, limit);
}

#include "base/json_utf8.h"

WIDE static inline uint64_t wrong_utf8(block_t b, block_t before, const utf8_t *of)
{
    const __m512i wrong = wrong_row(b, before, of);

    return _mm512_test_epi8_mask(wrong, wrong);
}

/* As signed bytes, control characters and what is not ASCII are below 0x20. */
WIDE static inline bool is_plain(block_t b, uint8_t quote, uint8_t slash, uint8_t blank)
{
    return (equal(b, quote) | equal(b, slash) | below(b, blank)) == 0;
}

/* Two digits, then four, in each place as many bits; then both fours of eight. */
WIDE static inline __m256i decimals(__m512i digits)
{
    const __m512i twos = _mm512_maddubs_epi16(digits, _mm512_set1_epi16(0x010a));
    const __m512i fours = _mm512_madd_epi16(twos, _mm512_set1_epi32(0x00010064));
    const __m512i eights = _mm512_add_epi64(_mm512_mul_epu32(fours, _mm512_set1_epi64(10000)),
                                            _mm512_srli_epi64(fours, 32));

    return _mm512_cvtepi64_epi32(eights);
}

static const uint8_t places[64] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                   16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
                                   32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47,
                                   48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};

/* Eight at a time: each gets the eight bytes before its end, and of these the ones from its start on count. */
WIDE static inline void take_numbers(block_t b, const char *at, uint64_t starts, uint64_t ends,
                                     unsigned count, uint32_t *numbers)
{
    const __m512i all = _mm512_loadu_si512(places), digit = _mm512_set1_epi8(0x0f);
    const __m512i start = _mm512_maskz_compress_epi8(starts, all);
    const __m512i end = _mm512_maskz_compress_epi8(ends, all);
    const __m512i before = _mm512_set1_epi64((long long) UINT64_C(0xfffefdfcfbfaf9f8));
    __m512i which = _mm512_set_epi64(0x0707070707070707, 0x0606060606060606, 0x0505050505050505,
                                     0x0404040404040404, 0x0303030303030303, 0x0202020202020202,
                                     0x0101010101010101, 0);

    (void) at;
    for (unsigned done = 0; done < count; done += 8) {
        const __m512i place = _mm512_add_epi8(_mm512_permutexvar_epi8(which, end), before);
        const __mmask64 is_digit =
            _mm512_cmpge_epi8_mask(place, _mm512_permutexvar_epi8(which, start));
        const __m512i bytes = _mm512_maskz_permutexvar_epi8(is_digit, place, b);
        _mm256_storeu_si256((void *) (numbers + done), decimals(_mm512_and_si512(bytes, digit)));
        which = _mm512_add_epi8(which, _mm512_set1_epi8(8));
    }
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

const bt_json_wide_t bt_json_avx512 = {find_string_end, find_integers_end, take_integers};
#endif
