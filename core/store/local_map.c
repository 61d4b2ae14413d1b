/* local_map.c - chained buckets that double, per shard.
 *
 * What has expired goes when somebody comes by: the finder of its key, two buckets of the shard with every new key, and everything when a bound is met (at most
 * once a second, so that a full store does not make every refusal slow). The hash begins with a secret of this process: keys hold what clients
 * send.
 */
#include "store/local_map.h"

#include "base/err.h"
#include "base/rand.h"

#include <stdlib.h>

#define FIRST_BUCKETS 64U
#define SWEEP_AGAIN_MS 1000

/* ---- bounds ---- */
static bool charge(bt_local_map_t *map, size_t bytes)
{
    size_t items = atomic_fetch_add_explicit(&map->items, 1, memory_order_relaxed) + 1;
    size_t all = atomic_fetch_add_explicit(&map->bytes, bytes, memory_order_relaxed) + bytes;

    if (items <= map->items_max && all <= map->bytes_max)
        return true;
    atomic_fetch_sub_explicit(&map->items, 1, memory_order_relaxed);
    atomic_fetch_sub_explicit(&map->bytes, bytes, memory_order_relaxed);
    return false;
}

static void discharge(bt_local_map_t *map, size_t bytes)
{
    atomic_fetch_sub_explicit(&map->items, 1, memory_order_relaxed);
    atomic_fetch_sub_explicit(&map->bytes, bytes, memory_order_relaxed);
}

static size_t item_bytes(size_t name_n, size_t value_n)
{
    return sizeof(bt_local_item_t) + sizeof(void *) + name_n + value_n;
}

int bt_local_item_new(bt_local_map_t *map, bt_str_t name, bt_str_t value, bt_local_item_t **item_p)
{
    size_t bytes = item_bytes(name.n, value.n);

    if (!charge(map, bytes))
        return BT_E_LIMIT;
    bt_local_item_t *item = malloc(bytes);
    if (item == NULL) {
        discharge(map, bytes);
        return BT_E_NOMEM;
    }
    item->until_ms = 0;
    item->name_n = name.n;
    item->value_n = value.n;
    if (name.n > 0)
        memcpy(item->bytes, name.p, name.n);
    if (value.n > 0)
        memcpy(item->bytes + name.n, value.p, value.n);
    *item_p = item;
    return 0;
}

void bt_local_item_free(bt_local_map_t *map, bt_local_item_t *item)
{
    if (item == NULL)
        return;
    discharge(map, item_bytes(item->name_n, item->value_n));
    free(item);
}

/* ---- keys ---- */
static uint64_t hash_of(const bt_local_map_t *map, bt_str_t name)
{
    uint64_t h = map->seed;

    for (size_t i = 0; i < name.n; i++)
        h = (h ^ (unsigned char) name.p[i]) * 1099511628211ULL;
    return h ^ h >> 32;
}

bt_local_shard_t *bt_local_lock(bt_local_map_t *map, bt_str_t name, uint64_t *hash_p)
{
    *hash_p = hash_of(map, name);
    bt_local_shard_t *shard = &map->shards[*hash_p % BT_LOCAL_SHARDS];

    pthread_mutex_lock(&shard->lock);
    return shard;
}

static bt_local_entry_t **bucket_of(bt_local_shard_t *shard, uint64_t hash)
{
    return &shard->buckets[hash / BT_LOCAL_SHARDS & (shard->bucket_count - 1)];
}

void bt_local_clear(bt_local_map_t *map, bt_local_entry_t *entry)
{
    bt_local_item_free(map, entry->item);
    for (unsigned i = 0; i < entry->count; i++)
        bt_local_item_free(map, entry->items[(entry->head + i) % entry->cap]);
    free(entry->items);
    entry->item = NULL;
    entry->items = NULL;
    entry->count = entry->cap = entry->head = 0;
    entry->number = entry->used = entry->until_ms = 0;
    entry->type = BT_LOCAL_NEW;
}

/* Takes *at out of its bucket. */
static void drop_at(bt_local_map_t *map, bt_local_shard_t *shard, bt_local_entry_t **at)
{
    bt_local_entry_t *entry = *at;

    *at = entry->next;
    shard->count--;
    bt_local_clear(map, entry);
    discharge(map, sizeof(*entry) + entry->name_n);
    free(entry);
}

