/* draft.h - the next set of workers while it is filled and checked, and the registry's inside for those who fill it.
 *
 * Owner: the verb of the registry that makes it; it holds references to its workers.
 * Life:  init -> a pool each, workers put -> bt_registry_publish or fini.
 * Flow:  old workers are kept, new ones put; check gives names and refuses what cannot be.
 * Cost:  O(n) of all workers.
 */
#ifndef BT_CLUSTER_DRAFT_H
#define BT_CLUSTER_DRAFT_H

#include "cluster/workers.h"

struct bt_slots;
struct bt_registry {
    bt_breaker_config_t breaker;
    bt_registry_publish_cb publish;
    void *user;
    bt_workers_t *current;
    struct bt_slots *slots;
    unsigned slot_high; /* highest slot ever given + 1 */
    uint64_t next_id;
};

typedef struct draft {
    bt_pool_spec_t *pools; /* shallow: strings are borrowed */
    bt_pool_stat_t **stats;
    bt_worker_t ***workers; /* references */
    unsigned **sources;     /* who names each */
    unsigned *counts;
    unsigned pool_count;
    bool is_sound;  /* nobody in it can have the place or the name of another */
    bool *is_taken; /* by slot: an old worker that the draft keeps, or that another one replaces */
} bt_draft_t;

int bt_draft_init(bt_draft_t *d, unsigned pool_count, unsigned slot_high);
void bt_draft_fini(bt_draft_t *d);
/* Room for count workers; the pool's running averages go on. */
int bt_draft_pool(bt_draft_t *d, unsigned i, const bt_pool_spec_t *spec,
                  const bt_worker_pool_t *old, unsigned count);
void bt_draft_put(bt_draft_t *d, unsigned pool, bt_worker_t *w, unsigned sources); /* takes w */
void bt_draft_keep(bt_draft_t *d, unsigned pool, bt_worker_t *w, unsigned sources);
void bt_draft_set_sources(const bt_draft_t *d);
int bt_draft_check(const bt_draft_t *d, char *err, size_t err_size);

/* ---- registry.c ---- */

const bt_worker_pool_t *bt_registry_find_pool(const bt_workers_t *f, const char *name);
int bt_registry_make_worker(bt_registry_t *r, const bt_worker_spec_t *spec, bt_worker_t **worker_p,
                            char *err, size_t err_size);
/* Ends the draft in both cases. */
int bt_registry_publish(bt_registry_t *r, bt_draft_t *d, char *err, size_t err_size);

#endif
