/* plan.c - which workers: candidates, the policy's answer, its validation, and the built-in choice.
 *
 * A policy only proposes. What it names must be usable, have the right role, and work as a pair on this route; otherwise the
 * built-in least-load choice is taken and the mistake counted. No pair and no single worker at all is a 503 with the reason.
 */
#include "base/log.h"
#include "base/rand.h"
#include "dispatch/request.h"

#include <stdlib.h>

#define RECHECK_MS 1000

/* ---- candidates ---- */

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

static void fill(bt_worker_set_t *to, unsigned *cap, const bt_worker_set_t *from, bt_str_t model,
                 uint64_t now_ms)
{
    for (unsigned i = 0; i < from->count; i++)
        if (bt_worker_usable(from->items[i], now_ms) &&
            bt_worker_serves_model(from->items[i], model))
            put(to, cap, from->items[i]);
}

static bool lists_models(const bt_fleet_pool_t *pool)
{
    for (unsigned i = 0; i < pool->all.count; i++)
        if (pool->all.items[i]->spec.model_count != 0)
            return true;
    return false;
}

static void rebuild(bt_dispatcher_t *d, const bt_fleet_pool_t *pool, struct bt_candidates *c,
                    bt_str_t model)
{
    uint64_t now_ms = bt_clock_ms();

    c->epoch =
        bt_fleet_epoch(); /* read first: a change while we look costs one rebuild more, never a stale set */
    c->fleet_generation = d->fleet->generation;
    c->recheck_at_ms = now_ms + RECHECK_MS; /* breakers open by time, without an event */
    c->key = ++d->view_keys;
    c->prefill.count = c->decode.count = c->single.count = 0;
    fill(&c->prefill, &c->caps[0], &pool->prefill, model, now_ms);
    fill(&c->decode, &c->caps[1], &pool->decode, model, now_ms);
    fill(&c->single, &c->caps[2], &pool->hybrid, model, now_ms);
}

/* One set a pool, and a few that are cut down to one model where workers list theirs. */
static struct bt_candidates *candidates(bt_request_t *r)
{
    bt_dispatcher_t *d = r->d;
    const bool by_model = r->intent.model.n != 0 && lists_models(r->pool);
    const uint64_t model = by_model ? bt_str_hash(r->intent.model) : 0;
    struct bt_candidates *c =
        &d->candidates[by_model ? d->pool_count + model % BT_MODEL_SETS : r->pool->index];

    if (c->fleet_generation != d->fleet->generation || c->epoch != bt_fleet_epoch() ||
        bt_clock_ms() >= c->recheck_at_ms || c->model_hash != model || c->pool != r->pool->index) {
        c->model_hash = model;
        c->pool = r->pool->index;
        rebuild(d, r->pool, c, r->intent.model);
    }
    return c;
}

/* ---- is it a pair? ---- */

enum bt_plan_kind bt_plan_kind_of(bt_dispatcher_t *d, const bt_pair_t *pair,
                                  const bt_dialect_t **dialect_p)
{
    *dialect_p = NULL;
    if (pair->prefill == NULL)
        return BT_PLAN_SINGLE;
    if (pair->prefill->dialect != NULL)
        *dialect_p = bt_dialects_find(d->dialects, pair->prefill->dialect);
    return *dialect_p != NULL ? (*dialect_p)->kind : BT_PLAN_NONE;
}

/* The one refusal that waiting does not cure. */
static const char route_refusal[] =
    "this route cannot be split with this fleet's connector, and it has no hybrid worker";

static const char *pair_refusal(bt_request_t *r, const bt_worker_t *p, const bt_worker_t *d)
{
    const char *why = bt_fleet_pair_refusal(p, d);
    const bt_dialect_t *dialect;

    if (why != NULL)
        return why;
    dialect = bt_dialects_find(r->d->dialects, p->dialect);
    if (dialect == NULL)
        return "no dialect file for this connector";
    if (!bt_dialect_serves(dialect, r->path))
        return route_refusal;
    return NULL;
}

/* ---- the view of one request ---- */

struct choice_view {
    bt_worker_set_t prefill, decode, single;
    bt_worker_t *pinned[1];
    uint64_t key;
    const char *why; /* the last refusal seen, for the 503 */
};

