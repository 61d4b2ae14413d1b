/* request_pool.h - which pool a request belongs to. Private to dispatch.
 *
 * Owner: nobody; the request holds the workers that its pool is of.
 * Life:  found at the intake; looked at again until the first attempt.
 * Flow:  the worker that it follows, else what a rule or route has named, else its model -> a pool.
 * Cost:  O(pools).
 */
#ifndef BT_DISPATCH_PLAN_REQUEST_POOL_H
#define BT_DISPATCH_PLAN_REQUEST_POOL_H

#include "dispatch/state/request_state.h"

const bt_worker_pool_t *bt_request_pool(const bt_request_t *r);
bool bt_request_find_pool(bt_request_t *r);
/* To the worker of this id, or at this URL where that is known, and its pool. False: it is not
 * there. */
bool bt_request_pin(bt_request_t *r, uint64_t worker_id, bt_str_t url);
bool bt_request_refresh_pool(bt_request_t *r); /* false: no pool of today serves it */
bool bt_request_set_pool(bt_request_t *r, const char *name);

#endif
