/* ceiling.h - what choosing workers can win: prompt tokens that one cache with the memory of many would have found.
 *
 * Owner: the caller.
 * Life:  pure functions over a trace.
 * Flow:  the cache sees all requests in the trace's order, and holds each block once and nothing else, as no fleet does. lru forgets the least
 *        recently used, as engines do. best knows what comes, and keeps what is used next (Belady): no cache of that size finds more.
 * Cost:  O(blocks) of memory; of time too, with a heap's logarithm where memory is the limit.
 */
#ifndef BT_SIMULATOR_CEILING_H
#define BT_SIMULATOR_CEILING_H

#include "simulator/trace.h"

#define BT_SIM_ENDLESS UINT32_MAX

/* In tokens. BT_E_NOMEM. */
int bt_sim_ceiling_lru(const bt_sim_trace_t *trace, uint32_t blocks, uint64_t *tokens_p);
int bt_sim_ceiling_best(const bt_sim_trace_t *trace, uint32_t blocks, uint64_t *tokens_p);

typedef struct bt_sim_ceilings {
    uint64_t endless;
    struct bt_sim_ceiling {
        uint32_t blocks;
        uint64_t lru, best;
    } memories[2];         /* of those that prefill; of all, if others do not */
    unsigned memory_count; /* 0: the trace has no prefixes */
} bt_sim_ceilings_t;

/* Of engines with so many blocks each. BT_E_NOMEM. */
int bt_sim_ceilings(const bt_sim_trace_t *trace, uint32_t blocks, unsigned prefills,
                    unsigned engines, bt_sim_ceilings_t *ceilings_p);

#endif
