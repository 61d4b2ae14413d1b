/* A switch costs a drain and a cold cache, so it takes an advice that stays: the same wish, more prefill or more decode, at
 * BT_ROLE_AUTO_LOOKS looks a window apart, none of low confidence. One worker goes at a time, and the count begins anew then: what is
 * advised next has been measured with the new split. A role keeps one usable worker (role_switch.c refuses the last). */
#include "cluster/roles/role_auto.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"

#include <stdlib.h>

struct bt_role_auto {
    bt_registry_t *registry;
    const bt_advisor_t *advisor;
    bt_role_switches_t *switches;
    bt_timer_t timer;
};

/* -1: fewer prefill workers, 1: more. */
static int wish_of(const bt_role_auto_t *a, const bt_worker_pool_t *pool, bt_advice_t *advice)
{
    bt_advice_input_t in;

    if (!bt_advisor_input(a->advisor, pool, &in))
        return 0;
    bt_advice_make(&in, advice);
    if (advice->confidence <= BT_CONFIDENCE_LOW || advice->prefill == in.prefill.workers)
        return 0;
    return advice->prefill > in.prefill.workers ? 1 : -1;
}

static bool is_switching(const bt_worker_pool_t *pool)
{
    for (unsigned i = 0; i < pool->all.count; i++)
        if (atomic_load(&pool->all.items[i]->switching) != BT_SWITCH_NONE)
            return true;
    return false;
}

/* The one that has least to finish. */
static bt_worker_t *idlest(const bt_worker_set_t *set, enum bt_phase phase)
{
    const uint64_t now_ms = bt_clock_ms();
    bt_worker_t *best = NULL;

    for (unsigned i = 0; i < set->count; i++) {
        bt_worker_t *w = set->items[i];
        if (bt_worker_usable(w, now_ms) &&
            (best == NULL || bt_worker_requests(w, phase) < bt_worker_requests(best, phase)))
            best = w;
    }
    return best;
}

static void switch_one(const bt_role_auto_t *a, const bt_worker_pool_t *pool, int wish,
                       const char *why)
{
    const bt_role_switch_ask_t ask = {.to = wish > 0 ? BT_ROLE_PREFILL : BT_ROLE_DECODE,
                                      .timeout_ms = BT_ROLE_SWITCH_TIMEOUT_MS};
    bt_worker_t *w = wish > 0 ? idlest(&pool->decode, BT_PHASE_DECODE)
                              : idlest(&pool->prefill, BT_PHASE_PREFILL);
    char err[256] = "out of memory";

    if (w == NULL)
        return;
    bt_log_info("cluster", "pool %s: worker %s is to become %s: %s", pool->spec.name, w->name,
                bt_role_name(ask.to), why);
    if (bt_role_switches_begin(a->switches, w, &ask, err, sizeof err) < 0)
        bt_log_warn("cluster", "worker %s stays %s: %s", w->name, bt_role_name(w->spec.role), err);
}

static void look_at(const bt_role_auto_t *a, const bt_worker_pool_t *pool)
{
    bt_pool_stat_t *stat = pool->stat;
    bt_advice_t advice;
    const int wish = is_switching(pool) ? 0 : wish_of(a, pool, &advice);

    stat->role_wish_looks = wish == stat->role_wish ? stat->role_wish_looks + 1 : 1;
    stat->role_wish = wish;
    if (wish == 0 || stat->role_wish_looks < BT_ROLE_AUTO_LOOKS)
        return;
    stat->role_wish_looks = 0;
    switch_one(a, pool, wish, advice.why);
}

static void start_timer(bt_role_auto_t *a)
{
    bt_timer_start(&a->timer, bt_advisor_config(a->advisor)->window_ms);
}

static void on_timer(bt_timer_t *timer)
{
    bt_role_auto_t *a = bt_container_of(timer, bt_role_auto_t, timer);
    bt_workers_t *workers = bt_workers_ref(bt_registry_current(a->registry));

    for (unsigned i = 0; i < workers->pool_count; i++)
        look_at(a, &workers->pools[i]);
    bt_workers_unref(workers);
    start_timer(a);
}

int bt_role_auto_new(bt_role_auto_t **auto_p, bt_loop_t *loop, bt_registry_t *registry,
                     const bt_advisor_t *advisor, bt_role_switches_t *switches)
{
    bt_role_auto_t *a = malloc(sizeof *a);

    if (a == NULL)
        return BT_E_NOMEM;
    *a = (bt_role_auto_t){.registry = registry, .advisor = advisor, .switches = switches};
    bt_timer_init(loop, &a->timer, on_timer);
    start_timer(a);
    *auto_p = a;
    return 0;
}

void bt_role_auto_free(bt_role_auto_t *a)
{
    if (a == NULL)
        return;
    bt_timer_stop(&a->timer);
    free(a);
}
