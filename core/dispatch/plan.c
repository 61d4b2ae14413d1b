/* plan.c - which workers: what may be chosen, the policy's answer, its validation, and the default choice.
 *
 * A policy only proposes. What it names must be usable, have the right role, and work as a pair on this route; otherwise the
 * default least-load choice is taken and the mistake counted. No pair and no single worker at all is a 503 with the reason.
 */
#include "dispatch/plan.h"
#include "base/rand.h"
#include "dispatch/policy_call.h"

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
    const char *why = bt_workers_pair_refusal(p, d);
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

/* A follow-up's prompt is in the memory of the decode worker that answered; it computes all of it itself. A prefill worker would make
 * another prompt of the same body, and KV of another prompt is wrong or fatal. A batch has no hand-off at all. */
static bool is_for_decode_alone(const bt_request_t *r)
{
    return r->route == BT_ROUTE_CHAT_BATCH ||
           (r->route == BT_ROUTE_RESPONSES && r->intent.previous_response.n != 0);
}

/* Decides which roles this request may use. The sets left empty are not allowed for it. */
static enum bt_topology shape(bt_request_t *r, struct choice_view *v)
{
    const bool split = bt_route_info(r->route)->generates && r->intent.unsplittable == NULL;
    const struct bt_candidates *c;

