/* quota_lease.c - what is asked of the store: chunks for those who wait and ahead of need, and the rest of chunks back.
 *
 * A lease is its loop's: so no thread waits for another's client, and a loop that ends takes only its own with it.
 */
#include "fleet/quota_impl.h"

#include <stdlib.h>
#include <string.h>

/* ---- leases ---- */

static struct bt_quota_lease *find_lease(bt_quota_client_t *room, uint64_t hash, bt_str_t key,
                                         uint64_t window_ms)
{
    bt_list_t *it, *tmp;

    bt_list_each (&room->leases[hash % BT_QUOTA_SHARDS], it, tmp) {
        struct bt_quota_lease *lease = bt_container_of(it, struct bt_quota_lease, link);
        if (lease->hash == hash && lease->op.window_ms == window_ms &&
            bt_str_eq((bt_str_t){lease->key, lease->key_n}, key))
            return lease;
    }
    return NULL;
}

static struct bt_quota_lease *new_lease(bt_quota_client_t *room, enum bt_store_what what,
                                        uint64_t hash, bt_str_t key, uint64_t window_ms)
{
    struct bt_quota_lease *lease = calloc(1, sizeof(*lease) + key.n);

    if (lease == NULL)
        return NULL;
    lease->room = room;
    lease->hash = hash;
    lease->key_n = key.n;
    memcpy(lease->key, key.p, key.n);
    lease->op.what = what;
    lease->op.space = bt_str(room->quotas->space);
    lease->op.key = (bt_str_t){lease->key, key.n};
    lease->op.window_ms = window_ms;
    bt_list_init(&lease->waiting);
    bt_list_push(what == BT_STORE_WINDOW_TAKE ? &room->leases[hash % BT_QUOTA_SHARDS]
                                              : &room->gifts,
                 &lease->link);
    return lease;
}

static void end_lease(struct bt_quota_lease *lease)
{
    bt_store_cancel(&lease->op);
    bt_list_remove(&lease->link);
    free(lease);
}

static void on_lease(bt_store_op_t *op, const bt_store_reply_t *reply);

/* amount: what is asked for; limit: of the quota. */
static void send_lease(struct bt_quota_lease *lease, int64_t amount, int64_t limit)
{
    lease->op.amount = amount < BT_QUOTA_AMOUNT_MAX ? amount : BT_QUOTA_AMOUNT_MAX;
    lease->op.limit = limit;
    lease->op.cb = on_lease;
    lease->sent_ms = bt_clock_ms();
    bt_quota_count(&lease->room->quotas->leases);
    bt_store_do(lease->room->client, &lease->op);
}

/* Of the store's answer; under the lock. */
static void take_in(struct bt_quota *q, const struct bt_quota_lease *lease,
                    const bt_store_reply_t *reply, uint64_t now_ms)
{
    const uint64_t end_ms = lease->sent_ms + reply->left_ms;

    if (q->is_guess && reply->window == q->window) {
        q->end_ms = end_ms; /* what was granted without the store stays: it is a debt */
    } else if (q->is_guess || reply->window > q->window) {
        bt_quota_begin(q, reply->window, end_ms);
    } else if (reply->window < q->window) {
        return; /* came late: that window is over */
    }
    q->is_guess = false;
    q->left += reply->number;
    q->rest = reply->rest;
    if (reply->number < lease->op.amount) {
        const uint64_t pause_ms =
            q->window_ms / 64 < BT_QUOTA_AGAIN_MS ? q->window_ms / 64 : BT_QUOTA_AGAIN_MS;
        q->dry_until_ms = now_ms + pause_ms + 1;
    }
    bt_quota_roll(q, now_ms);
}

/* Those that are answered move to `answered`; returns what the others want. Under the lock. */
static int64_t read_again(bt_quotas_t *quotas, struct bt_quota *q, bt_list_t *waiting,
                          bt_list_t *answered, uint64_t now_ms)
{
    bt_list_t *it, *tmp;
    int64_t sum = 0;

    bt_list_each (waiting, it, tmp) {
        bt_quota_take_t *take = bt_container_of(it, bt_quota_take_t, link);
        if (!bt_quota_decide(quotas, q, take, now_ms)) {
            sum += take->amount;
            continue;
        }
        bt_list_remove(it);
        bt_list_push(answered, it);
    }
    return sum;
}

