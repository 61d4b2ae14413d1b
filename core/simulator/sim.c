/* How it works: a heap of events in virtual time; equal times go in the order in which they were made, so a seed gives one run. An engine has
 * one event at most, the end of its step, and between two events nothing changes but what a formula gives. */
#include "simulator/sim_impl.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/rand.h"
#include "script/policy/policy_source.h"
#include "script/shared/now.h"
#include "script/view/hook.h"

#include <stdio.h>
#include <stdlib.h>

#define PATIENCE                                                                                   \
    500 /* times a hook's budget: it is of real time, and a busy machine takes some of it */

static void set_time(bt_sim_run_t *r, double at_s)
{
    r->now_s = at_s;
    atomic_store_explicit(&bt_now_faked_us, 1000000000u + (uint64_t) (at_s * 1e6),
                          memory_order_relaxed);
}

void bt_sim_next_arrival(bt_sim_run_t *r)
{
    const bt_sim_trace_t *t = r->setup->trace;

    if (r->next_request == t->count)
        return;
    const double at_s = r->setup->concurrency > 0 ? r->now_s : t->requests[r->next_request].at_s;
    bt_sim_events_push(&r->events, at_s, BT_SIM_ARRIVE, 0, NULL);
}

static void arrive(bt_sim_run_t *r)
{
    if (r->next_request == r->setup->trace->count) /* more at once than there are */
        return;
    const bt_sim_request_t *request = &r->setup->trace->requests[r->next_request++];

    if (r->setup->concurrency == 0)
        bt_sim_next_arrival(r);
    bt_sim_request_begin(r, request);
}

static int load_policy(bt_sim_run_t *r)
{
    bt_policy_source_t *source;
    bt_policy_spec_t spec = {.params = r->setup->params};
    int rc =
        bt_policy_source_open(&source, r->setup->policy, NULL, r->out->err, sizeof r->out->err);

    if (rc < 0)
        return rc;
    spec.path = source->path;
    spec.code = (bt_str_t){source->code, source->size};
    rc = bt_policy_make(&r->policy, &spec, r->out->err, sizeof r->out->err);
    bt_policy_source_unref(source);
    if (rc == 0)
        snprintf(r->out->label, sizeof r->out->label, "%s@%s", bt_policy_name(r->policy),
                 bt_policy_version(r->policy));
    return rc;
}

static int make_prompt_room(bt_sim_run_t *r)
{
    uint32_t most = 0;

    for (unsigned i = 0; i < r->setup->trace->count; i++)
        if (r->setup->trace->requests[i].input > most)
            most = r->setup->trace->requests[i].input;
    r->prompt = malloc(BT_SIM_PROMPT_BYTES(most));
    return r->prompt != NULL ? 0 : BT_E_NOMEM;
}

static void handle(bt_sim_run_t *r, const bt_sim_event_t *e)
{
    set_time(r, e->at_s);
    switch (e->kind) {
    case BT_SIM_NOTHING:
        break;
    case BT_SIM_ARRIVE:
        arrive(r);
        break;
    case BT_SIM_WAKE:
        bt_sim_request_wake(r, e->of);
        break;
    case BT_SIM_LINE_TICK:
        bt_sim_line_tick(r);
        break;
    case BT_SIM_CALLED:
        bt_sim_request_called(r, e->of);
        break;
    case BT_SIM_STEP:
        bt_sim_step_ended(r, e->engine);
        break;
    case BT_SIM_MOVED:
        bt_sim_job_moved(r, e->engine, e->of);
        break;
    case BT_SIM_SAMPLE:
        bt_sim_sample(r);
        break;
    case BT_SIM_FAIL:
        bt_sim_fail(r, e->engine);
        break;
    case BT_SIM_REVIVE:
        bt_sim_revive(r, e->engine);
        break;
    case BT_SIM_CHECK:
        bt_sim_check(r, e->engine);
        break;
    case BT_SIM_LEASE:
        bt_sim_lease_ended(r, e->engine, e->of);
        break;
    case BT_SIM_ADVISE:
        bt_sim_advise(r);
        break;
    case BT_SIM_SWITCH:
        bt_sim_switch(r, e->engine);
        break;
    case BT_SIM_DRAIN:
        bt_sim_switch_drain(r, e->engine);
        break;
    case BT_SIM_SWITCHED:
        bt_sim_switched(r, e->engine);
        break;
    }
}

