/* rooms.c - see rooms.h. */
#include "rooms.h"

#include "words.h"

#include <stdlib.h>

#define TABLE 8192U
#define ABORTED_KEPT_MS 120000U

static sim_room_t **slot_of(sim_world_t *world, const sim_worker_t *worker, uint64_t number)
{
    return &world->rooms[sim_mix(number ^ (uint64_t) (uintptr_t) worker) & (TABLE - 1)];
}

static void unlink_room(sim_world_t *world, sim_room_t *room)
{
    sim_room_t **at = slot_of(world, room->prefill_worker, room->number);

    while (*at != room)
        at = &(*at)->next;
    *at = room->next;
}

void sim_room_close(sim_world_t *world, sim_room_t *room)
{
    unlink_room(world, room);
    while (!bt_list_empty(&room->prefills)) {
        sim_sample_t *s = bt_container_of(room->prefills.next, sim_sample_t, room_link);
        bt_list_remove(&s->room_link);
        s->room = NULL;
    }
    if (room->decode != NULL)
        room->decode->room = NULL;
    free(room);
}

static bool is_stale(const sim_room_t *room)
{
    return room->is_aborted && bt_clock_ms() - room->aborted_ms > ABORTED_KEPT_MS;
}

sim_room_t *sim_room_get(sim_world_t *world, sim_worker_t *prefill_worker, uint64_t number)
{
    sim_room_t *room, **slot;

    if (world->rooms == NULL)
        world->rooms = calloc(TABLE, sizeof(*world->rooms));
    if (world->rooms == NULL)
        return NULL;
    slot = slot_of(world, prefill_worker, number);
    for (sim_room_t *next, *it = *slot; it != NULL; it = next) {
        next = it->next;
        if (is_stale(it))
            sim_room_close(world, it);
        else if (it->number == number && it->prefill_worker == prefill_worker)
            return it;
    }
    room = calloc(1, sizeof(*room));
    if (room == NULL)
        return NULL;
    room->prefill_worker = prefill_worker;
    room->number = number;
    bt_list_init(&room->prefills);
    room->next = *slot;
    *slot = room;
    return room;
}

void sim_room_leave(sim_sample_t *sample)
{
    sim_room_t *room = sample->room;

    if (room == NULL)
        return;
    if (room->decode == sample)
        room->decode = NULL;
    bt_list_remove(&sample->room_link);
    sample->room = NULL;
    if (room->decode == NULL && bt_list_empty(&room->prefills) && !room->is_aborted)
        sim_room_close(sample->job->worker->world, room);
}

void sim_rooms_clear(sim_world_t *world, sim_worker_t *prefill_worker)
{
    for (unsigned i = 0; world->rooms != NULL && i < TABLE; i++) {
        sim_room_t *room = world->rooms[i];
        while (room != NULL) {
            sim_room_t *next = room->next;
            if (prefill_worker == NULL || room->prefill_worker == prefill_worker)
                sim_room_close(world, room);
            room = next;
        }
    }
    if (prefill_worker == NULL) {
        free(world->rooms);
        world->rooms = NULL;
    }
}

unsigned sim_rooms_count(const sim_world_t *world, const sim_worker_t *prefill_worker)
{
    unsigned count = 0;

    for (unsigned i = 0; world->rooms != NULL && i < TABLE; i++)
        for (const sim_room_t *room = world->rooms[i]; room != NULL; room = room->next)
            count += room->prefill_worker == prefill_worker && !room->is_aborted;
    return count;
}
