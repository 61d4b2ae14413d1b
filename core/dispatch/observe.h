/* observe.h - tells policies what became of their plans (observe, in batches) and what time it is (tick).
 *
 * Owner: one dispatcher; its loop.
 * Life:  init -> refresh after every commit -> stop (nothing waits any more) -> fini, before the generations go.
 * Flow:  a request that ends leaves an event a task; a tenth of a second later, or when BT_OBSERVE_MAX are there, the policies
 *        that planned them get them in one call each. tick: once a second, a coroutine that may wait; one at a time a policy.
 * Cost:  nothing where no policy has the hook: no event is kept, no timer runs.
 */
#ifndef BT_DISPATCH_OBSERVE_H
#define BT_DISPATCH_OBSERVE_H

#include "generation/generation.h"
#include "generation/wait.h"

#define BT_OBSERVE_MAX 256
#define BT_OBSERVE_TEXT 64 /* bytes of model, session, tenant that an event keeps, NUL included */

struct bt_dispatcher;
struct bt_observed; /* one event and its texts */
struct bt_ticking;  /* one policy's tick */

typedef struct bt_observer {
    struct bt_dispatcher *d;
    bt_timer_t flush, tick;
    uint64_t generation; /* that the members below are of; 0 = none */
    bool has_observe;
    struct bt_observed *events; /* BT_OBSERVE_MAX, or NULL until they are needed */
    unsigned count;
    struct bt_ticking *ticking; /* one for every policy with a tick */
    unsigned ticking_count;
} bt_observer_t;

void bt_observer_init(bt_observer_t *o, struct bt_dispatcher *d);
void bt_observer_refresh(bt_observer_t *o); /* another generation serves */
void bt_observer_stop(bt_observer_t *o);
void bt_observer_fini(bt_observer_t *o);

#endif
