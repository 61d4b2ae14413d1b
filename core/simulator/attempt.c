/* attempt.c - a request's way: planned, computed, moved, answered; and planned anew where that fails.
 *
 *     begin -> plan -> PROMPT -> AWAITED -> MOVING -> ANSWER -> end
 *               ^        |          |          |        |
 *               +--------+----------+----------+--------+  an attempt has failed, no token is out, and it was not the last
 *
 * A worker that refuses costs an attempt, as in the gateway; a decode that refuses is exchanged beside the finished prefill. */
#include "simulator/sim_impl.h"

#include "base/err.h"
#include "script/shared/now.h"

#include <math.h>
#include <stdlib.h>

static bt_sim_flight_t *flight_of(bt_sim_job_t *job)
{
    return bt_container_of(job, bt_sim_flight_t, job);
}

static bool is_alone(const bt_sim_job_t *job)
{
    return job->prefill == job->decode;
}

static const char *prefill_leg(const bt_sim_job_t *job)
{
    return is_alone(job) ? "single" : "prefill";
}

bool bt_sim_is_on(const bt_sim_flight_t *f, unsigned engine)
{
    switch (f->stage) {
    case BT_SIM_INTAKE:
        return false;
    case BT_SIM_PROMPT:
        return f->job.prefill == engine;
    case BT_SIM_ANSWER:
        return f->job.decode == engine;
    case BT_SIM_AWAITED:
    case BT_SIM_MOVING:
        break;
    }
    return f->job.prefill == engine || f->job.decode == engine;
}

/* ---- legs ---- */

static bool enter(bt_sim_run_t *r, bt_sim_leg_t *leg, bt_worker_t *w)
{
    if (!bt_breaker_enter(&w->breaker, bt_sim_now_ms(r), &leg->is_probe))
        return false;
    leg->worker = bt_worker_ref(w);
    return true;
}

static void settle_well(bt_sim_leg_t *leg)
{
    bt_ledger_release(&leg->load);
    if (leg->worker != NULL)
        bt_breaker_success(&leg->worker->breaker, leg->is_probe);
    bt_worker_unref(leg->worker);
    leg->worker = NULL;
}

static void settle_failed(bt_sim_run_t *r, bt_sim_leg_t *leg, const bt_worker_t *guilty)
{
    bt_ledger_release(&leg->load);
    if (leg->worker != NULL && leg->worker == guilty)
        (void) bt_breaker_failure(&leg->worker->breaker, leg->is_probe, bt_sim_now_ms(r));
    else if (leg->worker != NULL)
        bt_breaker_innocent(&leg->worker->breaker, leg->is_probe);
    bt_worker_unref(leg->worker);
    leg->worker = NULL;
}

/* Who serves alone is entered once. */
static bool enter_both(bt_sim_run_t *r, bt_sim_flight_t *f)
{
    bt_sim_job_t *job = &f->job;

    if (!is_alone(job) && !enter(r, &f->prefill, r->workers[job->prefill]))
        return false;
    if (job->decode == BT_SIM_OPEN || enter(r, &f->decode, r->workers[job->decode]))
        return true;
    settle_failed(r, &f->prefill, NULL);
    return false;
}

/* ---- counted, for the advisor ---- */

static void count(_Atomic uint64_t *counter, uint64_t more)
{
    atomic_fetch_add_explicit(counter, more, memory_order_relaxed);
}

static void count_prompt(bt_worker_t *w, const bt_sim_job_t *job)
{
    count(&w->legs_total[0][0], 1);
    count(&w->prompt_tokens_total, job->request->input);
    count(&w->cached_tokens_total, job->cached);
}

static void count_answer(bt_worker_t *w, const bt_sim_job_t *job)
{
    count(&w->legs_total[is_alone(job) ? 2 : 1][0], 1);
    count(&w->output_tokens_total, job->request->output);
}

/* ---- ends ---- */

static void tell(bt_sim_run_t *r, const bt_sim_flight_t *f, const bt_sim_result_t *result)
{
    const bt_sim_job_t *job = &f->job;
    bt_policy_event_t event = {.kind = result->is_served ? "finished" : "failed",
                               .at_ms = bt_now_us() / 1000,
                               .model = BT_STR("sim"),
                               .status = result->is_served ? 200 : 502,
                               .failure = result->is_served ? NULL : "reset",
                               .prompt_tokens = job->request->input,
                               .cached_tokens = job->cached,
                               .output_tokens = result->is_served ? job->request->output : 0,
                               .ttft_ms = (double) result->ttft_ms,
                               .total_ms = (double) result->total_ms};

    if (!bt_policy_has_hook(r->policy, "observe"))
        return;
    if (job->decode != BT_SIM_OPEN)
        event.decode = r->workers[job->decode]->id;
    if (!is_alone(job))
        event.prefill = r->workers[job->prefill]->id;
    if (f->intake != NULL)
        event.kept_count = bt_policy_vars_kept(&f->intake->vars, event.kept);
    (void) bt_policy_observe(r->policy, &event, 1);
}

