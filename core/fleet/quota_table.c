/* quota_table.c - a quota is what this process knows of one window.
 *
 *      left    leased and not granted yet; below 0 = granted beyond what was leased (the store was unavailable, or more was used than taken): the next lease pays
 *      used    granted here in this window: what counts while the store is unavailable
 *
 *      take -> left is enough ------------------------------> granted   (below the low mark: a lease ahead, for nobody)
 *           -> the store said "no more" a moment ago --------> denied
 *           -> the store is unavailable ----------------------------> used + amount <= limit / replicas?   (now and then a lease, to see whether it is back)
 *           -> a lease of this loop: max(what waits - left, chunk) -> reply -> all that wait here are looked at again, in order
 *
 * A window ends for us when it has ended for the store at the latest: its end is counted from the moment of asking. Grants of the time between belong to the
 * window that the store names. Until the store has named one, its number is a guess by the wall's clock, which the store's answer replaces.
 */
#include "fleet/quota_impl.h"

#include "base/err.h"

#include <stdlib.h>
#include <string.h>

#define QUOTAS_MAX 65536U
#define CHUNKS 16 /* of a replica's part of the limit */
#define IDLE_MAX_MS 1000U

/* ---- the table; under the shard's lock ---- */

uint64_t bt_quota_hash(bt_str_t key, uint64_t window_ms)
{
    return bt_str_hash(key) ^ window_ms * UINT64_C(0x9e3779b97f4a7c15);
}

struct bt_quota_shard *bt_quota_lock(bt_quotas_t *quotas, uint64_t hash)
{
    struct bt_quota_shard *shard = &quotas->shards[hash % BT_QUOTA_SHARDS];

    pthread_mutex_lock(&shard->lock);
    return shard;
}

struct bt_quota **bt_quota_place(struct bt_quota_shard *shard, uint64_t hash, bt_str_t key,
                                 uint64_t window_ms)
{
    struct bt_quota **at = &shard->buckets[hash / BT_QUOTA_SHARDS % BT_QUOTA_BUCKETS];

    while (*at != NULL && !((*at)->hash == hash && (*at)->window_ms == window_ms &&
                            bt_str_eq((bt_str_t){(*at)->key, (*at)->key_n}, key)))
        at = &(*at)->next;
    return at;
}

/* The number that the store would name now, were its clock ours. */
static void guess_window(struct bt_quota *q, uint64_t now_ms)
{
    const uint64_t wall_ms = bt_clock_wall_ms();

    q->window = wall_ms / q->window_ms;
    q->end_ms = now_ms + (q->window + 1) * q->window_ms - wall_ms;
    q->is_guess = true;
}

void bt_quota_begin(struct bt_quota *q, uint64_t window, uint64_t end_ms)
{
    q->window = window;
    q->end_ms = end_ms;
    q->left = q->used = 0;
    q->dry_until_ms = 0;
}

void bt_quota_roll(struct bt_quota *q, uint64_t now_ms)
{
    if (now_ms < q->end_ms)
        return;
    const uint64_t steps = (now_ms - q->end_ms) / q->window_ms + 1;
    bt_quota_begin(q, q->window + steps, q->end_ms + steps * q->window_ms);
    q->is_guess = true;
}

int bt_quota_find(bt_quotas_t *quotas, struct bt_quota_shard *shard, const bt_quota_take_t *take,
                  uint64_t hash, uint64_t now_ms, struct bt_quota **q_p)
{
    struct bt_quota **at = bt_quota_place(shard, hash, take->key, take->window_ms), *q = *at;

    if (q == NULL) {
        const unsigned live = atomic_load_explicit(&quotas->live, memory_order_relaxed);
        if (live >= QUOTAS_MAX || (take->live_max != 0 && live >= take->live_max))
            return BT_E_LIMIT;
        q = calloc(1, sizeof(*q) + take->key.n);
        if (q == NULL)
            return BT_E_NOMEM;
        q->hash = hash;
        q->window_ms = take->window_ms;
        q->key_n = take->key.n;
        memcpy(q->key, take->key.p, take->key.n);
        q->touched_ms = now_ms;
        guess_window(q, now_ms);
        *at = q;
        shard->count++;
        atomic_fetch_add_explicit(&quotas->live, 1, memory_order_relaxed);
    }
    bt_quota_roll(q, now_ms);
    if (take->limit > q->limit)
        q->dry_until_ms = 0; /* the store may have more of it now */
    q->limit = take->limit;
    *q_p = q;
    return 0;
}

