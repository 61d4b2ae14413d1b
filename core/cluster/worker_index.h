/* worker_index.h - workers by place or by name, for the time of one change of the set.
 *
 * Owner: who makes it; the workers are borrowed.
 * Life:  init with their number -> put, find -> fini.
 * Flow:  a put never replaces: it answers who is there already.
 * Cost:  O(1) a call, one allocation.
 */
#ifndef BT_CLUSTER_WORKER_INDEX_H
#define BT_CLUSTER_WORKER_INDEX_H

#include "cluster/workers.h"

typedef struct bt_worker_index {
    bt_worker_t **cells;
    uint32_t mask;
} bt_worker_index_t;

int bt_worker_index_init(bt_worker_index_t *x, unsigned count); /* of at most count workers */
void bt_worker_index_fini(bt_worker_index_t *x);                /* all zeros is fine */
/* Where workers are: host (any case), port, path and rank. NULL: it is in now; else who stands there. */
bt_worker_t *bt_worker_index_put_place(bt_worker_index_t *x, bt_worker_t *w);
bt_worker_t *bt_worker_index_find_place(const bt_worker_index_t *x, const bt_worker_t *place);
/* Where a description says that it is. < 0: that cannot be read, and why says so. */
int bt_worker_index_find_spec(const bt_worker_index_t *x, const bt_worker_spec_t *spec,
                              bt_worker_t **found_p, char *why, size_t why_size);
/* What they are called; an index has places or names, not both. */
bt_worker_t *bt_worker_index_put_name(bt_worker_index_t *x, bt_worker_t *w);
bt_worker_t *bt_worker_index_find_name(const bt_worker_index_t *x, const char *name);
/* Every place of a set at once, and room for more. BT_E_NOMEM */
int bt_worker_index_places(bt_worker_index_t *x, bt_worker_t *const *items, unsigned count,
                           unsigned room);
int bt_worker_index_names(bt_worker_index_t *x, const bt_workers_t *f); /* every name */
bool bt_worker_same_place(const bt_worker_t *a, const bt_worker_t *b);

#endif
