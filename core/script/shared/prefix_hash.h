/* prefix_hash.h - a prompt as a chain of block hashes. Private to core/script.
 *
 * Owner: nobody; pure functions.
 * Life:  static.
 * Flow:  hash i names the whole prompt up to the end of block i: XXH3-64, seed 1337, over the block, then over
 *        LE64(hash i-1) and LE64(block), as Dynamo and Mooncake number their blocks (the first hash is the block's own).
 * Cost:  one pass over the bytes that count; no allocation.
 *
 * A prompt given as one list of ids is hashed by ids (32 bit; all numbers little-endian, as the machine's are), anything
 * else by the raw bytes of its JSON value, four for a token, without a string's quotes. The last block counts only when
 * it is full.
 */
#ifndef BT_SCRIPT_PREFIX_HASH_H
#define BT_SCRIPT_PREFIX_HASH_H

#include "script/shared/prompt_ids.h"

#define BT_PREFIX_SEED 1337u
#define BT_PREFIX_BLOCK_TOKENS 64 /* default */
#define BT_PREFIX_BLOCK_TOKENS_MAX 1024
#define BT_PREFIX_BYTES_PER_TOKEN 4
#define BT_PREFIX_BLOCKS_MAX 1024 /* what comes after is not looked at: 65,536 tokens by default */

/* The hashes of a prompt's full blocks, in pieces: a prompt may have megabytes. */
typedef struct bt_prefix_chain {
    bt_str_t bytes;       /* borrowed; where it is no list of ids */
    bt_prompt_ids_t *ids; /* NULL = it is none */
    unsigned block_tokens;
} bt_prefix_chain_t;
/* prompt: raw JSON value; ids: its ids, if it is a list of them (prompt_ids.h). */
void bt_prefix_chain_begin(bt_prefix_chain_t *c, bt_str_t prompt, bt_prompt_ids_t *ids,
                           unsigned block_tokens);
/* hashes has count; fills up to max. Returns how many there are now: fewer than max at the prompt's end. */
unsigned bt_prefix_chain_more(bt_prefix_chain_t *c, uint64_t *hashes, unsigned count, unsigned max);
uint64_t bt_hash64(bt_str_t s, uint64_t seed); /* XXH3-64 */

#endif