void bt_local_drop(bt_local_map_t *map, bt_local_shard_t *shard, bt_local_entry_t *entry)
{
    bt_local_entry_t **at = bucket_of(shard, entry->hash);

    while (*at != entry)
        at = &(*at)->next;
    drop_at(map, shard, at);
}

static bool is_over(const bt_local_entry_t *entry, uint64_t now_ms)
{
    return entry->until_ms != 0 && entry->until_ms <= now_ms;
}

static void sweep_bucket(bt_local_map_t *map, bt_local_shard_t *shard, unsigned i, uint64_t now_ms)
{
    bt_local_entry_t **at = &shard->buckets[i];

    while (*at != NULL) {
        if (is_over(*at, now_ms)) {
            drop_at(map, shard, at);
            continue;
        }
        if ((*at)->type == BT_LOCAL_TABLE)
            bt_local_table_sweep(map, *at, now_ms);
        at = &(*at)->next;
    }
}

static void sweep_some(bt_local_map_t *map, bt_local_shard_t *shard, uint64_t now_ms)
{
    for (int i = 0; i < 2; i++)
        sweep_bucket(map, shard, shard->sweep_at++ & (shard->bucket_count - 1), now_ms);
}

bool bt_local_map_sweep(bt_local_map_t *map, uint64_t now_ms)
{
    uint64_t last = atomic_load(&map->swept_ms);

    if ((last != 0 && now_ms - last < SWEEP_AGAIN_MS) ||
        !atomic_compare_exchange_strong(&map->swept_ms, &last, now_ms))
        return false;
    for (unsigned i = 0; i < BT_LOCAL_SHARDS; i++) {
        bt_local_shard_t *shard = &map->shards[i];
        pthread_mutex_lock(&shard->lock);
        for (unsigned k = 0; k < shard->bucket_count; k++)
            sweep_bucket(map, shard, k, now_ms);
        pthread_mutex_unlock(&shard->lock);
    }
    return true;
}

static void grow(bt_local_shard_t *shard)
{
    unsigned count = shard->bucket_count * 2;
    bt_local_entry_t **buckets = calloc(count, sizeof(*buckets));

    if (buckets == NULL)
        return; /* longer chains, nothing else */
    for (unsigned i = 0; i < shard->bucket_count; i++)
        for (bt_local_entry_t *e = shard->buckets[i], *next; e != NULL; e = next) {
            bt_local_entry_t **to = &buckets[e->hash / BT_LOCAL_SHARDS & (count - 1)];
            next = e->next;
            e->next = *to;
            *to = e;
        }
    free(shard->buckets);
    shard->buckets = buckets;
    shard->bucket_count = count;
}

bt_local_entry_t *bt_local_find(bt_local_map_t *map, bt_local_shard_t *shard, uint64_t hash,
                                bt_str_t name, uint64_t now_ms)
{
    for (bt_local_entry_t **at = bucket_of(shard, hash); *at != NULL; at = &(*at)->next) {
        bt_local_entry_t *entry = *at;
        if (entry->hash != hash || !bt_str_eq((bt_str_t){entry->name, entry->name_n}, name))
            continue;
        if (!is_over(entry, now_ms))
            return entry;
        drop_at(map, shard, at);
        return NULL;
    }
    return NULL;
}

int bt_local_make(bt_local_map_t *map, bt_local_shard_t *shard, uint64_t hash, bt_str_t name,
                  uint64_t now_ms, bt_local_entry_t **entry_p)
{
    size_t bytes = sizeof(bt_local_entry_t) + name.n;

    sweep_some(map, shard, now_ms);
    if (!charge(map, bytes))
        return BT_E_LIMIT;
    bt_local_entry_t *entry = calloc(1, bytes);
    if (entry == NULL) {
        discharge(map, bytes);
        return BT_E_NOMEM;
    }
    if (shard->count >= shard->bucket_count)
        grow(shard);
    entry->hash = hash;
    entry->name_n = name.n;
    memcpy(entry->name, name.p, name.n);
    bt_local_entry_t **bucket = bucket_of(shard, hash);
    entry->next = *bucket;
    *bucket = entry;
    shard->count++;
    *entry_p = entry;
    return 0;
}

/* ---- tables ---- */
static int order(bt_str_t a, bt_str_t b)
{
    size_t n = a.n < b.n ? a.n : b.n;
    int by_bytes = n > 0 ? memcmp(a.p, b.p, n) : 0;

    return by_bytes != 0 ? by_bytes : (a.n > b.n) - (a.n < b.n);
}

