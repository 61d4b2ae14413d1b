/* rooms.h - where the two halves of an SGLang request find each other.
 *
 * Owner: the world's table; a room belongs to the bootstrap server of one prefill worker.
 * Life:  first half arrives -> both there -> delivered, or left by all. An aborted room is remembered for a while.
 * Flow:  prefill samples queue up, but there is one decode seat only: who sits down last has it. That is the engine's
 *        behaviour and the reason why a room must never be used twice at once.
 * Cost:  O(1).
 */
#ifndef SIM_ROOMS_H
#define SIM_ROOMS_H

#include "world.h"

typedef struct sim_room {
    struct sim_room *next;
    sim_worker_t *prefill_worker;
    uint64_t number;
    bt_list_t prefills; /* sim_sample_t.room_link */
    sim_sample_t *decode;
    bool has_kv, is_aborted;
    uint64_t kv; /* of the first prefill that came */
    uint64_t aborted_ms;
} sim_room_t;

/* Finds or makes it. NULL when out of memory. */
sim_room_t *sim_room_get(sim_world_t *world, sim_worker_t *prefill_worker, uint64_t number);
/* Takes the sample out of its room; an empty room goes. */
void sim_room_leave(sim_sample_t *sample);
/* Everybody out, room gone. */
void sim_room_close(sim_world_t *world, sim_room_t *room);
void sim_rooms_clear(sim_world_t *world, sim_worker_t *prefill_worker); /* NULL: all */
unsigned sim_rooms_count(const sim_world_t *world, const sim_worker_t *prefill_worker);

#endif
