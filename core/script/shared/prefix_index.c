/* How it works: a set-associative cache. A key picks a set of eight ways; the keys of a set are one cache line, the workers
 * of a way another. Keys are hashes of the whole prompt up to a block, so "worker in entry i" says all blocks up to i, and a
 * flat table does what others keep a tree for.
 *
 * Threads: a way is taken by swapping its key for BUSY, then emptied, then given the new key. A reader looks at the key
 * again after reading the workers. What can go wrong is listed in the header and does no harm. */
#include "script/shared/prefix_index.h"

#include "script/shared/prefix_ring.h"

#include <stdatomic.h>
#include <string.h>

#define SETS (1u << 15)
#define WAYS 8
#define CELLS 15 /* workers remembered per block */
#define BUSY 1u
#define AHEAD 16u           /* blocks: what they lead to comes into the cache meanwhile */
#define COUNTERS (1u << 16) /* ids count up, so live workers rarely share one */

struct way {
    _Alignas(64) _Atomic uint32_t workers[CELLS]; /* 0 = free */
    _Atomic uint32_t turn;                        /* which one goes next when all are taken */
};

static struct {
    _Alignas(64) _Atomic uint64_t keys[WAYS];
} heads[SETS];
static _Atomic uint32_t used_ms[SETS][WAYS];
static struct way ways[SETS][WAYS];
static _Atomic int32_t counters[COUNTERS];

static uint64_t key_of(uint64_t hash)
{
    return hash > BUSY ? hash : hash + 2; /* 0 is a free way */
}

static unsigned set_of(uint64_t key)
{
    return (unsigned) (key >> 32) % SETS;
}

/* Of the block that is AHEAD of this one. */
static void fetch_head(const uint64_t *hashes, unsigned i, unsigned n)
{
    if (n - i > AHEAD)
        __builtin_prefetch(&heads[set_of(key_of(hashes[i + AHEAD]))]);
}

static int find(unsigned set, uint64_t key)
{
    for (int i = 0; i < WAYS; i++)
        if (atomic_load_explicit(&heads[set].keys[i], memory_order_acquire) == key)
            return i;
    return -1;
}

static void count(uint32_t worker, int32_t delta)
{
    if (worker != 0)
        atomic_fetch_add_explicit(&counters[worker % COUNTERS], delta, memory_order_relaxed);
}

static int oldest(unsigned set, uint32_t now)
{
    int best = 0;
    uint32_t best_age = 0;

    for (int i = 0; i < WAYS; i++) {
        uint32_t age = now - atomic_load_explicit(&used_ms[set][i], memory_order_relaxed);

        if (atomic_load_explicit(&heads[set].keys[i], memory_order_relaxed) == 0)
            return i;
        if (age >= best_age) {
            best = i;
            best_age = age;
        }
    }
    return best;
}

/* An emptied way for the key, or -1 when another thread is at it. */
static int take(unsigned set, uint64_t key, uint32_t now)
{
    int i = oldest(set, now);
    uint64_t old = atomic_load_explicit(&heads[set].keys[i], memory_order_relaxed);

    if (old == BUSY ||
        !atomic_compare_exchange_strong_explicit(&heads[set].keys[i], &old, BUSY,
                                                 memory_order_acq_rel, memory_order_relaxed))
        return -1;
    for (int c = 0; c < CELLS; c++)
        count(atomic_exchange_explicit(&ways[set][i].workers[c], 0, memory_order_relaxed), -1);
    atomic_store_explicit(&used_ms[set][i], now, memory_order_relaxed);
    atomic_store_explicit(&heads[set].keys[i], key, memory_order_release);
    return i;
}

/* False when it stood there already. */
static bool add_worker(struct way *way, uint32_t worker)
{
    unsigned turn;

    for (int c = 0; c < CELLS; c++) {
        uint32_t seen = atomic_load_explicit(&way->workers[c], memory_order_relaxed);

        if (seen == 0 &&
            atomic_compare_exchange_strong_explicit(&way->workers[c], &seen, worker,
                                                    memory_order_relaxed, memory_order_relaxed)) {
            count(worker, 1);
            return true;
        }
        if (seen == worker)
            return false;
    }
    turn = atomic_fetch_add_explicit(&way->turn, 1, memory_order_relaxed) % CELLS;
    count(atomic_exchange_explicit(&way->workers[turn], worker, memory_order_relaxed), -1);
    count(worker, 1);
    return true;
}

static void insert(const uint64_t *hashes, unsigned n, uint32_t worker, uint64_t now_ms,
                   bt_prefix_row_t *row)
{
    for (unsigned i = 0; i < n; i++) {
        uint64_t key = key_of(hashes[i]);
        unsigned set = set_of(key);

        fetch_head(hashes, i, n);
        int way = find(set, key);
        if (way < 0)
            way = take(set, key, (uint32_t) now_ms);
        else
            atomic_store_explicit(&used_ms[set][way], (uint32_t) now_ms, memory_order_relaxed);
        if (way >= 0 && add_worker(&ways[set][way], worker))
            bt_prefix_row_add(row, hashes[i]);
    }
}

void bt_prefix_insert(const uint64_t *hashes, unsigned n, uint32_t worker, uint64_t now_ms)
{
    bt_prefix_row_t row;

    bt_prefix_row_begin(&row);
    insert(hashes, n, worker, now_ms, &row);
    bt_prefix_row_end(&row, worker);
}

void bt_prefix_insert_untold(const uint64_t *hashes, unsigned n, uint32_t worker, uint64_t now_ms)
{
    insert(hashes, n, worker, now_ms, &(bt_prefix_row_t){.ring = NULL});
}

