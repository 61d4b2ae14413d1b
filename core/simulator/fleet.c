/* fleet.c - the workers of a run, and what the gateway sees of them. */
#include "simulator/sim_impl.h"

#include "base/err.h"
#include "cluster/changes.h"
#include "cluster/roles/advisor.h"
#include "script/policy/policy_run.h"
#include "script/shared/kv_hits.h"
#include "script/shared/now.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define SAMPLE_S 1.0 /* between two looks at the engines' own load, as the gateway's */

/* ---- made ---- */

static enum bt_policy_list list_of(enum bt_role role)
{
    return role == BT_ROLE_PREFILL  ? BT_LIST_PREFILL
           : role == BT_ROLE_DECODE ? BT_LIST_DECODE
                                    : BT_LIST_HYBRID;
}

static int make_spec(bt_worker_spec_t *spec, enum bt_role role, unsigned number)
{
    char url[64], name[16];

    snprintf(name, sizeof name, "%c%u", "pdw"[role], number);
    snprintf(url, sizeof url, "http://%s:8000", name);
    bt_worker_spec_init(spec);
    spec->url = bt_str_dup(bt_str(url));
    spec->name = bt_str_dup(bt_str(name));
    spec->role = role;
    spec->engine = BT_ENGINE_VLLM;
    spec->connector = role != BT_ROLE_HYBRID ? bt_str_dup(BT_STR("NixlConnector")) : NULL;
    return spec->url != NULL && spec->name != NULL &&
                   (spec->connector != NULL || role == BT_ROLE_HYBRID)
               ? 0
               : BT_E_NOMEM;
}

static int make_specs(const bt_sim_setup_t *s, bt_worker_spec_t *specs)
{
    const unsigned counts[] = {s->prefills, s->decodes, s->hybrids};
    unsigned n = 0;
    int rc = 0;

    for (int role = BT_ROLE_PREFILL; role <= BT_ROLE_HYBRID; role++)
        for (unsigned i = 0; i < counts[role]; i++)
            rc = make_spec(&specs[n++], (enum bt_role) role, i) < 0 ? BT_E_NOMEM : rc;
    return rc;
}

static void on_publish(void *user, bt_workers_t *workers)
{
    (void) user;
    (void) workers;
}

static int register_workers(bt_sim_run_t *r, const bt_worker_spec_t *specs, unsigned count)
{
    bt_pool_spec_t pool;
    bt_breaker_config_t breaker;

    bt_breaker_config_defaults(&breaker);
    bt_pool_spec_init(&pool);
    pool.name = bt_str_dup(BT_STR("sim"));
    int rc =
        pool.name != NULL ? bt_registry_new(&r->registry, &breaker, on_publish, NULL) : BT_E_NOMEM;
    if (rc == 0)
        rc = bt_registry_apply(r->registry, &pool, 1, &specs, &count, r->out->err,
                               sizeof r->out->err);
    bt_pool_spec_fini(&pool);
    return rc;
}

/* From now on this worker stands for the engine. */
static int put_worker(bt_sim_run_t *r, unsigned engine, bt_worker_t *w)
{
    if (w->slot >= r->slot_cap) {
        const unsigned cap = 2 * (w->slot + 1);
        unsigned *at = realloc(r->engine_at, cap * sizeof *at);
        if (at == NULL)
            return BT_E_NOMEM;
        r->engine_at = at;
        r->slot_cap = cap;
    }
    r->engine_at[w->slot] = engine;
    r->workers[engine] = bt_worker_ref(w);
    if (r->setup->is_exact)
        w->kv_parts = bt_kv_parts(r->feed.first_part + engine, 1);
    bt_worker_set_health(w, BT_HEALTH_UP, "it is simulated");
    return 0;
}