static bool any_pair(bt_request_t *r, struct choice_view *v)
{
    for (unsigned i = 0; i < v->prefill.count; i++)
        for (unsigned k = 0; k < v->decode.count; k++) {
            const char *why = pair_refusal(r, v->prefill.items[i], v->decode.items[k]);
            if (why == NULL)
                return true;
            v->why = why;
        }
    return false;
}

static void pin(bt_request_t *r, struct choice_view *v)
{
    if (r->pinned == NULL)
        return;
    v->pinned[0] = r->pinned;
    v->key = ++r->d->view_keys;
    if (r->pinned->spec.role == BT_ROLE_DECODE) {
        v->decode = (bt_worker_set_t){v->pinned, 1};
        v->single.count = 0;
    } else {
        v->single = (bt_worker_set_t){v->pinned, 1};
        v->prefill.count = v->decode.count = 0;
    }
}

static bool alone_capable(const bt_worker_set_t *set)
{
    for (unsigned i = 0; i < set->count; i++)
        if (!bt_capability_prefill_serves_alone(set->items[i]->engine))
            return false;
    return set->count != 0;
}

/* The configuration may have changed since the request came: look at today's pool. */
static bool refresh_pool(bt_request_t *r)
{
    const bt_fleet_pool_t *pool;

    if (r->fleet == r->d->fleet)
        return true;
    pool = bt_fleet_route(r->d->fleet, r->intent.model);
    if (pool == NULL)
        return false;
    bt_fleet_unref(r->fleet);
    r->fleet = bt_fleet_ref(r->d->fleet);
    r->pool = pool;
    return true;
}

/* Decides which roles this request may use. The sets left empty are not allowed for it. */
static enum bt_topology shape(bt_request_t *r, struct choice_view *v)
{
    const bool split = bt_route_info(r->route)->generates && r->intent.unsplittable == NULL;
    const struct bt_candidates *c;

    if (!refresh_pool(r)) {
        *v = (struct choice_view){.why = "no pool serves this model any more"};
        return BT_TOPOLOGY_NONE;
    }
    c = candidates(r);
    *v = (struct choice_view){
        .prefill = c->prefill, .decode = c->decode, .single = c->single, .key = c->key};
    pin(r, v);
    if (!split) {
        if (v->single.count == 0 && !bt_route_info(r->route)->generates)
            v->single =
                v->decode; /* embeddings, tokenize and the like: a decode worker has the model too */
        if (v->single.count == 0 && r->intent.unsplittable == NULL && v->prefill.count != 0)
            v->single = v->prefill;
        /* A follow-up's prompt is in the memory of the decode worker that answered; it computes all of it itself. A prefill
         * worker would make another prompt of the same body, and KV of another prompt is wrong or fatal. */
        if (v->single.count == 0 && r->route == BT_ROUTE_RESPONSES &&
            r->intent.previous_response.n != 0 && alone_capable(&v->decode))
            v->single = v->decode;
        v->prefill.count = v->decode.count = 0;
        return v->single.count != 0 ? BT_TOPOLOGY_SINGLE : BT_TOPOLOGY_NONE;
    }
    if (v->prefill.count != 0 && v->decode.count != 0 && any_pair(r, v))
        return BT_TOPOLOGY_PAIR;
    if (v->single.count != 0) {
        v->prefill.count = v->decode.count = 0;
        return BT_TOPOLOGY_SINGLE;
    }
    if (v->decode.count == 0 && alone_capable(&v->prefill)) {
        v->single = v->prefill;
        v->prefill.count = 0;
        return BT_TOPOLOGY_DEGRADED;
    }
    return BT_TOPOLOGY_NONE;
}

/* ---- the built-in choice: least load among what was not tried ---- */

static bool was_tried(const bt_task_t *task, const bt_worker_t *w)
{
    for (unsigned i = 0; task != NULL && i < task->tried_count; i++)
        if (task->tried[i] == w)
            return true;
    return false;
}

static int64_t load_of(const bt_worker_t *w, enum bt_phase phase)
{
    return atomic_load_explicit(&w->tokens[phase], memory_order_relaxed) +
           64 * atomic_load_explicit(&w->requests[phase], memory_order_relaxed);
}

