/* quota_impl.h - what the files behind quota.h share. Private to core/fleet.
 *
 * Owner: a quota belongs to its shard's lock, a lease to its room's loop.
 * Life:  see quota.h.
 * Flow:  quota.c takes and gives, quota_table.c is what is known of a window and what follows from it, quota_lease.c asks the store.
 * Cost:  see quota.h.
 */
#ifndef BT_FLEET_QUOTA_IMPL_H
#define BT_FLEET_QUOTA_IMPL_H

#include "fleet/quota.h"

#include <pthread.h>
#include <stdatomic.h>

#define BT_QUOTA_SHARDS 16U
#define BT_QUOTA_BUCKETS 256U /* a shard's */
/* A store that was unavailable is asked again after so long, one that said "no more" at most so late. */
#define BT_QUOTA_AGAIN_MS 100U
#define BT_QUOTA_SWEEP_MIN_MS 20U

struct bt_quota {
    struct bt_quota *next;
    uint64_t hash, window_ms;
    int64_t limit, left, used;
    int64_t rest; /* that the store had beside, when it was asked last; of a guess, nothing */
    uint64_t window, end_ms; /* on our clock */
    uint64_t touched_ms, dry_until_ms, unavailable_until_ms;
    bool is_guess, is_unavailable;
    size_t key_n;
    char key[];
};

struct bt_quota_shard {
    pthread_mutex_t lock;
    struct bt_quota *buckets[BT_QUOTA_BUCKETS];
    unsigned count;
};

struct bt_quotas {
    struct bt_quota_shard shards[BT_QUOTA_SHARDS];
    char *space;
    _Atomic unsigned replicas, live;
    _Atomic uint64_t granted, denied, leases, away;
};

struct bt_quota_client {
    bt_quotas_t *quotas;
    bt_store_client_t *client;
    bt_loop_t *loop;
    bt_list_t leases[BT_QUOTA_SHARDS]; /* under way, by shard */
    bt_list_t gifts;
    bt_timer_t sweep;
    uint64_t sweep_ms; /* when it rings */
};

/* One operation of the store: takes a chunk, or gives the rest of one back. */
struct bt_quota_lease {
    bt_list_t link, waiting;
    bt_quota_client_t *room;
    bt_store_op_t op;
    uint64_t hash, sent_ms;
    size_t key_n;
    char key[];
};

static inline void bt_quota_count(_Atomic uint64_t *counter)
{
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

/* ---- quota_table.c; all but hash and lock: under the shard's lock ---- */
uint64_t bt_quota_hash(bt_str_t key, uint64_t window_ms);
struct bt_quota_shard *bt_quota_lock(bt_quotas_t *quotas, uint64_t hash);
struct bt_quota **bt_quota_place(struct bt_quota_shard *shard, uint64_t hash, bt_str_t key,
                                 uint64_t window_ms);
/* Its window may have ended meanwhile. */
void bt_quota_roll(struct bt_quota *q, uint64_t now_ms);
void bt_quota_begin(struct bt_quota *q, uint64_t window, uint64_t end_ms);
/* Made where it is not there. BT_E_LIMIT, BT_E_NOMEM. */
int bt_quota_find(bt_quotas_t *quotas, struct bt_quota_shard *shard, const bt_quota_take_t *take,
                  uint64_t hash, uint64_t now_ms, struct bt_quota **q_p);
int64_t bt_quota_chunk(const bt_quotas_t *quotas, const struct bt_quota *q);
/* True: take is answered. */
bool bt_quota_decide(bt_quotas_t *quotas, struct bt_quota *q, bt_quota_take_t *take,
                     uint64_t now_ms);
/* Is a lease due that nobody waits for? */
bool bt_quota_is_due(const bt_quotas_t *quotas, struct bt_quota *q, uint64_t now_ms);
/* What to lease for takes of so much in all. */
int64_t bt_quota_wanted(const bt_quotas_t *quotas, const struct bt_quota *q, int64_t waiting);
/* Nothing granted for so long: the rest of the chunk goes back. */
uint64_t bt_quota_idle_ms(const struct bt_quota *q);

/* ---- quota_lease.c ---- */
/* Starts a lease, or joins the one under way. NULL: out of memory. */
struct bt_quota_lease *bt_quota_lease(bt_quota_client_t *room, const bt_quota_take_t *take,
                                      uint64_t hash, int64_t amount);
void bt_quota_end_all(bt_list_t *leases);
/* Looks at all quotas at at_ms, or before. */
void bt_quota_start_sweep(bt_quota_client_t *room, uint64_t at_ms, uint64_t now_ms);
void bt_quota_on_sweep(bt_timer_t *timer);

#endif
