/* map.h - a chained hash of things that embed an entry. Private to transport.
 *
 * Owner: whoever embeds it; entries belong to what embeds them.
 * Life:  of the agent; `buckets` is freed by the owner.
 * Flow:  put, get, remove, under the agent's lock. Several entries may have one key.
 * Cost:  O(1); the number of buckets is fixed. The seed keeps peers from choosing colliding keys.
 */
#ifndef BT_TRANSPORT_MAP_H
#define BT_TRANSPORT_MAP_H

#include "base/list.h"

#include <stdint.h>

typedef struct bt_kv_entry {
    bt_list_t link;
    uint64_t key;
} bt_kv_entry_t;
typedef struct bt_kv_map {
    bt_list_t *buckets;
    uint32_t mask, count;
    uint64_t seed;
} bt_kv_map_t;

static inline uint64_t bt_kv_map_hash(const bt_kv_map_t *map, uint64_t key)
{
    uint64_t h = (key ^ map->seed) * UINT64_C(0x9e3779b97f4a7c15);
    h ^= h >> 29;
    h *= UINT64_C(0xbf58476d1ce4e5b9);
    return h ^ h >> 32;
}
int bt_kv_map_init(bt_kv_map_t *map, uint32_t buckets);
void bt_kv_map_put(bt_kv_map_t *map, bt_kv_entry_t *entry, uint64_t key);
void bt_kv_map_remove(bt_kv_map_t *map, bt_kv_entry_t *entry);
/* The bucket of a key: entries of it and of others. */
static inline bt_list_t *bt_kv_map_bucket(const bt_kv_map_t *map, uint64_t key)
{
    return &map->buckets[bt_kv_map_hash(map, key) & map->mask];
}
/* The first entry of this key, or NULL. */
bt_kv_entry_t *bt_kv_map_get(const bt_kv_map_t *map, uint64_t key);

#endif