static bt_worker_t *least(bt_request_t *r, const bt_task_t *task, const bt_worker_set_t *set,
                          enum bt_phase phase, bt_worker_t *partner)
{
    bt_worker_t *best = NULL;
    int64_t best_load = 0;
    unsigned start =
        set->count != 0 ? (unsigned) bt_rand_below(set->count) : 0; /* ties fall evenly */

    for (unsigned k = 0; k < set->count; k++) {
        bt_worker_t *w = set->items[(start + k) % set->count];
        int64_t load = load_of(w, phase);
        if (was_tried(task, w) || (best != NULL && load >= best_load) ||
            (partner != NULL && pair_refusal(r, partner, w) != NULL))
            continue;
        best = w;
        best_load = load;
    }
    return best;
}

static bool pair_exists_for(bt_request_t *r, const bt_task_t *task, bt_worker_t *p,
                            const struct choice_view *v)
{
    return least(r, task, &v->decode, BT_PHASE_DECODE, p) != NULL;
}

static bool built_in_pair(bt_request_t *r, const bt_task_t *task, const struct choice_view *v,
                          bt_pair_t *pair_p)
{
    bt_worker_t *p = least(r, task, &v->prefill, BT_PHASE_PREFILL, NULL), *best = NULL;
    int64_t best_load = 0;

    if (p != NULL &&
        !pair_exists_for(r, task, p, v)) { /* the least loaded has no partner: look at the others */
        for (unsigned i = 0; i < v->prefill.count; i++) {
            bt_worker_t *w = v->prefill.items[i];
            int64_t load = load_of(w, BT_PHASE_PREFILL);
            if (was_tried(task, w) || (best != NULL && load >= best_load) ||
                !pair_exists_for(r, task, w, v))
                continue;
            best = w;
            best_load = load;
        }
        p = best;
    }
    if (p == NULL)
        return false;
    *pair_p = (bt_pair_t){.prefill = p,
                          .decode = least(r, task, &v->decode, BT_PHASE_DECODE, p),
                          .prefill_rank = -1,
                          .decode_rank = -1};
    return pair_p->decode != NULL;
}

static bool built_in(bt_request_t *r, const bt_task_t *task, const struct choice_view *v,
                     bt_choice_t *choice_p)
{
    *choice_p = (bt_choice_t){.kind = BT_PLAN_NONE};
    if (v->prefill.count != 0 && built_in_pair(r, task, v, &choice_p->first))
        return true;
    choice_p->first = (bt_pair_t){.decode = least(r, task, &v->single, BT_PHASE_DECODE, NULL),
                                  .prefill_rank = -1,
                                  .decode_rank = -1};
    return choice_p->first.decode != NULL;
}

/* ---- the policy's word ---- */

static bool in_set(const bt_worker_set_t *set, const bt_worker_t *w)
{
    for (unsigned i = 0; i < set->count; i++)
        if (set->items[i] == w)
            return true;
    return false;
}

static bool is_valid(bt_request_t *r, const bt_task_t *task, const struct choice_view *v,
                     const bt_pair_t *pair)
{
    if (pair->decode == NULL || was_tried(task, pair->decode) || was_tried(task, pair->prefill))
        return false;
    if (pair->prefill == NULL)
        return in_set(&v->single, pair->decode);
    return in_set(&v->prefill, pair->prefill) && in_set(&v->decode, pair->decode) &&
           pair_refusal(r, pair->prefill, pair->decode) == NULL;
}

static bt_policy_request_t describe(const bt_request_t *r)
{
    bt_policy_request_t q = {
        .path = r->path,
        .model = r->intent.model,
        .session = r->intent.session,
        .head = r->x != NULL ? &r->x->head : NULL,
        .stream = r->intent.stream,
        .n = r->intent.n,
        .prompt_bytes = r->intent.prompt_bytes,
        .prompt_tokens = r->tasks != NULL ? r->tasks[0].prompt_tokens : 0,
        .prompt = r->intent.prompt != NULL ? r->intent.prompt->value : BT_STR_NULL,
    };

    if (q.head != NULL) {
        bt_str_t session = bt_head_get(q.head, BT_STR("x-session-id"));
        if (session.n != 0)
            q.session = session;
        q.tenant = bt_head_get(q.head, BT_STR("x-tenant-id"));
    }
    return q;
}

