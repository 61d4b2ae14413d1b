/* How it works: erased cells keep the chains behind them whole and are used again by the next key that comes along. When three quarters are
 * filled all that is live moves into new cells, twice as many if more than half of these were; readers go on in the old ones, which
 * they see as they were in that moment. */
#include "kvindex/table.h"

#include <stdlib.h>

#include "base/err.h"

#define CELLS_LEAST 1024u

static size_t cells_bytes(uint64_t count)
{
    return sizeof(bt_kv_cells_t) + count * (sizeof(bt_kv_cell_t) + 1);
}

static bt_kv_cells_t *new_cells(uint64_t count)
{
    bt_kv_cells_t *c = calloc(1, cells_bytes(count));

    if (c == NULL)
        return NULL;
    c->mask = count - 1;
    c->used = (_Atomic uint8_t *) (void *) &c->cells[count];
    return c;
}

/* The writer's own view. */
static bt_kv_cells_t *cells_of(const bt_kv_table_t *t)
{
    return atomic_load_explicit(&t->cells, memory_order_relaxed);
}

int bt_kv_table_init(bt_kv_table_t *t, bt_epoch_t *epoch)
{
    bt_kv_cells_t *c = new_cells(CELLS_LEAST);

    *t = (bt_kv_table_t){.epoch = epoch, .bytes = cells_bytes(CELLS_LEAST)};
    atomic_init(&t->cells, c);
    return c != NULL ? 0 : BT_E_NOMEM;
}

void bt_kv_table_fini(bt_kv_table_t *t)
{
    free(cells_of(t));
    atomic_store_explicit(&t->cells, NULL, memory_order_relaxed);
}

static uint64_t key_at(const bt_kv_cells_t *c, uint64_t at)
{
    return atomic_load_explicit(&c->cells[at].key, memory_order_relaxed);
}

bt_kv_cell_t *bt_kv_table_find(bt_kv_table_t *t, uint64_t hash)
{
    bt_kv_cells_t *c = cells_of(t);
    const uint64_t key = bt_kv_key(hash);
    uint64_t at = key & c->mask;

    for (; key_at(c, at) != BT_KV_CELL_FREE; at = (at + 1) & c->mask)
        if (key_at(c, at) == key)
            return &c->cells[at];
    return NULL;
}

void bt_kv_table_touch(bt_kv_table_t *t, const bt_kv_cell_t *cell)
{
    bt_kv_cells_t *c = cells_of(t);

    atomic_store_explicit(&c->used[cell - c->cells], 1, memory_order_relaxed);
}

bt_kv_cell_t *bt_kv_table_oldest(bt_kv_table_t *t)
{
    bt_kv_cells_t *c = cells_of(t);

    while (t->live > 0) {
        const uint64_t at = t->hand++ & c->mask;

        if (key_at(c, at) == BT_KV_CELL_FREE || key_at(c, at) == BT_KV_CELL_ERASED)
            continue;
        if (atomic_exchange_explicit(&c->used[at], 0, memory_order_relaxed) == 0)
            return &c->cells[at];
    }
    return NULL;
}

/* What is not seen by readers yet, or is put where no key stands. */
static void fill(bt_kv_cells_t *c, uint64_t at, uint64_t key, uint64_t owners, uint8_t used)
{
    atomic_store_explicit(&c->used[at], used, memory_order_relaxed);
    atomic_store_explicit(&c->cells[at].owners, owners, memory_order_release);
    atomic_store_explicit(&c->cells[at].key, key, memory_order_release);
}

static void move_all(const bt_kv_cells_t *from, bt_kv_cells_t *to)
{
    for (uint64_t i = 0; i <= from->mask; i++) {
        const uint64_t key = key_at(from, i);
        uint64_t at = key & to->mask;

        if (key == BT_KV_CELL_FREE || key == BT_KV_CELL_ERASED)
            continue;
        while (key_at(to, at) != BT_KV_CELL_FREE)
            at = (at + 1) & to->mask;
        fill(to, at, key, atomic_load_explicit(&from->cells[i].owners, memory_order_relaxed),
             atomic_load_explicit(&from->used[i], memory_order_relaxed));
    }
}

static int make_room(bt_kv_table_t *t)
{
    bt_kv_cells_t *old = cells_of(t);
    const uint64_t count = old->mask + 1;

    if (t->filled < count / 4 * 3)
        return 0;
    const uint64_t wanted = t->live > count / 2 ? 2 * count : count;
    bt_kv_cells_t *fresh = new_cells(wanted);
    if (fresh == NULL)
        return BT_E_NOMEM;
    move_all(old, fresh);
    t->filled = t->live;
    t->bytes = cells_bytes(wanted);
    atomic_store(&t->cells, fresh);
    bt_epoch_retire(t->epoch, old, cells_bytes(count));
    bt_epoch_collect(t->epoch);
    return 0;
}

bt_kv_cell_t *bt_kv_table_put(bt_kv_table_t *t, uint64_t hash, uint64_t owners, bool *is_new_p)
{
    const uint64_t key = bt_kv_key(hash);

    *is_new_p = false;
    if (make_room(t) < 0)
        return NULL;
    bt_kv_cells_t *c = cells_of(t);
    uint64_t at = key & c->mask, place = UINT64_MAX;
    for (; key_at(c, at) != BT_KV_CELL_FREE; at = (at + 1) & c->mask) {
        if (key_at(c, at) == key)
            return &c->cells[at];
        if (key_at(c, at) == BT_KV_CELL_ERASED && place == UINT64_MAX)
            place = at;
    }
    if (place == UINT64_MAX) {
        place = at;
        t->filled++;
    }
    t->live++;
    *is_new_p = true;
    fill(c, place, key, owners, 1);
    return &c->cells[place];
}

void bt_kv_table_erase(bt_kv_table_t *t, bt_kv_cell_t *cell)
{
    atomic_store_explicit(&cell->key, BT_KV_CELL_ERASED, memory_order_relaxed);
    atomic_store_explicit(&cell->owners, 0, memory_order_release);
    t->live--;
}
