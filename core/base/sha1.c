/* The plain form: 80 words a block, 64 bytes at a time, the last block padded aside. */
#include "base/sha1.h"

#include <stdio.h>

static uint32_t rotate(uint32_t x, unsigned n)
{
    return x << n | x >> (32 - n);
}

static uint32_t mix(unsigned round, const uint32_t *v)
{
    switch (round / 20) {
    case 0:
        return ((v[1] & v[2]) | (~v[1] & v[3])) + 0x5a827999u;
    case 1:
        return (v[1] ^ v[2] ^ v[3]) + 0x6ed9eba1u;
    case 2:
        return ((v[1] & v[2]) | (v[1] & v[3]) | (v[2] & v[3])) + 0x8f1bbcdcu;
    default:
        return (v[1] ^ v[2] ^ v[3]) + 0xca62c1d6u;
    }
}

static void add_block(uint32_t h[5], const unsigned char *p)
{
    uint32_t w[80], v[5];

    for (unsigned i = 0; i < 16; i++)
        w[i] = (uint32_t) p[4 * i] << 24 | (uint32_t) p[4 * i + 1] << 16 |
               (uint32_t) p[4 * i + 2] << 8 | p[4 * i + 3];
    for (unsigned i = 16; i < 80; i++)
        w[i] = rotate(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    memcpy(v, h, sizeof(v));
    for (unsigned i = 0; i < 80; i++) {
        uint32_t next = rotate(v[0], 5) + mix(i, v) + v[4] + w[i];
        v[4] = v[3];
        v[3] = v[2];
        v[2] = rotate(v[1], 30);
        v[1] = v[0];
        v[0] = next;
    }
    for (unsigned i = 0; i < 5; i++)
        h[i] += v[i];
}

void bt_sha1_hex(bt_str_t bytes, char out[BT_SHA1_HEX + 1])
{
    uint32_t h[5] = {0x67452301u, 0xefcdab89u, 0x98badcfeu, 0x10325476u, 0xc3d2e1f0u};
    const unsigned char *p = (const unsigned char *) bytes.p;
    unsigned char last[128] = {0};
    size_t whole = bytes.n & ~(size_t) 63, rest = bytes.n - whole;
    size_t tail = rest < 56 ? 64 : 128;

    for (size_t i = 0; i < whole; i += 64)
        add_block(h, p + i);
    if (rest > 0)
        memcpy(last, p + whole, rest);
    last[rest] = 0x80;
    for (unsigned i = 0; i < 8; i++)
        last[tail - 1 - i] = (unsigned char) ((uint64_t) bytes.n * 8 >> (8 * i));
    for (size_t i = 0; i < tail; i += 64)
        add_block(h, last + i);
    for (unsigned i = 0; i < 5; i++)
        snprintf(out + 8 * i, 9, "%08x", h[i]);
}