/* The policies this request began with, held until its first byte is out; after that, the ones that serve now. NULL: none
 * for its pool. */
static const struct bt_pool_policies *policies_of(bt_request_t *r)
{
    const bt_fleet_pool_t *pool = r->pool;
    const bt_generation_t *serving = r->d->generations.serving;
    const struct bt_pool_policies *p;

    if (r->generation == NULL && r->first_byte_us == 0 && !r->finished)
        r->generation = bt_generation_pin(&r->d->generations);
    if (r->generation != NULL &&
        (p = bt_generation_pool(r->generation, pool->spec.name, pool->index)) != NULL)
        return p; /* else: a pool that came after the request */
    return serving != NULL ? bt_generation_pool(serving, pool->spec.name, pool->index) : NULL;
}

/* A young generation that fails often is taken back: see bt_policy_errors_t. */
static void note_error(bt_request_t *r, const struct bt_pool_policies *p, const bt_policy_t *policy,
                       const char *text)
{
    const enum bt_policy_slot slot = policy == p->both      ? BT_SLOT_BOTH
                                     : policy == p->prefill ? BT_SLOT_PREFILL
                                                            : BT_SLOT_DECODE;

    bt_policy_errors_note(&r->d->gate->policy_errors, p->bundle->parts[slot].born, text);
}

static void count_error(bt_request_t *r, const struct bt_pool_policies *p,
                        const bt_policy_t *policy)
{
    bt_stats_inc(&r->d->stats, policy_errors);
    note_error(r, p, policy, bt_policy_error(policy));
    bt_log_warn("policy", "%s: %s; the built-in choice serves", bt_policy_name(policy),
                bt_policy_error(policy));
}

/* It answered, but with workers that cannot serve this request. */
static void count_invalid(bt_request_t *r)
{
    static const char text[] = "chose workers that cannot serve the request";
    const struct bt_pool_policies *p = policies_of(r);

    bt_stats_inc(&r->d->stats, policy_invalid);
    if (p == NULL)
        return;
    note_error(r, p, p->prefill != NULL ? p->prefill : p->both, text);
    if (p->decode != NULL)
        note_error(r, p, p->decode, text);
}

static int ask(bt_request_t *r, const bt_policy_view_t *view, bt_choice_t *choice_p)
{
    const struct bt_pool_policies *p = policies_of(r);
    const bt_policy_request_t q = describe(r);
    bt_choice_t decode_side;
    int rc;

    if (p == NULL || p->both == NULL)
        return BT_E_AGAIN;
    r->policy_generation = r->generation != NULL ? r->generation->bundle->number
                                                 : r->d->generations.serving->bundle->number;
    /* Copies: a reload frees the policy while the answer is on its way. */
    r->policy_name = bt_arena_str(&r->arena, bt_str(bt_policy_name(p->both))).p;
    r->policy_version = bt_policy_version(p->both) != NULL
                            ? bt_arena_str(&r->arena, bt_str(bt_policy_version(p->both))).p
                            : NULL;
    if (p->prefill == NULL || p->decode == NULL || view->prefill->count == 0) {
        rc = bt_policy_plan(p->both, BT_POLICY_BOTH, &q, view, choice_p);
        if (rc < 0)
            count_error(r, p, p->both);
        return rc;
    }
    rc = bt_policy_plan(p->prefill, BT_POLICY_PREFILL, &q, view, choice_p);
    if (rc < 0) {
        count_error(r, p, p->prefill);
        return rc;
    }
    rc = bt_policy_plan(p->decode, BT_POLICY_DECODE, &q, view, &decode_side);
    if (rc < 0) {
        count_error(r, p, p->decode);
        return rc;
    }
    choice_p->first.decode = decode_side.first.decode;
    choice_p->first.decode_rank = decode_side.first.decode_rank;
    choice_p->alternate_count = 0; /* halves of two answers make no ordered pairs */
    return 0;
}

static bt_policy_view_t lua_view(const bt_request_t *r, const struct choice_view *v)
{
    return (bt_policy_view_t){.prefill = &v->prefill,
                              .decode = &v->decode,
                              .single = &v->single,
                              .key = v->key,
                              .pool = bt_str(r->pool->spec.name)};
}

