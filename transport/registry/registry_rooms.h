/* registry_rooms.h - which data-parallel rank of the prefill has a room.
 *
 * Owner: the registry.
 * Life:  init -> puts and gets -> fini. A room lives ttl_ms from its last put.
 * Flow:  a full table lets its oldest room go.
 * Cost:  O(1); memory is reserved at init and touched as rooms come.
 */
#ifndef BT_TRANSPORT_REGISTRY_ROOMS_H
#define BT_TRANSPORT_REGISTRY_ROOMS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct bt_kv_room_rank {
    uint64_t room, put_ms;
    uint64_t
        asked; /* number of the query that has seen it last: twice in one query is answered once */
    uint32_t dp_rank;
    uint32_t chain;        /* next one of the bucket, or of the free ones */
    uint32_t older, newer; /* in the order of their puts */
} bt_kv_room_rank_t;

/* Places are numbered from 1; 0 = none. */
typedef struct bt_kv_room_ranks {
    bt_kv_room_rank_t *places; /* [max + 1] */
    uint32_t *buckets;
    uint32_t mask, max, count, used; /* used: places that have ever been */
    uint32_t free, oldest, newest;
    uint32_t ttl_ms;
    uint64_t seed, evicted;
} bt_kv_room_ranks_t;

int bt_kv_room_ranks_init(bt_kv_room_ranks_t *rooms, uint32_t max, uint32_t ttl_ms);
void bt_kv_room_ranks_fini(bt_kv_room_ranks_t *rooms);
void bt_kv_room_ranks_put(bt_kv_room_ranks_t *rooms, uint64_t room, uint32_t dp_rank,
                          uint64_t now_ms);
/* NULL: unknown. Valid until the next call. */
bt_kv_room_rank_t *bt_kv_room_ranks_get(bt_kv_room_ranks_t *rooms, uint64_t room);
/* Drops those whose time is over. */
void bt_kv_room_ranks_expire(bt_kv_room_ranks_t *rooms, uint64_t now_ms);
void bt_kv_room_ranks_clear(bt_kv_room_ranks_t *rooms);

#endif