static void end(bt_sim_run_t *r, bt_sim_flight_t *f)
{
    bt_sim_line_leave(r, f, bt_sim_result_of(r, f->job.request)->is_served != 0);
    bt_list_remove(&f->link);
    r->in_flight--;
    r->end_s = r->now_s;
    bt_sim_intake_free(f);
    bt_sim_forget_tried(f, 0);
    free(f);
    if (r->setup->concurrency > 0)
        bt_sim_next_arrival(r);
}

static void finish(bt_sim_run_t *r, bt_sim_flight_t *f)
{
    const bt_sim_job_t *job = &f->job;
    bt_sim_result_t *result = bt_sim_result_of(r, job->request);
    const double decode_ms = (r->now_s - job->first_s) * 1000;

    *result = (bt_sim_result_t){
        .came_s = (float) job->came_s,
        .ttft_ms = (float) ((job->first_s - job->came_s) * 1000),
        .tpot_ms = job->request->output > 1 ? (float) (decode_ms / (job->request->output - 1)) : 0,
        .total_ms = (float) ((r->now_s - job->came_s) * 1000),
        .cached = job->cached,
        .attempts = (uint8_t) f->attempts,
        .is_served = 1};
    bt_worker_note_ttft(r->workers[job->prefill], (uint64_t) ((double) result->ttft_ms * 1000));
    if (job->request->output > 1)
        bt_worker_note_tpot(r->workers[job->decode], (uint64_t) ((double) result->tpot_ms * 1000));
    count_answer(r->workers[job->decode], job);
    f->decode.load.tokens +=
        job->made + job->steps; /* what the engine's steps have added to the total */
    settle_well(&f->prefill);
    settle_well(&f->decode);
    tell(r, f, result);
    end(r, f);
}

/* is_failed: else it was refused. */
static void give_up(bt_sim_run_t *r, bt_sim_flight_t *f, bool is_failed)
{
    bt_sim_result_t *result = bt_sim_result_of(r, f->job.request);

    *result = (bt_sim_result_t){
        .came_s = (float) f->job.came_s, .attempts = (uint8_t) f->attempts, .is_failed = is_failed};
    const unsigned failure = f->failure > 0 ? f->failure : r->last_failure;
    if (is_failed && failure > 0)
        r->out->failures[failure - 1].failed++;
    if (is_failed)
        tell(r, f, result);
    end(r, f);
}

/* ---- attempts ---- */

/* Its breakers are entered. */
static void start(bt_sim_run_t *r, bt_sim_flight_t *f)
{
    bt_sim_job_t *job = &f->job;
    bt_worker_t *w = r->workers[job->prefill];

    f->attempts++;
    f->stage = BT_SIM_PROMPT;
    job->cached = job->left = job->moved = 0;
    job->is_held = job->is_again = false;
    job->answer_rooms = job->made = 0;
    job->last_step = job->joined = 0;
    job->steps = job->request->output - (is_alone(job) ? 1 : 0);
    if (r->watches[job->prefill].is_dead) {
        bt_sim_refused(r, f, job->prefill);
        bt_sim_attempt_failed(r, f, BT_E_CONNECT, prefill_leg(job), w);
        return;
    }
    bt_ledger_hold(&f->prefill.load, w, BT_PHASE_PREFILL, job->request->input);
    bt_sim_queue_push(&r->engines[job->prefill].prompts, job);
    bt_sim_engine_go_on(r, job->prefill);
}

static void mark_pair(bt_sim_run_t *r, bt_sim_flight_t *f)
{
    bt_sim_mark_tried(f, r->workers[f->job.prefill]);
    if (f->job.decode != BT_SIM_OPEN)
        bt_sim_mark_tried(f, r->workers[f->job.decode]);
}

