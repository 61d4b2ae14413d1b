/* kv_hits.h - what workers really hold of a prompt (core/kvindex), where their engines say so and the prompt is token ids.
 *
 * Owner: the index is the process's; a thread has a query of its own, made when it first asks.
 * Life:  set_index, before threads ask -> find, get -> thread_fini; set_index(NULL), when no thread asks any more.
 * Flow:  token ids, read no further than somebody holds them -> hits, until the thread's next find.
 * Cost:  see kvindex/query.h, and prompt_ids.h.
 */
#ifndef BT_SCRIPT_KV_HITS_H
#define BT_SCRIPT_KV_HITS_H

#include "kvindex/query.h"
#include "script/shared/prompt_ids.h"

void bt_kv_hits_set_index(bt_kv_index_t *index);
/* ids: NULL = the prompt is no list of them. Names the hits; 0: nothing is known. */
uint64_t bt_kv_hits_find(bt_prompt_ids_t *ids, bt_str_t model, bt_str_t salt);
/* parts: of a worker (bt_worker_t.kv_parts), the longest of its ranks counts. False: no event of it is followed, or the thread has found
 * something else meanwhile. */
bool bt_kv_hits_get(uint64_t found, uint64_t parts, bt_kv_hit_t *hit_p);
void bt_kv_hits_thread_fini(void);

/* A worker's parts as one number. */
static inline uint64_t bt_kv_parts(uint32_t first, unsigned count)
{
    return (uint64_t) first << 32 | count;
}

#endif
