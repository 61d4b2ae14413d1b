/* Figures are published with relaxed stores: they are hints. What they promise is looked at again on the loop that has the
 * connections, and what was promised to two is owed to one of them. */
#include "http/budget_impl.h"

#include <stdlib.h>

static unsigned load(const _Atomic unsigned *p)
{
    return atomic_load_explicit(p, memory_order_relaxed);
}

struct bt_idle_set *bt_idle_sets_new(unsigned count)
{
    struct bt_idle_set *sets = aligned_alloc(_Alignof(struct bt_idle_set), count * sizeof(*sets));

    for (unsigned i = 0; sets != NULL && i < count; i++) {
        bt_list_init(&sets[i].idle);
        atomic_init(&sets[i].count, 0);
        atomic_init(&sets[i].claimed, 0);
        atomic_init(&sets[i].oldest_ms, 0);
    }
    return sets;
}

void bt_group_init(struct bt_group *g, enum bt_group_kind kind, struct bt_idle_set *sets,
                   unsigned set_count)
{
    *g = (struct bt_group){.kind = kind, .sets = sets, .set_count = set_count};
}

static void publish_oldest(struct bt_idle_set *set)
{
    const bt_idle_t *first = bt_container_of(set->idle.next, bt_idle_t, link);

    atomic_store_explicit(&set->oldest_ms, first->since_ms, memory_order_relaxed);
}

void bt_group_add_idle(struct bt_group *g, int slot, bt_idle_t *idle, uint64_t now_ms)
{
    struct bt_idle_set *set = &g->sets[slot];
    const unsigned before = load(&set->count);

    idle->since_ms = now_ms;
    bt_list_push(&set->idle, &idle->link);
    if (before == 0)
        publish_oldest(set);
    atomic_store_explicit(&set->count, before + 1, memory_order_relaxed); /* the only writer */
}

void bt_group_remove_idle(struct bt_group *g, int slot, bt_idle_t *idle)
{
    struct bt_idle_set *set = &g->sets[slot];
    const bool was_first = set->idle.next == &idle->link;
    const unsigned before = load(&set->count);

    if (bt_list_empty(&idle->link))
        return;
    bt_list_remove(&idle->link);
    atomic_store_explicit(&set->count, before - 1, memory_order_relaxed);
    if (was_first && before > 1)
        publish_oldest(set);
}

int bt_group_oldest(const struct bt_group *g, int but)
{
    uint64_t oldest_ms = UINT64_MAX;
    int found = -1;

    for (unsigned i = 0; i < g->set_count; i++) {
        const struct bt_idle_set *set = &g->sets[i];
        const uint64_t ms = atomic_load_explicit(&set->oldest_ms, memory_order_relaxed);
        if ((int) i == but || load(&set->count) <= load(&set->claimed) || ms >= oldest_ms)
            continue;
        oldest_ms = ms;
        found = (int) i;
    }
    return found;
}

bool bt_group_claim(struct bt_group *g, int slot)
{
    struct bt_idle_set *set = &g->sets[slot];

    if (atomic_fetch_add_explicit(&set->claimed, 1, memory_order_relaxed) < load(&set->count))
        return true;
    bt_group_unclaim(g, slot);
    return false;
}

void bt_group_unclaim(struct bt_group *g, int slot)
{
    atomic_fetch_sub_explicit(&g->sets[slot].claimed, 1, memory_order_relaxed);
}

void bt_group_owe(struct bt_group *g)
{
    atomic_fetch_add_explicit(&g->owed, 1, memory_order_relaxed);
}

bool bt_group_pay(struct bt_group *g)
{
    unsigned owed = load(&g->owed);

    while (owed > 0)
        if (atomic_compare_exchange_weak_explicit(&g->owed, &owed, owed - 1, memory_order_relaxed,
                                                  memory_order_relaxed))
            return true;
    return false;
}
