/* How it works: a heap of events in virtual time; equal times go in the order in which they were made, so a seed gives one run. An engine has
 * one event at most, the end of its step, and between two events nothing changes but what a formula gives. */
#include "simulator/sim.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/rand.h"
#include "cluster/ledger.h"
#include "script/policy/policy.h"
#include "script/policy/policy_run.h"
#include "script/policy/policy_source.h"
#include "script/shared/kv_hits.h"
#include "script/shared/now.h"
#include "script/view/hook.h"
#include "simulator/engine.h"
#include "simulator/feed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define START_US 1000000000u /* of the virtual clock: 0 means "never" in places */
#define PATIENCE                                                                                   \
    500 /* times a hook's budget: it is of real time, and a busy machine takes some of it */
#define SAMPLE_S 1.0 /* between two looks at the engines' own load, as the gateway's */

enum kind { ARRIVE, STEP, MOVED, SAMPLE };

struct event {
    double at_s;
    uint64_t number; /* the order of equal times */
    enum kind kind;
    unsigned engine;
    bt_sim_job_t *job;
};

struct flight { /* a job, and what it has put on its workers */
    bt_sim_job_t job;
    bt_ledger_entry_t prefill_load, decode_load;
};

struct run {
    const bt_sim_setup_t *setup;
    bt_sim_outcome_t *out;
    bt_policy_t *policy;
    bt_sim_engine_t *engines;
    bt_worker_t **workers;
    unsigned count;
    bt_worker_set_t sets[BT_LIST_COUNT];
    bt_policy_view_t view;
    struct event *heap;
    unsigned heap_count, heap_cap;
    uint64_t next_number;
    unsigned next_request;
    unsigned in_flight;
    double now_s, end_s; /* end_s: of the last answer */
    uint64_t plan_ns, plans;
    bt_sim_feed_t feed;
    char *prompt;
    char session[16];
    int rc;
};

/* ---- events ---- */

static bool is_before(const struct event *a, const struct event *b)
{
    return a->at_s != b->at_s ? a->at_s < b->at_s : a->number < b->number;
}

static void push(struct run *r, double at_s, enum kind kind, unsigned engine, bt_sim_job_t *job)
{
    const struct event e = {at_s, r->next_number++, kind, engine, job};
    unsigned at = r->heap_count;

    if (r->heap_count == r->heap_cap) {
        const unsigned cap = r->heap_cap > 0 ? 2 * r->heap_cap : 1024;
        struct event *heap = realloc(r->heap, cap * sizeof *heap);
        if (heap == NULL) {
            r->rc = BT_E_NOMEM;
            return;
        }
        r->heap = heap;
        r->heap_cap = cap;
    }
    r->heap_count++;
    for (; at > 0 && is_before(&e, &r->heap[(at - 1) / 2]); at = (at - 1) / 2)
        r->heap[at] = r->heap[(at - 1) / 2];
    r->heap[at] = e;
}

static struct event pop(struct run *r)
{
    const struct event top = r->heap[0], last = r->heap[--r->heap_count];
    unsigned at = 0;

    for (;;) {
        unsigned child = 2 * at + 1;
        if (child >= r->heap_count)
            break;
        if (child + 1 < r->heap_count && is_before(&r->heap[child + 1], &r->heap[child]))
            child++;
        if (!is_before(&r->heap[child], &last))
            break;
        r->heap[at] = r->heap[child];
        at = child;
    }
    if (r->heap_count > 0)
        r->heap[at] = last;
    return top;
}

static void set_time(struct run *r, double at_s)
{
    r->now_s = at_s;
    atomic_store_explicit(&bt_now_faked_us, START_US + (uint64_t) (at_s * 1e6),
                          memory_order_relaxed);
}

/* ---- requests ---- */

static struct flight *flight_of(bt_sim_job_t *job)
{
    return bt_container_of(job, struct flight, job);
}

static bt_sim_result_t *result_of(struct run *r, const bt_sim_request_t *request)
{
    return &r->out->results[request - r->setup->trace->requests];
}

static void start_step(struct run *r, unsigned i)
{
    bt_sim_engine_t *e = &r->engines[i];

    if (!e->is_stepping && bt_sim_engine_begin_step(e))
        push(r, r->now_s + e->step_s, STEP, i, NULL);
}

