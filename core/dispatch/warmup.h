/* warmup.h - requests of the gateway's own that make the two engines of a pair known to each other,
 * before clients pay for it (--warm-pairs).
 *
 * Owner: the dispatcher of the first loop.
 * Life:  new -> a look at the pairs every 100 ms -> stop -> free; none starts while the gateway drains.
 * Flow:  cold pair -> an exchange over a socket pair -> request.c, as a client's -> cluster/warm.
 * Cost:  nothing while all pairs are warm and no worker changes; else at most 4,096 pairs a look.
 */
#ifndef BT_DISPATCH_WARMUP_H
#define BT_DISPATCH_WARMUP_H

#include "dispatch/state/dispatch_state.h"

int bt_warmups_new(bt_dispatcher_t *d);
/* No other one begins; those whose bytes have not been read go. All requests have ended. NULL is fine. */
void bt_warmups_stop(struct bt_warmups *all);
void bt_warmups_free(struct bt_warmups *all); /* NULL is fine */

#endif
