/* kube.h - the pods of one --workers-kubernetes, followed.
 *
 * Owner: the control loop.
 * Life:  open (nothing is asked yet) -> start -> close, which ends by itself.
 * Flow:  list by pages -> watch from there -> the table of pods -> the sink. A watch that ends is begun again where it was; what it has missed for
 *        too long is listed anew. An API server that is away changes nothing: what is known stays, and it is asked again, ever less often.
 * Cost:  one connection; memory for what is known of the pods and for one object of the answer.
 */
#ifndef BT_DISCOVERY_KUBE_H
#define BT_DISCOVERY_KUBE_H

#include "discovery/kube_table.h"

typedef struct bt_kube bt_kube_t;

typedef struct bt_kube_stats {
    const char *
        label; /* "llm app=vllm": namespace and selector, the API's URL before them where it was given */
    bool is_synced;   /* a whole list has been read */
    bool is_watching; /* and what changes is heard of */
    bt_kube_counts_t counts;
    uint64_t events, lists, watches, failures; /* ever */
} bt_kube_stats_t;

/* options: borrowed until it is closed. BT_E_CONFIG with a line in err. */
int bt_kube_open(bt_kube_t **kube_p, bt_loop_t *loop, const bt_kube_options_t *options,
                 bt_kube_sink sink, void *user, char *err, size_t err_size);
void bt_kube_start(bt_kube_t *k);
void bt_kube_again(bt_kube_t *k); /* kube_table.h */
void bt_kube_close(bt_kube_t *k); /* NULL is fine; the sink is not called any more */
void bt_kube_stats(const bt_kube_t *k, bt_kube_stats_t *stats);
void bt_kube_describe(const bt_kube_t *k, bt_text_t *out); /* one JSON object */

#endif
