/* kube_options.h - one --workers-kubernetes: which pods, at which API server, and what is true of those that do not say.
 *
 * Owner: whoever holds it; strings are its own (core/config reads and frees them).
 * Life:  as long as the source.
 * Flow:  constant.
 * Cost:  none.
 */
#ifndef BT_DISCOVERY_KUBE_OPTIONS_H
#define BT_DISCOVERY_KUBE_OPTIONS_H

#include "cluster/worker.h"

/* One key of a worker, as text, into its description; '-' for '_' is fine. is_role_p is set where it was that. BT_E_INVAL: there is no such key;
 * BT_E_CONFIG: err says what was expected. */
typedef int (*bt_kube_set_key)(bt_worker_spec_t *spec, bt_str_t key, bt_str_t text, bool *is_role_p,
                               char *err, size_t err_size);

typedef struct bt_kube_options {
    char *namespace; /* "*" = all; NULL = this pod's own */
    char *selector;  /* labels, "a=b,c in (d,e)"; NULL = all pods */
    char
        *api; /* URL without path; NULL = this cluster's, with the service account's token and CA */
    char *token_file, *ca_file;
    char *pool;              /* NULL = the first */
    char *port;              /* numbers or container ports' names */
    char *scheme;            /* http or https; NULL = https for a port of that name, else http */
    bt_worker_spec_t worker; /* of pods that do not say otherwise; no url, no name */
    bool has_role;
    bt_kube_set_key set_key; /* what a pod says by baton/KEY */
} bt_kube_options_t;

#endif
