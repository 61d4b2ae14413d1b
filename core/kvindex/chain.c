#include "kvindex/chain.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#define SEED BT_KV_HASH_SEED

uint64_t bt_kv_hash(bt_str_t bytes)
{
    return XXH3_64bits_withSeed(bytes.n > 0 ? bytes.p : "", bytes.n, SEED);
}

uint64_t bt_kv_mix(uint64_t hash, uint64_t extra)
{
    const uint64_t pair[2] = {hash, extra};

    return XXH3_64bits_withSeed(pair, sizeof(pair), SEED);
}

uint64_t bt_kv_root(bt_str_t lora, bt_str_t salt)
{
    const uint64_t root = lora.n > 0 ? bt_kv_mix(1, bt_kv_hash(lora)) : 0;

    return salt.n > 0 ? bt_kv_mix(root + 2, bt_kv_hash(salt)) : root;
}

uint64_t bt_kv_chain(uint64_t parent, const uint32_t *tokens, unsigned count)
{
    return bt_kv_mix(parent,
                     XXH3_64bits_withSeed(tokens, (size_t) count * sizeof(tokens[0]), SEED));
}
