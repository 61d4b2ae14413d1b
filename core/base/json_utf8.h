/* json_utf8.h - what is no UTF-8 (RFC 3629) in a register's bytes, for json_avx2.c, json_avx512.c and json_neon.c.
 *
 * Owner: the caller; internal to base.
 * Life:  before it is included, WIDE and row_t, a vector type of the compiler's, must be there, with fill, find (what a table of 16 has
 *        for each of a row's low four bits), high_nibbles, move_behind (all bytes by one, two and three places, after the last ones of
 *        the row before) and over (what each has above a limit, or 0).
 * Flow:  Keiser and Lemire, "Validating UTF-8 In Less Than One Instruction Per Byte": three tables know each pair of bytes that is wrong
 *        for itself; what is left is whether a tail behind a tail is where a lead of three or four bytes wants one.
 * Cost:  the same for every text, no branch. A character that is cut short is wrong in the first byte that should be of it.
 */
#ifndef BT_BASE_JSON_UTF8_H
#define BT_BASE_JSON_UTF8_H

#include <stdint.h>

/* Why a pair is wrong: all three tables have the bit. A lead is C0 to FF, a tail 80 to BF. */
enum {
    NO_TAIL = 1,     /* lead, no tail */
    NO_LEAD = 2,     /* ASCII, tail */
    LOW_3 = 4,       /* E0, below A0: two bytes would do */
    SURROGATE = 8,   /* ED, A0 or more */
    LOW_2 = 16,      /* C0 or C1: one would do */
    BEYOND = 32,     /* F4 or more, 90 or more: no such character */
    LOW_4 = 64,      /* F0, below 90: three would do */
    BEYOND_LOW = 64, /* F5 or more, below 90: no such lead. No low four bits are both's. */
    TAILS = 128,     /* tail, tail: may be right */
    ANY_LOW = NO_TAIL | NO_LEAD | TAILS,
    ABOVE_F4 = ANY_LOW | BEYOND | BEYOND_LOW,
    ANY_TAIL = NO_LEAD | LOW_2 | TAILS,
};
static const uint8_t first_high[16] = {
    [0 ... 7] = NO_LEAD,
    [8 ... 0xb] = TAILS,
    [0xc] = NO_TAIL | LOW_2,
    [0xd] = NO_TAIL,
    [0xe] = NO_TAIL | LOW_3 | SURROGATE,
    [0xf] = NO_TAIL | BEYOND | LOW_4,
};
static const uint8_t first_low[16] = {
    [0] = ANY_LOW | LOW_2 | LOW_3 | LOW_4,
    [1] = ANY_LOW | LOW_2,
    [2 ... 3] = ANY_LOW,
    [4] = ANY_LOW | BEYOND,
    [5 ... 0xc] = ABOVE_F4,
    [0xd] = ABOVE_F4 | SURROGATE,
    [0xe ... 0xf] = ABOVE_F4,
};
static const uint8_t second_high[16] = {
    [0 ... 7] = NO_TAIL,
    [8] = ANY_TAIL | LOW_3 | LOW_4,
    [9] = ANY_TAIL | LOW_3 | BEYOND,
    [0xa ... 0xb] = ANY_TAIL | SURROGATE | BEYOND,
    [0xc ... 0xf] = NO_TAIL,
};

/* Where gcc knows a byte, it makes a register of it anew each time (a quarter of the whole cost). */
static inline uint8_t hidden(unsigned c)
{
    __asm__("" : "+r"(c));
    return (uint8_t) c;
}

typedef struct utf8 {
    row_t nibble, over_2, over_3, top_bit;
} utf8_t;

WIDE static inline utf8_t open_utf8(void)
{
    return (utf8_t){fill(hidden(0x0f)), fill(hidden(0xe0 - 0x80)), fill(hidden(0xf0 - 0x80)),
                    fill(hidden(0x80))};
}

/* Not 0 where a byte is wrong. */
WIDE static inline row_t wrong_row(row_t row, row_t before, const utf8_t *of)
{
    row_t moved[3];

    move_behind(row, before, moved);
    const row_t pair = find(first_high, high_nibbles(moved[0], of->nibble)) &
                       find(first_low, moved[0] & of->nibble) &
                       find(second_high, high_nibbles(row, of->nibble));
    /* TAILS, behind E0 or more two places before and F0 or more three */
    const row_t wanted = (over(moved[1], of->over_2) | over(moved[2], of->over_3)) & of->top_bit;

    return wanted ^ pair;
}

#endif
