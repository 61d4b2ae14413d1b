/* quota.c - how it works: see quota_table.c for what is decided, quota_lease.c for what is asked of the store.
 *
 *      take -> decided under the lock -> answered
 *                                     -> waits for the lease of its loop, with all others that do
 */
#include "fleet/quota_impl.h"

#include "base/err.h"

#include <stdlib.h>

/* ---- taking and giving ---- */

static bool is_sane(const bt_quota_take_t *take)
{
    return take->key.n > 0 && take->key.n <= BT_QUOTA_KEY_MAX && take->window_ms > 0 &&
           take->limit >= 0 && take->limit <= BT_QUOTA_AMOUNT_MAX && take->amount > 0 &&
           take->amount <= BT_QUOTA_AMOUNT_MAX;
}

/* True: take is answered. *amount_p: the lease to ask for now, 0 = none. */
static bool look(bt_quota_client_t *room, bt_quota_take_t *take, uint64_t hash, int64_t *amount_p)
{
    bt_quotas_t *quotas = room->quotas;
    const uint64_t now_ms = bt_clock_ms();
    bool is_decided = true;
    struct bt_quota *q;

    *amount_p = 0;
    bt_list_init(&take->link);
    take->rc = is_sane(take) ? 0 : BT_E_INVAL;
    if (take->rc != 0)
        return true;
    struct bt_quota_shard *shard = bt_quota_lock(quotas, hash);
    take->rc = bt_quota_find(quotas, shard, take, hash, now_ms, &q);
    if (take->rc == 0) {
        is_decided = bt_quota_decide(quotas, q, take, now_ms);
        if (!is_decided || bt_quota_is_due(quotas, q, now_ms))
            *amount_p = bt_quota_wanted(quotas, q, is_decided ? 0 : take->amount);
        bt_quota_start_sweep(room, now_ms + bt_quota_idle_ms(q), now_ms);
    }
    pthread_mutex_unlock(&shard->lock);
    return is_decided;
}

bool bt_quota_try(bt_quota_client_t *room, bt_quota_take_t *take)
{
    const uint64_t hash = bt_quota_hash(take->key, take->window_ms);
    int64_t amount;

    if (!look(room, take, hash, &amount))
        return false;
    if (amount > 0)
        (void) bt_quota_lease(room, take, hash, amount); /* ahead */
    return true;
}

int bt_quota_take(bt_quota_client_t *room, bt_quota_take_t *take)
{
    const uint64_t hash = bt_quota_hash(take->key, take->window_ms);
    int64_t amount;
    const bool is_decided = look(room, take, hash, &amount);
    struct bt_quota_lease *lease = amount > 0 ? bt_quota_lease(room, take, hash, amount) : NULL;

    if (is_decided)
        return 0;
    if (lease == NULL) {
        take->rc = BT_E_NOMEM;
        return 0;
    }
    bt_list_push(&lease->waiting, &take->link);
    return 1;
}

void bt_quota_cancel(bt_quota_take_t *take)
{
    bt_list_remove(&take->link);
}

void bt_quota_give(bt_quota_client_t *room, bt_str_t key, uint64_t window_ms, int64_t amount,
                   uint64_t window)
{
    const uint64_t hash = bt_quota_hash(key, window_ms), now_ms = bt_clock_ms();
    struct bt_quota_shard *shard = bt_quota_lock(room->quotas, hash);
    struct bt_quota *q = *bt_quota_place(shard, hash, key, window_ms);

    if (q != NULL) {
        bt_quota_roll(q, now_ms);
        if (window == 0 || window == q->window) {
            /* No more than was granted here: a refund makes no quota. */
            const int64_t back = amount < q->used ? amount : q->used;
            q->left += back;
            q->used -= back;
            bt_quota_start_sweep(room, now_ms + BT_QUOTA_AGAIN_MS, now_ms);
        }
    }
    pthread_mutex_unlock(&shard->lock);
}

void bt_quota_charge(bt_quota_client_t *room, const bt_quota_take_t *take)
{
    const uint64_t hash = bt_quota_hash(take->key, take->window_ms), now_ms = bt_clock_ms();
    struct bt_quota_shard *shard;
    struct bt_quota *q;

    if (!is_sane(take))
        return;
    shard = bt_quota_lock(room->quotas, hash);
    if (bt_quota_find(room->quotas, shard, take, hash, now_ms, &q) == 0) {
        q->left -= take->amount;
        q->used += take->amount;
        q->touched_ms = now_ms;
        bt_quota_start_sweep(room, now_ms + BT_QUOTA_AGAIN_MS, now_ms);
    }
    pthread_mutex_unlock(&shard->lock);
}

unsigned bt_quota_replicas(const bt_quotas_t *quotas)
{
    return atomic_load_explicit(&quotas->replicas, memory_order_relaxed);
}

/* ---- life ---- */

void bt_quota_set_replicas(bt_quotas_t *quotas, unsigned replicas)
{
    atomic_store_explicit(&quotas->replicas, replicas > 0 ? replicas : 1, memory_order_relaxed);
}

int bt_quotas_new(bt_quotas_t **quotas_p, const char *space)
{
    bt_quotas_t *quotas = calloc(1, sizeof(*quotas));

    if (quotas == NULL)
        return BT_E_NOMEM;
    quotas->space = bt_str_dup(bt_str(space));
    if (quotas->space == NULL) {
        free(quotas);
        return BT_E_NOMEM;
    }
    for (unsigned i = 0; i < BT_QUOTA_SHARDS; i++)
        pthread_mutex_init(&quotas->shards[i].lock, NULL);
    atomic_init(&quotas->replicas, 1);
    *quotas_p = quotas;
    return 0;
}

void bt_quotas_free(bt_quotas_t *quotas)
{
    if (quotas == NULL)
        return;
    for (unsigned i = 0; i < BT_QUOTA_SHARDS; i++) {
        for (unsigned b = 0; b < BT_QUOTA_BUCKETS; b++)
            for (struct bt_quota *q = quotas->shards[i].buckets[b], *next; q != NULL; q = next) {
                next = q->next;
                free(q);
            }
        pthread_mutex_destroy(&quotas->shards[i].lock);
    }
    free(quotas->space);
    free(quotas);
}

int bt_quota_client_new(bt_quota_client_t **room_p, bt_quotas_t *quotas, bt_store_client_t *client,
                        bt_loop_t *loop)
{
    bt_quota_client_t *room = calloc(1, sizeof(*room));

    if (room == NULL)
        return BT_E_NOMEM;
    room->quotas = quotas;
    room->client = client;
    room->loop = loop;
    for (unsigned i = 0; i < BT_QUOTA_SHARDS; i++)
        bt_list_init(&room->leases[i]);
    bt_list_init(&room->gifts);
    bt_timer_init(loop, &room->sweep, bt_quota_on_sweep);
    *room_p = room;
    return 0;
}

void bt_quota_client_free(bt_quota_client_t *room)
{
    if (room == NULL)
        return;
    bt_timer_stop(&room->sweep);
    for (unsigned i = 0; i < BT_QUOTA_SHARDS; i++)
        bt_quota_end_all(&room->leases[i]);
    bt_quota_end_all(&room->gifts);
    free(room);
}

void bt_quota_stats(const bt_quotas_t *quotas, bt_quota_stats_t *stats_p)
{
#define READ(name) atomic_load_explicit(&quotas->name, memory_order_relaxed)
    *stats_p = (bt_quota_stats_t){.granted = READ(granted),
                                  .denied = READ(denied),
                                  .leases = READ(leases),
                                  .away = READ(away),
                                  .live = READ(live)};
#undef READ
}
