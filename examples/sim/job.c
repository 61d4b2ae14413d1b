/* job.c - see job.h.
 *
 *   start -> check -> admit --(KV of every sample)--> compute --ttft--> tokens --> finish
 *                       \--> waiting, parked                      (streams: one timer a token; else one for all)
 *
 * With all latencies 0 the whole way runs inside start.
 */
#include "job.h"

#include "base/slab.h"
#include "chain.h"
#include "reply.h"

#include <stdarg.h>
#include <stdio.h>

static bt_slab_t pool = {.object_bytes = sizeof(sim_job_t), .keep_max = 1024};

const sim_engine_ops_t *sim_engine_of(const sim_worker_t *worker)
{
    static const sim_engine_ops_t *const engines[] = {
        [SIM_VLLM] = &sim_vllm_ops, [SIM_SGLANG] = &sim_sglang_ops, [SIM_TRTLLM] = &sim_trtllm_ops};

    return engines[worker->options.engine];
}

/* ---- end ---- */

static void release(sim_job_t *job)
{
    if (job->phase == SIM_OVER)
        return;
    sim_engine_of(job->worker)->left(job);
    job->phase = SIM_OVER;
    bt_timer_stop(&job->timer);
    bt_timer_stop(&job->poll);
    for (unsigned i = 0; job->ids != NULL && i < job->ask.prompt_count; i++)
        if (job->ids[i] != NULL)
            sim_blocks_release(&job->worker->blocks, job->ids[i], job->ask.prompts[i].blocks);
    bt_list_remove(&job->link);
    bt_list_remove(&job->push_link);
}

static void free_job(sim_job_t *job)
{
    bt_arena_fini(&job->arena);
    bt_slab_put(&pool, job);
}

static void note_end(sim_job_t *job, const char *end)
{
    sim_record_note(&job->worker->record, job->number, job->x != NULL ? job->x->status : 0, end);
}

void sim_job_cut(sim_job_t *job, bool with_reset)
{
    bt_exchange_t *x = job->x;

    release(job);
    note_end(job, "aborted");
    if (x != NULL) {
        x->user = NULL;
        if (with_reset)
            bt_exchange_reset(x);
        else
            bt_exchange_abort(x);
    }
    free_job(job);
}

void sim_job_fail(sim_job_t *job, unsigned status, const char *fmt, ...)
{
    sim_problem_t problem;
    char message[sizeof(problem.message)];
    va_list args;

    va_start(args, fmt);
    vsnprintf(message, sizeof(message), fmt, args);
    va_end(args);
    sim_problem_set(&problem, status, "%s", message);
    job->worker->counters.failed++;
    sim_record_note(&job->worker->record, job->number, status, "failed");
    if (job->x != NULL)
        sim_reply_error(job, &problem);
    job->x = NULL;
    release(job);
    free_job(job);
}

/* ---- tokens ---- */

/* True when a fault ended the job here. */
static bool apply_stream_fault(sim_job_t *job)
{
    if (job->chunks < job->fault.after_chunks)
        return false;
    switch (job->fault.kind) {
    case SIM_STALL:
        sim_job_park(job);
        return true;
    case SIM_CUT:
        job->is_cut = true;
        sim_reply_token(job, &job->samples[0], job->made);
        sim_job_cut(job, false);
        return true;
    case SIM_RECOMPUTE:
    case SIM_RECOMPUTE_AGAIN:
        job->is_recomputed = true;
        sim_job_stop(job, "stop");
        return true;
    case SIM_RST:
    case SIM_FIN:
        sim_job_cut(job, job->fault.kind == SIM_RST);
        return true;
    default:
        return false;
    }
}

static void finish(sim_job_t *job)
{
    sim_worker_t *worker = job->worker;

    if (job->fault.kind == SIM_LOSE_END) {
        sim_job_cut(job, false);
        return;
    }
    worker->counters.answered++;
    worker->counters.generation_tokens += (uint64_t) job->made * job->sample_count;
    sim_engine_of(job->worker)->finished(job);
    if (job->x != NULL) {
        uint64_t number = job->number;
        sim_reply_end(job); /* the exchange is the server's again */
        sim_record_note(&worker->record, number, 200, "done");
        job->x = NULL;
    }
    release(job);
    free_job(job);
}

