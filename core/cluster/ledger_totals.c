#include "cluster/ledger_totals.h"

#include "base/err.h"

#include <pthread.h>

/* Workers come and go rarely, and go on any thread: a lock. One of each phase lies in a line with three neighbours', which
 * loops write as they did lines of its own: whoever adds to a busy worker's total meets the other loops there anyway. */
_Alignas(64) bt_ledger_total_t bt_ledger_totals[BT_PHASE_COUNT][BT_LEDGER_PLACES];

#define WORDS (BT_LEDGER_PLACES / 64)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t taken[WORDS];

int bt_ledger_place_take(uint32_t *place_p)
{
    unsigned i = 0, bit;

    pthread_mutex_lock(&lock);
    while (i < WORDS && taken[i] == UINT64_MAX)
        i++;
    if (i < WORDS) {
        bit = (unsigned) __builtin_ctzll(~taken[i]);
        taken[i] |= UINT64_C(1) << bit;
        *place_p = (uint32_t) ((i * 64 + bit) * sizeof(bt_ledger_total_t));
    }
    pthread_mutex_unlock(&lock);
    return i < WORDS ? 0 : BT_E_LIMIT;
}

void bt_ledger_place_give_back(uint32_t place)
{
    const unsigned at = place / sizeof(bt_ledger_total_t);

    for (unsigned phase = 0; phase < BT_PHASE_COUNT; phase++) {
        bt_ledger_total_t *total = bt_ledger_total_at((enum bt_phase) phase, place);
        atomic_store_explicit(&total->tokens, 0, memory_order_relaxed);
        atomic_store_explicit(&total->requests, 0, memory_order_relaxed);
    }
    pthread_mutex_lock(&lock);
    taken[at / 64] &= ~(UINT64_C(1) << at % 64);
    pthread_mutex_unlock(&lock);
}
