/* One pass over a set, from a place that chance says, so that ties fall evenly. What is worse than any load is added to it: a pair that
 * is cold, a pair that rests. So such pairs serve where no other is left, and nothing is tried twice. */
#include "dispatch/plan/default_choice.h"

#include "base/rand.h"
#include "cluster/pair_breaker.h"
#include "cluster/warm.h"

/* Who serves alone is at a prompt before it decodes: that is prefill's load of a worker that is looked
 * at for its decoding. */
static int64_t load_of(const bt_worker_t *w, enum bt_phase phase)
{
    const int64_t load = bt_worker_tokens(w, phase) + 64 * bt_worker_requests(w, phase);

    return phase == BT_PHASE_PREFILL ? load : load + load_of(w, BT_PHASE_PREFILL);
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

/* Whom the default choice looks for: the least loaded of a set that was not tried, and makes a pair
 * with `partner`, or with some one of `partners`; NULL: serves alone. */
struct search {
    bt_request_t *r;
    const bt_task_t *task;
    const bt_worker_set_t *set;
    enum bt_phase phase;
    bt_worker_t *partner;
    const bt_worker_set_t *partners;
};

static bt_worker_t *least(const struct search *s);

static bool fits(const struct search *s, bt_worker_t *w)
{
    if (bt_task_was_tried(s->task, w))
        return false;
    if (s->partners != NULL)
        return least(&(struct search){s->r, s->task, s->partners, BT_PHASE_DECODE, w, NULL}) !=
               NULL;
    if (s->partner == NULL)
        return true;
    return (s->phase == BT_PHASE_PREFILL ? bt_pair_refusal(s->r, w, s->partner)
                                         : bt_pair_refusal(s->r, s->partner, w)) == NULL;
}

/* A pair that is not warm serves where no warm one can, one that rests where no other is left. */
#define COLD (INT64_C(1) << 48)
#define RESTS (INT64_C(1) << 50)

/* With its partner; with all that it could have. */
static bool rests(const struct search *s, const bt_worker_t *w)
{
    const uint64_t now_ms = bt_clock_event_ms();

    if (!bt_pair_breaker_may_rest(w, now_ms))
        return false;
    if (s->partner != NULL)
        return s->phase == BT_PHASE_PREFILL ? bt_pair_breaker_rests(w, s->partner, now_ms)
                                            : bt_pair_breaker_rests(s->partner, w, now_ms);
    for (unsigned i = 0; s->partners != NULL && i < s->partners->count; i++) {
        const bt_worker_t *d = s->partners->items[i];
        if (!bt_task_was_tried(s->task, d) && bt_pair_refusal(s->r, w, d) == NULL &&
            !bt_pair_breaker_rests(w, d, now_ms))
            return false;
    }
    return s->partners != NULL;
}

static int64_t cost_of(const struct search *s, const bt_worker_t *w)
{
    const int64_t load = load_of(w, s->phase) + (rests(s, w) ? RESTS : 0);
    bool warm = true;

    if (!atomic_load_explicit(&bt_warm_is_on, memory_order_relaxed))
        return load;
    if (s->partners != NULL)
        warm = bt_warm_has_any(w);
    else if (s->partner != NULL)
        warm =
            s->phase == BT_PHASE_PREFILL ? bt_warm_has(w, s->partner) : bt_warm_has(s->partner, w);
    return warm ? load : load + COLD;
}

static bt_worker_t *any_near(const struct search *s, int64_t most)
{
    bt_worker_t *best = NULL;
    unsigned near = 0;

    for (unsigned i = 0; i < s->set->count; i++) {
        bt_worker_t *w = s->set->items[i];
        if (cost_of(s, w) <= most && fits(s, w) && bt_rand_below(++near) == 0)
            best = w;
    }
    return best;
}

static bt_worker_t *least(const struct search *s)
{
    const unsigned count = s->set->count;
    const int64_t slack = slack_of(s->set, s->phase);
    const unsigned start = count != 0 ? (unsigned) bt_rand_below(count) : 0; /* ties fall evenly */
    bt_worker_t *best = NULL, *near;
    int64_t best_load = 0;

    for (unsigned k = 0; k < count; k++) {
        bt_worker_t *w = s->set->items[(start + k) % count];
        const int64_t load = cost_of(s, w);
        if ((best != NULL && load >= best_load) || !fits(s, w))
            continue;
        best = w;
        best_load = load;
    }
    if (best == NULL || slack == 0)
        return best;
    near = any_near(s, best_load + slack);
    return near != NULL ? near : best; /* loads move while they are read */
}

bt_worker_t *bt_default_prefill(bt_request_t *r, const bt_task_t *task, const bt_worker_set_t *set,
                                bt_worker_t *decode)
{
    return least(&(struct search){r, task, set, BT_PHASE_PREFILL, decode, NULL});
}

bt_worker_t *bt_default_decode(bt_request_t *r, const bt_task_t *task, const bt_worker_set_t *set,
                               bt_worker_t *prefill)
{
    return least(&(struct search){r, task, set, BT_PHASE_DECODE, prefill, NULL});
}

bool bt_default_pair(bt_request_t *r, const bt_task_t *task, const bt_choice_view_t *v,
                     bt_choice_t *choice_p)
{
    bt_pair_t *pair = &choice_p->first;

    *choice_p = (bt_choice_t){.alternate_count = 0};
    pair->prefill_rank = pair->decode_rank = -1;
    pair->prefill = least(&(struct search){r, task, &v->sets[BT_LIST_PREFILL], BT_PHASE_PREFILL,
                                           NULL, &v->sets[BT_LIST_DECODE]});
    if (pair->prefill != NULL)
        pair->decode = bt_default_decode(r, task, &v->sets[BT_LIST_DECODE], pair->prefill);
    else
        pair->decode = bt_default_decode(r, task, &v->sets[BT_LIST_HYBRID], NULL);
    return pair->decode != NULL;
}
