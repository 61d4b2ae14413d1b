/* json_block.h by four registers of 16 bytes. */
#include "base/json_scan.h"

#ifdef BT_JSON_NEON
#include <arm_neon.h>

#define WIDE

typedef uint8x16x4_t block_t;

static inline block_t load(const char *at)
{
    const uint8_t *p = (const void *) at;

    return (block_t){{vld1q_u8(p), vld1q_u8(p + 16), vld1q_u8(p + 32), vld1q_u8(p + 48)}};
}

/* Each byte is 0 or 0xff: its own bit of each, and then neighbours are added until eight are one byte. */
static inline uint64_t bits(uint8x16_t a, uint8x16_t b, uint8x16_t c, uint8x16_t d)
{
    const uint8x16_t own = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const uint8x16_t first = vpaddq_u8(vandq_u8(a, own), vandq_u8(b, own)),
                     second = vpaddq_u8(vandq_u8(c, own), vandq_u8(d, own));
    const uint8x16_t fourths = vpaddq_u8(first, second);

    return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(fourths, fourths)), 0);
}

static inline uint64_t equal(block_t b, unsigned char c)
{
    const uint8x16_t all = vdupq_n_u8(c);

    return bits(vceqq_u8(b.val[0], all), vceqq_u8(b.val[1], all), vceqq_u8(b.val[2], all),
                vceqq_u8(b.val[3], all));
}

static inline uint64_t at_least(block_t b, unsigned char c)
{
    const uint8x16_t all = vdupq_n_u8(c);

    return bits(vcgeq_u8(b.val[0], all), vcgeq_u8(b.val[1], all), vcgeq_u8(b.val[2], all),
                vcgeq_u8(b.val[3], all));
}

/* As signed bytes. */
static inline uint64_t below(block_t b, unsigned char c)
{
    const int8x16_t all = vdupq_n_s8((int8_t) c);

    return bits(
        vcltq_s8(vreinterpretq_s8_u8(b.val[0]), all), vcltq_s8(vreinterpretq_s8_u8(b.val[1]), all),
        vcltq_s8(vreinterpretq_s8_u8(b.val[2]), all), vcltq_s8(vreinterpretq_s8_u8(b.val[3]), all));
}

static inline uint64_t not_ascii(block_t b)
{
    return at_least(b, 0x80);
}

typedef uint8x16_t row_t;

static inline row_t fill(uint8_t c)
{
    return vdupq_n_u8(c);
}

static inline row_t find(const uint8_t *table, row_t nibbles)
{
    return vqtbl1q_u8(vld1q_u8(table), nibbles);
}

static inline row_t high_nibbles(row_t v, row_t nibble)
{
    (void) nibble;
    return vshrq_n_u8(v, 4);
}

static inline row_t is_found(row_t v, const uint8_t *list)
{
    return vceqq_u8(find(list, v & fill(0x0f)), v);
}

static inline uint64_t is_listed(block_t b, const uint8_t *list)
{
    return bits(is_found(b.val[0], list), is_found(b.val[1], list), is_found(b.val[2], list),
                is_found(b.val[3], list));
}

static inline void move_behind(row_t v, row_t before, row_t moved[3])
{
    moved[0] = vextq_u8(before, v, 15);
    moved[1] = vextq_u8(before, v, 14);
    moved[2] = vextq_u8(before, v, 13);
}

static inline row_t over(row_t v, row_t limit)
{
    return vqsubq_u8(v, limit);
}

#include "base/json_utf8.h"

static inline row_t is_wrong(row_t v, row_t before, const utf8_t *of)
{
    const row_t wrong = wrong_row(v, before, of);

    return vtstq_u8(wrong, wrong);
}

static inline uint64_t wrong_utf8(block_t b, block_t before, const utf8_t *of)
{
    return bits(is_wrong(b.val[0], before.val[3], of), is_wrong(b.val[1], b.val[0], of),
                is_wrong(b.val[2], b.val[1], of), is_wrong(b.val[3], b.val[2], of));
}

static inline uint8x16_t class_of(uint8x16_t v, const uint8_t *low, const uint8_t *high,
                                  uint8_t wanted)
{
    const row_t nibble = fill(0x0f);

    return vtstq_u8(find(low, v & nibble) & find(high, high_nibbles(v, nibble)), fill(wanted));
}

static inline uint64_t of_class(block_t b, const uint8_t *low, const uint8_t *high, uint8_t wanted)
{
    return bits(class_of(b.val[0], low, high, wanted), class_of(b.val[1], low, high, wanted),
                class_of(b.val[2], low, high, wanted), class_of(b.val[3], low, high, wanted));
}

/* As signed bytes, control characters and what is not ASCII are below 0x20. */
static inline uint8x16_t special(uint8x16_t v, uint8_t quote, uint8_t slash, uint8_t blank)
{
    return vorrq_u8(vorrq_u8(vceqq_u8(v, vdupq_n_u8(quote)), vceqq_u8(v, vdupq_n_u8(slash))),
                    vcltq_s8(vreinterpretq_s8_u8(v), vdupq_n_s8((int8_t) blank)));
}

static inline bool is_plain(block_t b, uint8_t quote, uint8_t slash, uint8_t blank)
{
    return vmaxvq_u8(vorrq_u8(vorrq_u8(special(b.val[0], quote, slash, blank),
                                       special(b.val[1], quote, slash, blank)),
                              vorrq_u8(special(b.val[2], quote, slash, blank),
                                       special(b.val[3], quote, slash, blank)))) == 0;
}

static inline unsigned first_bit(uint64_t mask)
{
    return mask != 0 ? (unsigned) __builtin_ctzll(mask) : 64;
}

/* Two digits, then four, then eight: always the second is added to ten, a hundred, ten thousand times the first. */
static inline void decimal_8(const uint64_t words[8], uint32_t *numbers)
{
    for (unsigned i = 0; i < 8; i++) {
        const uint64_t digits = words[i] & UINT64_C(0x0f0f0f0f0f0f0f0f);
        const uint64_t twos = (digits * 10 + (digits >> 8)) & UINT64_C(0x00ff00ff00ff00ff);
        const uint64_t fours = (twos * 100 + (twos >> 16)) & UINT64_C(0x0000ffff0000ffff);
        numbers[i] = (uint32_t) (fours * 10000 + (fours >> 32));
    }
}

#include "base/json_words.h"

static inline void take_numbers(block_t b, const char *at, uint64_t starts, uint64_t ends,
                                unsigned count, uint32_t *numbers)
{
    (void) b;
    take_words(at, starts, ends, count, numbers);
}

#include "base/json_block.h"

static const char *find_string_end(const char *at, const char *end, bool *escaped_p)
{
    return string_end(at, end, escaped_p);
}

static const char *find_integers_end(const char *at, const char *end, size_t *count_p)
{
    return integers_end(at, end, count_p);
}

static const char *take_integers(const char *at, const char *end, uint32_t *numbers, unsigned cap,
                                 unsigned *count_p)
{
    return read_integers(at, end, numbers, cap, count_p);
}

const bt_json_wide_t bt_json_neon = {find_string_end, find_integers_end, take_integers};
#endif