unsigned sim_jobs_running(const sim_worker_t *worker, unsigned *waiting_p)
{
    unsigned running = 0, waiting = 0;

    for (const bt_list_t *it = worker->jobs.next; it != &worker->jobs; it = it->next) {
        const sim_job_t *job = bt_container_of((bt_list_t *) (uintptr_t) it, sim_job_t, link);
        if (job->phase == SIM_WAITING || job->phase == SIM_PARKED)
            waiting++;
        else
            running++;
    }
    if (waiting_p != NULL)
        *waiting_p = waiting;
    return running;
}

static uint64_t token_ms(sim_job_t *job)
{
    const sim_worker_options_t *o = &job->worker->options;
    double ms = o->itl;

    if (o->itl_per_request > 0)
        ms += o->itl_per_request * sim_jobs_running(job->worker, NULL);
    return (uint64_t) (sim_jitter(job->worker->world, job->worker, ms) + 0.5);
}

static void step(sim_job_t *job);

static void next_token(sim_job_t *job)
{
    sim_job_later(job, token_ms(job), step);
}

/* Emits one token of every sample; loops while tokens cost no time. */
static void step(sim_job_t *job)
{
    for (;;) {
        uint64_t ms;
        if (apply_stream_fault(job))
            return;
        for (unsigned i = 0; i < job->sample_count && job->x != NULL; i++)
            sim_reply_token(job, &job->samples[i], job->made);
        if (++job->made >= job->max_tokens) {
            finish(job);
            return;
        }
        job->is_blocked = job->x != NULL && bt_exchange_blocked(job->x);
        if (job->is_blocked)
            return;
        ms = token_ms(job);
        if (ms > 0) {
            sim_job_later(job, ms, step);
            return;
        }
    }
}

static void finish_unstreamed(sim_job_t *job)
{
    const bool gives_up =
        (job->fault.kind == SIM_RECOMPUTE || job->fault.kind == SIM_RECOMPUTE_AGAIN) &&
        job->fault.after_chunks < job->max_tokens;

    job->made = gives_up ? job->fault.after_chunks : job->max_tokens;
    if (gives_up) {
        job->is_recomputed = true;
        job->finish = "stop";
    }
    if (job->fault.kind == SIM_STALL || job->fault.kind == SIM_RST || job->fault.kind == SIM_FIN) {
        job->chunks = job->fault.after_chunks;
        if (job->fault.kind != SIM_STALL && job->x != NULL)
            sim_reply_part(job);
        apply_stream_fault(job);
        return;
    }
    finish(job);
}

static void first_token(sim_job_t *job)
{
    job->phase = SIM_ANSWERING;
    job->answer_us = bt_clock_us();
    sim_engine_of(job->worker)->first_token(job);
    if (job->ask.stream)
        step(job);
    else
        sim_job_later(job,
                      token_ms(job) * (job->max_tokens - 1) +
                          (job->fault.kind == SIM_LATE_ANSWER ? job->fault.ms : 0),
                      finish_unstreamed);
}

/* How many tokens an unstreamed answer would have by now. */
static unsigned made_so_far(const sim_job_t *job)
{
    double itl_us = job->worker->options.itl * 1000;
    uint64_t elapsed = bt_clock_us() - job->answer_us;
    double made = itl_us > 0 ? 1 + (double) elapsed / itl_us : 1;

    return made < job->max_tokens ? (unsigned) made : job->max_tokens;
}

void sim_job_stop(sim_job_t *job, const char *reason)
{
    if (!job->ask.stream)
        job->made = made_so_far(job);
    job->finish = reason;
    finish(job);
}

/* ---- time ---- */

static void on_timer(bt_timer_t *timer)
{
    sim_job_t *job = bt_container_of(timer, sim_job_t, timer);

    job->on_timer(job);
}

void sim_job_later(sim_job_t *job, uint64_t ms, void (*fn)(sim_job_t *job))
{
    if (ms == 0) {
        fn(job);
        return;
    }
    job->on_timer = fn;
    bt_timer_start(&job->timer, ms);
}

void sim_job_park(sim_job_t *job)
{
    bt_timer_stop(&job->timer);
    job->phase = SIM_PARKED;
}

