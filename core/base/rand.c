/* xoshiro256++ by Blackman and Vigna (public domain algorithm), its state filled by splitmix64. */
#include "base/rand.h"

#include "base/err.h"
#include "base/str.h"

#include <errno.h>
#include <sys/random.h>

static _Thread_local bt_rand_state_t state;

static uint64_t rotl(uint64_t x, unsigned k)
{
    return (x << k) | (x >> (64 - k));
}

static uint64_t splitmix(uint64_t *x)
{
    uint64_t z = *x += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

void bt_rand_seed(uint64_t seed)
{
    for (unsigned i = 0; i < 4; i++)
        state.s[i] = splitmix(&seed);
    state.is_seeded = true;
}

void bt_rand_begin(bt_rand_state_t *before, uint64_t seed)
{
    *before = state;
    bt_rand_seed(seed);
}

void bt_rand_end(const bt_rand_state_t *before)
{
    state = *before;
}

static void seed_from_system(void)
{
    uint64_t seed;
    bt_rand_secure(&seed, sizeof(seed));
    bt_rand_seed(seed);
}

uint64_t bt_rand_u64(void)
{
    uint64_t *s = state.s;

    if (__builtin_expect(!state.is_seeded, 0))
        seed_from_system();
    uint64_t result = rotl(s[0] + s[3], 23) + s[0];
    uint64_t t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return result;
}

/* Lemire's multiply method: the low half tells whether the draw fell into the biased rest. */
uint64_t bt_rand_below(uint64_t bound)
{
    if (bound == 0)
        return 0;
    unsigned __int128 m = (unsigned __int128) bt_rand_u64() * bound;
    if ((uint64_t) m < bound) {
        uint64_t rest = (0 - bound) % bound;
        while ((uint64_t) m < rest)
            m = (unsigned __int128) bt_rand_u64() * bound;
    }
    return (uint64_t) (m >> 64);
}

double bt_rand_unit(void)
{
    return (double) (bt_rand_u64() >> 11) * 0x1.0p-53;
}

void bt_rand_secure(void *out, size_t size)
{
    char *at = out;
    while (size > 0) {
        ssize_t n = getrandom(at, size, 0);
        if (n < 0 && errno == EINTR)
            continue;
        BT_BUG_ON(n <= 0); /* a kernel without getrandom is below the floor */
        at += n;
        size -= (size_t) n;
    }
}

void bt_rand_uuid(char out[BT_UUID_CHARS + 1])
{
    char digits[32], *at = digits;

    bt_str_put_hex64(&at, bt_rand_u64());
    bt_str_put_hex64(&at, bt_rand_u64());
    digits[12] = '4';
    digits[16] = "89ab"[bt_str_hex(digits[16]) & 3];
    memcpy(out, digits, 8);
    memcpy(out + 9, digits + 8, 4);
    memcpy(out + 14, digits + 12, 4);
    memcpy(out + 19, digits + 16, 4);
    memcpy(out + 24, digits + 20, 12);
    out[8] = out[13] = out[18] = out[23] = '-';
    out[BT_UUID_CHARS] = '\0';
}
