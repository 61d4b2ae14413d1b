/* A pair is one word: the prefill's id and the lives of both. Lives are counted by what tells of a
 * restart (bt_worker_restarted), so nothing is swept when an engine goes: its words fit no more. A
 * full table gives up a place by chance; what was still good there is warmed again. */
#include "cluster/warm.h"

#include "base/rand.h"

_Atomic bool bt_warm_is_on;

static unsigned life_of(const bt_worker_t *w)
{
    return atomic_load_explicit(&w->warm.life, memory_order_acquire);
}

uint64_t bt_warm_word(const bt_worker_t *p, const bt_worker_t *d)
{
    return p->id << 24 | (uint64_t) (life_of(p) & 0xfff) << 12 | (life_of(d) & 0xfff);
}

static uint64_t word_at(const bt_worker_t *d, uint64_t place)
{
    return atomic_load_explicit(&d->warm.partners[place % BT_WARM_PARTNERS], memory_order_relaxed);
}

/* Of this prefill's earlier life, of decode's earlier life, or nobody's. */
static bool is_free(uint64_t at, uint64_t word)
{
    return at == 0 || at >> 24 == word >> 24 || (at & 0xfff) != (word & 0xfff);
}

static uint64_t place_for(const bt_worker_t *d, uint64_t word)
{
    const uint64_t first = word >> 24;

    for (uint64_t i = 0; i < BT_WARM_PARTNERS; i++)
        if (is_free(word_at(d, first + i), word))
            return first + i;
    return bt_rand_below(BT_WARM_PARTNERS);
}

static void note_any(bt_worker_t *w, unsigned life)
{
    atomic_store_explicit(&w->warm.last_life, life + 1, memory_order_relaxed);
}

void bt_warm_note(bt_worker_t *p, bt_worker_t *d, uint64_t word)
{
    if (word != bt_warm_word(p, d))
        return; /* one of them has restarted meanwhile */
    atomic_store_explicit(&d->warm.partners[place_for(d, word) % BT_WARM_PARTNERS], word,
                          memory_order_relaxed);
    note_any(p, life_of(p));
    note_any(d, life_of(d));
}

void bt_warm_forget(const bt_worker_t *p, bt_worker_t *d)
{
    const uint64_t word = bt_warm_word(p, d);
    uint64_t at;

    for (uint64_t i = 0; i < BT_WARM_PARTNERS; i++) {
        at = word;
        (void) atomic_compare_exchange_strong(&d->warm.partners[i], &at, 0);
    }
}

bool bt_warm_has(const bt_worker_t *p, const bt_worker_t *d)
{
    const uint64_t word = bt_warm_word(p, d);

    for (uint64_t i = 0; i < BT_WARM_PARTNERS; i++)
        if (word_at(d, p->id + i) == word)
            return true;
    return false;
}

bool bt_warm_has_any(const bt_worker_t *w)
{
    return atomic_load_explicit(&w->warm.last_life, memory_order_relaxed) == life_of(w) + 1;
}