static void next_arrival(struct run *r)
{
    const bt_sim_trace_t *t = r->setup->trace;

    if (r->next_request == t->count)
        return;
    const double at_s = r->setup->concurrency > 0 ? r->now_s : t->requests[r->next_request].at_s;
    push(r, at_s, ARRIVE, 0, NULL);
}

static void tell(struct run *r, const bt_sim_job_t *job, const bt_sim_result_t *result)
{
    bt_policy_event_t event = {.kind = "finished",
                               .at_ms = bt_now_us() / 1000,
                               .decode = r->workers[job->decode]->id,
                               .model = BT_STR("sim"),
                               .status = 200,
                               .prompt_tokens = job->request->input,
                               .cached_tokens = job->cached,
                               .output_tokens = job->request->output,
                               .ttft_ms = result->ttft_ms,
                               .total_ms = result->total_ms};

    if (job->prefill != job->decode)
        event.prefill = r->workers[job->prefill]->id;
    (void) bt_policy_observe(r->policy, &event, 1);
}

static void finish(struct run *r, bt_sim_job_t *job)
{
    struct flight *f = flight_of(job);
    bt_sim_result_t *result = result_of(r, job->request);
    const double decode_ms = (r->now_s - job->first_s) * 1000;

    *result = (bt_sim_result_t){
        .ttft_ms = (float) ((job->first_s - job->came_s) * 1000),
        .tpot_ms = job->request->output > 1 ? (float) (decode_ms / (job->request->output - 1)) : 0,
        .total_ms = (float) ((r->now_s - job->came_s) * 1000),
        .cached = job->cached,
        .is_served = 1};
    bt_worker_note_ttft(r->workers[job->prefill], (uint64_t) (result->ttft_ms * 1000.0));
    if (job->request->output > 1)
        bt_worker_note_tpot(r->workers[job->decode], (uint64_t) (result->tpot_ms * 1000.0));
    f->decode_load.tokens += job->steps; /* what the engine's steps have added to the total */
    bt_ledger_release(&f->prefill_load);
    bt_ledger_release(&f->decode_load);
    if (bt_policy_has_hook(r->policy, "observe"))
        tell(r, job, result);
    r->in_flight--;
    r->end_s = r->now_s;
    free(f);
    if (r->setup->concurrency > 0)
        next_arrival(r);
}

/* ---- choosing ---- */

static int plan(struct run *r, const bt_sim_request_t *request, bt_choice_t *choice_p)
{
    const bt_str_t prompt = bt_sim_prompt(r->setup->trace, request, r->prompt);
    bt_policy_vars_t vars = {0};
    bt_policy_request_t req = {.path = BT_STR("/v1/completions"),
                               .model = BT_STR("sim"),
                               .stream = true,
                               .n = 1,
                               .prompt_bytes = 4 * (size_t) request->input,
                               .prompt_tokens = request->input,
                               .max_tokens = request->output,
                               .prompt = prompt,
                               .vars = bt_policy_has_entry(r->policy) ? &vars : NULL};
    struct timespec begin, end;

    if (request->session != 0)
        req.session = (bt_str_t){
            r->session, (size_t) snprintf(r->session, sizeof r->session, "s%u", request->session)};
    if (r->setup->is_exact)
        bt_sim_feed_apply(&r->feed);
    clock_gettime(CLOCK_MONOTONIC, &begin);
    const int rc = bt_policy_plan(r->policy, BT_POLICY_BOTH, &req, &r->view, choice_p);
    clock_gettime(CLOCK_MONOTONIC, &end);
    bt_policy_vars_drop(&vars);
    r->plan_ns +=
        (uint64_t) ((end.tv_sec - begin.tv_sec) * 1000000000LL + end.tv_nsec - begin.tv_nsec);
    r->plans++;
    return rc;
}

/* As the gateway where a policy has failed: the least loaded of each side. */
static bt_worker_t *least_loaded(const bt_worker_set_t *set, enum bt_phase phase)
{
    bt_worker_t *best = NULL;

    for (unsigned i = 0; i < set->count; i++)
        if (best == NULL || bt_worker_tokens(set->items[i], phase) < bt_worker_tokens(best, phase))
            best = set->items[i];
    return best;
}