static int make_workers(bt_sim_run_t *r, unsigned total)
{
    bt_worker_spec_t *specs = calloc(total, sizeof *specs);
    int rc = specs != NULL ? make_specs(r->setup, specs) : BT_E_NOMEM;

    if (rc == 0)
        rc = register_workers(r, specs, total);
    for (unsigned i = 0; rc == 0 && i < total; i++)
        rc = put_worker(r, i,
                        bt_workers_find(bt_registry_current(r->registry), bt_str(specs[i].name)));
    for (unsigned i = 0; specs != NULL && i < total; i++)
        bt_worker_spec_fini(&specs[i]);
    free(specs);
    return rc;
}

static int make_engines(bt_sim_run_t *r, unsigned total)
{
    int rc = 0;

    for (; rc == 0 && r->count < total; r->count++) {
        rc = bt_sim_engine_init(&r->engines[r->count], r->setup->model, r->setup->trace,
                                r->setup->preempts);
        if (rc == 0 && r->setup->is_exact)
            (void) bt_sim_feed_listen(&r->feed, r->count, &r->engines[r->count].kv);
    }
    return rc;
}

static int make_room(bt_sim_run_t *r, unsigned total)
{
    r->engines = calloc(total, sizeof *r->engines);
    r->workers = calloc(total, sizeof *r->workers);
    r->watches = calloc(total, sizeof *r->watches);
    if (r->engines == NULL || r->workers == NULL || r->watches == NULL)
        return BT_E_NOMEM;
    for (int i = 0; i < BT_LIST_COUNT; i++) {
        r->sets[i].items = calloc(total, sizeof(bt_worker_t *));
        r->left[i].items = calloc(total, sizeof(bt_worker_t *));
        if (r->sets[i].items == NULL || r->left[i].items == NULL)
            return BT_E_NOMEM;
    }
    return 0;
}

const bt_worker_pool_t *bt_sim_pool(const bt_sim_run_t *r)
{
    return &bt_registry_current(r->registry)->pools[0];
}

int bt_sim_fleet_init(bt_sim_run_t *r)
{
    const bt_sim_setup_t *s = r->setup;
    const unsigned total = s->prefills + s->decodes + s->hybrids;
    int rc = make_room(r, total);

    if (rc == 0 && s->is_exact)
        rc = bt_sim_feed_init(&r->feed, s->trace, total,
                              (uint32_t) (s->model->kv_tokens / s->trace->block_tokens),
                              s->event_delay_s, &r->now_s);
    if (rc == 0)
        rc = make_engines(r, total);
    if (rc == 0)
        rc = make_workers(r, total);
    if (rc < 0)
        return rc;
    r->view = (bt_policy_view_t){.sets = {&r->sets[BT_LIST_PREFILL], &r->sets[BT_LIST_DECODE],
                                          &r->sets[BT_LIST_HYBRID], &r->sets[BT_LIST_SINGLE]},
                                 .pool = BT_STR("sim"),
                                 .advice = &bt_sim_pool(r)->stat->advice};
    return 0;
}

int bt_sim_fleet_switch(bt_sim_run_t *r, unsigned engine)
{
    bt_worker_t *before = r->workers[engine];
    bt_worker_spec_t spec;
    int rc = bt_worker_spec_copy(&spec, &before->spec);

    if (rc < 0)
        return rc;
    spec.role = spec.role == BT_ROLE_PREFILL ? BT_ROLE_DECODE : BT_ROLE_PREFILL;
    rc = bt_registry_replace(r->registry, before, &spec, r->out->err, sizeof r->out->err);
    bt_worker_spec_fini(&spec);
    if (rc < 0)
        return rc;
    rc = put_worker(r, engine,
                    bt_workers_find(bt_registry_current(r->registry), bt_str(before->name)));
    bt_worker_unref(before);
    return rc;
}