/* Until somebody lets it in: whoever does not has a probe under way. */
static void try_next(bt_sim_run_t *r, bt_sim_flight_t *f, int rc, const char *leg)
{
    for (unsigned spins = 0; spins < BT_SIM_TRIED_MAX; spins++) {
        if (!bt_sim_choose_again(r, f, rc, leg))
            break;
        if (enter_both(r, f)) {
            start(r, f);
            return;
        }
        mark_pair(r, f);
    }
    give_up(r, f, true);
}

void bt_sim_attempt_failed(bt_sim_run_t *r, bt_sim_flight_t *f, int rc, const char *leg,
                           bt_worker_t *guilty)
{
    settle_failed(r, &f->prefill, guilty);
    settle_failed(r, &f->decode, guilty);
    bt_sim_mark_tried(f, guilty);
    if (guilty == NULL)
        bt_sim_exclude_one(r, f);
    if (f->job.first_s > 0 || f->attempts >= BT_SIM_ATTEMPTS) {
        give_up(r, f, true);
        return;
    }
    if (f->failure > 0)
        r->out->failures[f->failure - 1].retried++;
    try_next(r, f, rc, leg);
}

/* Nobody has been chosen yet. */
static void plan(bt_sim_run_t *r, bt_sim_flight_t *f)
{
    const enum bt_sim_verdict verdict = bt_sim_choose(r, f);

    if (verdict != BT_SIM_CHOSEN) {
        give_up(r, f, verdict == BT_SIM_NO_WORKER);
        return;
    }
    if (enter_both(r, f)) {
        start(r, f);
        return;
    }
    mark_pair(r, f);
    try_next(r, f, BT_E_NO_WORKER, "prefill");
}

static void go_on(bt_sim_run_t *r, bt_sim_flight_t *f, enum bt_sim_intake_end intake)
{
    enum bt_sim_line_answer line = BT_SIM_LINE_REFUSES;

    if (intake == BT_SIM_INTAKE_WAITS)
        return;
    if (intake == BT_SIM_INTAKE_DONE)
        line = bt_sim_line_enter(r, f);
    if (line == BT_SIM_LINE_REFUSES)
        give_up(r, f, false);
    else if (line == BT_SIM_LINE_PASSES)
        plan(r, f);
}

void bt_sim_request_begin(bt_sim_run_t *r, const bt_sim_request_t *request)
{
    bt_sim_flight_t *f = calloc(1, sizeof *f);

    if (f == NULL) {
        r->rc = BT_E_NOMEM;
        return;
    }
    f->job = (bt_sim_job_t){
        .request = request, .came_s = r->now_s, .prefill = BT_SIM_OPEN, .decode = BT_SIM_OPEN};
    f->stage = BT_SIM_INTAKE;
    bt_list_push(&r->flights, &f->link);
    r->in_flight++;
    if (bt_sim_engine_fits(&r->engines[0], request, true))
        go_on(r, f, bt_sim_intake_begin(r, f));
    else
        give_up(r, f, false);
}

void bt_sim_request_wake(bt_sim_run_t *r, bt_sim_flight_t *f)
{
    go_on(r, f, bt_sim_intake_wake(r, f));
}

void bt_sim_request_called(bt_sim_run_t *r, bt_sim_flight_t *f)
{
    plan(r, f);
}

void bt_sim_request_refused(bt_sim_run_t *r, bt_sim_flight_t *f)
{
    give_up(r, f, false);
}

/* ---- from prefill to decode ---- */

/* One after the other over both links: as fast in sum as if they shared them. */
static void move_waiting(bt_sim_run_t *r, unsigned at)
{
    const bt_sim_model_t *m = r->setup->model;
    bt_sim_engine_t *to = &r->engines[at];
    bt_sim_job_t *job;

    while (bt_sim_works(r, at) && (job = bt_sim_engine_admit(to)) != NULL) {
        bt_sim_engine_t *from = &r->engines[job->prefill];
        flight_of(job)->stage = BT_SIM_MOVING;
        if (!bt_sim_works(r, job->prefill))
            continue; /* from a silent host nothing comes */
        const double begin_s = fmax(r->now_s, fmax(from->link_free_s, to->link_free_s));
        from->link_free_s = to->link_free_s =
            begin_s + job->moved * m->kv_bytes_per_token / (m->link_gb_s * 1e9);
        bt_sim_events_push(&r->events, to->link_free_s, BT_SIM_MOVED, at, job);
    }
}

static void start_step(bt_sim_run_t *r, unsigned i)
{
    bt_sim_engine_t *e = &r->engines[i];

    if (!e->is_stepping && bt_sim_engine_begin_step(e))
        bt_sim_events_push(&r->events, r->now_s + e->step_s, BT_SIM_STEP, i, NULL);
}

