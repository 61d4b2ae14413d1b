/* epoch.h - when may memory be freed that other threads may be reading? When all who read it then have left.
 *
 * Owner: one writer; readers have a place each.
 * Life:  init -> join, leave -> fini, when no reader is inside.
 * Flow:  reader: enter -> load pointers, read -> exit. Writer: retire the old memory, publish the new pointer, in any order -> collect, when
 *        nothing retired can be found any more -> a later collect frees it.
 * Cost:  reader: a store that is seen by all and a plain one. Writer: a look at each place in a collect. Nobody waits for anybody: a
 *        reader that stays inside only keeps memory from being freed.
 *
 * Pointers that are read so are stored and loaded with memory_order_seq_cst: a reader that the writer does not see inside is then one
 * that sees the new pointer.
 */
#ifndef BT_KVINDEX_EPOCH_H
#define BT_KVINDEX_EPOCH_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define BT_EPOCH_READERS_MAX 1024 /* as many as a gateway has loops at most */

typedef struct bt_epoch {
    _Atomic uint64_t now;
    struct bt_epoch_place {
        _Alignas(64) _Atomic uint64_t at; /* 0 = outside */
    } places[BT_EPOCH_READERS_MAX];
    _Atomic unsigned readers;
    struct bt_retired *oldest, *newest;
    struct bt_retired *unmarked; /* the first that no collect has seen */
    size_t retired_bytes;
} bt_epoch_t;

void bt_epoch_init(bt_epoch_t *e);
void bt_epoch_fini(bt_epoch_t *e);
/* A place for a thread, for good. BT_E_LIMIT. */
int bt_epoch_join(bt_epoch_t *e, unsigned *place_p);

static inline void bt_epoch_enter(bt_epoch_t *e, unsigned place)
{
    atomic_store(&e->places[place].at, atomic_load(&e->now));
}

static inline void bt_epoch_exit(bt_epoch_t *e, unsigned place)
{
    atomic_store_explicit(&e->places[place].at, 0, memory_order_release);
}

/* Takes memory of malloc. Without memory to note it, it is kept for good rather than freed too early. */
void bt_epoch_retire(bt_epoch_t *e, void *memory, size_t bytes);
void bt_epoch_collect(bt_epoch_t *e);

#endif
