/* json_words.h - numbers of a block one after the other, where the processor cannot move bytes to any place in a register: for json_avx2.c and
 * json_neon.c.
 *
 * Owner: the caller; internal to base.
 * Life:  before it is included, WIDE, first_bit (64: there is none) and decimal_8 must be there. The last makes numbers of eight times
 *        eight bytes: their last digits are the highest bytes, what is above the first one's are zeros.
 * Flow:  take_numbers of json_block.h: masks -> words -> numbers.
 * Cost:  no branch asks how many digits a number has: that would be guessed wrong for every third.
 */
#ifndef BT_BASE_JSON_WORDS_H
#define BT_BASE_JSON_WORDS_H

#include <stdint.h>
#include <string.h>

/* The eight bytes from a number's first digit on, moved so that its last digit is the last of them. */
WIDE static inline uint64_t take_word(const char *at, uint64_t *starts, uint64_t *ends)
{
    const unsigned start = first_bit(*starts), end = first_bit(*ends);
    uint64_t word;

    *starts &= *starts - 1;
    *ends &= *ends - 1;
    memcpy(&word, at + start, sizeof(word));
    return word << ((64 - 8 * (end - start)) & 63);
}

WIDE static inline void take_words(const char *at, uint64_t starts, uint64_t ends, unsigned count,
                                   uint32_t *numbers)
{
    uint64_t words[8];

    for (unsigned done = 0; done < count; done += 8) {
#pragma GCC unroll 8
        for (unsigned i = 0; i < 8; i++)
            words[i] = take_word(at, &starts, &ends);
        decimal_8(words, numbers + done);
    }
}

#endif
