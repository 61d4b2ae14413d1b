#include "transport/agent/map.h"

#include "base/err.h"
#include "base/rand.h"

#include <stdlib.h>

int bt_kv_map_init(bt_kv_map_t *map, uint32_t buckets)
{
    map->buckets = calloc(buckets, sizeof(*map->buckets));
    if (map->buckets == NULL)
        return BT_E_NOMEM;
    map->mask = buckets - 1;
    map->seed = bt_rand_u64();
    for (uint32_t i = 0; i < buckets; i++)
        bt_list_init(&map->buckets[i]);
    return 0;
}

void bt_kv_map_put(bt_kv_map_t *map, bt_kv_entry_t *entry, uint64_t key)
{
    entry->key = key;
    bt_list_push(bt_kv_map_bucket(map, key), &entry->link);
    map->count++;
}

void bt_kv_map_remove(bt_kv_map_t *map, bt_kv_entry_t *entry)
{
    if (!bt_list_empty(&entry->link))
        map->count--;
    bt_list_remove(&entry->link);
}

bt_kv_entry_t *bt_kv_map_get(const bt_kv_map_t *map, uint64_t key)
{
    bt_list_t *bucket = bt_kv_map_bucket(map, key);

    for (bt_list_t *it = bucket->next; it != bucket; it = it->next)
        if (bt_container_of(it, bt_kv_entry_t, link)->key == key)
            return bt_container_of(it, bt_kv_entry_t, link);
    return NULL;
}
