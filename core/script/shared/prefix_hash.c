#include "script/shared/prefix_hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

uint64_t bt_hash64(bt_str_t s, uint64_t seed)
{
    return XXH3_64bits_withSeed(s.n != 0 ? s.p : "", s.n, seed);
}

static uint64_t chain(const uint64_t *hashes, unsigned i, const void *block, size_t size)
{
    const uint64_t own = XXH3_64bits_withSeed(block, size, BT_PREFIX_SEED);

    if (i == 0)
        return own;
    const uint64_t pair[2] = {hashes[i - 1], own};
    return XXH3_64bits_withSeed(pair, sizeof(pair), BT_PREFIX_SEED);
}

void bt_prefix_chain_begin(bt_prefix_chain_t *c, bt_str_t prompt, bt_prompt_ids_t *ids,
                           unsigned block_tokens)
{
    const bool is_string = prompt.n >= 2 && prompt.p[0] == '"';

    *c = (bt_prefix_chain_t){
        .bytes = is_string ? (bt_str_t){prompt.p + 1, prompt.n - 2} : prompt,
        .ids = ids,
        .block_tokens = block_tokens,
    };
}

unsigned bt_prefix_chain_more(bt_prefix_chain_t *c, uint64_t *hashes, unsigned count, unsigned max)
{
    const size_t size = (size_t) c->block_tokens * BT_PREFIX_BYTES_PER_TOKEN;
    const char *bytes = c->bytes.p;
    size_t blocks = c->bytes.n / size;
    const uint32_t *ids;

    if (c->ids != NULL) {
        blocks = bt_prompt_ids_read(c->ids, max * c->block_tokens, &ids) / c->block_tokens;
        bytes = (const char *) ids;
    }
    for (; count < max && count < blocks; count++)
        hashes[count] = chain(hashes, count, bytes + count * size, size);
    return count;
}
