/* kv_transfer_config.h - what an engine's --kv-transfer-config says of its worker, as it is pasted into a configuration or the
 * admin API.
 *
 * Owner: pure; the spec is the caller's.
 * Life:  one worker's description, after its other members.
 * Flow:  JSON text -> connector, children of a MultiConnector, role, engine id of the spec.
 * Cost:  O(text).
 */
#ifndef BT_CLUSTER_KV_TRANSFER_CONFIG_H
#define BT_CLUSTER_KV_TRANSFER_CONFIG_H

#include "cluster/worker.h"

/* Only the members that tell how KV moves are read. has_role: the worker's role is said beside it, and must fit. 0, BT_E_NOMEM,
 * or BT_E_CONFIG with one line in err, without the place. */
int bt_kv_transfer_config_take(bt_worker_spec_t *spec, bt_str_t json, bool has_role, char *err,
                               size_t err_size);

#endif
