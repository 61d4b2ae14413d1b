/* Events name the policies that planned (a pool's, a rule's, a shadow's) by the bundle's name for them, not by pointer: by the
 * time of the batch another generation may serve, and it is that one which learns. */
#include "dispatch/telemetry/observe.h"
#include "base/log.h"
#include "dispatch/answer/token_replay.h"
#include "dispatch/answer/usage.h"
#include "dispatch/plan/candidates.h"
#include "dispatch/plan/policy_call.h"

#include <stdlib.h>

#define OBSERVE_MAX 256
#define OBSERVE_TEXT 64 /* bytes of model, session, tenant that an event keeps, NUL included */
#define FLUSH_MS 100
#define TICK_MS 1000

enum { TEXT_MODEL, TEXT_SESSION, TEXT_TENANT, TEXT_COUNT };

struct observed {
    bt_policy_event_t event;
    uint64_t policies, shadow; /* who planned, and beside: hash of the bundle's name; 0 = nobody */
    char texts[TEXT_COUNT][OBSERVE_TEXT];
};

struct ticking {
    bt_hook_run_t hook;
    bt_generation_t *generation; /* pinned while it runs */
    unsigned pool;               /* index in the bundle */
    bt_policy_t *policy;
    bt_policy_view_t view;
};

struct bt_observer {
    bt_dispatcher_t *d;
    bt_timer_t flush, tick;
    uint64_t generation;     /* that the members below are of; 0 = none */
    struct observed *events; /* OBSERVE_MAX, or NULL until they are needed */
    unsigned count;
    struct ticking *ticking; /* one for every policy with a tick */
    unsigned ticking_count;
};
typedef struct bt_observer bt_observer_t;

/* ---- observe ---- */

static bool observes(const struct bt_pool_policies *p)
{
    bt_policy_t *all[BT_SLOT_COUNT];
    const unsigned count = bt_pool_policies_all(p, all);

    for (unsigned i = 0; i < count; i++)
        if (bt_policy_has_hook(all[i], "observe"))
            return true;
    return false;
}

static void tell(bt_observer_t *o, bt_policy_t *policy, const bt_policy_event_t *batch, unsigned n)
{
    int rc = bt_policy_observe(policy, batch, n);

    if (rc == 0)
        bt_stats_add_(&o->d->stats.observed_events, n);
    if (rc == 0 || rc == BT_E_AGAIN)
        return;
    bt_stats_add_(&o->d->stats.observed_dropped, n);
    bt_stats_inc(&o->d->stats, policy_errors);
    bt_log_warn("policy", "%s: %s; %u events are lost to it", bt_policy_name(policy),
                bt_policy_error(policy), n);
}

/* Names have no longest one. */
static uint64_t hash_of(const char *name)
{
    return name != NULL ? bt_str_hash(bt_str(name)) : 0;
}

static void tell_all(bt_observer_t *o, const struct bt_pool_policies *p)
{
    const uint64_t name = hash_of(p->bundle->name);
    bt_policy_event_t batch[OBSERVE_MAX];
    bt_policy_t *all[BT_SLOT_COUNT];
    const unsigned count = bt_pool_policies_all(p, all);
    unsigned n = 0;

    for (unsigned i = 0; i < o->count; i++)
        if (o->events[i].policies == name || o->events[i].shadow == name)
            batch[n++] = o->events[i].event;
    for (unsigned i = 0; n > 0 && i < count; i++)
        tell(o, all[i], batch, n);
}

static void flush(bt_observer_t *o)
{
    const bt_generation_t *g = o->d->generations.serving;

    bt_timer_stop(&o->flush);
    for (unsigned i = 0; g != NULL && i < g->bundle->pool_count; i++)
        if (observes(&g->pools[i]))
            tell_all(o, &g->pools[i]);
    o->count = 0;
}

static void on_flush(bt_timer_t *timer)
{
    flush(bt_container_of(timer, bt_observer_t, flush));
}

static bt_str_t keep(struct observed *e, unsigned which, bt_str_t text)
{
    if (text.n >= OBSERVE_TEXT)
        text.n = OBSERVE_TEXT - 1;
    if (text.n != 0)
        memcpy(e->texts[which], text.p, text.n);
    return (bt_str_t){e->texts[which], text.n};
}

