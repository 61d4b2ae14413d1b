/* candidates.c - the usable workers of a pool, kept until the fleet's epoch moves.
 *
 * What a policy may choose from is looked at once per change, not once per request: breakers, health and membership raise the
 * epoch; breakers also open by time, so no set is used for longer than a second without a second look. If all members are still
 * the same then, so is the key: Lua's lists of them stay.
 */
#include "dispatch/plan/candidates.h"

#include <stdlib.h>

#define RECHECK_MS 1000

struct bt_candidates *bt_candidates_new(unsigned pool_count)
{
    return calloc(pool_count + BT_MODEL_SETS, sizeof(struct bt_candidates));
}

void bt_candidates_free(struct bt_candidates *c, unsigned pool_count)
{
    for (unsigned i = 0; c != NULL && i < pool_count + BT_MODEL_SETS; i++)
        for (int list = 0; list < BT_LIST_COUNT; list++)
            free(c[i].sets[list].items);
    free(c);
}

static void put(bt_worker_set_t *set, unsigned *cap, bt_worker_t *w)
{
    if (set->count == *cap) {
        unsigned more = *cap != 0 ? 2 * *cap : 8;
        bt_worker_t **items = realloc(set->items, more * sizeof(*items));
        BT_BUG_ON(items == NULL);
        set->items = items;
        *cap = more;
    }
    set->items[set->count++] = w;
}

/* What a list is taken from: the pool's workers of one role, or all that serve alone. */
static const bt_worker_set_t *source_of(const bt_worker_pool_t *pool, enum bt_policy_list list)
{
    const bt_worker_set_t *const sets[] = {&pool->prefill, &pool->decode, &pool->hybrid,
                                           &pool->alone};

    return sets[list];
}

static void fill(struct bt_candidates *c, enum bt_policy_list list, const bt_worker_pool_t *pool,
                 bt_str_t model, uint64_t now_ms)
{
    const bt_worker_set_t *from = source_of(pool, list);

    c->sets[list].count = c->after_probe[list] = 0;
    for (unsigned i = 0; i < from->count; i++) {
        bt_worker_t *w = from->items[i];
        const bool is_usable = bt_worker_usable(w, now_ms);
        if ((!is_usable && !bt_worker_is_probed(w)) || !bt_worker_serves_model(w, model))
            continue;
        c->after_probe[list]++;
        if (is_usable)
            put(&c->sets[list], &c->caps[list], w);
        else
            c->has_probe = true;
    }
}

/* Would fill() put just these? */
static bool is_same(const bt_worker_set_t *now, const bt_worker_set_t *from, bt_str_t model,
                    uint64_t now_ms)
{
    unsigned at = 0;

    for (unsigned i = 0; i < from->count; i++) {
        if (!bt_worker_usable(from->items[i], now_ms) ||
            !bt_worker_serves_model(from->items[i], model))
            continue;
        if (at == now->count || now->items[at++] != from->items[i])
            return false;
    }
    return at == now->count;
}

/* Who serves alone has a role too. */
static bool is_unchanged(const bt_worker_pool_t *pool, const struct bt_candidates *c,
                         bt_str_t model, uint64_t now_ms)
{
    for (int list = 0; list < BT_LIST_SINGLE; list++)
        if (!is_same(&c->sets[list], source_of(pool, (enum bt_policy_list) list), model, now_ms))
            return false;
    return true;
}

static void rebuild(bt_dispatcher_t *d, const bt_worker_pool_t *pool, struct bt_candidates *c,
                    bt_str_t model)
{
    uint64_t now_ms = bt_clock_event_ms();

    c->changes =
        bt_workers_changes(); /* read first: a change while we look costs one rebuild more, never a stale set */
    c->epoch = d->workers->epoch;
    c->recheck_at_ms = now_ms + RECHECK_MS; /* breakers open by time, without an event */
    c->key = d->view_keys += BT_VIEW_SHAPES;
    c->has_probe = false;
    for (int list = 0; list < BT_LIST_COUNT; list++)
        fill(c, (enum bt_policy_list) list, pool, model, now_ms);
}

