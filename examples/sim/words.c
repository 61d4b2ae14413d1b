/* words.c - see words.h.
 *
 * The state is a plain chain (xor, multiply, fold), so the state at a block's end names the whole prefix up to there:
 * the same number serves as a key of the prefix cache and as the content that travels from prefill to decode.
 */
#include "words.h"

uint64_t sim_mix(uint64_t x)
{
    x ^= x >> 30;
    x *= UINT64_C(0xBF58476D1CE4E5B9);
    x ^= x >> 27;
    x *= UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

static uint64_t add_word(uint64_t state, uint64_t word)
{
    state = (state ^ word) * UINT64_C(0xFF51AFD7ED558CCD);
    return state ^ (state >> 32);
}

uint64_t sim_state_add(uint64_t state, const char *p, size_t n)
{
    uint64_t word;

    for (; n >= sizeof(word); p += sizeof(word), n -= sizeof(word)) {
        memcpy(&word, p, sizeof(word));
        state = add_word(state, word);
    }
    if (n == 0)
        return state;
    word = 0;
    memcpy(&word, p, n);
    return add_word(state, word);
}

uint64_t sim_kv_of_state(uint64_t state, size_t bytes)
{
    return sim_mix(state ^ ((uint64_t) bytes * UINT64_C(0x9E3779B97F4A7C15)));
}

uint64_t sim_kv(bt_str_t prompt)
{
    return sim_kv_of_state(sim_state_add(SIM_STATE_FIRST, prompt.p, prompt.n), prompt.n);
}

unsigned sim_tokens_of_bytes(size_t bytes)
{
    return (unsigned) ((bytes + SIM_TOKEN_BYTES - 1) / SIM_TOKEN_BYTES);
}

static uint64_t draw(uint64_t kv, uint64_t seed, unsigned i)
{
    return sim_mix(kv ^ sim_mix(seed + 1) ^ ((uint64_t) (i + 1) * UINT64_C(0xD6E8FEB86659FD93)));
}

void sim_word_of_id(unsigned x, char out[SIM_WORD_CHARS])
{
    static const char consonants[] = "bcdfghjklmnprstz", vowels[] = "aeiouaei";

    out[0] = consonants[x & 15];
    out[1] = vowels[(x >> 4) & 7];
    out[2] = consonants[(x >> 7) & 15];
    out[3] = vowels[(x >> 11) & 7];
    out[4] = consonants[(x >> 14) & 15];
}

void sim_word(uint64_t kv, uint64_t seed, unsigned i, char out[SIM_WORD_CHARS])
{
    sim_word_of_id(sim_word_id(kv, seed, i), out);
}

void sim_words(bt_text_t *out, uint64_t kv, uint64_t seed, unsigned count)
{
    char word[SIM_WORD_CHARS + 1] = " ";

    for (unsigned i = 0; i < count; i++) {
        sim_word(kv, seed, i, word + 1);
        bt_text_put(out,
                    i == 0 ? (bt_str_t){word + 1, SIM_WORD_CHARS} : (bt_str_t){word, sizeof(word)});
    }
}

unsigned sim_word_id(uint64_t kv, uint64_t seed, unsigned i)
{
    return (unsigned) (draw(kv, seed, i) & 0x3ffff);
}
