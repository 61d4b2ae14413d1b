/* kube_pod.h - one pod, as the API server describes it, as workers; or why it is none.
 *
 * Owner: pure; the caller's storage.
 * Life:  read -> fini.
 * Flow:  a pod's JSON -> its state and, when it is ready, a worker for each of its ports.
 * Cost:  O(object); called once an event.
 */
#ifndef BT_DISCOVERY_KUBE_POD_H
#define BT_DISCOVERY_KUBE_POD_H

#include "discovery/kube_options.h"

#define BT_KUBE_PORTS_MAX 8
#define BT_KUBE_NAME_MAX 253
#define BT_KUBE_WHY_BYTES 256

enum bt_kube_state {
    BT_KUBE_READY,       /* its workers serve */
    BT_KUBE_NOT_READY,   /* it has no address yet, or its Ready condition is not True */
    BT_KUBE_TERMINATING, /* deletionTimestamp: its workers drain */
    BT_KUBE_ENDED,       /* its containers have ended for good */
    BT_KUBE_REFUSED,     /* it can be no worker as it is described */
    BT_KUBE_STATES
};
const char *bt_kube_state_name(enum bt_kube_state state);

typedef struct bt_kube_pod {
    char namespace[BT_KUBE_NAME_MAX + 1], name[BT_KUBE_NAME_MAX + 1];
    enum bt_kube_state state;
    uint64_t life;               /* another one where its engine is another process */
    char why[BT_KUBE_WHY_BYTES]; /* REFUSED */
    bt_worker_spec_t workers[BT_KUBE_PORTS_MAX]; /* READY */
    unsigned worker_count;
} bt_kube_pod_t;

/* BT_E_JSON: this is no pod. */
int bt_kube_pod_read(bt_kube_pod_t *pod, const bt_kube_options_t *source, bt_str_t object);
void bt_kube_pod_fini(bt_kube_pod_t *pod);

#endif