static bool choose(struct run *r, const bt_sim_request_t *request, bt_sim_job_t *job)
{
    bt_choice_t choice = {0};

    if (plan(r, request, &choice) < 0) {
        if (r->out->policy_errors++ == 0)
            snprintf(r->out->err, sizeof r->out->err, "%.767s", bt_policy_error(r->policy));
        choice.first.prefill = least_loaded(r->view.sets[BT_LIST_PREFILL], BT_PHASE_PREFILL);
        choice.first.decode = least_loaded(
            r->view.sets[r->setup->hybrids > 0 ? BT_LIST_HYBRID : BT_LIST_DECODE], BT_PHASE_DECODE);
    }
    const bt_worker_t *prefill = choice.first.prefill, *decode = choice.first.decode;
    if (prefill == NULL && decode == NULL)
        return false;
    if (decode == NULL) /* plan_decode is asked in the gateway; here the least loaded decodes */
        decode = least_loaded(r->view.sets[BT_LIST_DECODE], BT_PHASE_DECODE);
    job->decode = decode->slot;
    job->prefill = prefill != NULL ? prefill->slot : decode->slot;
    return true;
}

static void arrive(struct run *r)
{
    if (r->next_request == r->setup->trace->count) /* more at once than there are */
        return;
    const bt_sim_request_t *request = &r->setup->trace->requests[r->next_request++];
    struct flight *f = calloc(1, sizeof *f);

    if (r->setup->concurrency == 0)
        next_arrival(r);
    if (f == NULL) {
        r->rc = BT_E_NOMEM;
        return;
    }
    f->job = (bt_sim_job_t){.request = request, .came_s = r->now_s};
    if (!bt_sim_engine_fits(&r->engines[0], request, true) || !choose(r, request, &f->job)) {
        free(f);
        if (r->setup->concurrency > 0)
            next_arrival(r);
        return;
    }
    r->in_flight++;
    f->job.steps = request->output - (f->job.prefill == f->job.decode ? 1 : 0);
    bt_ledger_hold(&f->prefill_load, r->workers[f->job.prefill], BT_PHASE_PREFILL, request->input);
    bt_sim_queue_push(&r->engines[f->job.prefill].prompts, &f->job);
    start_step(r, f->job.prefill);
}

/* ---- from prefill to decode ---- */

/* One after the other over both links: as fast in sum as if they shared them. */
static void move_waiting(struct run *r, unsigned at)
{
    const bt_sim_model_t *m = r->setup->model;
    bt_sim_engine_t *to = &r->engines[at];
    bt_sim_job_t *job;

    while ((job = bt_sim_engine_admit(to)) != NULL) {
        bt_sim_engine_t *from = &r->engines[job->prefill];
        const double begin_s = fmax(r->now_s, fmax(from->link_free_s, to->link_free_s));
        from->link_free_s = to->link_free_s =
            begin_s + job->moved * m->kv_bytes_per_token / (m->link_gb_s * 1e9);
        push(r, to->link_free_s, MOVED, at, job);
    }
}

static void moved(struct run *r, unsigned at, bt_sim_job_t *job)
{
    bt_sim_engine_let_go(&r->engines[job->prefill], job, false);
    bt_sim_queue_push(&r->engines[at].joining, job);
    start_step(r, job->prefill); /* there is room again */
    start_step(r, at);
}

static void prefilled(struct run *r, bt_sim_job_t *job)
{
    struct flight *f = flight_of(job);
    bt_sim_engine_t *decode = &r->engines[job->decode];

    bt_ledger_pass(&f->prefill_load, &f->decode_load, BT_PHASE_DECODE, job->request->input);
    if (job->prefill == job->decode) {
        job->first_s = r->now_s;
        if (job->steps > 0) {
            bt_sim_queue_push(&decode->joining, job);
        } else { /* its one token is made */
            bt_sim_engine_let_go(decode, job, true);
            finish(r, job);
        }
        return;
    }
    bt_ledger_release(&f->prefill_load);
    bt_ledger_release(&f->decode_load);
    bt_ledger_hold(&f->decode_load, r->workers[job->decode], BT_PHASE_DECODE, job->request->input);
    bt_sim_queue_push(&decode->awaited, job);
    move_waiting(r, job->decode);
}

