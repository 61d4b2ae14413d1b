/* map.h - a chained hash of things that embed an entry, by a number.
 *
 * Owner: whoever embeds it; entries belong to what embeds them. Not thread safe.
 * Life:  init -> put, get, remove -> free(buckets). An entry is all zeros, or its link is
 *        initialised, before its first put; removing it twice is harmless.
 * Flow:  several entries may have one key: get gives the oldest of them.
 * Cost:  O(1). It doubles when there are more entries than buckets; when there is no memory for
 *        that, the chains get longer, so a put never fails. The seed keeps others from choosing
 *        keys that collide.
 */
#ifndef BT_BASE_MAP_H
#define BT_BASE_MAP_H

#include "base/list.h"

#include <stdint.h>

typedef struct bt_map_entry {
    bt_list_t link;
    uint64_t key;
} bt_map_entry_t;

typedef struct bt_map {
    bt_list_t *buckets;
    uint32_t mask, count;
    uint64_t seed;
} bt_map_t;

int bt_map_init(bt_map_t *map, uint32_t buckets); /* a power of two. BT_E_NOMEM */
void bt_map_put(bt_map_t *map, bt_map_entry_t *entry, uint64_t key);
void bt_map_remove(bt_map_t *map, bt_map_entry_t *entry);
/* The bucket of a key: entries of it and of others. Until the next put. */
bt_list_t *bt_map_bucket(const bt_map_t *map, uint64_t key);
bt_map_entry_t *bt_map_get(const bt_map_t *map, uint64_t key); /* NULL: none */

#endif