void bt_sim_engine_go_on(bt_sim_run_t *r, unsigned engine)
{
    if (!bt_sim_works(r, engine))
        return;
    move_waiting(r, engine);
    start_step(r, engine);
}

void bt_sim_job_moved(bt_sim_run_t *r, unsigned at, bt_sim_job_t *job)
{
    bt_sim_engine_let_go(&r->engines[job->prefill], job, false);
    flight_of(job)->stage = BT_SIM_ANSWER;
    bt_sim_engine_arrived(&r->engines[at], job);
    bt_sim_engine_go_on(r, job->prefill); /* there is room again */
    start_step(r, at);
}

/* Prefill's part is done, and it keeps the KV for the decode that is chosen now. */
static void start_decode(bt_sim_run_t *r, bt_sim_flight_t *f)
{
    bt_sim_job_t *job = &f->job;
    bt_worker_t *w = r->workers[job->decode];

    if (r->watches[job->decode].is_dead) {
        bt_sim_refused(r, f, job->decode);
        settle_failed(r, &f->decode, w);
        bt_sim_mark_tried(f, w);
        if (f->attempts < BT_SIM_ATTEMPTS && bt_sim_choose_beside(r, f, BT_E_CONNECT) &&
            enter(r, &f->decode, r->workers[job->decode])) {
            f->attempts++;
            if (f->failure > 0)
                r->out->failures[f->failure - 1].retried++;
            start_decode(r, f);
            return;
        }
        bt_sim_events_push(&r->events, r->now_s + r->setup->lease_s, BT_SIM_LEASE, job->prefill,
                           (void *) (uintptr_t) job->request);
        bt_sim_attempt_failed(r, f, BT_E_CONNECT, "decode", w);
        return;
    }
    bt_ledger_hold(&f->decode.load, w, BT_PHASE_DECODE, job->request->input);
    f->stage = BT_SIM_AWAITED;
    bt_sim_queue_push(&r->engines[job->decode].awaited, job);
    move_waiting(r, job->decode);
}

static void prefilled_alone(bt_sim_run_t *r, bt_sim_flight_t *f)
{
    bt_sim_job_t *job = &f->job;
    bt_sim_engine_t *e = &r->engines[job->decode];

    bt_ledger_pass(&f->prefill.load, &f->decode.load, BT_PHASE_DECODE, job->request->input);
    job->first_s = r->now_s;
    f->stage = BT_SIM_ANSWER;
    if (job->steps > 0) {
        bt_sim_queue_push(&e->joining, job);
    } else { /* its one token is made */
        bt_sim_engine_let_go(e, job, true);
        finish(r, f);
    }
}

/* The first that lets it in. */
static bool choose_late(bt_sim_run_t *r, bt_sim_flight_t *f)
{
    for (unsigned spins = 0; spins < BT_SIM_TRIED_MAX && bt_sim_choose_late(r, f); spins++) {
        bt_worker_t *w = r->workers[f->job.decode];
        if (enter(r, &f->decode, w))
            return true;
        bt_sim_mark_tried(f, w);
        f->job.decode = BT_SIM_OPEN;
    }
    return false;
}

static void prefilled(bt_sim_run_t *r, bt_sim_flight_t *f)
{
    count_prompt(r->workers[f->job.prefill], &f->job);
    settle_well(&f->prefill);
    if (f->job.decode != BT_SIM_OPEN || choose_late(r, f)) {
        start_decode(r, f);
        return;
    }
    bt_sim_engine_let_go(&r->engines[f->job.prefill], &f->job, false);
    bt_sim_attempt_failed(r, f, BT_E_NO_WORKER, "decode", NULL);
}

void bt_sim_step_ended(bt_sim_run_t *r, unsigned at)
{
    bt_sim_engine_t *e = &r->engines[at];
    bt_sim_job_t *job;

    atomic_fetch_add_explicit(&bt_worker_total(r->workers[at], BT_PHASE_DECODE)->tokens,
                              (int64_t) e->running_count, memory_order_relaxed);
    bt_sim_engine_end_step(e, r->now_s);
    while ((job = bt_sim_queue_take(&e->finished)) != NULL)
        finish(r, flight_of(job));
    while ((job = bt_sim_queue_take(&e->prefilled)) != NULL) {
        if (is_alone(job))
            prefilled_alone(r, flight_of(job));
        else
            prefilled(r, flight_of(job));
    }
    bt_sim_engine_go_on(r, at);
}
