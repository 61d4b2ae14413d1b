/* kv_cache.h - the KV memory of one simulated engine: blocks by prefix, the least recently used forgotten first, as vLLM and SGLang do.
 *
 * Owner: one engine of one run; not thread safe.
 * Life:  init -> hold, let_go -> fini.
 * Flow:  a request holds the blocks of its prompt while it computes, and room for what it adds; what it lets go of stays until room is
 *        needed, a prompt's end before its beginning. Blocks that are expected are found when their KV has arrived; if it never does, they
 *        go with the last who holds them.
 * Cost:  O(1) a block. 32 bytes a block of capacity, allocated at once.
 */
#ifndef BT_SIM_KV_CACHE_H
#define BT_SIM_KV_CACHE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct bt_sim_kv_cache {
    struct bt_sim_kv_block *blocks; /* the first is the list of those that may be forgotten */
    uint32_t *index;                /* open addressing; 0 = free */
    uint32_t index_mask;
    uint32_t free; /* chained by next; 0 = none */
    uint32_t capacity;
    uint32_t resident, held; /* blocks with a prefix; of these, that somebody holds */
    uint32_t rooms;          /* blocks without one */
    uint64_t forgotten;
    /* Told of each block that comes and goes, if set. before: in the prompt that it came with; NULL: it is the first. */
    void (*on_change)(void *user, uint64_t id, const uint64_t *before, bool is_stored);
    void *user;
} bt_sim_kv_cache_t;

int bt_sim_kv_init(bt_sim_kv_cache_t *kv, uint32_t capacity); /* BT_E_NOMEM */
void bt_sim_kv_fini(bt_sim_kv_cache_t *kv);
/* Empty again, with nobody told. */
void bt_sim_kv_reset(bt_sim_kv_cache_t *kv);
/* How many of the first blocks are there. */
uint32_t bt_sim_kv_match(const bt_sim_kv_cache_t *kv, const uint64_t *ids, uint32_t count);
/* All of them, and room for so many others. False: there is not so much left, and nothing has changed. */
bool bt_sim_kv_hold(bt_sim_kv_cache_t *kv, const uint64_t *ids, uint32_t count, uint32_t rooms);
/* The same of a prompt whose KV is still elsewhere. */
bool bt_sim_kv_expect(bt_sim_kv_cache_t *kv, const uint64_t *ids, uint32_t count, uint32_t rooms);
void bt_sim_kv_arrived(bt_sim_kv_cache_t *kv, const uint64_t *ids, uint32_t count);
/* Of these the KV has not been made, and will not be yet: they are as expected ones, but those that others hold too. */
void bt_sim_kv_not_made(bt_sim_kv_cache_t *kv, const uint64_t *ids, uint32_t count);
void bt_sim_kv_let_go(bt_sim_kv_cache_t *kv, const uint64_t *ids, uint32_t count, uint32_t rooms);

#endif