void bt_sim_fleet_fini(bt_sim_run_t *r)
{
    bt_advisor_free(r->advisor);
    for (unsigned i = 0; i < r->count; i++) {
        bt_sim_engine_fini(&r->engines[i]);
        bt_worker_unref(r->workers[i]);
    }
    bt_sim_feed_fini(&r->feed);
    if (r->registry != NULL)
        bt_registry_free(r->registry);
    for (int i = 0; i < BT_LIST_COUNT; i++) {
        free(r->sets[i].items);
        free(r->left[i].items);
    }
    free(r->engines);
    free(r->workers);
    free(r->watches);
    free(r->engine_at);
}

/* ---- seen ---- */

static void put(bt_worker_set_t *set, bt_worker_t *w)
{
    set->items[set->count++] = w;
}

/* As dispatch/plan/choice_view.c: a prefill serves alone, degraded, where no decode is left; without pairs, whoever serves alone. */
static void take_shape(bt_worker_set_t *sets)
{
    bt_worker_set_t *prefill = &sets[BT_LIST_PREFILL], *single = &sets[BT_LIST_SINGLE];

    if (prefill->count > 0 && sets[BT_LIST_DECODE].count > 0)
        return;
    if (sets[BT_LIST_HYBRID].count == 0 && sets[BT_LIST_DECODE].count == 0) {
        single->count = 0;
        for (unsigned i = 0; i < prefill->count; i++) {
            put(&sets[BT_LIST_HYBRID], prefill->items[i]);
            put(single, prefill->items[i]);
        }
    }
    prefill->count = sets[BT_LIST_DECODE].count = 0;
}

const bt_policy_view_t *bt_sim_view(bt_sim_run_t *r)
{
    const uint64_t changes = bt_workers_changes();

    if (r->view.key != 0 && changes == r->changes)
        return &r->view;
    r->changes = changes;
    for (int i = 0; i < BT_LIST_COUNT; i++)
        r->sets[i].count = 0;
    for (unsigned i = 0; i < r->count; i++) {
        bt_worker_t *w = r->workers[i];
        if (!bt_worker_usable(w, bt_sim_now_ms(r)))
            continue;
        put(&r->sets[list_of(w->spec.role)], w);
        if (w->serves_alone)
            put(&r->sets[BT_LIST_SINGLE], w);
    }
    take_shape(r->sets);
    r->view.key = ++r->keys;
    return &r->view;
}

/* ---- by the clock ---- */

static void look_at(bt_sim_run_t *r, unsigned i)
{
    const bt_sim_engine_t *e = &r->engines[i];
    bt_load_sample_t *load = &r->workers[i]->load;

    if (!bt_sim_works(r, i))
        return;
    load->running = e->running_count;
    load->waiting = e->prompts.count + e->awaited.count + e->joining.count;
    load->blocked = e->awaited.count;
    load->started_since = 0;
    load->kv_used_ppm = (uint32_t) (bt_sim_engine_kv_used(e) * 1e6);
    load->at_ms = bt_now_us() / 1000;
}

void bt_sim_sample(bt_sim_run_t *r)
{
    for (unsigned i = 0; i < r->count; i++)
        look_at(r, i);
    if (r->out->failure_count > 0)
        bt_workers_changed(); /* breakers open by time, without an event */
    if (bt_policy_has_hook(r->policy, "tick")) {
        bt_policy_run_t tick = {0};
        (void) bt_policy_tick(r->policy, &tick, bt_now_us() / 1000, bt_sim_view(r));
        bt_policy_run_drop(
            &tick); /* one that waits for others is not resumed: there is nobody else here */
    }
    double next_s = r->now_s + SAMPLE_S;
    if (r->in_flight == 0 &&
        r->events.count > 0) /* nothing changes until then: whole looks are left out */
        next_s += SAMPLE_S * floor(fmax(0, r->events.heap[0].at_s - next_s) / SAMPLE_S);
    if (r->in_flight > 0 || r->next_request < r->setup->trace->count)
        bt_sim_events_push(&r->events, next_s, BT_SIM_SAMPLE, 0, NULL);
}
