/* feed.h - what simulated engines tell of their caches, some time later, in the index that a gateway keeps of real ones' (core/kvindex).
 *
 * Owner: one run; policies ask the process's index, so one at a time.
 * Life:  init -> listen, for each engine -> (changes, apply)* -> fini.
 * Flow:  a cache stores or forgets a block -> a queue, by time -> apply, before somebody asks -> kvindex.
 * Cost:  32 bytes a change on its way; a block's tokens are hashed when it is stored, as a gateway does.
 */
#ifndef BT_SIMULATOR_FEED_H
#define BT_SIMULATOR_FEED_H

#include "kvindex/index.h"
#include "simulator/kv_cache.h"
#include "simulator/trace.h"

typedef struct bt_sim_feed {
    bt_kv_index_t *index;
    const bt_sim_trace_t *trace;
    const double *now_s;
    double delay_s;
    uint32_t first_part; /* engine i has the i-th from here on */
    struct bt_sim_source *sources;
    struct bt_sim_change *changes; /* a ring */
    size_t first, count, cap;
    uint32_t *tokens; /* of one block */
    int rc;           /* a change was lost: out of memory */
} bt_sim_feed_t;

/* capacity: of each engine, in blocks. delay_s: of everything that they tell. now_s is read when something changes. */
int bt_sim_feed_init(bt_sim_feed_t *feed, const bt_sim_trace_t *trace, unsigned engines,
                     uint32_t capacity, double delay_s, const double *now_s);
void bt_sim_feed_fini(bt_sim_feed_t *feed);
/* From now on; returns its part in the index. */
uint32_t bt_sim_feed_listen(bt_sim_feed_t *feed, unsigned engine, bt_sim_kv_cache_t *kv);
/* It has begun anew and tells so: nothing of before holds. */
void bt_sim_feed_restart(bt_sim_feed_t *feed, unsigned engine);
/* What was told until now is known. */
void bt_sim_feed_apply(bt_sim_feed_t *feed);

#endif
