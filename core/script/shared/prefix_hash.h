/* prefix_hash.h - a prompt as a chain of block hashes. Private to core/script.
 *
 * Owner: nobody; pure functions.
 * Life:  static.
 * Flow:  hash i names the whole prompt up to the end of block i: XXH3-64, seed 1337, over the block, then over
 *        LE64(hash i-1) and LE64(block), as Dynamo and Mooncake number their blocks (the first hash is the block's own).
 * Cost:  one pass over the bytes that count; no allocation.
 *
 * A prompt given as one list of ids is hashed by ids (little-endian 32 bit), anything else by the raw bytes of its JSON
 * value, four for a token, without a string's quotes. The last block counts only when it is full.
 */
#ifndef BT_SCRIPT_PREFIX_HASH_H
#define BT_SCRIPT_PREFIX_HASH_H

#include "base/str.h"

#define BT_PREFIX_SEED 1337u
#define BT_PREFIX_BLOCK_TOKENS 64 /* default */
#define BT_PREFIX_BLOCK_TOKENS_MAX 1024
#define BT_PREFIX_BYTES_PER_TOKEN 4
#define BT_PREFIX_BLOCKS_MAX 1024 /* what comes after is not looked at: 65,536 tokens by default */

/* The hashes of a prompt's full blocks, in pieces: a prompt may have megabytes. */
typedef struct bt_prefix_chain {
    bt_str_t prompt; /* raw JSON value, borrowed */
    unsigned block_tokens;
    bool is_ids;
    size_t at;
} bt_prefix_chain_t;
void bt_prefix_chain_begin(bt_prefix_chain_t *c, bt_str_t prompt, unsigned block_tokens);
/* hashes has count; fills up to max. Returns how many there are now: fewer than max at the prompt's end. */
unsigned bt_prefix_chain_more(bt_prefix_chain_t *c, uint64_t *hashes, unsigned count, unsigned max);
/* Is the raw JSON value a list that begins with an id? Then they come one by one, from *at = 1 on; false: at the end, or at what is none. */
bool bt_prefix_is_ids(bt_str_t prompt);
bool bt_prefix_next_id(bt_str_t list, size_t *at, uint32_t *id_p);
uint64_t bt_hash64(bt_str_t s, uint64_t seed); /* XXH3-64 */

#endif
