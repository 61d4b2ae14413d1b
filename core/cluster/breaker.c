#include "cluster/breaker.h"

#include "cluster/changes.h"

#include <string.h>

/* Legs that began before the breaker opened still end while it is open: their results are old news and change nothing.
 * Only the probe's result moves an open breaker, and the lock makes "who is the probe" one decision: without it, a leg that
 * read OPEN could take the probe slot of a breaker that has been closed (or opened anew) in between. Closed, the usual
 * state, never takes the lock. */

void bt_breaker_config_defaults(bt_breaker_config_t *config)
{
    *config = (bt_breaker_config_t){.failures = 5,
                                    .window_ms = 10000,
                                    .open_ms = 10000,
                                    .open_max_ms = 120000,
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
    pthread_mutex_destroy(&b->lock);
}

static bool is_closed(const bt_breaker_t *b)
{
    return atomic_load_explicit(&b->state, memory_order_relaxed) == BT_BREAKER_CLOSED;
}

bool bt_breaker_allows(const bt_breaker_t *b, uint64_t now_ms)
{
    if (is_closed(b))
        return true;
    return now_ms >= atomic_load_explicit(&b->open_until_ms, memory_order_relaxed) &&
           !atomic_load_explicit(&b->probing, memory_order_relaxed);
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
    pthread_mutex_unlock(&b->lock);
    bt_workers_changed();
}

/* Under the lock. */
static void open_now(bt_breaker_t *b, uint64_t now_ms)
{
    atomic_store(&b->open_until_ms, now_ms + b->open_for_ms);
    atomic_store(&b->state, BT_BREAKER_OPEN);
    atomic_store(&b->probing, false);
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

bool bt_breaker_failure(bt_breaker_t *b, bool probe, uint64_t now_ms)
{
    if (b->config.disabled)
        return false;
    pthread_mutex_lock(&b->lock);
    bool opens = probe || (is_closed(b) && (is_too_many(b, now_ms) || is_hinted(b, now_ms)));
    if (opens)
        open_now(b, now_ms);
    pthread_mutex_unlock(&b->lock);
    if (opens)
        bt_workers_changed();
    return opens;
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
    return now_ms < atomic_load(&b->open_until_ms) ? BT_BREAKER_OPEN : BT_BREAKER_HALF_OPEN;
}
