/* fleet.c - the workers of a run, and what the gateway sees of them. */
#include "simulator/sim_impl.h"

#include "base/err.h"
#include "cluster/changes.h"
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

static int make_worker(bt_sim_run_t *r, enum bt_role role, unsigned number, bt_worker_t **w_p)
{
    char url[64], name[16], connector[] = "NixlConnector", err[128];
    bt_worker_spec_t spec;
    bt_breaker_config_t breaker;

    snprintf(name, sizeof name, "%c%u", "pdw"[role], number);
    snprintf(url, sizeof url, "http://%s:8000", name);
    bt_worker_spec_init(&spec);
    spec.url = url;
    spec.name = name;
    spec.role = role;
    spec.engine = BT_ENGINE_VLLM;
    spec.connector = role != BT_ROLE_HYBRID ? connector : NULL;
    bt_breaker_config_defaults(&breaker);
    const int rc = bt_worker_new(w_p, &spec, r->count + 1, r->count, &breaker, err, sizeof err);
    if (rc < 0)
        return rc;
    bt_breaker_join(&(*w_p)->breaker, r->groups[list_of(role)]);
    bt_worker_set_health(*w_p, BT_HEALTH_UP, "it is simulated");
    return 0;
}

static int add_worker(bt_sim_run_t *r, enum bt_role role, unsigned number)
{
    int rc = make_worker(r, role, number, &r->workers[r->count]);

    if (rc < 0)
        return rc;
    rc = bt_sim_engine_init(&r->engines[r->count], r->setup->model, r->setup->trace);
    if (rc == 0 && r->setup->is_exact)
        r->workers[r->count]->kv_parts =
            bt_kv_parts(bt_sim_feed_listen(&r->feed, r->count, &r->engines[r->count].kv), 1);
    r->count++;
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
    for (int i = 0; i <= BT_LIST_HYBRID; i++)
        if ((r->groups[i] = bt_breaker_group_new()) == NULL)
            return BT_E_NOMEM;
    return 0;
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
    for (unsigned i = 0; rc == 0 && i < s->prefills; i++)
        rc = add_worker(r, BT_ROLE_PREFILL, i);
    for (unsigned i = 0; rc == 0 && i < s->decodes; i++)
        rc = add_worker(r, BT_ROLE_DECODE, i);
    for (unsigned i = 0; rc == 0 && i < s->hybrids; i++)
        rc = add_worker(r, BT_ROLE_HYBRID, i);
    r->view = (bt_policy_view_t){.sets = {&r->sets[BT_LIST_PREFILL], &r->sets[BT_LIST_DECODE],
                                          &r->sets[BT_LIST_HYBRID], &r->sets[BT_LIST_SINGLE]},
                                 .pool = BT_STR("sim")};
    return rc;
}

void bt_sim_fleet_fini(bt_sim_run_t *r)
{
    bt_sim_feed_fini(&r->feed);
    for (unsigned i = 0; i < r->count; i++) {
        bt_sim_engine_fini(&r->engines[i]);
        bt_worker_unref(r->workers[i]);
    }
    for (int i = 0; i < BT_LIST_COUNT; i++) {
        free(r->sets[i].items);
        free(r->left[i].items);
    }
    for (int i = 0; i <= BT_LIST_HYBRID; i++)
        bt_breaker_group_unref(r->groups[i]);
    free(r->engines);
    free(r->workers);
    free(r->watches);
}

/* ---- seen ---- */

static void put(bt_worker_set_t *set, bt_worker_t *w)
{
    set->items[set->count++] = w;
}

/* As dispatch/choice_view.c: a prefill serves alone, degraded, where no decode is left; without pairs, whoever serves alone. */
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

    if (r->watches[i].is_dead)
        return;
    load->running = e->running_count;
    load->waiting = e->prompts.count + e->awaited.count + e->joining.count;
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
