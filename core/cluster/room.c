#include "cluster/room.h"

#include "base/err.h"
#include "base/rand.h"

#include <pthread.h>
#include <stdlib.h>

/* A room is [0][10 bits of loop, xor a word drawn once a process][53 bits of chance], moved by less than dp_size so that its remainder is the rank. The
 * table is a hash set with linear probing; closing shifts the run behind the hole back, so there are no tombstones and a
 * gateway that has minted a thousand million rooms probes as briefly as a fresh one. */

#define RANDOM_BITS 53
#define ROOM_MIN (UINT64_C(1) << 40) /* below it are TensorRT-LLM's own request ids */
#define LOOP_MASK 0x3ffU
#define CAP_MIN 64U

static unsigned process_word;

static void draw_process_word(void)
{
    bt_rand_secure(&process_word, sizeof process_word);
    process_word &= LOOP_MASK;
}

/* Replicas before one prefill shall differ in all 63 bits. */
unsigned bt_rooms_word(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, draw_process_word);
    return process_word;
}

unsigned bt_rooms_loop_of(uint64_t room, unsigned word)
{
    return ((unsigned) (room >> RANDOM_BITS) ^ word) & LOOP_MASK;
}

bool bt_rooms_may_own(uint64_t room, unsigned word, unsigned loops)
{
    return room != 0 && room <= INT64_MAX && bt_rooms_loop_of(room, word) < loops;
}

int bt_rooms_init(bt_rooms_t *r, unsigned loop_index)
{
    *r = (bt_rooms_t){.cap = CAP_MIN,
                      .prefix = (uint64_t) ((loop_index ^ bt_rooms_word()) & LOOP_MASK)
                                << RANDOM_BITS};
    r->slots = calloc(r->cap, sizeof *r->slots);
    return r->slots != NULL ? 0 : BT_E_NOMEM;
}

void bt_rooms_fini(bt_rooms_t *r)
{
    free(r->slots);
    *r = (bt_rooms_t){0};
}

static unsigned home_of(const bt_rooms_t *r, uint64_t room)
{
    return (unsigned) ((room * UINT64_C(0x9e3779b97f4a7c15)) >> 32) & (r->cap - 1);
}

/* Slot that holds the room, or the free slot where it would go. */
static unsigned find_slot(const bt_rooms_t *r, uint64_t room)
{
    unsigned i = home_of(r, room);
    while (r->slots[i].room != 0 && r->slots[i].room != room)
        i = (i + 1) & (r->cap - 1);
    return i;
}

static int grow(bt_rooms_t *r)
{
    bt_rooms_t bigger = *r;
    if (r->cap > UINT32_MAX / 4)
        return BT_E_NOMEM;
    bigger.cap = r->cap * 2;
    bigger.slots = calloc(bigger.cap, sizeof *bigger.slots);
    if (bigger.slots == NULL)
        return BT_E_NOMEM;
    for (unsigned i = 0; i < r->cap; i++)
        if (r->slots[i].room != 0)
            bigger.slots[find_slot(&bigger, r->slots[i].room)] = r->slots[i];
    free(r->slots);
    *r = bigger;
    return 0;
}

/* 0 when the draw is no good: next draw. */
static uint64_t draw(const bt_rooms_t *r, unsigned dp_size, unsigned rank)
{
    uint64_t room = r->prefix | (bt_rand_u64() >> (64 - RANDOM_BITS));
    if (dp_size > 1) {
        room -= room % dp_size;
        room += rank;
    }
    /* The move may have left this loop's range at either end. */
    return room >> RANDOM_BITS == r->prefix >> RANDOM_BITS && room >= ROOM_MIN ? room : 0;
}

int bt_rooms_open(bt_rooms_t *r, unsigned dp_size, unsigned rank, void *owner, uint64_t *room_p)
{
    if (dp_size > 1 && rank >= dp_size)
        return BT_E_INVAL;
    if (r->live >= r->cap / 2) {
        int rc = grow(r);
        if (rc < 0)
            return rc;
    }
    for (;;) {
        uint64_t room = draw(r, dp_size, rank);
        unsigned i = find_slot(r, room);
        if (room == 0 || r->slots[i].room == room)
            continue;
        r->slots[i] = (struct bt_room_slot){room, owner};
        r->live++;
        *room_p = room;
        return 0;
    }
}

void bt_rooms_close(bt_rooms_t *r, uint64_t room)
{
    if (room == 0 || r->slots == NULL)
        return;
    unsigned mask = r->cap - 1, hole = find_slot(r, room);
    if (r->slots[hole].room == 0)
        return;
    r->live--;
    for (unsigned i = (hole + 1) & mask; r->slots[i].room != 0; i = (i + 1) & mask) {
        /* An entry may move back into the hole only if that is not before its home. */
        if (((i - home_of(r, r->slots[i].room)) & mask) < ((i - hole) & mask))
            continue;
        r->slots[hole] = r->slots[i];
        hole = i;
    }
    r->slots[hole] = (struct bt_room_slot){0, NULL};
}

int bt_rooms_has(const bt_rooms_t *r, uint64_t room)
{
    return room != 0 && r->slots != NULL && r->slots[find_slot(r, room)].room == room;
}

void *bt_rooms_owner(const bt_rooms_t *r, uint64_t room)
{
    return bt_rooms_has(r, room) ? r->slots[find_slot(r, room)].owner : NULL;
}
