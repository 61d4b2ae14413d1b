/* How it works: one array of words, a row is a head (worker, count) and its hashes. Positions only grow; the writer publishes
 * a whole row by moving `written`, the reader gives its room back by moving `taken`. */
#include "script/shared/prefix_ring.h"

#include "script/shared/prefix_hash.h"

#include <stdatomic.h>
#include <stdlib.h>

#define WORDS (UINT64_C(1) << 16)

struct bt_prefix_ring {
    _Alignas(64) _Atomic uint64_t written; /* by the writer */
    _Atomic uint64_t dropped;
    _Alignas(64) _Atomic uint64_t taken; /* by the reader */
    _Alignas(64) uint64_t words[WORDS];
};

static _Thread_local bt_prefix_ring_t *bound;

bt_prefix_ring_t *bt_prefix_ring_new(void)
{
    bt_prefix_ring_t *ring = aligned_alloc(64, sizeof(*ring));

    if (ring == NULL)
        return NULL;
    atomic_init(&ring->written, 0);
    atomic_init(&ring->dropped, 0);
    atomic_init(&ring->taken, 0);
    return ring;
}

void bt_prefix_ring_free(bt_prefix_ring_t *ring)
{
    free(ring);
}

void bt_prefix_ring_bind(bt_prefix_ring_t *ring)
{
    bound = ring;
}

uint64_t bt_prefix_ring_dropped(const bt_prefix_ring_t *ring)
{
    return atomic_load_explicit(&ring->dropped, memory_order_relaxed);
}

/* ---- writing ---- */

void bt_prefix_row_begin(bt_prefix_row_t *row)
{
    *row = (bt_prefix_row_t){.ring = bound};
    if (bound != NULL)
        row->at = atomic_load_explicit(&bound->written, memory_order_relaxed);
}

void bt_prefix_row_add(bt_prefix_row_t *row, uint64_t hash)
{
    bt_prefix_ring_t *ring = row->ring;

    if (ring == NULL)
        return;
    uint64_t at = row->at + 1 + row->count;
    /* Nothing behind a gap: nobody finds a block whose parent is not told. */
    if (row->dropped > 0 || row->count == BT_PREFIX_BLOCKS_MAX ||
        at - atomic_load_explicit(&ring->taken, memory_order_acquire) >= WORDS) {
        row->dropped++;
        return;
    }
    ring->words[at % WORDS] = hash;
    row->count++;
}

void bt_prefix_row_end(bt_prefix_row_t *row, uint32_t worker)
{
    bt_prefix_ring_t *ring = row->ring;

    if (ring == NULL)
        return;
    if (row->dropped > 0)
        atomic_fetch_add_explicit(&ring->dropped, row->dropped, memory_order_relaxed);
    if (row->count == 0)
        return;
    ring->words[row->at % WORDS] = (uint64_t) worker << 32 | row->count;
    atomic_store_explicit(&ring->written, row->at + 1 + row->count, memory_order_release);
}

/* ---- reading ---- */

unsigned bt_prefix_ring_take(bt_prefix_ring_t *ring, uint32_t *worker_p, uint64_t *hashes)
{
    const uint64_t at = atomic_load_explicit(&ring->taken, memory_order_relaxed);

    if (at == atomic_load_explicit(&ring->written, memory_order_acquire))
        return 0;
    const uint64_t head = ring->words[at % WORDS];
    const unsigned count = (unsigned) (head & UINT32_MAX);
    for (unsigned i = 0; i < count; i++)
        hashes[i] = ring->words[(at + 1 + i) % WORDS];
    *worker_p = (uint32_t) (head >> 32);
    atomic_store_explicit(&ring->taken, at + 1 + count, memory_order_release);
    return count;
}