static uint64_t first_token_ms(sim_job_t *job)
{
    sim_worker_t *worker = job->worker;
    const sim_worker_options_t *o = &worker->options;
    double tokens = job->computed_tokens,
           ms = o->ttft + o->ttft_per_token * tokens + o->ttft_per_token2 * tokens * tokens;

    if (job->computed_tokens == 0 && job->external_tokens > 0)
        ms = o->itl; /* only the last token is computed again */
    ms = sim_jitter(worker->world, worker, ms);
    if (o->queue && job->computed_tokens > 0) {
        uint64_t now = bt_clock_us();
        uint64_t from = worker->busy_until_us > now ? worker->busy_until_us : now;
        worker->busy_until_us = from + (uint64_t) (ms * 1000);
        ms = (double) (worker->busy_until_us - now) / 1000;
    }
    if (job->fault.kind == SIM_SLOW_FIRST_BYTE)
        ms += job->fault.ms;
    return (uint64_t) (ms + 0.5);
}

void sim_job_compute(sim_job_t *job)
{
    sim_counters_t *c = &job->worker->counters;

    job->phase = SIM_COMPUTING;
    c->local_compute += job->computed_tokens;
    c->local_cache_hit += job->cached_tokens;
    c->external_kv += job->external_tokens;
    uint64_t ms = first_token_ms(job);
    if (sim_engine_of(job->worker)->computing != NULL)
        sim_engine_of(job->worker)->computing(job, ms);
    sim_job_later(job, ms, first_token);
}

void sim_job_got_kv(sim_job_t *job, unsigned i, uint64_t kv)
{
    if (job->samples[i].has_kv)
        return;
    job->samples[i].kv = kv;
    job->samples[i].has_kv = true;
    if (--job->without_kv == 0 && job->phase == SIM_WAITING)
        sim_job_compute(job);
}

/* ---- start ---- */

static void make_samples(sim_job_t *job)
{
    sim_ask_t *ask = &job->ask;

    job->sample_count = ask->prompt_count * (unsigned) ask->n;
    job->without_kv = job->sample_count;
    job->samples = bt_arena_zalloc(&job->arena, job->sample_count * sizeof(*job->samples));
    job->ids = bt_arena_zalloc(&job->arena, ask->prompt_count * sizeof(*job->ids));
    job->hits = bt_arena_zalloc(&job->arena, ask->prompt_count * sizeof(*job->hits));
    for (unsigned i = 0; i < job->sample_count; i++) {
        sim_sample_t *s = &job->samples[i];
        s->job = job;
        s->index = i;
        s->prompt = i / (unsigned) ask->n;
        s->seed = ask->has_seed ? ask->seed + i % (unsigned) ask->n : 0;
        bt_list_init(&s->room_link);
        job->worker->counters.prompt_tokens +=
            i % (unsigned) ask->n == 0 ? ask->prompts[s->prompt].tokens : 0;
    }
}

static void set_length(sim_job_t *job)
{
    const sim_ask_t *ask = &job->ask;
    bool open_ended =
        ask->route == SIM_CHAT || ask->route == SIM_RESPONSES || ask->route == SIM_MESSAGES;

    job->finish = "length";
    if (job->worker->options.role == SIM_ENCODE) {
        job->max_tokens = 1; /* it samples nothing */
    } else if (ask->max_tokens >= 0) {
        job->max_tokens = (unsigned) ask->max_tokens;
    } else if (open_ended || ask->route == SIM_GENERATE) {
        job->max_tokens = job->worker->options.answer_tokens;
        job->finish = "stop";
    } else {
        job->max_tokens = 16;
    }
}

static bool ignores_eos(const sim_job_t *job)
{
    const sim_raw_t sampling = sim_raw_get(job->x->body, "sampling_params");

    return sim_raw_get(job->x->body, "ignore_eos").type == BT_JSON_TRUE ||
           (sampling.type == BT_JSON_OBJECT &&
            sim_raw_get(sampling.value, "ignore_eos").type == BT_JSON_TRUE);
}

/* The first token ends the text. */
static void apply_eos(sim_job_t *job)
{
    if (job->fault.kind != SIM_EOS || (job->fault.after_chunks == 0 && ignores_eos(job)))
        return;
    job->max_tokens = 1;
    job->finish = "stop";
}