/* ---- deciding; under the shard's lock ---- */

static int64_t part_of(const bt_quotas_t *quotas, int64_t limit)
{
    const unsigned replicas = atomic_load_explicit(&quotas->replicas, memory_order_relaxed);
    const int64_t part = limit / (int64_t) replicas;

    return part > 0 || limit == 0 ? part : 1;
}

int64_t bt_quota_chunk(const bt_quotas_t *quotas, const struct bt_quota *q)
{
    const int64_t chunk = part_of(quotas, q->limit) / CHUNKS;

    return chunk > 0 ? chunk : 1;
}

/* What is left of it, as far as anybody here can know. */
static void tell_rest(const bt_quotas_t *quotas, const struct bt_quota *q, bt_quota_take_t *take,
                      uint64_t now_ms)
{
    const int64_t rest = q->is_unavailable ? part_of(quotas, q->limit) - q->used
                         : q->is_guess     ? q->limit - q->used
                                           : q->left + q->rest;

    take->rest = rest > 0 ? rest : 0;
    take->reset_ms = q->end_ms > now_ms ? q->end_ms - now_ms : 1;
}

/* Only what is granted keeps a quota busy: the rest of a chunk is of no use to takes that are larger. */
static void grant(bt_quotas_t *quotas, struct bt_quota *q, bt_quota_take_t *take, uint64_t now_ms)
{
    q->touched_ms = now_ms;
    q->left -= take->amount;
    q->used += take->amount;
    take->is_granted = true;
    take->window = q->window;
    take->retry_ms = 0;
    tell_rest(quotas, q, take, now_ms);
    bt_quota_count(&quotas->granted);
}

static void deny(bt_quotas_t *quotas, const struct bt_quota *q, bt_quota_take_t *take,
                 uint64_t now_ms)
{
    take->is_granted = false;
    take->window = q->window;
    tell_rest(quotas, q, take, now_ms);
    take->retry_ms = take->reset_ms;
    bt_quota_count(&quotas->denied);
}

bool bt_quota_decide(bt_quotas_t *quotas, struct bt_quota *q, bt_quota_take_t *take,
                     uint64_t now_ms)
{
    take->rc = 0;
    if (q->left >= take->amount) {
        grant(quotas, q, take, now_ms);
        return true;
    }
    if (q->is_unavailable) {
        bt_quota_count(&quotas->away);
        if (q->used + take->amount <= part_of(quotas, q->limit))
            grant(quotas, q, take, now_ms);
        else
            deny(quotas, q, take, now_ms);
        return true;
    }
    if (now_ms >= q->dry_until_ms && take->amount <= q->limit)
        return false;
    deny(quotas, q, take, now_ms);
    return true;
}

bool bt_quota_is_due(const bt_quotas_t *quotas, struct bt_quota *q, uint64_t now_ms)
{
    if (q->is_unavailable) {
        if (now_ms < q->unavailable_until_ms)
            return false;
        q->unavailable_until_ms = now_ms + BT_QUOTA_AGAIN_MS;
        return true;
    }
    return q->left < bt_quota_chunk(quotas, q) / 4 && now_ms >= q->dry_until_ms;
}

int64_t bt_quota_wanted(const bt_quotas_t *quotas, const struct bt_quota *q, int64_t waiting)
{
    const int64_t need = waiting - q->left, chunk = bt_quota_chunk(quotas, q);

    return need > chunk ? need : chunk;
}

uint64_t bt_quota_idle_ms(const struct bt_quota *q)
{
    const uint64_t ms = q->window_ms / 16;

    return ms < BT_QUOTA_SWEEP_MIN_MS ? BT_QUOTA_SWEEP_MIN_MS : ms > IDLE_MAX_MS ? IDLE_MAX_MS : ms;
}
