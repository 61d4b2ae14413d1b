/* quota.h - limits in fixed windows that a fleet shares (baton.shared.take), answered from chunks leased ahead of need.
 *
 * Owner: bt_quotas_t is the process's, under locks of its own; a room is one loop's, with the store client that it asks through.
 * Life:  quotas_new -> room_new a loop -> take, give -> room_free, before its client -> quotas_free. A quota is there while its window runs.
 * Flow:  take: from the chunk at once; else the loop leases another one for all that wait here. Low on its mark: leased ahead. Idle: the rest goes back.
 * Cost:  from the chunk: one lock, no allocation. The store is asked about once in limit / (16 x replicas).
 *
 * While the store answers, what is granted in a window is never more than limit: a chunk counts only until the window's end as seen from the moment of asking.
 * Without it each process grants up to limit / replicas (as many as were known last, at least 1) in a window, what it had granted before included; what it grants
 * so is taken from the store as soon as that is back, if the window still runs. Nobody waits longer than one operation's deadline to learn that it is away.
 */
#ifndef BT_FLEET_QUOTA_H
#define BT_FLEET_QUOTA_H

#include "store/store.h"

#define BT_QUOTA_KEY_MAX 512
#define BT_QUOTA_AMOUNT_MAX (INT64_C(1) << 53)

typedef struct bt_quotas bt_quotas_t;
typedef struct bt_quota_client bt_quota_client_t;
typedef struct bt_quota_take bt_quota_take_t;

int bt_quotas_new(bt_quotas_t **quotas_p, const char *space); /* space is copied */
void bt_quotas_free(bt_quotas_t *quotas);                     /* no rooms are left; NULL: nothing */
void bt_quota_set_replicas(bt_quotas_t *quotas, unsigned replicas); /* any thread; 0 counts as 1 */

int bt_quota_client_new(bt_quota_client_t **room_p, bt_quotas_t *quotas, bt_store_client_t *client,
                        bt_loop_t *loop);
void bt_quota_client_free(bt_quota_client_t *room); /* what waits gets no callback; NULL: nothing */

struct bt_quota_take {
    /* the caller's */
    bt_str_t key; /* borrowed until bt_quota_take returns */
    int64_t limit, amount;
    uint64_t window_ms;
    unsigned
        live_max; /* no quota is made where so many are live: BT_E_LIMIT; 0 = as many as there may be */
    void (*cb)(bt_quota_take_t *take);
    void *user;
    /* the answer */
    int rc; /* 0, or BT_E_LIMIT (too many quotas), BT_E_INVAL, BT_E_NOMEM: nothing was decided */
    bool is_granted;
    uint64_t window, retry_ms; /* granted: of which window; else: when that ends */
    /* What can still be granted in the window, as far as is known here, and when that ends. */
    int64_t rest;
    uint64_t reset_ms;
    /* the room's */
    bt_list_t link;
};
/* False: it takes a lease, and nothing has happened yet. */
bool bt_quota_try(bt_quota_client_t *room, bt_quota_take_t *take);
/* 0: answered. 1: cb runs later on this loop. */
int bt_quota_take(bt_quota_client_t *room, bt_quota_take_t *take);
void bt_quota_cancel(bt_quota_take_t *take); /* only after 1; answered already: nothing */

/* Gives back what was granted in `window` (0 = the one that runs); below 0: so much more was used. Any other window's is forgotten, with its window. */
void bt_quota_give(bt_quota_client_t *room, bt_str_t key, uint64_t window_ms, int64_t amount,
                   uint64_t window);
/* So much more was used, whatever the limit says: of take, key, limit, amount and window_ms count. Made where it is not there; the next takes pay. */
void bt_quota_charge(bt_quota_client_t *room, const bt_quota_take_t *take);
/* How many share a limit, as known last. */
unsigned bt_quota_replicas(const bt_quotas_t *quotas);

typedef struct bt_quota_stats { /* of the process; any thread */
    uint64_t granted, denied;   /* takes */
    uint64_t leases, away;      /* operations of the store; takes that were answered without it */
    uint64_t live;              /* quotas now */
} bt_quota_stats_t;
void bt_quota_stats(const bt_quotas_t *quotas, bt_quota_stats_t *stats_p);

#endif
