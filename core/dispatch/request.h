/* request.h - one client's request, from its first station to its end. Private to dispatch.
 *
 * Owner: its dispatcher's loop.
 * Life:  new -> start -> its stations -> answered, or the client is gone -> frees itself.
 * Flow:  request.c:step() walks it through its stations, which return what they came to.
 * Cost:  see request_state.h.
 */
#ifndef BT_DISPATCH_REQUEST_H
#define BT_DISPATCH_REQUEST_H

#include "dispatch/state/request_state.h"

/* Or NULL. */
bt_request_t *bt_request_new(bt_dispatcher_t *d, bt_exchange_t *x, enum bt_route route);
/* Its body has been read: from its first station on. */
void bt_request_start(bt_request_t *r);
/* receive.c: reads its body, which has come, and starts it. */
void bt_request_read_body(bt_request_t *r);
/* Finished: stop what still drains. */
void bt_request_cut(bt_request_t *r);

#endif