    if (!bt_request_refresh_pool(r)) {
        *v = (struct choice_view){.why = "no pool serves this model any more"};
        return BT_TOPOLOGY_NONE;
    }
    c = bt_candidates_get(r->d, r->pool, r->intent.model);
    *v = (struct choice_view){
        .prefill = c->prefill, .decode = c->decode, .single = c->single, .key = c->key};
    pin(r, v);
    if (!split) {
        if (v->single.count == 0 && !bt_route_info(r->route)->generates)
            v->single =
                v->decode; /* embeddings, tokenize and the like: a decode worker has the model too */
        if (v->single.count == 0 && r->intent.unsplittable == NULL && v->prefill.count != 0)
            v->single = v->prefill;
        if (v->single.count == 0 && is_for_decode_alone(r) && alone_capable(&v->decode))
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

/* ---- the default choice: least load among what was not tried ---- */

static bool was_tried(const bt_task_t *task, const bt_worker_t *w)
{
    for (unsigned i = 0; task != NULL && i < task->tried_count; i++)
        if (task->tried[i] == w)
            return true;
    return false;
}

static int64_t load_of(const bt_worker_t *w, enum bt_phase phase)
{
    return bt_worker_tokens(w, phase) + 64 * bt_worker_requests(w, phase);
}

/* Where other gateways' loads are part of it, all gateways see the same least loaded worker: so much may lie between those that
 * are chosen among by chance. */
static int64_t slack_of(const bt_worker_set_t *set, enum bt_phase phase)
{
    int64_t sum = 0;

    if (!bt_worker_is_shared() || set->count == 0)
        return 0;
    for (unsigned i = 0; i < set->count; i++)
        sum +=
            atomic_load_explicit(&set->items[i]->others_tokens[phase], memory_order_relaxed) +
            64 * atomic_load_explicit(&set->items[i]->others_requests[phase], memory_order_relaxed);
    return sum / set->count / BT_WORKER_NEAR;
}

static bool fits(bt_request_t *r, bt_worker_t *w, bt_worker_t *partner)
{
    if (partner == NULL)
        return true;
    return (partner->spec.role == BT_ROLE_DECODE ? pair_refusal(r, w, partner)
                                                 : pair_refusal(r, partner, w)) == NULL;
}

static bt_worker_t *any_near(bt_request_t *r, const bt_task_t *task, const bt_worker_set_t *set,
                             enum bt_phase phase, bt_worker_t *partner, int64_t most)
{
    bt_worker_t *best = NULL;
    unsigned near = 0;

    for (unsigned i = 0; i < set->count; i++) {
        bt_worker_t *w = set->items[i];
        if (load_of(w, phase) <= most && !was_tried(task, w) && fits(r, w, partner) &&
            bt_rand_below(++near) == 0)
            best = w;
    }
    return best;
}

static bt_worker_t *least(bt_request_t *r, const bt_task_t *task, const bt_worker_set_t *set,
                          enum bt_phase phase, bt_worker_t *partner)
{
    const int64_t slack = slack_of(set, phase);
    bt_worker_t *best = NULL, *near;
    int64_t best_load = 0;
    unsigned start =
        set->count != 0 ? (unsigned) bt_rand_below(set->count) : 0; /* ties fall evenly */

    for (unsigned k = 0; k < set->count; k++) {
        bt_worker_t *w = set->items[(start + k) % set->count];
        int64_t load = load_of(w, phase);
        if (was_tried(task, w) || (best != NULL && load >= best_load) || !fits(r, w, partner))
            continue;
        best = w;
        best_load = load;
    }
    if (best == NULL || slack == 0)
        return best;
    near = any_near(r, task, set, phase, partner, best_load + slack);
    return near != NULL ? near : best; /* loads move while they are read */
}

static bool pair_exists_for(bt_request_t *r, const bt_task_t *task, bt_worker_t *p,
                            const struct choice_view *v)
{
    return least(r, task, &v->decode, BT_PHASE_DECODE, p) != NULL;
}

static bool default_pair(bt_request_t *r, const bt_task_t *task, const struct choice_view *v,
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

static bool default_choice(bt_request_t *r, const bt_task_t *task, const struct choice_view *v,
                           bt_choice_t *choice_p)
{
    *choice_p = (bt_choice_t){.kind = BT_PLAN_NONE};
    if (v->prefill.count != 0 && default_pair(r, task, v, &choice_p->first))
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
        bt_workers_topology(r->pool, bt_clock_ms(), why, why_size);
        if (why[0] == '\0' && v.why != NULL)
            bt_str_copy(why, why_size, v.why);
        return v.why == route_refusal ? BT_E_INVAL : BT_E_NO_WORKER;
    }
    r->degraded = topology == BT_TOPOLOGY_DEGRADED;
    bt_record_candidates(r, &view);
    if (bt_policy_call_plan(r, &view, choice_p) == 0) {
        if (is_valid(r, NULL, &v, &choice_p->first)) {
            r->record.decided_by = "policy";
            bt_policy_call_shadow(r, &view, choice_p);
            return 0;
        }
        bt_policy_call_invalid(r);
    }
    if (default_choice(r, NULL, &v, choice_p)) {
        r->record.decided_by = "default";
        bt_policy_call_shadow(r, &view, choice_p);
        return 0;
    }
    bt_str_copy(why, why_size, v.why != NULL ? v.why : "no two usable workers can work as a pair");
    return BT_E_NO_WORKER;
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
    bt_policy_view_t view;
    int rc;

    if (shape(task->request, &v) == BT_TOPOLOGY_NONE)
        return BT_E_NO_WORKER;
    view = lua_view(task->request, &v);
    rc = bt_policy_call_fallback(task, f, &view, choice_p);
    if (rc == 0 && choice_p->first.decode == NULL)
        return BT_E_NO_WORKER; /* the policy gives up */
    if (rc == 0 && is_valid(task->request, task, &v, &choice_p->first) &&
        same_split(task, &choice_p->first))
        return 0;
    if (rc == 0)
        bt_policy_call_invalid(task->request);
    while (task->alternate_next < task->choice.alternate_count) {
        const bt_pair_t *alternate = &task->choice.alternates[task->alternate_next++];
        if (is_valid(task->request, task, &v, alternate) && same_split(task, alternate)) {
            *choice_p = (bt_choice_t){.first = *alternate};
            return 0;
        }
    }
    if (default_choice(task->request, task, &v, choice_p) && same_split(task, &choice_p->first))
        return 0;
    return BT_E_NO_WORKER;
}

bt_worker_t *bt_plan_other_decode(bt_task_t *task, bt_worker_t *prefill)
{
    bt_request_t *r = task->request;
    struct choice_view v;

    if (shape(r, &v) != BT_TOPOLOGY_PAIR)
        return NULL;
    return least(r, task, &v.decode, BT_PHASE_DECODE, prefill);
}

/* The policy's alternates come first, whatever decode they name: the one that waits is not exchanged. */
bool bt_plan_other_prefill(bt_task_t *task, const bt_pair_t *pair, bt_pair_t *pair_p)
{
    bt_request_t *r = task->request;
    bt_pair_t next = *pair;
    struct choice_view v;

    if (shape(r, &v) != BT_TOPOLOGY_PAIR)
        return false;
    for (unsigned i = 0; i < task->choice.alternate_count; i++) {
        next.prefill = task->choice.alternates[i].prefill;
        next.prefill_rank = task->choice.alternates[i].prefill_rank;
        if (next.prefill == NULL || was_tried(task, next.prefill) ||
            !in_set(&v.prefill, next.prefill) || !fits(r, next.prefill, pair->decode))
            continue;
        *pair_p = next;
        return true;
    }
    next.prefill = least(r, task, &v.prefill, BT_PHASE_PREFILL, pair->decode);
    next.prefill_rank = -1;
    if (next.prefill == NULL)
        return false;
    *pair_p = next;
    return true;
}