void bt_prefix_matches_clear(bt_prefix_matches_t *m)
{
    m->longest = m->count = 0;
    memset(m->slots, 0, sizeof(m->slots));
}

static unsigned slot_of(const bt_prefix_matches_t *m, uint32_t worker)
{
    unsigned slot = worker % sizeof(m->slots);

    while (m->slots[slot] != 0 && m->items[m->slots[slot] - 1].worker != worker)
        slot = (slot + 1) % sizeof(m->slots);
    return slot;
}

unsigned bt_prefix_matched(const bt_prefix_matches_t *m, uint32_t worker)
{
    unsigned at = m->count != 0 ? m->slots[slot_of(m, worker)] : 0;

    return at != 0 ? m->items[at - 1].blocks : 0;
}

void bt_prefix_matches_add(bt_prefix_matches_t *m, uint32_t worker, unsigned blocks)
{
    unsigned slot = slot_of(m, worker);

    if (m->slots[slot] != 0 || m->count == BT_PREFIX_MATCHES_MAX)
        return;
    m->items[m->count++] = (struct bt_prefix_match){worker, blocks};
    m->slots[slot] = (unsigned char) m->count;
}

/* The workers of a block into seen; false when the block is gone, or when they are those that `seen` has already. */
static bool read_way(uint64_t hash, uint32_t seen[CELLS])
{
    uint64_t key = key_of(hash);
    unsigned set = set_of(key);
    int way = find(set, key);
    uint32_t now[CELLS];

    if (way < 0)
        return false;
    for (int c = 0; c < CELLS; c++)
        now[c] = atomic_load_explicit(&ways[set][way].workers[c], memory_order_acquire);
    if (atomic_load_explicit(&heads[set].keys[way], memory_order_relaxed) != key ||
        memcmp(now, seen, sizeof(now)) == 0)
        return false;
    memcpy(seen, now, sizeof(now));
    return true;
}

/* How many leading blocks somebody has. Their workers are on their way into the cache. */
static unsigned find_longest(const uint64_t *hashes, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        const uint64_t key = key_of(hashes[i]);
        const unsigned set = set_of(key);

        fetch_head(hashes, i, n);
        const int way = find(set, key);
        if (way < 0)
            return i;
        __builtin_prefetch(&ways[set][way]);
    }
    return n;
}

/* Forward over keys alone; then backward over workers, so that each is met first at its longest match. */
void bt_prefix_find(const uint64_t *hashes, unsigned n, bt_prefix_matches_t *m)
{
    uint32_t seen[CELLS] = {0};

    bt_prefix_matches_clear(m);
    m->longest = find_longest(hashes, n);
    for (unsigned i = m->longest; i > 0 && m->count < BT_PREFIX_MATCHES_MAX; i--)
        if (read_way(hashes[i - 1], seen))
            for (int c = 0; c < CELLS; c++)
                if (seen[c] != 0)
                    bt_prefix_matches_add(m, seen[c], i);
}

void bt_prefix_set_cached(uint32_t worker, unsigned blocks)
{
    atomic_store_explicit(&counters[worker % COUNTERS], (int32_t) blocks, memory_order_relaxed);
}

unsigned bt_prefix_cached(uint32_t worker)
{
    int32_t n = atomic_load_explicit(&counters[worker % COUNTERS], memory_order_relaxed);

    return n > 0 ? (unsigned) n : 0;
}

static _Atomic uint32_t inflow_8; /* moving average, times 8 */

unsigned bt_prefix_inflow(void)
{
    return atomic_load_explicit(&inflow_8, memory_order_relaxed) / 8;
}

void bt_prefix_note_inflow(unsigned blocks)
{
    uint32_t old = atomic_load_explicit(&inflow_8, memory_order_relaxed);

    atomic_store_explicit(&inflow_8, old - (old + 7) / 8 + blocks, memory_order_relaxed);
}

void bt_prefix_forget(uint32_t worker)
{
    for (unsigned set = 0; set < SETS; set++)
        for (int i = 0; i < WAYS; i++) {
            if (atomic_load_explicit(&heads[set].keys[i], memory_order_relaxed) == 0)
                continue;
            for (int c = 0; c < CELLS; c++) {
                uint32_t seen = worker;
                if (atomic_compare_exchange_strong_explicit(&ways[set][i].workers[c], &seen, 0,
                                                            memory_order_relaxed,
                                                            memory_order_relaxed))
                    count(worker, -1);
            }
        }
}

/* Written, not read: what is only read stays the kernel's one page of zeros. A set is never larger than a page. */
void bt_prefix_warm(void)
{
    static atomic_bool is_warm;

    if (atomic_exchange_explicit(&is_warm, true, memory_order_relaxed))
        return;
    for (unsigned set = 0; set < SETS; set++) {
        atomic_fetch_or_explicit(&heads[set].keys[0], 0, memory_order_relaxed);
        atomic_fetch_or_explicit(&used_ms[set][0], 0, memory_order_relaxed);
        atomic_fetch_or_explicit(&ways[set][0].turn, 0, memory_order_relaxed);
    }
    for (unsigned i = 0; i < COUNTERS; i++)
        atomic_fetch_or_explicit(&counters[i], 0, memory_order_relaxed);
}

void bt_prefix_clear(void)
{
    for (unsigned set = 0; set < SETS; set++)
        for (int i = 0; i < WAYS; i++) {
            if (atomic_load(&heads[set].keys[i]) == 0)
                continue;
            atomic_store(&heads[set].keys[i], 0);
            for (int c = 0; c < CELLS; c++)
                atomic_store(&ways[set][i].workers[c], 0);
        }
    for (unsigned i = 0; i < COUNTERS; i++)
        atomic_store(&counters[i], 0);
}
