/* How it works: a cell is 40 bits of block and worker, and the time in 24 bits of ms, which come round after four hours. */
#include "script/shared/prefix_sent.h"

#include <stdatomic.h>
#include <stdbool.h>

#define CELLS (1u << 18)
#define AHEAD 16u /* blocks whose cells come into the cache meanwhile */
#define TIME_BITS 24
#define TIME_MASK ((UINT64_C(1) << TIME_BITS) - 1)

static _Atomic uint64_t cells[CELLS];

static uint64_t key_of(uint64_t hash, uint32_t worker)
{
    return (hash ^ worker * UINT64_C(0x9e3779b97f4a7c15)) * UINT64_C(0xbf58476d1ce4e5b9);
}

void bt_prefix_sent_note(const uint64_t *hashes, unsigned count, uint32_t worker, uint64_t now_ms)
{
    for (unsigned i = 0; i < count; i++) {
        const uint64_t key = key_of(hashes[i], worker);
        if (count - i > AHEAD)
            __builtin_prefetch(&cells[key_of(hashes[i + AHEAD], worker) % CELLS], 1);
        atomic_store_explicit(&cells[key % CELLS], (key & ~TIME_MASK) | (now_ms & TIME_MASK),
                              memory_order_relaxed);
    }
}

static bool was_sent(uint64_t key, uint64_t now_ms)
{
    const uint64_t cell = atomic_load_explicit(&cells[key % CELLS], memory_order_relaxed);

    return ((cell ^ key) & ~TIME_MASK) == 0 && ((now_ms - cell) & TIME_MASK) < BT_PREFIX_SENT_MS;
}

unsigned bt_prefix_sent_count(const uint64_t *hashes, unsigned known, unsigned count,
                              uint32_t worker, uint64_t now_ms)
{
    while (known < count && was_sent(key_of(hashes[known], worker), now_ms))
        known++;
    return known;
}
