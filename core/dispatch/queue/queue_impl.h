/* queue_impl.h - the line of one pool: its places, who waits for one, who is blocked. Private to this folder's queue*.c.
 *
 * Owner: bt_queues_t, one line a pool, made with its first request; a ticket is in its request's arena.
 * Life:  a ticket is made as its request enters, and moved by queue.c under the queues' lock.
 * Flow:  queue.c -> queue_line.c -> mail -> bt_queue_on_called(), on the ticket's loop
 * Cost:  each O(1), but what waits and is blocked: queue.h.
 */
#ifndef BT_DISPATCH_QUEUE_QUEUE_IMPL_H
#define BT_DISPATCH_QUEUE_QUEUE_IMPL_H

#include "dispatch/queue/queue.h"
#include "dispatch/queue/queue_rate.h"
#include "dispatch/queue/tenant_weights.h"

#include <limits.h>

#define BT_QUEUE_NO_WORKER UINT_MAX

enum bt_queue_where { NOWHERE, WAITS, CALLED, PUT_OUT, BLOCKED, RUNS };

struct bt_queue_line {
    struct bt_queue_line *next;
    char *pool;
    bt_fair_queue_t fair;
    bt_list_t blocked;     /* tickets, first come first */
    bt_fair_load_t narrow; /* of them: those that have given their place up */
    unsigned keepers;      /* of them: the others */
    unsigned due;          /* of them: those that shall look again */
    unsigned rooms;        /* legs that have ended for these, and nobody has looked for them yet */
    unsigned retrying;     /* were blocked, are called, and have not looked yet */
    unsigned running, places; /* running: places taken, those handed on included */
    uint64_t look_at_ms;      /* at its places */
    uint64_t workers_seen;    /* epoch and changes then */
    double output_tokens;     /* of an answer, as they are lately */
    bt_queue_rate_t rate;
    struct bt_queue_class_facts stats[BT_FAIR_CLASSES]; /* without what waits now */
    /* Without the lock: */
    _Alignas(64) _Atomic uint64_t leg_ends;
    _Atomic unsigned blocked_count; /* changed with the lock */
};

struct bt_queues {
    pthread_mutex_t lock; /* of all below, and of where in tickets */
    struct bt_queue_line *lines;
    unsigned limit, size;
    uint64_t max_bytes, aging_ms;
    bt_tenant_weights_t weights;
};

struct bt_queue_ticket {
    bt_fair_item_t item;
    bt_list_t blocked;
    bt_mail_t mail;
    bt_timer_t timer;
    bt_request_t *request;
    struct bt_queue_line *line;
    enum bt_queue_where where;
    bool is_narrow, is_due, is_retrying; /* blocked, and then called; counted by its line */
    bool has_room;                       /* called for one of the line's rooms */
    bool looks;                          /* at the workers, while it waits */
    bool is_told_cost;                   /* by the policy: what it has really used is no measure */
    uint64_t since_us, timeout_ms, until_ms;
    uint64_t called;                /* the line's, when it came */
    uint64_t leg_ends;              /* the line's, before it looked for workers */
    struct bt_record_queue *record; /* NULL = it has not come to wait */
};

/* The lock is held in all of these. */
struct bt_queue_line *bt_queue_line_find(struct bt_queues *q,
                                         const char *pool); /* NULL: no memory */
bool bt_queue_line_has_place(const struct bt_queue_line *line);
/* A place has come free, or the line has more of them: whoever is next gets it. Whoever is blocked comes first. */
void bt_queue_line_hand_on(struct bt_queue_line *line);
void bt_queue_line_give_back(struct bt_queue_line *line);
void bt_queue_line_block(struct bt_queue_ticket *t, bool is_narrow);
void bt_queue_line_unblock(struct bt_queue_ticket *t);
/* One more room, for those that may use this worker. */
void bt_queue_line_add_room(struct bt_queue_line *line, const bt_worker_t *worker);
/* It looks again, whoever else does. */
void bt_queue_line_set_due(struct bt_queue_ticket *t);
void bt_queue_line_set_all_due(struct bt_queue_line *line);
/* It has looked, or will not, and has left its room. */
void bt_queue_line_pass_room(struct bt_queue_ticket *t);
/* Until the mail is in its box the other loop cannot end. */
void bt_queue_line_call(struct bt_queue_ticket *t, enum bt_queue_where how);

/* queue_places.c, without the lock: places of r's pool; BT_QUEUE_NO_WORKER: nobody is usable. */
unsigned bt_queue_places(const struct bt_queues *q, bt_request_t *r);
unsigned bt_queue_places_after_probe(const struct bt_queues *q, bt_request_t *r);
bool bt_queue_pool_has_room(bt_request_t *r);

/* queue.c: the mail has come. */
void bt_queue_on_called(bt_loop_t *loop, bt_mail_t *envelope);

#endif
