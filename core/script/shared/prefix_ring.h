/* prefix_ring.h - blocks that this process has newly put into the prefix index, on their way to whoever tells other processes.
 *
 * Owner: whoever made it; one thread writes (the one it is bound to), one reads.
 * Life:  new -> bind on the writing thread -> take ... -> the writing thread ends or binds another -> free.
 * Flow:  bt_prefix_insert -> the ring of its thread, if it has one -> take. What no longer fits is counted and forgotten.
 * Cost:  no locks; 512 KiB; an insert that is told costs one store a block.
 */
#ifndef BT_SCRIPT_PREFIX_RING_H
#define BT_SCRIPT_PREFIX_RING_H

#include <stdint.h>

typedef struct bt_prefix_ring bt_prefix_ring_t;

/* NULL when out of memory. */
bt_prefix_ring_t *bt_prefix_ring_new(void);
void bt_prefix_ring_free(bt_prefix_ring_t *ring); /* NULL is fine */
/* What this thread puts into the index is told here from now on; NULL: nowhere. Threads that only try policies have none. */
void bt_prefix_ring_bind(bt_prefix_ring_t *ring);
/* Blocks that one insert has added for one worker, in the prompt's order. 0 = nothing is there. hashes: BT_PREFIX_BLOCKS_MAX. */
unsigned bt_prefix_ring_take(bt_prefix_ring_t *ring, uint32_t *worker_p, uint64_t *hashes);
uint64_t bt_prefix_ring_dropped(const bt_prefix_ring_t *ring); /* blocks, since the beginning */

/* ---- for prefix_index.c ---- */
/* Begins a row of at most max blocks; NULL when this thread tells nobody, or when there is no room (counted by end). */
typedef struct bt_prefix_row {
    bt_prefix_ring_t *ring;
    uint64_t at; /* of the row's head */
    unsigned count, dropped;
} bt_prefix_row_t;
void bt_prefix_row_begin(bt_prefix_row_t *row);
void bt_prefix_row_add(bt_prefix_row_t *row, uint64_t hash);
void bt_prefix_row_end(bt_prefix_row_t *row, uint32_t worker);

#endif
