#include "script/prefix_hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t bt_hash64(bt_str_t s, uint64_t seed)
{
    return XXH3_64bits_withSeed(s.n != 0 ? s.p : "", s.n, seed);
}

static void put_le64(unsigned char *out, uint64_t v)
{
    for (int i = 0; i < 8; i++)
        out[i] = (unsigned char) (v >> 8 * i);
}

static uint64_t chain(const uint64_t *hashes, unsigned i, const void *block, size_t size)
{
    uint64_t own = XXH3_64bits_withSeed(block, size, BT_PREFIX_SEED);
    unsigned char pair[16];

    if (i == 0)
        return own;
    put_le64(pair, hashes[i - 1]);
    put_le64(pair + 8, own);
    return XXH3_64bits_withSeed(pair, sizeof(pair), BT_PREFIX_SEED);
}

static unsigned chain_bytes(bt_str_t text, unsigned block_tokens, uint64_t *hashes, unsigned max)
{
    const size_t size = (size_t) block_tokens * BT_PREFIX_BYTES_PER_TOKEN;
    unsigned count = 0;

    for (size_t at = 0; count < max && text.n - at >= size; at += size, count++)
        hashes[count] = chain(hashes, count, text.p + at, size);
    return count;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* The next id of "1, 2, 3]"; false at the end, or at anything that is no id. */
static bool next_id(bt_str_t list, size_t *at, uint32_t *id_p)
{
    uint64_t id = 0;
    size_t i = *at, start;

    while (i < list.n && (is_space(list.p[i]) || list.p[i] == ','))
        i++;
    for (start = i; i < list.n && list.p[i] >= '0' && list.p[i] <= '9' && id <= UINT32_MAX; i++)
        id = id * 10 + (unsigned) (list.p[i] - '0');
    if (i == start || id > UINT32_MAX)
        return false;
    *id_p = (uint32_t) id;
    *at = i;
    return true;
}

static unsigned chain_ids(bt_str_t list, unsigned block_tokens, uint64_t *hashes, unsigned max)
{
    unsigned char block[BT_PREFIX_BLOCK_TOKENS_MAX * 4];
    unsigned count = 0, filled = 0;
    size_t at = 1;
    uint32_t id;

    while (count < max && next_id(list, &at, &id)) {
        for (int i = 0; i < 4; i++)
            block[4 * filled + (unsigned) i] = (unsigned char) (id >> 8 * i);
        if (++filled < block_tokens)
            continue;
        hashes[count] = chain(hashes, count, block, (size_t) filled * 4);
        count++;
        filled = 0;
    }
    return count;
}

static bool is_id_list(bt_str_t prompt)
{
    size_t at = 1;
    uint32_t id;

    return prompt.n > 1 && prompt.p[0] == '[' && next_id(prompt, &at, &id);
}

unsigned bt_prefix_chain(bt_str_t prompt, unsigned block_tokens, uint64_t *hashes, unsigned max)
{
    if (block_tokens == 0 || block_tokens > BT_PREFIX_BLOCK_TOKENS_MAX)
        return 0;
    if (is_id_list(prompt))
        return chain_ids(prompt, block_tokens, hashes, max);
    if (prompt.n >= 2 && prompt.p[0] == '"')
        prompt = (bt_str_t){prompt.p + 1, prompt.n - 2};
    return chain_bytes(prompt, block_tokens, hashes, max);
}
