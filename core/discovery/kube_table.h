/* kube_table.h - the pods that one source knows, the places where their workers stand, and which of these have changed.
 *
 * Owner: the control loop.
 * Life:  new -> take, drop -> free; the registry keeps what it was given.
 * Flow:  a pod's new description -> its places change -> some together go to the sink a moment later. A place is its address: another pod
 *        that gets it takes it over, and then the first one's end changes nothing.
 * Cost:  O(1) a pod; at most BT_KUBE_BATCH places in one turn of the loop.
 */
#ifndef BT_DISCOVERY_KUBE_TABLE_H
#define BT_DISCOVERY_KUBE_TABLE_H

#include "base/text.h"
#include "cluster/workers.h"
#include "discovery/kube_pod.h"
#include "loop/loop.h"

#define BT_KUBE_BATCH 32
#define BT_KUBE_PODS_MAX 16384

/* Gives changes to the registry; whose specs it may not keep. rc and why of each are set. BT_E_NOMEM: they come again. */
typedef int (*bt_kube_sink)(void *user, bt_found_change_t *changes, unsigned count);

typedef struct bt_kube_table bt_kube_table_t;
typedef struct bt_kube_counts {
    unsigned pods,
        by_state[BT_KUBE_STATES]; /* one whose worker was refused by the sink is REFUSED */
} bt_kube_counts_t;

/* label: of log lines; pool: NULL = the first; both are borrowed. */
int bt_kube_table_new(bt_kube_table_t **table_p, bt_loop_t *loop, const char *label,
                      const char *pool, bt_kube_sink sink, void *user);
void bt_kube_table_free(bt_kube_table_t *t); /* NULL is fine */
/* Takes the workers out of pod. BT_E_NOMEM, BT_E_LIMIT: there are too many pods. */
int bt_kube_table_take(bt_kube_table_t *t, bt_kube_pod_t *pod);
void bt_kube_table_drop(bt_kube_table_t *t, const bt_kube_pod_t *pod);
/* What is not taken between these two is no more. */
void bt_kube_table_begin_list(bt_kube_table_t *t);
void bt_kube_table_end_list(bt_kube_table_t *t);
/* The sink judges by another configuration now: it gets all again. */
void bt_kube_table_again(bt_kube_table_t *t);
void bt_kube_table_count(const bt_kube_table_t *t, bt_kube_counts_t *counts);
/* ,"pods":{...},"refused":[...]: the first of those that are no worker, with the reason. */
void bt_kube_table_describe(const bt_kube_table_t *t, bt_text_t *out);

#endif
