/* How it works: erased cells keep the chains behind them whole, until a free one is next, and are used again by the next key that comes along.
 * When three quarters are filled all that is live moves into new cells, twice as many if it is more than five eighths of these; readers go on in
 * the old ones, which they see as they were in that moment. */
#include "kvindex/table.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "base/err.h"

#define CELLS_LEAST 1024u
#define HUGE_PAGE ((size_t) 2 << 20)

static size_t cells_bytes(uint64_t count)
{
    return sizeof(bt_kv_cells_t) + BT_KV_LINE + count * sizeof(bt_kv_cell_t) + count / 8;
}

/* Cells are met at random, so with small pages each look-up misses the TLB as well. It is a wish; a kernel without it changes nothing. */
static void wish_for_huge_pages(void *memory, size_t bytes)
{
    const uintptr_t from = ((uintptr_t) memory + HUGE_PAGE - 1) & ~(uintptr_t) (HUGE_PAGE - 1);
    const uintptr_t to = ((uintptr_t) memory + bytes) & ~(uintptr_t) (HUGE_PAGE - 1);

#ifdef MADV_HUGEPAGE
    if (from < to)
        (void) madvise((void *) from, to - from, MADV_HUGEPAGE);
#endif
}

static bt_kv_cells_t *new_cells(uint64_t count)
{
    bt_kv_cells_t *c = calloc(1, cells_bytes(count));

    if (c == NULL)
        return NULL;
    wish_for_huge_pages(c, cells_bytes(count));
    c->mask = count - 1;
    c->cells =
        (bt_kv_cell_t *) (((uintptr_t) (c + 1) + BT_KV_LINE - 1) & ~(uintptr_t) (BT_KV_LINE - 1));
    c->used = (_Atomic uint64_t *) (void *) &c->cells[count];
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

bt_kv_cell_t *bt_kv_table_find(const bt_kv_table_t *t, uint64_t hash)
{
    bt_kv_cells_t *c = cells_of(t);
    const uint64_t key = bt_kv_key(hash);
    uint64_t at = bt_kv_cells_home(c, key);

    for (; key_at(c, at) != BT_KV_CELL_FREE; at = (at + 1) & c->mask)
        if (key_at(c, at) == key)
            return &c->cells[at];
    return NULL;
}

void bt_kv_table_touch(bt_kv_table_t *t, const bt_kv_cell_t *cell)
{
    const bt_kv_cells_t *c = cells_of(t);

    bt_kv_cells_use(c, (uint64_t) (cell - c->cells));
}

bt_kv_cell_t *bt_kv_table_oldest(bt_kv_table_t *t)
{
    bt_kv_cells_t *c = cells_of(t);

    while (t->live > 0) {
        const uint64_t at = t->hand++ & c->mask;

        if (key_at(c, at) == BT_KV_CELL_FREE || key_at(c, at) == BT_KV_CELL_ERASED)
            continue;
        const uint64_t used = atomic_load_explicit(&c->used[at / 64], memory_order_relaxed);
        const uint64_t bit = UINT64_C(1) << at % 64;
        if ((used & bit) == 0)
            return &c->cells[at];
        atomic_store_explicit(&c->used[at / 64], used & ~bit, memory_order_relaxed);
    }
    return NULL;
}

/* What is not seen by readers yet, or is put where no key stands. */
static void fill(bt_kv_cells_t *c, uint64_t at, uint64_t key, uint64_t owners)
{
    atomic_store_explicit(&c->cells[at].owners, owners, memory_order_release);
    atomic_store_explicit(&c->cells[at].key, key, memory_order_release);
}

static void move_all(const bt_kv_cells_t *from, bt_kv_cells_t *to)
{
    for (uint64_t i = 0; i <= from->mask; i++) {
        const uint64_t key = key_at(from, i);
        uint64_t at = bt_kv_cells_home(to, key);

        if (key == BT_KV_CELL_FREE || key == BT_KV_CELL_ERASED)
            continue;
        while (key_at(to, at) != BT_KV_CELL_FREE)
            at = (at + 1) & to->mask;
        fill(to, at, key, atomic_load_explicit(&from->cells[i].owners, memory_order_relaxed));
        if ((atomic_load_explicit(&from->used[i / 64], memory_order_relaxed) >> i % 64 & 1) != 0)
            bt_kv_cells_use(to, at);
    }
}

static int make_room(bt_kv_table_t *t)
{
    bt_kv_cells_t *old = cells_of(t);
    const uint64_t count = old->mask + 1;

    if (t->filled < count / 4 * 3)
        return 0;
    const uint64_t wanted = t->live > count / 8 * 5 ? 2 * count : count;
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
    uint64_t at = bt_kv_cells_home(c, key), place = UINT64_MAX;
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
    fill(c, place, key, owners);
    bt_kv_cells_use(c, place);
    return &c->cells[place];
}

/* Where a free cell is next no chain goes on, so that erased ones before it are free as well. */
static void free_erased(bt_kv_table_t *t, bt_kv_cells_t *c, uint64_t at)
{
    if (key_at(c, (at + 1) & c->mask) != BT_KV_CELL_FREE)
        return;
    for (; key_at(c, at) == BT_KV_CELL_ERASED; at = (at - 1) & c->mask) {
        atomic_store_explicit(&c->cells[at].key, BT_KV_CELL_FREE, memory_order_relaxed);
        t->filled--;
    }
}

void bt_kv_table_erase(bt_kv_table_t *t, bt_kv_cell_t *cell)
{
    const bt_kv_cells_t *c = cells_of(t);

    atomic_store_explicit(&cell->key, BT_KV_CELL_ERASED, memory_order_relaxed);
    atomic_store_explicit(&cell->owners, 0, memory_order_release);
    t->live--;
    free_erased(t, cells_of(t), (uint64_t) (cell - c->cells));
}
