/* One array of places, chained by index three times: by bucket, by age, and the free ones. A put moves a room to the young end, so the old end is
 * always the next to expire and the first to make way. The hash is seeded: a client can't choose rooms that share a bucket.
 */
#include "transport/registry/registry_rooms.h"

#include "base/err.h"
#include "base/rand.h"

#include <stdlib.h>

int bt_kv_room_ranks_init(bt_kv_room_ranks_t *rooms, uint32_t max, uint32_t ttl_ms)
{
    uint32_t buckets = 16;

    while (buckets < max)
        buckets *= 2;
    *rooms = (bt_kv_room_ranks_t){.mask = buckets - 1, .max = max, .ttl_ms = ttl_ms};
    bt_rand_secure(&rooms->seed, sizeof(rooms->seed));
    rooms->places = calloc((size_t) max + 1, sizeof(*rooms->places));
    rooms->buckets = calloc(buckets, sizeof(*rooms->buckets));
    if (rooms->places != NULL && rooms->buckets != NULL)
        return 0;
    bt_kv_room_ranks_fini(rooms);
    return BT_E_NOMEM;
}

void bt_kv_room_ranks_fini(bt_kv_room_ranks_t *rooms)
{
    free(rooms->places);
    free(rooms->buckets);
    *rooms = (bt_kv_room_ranks_t){.places = NULL};
}

static uint32_t *bucket_of(bt_kv_room_ranks_t *rooms, uint64_t room)
{
    uint64_t h = (room ^ rooms->seed) * UINT64_C(0x9e3779b97f4a7c15);

    h = (h ^ h >> 29 ^ rooms->seed) * UINT64_C(0xbf58476d1ce4e5b9);
    return &rooms->buckets[(h ^ h >> 32) & rooms->mask];
}

static uint32_t find(bt_kv_room_ranks_t *rooms, uint64_t room)
{
    uint32_t at = *bucket_of(rooms, room);

    while (at != 0 && rooms->places[at].room != room)
        at = rooms->places[at].chain;
    return at;
}

bt_kv_room_rank_t *bt_kv_room_ranks_get(bt_kv_room_ranks_t *rooms, uint64_t room)
{
    uint32_t at = find(rooms, room);
    return at != 0 ? &rooms->places[at] : NULL;
}

static void unlink_age(bt_kv_room_ranks_t *rooms, uint32_t at)
{
    bt_kv_room_rank_t *place = &rooms->places[at];

    *(place->older != 0 ? &rooms->places[place->older].newer : &rooms->oldest) = place->newer;
    *(place->newer != 0 ? &rooms->places[place->newer].older : &rooms->newest) = place->older;
}

static void link_newest(bt_kv_room_ranks_t *rooms, uint32_t at)
{
    rooms->places[at].older = rooms->newest;
    rooms->places[at].newer = 0;
    *(rooms->newest != 0 ? &rooms->places[rooms->newest].newer : &rooms->oldest) = at;
    rooms->newest = at;
}

static void drop_oldest(bt_kv_room_ranks_t *rooms)
{
    uint32_t at = rooms->oldest;
    uint32_t *link = bucket_of(rooms, rooms->places[at].room);

    while (*link != at)
        link = &rooms->places[*link].chain;
    *link = rooms->places[at].chain;
    unlink_age(rooms, at);
    rooms->places[at].chain = rooms->free;
    rooms->free = at;
    rooms->count--;
}

static uint32_t new_place(bt_kv_room_ranks_t *rooms)
{
    if (rooms->count == rooms->max) {
        rooms->evicted++;
        drop_oldest(rooms);
    }
    uint32_t at = rooms->free;
    if (at != 0)
        rooms->free = rooms->places[at].chain;
    else
        at = ++rooms->used;
    rooms->count++;
    return at;
}

void bt_kv_room_ranks_put(bt_kv_room_ranks_t *rooms, uint64_t room, uint32_t dp_rank,
                          uint64_t now_ms)
{
    uint32_t at = find(rooms, room);

    if (at != 0) {
        unlink_age(rooms, at);
    } else {
        at = new_place(rooms);
        uint32_t *bucket = bucket_of(rooms, room);
        rooms->places[at] = (bt_kv_room_rank_t){.room = room, .chain = *bucket};
        *bucket = at;
    }
    rooms->places[at].dp_rank = dp_rank;
    rooms->places[at].put_ms = now_ms;
    link_newest(rooms, at);
}

void bt_kv_room_ranks_expire(bt_kv_room_ranks_t *rooms, uint64_t now_ms)
{
    while (rooms->oldest != 0) {
        uint64_t put_ms = rooms->places[rooms->oldest].put_ms;
        if (now_ms <= put_ms || now_ms - put_ms <= rooms->ttl_ms)
            return;
        drop_oldest(rooms);
    }
}

void bt_kv_room_ranks_clear(bt_kv_room_ranks_t *rooms)
{
    while (rooms->oldest != 0)
        drop_oldest(rooms);
}
