/* local_map.h - the local store's memory: keys of five types, in shards with a lock each. Private to core/store.
 *
 * Owner: the store; whoever holds a shard's lock may touch what lies in it.
 * Life:  an entry until it is dropped or has expired; a table's rows have a time of their own.
 * Flow:  lock by name -> find or make -> work on the entry -> unlock.
 * Cost:  O(1) a key, O(log n) a table's row; everything counts against one bound of items and one of bytes.
 */
#ifndef BT_STORE_LOCAL_MAP_H
#define BT_STORE_LOCAL_MAP_H

#include "base/str.h"

#include <pthread.h>
#include <stdatomic.h>

#define BT_LOCAL_SHARDS 16
#define BT_LOCAL_ITEMS_MAX 262144
#define BT_LOCAL_BYTES_MAX ((size_t) 256 << 20)

/* A value, with a name where it is a row. */
typedef struct bt_local_item {
    uint64_t until_ms; /* 0 = for ever */
    size_t name_n, value_n;
    char bytes[]; /* name, value */
} bt_local_item_t;

enum bt_local_type {
    BT_LOCAL_NEW, /* just made: whoever made it gives it a type or drops it */
    BT_LOCAL_TEXT,
    BT_LOCAL_LEASE,
    BT_LOCAL_WINDOW,
    BT_LOCAL_TABLE,
    BT_LOCAL_LOG
};

typedef struct bt_local_entry {
    struct bt_local_entry *next; /* in its bucket */
    uint64_t hash, until_ms;     /* until_ms: 0 = for ever */
    enum bt_local_type type;
    bt_local_item_t *item; /* text; a lease's owner */
    uint64_t number;       /* a lease's fence, a window's number, a log's epoch */
    uint64_t
        used; /* a lease's end in ms, what a window has granted, number of a log's oldest entry */
    bt_local_item_t **items; /* a table's rows by name; a log's entries, a ring */
    unsigned count, cap, head;
    size_t name_n;
    char name[];
} bt_local_entry_t;

typedef struct bt_local_shard {
    pthread_mutex_t lock;
    bt_local_entry_t **buckets;
    unsigned bucket_count, count, sweep_at;
} bt_local_shard_t;

typedef struct bt_local_map {
    bt_local_shard_t shards[BT_LOCAL_SHARDS];
    uint64_t seed;
    size_t items_max, bytes_max;
    _Atomic size_t items, bytes;
    _Atomic uint64_t swept_ms; /* when everything was swept last */
} bt_local_map_t;

int bt_local_map_init(bt_local_map_t *map);
void bt_local_map_fini(bt_local_map_t *map);

/* Returns the shard of this name, locked. */
bt_local_shard_t *bt_local_lock(bt_local_map_t *map, bt_str_t name, uint64_t *hash_p);
/* NULL when there is none or its time is over. */
bt_local_entry_t *bt_local_find(bt_local_map_t *map, bt_local_shard_t *shard, uint64_t hash,
                                bt_str_t name, uint64_t now_ms);
/* BT_E_LIMIT, BT_E_NOMEM. */
int bt_local_make(bt_local_map_t *map, bt_local_shard_t *shard, uint64_t hash, bt_str_t name,
                  uint64_t now_ms, bt_local_entry_t **entry_p);
/* Drops what has expired, in all shards; no lock is held. False: it was done within the last second. */
bool bt_local_map_sweep(bt_local_map_t *map, uint64_t now_ms);
void bt_local_drop(bt_local_map_t *map, bt_local_shard_t *shard, bt_local_entry_t *entry);
/* What the entry holds goes; the entry becomes BT_LOCAL_NEW. */
void bt_local_clear(bt_local_map_t *map, bt_local_entry_t *entry);

int bt_local_item_new(bt_local_map_t *map, bt_str_t name, bt_str_t value, bt_local_item_t **item_p);
void bt_local_item_free(bt_local_map_t *map, bt_local_item_t *item);
static inline bt_str_t bt_local_item_name(const bt_local_item_t *item)
{
    return (bt_str_t){item->bytes, item->name_n};
}
static inline bt_str_t bt_local_item_value(const bt_local_item_t *item)
{
    return (bt_str_t){item->bytes + item->name_n, item->value_n};
}

/* Tables: rows sorted by name. put takes the item, and frees what had its name. */
int bt_local_table_put(bt_local_map_t *map, bt_local_entry_t *table, bt_local_item_t *item);
bt_local_item_t *bt_local_table_find(const bt_local_entry_t *table, bt_str_t name, unsigned *at_p);
void bt_local_table_drop(bt_local_map_t *map, bt_local_entry_t *table, unsigned at);
/* Drops the rows whose time is over. */
void bt_local_table_sweep(bt_local_map_t *map, bt_local_entry_t *table, uint64_t now_ms);

/* Logs: add takes the item and keeps at most `keep`. */
int bt_local_log_add(bt_local_map_t *map, bt_local_entry_t *log, bt_local_item_t *item,
                     uint64_t keep);
static inline const bt_local_item_t *bt_local_log_at(const bt_local_entry_t *log, unsigned i)
{
    return log->items[(log->head + i) % log->cap];
}

#endif
