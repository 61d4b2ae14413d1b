#include "limits/limits.h"

#include "base/err.h"
#include "base/map.h"

#include <pthread.h>
#include <stdlib.h>

#define SHARDS 16U

/* Who has requests running; gone with the last of them, so there are no more than there are requests. */
struct running {
    bt_map_entry_t entry;
    int64_t count;
    size_t key_n;
    char key[];
};

struct shard {
    pthread_mutex_t lock;
    bt_map_t map;
};

struct bt_limits {
    pthread_mutex_t lock; /* of the table and the list of counts */
    bt_limit_table_t *table;
    _Atomic uint64_t version;
    bt_limit_count_t *counts[BT_LIMITS_MAX]; /* by name, oldest first */
    unsigned count_n;
    struct shard shards[SHARDS];
};

/* ---- life ---- */

int bt_limits_new(bt_limits_t **limits_p)
{
    bt_limits_t *limits = calloc(1, sizeof *limits);
    int rc = 0;

    if (limits == NULL)
        return BT_E_NOMEM;
    pthread_mutex_init(&limits->lock, NULL);
    for (unsigned i = 0; i < SHARDS; i++) {
        pthread_mutex_init(&limits->shards[i].lock, NULL);
        rc |= bt_map_init(&limits->shards[i].map, 16);
    }
    if (rc != 0) {
        bt_limits_free(limits);
        return BT_E_NOMEM;
    }
    *limits_p = limits;
    return 0;
}

static void free_shard(struct shard *shard)
{
    bt_list_t *it, *tmp;

    for (uint32_t b = 0; shard->map.buckets != NULL && b <= shard->map.mask; b++)
        bt_list_each (&shard->map.buckets[b], it, tmp)
            free(bt_container_of(it, struct running, entry.link));
    free(shard->map.buckets);
    pthread_mutex_destroy(&shard->lock);
}

void bt_limits_free(bt_limits_t *limits)
{
    if (limits == NULL)
        return;
    for (unsigned i = 0; i < SHARDS; i++)
        free_shard(&limits->shards[i]);
    for (unsigned i = 0; i < limits->count_n; i++)
        free(limits->counts[i]);
    bt_limit_table_unref(limits->table);
    pthread_mutex_destroy(&limits->lock);
    free(limits);
}

/* ---- the list ---- */

/* Names that went are remembered while there is room: their counters go on when they come back. The last place is for all that find none. */
static bt_limit_count_t *counts_of(bt_limits_t *limits, const char *name)
{
    bt_limit_count_t *c = NULL;

    for (unsigned i = 0; i < limits->count_n; i++)
        if (strcmp(limits->counts[i]->name, name) == 0)
            return limits->counts[i];
    if (limits->count_n < BT_LIMITS_MAX)
        c = calloc(1, sizeof *c);
    if (c == NULL)
        return limits->count_n != 0 ? limits->counts[limits->count_n - 1] : NULL;
    bt_str_copy(c->name, sizeof c->name, name);
    limits->counts[limits->count_n++] = c;
    return c;
}

void bt_limits_set(bt_limits_t *limits, bt_limit_table_t *table)
{
    bt_limit_table_t *before;

    pthread_mutex_lock(&limits->lock);
    for (unsigned i = 0; table != NULL && i < table->count; i++)
        table->items[i].counts = counts_of(limits, table->items[i].name);
    before = limits->table;
    limits->table = table;
    if (before != NULL || table != NULL)
        atomic_fetch_add_explicit(&limits->version, 1, memory_order_release);
    pthread_mutex_unlock(&limits->lock);
    bt_limit_table_unref(before);
}

void bt_limits_drop(bt_limits_view_t *view)
{
    bt_limit_table_unref(view->table);
    *view = (bt_limits_view_t){0, NULL};
}

void bt_limits_renew(bt_limits_t *limits, bt_limits_view_t *view)
{
    if (atomic_load_explicit(&limits->version, memory_order_acquire) == view->version)
        return;
    bt_limits_drop(view);
    pthread_mutex_lock(&limits->lock);
    view->version = atomic_load_explicit(&limits->version, memory_order_relaxed);
    view->table = limits->table != NULL ? bt_limit_table_ref(limits->table) : NULL;
    pthread_mutex_unlock(&limits->lock);
}

void bt_limits_each(bt_limits_t *limits, bt_limits_count_cb cb, void *user)
{
    pthread_mutex_lock(&limits->lock);
    for (unsigned i = 0; i < limits->count_n; i++)
        cb(user, limits->counts[i]);
    pthread_mutex_unlock(&limits->lock);
}

/* ---- at a time ---- */

static struct running *find(const struct shard *shard, uint64_t hash, bt_str_t key)
{
    bt_list_t *bucket = bt_map_bucket(&shard->map, hash), *it, *tmp;

    bt_list_each (bucket, it, tmp) {
        struct running *r = bt_container_of(it, struct running, entry.link);
        if (bt_str_eq((bt_str_t){r->key, r->key_n}, key))
            return r;
    }
    return NULL;
}

static struct running *add(struct shard *shard, uint64_t hash, bt_str_t key)
{
    struct running *r = calloc(1, sizeof *r + key.n);

    if (r == NULL)
        return NULL;
    r->key_n = key.n;
    memcpy(r->key, key.p, key.n);
    bt_map_put(&shard->map, &r->entry, hash);
    return r;
}

bool bt_limits_enter(bt_limits_t *limits, bt_str_t key, int64_t most, int64_t *now_p)
{
    const uint64_t hash = bt_str_hash(key);
    struct shard *shard = &limits->shards[hash % SHARDS];
    bool is_in = false;

    pthread_mutex_lock(&shard->lock);
    struct running *r = find(shard, hash, key);
    *now_p = r != NULL ? r->count : 0;
    if (*now_p < most && (r != NULL || (r = add(shard, hash, key)) != NULL)) {
        *now_p = ++r->count;
        is_in = true;
    }
    pthread_mutex_unlock(&shard->lock);
    return is_in;
}

void bt_limits_leave(bt_limits_t *limits, bt_str_t key)
{
    const uint64_t hash = bt_str_hash(key);
    struct shard *shard = &limits->shards[hash % SHARDS];

    pthread_mutex_lock(&shard->lock);
    struct running *r = find(shard, hash, key);
    if (r != NULL && --r->count == 0) {
        bt_map_remove(&shard->map, &r->entry);
        free(r);
    }
    pthread_mutex_unlock(&shard->lock);
}
