/* query.h - how much of a prompt does each worker hold? One walk over its blocks, for all workers at once.
 *
 * Owner: one thread, a query each.
 * Life:  new, for good (the place in the index is never given back) -> find, then hit -> free.
 * Flow:  tokens -> chain of hashes, some blocks at a time -> the owners of each block: who holds all up to here goes on. Ends with the last one.
 * Cost:  as long as somebody holds the prefix: a hash and a cache line or two a block; with many holders 3 words for each 64 parts.
 *        No lock, no allocation after the first call.
 */
#ifndef BT_KVINDEX_QUERY_H
#define BT_KVINDEX_QUERY_H

#include "kvindex/index.h"

#define BT_KV_QUERY_BLOCKS_MAX 8192u

typedef struct bt_kv_query bt_kv_query_t;

/* A prompt's tokens, read no further than somebody holds them: makes at least `wanted` of them ready, or all that there are, and
 * returns how many are. */
typedef struct bt_kv_prompt {
    unsigned (*read)(void *user, unsigned wanted, const uint32_t **tokens_p);
    void *user;
    uint64_t root; /* chain.h */
} bt_kv_prompt_t;

typedef struct bt_kv_hit {
    unsigned blocks;     /* leading ones that the part holds, in whatever tier */
    unsigned host, disk; /* of these, those that it has only there */
    unsigned tokens;     /* in all of them */
} bt_kv_hit_t;

int bt_kv_query_new(bt_kv_query_t **query_p, bt_kv_index_t *index);
void bt_kv_query_free(bt_kv_query_t *query);
/* Returns how many leading blocks somebody holds, of the size with most tokens in them. */
unsigned bt_kv_query_find(bt_kv_query_t *query, const bt_kv_prompt_t *prompt);
/* Of the last find. */
bt_kv_hit_t bt_kv_query_hit(const bt_kv_query_t *query, uint32_t part);

#endif