bt_local_item_t *bt_local_table_find(const bt_local_entry_t *table, bt_str_t name, unsigned *at_p)
{
    unsigned low = 0, high = table->count;

    while (low < high) {
        unsigned mid = low + (high - low) / 2;
        int by = order(bt_local_item_name(table->items[mid]), name);
        if (by == 0) {
            *at_p = mid;
            return table->items[mid];
        }
        if (by < 0)
            low = mid + 1;
        else
            high = mid;
    }
    *at_p = low;
    return NULL;
}

/* Doubles the room; a ring is laid out from its head. */
static int widen(bt_local_entry_t *entry)
{
    unsigned cap = entry->cap > 0 ? entry->cap * 2 : 4;
    bt_local_item_t **items = malloc(cap * sizeof(bt_local_item_t *));

    if (items == NULL)
        return BT_E_NOMEM;
    for (unsigned i = 0; i < entry->count; i++)
        items[i] = entry->items[(entry->head + i) % entry->cap];
    free(entry->items);
    entry->items = items;
    entry->cap = cap;
    entry->head = 0;
    return 0;
}

int bt_local_table_put(bt_local_map_t *map, bt_local_entry_t *table, bt_local_item_t *item)
{
    unsigned at;

    if (bt_local_table_find(table, bt_local_item_name(item), &at) != NULL) {
        bt_local_item_free(map, table->items[at]);
        table->items[at] = item;
        return 0;
    }
    if (table->count == table->cap) {
        int rc = widen(table);
        if (rc != 0)
            return rc;
    }
    memmove(&table->items[at + 1], &table->items[at],
            (table->count - at) * sizeof(bt_local_item_t *));
    table->items[at] = item;
    table->count++;
    return 0;
}

void bt_local_table_drop(bt_local_map_t *map, bt_local_entry_t *table, unsigned at)
{
    bt_local_item_free(map, table->items[at]);
    table->count--;
    memmove(&table->items[at], &table->items[at + 1],
            (table->count - at) * sizeof(bt_local_item_t *));
}

void bt_local_table_sweep(bt_local_map_t *map, bt_local_entry_t *table, uint64_t now_ms)
{
    unsigned kept = 0;

    for (unsigned i = 0; i < table->count; i++) {
        bt_local_item_t *item = table->items[i];
        if (item->until_ms != 0 && item->until_ms <= now_ms)
            bt_local_item_free(map, item);
        else
            table->items[kept++] = item;
    }
    table->count = kept;
}

/* ---- logs ---- */
int bt_local_log_add(bt_local_map_t *map, bt_local_entry_t *log, bt_local_item_t *item,
                     uint64_t keep)
{
    if (log->count == log->cap && log->count < keep) {
        int rc = widen(log);
        if (rc != 0)
            return rc;
    }
    while (log->count > 0 && log->count >= keep) {
        bt_local_item_free(map, log->items[log->head]);
        log->head = (log->head + 1) % log->cap;
        log->count--;
        log->used++;
    }
    log->items[(log->head + log->count) % log->cap] = item;
    log->count++;
    return 0;
}

/* ---- the whole ---- */
int bt_local_map_init(bt_local_map_t *map)
{
    memset(map, 0, sizeof(*map));
    map->items_max = BT_LOCAL_ITEMS_MAX;
    map->bytes_max = BT_LOCAL_BYTES_MAX;
    bt_rand_secure(&map->seed, sizeof(map->seed));
    for (unsigned i = 0; i < BT_LOCAL_SHARDS; i++) {
        bt_local_shard_t *shard = &map->shards[i];
        shard->buckets = calloc(FIRST_BUCKETS, sizeof(bt_local_entry_t *));
        shard->bucket_count = FIRST_BUCKETS;
        if (shard->buckets == NULL || pthread_mutex_init(&shard->lock, NULL) != 0) {
            free(shard->buckets);
            shard->buckets = NULL;
            bt_local_map_fini(map);
            return BT_E_NOMEM;
        }
    }
    return 0;
}

void bt_local_map_fini(bt_local_map_t *map)
{
    for (unsigned i = 0; i < BT_LOCAL_SHARDS && map->shards[i].buckets != NULL; i++) {
        bt_local_shard_t *shard = &map->shards[i];
        for (unsigned k = 0; k < shard->bucket_count; k++)
            while (shard->buckets[k] != NULL)
                drop_at(map, shard, &shard->buckets[k]);
        free(shard->buckets);
        pthread_mutex_destroy(&shard->lock);
    }
}
