/* How it works: cells are found as in prefix_index.c. A bucket is one word, the time at which it would be full again (GCRA),
 * so taking is one compare-and-swap. A window is a number and two sums; who first comes in a new window turns it, and an
 * amount added at that very moment may be counted in the neighbour. */
#include "script/shared/rate.h"

#include "script/shared/prefix_hash.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

#define SETS 2048u
#define WAYS 8
#define BUSY 1u

enum kind { EWMA = 1, BUCKET, WINDOW };

struct cell {
    _Alignas(64) _Atomic uint64_t used_us;
    _Atomic uint64_t words[3];
};

struct bt_rates {
    struct {
        _Alignas(64) _Atomic uint64_t keys[WAYS];
    } heads[SETS];
    struct cell cells[SETS][WAYS];
};

static bt_rates_t process;

static uint64_t word(struct cell *cell, int i)
{
    return atomic_load_explicit(&cell->words[i], memory_order_relaxed);
}

static void set_word(struct cell *cell, int i, uint64_t value)
{
    atomic_store_explicit(&cell->words[i], value, memory_order_relaxed);
}

static bool swap_word(struct cell *cell, int i, uint64_t old, uint64_t fresh)
{
    return atomic_compare_exchange_strong_explicit(&cell->words[i], &old, fresh,
                                                   memory_order_relaxed, memory_order_relaxed);
}

static int oldest(const bt_rates_t *r, unsigned set)
{
    int best = 0;
    uint64_t best_us = UINT64_MAX;

    for (int i = 0; i < WAYS; i++) {
        uint64_t used_us = atomic_load_explicit(&r->cells[set][i].used_us, memory_order_relaxed);

        if (atomic_load_explicit(&r->heads[set].keys[i], memory_order_relaxed) == 0)
            return i;
        if (used_us < best_us) {
            best = i;
            best_us = used_us;
        }
    }
    return best;
}

static int make(bt_rates_t *r, unsigned set, uint64_t key)
{
    int i = oldest(r, set);
    uint64_t old = atomic_load_explicit(&r->heads[set].keys[i], memory_order_relaxed);

    if (old == BUSY ||
        !atomic_compare_exchange_strong_explicit(&r->heads[set].keys[i], &old, BUSY,
                                                 memory_order_acq_rel, memory_order_relaxed))
        return -1;
    for (int w = 0; w < 3; w++)
        set_word(&r->cells[set][i], w, 0);
    atomic_store_explicit(&r->heads[set].keys[i], key, memory_order_release);
    return i;
}

/* A way of the set with this key, or -1. */
static int find(const bt_rates_t *r, unsigned set, uint64_t key)
{
    for (int i = 0; i < WAYS; i++)
        if (atomic_load_explicit(&r->heads[set].keys[i], memory_order_acquire) == key)
            return i;
    return -1;
}

/* Two threads may make the same name twice at its first use; the way that comes first is found from then on. */
static struct cell *cell_of(bt_rates_t *r, enum kind kind, bt_str_t name, bool make_it,
                            uint64_t now_us)
{
    uint64_t key = bt_hash64(name, kind) | 2; /* neither free nor busy */
    unsigned set = (unsigned) (key >> 32) % SETS;
    int i = find(r, set, key);

    for (int tries = 0; i < 0 && make_it && tries < 16; tries++)
        i = make(r, set, key);
    if (i < 0)
        return NULL;
    i = make_it ? find(r, set, key) : i;
    if (i < 0)
        return NULL;
    atomic_store_explicit(&r->cells[set][i].used_us, now_us, memory_order_relaxed);
    return &r->cells[set][i];
}

static uint64_t bits_of(double d)
{
    uint64_t bits;

    memcpy(&bits, &d, sizeof(bits));
    return bits;
}

static double double_of(uint64_t bits)
{
    double d;

    memcpy(&d, &bits, sizeof(d));
    return d;
}

/* Word 0: the value; word 1: is there one? */
double bt_rate_ewma(bt_rates_t *r, bt_str_t name, double sample, double weight, uint64_t now_us)
{
    struct cell *cell = cell_of(r, EWMA, name, true, now_us);
    double value = sample;
    uint64_t old;

    if (cell == NULL)
        return sample;
    do {
        old = word(cell, 0);
        if (word(cell, 1) != 0)
            value = double_of(old) + weight * (sample - double_of(old));
    } while (!swap_word(cell, 0, old, bits_of(value)));
    set_word(cell, 1, 1);
    return value;
}

bool bt_rate_ewma_get(bt_rates_t *r, bt_str_t name, double *value_p, uint64_t now_us)
{
    struct cell *cell = cell_of(r, EWMA, name, false, now_us);

    if (cell == NULL || word(cell, 1) == 0)
        return false;
    *value_p = double_of(word(cell, 0));
    return true;
}

/* Word 0: when the bucket will be full, in ns; what is past counts as now. */
double bt_rate_take(bt_rates_t *r, bt_str_t name, double per_s, double burst, double cost,
                    uint64_t now_us)
{
    struct cell *cell = cell_of(r, BUCKET, name, true, now_us);
    const double now_ns = (double) now_us * 1000, empty_ns = burst / per_s * 1e9,
                 cost_ns = cost / per_s * 1e9;

    if (cost > burst)
        return HUGE_VAL;
    while (cell != NULL) {
        uint64_t old = word(cell, 0);
        double full_ns = (double) old > now_ns ? (double) old : now_ns;
        double wait_ns = full_ns + cost_ns - (now_ns + empty_ns);

        if (wait_ns > 0)
            return wait_ns / 1e9;
        if (swap_word(cell, 0, old, (uint64_t) (full_ns + cost_ns)))
            return 0;
    }
    return 0;
}

static void turn_window(struct cell *cell, uint64_t number)
{
    uint64_t old = word(cell, 0);
    uint64_t sum;

    if (old >= number || !swap_word(cell, 0, old, number))
        return;
    sum = atomic_exchange_explicit(&cell->words[1], 0, memory_order_relaxed);
    set_word(cell, 2, old + 1 == number ? sum : 0);
}

/* Word 0: number of the window; 1: its sum; 2: the sum of the one before. */
double bt_rate_window(bt_rates_t *r, bt_str_t name, double amount, uint64_t window_us,
                      uint64_t now_us)
{
    struct cell *cell = cell_of(r, WINDOW, name, true, now_us);
    double part = 1 - (double) (now_us % window_us) / (double) window_us, sum;
    uint64_t old;

    if (cell == NULL)
        return amount;
    turn_window(cell, now_us / window_us);
    do {
        old = word(cell, 1);
        sum = double_of(old) + amount;
    } while (amount != 0 && !swap_word(cell, 1, old, bits_of(sum)));
    return sum + double_of(word(cell, 2)) * part;
}

/* ---- tables ---- */

bt_rates_t *bt_rates_process(void)
{
    return &process;
}

bt_rates_t *bt_rates_new(void)
{
    bt_rates_t *r = aligned_alloc(64, sizeof(*r));

    if (r != NULL)
        memset(r, 0, sizeof(*r));
    return r;
}

void bt_rates_free(bt_rates_t *r)
{
    free(r);
}

void bt_rate_clear(void)
{
    for (unsigned set = 0; set < SETS; set++)
        for (int i = 0; i < WAYS; i++)
            atomic_store_explicit(&process.heads[set].keys[i], 0, memory_order_relaxed);
}
