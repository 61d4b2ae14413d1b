/* room.h - ids that join two legs and the KV transfer: 63 bits, never 0, unique among live ones; and whose each is.
 *
 * Owner: one table per loop; the loop's index is part of every room it mints, so two loops never collide and no lock is
 *        needed. Rest of the bits are random, so rooms of other gateways and of engines' warm-ups do not collide either.
 * Life:  open -> close when the attempt has ended and both legs are settled. A retry opens a new one.
 * Flow:  room % dp_size is the wanted rank (SGLang follow_bootstrap_room). What comes back with a room's number finds its owner
 *        here, or nobody any more.
 * Cost:  O(1); open addressing, grows by doubling.
 *
 * The upper 10 bits of a room are the loop's index, xor a word drawn once a process. Who is told the word and how many loops there are knows whether a room may be
 * of this process: that is the whole directory of a fleet's rooms (core/fleet/replica.c), nothing is written anywhere for a room.
 */
#ifndef BT_CLUSTER_ROOM_H
#define BT_CLUSTER_ROOM_H

#include <stdbool.h>
#include <stdint.h>

struct bt_room_slot {
    uint64_t room; /* 0 = free */
    void *owner;
};

typedef struct bt_rooms {
    struct bt_room_slot *slots;
    unsigned cap, live;
    uint64_t prefix; /* loop's part, already shifted */
} bt_rooms_t;

int bt_rooms_init(bt_rooms_t *r, unsigned loop_index);
void bt_rooms_fini(bt_rooms_t *r);
/* dp_size 0 or 1: any. BT_E_INVAL when rank >= dp_size, BT_E_NOMEM. Result in [1, 2^63-1]. owner is borrowed until close. */
int bt_rooms_open(bt_rooms_t *r, unsigned dp_size, unsigned rank, void *owner, uint64_t *room_p);
void bt_rooms_close(bt_rooms_t *r, uint64_t room); /* unknown: nothing */
int bt_rooms_has(const bt_rooms_t *r, uint64_t room);
void *bt_rooms_owner(const bt_rooms_t *r, uint64_t room); /* NULL: not open */

/* This process's word, below 1024. Drawn on first use; any thread. */
unsigned bt_rooms_word(void);
/* The index of the loop that has minted the room, if a process with this word has. */
unsigned bt_rooms_loop_of(uint64_t room, unsigned word);
/* May a process with this word and so many loops have minted it? Its own rooms: always. Another's: by chance, loops in 1024. */
bool bt_rooms_may_own(uint64_t room, unsigned word, unsigned loops);

#endif