int bt_plan_choose(bt_request_t *r, bt_choice_t *choice_p, char *why, size_t why_size)
{
    struct choice_view v;
    enum bt_topology topology = shape(r, &v);
    bt_policy_view_t view = lua_view(r, &v);

    if (topology == BT_TOPOLOGY_NONE) {
        bt_fleet_topology(r->pool, bt_clock_ms(), why, why_size);
        if (why[0] == '\0' && v.why != NULL)
            bt_str_copy(why, why_size, v.why);
        return v.why == route_refusal ? BT_E_INVAL : BT_E_NO_WORKER;
    }
    r->degraded = topology == BT_TOPOLOGY_DEGRADED;
    if (ask(r, &view, choice_p) == 0) {
        if (is_valid(r, NULL, &v, &choice_p->first))
            return 0;
        count_invalid(r);
    }
    if (built_in(r, NULL, &v, choice_p))
        return 0;
    bt_str_copy(why, why_size, v.why != NULL ? v.why : "no two usable workers can work as a pair");
    return BT_E_NO_WORKER;
}

static int ask_fallback(bt_task_t *task, const bt_failure_t *f, const struct choice_view *v,
                        bt_choice_t *choice_p)
{
    bt_request_t *r = task->request;
    const struct bt_pool_policies *p = policies_of(r);
    const bt_policy_request_t q = describe(r);
    const bt_policy_view_t view = lua_view(r, v);
    const bt_policy_failure_t failure = {
        .scope = bt_err_scope(f->rc),
        .name = bt_err_name(f->rc),
        .leg = bt_leg_role_name(f->leg),
        .status = f->status,
        .tried = task->tried,
        .tried_count = task->tried_count,
    };
    int rc = p != NULL && p->both != NULL
                 ? bt_policy_fallback(p->both, &q, &view, &failure, choice_p)
                 : BT_E_AGAIN;

    if (rc < 0 && rc != BT_E_AGAIN)
        count_error(r, p, p->both);
    return rc;
}

/* The next plan must not need another split than the task was made with. */
static bool same_split(const bt_task_t *task, const bt_pair_t *pair)
{
    const bt_request_t *r = task->request;
    const bt_dialect_t *dialect;

    if (bt_plan_kind_of(r->d, pair, &dialect) == BT_PLAN_SINGLE)
        return true; /* a child is an ordinary request too */
    return r->task_count > 1 || !bt_fanout_needed(r, dialect);
}

int bt_plan_next(bt_task_t *task, const bt_failure_t *f, bt_choice_t *choice_p)
{
    struct choice_view v;
    int rc;

    if (shape(task->request, &v) == BT_TOPOLOGY_NONE)
        return BT_E_NO_WORKER;
    rc = ask_fallback(task, f, &v, choice_p);
    if (rc == 0 && choice_p->first.decode == NULL)
        return BT_E_NO_WORKER; /* the policy gives up */
    if (rc == 0 && is_valid(task->request, task, &v, &choice_p->first) &&
        same_split(task, &choice_p->first))
        return 0;
    if (rc == 0)
        count_invalid(task->request);
    while (task->alternate_next < task->choice.alternate_count) {
        const bt_pair_t *alternate = &task->choice.alternates[task->alternate_next++];
        if (is_valid(task->request, task, &v, alternate) && same_split(task, alternate)) {
            *choice_p = (bt_choice_t){.first = *alternate};
            return 0;
        }
    }
    if (built_in(task->request, task, &v, choice_p) && same_split(task, &choice_p->first))
        return 0;
    return BT_E_NO_WORKER;
}

bt_worker_t *bt_plan_other_decode(bt_task_t *task, bt_worker_t *prefill)
{
    bt_request_t *r = task->request;
    struct choice_view v;
    bt_worker_t *failed = task->attempt->pair.decode, *w;

    if (task->tried_count < BT_TRIED_MAX && !was_tried(task, failed))
        task->tried[task->tried_count++] = bt_worker_ref(failed);
    if (shape(r, &v) != BT_TOPOLOGY_PAIR)
        return NULL;
    w = least(r, task, &v.decode, BT_PHASE_DECODE, prefill);
    return w;
}