static void end_step(struct run *r, unsigned at)
{
    bt_sim_engine_t *e = &r->engines[at];
    bt_sim_job_t *job;

    atomic_fetch_add_explicit(&bt_worker_total(r->workers[at], BT_PHASE_DECODE)->tokens,
                              (int64_t) e->running_count, memory_order_relaxed);
    bt_sim_engine_end_step(e, r->now_s);
    while ((job = bt_sim_queue_take(&e->finished)) != NULL)
        finish(r, job);
    while ((job = bt_sim_queue_take(&e->prefilled)) != NULL)
        prefilled(r, job);
    move_waiting(r, at);
    start_step(r, at);
}

/* ---- what the gateway does by the clock ---- */

static void sample(struct run *r)
{
    for (unsigned i = 0; i < r->count; i++) {
        const bt_sim_engine_t *e = &r->engines[i];
        bt_load_sample_t *load = &r->workers[i]->load;
        load->running = e->running_count;
        load->waiting = e->prompts.count + e->awaited.count + e->joining.count;
        load->started_since = 0;
        load->kv_used_ppm = (uint32_t) (bt_sim_engine_kv_used(e) * 1e6);
        load->at_ms = bt_now_us() / 1000;
    }
    if (bt_policy_has_hook(r->policy, "tick")) {
        bt_policy_run_t tick = {0};
        (void) bt_policy_tick(r->policy, &tick, bt_now_us() / 1000, &r->view);
        bt_policy_run_drop(
            &tick); /* one that waits for others is not resumed: there is nobody else here */
    }
    double next_s = r->now_s + SAMPLE_S;
    if (r->in_flight == 0 &&
        r->heap_count > 0) /* nothing changes until then: whole looks are left out */
        next_s += SAMPLE_S * floor(fmax(0, r->heap[0].at_s - next_s) / SAMPLE_S);
    if (r->in_flight > 0 || r->next_request < r->setup->trace->count)
        push(r, next_s, SAMPLE, 0, NULL);
}

/* ---- the fleet ---- */

static int add_worker(struct run *r, enum bt_role role, unsigned number)
{
    char url[64], name[16], connector[] = "NixlConnector", err[128];
    bt_worker_spec_t spec;
    bt_breaker_config_t breaker;
    bt_worker_t **w_p = &r->workers[r->count];
    bt_worker_set_t *set = &r->sets[role == BT_ROLE_PREFILL  ? BT_LIST_PREFILL
                                    : role == BT_ROLE_DECODE ? BT_LIST_DECODE
                                                             : BT_LIST_HYBRID];

    snprintf(name, sizeof name, "%c%u", "pdw"[role], number);
    snprintf(url, sizeof url, "http://%s:8000", name);
    bt_worker_spec_init(&spec);
    spec.url = url;
    spec.name = name;
    spec.role = role;
    spec.engine = BT_ENGINE_VLLM;
    spec.connector = role != BT_ROLE_HYBRID ? connector : NULL;
    bt_breaker_config_defaults(&breaker);
    int rc = bt_worker_new(w_p, &spec, r->count + 1, r->count, &breaker, err, sizeof err);
    if (rc < 0)
        return rc;
    atomic_store_explicit(&(*w_p)->health, BT_HEALTH_UP, memory_order_relaxed);
    set->items[set->count++] = *w_p;
    r->sets[BT_LIST_SINGLE].items[r->sets[BT_LIST_SINGLE].count++] = *w_p;
    rc = bt_sim_engine_init(&r->engines[r->count], r->setup->model, r->setup->trace);
    if (rc == 0 && r->setup->is_exact)
        (*w_p)->kv_parts =
            bt_kv_parts(bt_sim_feed_listen(&r->feed, r->count, &r->engines[r->count].kv), 1);
    r->count++;
    return rc;
}

