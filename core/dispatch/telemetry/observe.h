/* observe.h - tells policies what became of their plans (observe, in batches) and what time it is
 * (tick). Private to dispatch.
 *
 * Owner: one dispatcher; its loop.
 * Life:  new -> refresh after every commit -> stop (nothing waits any more) -> free, before the
 *        generations go.
 * Flow:  a request that ends leaves an event a task; a tenth of a second later, or when OBSERVE_MAX
 *        are there, the policies that planned them get them in one call each. tick: once a second,
 *        a coroutine that may wait; one at a time a policy.
 * Cost:  nothing where no policy has the hook: no event is kept, no timer runs.
 */
#ifndef BT_DISPATCH_TELEMETRY_OBSERVE_H
#define BT_DISPATCH_TELEMETRY_OBSERVE_H

#include "dispatch/state/request_state.h"

struct bt_observer *bt_observer_new(bt_dispatcher_t *d); /* or NULL */
void bt_observer_refresh(struct bt_observer *o);         /* another generation serves */
void bt_observer_stop(struct bt_observer *o);
void bt_observer_free(struct bt_observer *o);
/* It has ended, after us. */
void bt_observe_request(bt_request_t *r, uint64_t us);

#endif
