/* kv_trust.h - are a worker's KV events borne out by its answers?
 *
 * Owner: the worker; any thread.
 * Life:  believed, until BT_KV_MISSES_MAX requests in a row of which its cache should have had more than half had nothing there -> believed again,
 *        when its events are followed anew.
 * Flow:  what was predicted, and what usage says -> believed or not -> policies (kv_hits.h), metrics.
 * Cost:  a few loads for a request of which much was predicted; nothing for others.
 *
 * Events of another tokenizer, of a proxy's other side or of an engine that hashes more than it tells predict hits that never come. An engine that
 * has never told of cached tokens proves nothing: vLLM says nothing of them without --enable-prompt-tokens-details. Nor does a worker of several ranks,
 * each with a cache of its own: what was predicted is the most that any of them has.
 */
#ifndef BT_CLUSTER_KV_TRUST_H
#define BT_CLUSTER_KV_TRUST_H

#include "cluster/worker.h"

#define BT_KV_MISSES_MAX 20u

static inline bool bt_kv_trust_has(const bt_worker_t *w)
{
    return !atomic_load_explicit(&w->kv_trust.is_lost, memory_order_relaxed);
}

/* Of one request, in tokens. is_told: its usage has a number of cached ones. */
void bt_kv_trust_note(bt_worker_t *w, uint64_t predicted, uint64_t prompt, bool is_told,
                      uint64_t cached);
/* Its engine is another process, or its events are followed anew. */
void bt_kv_trust_renew(bt_worker_t *w);

#endif
