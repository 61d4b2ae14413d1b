/* registry_ranks.h - the ranks of one prefill, and of the one that may be about to replace it.
 *
 * Owner: the registry.
 * Life:  init -> puts -> fini.
 * Flow:  each put lands in the served set, replaces it, waits aside or is refused: registry.h says when.
 * Cost:  O(1) a put; memory by the ranks of the topologies that are known, two at most.
 */
#ifndef BT_TRANSPORT_REGISTRY_RANKS_H
#define BT_TRANSPORT_REGISTRY_RANKS_H

#include "transport/registry/registry_body.h"

#define BT_KV_FORMER_LIVES 8 /* incarnations that are remembered as replaced */

typedef struct bt_kv_rank {
    uint16_t port; /* 0 = has not registered */
    char ip[BT_KV_WORD_BYTES];
} bt_kv_rank_t;

typedef struct bt_kv_rank_set {
    bt_kv_topology_t topology;
    char incarnation[BT_KV_WORD_BYTES];
    uint16_t prefill_http_port;
    bt_kv_rank_t *ranks; /* [dp][cp][tp][pp]; NULL = no set */
    uint32_t total, count;
    uint64_t newest_ms; /* when one of them last registered */
} bt_kv_rank_set_t;

typedef struct bt_kv_ranks {
    bt_kv_rank_set_t served, aside;
    uint32_t again; /* served ranks that are in the set aside too */
    uint32_t ttl_ms;
    uint64_t replaced;
    char former[BT_KV_FORMER_LIVES][BT_KV_WORD_BYTES];
    unsigned former_at;
} bt_kv_ranks_t;

void bt_kv_ranks_fini(bt_kv_ranks_t *ranks);
/* 0; BT_E_AGAIN: refused, `why` says it; BT_E_NOMEM: nothing has changed. */
int bt_kv_ranks_put(bt_kv_ranks_t *ranks, const bt_kv_registration_t *r, uint64_t now_ms,
                    char *why);
/* Of the served set; NULL: no such rank. */
const bt_kv_rank_t *bt_kv_ranks_get(const bt_kv_ranks_t *ranks, int64_t dp, int64_t cp, int64_t tp,
                                    int64_t pp);
static inline bool bt_kv_ranks_are_whole(const bt_kv_ranks_t *ranks)
{
    return ranks->served.ranks != NULL && ranks->served.count == ranks->served.total;
}

#endif
