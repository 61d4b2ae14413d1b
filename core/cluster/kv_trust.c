#include "cluster/kv_trust.h"

#include "base/log.h"

static void lose(bt_worker_t *w)
{
    if (!atomic_exchange(&w->kv_trust.is_lost, true))
        bt_log_warn(
            "cluster",
            "%s: its KV events are not believed any more: %u requests in a row of which its "
            "cache should have had more than half had nothing there. Does it tokenize as "
            "its events say? It is chosen by what it was sent, until they are followed anew",
            w->name, BT_KV_MISSES_MAX);
}

/* Its engine chooses the rank: the cache of another one may have what was predicted. */
static bool has_several_caches(const bt_worker_t *w)
{
    return w->dp_size > 1 && w->spec.dp_rank < 0;
}

void bt_kv_trust_note(bt_worker_t *w, uint64_t predicted, uint64_t prompt, bool is_told,
                      uint64_t cached)
{
    struct bt_kv_trust *t = &w->kv_trust;

    if (is_told && !atomic_load_explicit(&t->is_told, memory_order_relaxed))
        atomic_store_explicit(&t->is_told, true, memory_order_relaxed);
    if (2 * predicted <= prompt || has_several_caches(w) ||
        !atomic_load_explicit(&t->is_told, memory_order_relaxed))
        return;
    if (cached > 0) {
        atomic_store_explicit(&t->misses, 0, memory_order_relaxed);
        return;
    }
    if (atomic_fetch_add_explicit(&t->misses, 1, memory_order_relaxed) + 1 == BT_KV_MISSES_MAX)
        lose(w);
}

void bt_kv_trust_renew(bt_worker_t *w)
{
    atomic_store_explicit(&w->kv_trust.misses, 0, memory_order_relaxed);
    if (atomic_exchange(&w->kv_trust.is_lost, false))
        bt_log_info("cluster", "%s: its KV events are believed again", w->name);
}
