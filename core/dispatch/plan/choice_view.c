/* choice_view.c - which of the pool's candidates one request may use, by its route, its pin, the workers' limits and the pairs
 * that can work.
 */
#include "dispatch/plan/candidates.h"
#include "dispatch/plan/request_pool.h"

static const char route_refusal[] =
    "this route cannot be split with this fleet's connector, and it has no hybrid worker";
static const char scale_out_refusal[] =
    "no worker serves this route: vLLM (0.30 and later) must be started with --enable-scale-out";
static const char limit_refusal[] = "each is at its limit (--engine-request-limit)";

const char *bt_pair_refusal(bt_request_t *r, const bt_worker_t *p, const bt_worker_t *d)
{
    const char *why = bt_workers_pair_refusal(p, d);
    const bt_dialect_t *dialect;

    if (why != NULL)
        return why;
    dialect = bt_dialects_find(r->d->dialects, p->dialect);
    if (dialect == NULL)
        return "no dialect file for this connector";
    if (!bt_dialect_serves(dialect, r->path))
        return route_refusal;
    if (!bt_prompt_logprobs_told(dialect, r->intent.prompt_logprobs))
        return bt_prompt_logprobs_why(r->intent.prompt_logprobs);
    return NULL;
}

bool bt_choice_view_leave_out(bt_arena_t *arena, bt_choice_view_t *v,
                              bool (*is_out)(const void *ctx, const bt_worker_t *w),
                              const void *ctx)
{
    bool any = false;

    for (int list = 0; list < BT_LIST_COUNT; list++) {
        const bt_worker_set_t from = v->sets[list];
        bt_worker_set_t *to = &v->sets[list];
        unsigned first = 0;

        while (first < from.count && !is_out(ctx, from.items[first]))
            first++;
        if (first == from.count)
            continue;
        *to = (bt_worker_set_t){.items = bt_arena_alloc(arena, from.count * sizeof(*to->items))};
        for (unsigned i = 0; i < from.count; i++)
            if (i < first || (i > first && !is_out(ctx, from.items[i])))
                to->items[to->count++] = from.items[i];
        v->key = 0;
        any = true;
    }
    return any;
}

static bool is_full(const void *limit, const bt_worker_t *w)
{
    return bt_worker_is_full(w, *(const unsigned *) limit);
}

/* Who has as many legs as the pool allows is no candidate. */
static void leave_out_full(bt_request_t *r, bt_choice_view_t *v)
{
    const unsigned limit = r->pool->spec.engine_request_limit;

    if (limit != 0 && bt_choice_view_leave_out(&r->arena, v, is_full, &limit))
        v->why = limit_refusal;
}

static bool lacks_route(const void *bit, const bt_worker_t *w)
{
    return (atomic_load_explicit(&w->routes_off, memory_order_relaxed) & *(const unsigned *) bit) !=
           0;
}

/* Who has said that it does not serve this route is no candidate for it. */
static void leave_out_without_route(bt_request_t *r, bt_choice_view_t *v)
{
    const bool renders = r->route == BT_ROUTE_PROXY && (bt_str_ends(r->path, BT_STR("/render")) ||
                                                        bt_str_ends(r->path, BT_STR("/derender")));
    const unsigned bit = r->route == BT_ROUTE_TOKENS ? BT_OPTIONAL_TOKENS
                         : renders                   ? BT_OPTIONAL_RENDER
                                                     : 0;

    if (bit != 0 && bt_choice_view_leave_out(&r->arena, v, lacks_route, &bit))
        v->why = scale_out_refusal;
}

void bt_choice_view_drop_pairs(bt_choice_view_t *v)
{
    v->sets[BT_LIST_PREFILL].count = v->sets[BT_LIST_DECODE].count = 0;
}

/* The same of the same candidates each time. */
static void take_shape(bt_choice_view_t *v, enum bt_view_shape shape)
{
    bt_choice_view_drop_pairs(v);
    if (v->key != 0)
        v->key += shape;
}

bool bt_choice_view_any_pair(bt_request_t *r, bt_choice_view_t *v)
{
    const bt_worker_set_t *prefill = &v->sets[BT_LIST_PREFILL], *decode = &v->sets[BT_LIST_DECODE];

    for (unsigned i = 0; i < prefill->count; i++)
        for (unsigned k = 0; k < decode->count; k++) {
            const char *why = bt_pair_refusal(r, prefill->items[i], decode->items[k]);
            if (why == NULL)
                return true;
            v->why = why;
        }
    return false;
}

static void pin(bt_request_t *r, bt_choice_view_t *v)
{
    if (r->pinned == NULL)
        return;
    v->pinned[0] = r->pinned;
    v->key = 0; /* nobody else has these lists */
    v->sets[BT_LIST_SINGLE] = (bt_worker_set_t){v->pinned, 1};
    if (r->pinned->spec.role == BT_ROLE_DECODE) {
        v->sets[BT_LIST_DECODE] = (bt_worker_set_t){v->pinned, 1};
        v->sets[BT_LIST_SINGLE].count = r->pinned->serves_alone;
        v->sets[BT_LIST_HYBRID].count = 0;
    } else {
        v->sets[BT_LIST_HYBRID] = (bt_worker_set_t){v->pinned, 1};
        bt_choice_view_drop_pairs(v);
    }
}

static bool alone_capable(const bt_worker_set_t *set)
{
    for (unsigned i = 0; i < set->count; i++)
        if (!bt_capability_prefill_serves_alone(set->items[i]->engine, set->items[i]->dialect))
            return false;
    return set->count != 0;
}

/* A follow-up's prompt is in the memory of the decode worker that answered; it computes all of it itself. A prefill worker would make
 * another prompt of the same body, and KV of another prompt is wrong or fatal. A batch has no hand-off at all. */
