/* worker_spec.h - a worker as the admin API is told about it: a JSON object, or the query string of the peers' routes.
 *
 * Owner: the caller owns the spec (bt_worker_spec_fini in both cases) and the pool's name.
 * Life:  one request.
 * Flow:  closed schema: an unknown member is refused with the nearest known one; null means "not said".
 * Cost:  control loop only.
 */
#ifndef BT_ADMIN_WORKERS_WORKER_SPEC_H
#define BT_ADMIN_WORKERS_WORKER_SPEC_H

#include "cluster/worker.h"

typedef struct bt_spec_request {
    bt_worker_spec_t spec;
    char *pool;               /* NULL = the first */
    char *kv_transfer_config; /* as pasted; it is in the spec already. NULL = not said */
} bt_spec_request_t;

void bt_spec_request_fini(bt_spec_request_t *r);
/* 0, or BT_E_INVAL with one line in err. *r is initialised in both cases. */
int bt_spec_from_json(bt_spec_request_t *r, bt_str_t body, char *err, size_t err_size);
int bt_spec_from_query(bt_spec_request_t *r, bt_str_t query, char *err, size_t err_size);

#endif