static int prepare(bt_sim_run_t *r)
{
    int rc = load_policy(r);

    if (rc == 0)
        rc = bt_sim_fleet_init(r);
    if (rc == 0)
        rc = make_prompt_room(r);
    if (rc < 0)
        return rc;
    bt_sim_events_push(&r->events, 0, BT_SIM_SAMPLE, 0, NULL);
    for (unsigned i = 0; i == 0 || i < r->setup->concurrency; i++)
        bt_sim_next_arrival(r);
    rc = bt_sim_failures_init(r);
    return rc == 0 ? bt_sim_switches_init(r) : rc;
}

static void note_engines(bt_sim_run_t *r)
{
    r->out->engine_count = r->count;
    for (unsigned i = 0; i < r->count; i++) {
        bt_sim_engine_result_t *out = &r->out->engines[i];
        snprintf(out->name, sizeof out->name, "%s", r->workers[i]->name);
        out->busy_s = (float) r->engines[i].busy_s;
        out->prompt_tokens = r->engines[i].prompt_tokens;
        out->cached_tokens = r->engines[i].cached_tokens;
        out->preempted = r->engines[i].preempted;
        out->recomputed_tokens = r->engines[i].recomputed_tokens;
        out->forgotten_blocks = r->engines[i].kv.forgotten;
    }
    r->out->virtual_s = r->end_s;
    r->out->plan_us = r->plans > 0 ? (double) r->plan_ns / 1000 / (double) r->plans : 0;
}

static void fini(bt_sim_run_t *r)
{
    bt_list_t *it, *tmp;

    bt_list_each (&r->flights, it, tmp) { /* of a run that has failed */
        bt_sim_flight_t *f = bt_container_of(it, bt_sim_flight_t, link);
        bt_fair_queue_remove(&r->line.fair, &f->ticket.item);
        bt_sim_intake_free(f);
        bt_sim_forget_tried(f, 0);
        bt_worker_unref(f->prefill.worker);
        bt_worker_unref(f->decode.worker);
        free(f);
    }
    bt_sim_line_fini(r);
    bt_policy_free(r->policy);
    bt_sim_fleet_fini(r);
    bt_sim_events_fini(&r->events);
    free(r->prompt);
}

int bt_sim_run(const bt_sim_setup_t *setup, bt_sim_outcome_t *out)
{
    bt_sim_run_t r = {.setup = setup, .out = out};
    const uint64_t start_us = bt_clock_us();
    const int log_level = bt_log_level_now;

    bt_log_level_now = BT_LOG_ERROR; /* a simulated worker's ends are no news */
    bt_list_init(&r.flights);
    bt_sim_line_init(&r);
    set_time(&r, 0);
    bt_hook_budget_factor = PATIENCE;
    bt_rand_seed(setup->seed);
    r.rc = prepare(&r);
    while (r.rc == 0 && r.events.count > 0) {
        const bt_sim_event_t e = bt_sim_events_pop(&r.events);
        handle(&r, &e);
        r.rc = r.rc == 0 ? r.events.rc : r.rc;
    }
    if (r.rc == 0)
        r.rc = r.feed.rc;
    if (r.rc == 0)
        note_engines(&r);
    else if (out->err[0] == '\0')
        snprintf(out->err, sizeof out->err, "%s", bt_err_text(r.rc));
    atomic_store_explicit(&bt_now_faked_us, 0, memory_order_relaxed);
    fini(&r);
    bt_log_level_now = log_level;
    out->wall_s = (double) (bt_clock_us() - start_us) / 1e6;
    return out->rc = r.rc;
}