static int make_fleet(struct run *r)
{
    const bt_sim_setup_t *s = r->setup;
    const unsigned total = s->prefills + s->decodes + s->hybrids;
    int rc = 0;

    if (s->is_exact)
        rc = bt_sim_feed_init(&r->feed, s->trace, total,
                              (uint32_t) (s->model->kv_tokens / s->trace->block_tokens),
                              s->event_delay_s, &r->now_s);
    r->engines = calloc(total, sizeof *r->engines);
    r->workers = calloc(total, sizeof *r->workers);
    for (int i = 0; i < BT_LIST_COUNT; i++) {
        r->sets[i].items = calloc(total, sizeof(bt_worker_t *));
        if (r->sets[i].items == NULL || r->engines == NULL || r->workers == NULL)
            return BT_E_NOMEM;
    }
    for (unsigned i = 0; rc == 0 && i < s->prefills; i++)
        rc = add_worker(r, BT_ROLE_PREFILL, i);
    for (unsigned i = 0; rc == 0 && i < s->decodes; i++)
        rc = add_worker(r, BT_ROLE_DECODE, i);
    for (unsigned i = 0; rc == 0 && i < s->hybrids; i++)
        rc = add_worker(r, BT_ROLE_HYBRID, i);
    r->view = (bt_policy_view_t){.sets = {&r->sets[BT_LIST_PREFILL], &r->sets[BT_LIST_DECODE],
                                          &r->sets[BT_LIST_HYBRID], &r->sets[BT_LIST_SINGLE]},
                                 .key = 1,
                                 .pool = BT_STR("sim")};
    return rc;
}

static int load_policy(struct run *r)
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

static int make_prompt_room(struct run *r)
{
    uint32_t most = 0;

    for (unsigned i = 0; i < r->setup->trace->count; i++)
        if (r->setup->trace->requests[i].input > most)
            most = r->setup->trace->requests[i].input;
    r->prompt = malloc(BT_SIM_PROMPT_BYTES(most));
    return r->prompt != NULL ? 0 : BT_E_NOMEM;
}

static void handle(struct run *r, const struct event *e)
{
    set_time(r, e->at_s);
    switch (e->kind) {
    case ARRIVE:
        arrive(r);
        break;
    case STEP:
        end_step(r, e->engine);
        break;
    case MOVED:
        moved(r, e->engine, e->job);
        break;
    case SAMPLE:
        sample(r);
        break;
    }
}

static void note_engines(struct run *r)
{
    r->out->engine_count = r->count;
    for (unsigned i = 0; i < r->count; i++) {
        bt_sim_engine_result_t *out = &r->out->engines[i];
        snprintf(out->name, sizeof out->name, "%s", r->workers[i]->name);
        out->busy_s = (float) r->engines[i].busy_s;
        out->prompt_tokens = r->engines[i].prompt_tokens;
        out->cached_tokens = r->engines[i].cached_tokens;
        out->forgotten_blocks = r->engines[i].kv.forgotten;
    }
    r->out->virtual_s = r->end_s;
    r->out->plan_us = r->plans > 0 ? (double) r->plan_ns / 1000 / (double) r->plans : 0;
}

static void fini(struct run *r)
{
    bt_policy_free(r->policy);
    bt_sim_feed_fini(&r->feed);
    for (unsigned i = 0; i < r->count; i++) {
        bt_sim_engine_fini(&r->engines[i]);
        bt_worker_unref(r->workers[i]);
    }
    for (int i = 0; i < BT_LIST_COUNT; i++)
        free(r->sets[i].items);
    free(r->engines);
    free(r->workers);
    free(r->heap);
    free(r->prompt);
}

int bt_sim_run(const bt_sim_setup_t *setup, bt_sim_outcome_t *out)
{
    struct run r = {.setup = setup, .out = out};
    const uint64_t start_us = bt_clock_us();

    set_time(&r, 0);
    bt_hook_budget_factor = PATIENCE;
    bt_rand_seed(setup->seed);
    r.rc = load_policy(&r);
    if (r.rc == 0)
        r.rc = make_fleet(&r);
    if (r.rc == 0)
        r.rc = make_prompt_room(&r);
    if (r.rc == 0) {
        push(&r, 0, SAMPLE, 0, NULL);
        for (unsigned i = 0; i == 0 || i < setup->concurrency; i++)
            next_arrival(&r);
    }
    while (r.rc == 0 && r.heap_count > 0) {
        const struct event e = pop(&r);
        handle(&r, &e);
    }
    if (r.rc == 0)
        r.rc = r.feed.rc;
    if (r.rc == 0)
        note_engines(&r);
    else if (out->err[0] == '\0')
        snprintf(out->err, sizeof out->err, "%s", bt_err_text(r.rc));
    atomic_store_explicit(&bt_now_faked_us, 0, memory_order_relaxed);
    fini(&r);
    out->wall_s = (double) (bt_clock_us() - start_us) / 1e6;
    return out->rc = r.rc;
}