static bool is_for_decode_alone(const bt_request_t *r)
{
    return r->route == BT_ROUTE_CHAT_BATCH ||
           (r->route == BT_ROUTE_RESPONSES && r->intent.previous_response.n != 0);
}

/* What cannot be split goes to one worker whole. */
static enum bt_topology shape_whole(const bt_request_t *r, bt_choice_view_t *v)
{
    const bool generates = bt_route_info(r->route)->generates;
    const bt_worker_set_t *prefill = &v->sets[BT_LIST_PREFILL], *decode = &v->sets[BT_LIST_DECODE];
    bt_worker_set_t *hybrid = &v->sets[BT_LIST_HYBRID];

    if (hybrid->count == 0 && !generates)
        *hybrid =
            *decode; /* embeddings, tokenize and the like: a decode worker has the model too */
    if (hybrid->count == 0 && r->intent.unsplittable == NULL && prefill->count != 0)
        *hybrid = *prefill;
    if (hybrid->count == 0 && is_for_decode_alone(r) && alone_capable(decode))
        *hybrid = *decode;
    v->sets[BT_LIST_SINGLE] = *hybrid;
    take_shape(v, BT_VIEW_UNSPLIT);
    return hybrid->count != 0 ? BT_TOPOLOGY_SINGLE : BT_TOPOLOGY_NONE;
}

/* False: its pool is gone. */
static bool take_candidates(bt_request_t *r, bt_choice_view_t *v, bool with_full)
{
    const struct bt_candidates *c;

    *v = (bt_choice_view_t){.why = "no pool serves this model any more"};
    if (!bt_request_refresh_pool(r))
        return false;
    c = bt_candidates_get(r->d, r->pool, r->intent.model);
    memcpy(v->sets, c->sets, sizeof(v->sets));
    v->key = c->key;
    v->why = NULL;
    pin(r, v);
    if (!with_full)
        leave_out_full(r, v);
    leave_out_without_route(r, v);
    return true;
}

/* What could be split when it began still can: only who fits is asked. */
bool bt_choice_view_beside(bt_request_t *r, bt_choice_view_t *v, bt_worker_t **stays,
                           enum bt_policy_list its_list, bool with_full, bt_choice_view_t *all_p)
{
    if (!take_candidates(r, v, with_full))
        return false;
    if (all_p != NULL)
        *all_p = *v;
    v->sets[its_list] = (bt_worker_set_t){stays, 1};
    v->key = 0;
    return bt_choice_view_any_pair(r, v);
}

/* Who serves alone beside hybrids is for policies to choose: where nobody else is left, they are asked. */
enum bt_topology bt_choice_view_make(bt_request_t *r, bt_choice_view_t *v)
{
    bt_worker_set_t *hybrid = &v->sets[BT_LIST_HYBRID], *single = &v->sets[BT_LIST_SINGLE];

    if (!take_candidates(r, v, false))
        return BT_TOPOLOGY_NONE;
    if (!bt_route_info(r->route)->generates || r->intent.unsplittable != NULL ||
        (r->intent.prompt_logprobs != BT_PROMPT_LOGPROBS_NONE && hybrid->count != 0))
        return shape_whole(r, v); /* who computes the prompt and makes the answer knows all */
    if (v->sets[BT_LIST_PREFILL].count != 0 && v->sets[BT_LIST_DECODE].count != 0 &&
        bt_choice_view_any_pair(r, v))
        return BT_TOPOLOGY_PAIR;
    if (hybrid->count == 0 && v->sets[BT_LIST_DECODE].count == 0 && v->why != limit_refusal &&
        alone_capable(&v->sets[BT_LIST_PREFILL])) {
        *hybrid = *single = v->sets[BT_LIST_PREFILL];
        take_shape(v, BT_VIEW_DEGRADED);
        return BT_TOPOLOGY_DEGRADED;
    }
    take_shape(v, BT_VIEW_WITHOUT_PAIRS);
    return single->count != 0 ? BT_TOPOLOGY_SINGLE : BT_TOPOLOGY_NONE;
}

bool bt_choice_view_is_limited(const bt_choice_view_t *v)
{
    return v->why == limit_refusal;
}

bool bt_choice_view_is_for_no_split(const bt_choice_view_t *v)
{
    return v->why == route_refusal || v->why == scale_out_refusal;
}

static const char *why_no_encoder(bt_request_t *r, uint64_t now_ms)
{
    const bt_worker_set_t *all = &r->pool->encode;
    const char *why = all->count != 0 ? bt_worker_why_not(all->items[0], now_ms) : NULL;

    if (why == NULL)
        return "no encode worker is usable, or serves this model";
    return bt_arena_printf(&r->arena, "no encode worker is usable: %s: %s", all->items[0]->name,
                           why)
        .p;
}

void bt_choice_view_encoders(bt_request_t *r, bt_choice_view_t *v)
{
    const uint64_t now_ms = bt_clock_ms();
    const bt_worker_set_t *all;
    bt_worker_set_t usable = {.count = 0};

    *v = (bt_choice_view_t){.why = "no pool serves this model any more"};
    if (!bt_request_refresh_pool(r))
        return;
    all = &r->pool->encode;
    usable.items = bt_arena_alloc(&r->arena, (all->count + 1) * sizeof(*usable.items));
    for (unsigned i = 0; i < all->count; i++)
        if (bt_worker_usable(all->items[i], now_ms) &&
            bt_worker_serves_model(all->items[i], r->intent.model))
            usable.items[usable.count++] = all->items[i];
    v->why = usable.count == 0 ? why_no_encoder(r, now_ms) : NULL;
    v->sets[BT_LIST_HYBRID] = v->sets[BT_LIST_SINGLE] = usable;
    leave_out_full(r, v);
}
