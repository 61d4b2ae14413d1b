/* budget_impl.h - connections that share a limit, and the idle ones among them by loop. Private to core/http (budget*.c).
 *
 * Owner: the budget; a peer's group is that peer's.
 * Life:  as its owner.
 * Flow:  each loop keeps its idle ones in a list of its own, the oldest first, and publishes how many there are and since when
 *        the first is idle. Who needs one closed compares these figures, claims one of the oldest loop's and writes to it.
 * Cost:  O(1) to add and to remove; O(loops) to look for the oldest.
 */
#ifndef BT_HTTP_BUDGET_IMPL_H
#define BT_HTTP_BUDGET_IMPL_H

#include "http/budget.h"

enum bt_group_kind { BT_GROUP_CLIENTS, BT_GROUP_REFUSED, BT_GROUP_WORKERS, BT_GROUP_PEER };

/* One loop's idle ones. The list is the loop's; others look at the figures only. */
struct bt_idle_set {
    bt_list_t idle; /* oldest first */
    _Atomic unsigned count;
    _Atomic unsigned claimed; /* of these, by mail that is on its way */
    _Atomic uint64_t oldest_ms;
} __attribute__((aligned(64)));

struct bt_group {
    enum bt_group_kind kind;
    unsigned set_count;
    struct bt_idle_set *sets; /* by slot of the loop */
    _Atomic unsigned open;    /* connections */
    _Atomic unsigned owed;    /* let in for one that was to be closed, but was not idle any more */
};

/* Memory for the sets of one group; NULL: none. */
struct bt_idle_set *bt_idle_sets_new(unsigned count);
void bt_group_init(struct bt_group *g, enum bt_group_kind kind, struct bt_idle_set *sets,
                   unsigned set_count);
void bt_group_add_idle(struct bt_group *g, int slot, bt_idle_t *idle, uint64_t now_ms);
void bt_group_remove_idle(struct bt_group *g, int slot, bt_idle_t *idle); /* idempotent */
/* The loop whose first one is idle for the longest, `but` left out (-1: none is); -1: none is idle. */
int bt_group_oldest(const struct bt_group *g, int but);
/* Claims one of another loop's; false: all are claimed. */
bool bt_group_claim(struct bt_group *g, int slot);
void bt_group_unclaim(struct bt_group *g, int slot);
void bt_group_owe(struct bt_group *g);
/* True: one was owed, and is paid by the connection that ends now. */
bool bt_group_pay(struct bt_group *g);

/* ---- peers (budget_peer.c) ---- */

/* All connections of one address. */
struct bt_peer {
    struct bt_peer *next; /* in its chain */
    uint64_t key[2];
    unsigned refs; /* connections and mail; under the table's lock */
    struct bt_group group;
};

typedef struct bt_peers bt_peers_t;

bt_peers_t *bt_peers_new(unsigned set_count); /* NULL: no memory */
void bt_peers_free(bt_peers_t *t);            /* NULL is fine */
/* The peer of this socket, counted (group.open) and referenced. NULL: not an address, or no memory. */
struct bt_peer *bt_peers_enter(bt_peers_t *t, const struct sockaddr_storage *from,
                               unsigned *open_p);
void bt_peers_leave(bt_peers_t *t, struct bt_peer *peer);
void bt_peers_ref(bt_peers_t *t, struct bt_peer *peer);
void bt_peers_unref(bt_peers_t *t, struct bt_peer *peer);

#endif