static void tell(bt_list_t *answered)
{
    while (!bt_list_empty(answered)) {
        bt_quota_take_t *take = bt_container_of(answered->next, bt_quota_take_t, link);
        bt_list_remove(&take->link);
        take->cb(take);
    }
}

/* No memory for the quota. */
static void refuse_all(bt_list_t *waiting, bt_list_t *answered, int rc)
{
    while (!bt_list_empty(waiting)) {
        bt_quota_take_t *take = bt_container_of(waiting->next, bt_quota_take_t, link);
        bt_list_remove(&take->link);
        bt_list_push(answered, &take->link);
        take->rc = rc;
    }
}

/* Returns what must be asked for now, 0: nothing. */
static int64_t digest(struct bt_quota_lease *lease, const bt_store_reply_t *reply,
                      bt_list_t *answered, int64_t *limit_p)
{
    bt_quotas_t *quotas = lease->room->quotas;
    const bt_quota_take_t like = {.key = {lease->key, lease->key_n},
                                  .limit = lease->op.limit,
                                  .window_ms = lease->op.window_ms};
    const uint64_t now_ms = bt_clock_ms();
    struct bt_quota_shard *shard = bt_quota_lock(quotas, lease->hash);
    struct bt_quota *q = *bt_quota_place(shard, lease->hash, like.key, like.window_ms);
    int64_t amount = 0;
    int rc = q != NULL ? 0 : bt_quota_find(quotas, shard, &like, lease->hash, now_ms, &q);

    if (rc != 0) {
        refuse_all(&lease->waiting, answered, rc);
    } else {
        bt_quota_roll(q, now_ms);
        q->is_unavailable = reply->rc != 0;
        q->unavailable_until_ms = now_ms + BT_QUOTA_AGAIN_MS;
        if (reply->rc == 0)
            take_in(q, lease, reply, now_ms);
        const int64_t waiting = read_again(quotas, q, &lease->waiting, answered, now_ms);
        amount = waiting > 0 ? bt_quota_wanted(quotas, q, waiting) : 0;
        *limit_p = q->limit;
    }
    pthread_mutex_unlock(&shard->lock);
    return amount;
}

static void on_lease(bt_store_op_t *op, const bt_store_reply_t *reply)
{
    struct bt_quota_lease *lease = bt_container_of(op, struct bt_quota_lease, op);
    bt_list_t answered;
    int64_t limit = op->limit;

    bt_list_init(&answered);
    const int64_t amount = digest(lease, reply, &answered, &limit);
    if (amount > 0)
        send_lease(lease, amount, limit);
    else
        end_lease(lease);
    tell(&answered);
}

/* ---- giving back ---- */

static void on_gift(bt_store_op_t *op, const bt_store_reply_t *reply)
{
    (void) reply; /* lost on the way: lost until the window's end */
    end_lease(bt_container_of(op, struct bt_quota_lease, op));
}

static void send_gift(bt_quota_client_t *room, const struct bt_quota *q, int64_t amount)
{
    struct bt_quota_lease *gift =
        new_lease(room, BT_STORE_WINDOW_GIVE, q->hash, (bt_str_t){q->key, q->key_n}, q->window_ms);

    if (gift == NULL)
        return;
    gift->op.amount = amount;
    gift->op.limit = q->limit;
    gift->op.window = q->window;
    gift->op.cb = on_gift;
    bt_quota_count(&room->quotas->leases);
    bt_store_do(room->client, &gift->op); /* no callback from inside */
}

void bt_quota_start_sweep(bt_quota_client_t *room, uint64_t at_ms, uint64_t now_ms)
{
    if (bt_timer_active(&room->sweep) && room->sweep_ms <= at_ms)
        return;
    room->sweep_ms = at_ms;
    bt_timer_start(&room->sweep, at_ms > now_ms ? at_ms - now_ms : BT_QUOTA_SWEEP_MIN_MS);
}

