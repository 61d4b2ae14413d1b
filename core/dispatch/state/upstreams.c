/* upstreams.c - one loop's connections to workers, a pool of them in each worker's slot. */
#include "dispatch/state/dispatch_state.h"

bt_upstream_t *bt_dispatcher_upstream(bt_dispatcher_t *d, bt_worker_t *w)
{
    unsigned version = atomic_load_explicit(&w->addr_version, memory_order_acquire);
    struct bt_upstream_slot *slot;
    struct sockaddr_storage addr;

    if (w->slot >= d->upstream_count || !atomic_load_explicit(&w->has_addr, memory_order_acquire))
        return NULL;
    slot = &d->upstreams[w->slot];
    if (slot->up != NULL && slot->worker_id == w->id && slot->addr_version == version)
        return slot->up;
    pthread_mutex_lock(&w->lock);
    addr = w->addr;
    pthread_mutex_unlock(&w->lock);
    if (slot->up != NULL && slot->worker_id == w->id) {
        bt_upstream_set_addr(slot->up, (const struct sockaddr *) &addr);
        slot->addr_version = version;
        return slot->up;
    }
    if (slot->up != NULL)
        bt_upstream_free(slot->up); /* the slot's former worker */
    slot->up = NULL;
    bt_upstream_config_t config = d->shared->config.upstream;
    config.tls = w->tls;
    config.tls_name = bt_worker_tls_name(w);
    if (bt_upstream_new(&slot->up, d->loop, (const struct sockaddr *) &addr, &config) < 0)
        return NULL;
    slot->worker_id = w->id;
    slot->addr_version = version;
    return slot->up;
}
