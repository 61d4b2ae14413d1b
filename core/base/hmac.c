/* SHA-256 as FIPS 180-4, 6.2 writes it: eight words of state, 64 rounds a block. HMAC is two of them, the key in the first block of each. */
#include "base/hmac.h"

#include <string.h>

#define BLOCK 64

struct sha256 {
    uint32_t h[8];
    uint64_t bytes;
    uint8_t block[BLOCK];
};

static const uint32_t k[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t x, unsigned n)
{
    return x >> n | x << (32 - n);
}

static uint32_t load(const uint8_t *p)
{
    return (uint32_t) p[0] << 24 | (uint32_t) p[1] << 16 | (uint32_t) p[2] << 8 | p[3];
}

static void store(uint8_t *p, uint32_t value)
{
    for (unsigned i = 0; i < 4; i++)
        p[i] = (uint8_t) (value >> (24 - 8 * i));
}

static void schedule(const uint8_t *p, uint32_t w[64])
{
    for (unsigned i = 0; i < 16; i++)
        w[i] = load(p + (size_t) 4 * i);
    for (unsigned i = 16; i < 64; i++) {
        uint32_t a = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t b = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + a + w[i - 7] + b;
    }
}

static void take_block(struct sha256 *s, const uint8_t *p)
{
    uint32_t w[64], v[8];

    schedule(p, w);
    memcpy(v, s->h, sizeof(v));
    for (unsigned i = 0; i < 64; i++) {
        uint32_t e = v[4], a = v[0];
        uint32_t t1 = v[7] + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) +
                      ((e & v[5]) ^ (~e & v[6])) + k[i] + w[i];
        uint32_t t2 = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) +
                      ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof(*v));
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (unsigned i = 0; i < 8; i++)
        s->h[i] += v[i];
}

static void begin(struct sha256 *s)
{
    *s = (struct sha256){.h = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f,
                               0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

static void take(struct sha256 *s, const void *bytes, size_t n)
{
    const uint8_t *p = bytes;

    while (n > 0) {
        size_t at = (size_t) (s->bytes % BLOCK), part = n < BLOCK - at ? n : BLOCK - at;
        if (at == 0 && n >= BLOCK) {
            take_block(s, p);
            part = BLOCK;
        } else {
            memcpy(s->block + at, p, part);
            if (at + part == BLOCK)
                take_block(s, s->block);
        }
        s->bytes += part;
        p += part;
        n -= part;
    }
}

static void finish(struct sha256 *s, uint8_t out[BT_HMAC_BYTES])
{
    static const uint8_t end[BLOCK] = {0x80};
    uint64_t bits = s->bytes * 8;
    uint8_t length[8];

    take(s, end, 1 + (119 - (size_t) (s->bytes % BLOCK)) % BLOCK);
    store(length, (uint32_t) (bits >> 32));
    store(length + 4, (uint32_t) bits);
    take(s, length, sizeof(length));
    for (unsigned i = 0; i < 8; i++)
        store(out + (size_t) 4 * i, s->h[i]);
}

static void begin_keyed(struct sha256 *s, const uint8_t key[BLOCK], uint8_t pad)
{
    uint8_t block[BLOCK];

    for (unsigned i = 0; i < BLOCK; i++)
        block[i] = key[i] ^ pad;
    begin(s);
    take(s, block, sizeof(block));
}

void bt_hmac_sha256(bt_str_t key, const bt_str_t *pieces, unsigned count,
                    uint8_t out[BT_HMAC_BYTES])
{
    struct sha256 s;
    uint8_t block[BLOCK] = {0};

    if (key.n > BLOCK) {
        begin(&s);
        take(&s, key.p, key.n);
        finish(&s, block);
    } else if (key.n > 0) {
        memcpy(block, key.p, key.n);
    }
    begin_keyed(&s, block, 0x36);
    for (unsigned i = 0; i < count; i++)
        take(&s, pieces[i].p, pieces[i].n);
    finish(&s, out);
    begin_keyed(&s, block, 0x5c);
    take(&s, out, BT_HMAC_BYTES);
    finish(&s, out);
}