/* One set a pool, and a few that are cut down to one model where workers list theirs. */
const struct bt_candidates *bt_candidates_get(bt_dispatcher_t *d, const bt_worker_pool_t *pool,
                                              bt_str_t model)
{
    const bool by_model = model.n != 0 && pool->has_models;
    const uint64_t hash = by_model ? bt_str_hash(model) : 0;
    struct bt_candidates *c =
        &d->candidates[by_model ? d->pool_count + hash % BT_MODEL_SETS : pool->index];

    const bool is_stale = c->epoch != d->workers->epoch || c->changes != bt_workers_changes() ||
                          c->model_hash != hash || c->pool != pool->index;
    const uint64_t now_ms = bt_clock_event_ms();

    if (!is_stale && now_ms < c->recheck_at_ms)
        return c;
    if (!is_stale && is_unchanged(pool, c, model, now_ms)) {
        c->recheck_at_ms = now_ms + RECHECK_MS;
        return c;
    }
    c->model_hash = hash;
    c->pool = pool->index;
    rebuild(d, pool, c, model);
    return c;
}

/* ---- for VMs that are being made ---- */

static bool copy_set(bt_worker_set_t *to, const bt_worker_set_t *from)
{
    if (from->count == 0)
        return true;
    to->items = malloc(from->count * sizeof(*to->items));
    if (to->items == NULL)
        return false;
    memcpy(to->items, from->items, from->count * sizeof(*to->items));
    to->count = from->count;
    return true;
}

bt_policy_view_t bt_candidates_view(const bt_worker_set_t *sets, uint64_t key,
                                    const bt_worker_pool_t *pool)
{
    bt_policy_view_t view = {
        .key = key, .pool = bt_str(pool->spec.name), .advice = &pool->stat->advice};

    for (int list = 0; list < BT_LIST_COUNT; list++)
        view.sets[list] = &sets[list];
    return view;
}

static void add_view(bt_warm_t *warm, const struct bt_candidates *c, const bt_worker_pool_t *pool)
{
    struct bt_warm_view *v = &warm->views[warm->count++];

    v->view = bt_candidates_view(v->sets, c->key, pool);
    for (int list = 0; list < BT_LIST_COUNT; list++)
        if (!copy_set(&v->sets[list], &c->sets[list]))
            v->view.key = 0; /* fits no plan, and does no harm */
}

const bt_worker_pool_t *bt_candidates_pool(const bt_dispatcher_t *d,
                                           const bt_policy_bundle_t *bundle, unsigned pool)
{
    const char *name = bundle->pools[pool].name;

    if (pool >= bundle->first_variant && bundle->rules != NULL) {
        const bt_rule_target_t *target =
            bt_rules_variant(bundle->rules, pool - bundle->first_variant, NULL, NULL);
        name = target != NULL ? target->pool : NULL;
    }
    for (unsigned i = 0; d->workers != NULL && i < d->workers->pool_count; i++)
        if (name == NULL || strcmp(d->workers->pools[i].spec.name, name) == 0)
            return &d->workers->pools[i];
    return NULL;
}

bt_warm_t *bt_candidates_warm(void *user, const bt_policy_bundle_t *bundle, unsigned pool)
{
    bt_dispatcher_t *d = user;
    const bt_worker_pool_t *p = bt_candidates_pool(d, bundle, pool);
    bt_warm_t *warm = p != NULL ? calloc(1, sizeof(*warm)) : NULL;

    if (warm == NULL)
        return NULL;
    warm->workers = bt_workers_ref(d->workers);
    add_view(warm, bt_candidates_get(d, p, BT_STR_NULL), p);
    for (unsigned i = 0; i < BT_MODEL_SETS && warm->count < BT_WARM_VIEWS; i++) {
        const struct bt_candidates *c = &d->candidates[d->pool_count + i];
        if (c->key != 0 && c->pool == p->index && c->epoch == d->workers->epoch)
            add_view(warm, c, p);
    }
    return warm;
}
