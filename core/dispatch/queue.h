/* queue.h - a line before each pool, for requests above --max-concurrent-requests (--queue-size).
 *
 * Owner: bt_dispatch_shared_t, for all loops; a ticket is in its request's arena.
 * Life:  new -> (enter -> leave)* -> free. A pool's line is made with its first request and stays.
 * Flow:  enter -> runs at once | waits, first come first served over all loops | 429 (full), 408
 *        (--queue-timeout-secs). Who leaves hands its place to the first that waits.
 * Cost:  one lock as a request enters and one as it leaves; nothing where no queue is configured.
 */
#ifndef BT_DISPATCH_QUEUE_H
#define BT_DISPATCH_QUEUE_H

#include "dispatch/request_state.h"

/* limit: requests of a pool that run at once; size: how many wait. NULL: no memory. */
struct bt_queues *bt_queues_new(unsigned limit, unsigned size);
void bt_queues_free(struct bt_queues *q); /* nobody is in it; NULL is fine */

/* For the metrics: each pool that has had a request. cb asks nothing of q. */
typedef void (*bt_queues_cb)(void *user, const char *pool, unsigned running, unsigned waiting);
void bt_queues_each(struct bt_queues *q, bt_queues_cb cb, void *user);

/* A station: the request's pool is known. */
enum bt_progress bt_queue_enter(bt_request_t *r);
/* The request ends, wherever it is. Once. */
void bt_queue_leave(bt_request_t *r);

#endif
