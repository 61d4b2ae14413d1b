#include "cluster/breaker.h"

#include "cluster/changes.h"

#include <stdlib.h>
#include <string.h>

/* Legs that began before the breaker opened still end while it is open: their results are old news and change nothing.
 * Only the probe's result moves an open breaker, and the lock makes "who is the probe" one decision: without it, a leg that
 * read OPEN could take the probe slot of a breaker that has been closed (or opened anew) in between. Closed, the usual
 * state, never takes the lock.
 *
 * A fault that all workers show is rarely theirs, and a fleet that is out serves nobody. So a breaker takes one of its group's
 * places before it opens, by one compare-and-swap: whoever finds none stays closed and opens at a later failure, when there is
 * one. Where workers go down meanwhile and too many are out of those that are left, open breakers let their probes in at once. */

void bt_breaker_config_defaults(bt_breaker_config_t *config)
{
    *config = (bt_breaker_config_t){.failures = 5,
                                    .window_ms = 10000,
                                    .open_ms = 10000,
                                    .open_max_ms = 120000,
                                    .max_open_percent = 50,
                                    .disabled = false};
}

void bt_breaker_init(bt_breaker_t *b, const bt_breaker_config_t *config)
{
    memset(b, 0, sizeof *b);
    pthread_mutex_init(&b->lock, NULL);
    if (config != NULL)
        b->config = *config;
    else
        bt_breaker_config_defaults(&b->config);
    if (b->config.failures == 0)
        b->config.failures = 1;
    if (b->config.failures > BT_BREAKER_RING)
        b->config.failures = BT_BREAKER_RING;
    b->open_for_ms = b->config.open_ms;
}

void bt_breaker_fini(bt_breaker_t *b)
{
    bt_breaker_set_usable(b, false);
    bt_breaker_group_unref(b->group);
    pthread_mutex_destroy(&b->lock);
}

static bool is_closed(const bt_breaker_t *b)
{
    return atomic_load_explicit(&b->state, memory_order_relaxed) == BT_BREAKER_CLOSED;
}

/* ---- its group ---- */

bt_breaker_group_t *bt_breaker_group_new(void)
{
    bt_breaker_group_t *g = calloc(1, sizeof *g);

    if (g != NULL)
        g->refs = 1;
    return g;
}

void bt_breaker_group_unref(bt_breaker_group_t *g)
{
    if (g != NULL && atomic_fetch_sub_explicit(&g->refs, 1, memory_order_acq_rel) == 1)
        free(g);
}

void bt_breaker_join(bt_breaker_t *b, bt_breaker_group_t *g)
{
    atomic_fetch_add_explicit(&g->refs, 1, memory_order_relaxed);
    b->group = g;
}

void bt_breaker_carry(bt_breaker_t *b, bt_breaker_t *from)
{
    pthread_mutex_lock(&from->lock);
    memcpy(b->failed_at_ms, from->failed_at_ms, sizeof b->failed_at_ms);
    b->failed_next = from->failed_next;
    b->failed_count = from->failed_count;
    b->open_for_ms = from->open_for_ms;
    atomic_store(&b->open_until_ms, atomic_load(&from->open_until_ms));
    atomic_store(&b->hinted_until_ms, atomic_load(&from->hinted_until_ms));
    atomic_store(&b->spared_until_ms, atomic_load(&from->spared_until_ms));
    atomic_store(&b->opened_total, atomic_load(&from->opened_total));
    atomic_store(&b->spared_total, atomic_load(&from->spared_total));
    atomic_store(&b->state, is_closed(from) ? BT_BREAKER_CLOSED : BT_BREAKER_OPEN);
    pthread_mutex_unlock(&from->lock);
}

/* One may be out, be it the only one: it is the one that fails. */
static bool is_above_cap(const bt_breaker_t *b, unsigned out)
{
    const unsigned usable = atomic_load_explicit(&b->group->usable, memory_order_relaxed);

    return out > 1 && (uint64_t) out * 100 > (uint64_t) usable * b->config.max_open_percent;
}

/* Under the lock. */
static bool take_place(bt_breaker_t *b)
{
    bt_breaker_group_t *g = b->group;
    unsigned out;

    if (g == NULL || b->is_out || !b->is_usable)
        return true;
    out = atomic_load(&g->out);
    do {
        if (is_above_cap(b, out + 1))
            return false;
    } while (!atomic_compare_exchange_weak(&g->out, &out, out + 1));
    b->is_out = true;
    return true;
}

/* Under the lock. */
static void give_place_back(bt_breaker_t *b)
{
    if (b->is_out)
        atomic_fetch_sub(&b->group->out, 1);
    b->is_out = false;
}

/* Under the lock. One that comes back while its breaker is open, and finds no place, may prove itself now. */
static void note_usable(bt_breaker_t *b, bool is_usable)
{
    b->is_usable = is_usable;
    if (is_usable)
        atomic_fetch_add(&b->group->usable, 1);
    else
        atomic_fetch_sub(&b->group->usable, 1);
    if (!is_usable)
        give_place_back(b);
    else if (!is_closed(b) && !take_place(b))
        atomic_store(&b->open_until_ms, 0);
}

void bt_breaker_set_usable(bt_breaker_t *b, bool is_usable)
{
    pthread_mutex_lock(&b->lock);
    if (b->group != NULL && b->is_usable != is_usable)
        note_usable(b, is_usable);
    pthread_mutex_unlock(&b->lock);
}

bool bt_breaker_is_spared(const bt_breaker_t *b, uint64_t now_ms)
{
    return now_ms < atomic_load_explicit(&b->spared_until_ms, memory_order_relaxed);
}