static const char *kind_of(const bt_request_t *r)
{
    if (r->fail_name == NULL && r->status != 0 && r->status < 500)
        return "finished";
    return r->status == 0 || strcmp(r->fail_name != NULL ? r->fail_name : "", "cancelled") == 0
               ? "cancelled"
               : "failed";
}

/* What the request kept comes with the first of its events. */
static void note_kept(bt_policy_event_t *event, bt_request_t *r)
{
    event->kept_count = r->kept_count;
    if (r->kept_count > 0)
        memcpy(event->kept, r->kept, r->kept_count * sizeof(r->kept[0]));
    r->kept_count = 0;
}

static uint64_t id_of(const bt_worker_t *w)
{
    return w != NULL ? w->id : 0;
}

/* Of a pair, prefill's word: decode counts what was transferred. */
static uint64_t cached_tokens(const bt_attempt_t *a)
{
    return a->pair.prefill != NULL ? a->legs[0].cached_tokens : bt_usage_answer_cached(&a->legs[1]);
}

static void note_task(bt_observer_t *o, bt_request_t *r, const bt_task_t *task, uint64_t us)
{
    const bt_policy_request_t q = bt_policy_call_describe(r);
    const bt_attempt_t *a = task->attempt;
    const uint64_t before = bt_token_replay_before(r);
    struct observed *e = &o->events[o->count++];

    e->policies = hash_of(r->policies);
    e->shadow = hash_of(r->shadow_policies);
    e->event = (bt_policy_event_t){
        .kind = kind_of(r),
        .at_ms = bt_clock_ms(),
        .model = keep(e, TEXT_MODEL, q.model),
        .session = keep(e, TEXT_SESSION, q.session),
        .tenant = keep(e, TEXT_TENANT, q.tenant),
        .status = r->status,
        .failure = r->fail_name != NULL ? r->fail_name : "",
        .scope = a != NULL && a->fail_rc != 0 ? bt_scope_name(bt_err_scope(a->fail_rc)) : "",
        .prompt_tokens = task->prompt_tokens - before,
        .cached_tokens = a != NULL ? cached_tokens(a) : 0,
        .output_tokens = before + (a != NULL ? bt_usage_tokens(&a->legs[1]) : 0),
        .ttft_ms = r->first_byte_us != 0 ? (double) (r->first_byte_us - r->start_us) / 1000.0 : 0,
        .total_ms = (double) us / 1000.0,
    };
    note_kept(&e->event, r);
    if (a != NULL) {
        e->event.prefill = id_of(a->legs[0].worker);
        e->event.decode = id_of(a->legs[1].worker);
    }
}

void bt_observe_request(bt_request_t *r, uint64_t us)
{
    bt_observer_t *o = r->d->observer;

    if (!r->d->has_observe || r->policies == NULL)
        return;
    if (o->events == NULL)
        o->events = malloc(OBSERVE_MAX * sizeof(*o->events));
    /* A request that never came to a task is told of where its policy kept something of it. */
    const unsigned count = r->task_count == 0 && r->kept_count > 0 ? 1 : r->task_count;
    for (unsigned i = 0; i < count; i++) {
        if (o->events == NULL) {
            bt_stats_inc(&r->d->stats, observed_dropped);
            continue;
        }
        if (o->count == OBSERVE_MAX)
            flush(o);
        note_task(o, r, &r->tasks[i], us);
    }
    if (o->count != 0 && !bt_timer_active(&o->flush))
        bt_timer_start(&o->flush, FLUSH_MS);
}

/* ---- tick ---- */

/* The view's sets are the dispatcher's, and may be others after a wait. */
static bool look(bt_hook_run_t *hook)
{
    struct ticking *t = bt_container_of(hook, struct ticking, hook);
    bt_dispatcher_t *d = hook->d;
    const bt_worker_pool_t *pool = bt_candidates_pool(d, t->generation->bundle, t->pool);

    if (pool == NULL)
        return false;
    const struct bt_candidates *c = bt_candidates_get(d, pool, BT_STR_NULL);
    t->view = bt_candidates_view(c->sets, c->key, pool);
    return true;
}

