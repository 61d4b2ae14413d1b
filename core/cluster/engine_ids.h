/* engine_ids.h - the engine ids of a prefill's data-parallel ranks, as vLLM's Mooncake bootstrap server tells them.
 *
 * Owner: the worker; under its lock.
 * Life:  read with each health check; an engine that restarts has others, so what fails or is silent has them read again.
 * Flow:  monitor: GET /query -> read; a leg's dialect asks for its rank's; a change of version ends who was told the old ones.
 * Cost:  one table of a few hundred bytes a prefill; a copy a leg.
 */
#ifndef BT_CLUSTER_ENGINE_IDS_H
#define BT_CLUSTER_ENGINE_IDS_H

#include "cluster/worker.h"

/* {"<dp rank>": {"engine_id": "...", ...}, ...}. 0, or BT_E_INVAL (nothing is changed then). */
int bt_engine_ids_read(bt_worker_t *w, bt_str_t json);
/* False: not known. size: BT_ENGINE_ID_MAX is enough. */
bool bt_engine_ids_get(bt_worker_t *w, unsigned rank, char *out, size_t size);
/* They may be old: the monitor reads them again within a second, not when its interval is over. Any thread. */
static inline void bt_engine_ids_doubt(bt_worker_t *w)
{
    atomic_store_explicit(&w->query_soon, true, memory_order_relaxed);
}

#endif
