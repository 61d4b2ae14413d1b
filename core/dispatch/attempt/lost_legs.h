/* lost_legs.h - a worker is lost: what waits on it here ends. Private to dispatch.
 *
 * Owner: the dispatcher.
 * Life:  as the dispatcher's.
 * Flow:  bt_dispatch_shared_worker_lost -> every loop -> its legs, a moment later.
 * Cost:  nothing while no worker is lost.
 */
#ifndef BT_DISPATCH_ATTEMPT_LOST_LEGS_H
#define BT_DISPATCH_ATTEMPT_LOST_LEGS_H

#include "dispatch/state/dispatch_state.h"

void bt_lost_legs_init(bt_dispatcher_t *d);
void bt_lost_legs_fini(bt_dispatcher_t *d);
/* From any thread: some worker has been found lost. */
void bt_lost_legs_post(bt_dispatcher_t *d);

#endif
