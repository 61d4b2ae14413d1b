/* Handles are never pointers, and a word holds epoch and state together, so a poll is one load and one compare.
 *
 * Slots that were used before wait in a ring, oldest first, and are reused only when REST of them wait there or no fresh one is left. With 32
 * bits of epoch a handle could be taken for another only after REST * 2^32 rooms (2^32 when max_rooms is one).
 */
#include "transport/agent/room.h"

#include "base/err.h"

#include <stdlib.h>

#define REST 256
#define EMPTY 0xff /* in the place of a state */

#define TO(state) (1u << BT_KV_##state)

const uint8_t bt_kv_room_next[BT_KV_ROOM_STATES] = {
    [BT_KV_FAILED] = 0,
    [BT_KV_BOOTSTRAPPING] = TO(WAITING_FOR_INPUT) | TO(FAILED),
    [BT_KV_WAITING_FOR_INPUT] = TO(TRANSFERRING) | TO(FAILED),
    [BT_KV_TRANSFERRING] = TO(SUCCESS) | TO(FAILED),
    [BT_KV_SUCCESS] = 0,
};

static uint64_t word_of(uint32_t epoch, unsigned state)
{
    return (uint64_t) epoch << 8 | state;
}

int bt_kv_rooms_init(bt_kv_rooms_t *rooms, uint32_t max)
{
    *rooms = (bt_kv_rooms_t){.max = max};
    rooms->words = calloc(max, sizeof(*rooms->words));
    rooms->bodies = calloc(max, sizeof(struct bt_kv_room *));
    rooms->given = calloc(max, sizeof(*rooms->given));
    if (rooms->words != NULL && rooms->bodies != NULL && rooms->given != NULL)
        return 0;
    bt_kv_rooms_fini(rooms);
    return BT_E_NOMEM;
}

void bt_kv_rooms_fini(bt_kv_rooms_t *rooms)
{
    free((void *) rooms->words);
    free((void *) rooms->bodies);
    free(rooms->given);
    *rooms = (bt_kv_rooms_t){0};
}

static int free_slot(bt_kv_rooms_t *rooms, uint32_t *slot_p)
{
    bool is_all_used = rooms->fresh == rooms->max;

    if (rooms->given_count >= REST || (is_all_used && rooms->given_count > 0)) {
        *slot_p = rooms->given[rooms->given_at];
        rooms->given_at = (rooms->given_at + 1) % rooms->max;
        rooms->given_count--;
        return 0;
    }
    if (is_all_used)
        return BT_E_LIMIT;
    *slot_p = rooms->fresh++;
    return 0;
}

int bt_kv_rooms_take(bt_kv_rooms_t *rooms, bt_kv_room_t *room_p)
{
    uint32_t slot;
    int rc = free_slot(rooms, &slot);

    if (rc != 0)
        return rc;
    uint32_t epoch =
        (uint32_t) (atomic_load_explicit(&rooms->words[slot], memory_order_relaxed) >> 8) + 1;
    if (epoch == 0) /* wrapped: 0 is that of slots never used */
        epoch = 1;
    atomic_store_explicit(&rooms->words[slot], word_of(epoch, BT_KV_BOOTSTRAPPING),
                          memory_order_release);
    rooms->open++;
    *room_p = (uint64_t) epoch << 32 | (slot + 1);
    return 0;
}

static bool load(const bt_kv_rooms_t *rooms, bt_kv_room_t room, uint64_t *word_p)
{
    uint32_t slot = bt_kv_room_slot(room);

    if (slot >= rooms->max)
        return false;
    *word_p = atomic_load_explicit(&rooms->words[slot], memory_order_acquire);
    return *word_p >> 8 == room >> 32 && room >> 32 != 0 && (*word_p & 0xff) != EMPTY;
}

/* The next taker counts on from the epoch that is left here. */
void bt_kv_rooms_give(bt_kv_rooms_t *rooms, bt_kv_room_t room)
{
    uint64_t word;

    if (!load(rooms, room, &word))
        return;
    uint32_t slot = bt_kv_room_slot(room);
    atomic_store_explicit(&rooms->words[slot], word_of((uint32_t) (room >> 32), EMPTY),
                          memory_order_release);
    rooms->given[(rooms->given_at + rooms->given_count) % rooms->max] = slot;
    rooms->given_count++;
    rooms->open--;
}

bool bt_kv_rooms_move(bt_kv_rooms_t *rooms, bt_kv_room_t room, enum bt_kv_state state)
{
    uint64_t word;

    if (!load(rooms, room, &word) || (bt_kv_room_next[word & 7] >> state & 1) == 0)
        return false;
    atomic_store_explicit(&rooms->words[bt_kv_room_slot(room)],
                          word_of((uint32_t) (room >> 32), state), memory_order_release);
    return true;
}

bool bt_kv_rooms_state(const bt_kv_rooms_t *rooms, bt_kv_room_t room, enum bt_kv_state *state_p)
{
    uint64_t word;

    if (!load(rooms, room, &word))
        return false;
    *state_p = (enum bt_kv_state)(word & 0xff);
    return true;
}
