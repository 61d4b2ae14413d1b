/* The table is made once, at the first use, from the polynomial 0x1EDC6F41 (reflected 0x82F63B78): eight tables of 256 words, so that eight bytes
 * are folded a step (Intel's slicing-by-8). The instruction is asked for at run time: the binary is built for any x86-64.
 */
#include "transport/wire/crc32c.h"

#include <pthread.h>
#include <string.h>

#define POLYNOMIAL 0x82f63b78u

static uint32_t table[8][256];
static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint32_t (*best)(uint32_t crc, const uint8_t *p, size_t n);

static uint64_t le64(uint64_t word)
{
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return __builtin_bswap64(word);
#else
    return word;
#endif
}

static uint32_t by_table(uint32_t crc, const uint8_t *p, size_t n)
{
    for (; n >= 8; n -= 8, p += 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        word = le64(word) ^ crc;
        crc = table[7][word & 0xff] ^ table[6][word >> 8 & 0xff] ^ table[5][word >> 16 & 0xff] ^
              table[4][word >> 24 & 0xff] ^ table[3][word >> 32 & 0xff] ^
              table[2][word >> 40 & 0xff] ^ table[1][word >> 48 & 0xff] ^ table[0][word >> 56];
    }
    for (; n > 0; n--, p++)
        crc = table[0][(crc ^ *p) & 0xff] ^ crc >> 8;
    return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t by_sse42(uint32_t crc, const uint8_t *p, size_t n)
{
    uint64_t wide = crc;

    for (; n >= 8; n -= 8, p += 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        wide = __builtin_ia32_crc32di(wide, word);
    }
    crc = (uint32_t) wide;
    for (; n > 0; n--, p++)
        crc = __builtin_ia32_crc32qi(crc, *p);
    return crc;
}
#endif

static void choose(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ ((crc & 1) != 0 ? POLYNOMIAL : 0);
        table[0][i] = crc;
    }
    for (uint32_t i = 0; i < 256; i++)
        for (unsigned k = 1; k < 8; k++)
            table[k][i] = table[k - 1][i] >> 8 ^ table[0][table[k - 1][i] & 0xff];
    best = by_table;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2"))
        best = by_sse42;
#endif
}

uint32_t bt_kv_crc32c(uint32_t crc, const void *p, size_t n)
{
    pthread_once(&once, choose);
    return ~best(~crc, p, n);
}

uint32_t bt_kv_crc32c_table(uint32_t crc, const void *p, size_t n)
{
    pthread_once(&once, choose);
    return ~by_table(~crc, p, n);
}
