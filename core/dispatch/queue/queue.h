/* queue.h - a line before each pool, for requests above its places (--queue-size).
 *
 * Owner: bt_dispatch_shared_t, for all loops; a ticket is in its request's arena.
 * Life:  new -> (enter -> leave)* -> free. A pool's line is made with its first request and stays.
 * Flow:  enter -> runs at once | waits, by class, tenant and cost (fair_queue.h) over all loops | 429 (full, or the wait would be too
 *        long), 408 (--queue-timeout-secs). Who leaves hands its place to the next. Places are --max-concurrent-requests, and never more
 *        than decodes and hybrids have legs (--engine-request-limit): who has a place has a decode slot before its prefill is spent.
 * Cost:  one lock as a request enters and one as it leaves; nothing where no queue is configured.
 */
#ifndef BT_DISPATCH_QUEUE_QUEUE_H
#define BT_DISPATCH_QUEUE_QUEUE_H

#include "dispatch/queue/queue_join.h"
#include "dispatch/state/request_state.h"

/* Of config: queue_* and max_concurrent; its weights are borrowed. NULL: no memory. */
struct bt_queues *bt_queues_new(const bt_dispatch_config_t *config);
void bt_queues_free(struct bt_queues *q); /* nobody is in it; NULL is fine */

/* For the metrics: each pool that has had a request. cb asks nothing of q; facts are borrowed. */
typedef struct bt_queue_facts {
    const char *pool;
    unsigned running, places; /* places: 0 = no limit */
    unsigned blocked;         /* called, but no worker that it may use has room */
    double tokens_per_second; /* of those called lately; 0 = not known */
    bt_fair_load_t waiting;
    struct bt_queue_class_facts {
        bt_fair_load_t waiting;
        unsigned tenants;
        uint64_t ends[BT_QUEUE_ENDS];
        uint64_t called_tokens, waited_us;
    } classes[BT_FAIR_CLASSES];
} bt_queue_facts_t;
typedef void (*bt_queues_cb)(void *user, const bt_queue_facts_t *facts);
void bt_queues_each(struct bt_queues *q, bt_queues_cb cb, void *user);

/* How it stood in line for a place in its pool. */
struct bt_record_queue {
    const char *klass;
    bt_str_t key;
    unsigned weight;
    uint64_t cost;
    bt_fair_ahead_t ahead; /* as it came */
    bool has_prediction;
    uint64_t predicted_ms;
    uint64_t passed; /* so many were called while it waited */
    const char *end; /* what became of it; NULL = it waits */
};

/* A station: the request's pool is known. */
enum bt_progress bt_queue_enter(bt_request_t *r);
/* It has a place, but no worker below --engine-request-limit is there for it (BT_E_AGAIN): it plans again when one has room, and has given its
 * place up until then if others find room. Or it has waited, and no worker is usable any more (BT_E_NO_WORKER): it plans again when one is.
 * False: rc means neither, or it has no place to keep. */
bool bt_queue_block(bt_request_t *r, int rc);
/* The request ends, wherever it is. Once. */
void bt_queue_leave(bt_request_t *r);
/* A leg has given its worker's place back. */
void bt_queue_note_room(const bt_request_t *r, const bt_worker_t *worker);

#endif
