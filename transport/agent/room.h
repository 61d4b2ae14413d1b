/* room.h - the slots that rooms live in, and the one word of each that everybody may read.
 *
 * Owner: the agent; a slot's word is written under the agent's lock and read by any thread without it.
 * Life:  bt_kv_rooms_take -> states move forward -> bt_kv_rooms_give, which makes every copy of the handle stale.
 * Flow:  a handle is (epoch, slot + 1); a word is (epoch, state). They are compared in one load, so a reused slot cannot lie.
 * Cost:  O(1); bodies are kept for reuse, so nothing is allocated after warm-up.
 */
#ifndef BT_TRANSPORT_ROOM_H
#define BT_TRANSPORT_ROOM_H

#include "base/list.h"
#include "transport/baton_kv.h"

#include <stdatomic.h>

#define BT_KV_ROOM_STATES 5
/* The transition table, the only one: bit s of bt_kv_room_next[from] is set when a room may go from `from` to s. spec/model holds the protocol's
 * model against it. Success and Failed have no way out; nothing goes back; a step is never skipped on the way to Success. */
extern const uint8_t bt_kv_room_next[BT_KV_ROOM_STATES];

struct bt_kv_room;

typedef struct bt_kv_rooms {
    _Atomic uint64_t *words;    /* [max]: epoch << 8 | state, or 0xff when nobody has the slot */
    struct bt_kv_room **bodies; /* [max]; kept when the slot is given back */
    uint32_t *given;            /* ring of slots that have been used before, oldest first */
    uint32_t max, fresh;        /* slots; the first one never used */
    uint32_t given_at, given_count;
    uint32_t open;
} bt_kv_rooms_t;

int bt_kv_rooms_init(bt_kv_rooms_t *rooms, uint32_t max);
/* The bodies are the caller's to free first. */
void bt_kv_rooms_fini(bt_kv_rooms_t *rooms);
/* A slot in Bootstrapping; BT_E_LIMIT when all are open. bodies[slot] is what it was. */
int bt_kv_rooms_take(bt_kv_rooms_t *rooms, bt_kv_room_t *room_p);
void bt_kv_rooms_give(bt_kv_rooms_t *rooms, bt_kv_room_t room);
/* False: the table forbids it (nothing happens). */
bool bt_kv_rooms_move(bt_kv_rooms_t *rooms, bt_kv_room_t room, enum bt_kv_state state);
/* True when the handle names an open room; any thread. */
bool bt_kv_rooms_state(const bt_kv_rooms_t *rooms, bt_kv_room_t room, enum bt_kv_state *state_p);

static inline uint32_t bt_kv_room_slot(bt_kv_room_t room)
{
    return (uint32_t) room - 1;
}

#endif
