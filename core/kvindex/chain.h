/* chain.h - our own hash of a prompt's blocks: what engines call theirs does not matter.
 *
 * Owner: nobody; pure functions.
 * Life:  values are of this program: a snapshot (snapshot.h) has them, and says by which function they were made; nothing sends them.
 * Flow:  root of a space -> block after block -> each hash says all tokens up to its block's end.
 * Cost:  some 10 ns a block of 16 tokens.
 */
#ifndef BT_KVINDEX_CHAIN_H
#define BT_KVINDEX_CHAIN_H

#include "base/str.h"

#define BT_KV_HASH_SEED 1337 /* of XXH3; Dynamo's and Conductor's, any would do */

/* Prompts of two spaces share no KV. No model: a block belongs to workers, and a worker has one model and its adapters. Both empty: 0. */
uint64_t bt_kv_root(bt_str_t lora, bt_str_t salt);
uint64_t bt_kv_chain(uint64_t parent, const uint32_t *tokens, unsigned count);
/* What stands in a block beside its tokens, an image's name for one. */
uint64_t bt_kv_mix(uint64_t hash, uint64_t extra);
uint64_t bt_kv_hash(bt_str_t bytes);

#endif
