#include "cluster/retry_budget.h"

/* Retries are load that failures add: without a bound, workers that are merely slow get several
 * times the requests that made them slow. Loops that enter a new second at once may lose a count
 * or two; the bound is no contract to the unit. */

static struct bt_retry_second *second_of(bt_retry_budget_t *b, uint64_t now_ms)
{
    const uint64_t now = now_ms / 1000;
    struct bt_retry_second *s = &b->seconds[now % BT_RETRY_BUDGET_SECONDS];
    uint64_t seen = atomic_load_explicit(&s->second, memory_order_relaxed);

    if (seen != now && atomic_compare_exchange_strong(&s->second, &seen, now)) {
        atomic_store_explicit(&s->requests, 0, memory_order_relaxed);
        atomic_store_explicit(&s->retries, 0, memory_order_relaxed);
    }
    return s;
}

void bt_retry_budget_count(bt_retry_budget_t *b, uint64_t now_ms)
{
    atomic_fetch_add_explicit(&second_of(b, now_ms)->requests, 1, memory_order_relaxed);
}

bool bt_retry_budget_take(bt_retry_budget_t *b, unsigned percent, uint64_t now_ms)
{
    struct bt_retry_second *now = second_of(b, now_ms);
    uint64_t requests = 0, retries = 0, allowed;

    for (unsigned i = 0; i < BT_RETRY_BUDGET_SECONDS; i++) {
        const struct bt_retry_second *s = &b->seconds[i];
        if (atomic_load_explicit(&s->second, memory_order_relaxed) + BT_RETRY_BUDGET_SECONDS <=
            now_ms / 1000)
            continue;
        requests += atomic_load_explicit(&s->requests, memory_order_relaxed);
        retries += atomic_load_explicit(&s->retries, memory_order_relaxed);
    }
    allowed = requests * percent / 100;
    if (allowed < BT_RETRY_BUDGET_FLOOR)
        allowed = BT_RETRY_BUDGET_FLOOR;
    if (retries >= allowed)
        return false;
    atomic_fetch_add_explicit(&now->retries, 1, memory_order_relaxed);
    return true;
}
