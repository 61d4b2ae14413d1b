/* fair_queue.h - who of those that wait is next: classes by priority, and in each of them fair shares between tenants by token cost.
 *
 * Owner: one line of queue.c, under its lock; no lock, clock or allocation of items in here. Items are their owners'; a flow (a tenant's
 *        in one class) is the queue's, and lives while one of its items waits.
 * Life:  init -> (push -> pop | remove)* -> fini, when it is empty.
 * Flow:  the highest class that has somebody is served; a lower one whose oldest has waited for aging_ms gets one token of five. In a class it
 *        is deficit round robin (Shreedhar and Varghese 1996): each round gives a flow tokens by its weight.
 * Cost:  push, pop, victim and ahead: O(flows of a class); remove: O(1). A flow is allocated when its first item waits.
 */
#ifndef BT_DISPATCH_QUEUE_FAIR_QUEUE_H
#define BT_DISPATCH_QUEUE_FAIR_QUEUE_H

#include "base/list.h"
#include "base/str.h"

enum bt_fair_class { BT_FAIR_HIGH, BT_FAIR_NORMAL, BT_FAIR_LOW, BT_FAIR_CLASSES };
const char *bt_fair_class_name(enum bt_fair_class klass);
/* False: there is none of this name. */
bool bt_fair_class_of(bt_str_t name, enum bt_fair_class *klass_p);

#define BT_FAIR_NAME_MAX 64
#define BT_FAIR_WEIGHT_MAX 1000
#define BT_FAIR_COST_MAX 1000000000

struct bt_fair_flow;

/* What its owner says of a request, and from push on where it stands. */
typedef struct bt_fair_item {
    enum bt_fair_class klass;
    bt_str_t key;    /* whose share it is: by all of its bytes; borrowed while it waits */
    unsigned weight; /* 1 to BT_FAIR_WEIGHT_MAX; a flow has that of its last item */
    uint64_t cost;   /* tokens, 1 to BT_FAIR_COST_MAX */
    uint64_t bytes;
    uint64_t since_ms;
    struct bt_fair_flow *flow; /* NULL = it does not wait */
    bt_list_t link, by_age;    /* in its flow and in its class, the oldest first */
} bt_fair_item_t;

typedef struct bt_fair_load {
    unsigned count;
    uint64_t cost, bytes;
} bt_fair_load_t;

struct bt_fair_row {
    bt_list_t flows; /* the one whose turn it is first */
    bt_list_t by_age;
    unsigned flow_count;
    int64_t debt; /* tokens that it has had out of turn; below 0: somewhat more was paid back */
    bt_fair_load_t load;
};

typedef struct bt_fair_queue {
    struct bt_fair_row rows[BT_FAIR_CLASSES];
    bt_fair_load_t load; /* of all */
    unsigned max_count;
    uint64_t max_bytes; /* 0 = no limit */
    uint64_t aging_ms;  /* 0 = strict priorities */
    bt_list_t spare;    /* flows to be used again */
} bt_fair_queue_t;

void bt_fair_queue_init(bt_fair_queue_t *q, unsigned max_count, uint64_t max_bytes,
                        uint64_t aging_ms);
void bt_fair_queue_fini(bt_fair_queue_t *q); /* it is empty */

/* Would it be within the limits, with this one? */
bool bt_fair_queue_fits(const bt_fair_queue_t *q, const bt_fair_item_t *item);
/* 0, or BT_E_NOMEM. It fits. */
int bt_fair_queue_push(bt_fair_queue_t *q, bt_fair_item_t *item, uint64_t now_ms);
void bt_fair_queue_remove(bt_fair_queue_t *q, bt_fair_item_t *item); /* not there: nothing */
/* Out for now, and then put back, the last one first, or let go. In between nobody is popped or charged, and link is the caller's. */
void bt_fair_queue_lift(bt_fair_queue_t *q, bt_fair_item_t *item);
void bt_fair_queue_put_back(bt_fair_queue_t *q, bt_fair_item_t *item);
void bt_fair_queue_let_go(bt_fair_queue_t *q, bt_fair_item_t *item);
/* Who is next, and is in the queue no longer; NULL: nobody waits. */
bt_fair_item_t *bt_fair_queue_pop(bt_fair_queue_t *q, uint64_t now_ms);
/* Whom a newcomer that does not fit may put out: the youngest of whoever holds most of the queue for its weight, in the lowest class below,
 * else in the newcomer's own class, if that would still hold less. NULL: nobody. */
bt_fair_item_t *bt_fair_queue_victim(const bt_fair_queue_t *q, const bt_fair_item_t *newcomer);
/* What was served has used so many tokens more than its cost said: its flow, if others of it still wait, owes them. Less is not given back:
 * a flow with a credit would be served again and again, until others have long waited. */
void bt_fair_queue_charge(bt_fair_queue_t *q, const bt_fair_item_t *served, uint64_t more);

/* A flow that is served before an item, by name, with what of it is. */
typedef struct bt_fair_before {
    char key[BT_FAIR_NAME_MAX + 1]; /* cut */
    uint64_t cost;
} bt_fair_before_t;
#define BT_FAIR_BEFORE_MAX 3
typedef struct bt_fair_ahead {
    uint64_t cost;  /* what will be served before it, if nobody comes or goes */
    unsigned count; /* who waits in its class and above: more than stand before it */
    unsigned before_count;
    bt_fair_before_t before[BT_FAIR_BEFORE_MAX]; /* the most of it, by flow */
} bt_fair_ahead_t;
/* Of the one that its flow has got last. */
void bt_fair_queue_ahead(const bt_fair_queue_t *q, const bt_fair_item_t *item,
                         bt_fair_ahead_t *ahead_p);

#endif