/* ---- may it be chosen? ---- */

static bool is_time_over(const bt_breaker_t *b, uint64_t now_ms)
{
    return now_ms >= atomic_load_explicit(&b->open_until_ms, memory_order_relaxed) ||
           (b->group != NULL &&
            is_above_cap(b, atomic_load_explicit(&b->group->out, memory_order_relaxed)));
}

bool bt_breaker_allows(const bt_breaker_t *b, uint64_t now_ms)
{
    if (is_closed(b))
        return true;
    return is_time_over(b, now_ms) && !atomic_load_explicit(&b->probing, memory_order_relaxed);
}

bool bt_breaker_is_probing(const bt_breaker_t *b)
{
    return !is_closed(b) && atomic_load_explicit(&b->probing, memory_order_relaxed);
}

bool bt_breaker_enter(bt_breaker_t *b, uint64_t now_ms, bool *probe_p)
{
    bool may = true, probe = false;
    if (!is_closed(b)) {
        pthread_mutex_lock(&b->lock);
        if (!is_closed(b)) {
            may = probe = bt_breaker_allows(b, now_ms);
            if (probe) {
                atomic_store(&b->probing, true);
                atomic_store(&b->state, BT_BREAKER_HALF_OPEN);
            }
        }
        pthread_mutex_unlock(&b->lock);
    }
    if (!may)
        return false;
    *probe_p = probe;
    if (probe)
        bt_workers_changed();
    return true;
}

void bt_breaker_recovered(bt_breaker_t *b)
{
    pthread_mutex_lock(&b->lock);
    if (!is_closed(b))
        atomic_store(&b->open_until_ms, 0);
    pthread_mutex_unlock(&b->lock);
}

void bt_breaker_hint(bt_breaker_t *b, uint64_t until_ms)
{
    atomic_store_explicit(&b->hinted_until_ms, until_ms, memory_order_relaxed);
}

static bool is_hinted(const bt_breaker_t *b, uint64_t now_ms)
{
    return now_ms < atomic_load_explicit(&b->hinted_until_ms, memory_order_relaxed);
}

void bt_breaker_success(bt_breaker_t *b, bool probe)
{
    if (!probe)
        return;
    pthread_mutex_lock(&b->lock);
    b->failed_count = 0;
    b->open_for_ms = b->config.open_ms;
    atomic_store(&b->probing, false);
    atomic_store(&b->state, BT_BREAKER_CLOSED);
    give_place_back(b);
    pthread_mutex_unlock(&b->lock);
    bt_workers_changed();
}

/* Under the lock. */
static void open_now(bt_breaker_t *b, uint64_t now_ms)
{
    atomic_store(&b->open_until_ms, now_ms + b->open_for_ms);
    atomic_store(&b->state, BT_BREAKER_OPEN);
    atomic_store(&b->probing, false);
    atomic_store(&b->spared_until_ms, 0);
    atomic_fetch_add(&b->opened_total, 1);
    b->failed_count = 0;
    uint64_t next_ms = b->open_for_ms * 2;
    b->open_for_ms = next_ms < b->config.open_max_ms ? next_ms : b->config.open_max_ms;
}

/* Under the lock: notes one failure; true when the last config.failures of them lie within the window. */
static bool is_too_many(bt_breaker_t *b, uint64_t now_ms)
{
    unsigned need = b->config.failures;
    b->failed_at_ms[b->failed_next % BT_BREAKER_RING] = now_ms;
    b->failed_next++;
    if (b->failed_count < BT_BREAKER_RING)
        b->failed_count++;
    if (b->failed_count < need)
        return false;
    uint64_t oldest_ms = b->failed_at_ms[(b->failed_next - need) % BT_BREAKER_RING];
    return now_ms < oldest_ms || now_ms - oldest_ms <= b->config.window_ms;
}

/* Under the lock. A probe's failure leaves the worker in as well. True: there is news to tell. */
static bool spare(bt_breaker_t *b, uint64_t now_ms)
{
    const bool is_new = !bt_breaker_is_spared(b, now_ms);

    atomic_store(&b->probing, false);
    atomic_store(&b->state, BT_BREAKER_CLOSED);
    atomic_store(&b->spared_until_ms, now_ms + b->config.window_ms);
    if (is_new)
        atomic_fetch_add(&b->spared_total, 1);
    return is_new;
}

enum bt_breaker_effect bt_breaker_failure(bt_breaker_t *b, bool probe, uint64_t now_ms)
{
    enum bt_breaker_effect effect = BT_BREAKER_COUNTED;

    if (b->config.disabled)
        return effect;
    pthread_mutex_lock(&b->lock);
    if (probe || (is_closed(b) && (is_too_many(b, now_ms) || is_hinted(b, now_ms)))) {
        if (take_place(b)) {
            open_now(b, now_ms);
            effect = BT_BREAKER_OPENED;
        } else if (spare(b, now_ms)) {
            effect = BT_BREAKER_SPARED;
        }
    }
    pthread_mutex_unlock(&b->lock);
    if (effect == BT_BREAKER_OPENED || probe)
        bt_workers_changed();
    return effect;
}

void bt_breaker_innocent(bt_breaker_t *b, bool probe)
{
    if (!probe)
        return;
    atomic_store(&b->probing, false); /* HALF_OPEN stays: the next leg may be the probe */
    bt_workers_changed();
}

enum bt_breaker_state bt_breaker_state(const bt_breaker_t *b, uint64_t now_ms)
{
    if (is_closed(b))
        return BT_BREAKER_CLOSED;
    return is_time_over(b, now_ms) ? BT_BREAKER_HALF_OPEN : BT_BREAKER_OPEN;
}
