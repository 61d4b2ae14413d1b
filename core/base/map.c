#include "base/map.h"

#include "base/err.h"
#include "base/rand.h"

#include <stdlib.h>

#define BUCKETS_MAX (UINT32_C(1) << 30)

static bt_list_t *new_buckets(uint32_t count)
{
    bt_list_t *buckets = malloc(count * sizeof(*buckets));

    for (uint32_t i = 0; buckets != NULL && i < count; i++)
        bt_list_init(&buckets[i]);
    return buckets;
}

int bt_map_init(bt_map_t *map, uint32_t buckets)
{
    *map = (bt_map_t){new_buckets(buckets), buckets - 1, 0, bt_rand_u64()};
    return map->buckets != NULL ? 0 : BT_E_NOMEM;
}

bt_list_t *bt_map_bucket(const bt_map_t *map, uint64_t key)
{
    uint64_t h = (key ^ map->seed) * UINT64_C(0x9e3779b97f4a7c15);

    h ^= h >> 29;
    h *= UINT64_C(0xbf58476d1ce4e5b9);
    return &map->buckets[(h ^ h >> 32) & map->mask];
}

static bt_map_entry_t *entry_of(bt_list_t *link)
{
    return bt_container_of(link, bt_map_entry_t, link);
}

/* Entries of one key keep their order. */
static void grow(bt_map_t *map)
{
    bt_map_t bigger = {new_buckets(2 * (map->mask + 1)), 2 * map->mask + 1, map->count, map->seed};
    bt_list_t *it, *tmp;

    if (bigger.buckets == NULL)
        return;
    for (uint32_t i = 0; i <= map->mask; i++)
        bt_list_each (&map->buckets[i], it, tmp) {
            bt_list_remove(it);
            bt_list_push(bt_map_bucket(&bigger, entry_of(it)->key), it);
        }
    free(map->buckets);
    *map = bigger;
}

void bt_map_put(bt_map_t *map, bt_map_entry_t *entry, uint64_t key)
{
    if (map->count > map->mask && map->mask < BUCKETS_MAX - 1)
        grow(map);
    entry->key = key;
    bt_list_push(bt_map_bucket(map, key), &entry->link);
    map->count++;
}

void bt_map_remove(bt_map_t *map, bt_map_entry_t *entry)
{
    if (entry->link.next == NULL || bt_list_empty(&entry->link))
        return;
    map->count--;
    bt_list_remove(&entry->link);
}

bt_map_entry_t *bt_map_get(const bt_map_t *map, uint64_t key)
{
    bt_list_t *bucket = bt_map_bucket(map, key);

    for (bt_list_t *it = bucket->next; it != bucket; it = it->next)
        if (entry_of(it)->key == key)
            return entry_of(it);
    return NULL;
}
