/* table.h - blocks by our own hash, for one writer and any number of readers that never wait.
 *
 * Owner: the index's writer.
 * Life:  init -> put, erase -> fini. Cells that were outgrown are retired (epoch.h).
 * Flow:  open addressing, linear from the first cell of a cache line on: a key appears when its owners are there, and is looked at again when they
 *        were read.
 * Cost:  16 bytes and a bit a cell, of which at most three quarters are used; readers: one cache line a block, most of the time.
 */
#ifndef BT_KVINDEX_TABLE_H
#define BT_KVINDEX_TABLE_H

#include "kvindex/epoch.h"

#include <stdbool.h>

#define BT_KV_CELL_FREE UINT64_C(0)
#define BT_KV_CELL_ERASED UINT64_C(1)
#define BT_KV_LINE 64u /* bytes that come from memory at once */

typedef struct bt_kv_cell {
    _Atomic uint64_t key, owners;
} bt_kv_cell_t;

typedef struct bt_kv_cells {
    uint64_t mask;
    /* A bit each: stored or asked for since the hand last came by. Behind the cells: so small that it stays in a core's cache. */
    _Atomic uint64_t *used;
    bt_kv_cell_t *cells; /* in this very memory, from a line's first byte on */
} bt_kv_cells_t;

typedef struct bt_kv_table {
    bt_epoch_t *epoch;
    _Atomic(bt_kv_cells_t *) cells;
    uint64_t live, filled; /* erased ones are filled, too */
    uint64_t hand;         /* the cell that is looked at next for one that nobody uses */
    size_t bytes;
} bt_kv_table_t;

static inline uint64_t bt_kv_key(uint64_t hash)
{
    return hash > BT_KV_CELL_ERASED ? hash : hash + 2;
}

/* Where a key is looked for first. */
static inline uint64_t bt_kv_cells_home(const bt_kv_cells_t *c, uint64_t key)
{
    return key & c->mask & ~(uint64_t) (BT_KV_LINE / sizeof(bt_kv_cell_t) - 1);
}

int bt_kv_table_init(bt_kv_table_t *t, bt_epoch_t *epoch);
void bt_kv_table_fini(bt_kv_table_t *t);
/* The writer's. NULL: it is not there. */
bt_kv_cell_t *bt_kv_table_find(const bt_kv_table_t *t, uint64_t hash);
/* Found, or new with these owners. NULL: out of memory. Cells may move: none found before is good any more. */
bt_kv_cell_t *bt_kv_table_put(bt_kv_table_t *t, uint64_t hash, uint64_t owners, bool *is_new_p);
void bt_kv_table_erase(bt_kv_table_t *t, bt_kv_cell_t *cell);
void bt_kv_table_touch(bt_kv_table_t *t, const bt_kv_cell_t *cell);
/* The clock's hand goes on to a cell that nobody has used since it last came by. NULL: there is none at all. */
bt_kv_cell_t *bt_kv_table_oldest(bt_kv_table_t *t);

static inline const bt_kv_cells_t *bt_kv_table_cells(const bt_kv_table_t *t)
{
    return atomic_load(&t->cells);
}

static inline void bt_kv_cells_prefetch(const bt_kv_cells_t *c, uint64_t hash)
{
    __builtin_prefetch(&c->cells[bt_kv_cells_home(c, bt_kv_key(hash))]);
}

/* For one that will be put there. Readers' marks stand already, most of the time. */
static inline void bt_kv_cells_prefetch_used(const bt_kv_cells_t *c, uint64_t hash)
{
    __builtin_prefetch(&c->used[bt_kv_cells_home(c, bt_kv_key(hash)) / 64]);
}

/* Not one step: of two marks at once one may be lost, which costs a block its next round. A locked instruction would cost each block the wait for all
 * lines that are still on their way. */
static inline void bt_kv_cells_use(const bt_kv_cells_t *c, uint64_t at)
{
    const uint64_t bit = UINT64_C(1) << at % 64;
    const uint64_t old = atomic_load_explicit(&c->used[at / 64], memory_order_relaxed);

    if ((old & bit) == 0)
        atomic_store_explicit(&c->used[at / 64], old | bit, memory_order_relaxed);
}

/* For readers, within an epoch: the block's owners (owners.h), or 0. Notes that somebody asked. */
static inline uint64_t bt_kv_cells_read(const bt_kv_cells_t *c, uint64_t hash)
{
    const uint64_t key = bt_kv_key(hash);

    for (uint64_t at = bt_kv_cells_home(c, key);; at = (at + 1) & c->mask) {
        const uint64_t seen = atomic_load_explicit(&c->cells[at].key, memory_order_acquire);
        if (seen == BT_KV_CELL_FREE)
            return 0;
        if (seen != key)
            continue;
        const uint64_t owners = atomic_load(&c->cells[at].owners);
        if (atomic_load_explicit(&c->cells[at].key, memory_order_relaxed) != key)
            return 0; /* erased meanwhile; what was read may be another block's */
        bt_kv_cells_use(c, at);
        return owners;
    }
}

#endif
