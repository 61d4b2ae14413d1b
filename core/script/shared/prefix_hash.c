#include "script/shared/prefix_hash.h"

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

static unsigned chain_bytes(bt_prefix_chain_t *c, uint64_t *hashes, unsigned count, unsigned max)
{
    const size_t size = (size_t) c->block_tokens * BT_PREFIX_BYTES_PER_TOKEN;

    for (; count < max && c->prompt.n - c->at >= size; c->at += size, count++)
        hashes[count] = chain(hashes, count, c->prompt.p + c->at, size);
    return count;
}

#define GAP_MAX                                                                                    \
    256 /* white space between two ids: an indented line; what has more costs more than it is worth */

/* The next id of "1, 2, 3]"; false at the end, or at anything that is no id. */
bool bt_prefix_next_id(bt_str_t list, size_t *at, uint32_t *id_p)
{
    uint64_t id = 0;
    size_t i = *at, start;
    const size_t gap_end = list.n - i < GAP_MAX ? list.n : i + GAP_MAX;

    while (i < gap_end && (bt_str_is_blank(list.p[i]) || list.p[i] == ','))
        i++;
    for (start = i; i < list.n && list.p[i] >= '0' && list.p[i] <= '9' && id <= UINT32_MAX; i++)
        id = id * 10 + (unsigned) (list.p[i] - '0');
    if (i == start || id > UINT32_MAX)
        return false;
    *id_p = (uint32_t) id;
    *at = i;
    return true;
}

static unsigned chain_ids(bt_prefix_chain_t *c, uint64_t *hashes, unsigned count, unsigned max)
{
    unsigned char block[BT_PREFIX_BLOCK_TOKENS_MAX * 4];
    unsigned filled = 0;
    uint32_t id;

    while (count < max && bt_prefix_next_id(c->prompt, &c->at, &id)) {
        for (int i = 0; i < 4; i++)
            block[4 * filled + (unsigned) i] = (unsigned char) (id >> 8 * i);
        if (++filled < c->block_tokens)
            continue;
        hashes[count] = chain(hashes, count, block, (size_t) filled * 4);
        count++;
        filled = 0;
    }
    return count;
}

bool bt_prefix_is_ids(bt_str_t prompt)
{
    size_t at = 1;
    uint32_t id;

    return prompt.n > 1 && prompt.p[0] == '[' && bt_prefix_next_id(prompt, &at, &id);
}

void bt_prefix_chain_begin(bt_prefix_chain_t *c, bt_str_t prompt, unsigned block_tokens)
{
    *c = (bt_prefix_chain_t){.prompt = prompt, .block_tokens = block_tokens};
    c->is_ids = bt_prefix_is_ids(prompt);
    if (c->is_ids)
        c->at = 1;
    else if (prompt.n >= 2 && prompt.p[0] == '"')
        c->prompt = (bt_str_t){prompt.p + 1, prompt.n - 2};
}

unsigned bt_prefix_chain_more(bt_prefix_chain_t *c, uint64_t *hashes, unsigned count, unsigned max)
{
    return c->is_ids ? chain_ids(c, hashes, count, max) : chain_bytes(c, hashes, count, max);
}