static void end_tick(struct ticking *t)
{
    bt_hook_run_end(&t->hook);
    bt_generation_unpin(&t->generation);
}

static void tick_ended(bt_hook_run_t *hook, int rc)
{
    struct ticking *t = bt_container_of(hook, struct ticking, hook);

    if (rc < 0) {
        bt_stats_inc(&hook->d->stats, policy_errors);
        bt_log_warn("policy", "%s: %s", bt_policy_name(t->policy),
                    rc == BT_E_TOTAL_TIMEOUT ? "tick waited longer than --policy-wait-ms"
                    : rc == BT_E_POLICY      ? bt_policy_error(t->policy)
                                             : bt_err_text(rc));
    }
    end_tick(t);
}

static void tick(struct ticking *t)
{
    bt_dispatcher_t *d = t->hook.d;
    int rc;

    if (t->generation != NULL)
        return; /* the last one still waits */
    t->generation = bt_generation_pin(&d->generations);
    bt_hook_run_begin(&t->hook);
    if (!look(&t->hook)) {
        end_tick(t);
        return;
    }
    bt_stats_inc(&d->stats, ticks);
    rc = bt_policy_tick(t->policy, &t->hook.run, bt_clock_ms(), &t->view);
    rc = bt_hook_run_settle(&t->hook, rc);
    if (rc != 1)
        tick_ended(&t->hook, rc);
}

static void on_tick(bt_timer_t *timer)
{
    bt_observer_t *o = bt_container_of(timer, bt_observer_t, tick);

    for (unsigned i = 0; i < o->ticking_count; i++)
        tick(&o->ticking[i]);
    bt_timer_start(&o->tick, TICK_MS);
}

/* ---- life ---- */

static void forget_ticking(bt_observer_t *o)
{
    for (unsigned i = 0; i < o->ticking_count; i++)
        if (o->ticking[i].generation != NULL)
            end_tick(&o->ticking[i]);
    free(o->ticking);
    o->ticking = NULL;
    o->ticking_count = 0;
}

static void add_ticking(bt_observer_t *o, unsigned pool, const struct bt_pool_policies *p)
{
    bt_policy_t *all[BT_SLOT_COUNT];
    const unsigned count = bt_pool_policies_all(p, all);

    for (unsigned i = 0; i < count; i++)
        if (bt_policy_has_hook(all[i], "tick"))
            o->ticking[o->ticking_count++] =
                (struct ticking){.hook = {.d = o->d, .on_end = tick_ended, .on_resume = look},
                                 .pool = pool,
                                 .policy = all[i]};
}

void bt_observer_refresh(bt_observer_t *o)
{
    const bt_generation_t *g = o->d->generations.serving;

    if (g == NULL || g->bundle->number == o->generation)
        return;
    flush(o); /* to the new one: its start has taken over from the old */
    forget_ticking(o);
    o->generation = g->bundle->number;
    o->d->has_observe = false;
    o->ticking = calloc((size_t) g->bundle->pool_count * BT_SLOT_COUNT + 1, sizeof(*o->ticking));
    for (unsigned i = 0; i < g->bundle->pool_count; i++) {
        o->d->has_observe |= observes(&g->pools[i]);
        if (o->ticking != NULL)
            add_ticking(o, i, &g->pools[i]);
    }
    if (o->ticking_count == 0)
        bt_timer_stop(&o->tick);
    else if (!bt_timer_active(&o->tick))
        bt_timer_start(&o->tick, TICK_MS);
}

bt_observer_t *bt_observer_new(bt_dispatcher_t *d)
{
    bt_observer_t *o = calloc(1, sizeof(*o));

    if (o == NULL)
        return NULL;
    o->d = d;
    bt_timer_init(d->loop, &o->flush, on_flush);
    bt_timer_init(d->loop, &o->tick, on_tick);
    return o;
}

void bt_observer_stop(bt_observer_t *o)
{
    bt_timer_stop(&o->flush);
    bt_timer_stop(&o->tick);
    forget_ticking(o);
}

void bt_observer_free(bt_observer_t *o)
{
    if (o == NULL)
        return;
    bt_observer_stop(o);
    free(o->events);
    free(o);
}