/* What nobody has asked for lately goes back, and what refunds have heaped up; debts are paid. Under the lock. */
static void settle(bt_quota_client_t *room, struct bt_quota *q, uint64_t now_ms)
{
    const bool is_idle = now_ms >= q->touched_ms + bt_quota_idle_ms(q);
    const int64_t chunk = bt_quota_chunk(room->quotas, q);
    const int64_t back = is_idle ? q->left : q->left > 2 * chunk ? q->left - chunk : 0;
    struct bt_quota_lease *lease;

    if (back > 0 && !q->is_unavailable && !q->is_guess) { /* of a guess nothing is the store's */
        send_gift(room, q, back);
        q->left -= back;
        q->rest += back;
    }
    if (q->left >= 0 || now_ms < (q->is_unavailable ? q->unavailable_until_ms : q->dry_until_ms) ||
        find_lease(room, q->hash, (bt_str_t){q->key, q->key_n}, q->window_ms) != NULL)
        return;
    q->unavailable_until_ms = now_ms + BT_QUOTA_AGAIN_MS;
    lease =
        new_lease(room, BT_STORE_WINDOW_TAKE, q->hash, (bt_str_t){q->key, q->key_n}, q->window_ms);
    if (lease != NULL)
        send_lease(lease, -q->left, q->limit);
}

/* The window is over, and the next has not been asked for. */
static bool is_over(const struct bt_quota *q, uint64_t now_ms)
{
    return q->is_guess && q->used == 0 && q->left == 0 &&
           now_ms >= q->touched_ms + bt_quota_idle_ms(q);
}

/* Returns when the next of the shard is due; UINT64_MAX: it is empty. */
static uint64_t sweep_shard(bt_quota_client_t *room, struct bt_quota_shard *shard, uint64_t now_ms)
{
    uint64_t next_ms = UINT64_MAX;

    pthread_mutex_lock(&shard->lock);
    for (unsigned i = 0; i < BT_QUOTA_BUCKETS && shard->count > 0; i++)
        for (struct bt_quota **at = &shard->buckets[i]; *at != NULL;) {
            struct bt_quota *q = *at;
            bt_quota_roll(q, now_ms);
            if (is_over(q, now_ms)) {
                *at = q->next;
                shard->count--;
                free(q);
                atomic_fetch_sub_explicit(&room->quotas->live, 1, memory_order_relaxed);
                continue;
            }
            settle(room, q, now_ms);
            uint64_t due_ms = q->touched_ms + bt_quota_idle_ms(q);
            if (due_ms <= now_ms)
                due_ms = q->left == 0 ? q->end_ms : now_ms + BT_QUOTA_AGAIN_MS;
            next_ms = due_ms < next_ms ? due_ms : next_ms;
            at = &q->next;
        }
    pthread_mutex_unlock(&shard->lock);
    return next_ms;
}

void bt_quota_on_sweep(bt_timer_t *timer)
{
    bt_quota_client_t *room = bt_container_of(timer, bt_quota_client_t, sweep);
    const uint64_t now_ms = bt_clock_ms();
    uint64_t next_ms = UINT64_MAX;

    for (unsigned i = 0; i < BT_QUOTA_SHARDS; i++) {
        const uint64_t due_ms = sweep_shard(room, &room->quotas->shards[i], now_ms);
        next_ms = due_ms < next_ms ? due_ms : next_ms;
    }
    if (next_ms != UINT64_MAX)
        bt_quota_start_sweep(
            room,
            next_ms < now_ms + BT_QUOTA_SWEEP_MIN_MS ? now_ms + BT_QUOTA_SWEEP_MIN_MS : next_ms,
            now_ms);
}

struct bt_quota_lease *bt_quota_lease(bt_quota_client_t *room, const bt_quota_take_t *take,
                                      uint64_t hash, int64_t amount)
{
    struct bt_quota_lease *lease = find_lease(room, hash, take->key, take->window_ms);

    if (lease != NULL)
        return lease;
    lease = new_lease(room, BT_STORE_WINDOW_TAKE, hash, take->key, take->window_ms);
    if (lease != NULL)
        send_lease(lease, amount, take->limit);
    return lease;
}

void bt_quota_end_all(bt_list_t *leases)
{
    bt_list_t *it, *tmp, *take, *next;

    bt_list_each (leases, it, tmp) {
        struct bt_quota_lease *lease = bt_container_of(it, struct bt_quota_lease, link);
        bt_list_each (&lease->waiting, take, next)
            bt_list_remove(take);
        end_lease(lease);
    }
}