/* Faults that replace the answer. True when the job is over or parked. */
static bool apply_first_fault(sim_job_t *job)
{
    switch (job->fault.kind) {
    case SIM_HANG:
        sim_job_park(job);
        return true;
    case SIM_HANG_HEADERS:
        sim_reply_begin(job);
        sim_job_park(job);
        return true;
    case SIM_STATUS:
        sim_reply_fault_status(job);
        break;
    case SIM_ERROR_BODY:
        sim_reply_fault_body(job);
        break;
    case SIM_SSE_ERROR:
        sim_reply_fault_event(job);
        break;
    default:
        return false;
    }
    job->x = NULL;
    job->worker->counters.failed++;
    sim_record_note(&job->worker->record, job->number,
                    job->fault.status != 0 ? job->fault.status : 200, "fault");
    release(job);
    free_job(job);
    return true;
}

static void on_poll(bt_timer_t *timer)
{
    sim_job_t *job = bt_container_of(timer, sim_job_t, poll);

    job->is_polled = true;
    sim_engine_of(job->worker)->client_gone(job);
}

static sim_job_t *make_job(sim_worker_t *worker, bt_exchange_t *x, const sim_fault_t *fault,
                           uint64_t number)
{
    sim_job_t *job = bt_slab_get(&pool);

    if (job == NULL)
        return NULL;
    job->worker = worker;
    job->x = x;
    job->fault = *fault;
    job->number = number;
    job->start_us = bt_clock_us();
    job->created_s = bt_clock_wall_ms() / 1000;
    job->kv_source = "local";
    bt_arena_init(&job->arena);
    bt_list_init(&job->push_link);
    bt_list_init(&job->link);
    bt_list_push(&worker->jobs, &job->link);
    bt_timer_init(x->loop, &job->timer, on_timer);
    bt_timer_init(x->loop, &job->poll, on_poll);
    x->user = job;
    return job;
}

static void reject(sim_job_t *job, const sim_problem_t *problem)
{
    job->worker->counters.failed++;
    sim_record_note(&job->worker->record, job->number, problem->status, "rejected");
    sim_reply_error(job, problem);
    job->x = NULL;
    release(job);
    free_job(job);
}

static bool read_ask(sim_job_t *job, enum sim_route route, sim_problem_t *problem_p)
{
    bt_str_t before = BT_STR_NULL;

    if (route == SIM_RESPONSES &&
        sim_story_before(job->worker, job->x->body, &job->arena, &before, problem_p) != 0)
        return false;
    return sim_ask_read(route, job->x->body, before, job->worker->blocks.block_bytes, &job->arena,
                        &job->ask, problem_p) == 0;
}

void sim_job_start(sim_worker_t *worker, bt_exchange_t *x, enum sim_route route,
                   const sim_fault_t *fault, uint64_t number)
{
    sim_job_t *job = make_job(worker, x, fault, number);
    sim_problem_t problem;

    if (job == NULL) {
        bt_exchange_abort(x);
        return;
    }
    worker->counters.requests++;
    job->ask.route = route;
    if (!read_ask(job, route, &problem)) {
        job->ask.prompt_count = 0;
        reject(job, &problem);
        return;
    }
    sim_reply_name(job);
    set_length(job);
    apply_eos(job);
    if (apply_first_fault(job))
        return;
    if (sim_engine_of(job->worker)->check(job, &problem) != 0) {
        reject(job, &problem);
        return;
    }
    make_samples(job);
    if (worker->options.by_ids)
        sim_chain_read(job);
    if (route >= SIM_EMBEDDINGS) {
        sim_reply_scores(job);
        job->x = NULL;
        release(job);
        free_job(job);
        return;
    }
    if (job->ask.stream && job->fault.kind != SIM_SLOW_FIRST_BYTE &&
        (sim_engine_of(job->worker)->stream_head_first || route == SIM_GENERATE))
        sim_reply_begin(job);
    sim_engine_of(job->worker)->admit(job);
}

void sim_job_gone(sim_job_t *job)
{
    sim_record_note(&job->worker->record, job->number, 0, "gone");
    job->worker->counters.cancelled++;
    job->x = NULL;
    sim_engine_of(job->worker)->client_gone(job);
}

void sim_job_drain(sim_job_t *job)
{
    if (!job->is_blocked)
        return;
    job->is_blocked = false;
    next_token(job);
}
