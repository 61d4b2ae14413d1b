#include "simulator/engine.h"

#include "base/err.h"

#include <stdlib.h>

void bt_sim_queue_init(bt_sim_queue_t *q)
{
    q->first = NULL;
    q->last = &q->first;
    q->count = 0;
}

void bt_sim_queue_push(bt_sim_queue_t *q, bt_sim_job_t *job)
{
    job->next = NULL;
    *q->last = job;
    q->last = &job->next;
    q->count++;
}

void bt_sim_queue_push_front(bt_sim_queue_t *q, bt_sim_job_t *job)
{
    job->next = q->first;
    if (q->first == NULL)
        q->last = &job->next;
    q->first = job;
    q->count++;
}

bt_sim_job_t *bt_sim_queue_take(bt_sim_queue_t *q)
{
    bt_sim_job_t *job = q->first;

    if (job == NULL)
        return NULL;
    q->first = job->next;
    if (q->first == NULL)
        q->last = &q->first;
    q->count--;
    return job;
}

void bt_sim_queue_remove(bt_sim_queue_t *q, const bt_sim_job_t *job)
{
    bt_sim_job_t **at = &q->first;

    while (*at != NULL && *at != job)
        at = &(*at)->next;
    if (*at == NULL)
        return;
    *at = job->next;
    if (q->last == &job->next)
        q->last = at;
    q->count--;
}

static void empty_queues(bt_sim_engine_t *e)
{
    bt_sim_queue_t *const queues[] = {&e->prompts, &e->awaited, &e->joining, &e->prefilled,
                                      &e->finished};

    for (size_t i = 0; i < sizeof queues / sizeof queues[0]; i++)
        bt_sim_queue_init(queues[i]);
}

int bt_sim_engine_init(bt_sim_engine_t *e, const bt_sim_model_t *model, const bt_sim_trace_t *trace,
                       bool preempts)
{
    *e = (bt_sim_engine_t){.model = model, .trace = trace, .preempts = preempts};
    empty_queues(e);
    e->running_cap = (unsigned) model->max_seqs;
    e->running = calloc(e->running_cap, sizeof(bt_sim_job_t *));
    e->begun = calloc(e->running_cap, sizeof(bt_sim_job_t *));
    return e->running != NULL && e->begun != NULL
               ? bt_sim_kv_init(&e->kv, (uint32_t) (model->kv_tokens / trace->block_tokens))
               : BT_E_NOMEM;
}

void bt_sim_engine_fini(bt_sim_engine_t *e)
{
    free(e->running);
    free(e->begun);
    bt_sim_kv_fini(&e->kv);
}

void bt_sim_engine_reset(bt_sim_engine_t *e)
{
    empty_queues(e);
    e->running_count = e->begun_count = 0;
    e->running_tokens = 0;
    e->is_stepping = false;
    e->link_free_s = 0;
    bt_sim_kv_reset(&e->kv);
}

uint64_t bt_sim_engine_made(const bt_sim_engine_t *e, const bt_sim_job_t *job)
{
    return job->made + (job->last_step > 0 ? job->steps - (job->last_step - e->step) : 0);
}

/* ---- answers that run: a heap, the first to end on top ---- */

static void sift_up(bt_sim_engine_t *e, unsigned at)
{
    bt_sim_job_t *job = e->running[at];

    for (; at > 0 && e->running[(at - 1) / 2]->last_step > job->last_step; at = (at - 1) / 2)
        e->running[at] = e->running[(at - 1) / 2];
    e->running[at] = job;
}

static bt_sim_job_t *take(bt_sim_engine_t *e, unsigned at)
{
    bt_sim_job_t *taken = e->running[at], *job = e->running[--e->running_count];

    if (at == e->running_count)
        return taken;
    for (;;) {
        unsigned child = 2 * at + 1;
        if (child >= e->running_count)
            break;
        if (child + 1 < e->running_count &&
            e->running[child + 1]->last_step < e->running[child]->last_step)
            child++;
        if (e->running[child]->last_step >= job->last_step)
            break;
        e->running[at] = e->running[child];
        at = child;
    }
    e->running[at] = job;
    sift_up(e, at);
    return taken;
}

static void run(bt_sim_engine_t *e, bt_sim_job_t *job)
{
    job->last_step = e->step + job->steps;
    job->joined = ++e->joins;
    e->running[e->running_count++] = job;
    e->running_tokens += (double) job->request->input + job->made;
    sift_up(e, e->running_count - 1);
}

/* ---- room ---- */

static uint32_t blocks_of(const bt_sim_engine_t *e, uint64_t tokens)
{
    return (uint32_t) ((tokens + e->trace->block_tokens - 1) / e->trace->block_tokens);
}

/* What it needs beside the blocks that are known by id: a prompt's partial end, and so much of its answer. */
static uint32_t rooms_of(const bt_sim_engine_t *e, const bt_sim_request_t *r, uint32_t answer)
{
    return blocks_of(e, (uint64_t) r->input + answer) - bt_sim_whole_blocks(e->trace, r);
}

/* For an answer that is made here, as it comes. */
static uint32_t answer_rooms(const bt_sim_engine_t *e, const bt_sim_job_t *job)
{
    const uint32_t answer = e->preempts ? job->made : job->request->output;

    return rooms_of(e, job->request, answer) - rooms_of(e, job->request, 0);
}

bool bt_sim_engine_fits(const bt_sim_engine_t *e, const bt_sim_request_t *r, bool answers)
{
    return blocks_of(e, (uint64_t) r->input + (answers ? r->output : 0)) <= e->kv.capacity;
}

static bool hold_prompt(bt_sim_engine_t *e, bt_sim_job_t *job)
{
    const bt_sim_request_t *r = job->request;
    const uint64_t *blocks = bt_sim_blocks(e->trace, r);
    const uint32_t whole = bt_sim_whole_blocks(e->trace, r);
    const uint32_t matched = bt_sim_kv_match(&e->kv, blocks, bt_sim_findable_blocks(e->trace, r));
    const uint32_t cached = matched * e->trace->block_tokens;
    const bool answers = job->prefill == job->decode || job->is_again;
    const uint32_t rooms = answers ? answer_rooms(e, job) : 0;

    if (!bt_sim_kv_hold(&e->kv, blocks, whole, rooms_of(e, r, 0) + rooms))
        return false;
    job->is_held = true;
    job->answer_rooms = rooms;
    const uint32_t left = job->left; /* when it was preempted */
    job->left = r->input - cached + job->made;
    if (job->is_again) {
        e->recomputed_tokens += job->left > left ? job->left - left : 0;
        return true;
    }
    job->cached = cached;
    e->prompt_tokens += r->input;
    e->cached_tokens += job->cached;
    return true;
}

void bt_sim_engine_let_go(bt_sim_engine_t *e, const bt_sim_job_t *job, bool answers)
{
    const bt_sim_request_t *r = job->request;

    bt_sim_kv_let_go(&e->kv, bt_sim_blocks(e->trace, r), bt_sim_whole_blocks(e->trace, r),
                     rooms_of(e, r, 0) + (answers ? job->answer_rooms : 0));
}

/* KV that comes from elsewhere is a prefix here too, once it has come, and what is here already does not come. */
bt_sim_job_t *bt_sim_engine_admit(bt_sim_engine_t *e)
{
    bt_sim_job_t *first = e->awaited.first;
    const bt_sim_job_t *before = e->prompts.first;

    if (first == NULL || (before != NULL && before->is_again && !before->is_held))
        return NULL;
    const uint64_t *blocks = bt_sim_blocks(e->trace, first->request);
    const uint32_t whole = bt_sim_whole_blocks(e->trace, first->request);
    const uint32_t rooms = answer_rooms(e, first);
    const uint32_t matched =
        bt_sim_kv_match(&e->kv, blocks, bt_sim_findable_blocks(e->trace, first->request));
    if (!bt_sim_kv_expect(&e->kv, blocks, whole, rooms_of(e, first->request, 0) + rooms))
        return NULL;
    first->answer_rooms = rooms;
    first->moved = first->request->input - matched * e->trace->block_tokens;
    return bt_sim_queue_take(&e->awaited);
}

void bt_sim_engine_arrived(bt_sim_engine_t *e, bt_sim_job_t *job)
{
    bt_sim_kv_arrived(&e->kv, bt_sim_blocks(e->trace, job->request),
                      bt_sim_whole_blocks(e->trace, job->request));
    bt_sim_queue_push(&e->joining, job);
}

double bt_sim_engine_kv_used(const bt_sim_engine_t *e)
{
    return (double) (e->kv.held + e->kv.rooms) / e->kv.capacity;
}

/* ---- preempted ---- */

/* What a prompt's steps have not come to yet is nobody's prefix. */
static void preempt(bt_sim_engine_t *e, bt_sim_job_t *job)
{
    const bt_sim_request_t *r = job->request;
    const uint32_t whole = bt_sim_whole_blocks(e->trace, r);
    const uint32_t made = (r->input + job->made - job->left) / e->trace->block_tokens;

    if (made < whole)
        bt_sim_kv_not_made(&e->kv, bt_sim_blocks(e->trace, r) + made, whole - made);
    bt_sim_engine_let_go(e, job, true);
    job->answer_rooms = 0;
    job->is_held = false;
    job->is_again = true;
    e->preempted++;
}

static void preempt_running(bt_sim_engine_t *e, unsigned at)
{
    bt_sim_job_t *job = take(e, at);
    const uint32_t made = (uint32_t) bt_sim_engine_made(e, job);

    for (unsigned i = 0; i < e->begun_count; i++)
        if (e->begun[i] == job)
            e->begun[i--] = e->begun[--e->begun_count];
    e->running_tokens -= (double) job->request->input + made;
    job->steps -= made - job->made;
    job->made = made;
    job->last_step = 0;
    preempt(e, job);
    bt_sim_queue_push_front(&e->prompts, job);
}

/* Who was admitted last: a prompt, else an answer. */
static void preempt_youngest(bt_sim_engine_t *e)
{
    bt_sim_job_t *held = NULL;
    unsigned youngest = 0;

    for (bt_sim_job_t *job = e->prompts.first; job != NULL; job = job->next)
        held = job->is_held ? job : held;
    if (held != NULL) {
        preempt(e, held);
        return;
    }
    for (unsigned i = 1; i < e->running_count; i++)
        if (e->running[i]->joined > e->running[youngest]->joined)
            youngest = i;
    preempt_running(e, youngest);
}

/* Room for the token that each of them makes in this step. */
static bool find_rooms(bt_sim_engine_t *e)
{
    const uint64_t preempted = e->preempted;

    for (unsigned i = 0; i < e->running_count;) {
        bt_sim_job_t *job = e->running[i];
        const uint32_t answer = (uint32_t) bt_sim_engine_made(e, job) + 1;
        if (rooms_of(e, job->request, answer) <= rooms_of(e, job->request, 0) + job->answer_rooms) {
            i++;
        } else if (bt_sim_kv_hold(&e->kv, NULL, 0, 1)) {
            job->answer_rooms++;
            i++;
        } else {
            preempt_youngest(e);
            i = 0; /* the heap has changed */
        }
    }
    return e->preempted > preempted;
}

/* ---- steps ---- */

/* Chunks, first come first served; who does not fit keeps those behind from passing. */
static uint32_t take_chunks(bt_sim_engine_t *e, bool is_short)
{
    const double most = e->model->max_batched_tokens - e->running_count;
    uint32_t budget = most > 0 ? (uint32_t) most : 0, taken = 0;
    unsigned seqs = e->running_count;

    for (bt_sim_job_t *job = e->prompts.first; job != NULL && taken < budget; job = job->next) {
        if (seqs++ >= (unsigned) e->model->max_seqs ||
            (!job->is_held && (is_short || !hold_prompt(e, job))))
            break;
        const uint32_t chunk = job->left < budget - taken ? job->left : budget - taken;
        job->left -= chunk;
        taken += chunk;
    }
    return taken;
}

static void join(bt_sim_engine_t *e)
{
    while (e->joining.first != NULL && e->running_count < e->running_cap) {
        bt_sim_job_t *job = bt_sim_queue_take(&e->joining);
        run(e, job);
        e->begun[e->begun_count++] = job;
    }
}

bool bt_sim_engine_begin_step(bt_sim_engine_t *e)
{
    bool is_short;

    do {
        join(e);
        is_short = e->preempts && find_rooms(e);
    } while (e->running_count == 0 && e->joining.first != NULL); /* they hold what others lacked */
    e->step_prefill_tokens = take_chunks(e, is_short);
    e->is_stepping = e->step_prefill_tokens > 0 || e->running_count > 0;
    e->step_s = e->is_stepping ? bt_sim_step_ms(e->model, e->step_prefill_tokens, e->running_count,
                                                e->running_tokens) /
                                     1000
                               : 0;
    return e->is_stepping;
}

/* Prompts that are done now: their first token is made with the last chunk. */
static void end_prompts(bt_sim_engine_t *e)
{
    while (e->prompts.first != NULL && e->prompts.first->is_held && e->prompts.first->left == 0) {
        bt_sim_job_t *job = bt_sim_queue_take(&e->prompts);
        bt_sim_queue_push(job->joined > 0 ? &e->joining : &e->prefilled, job);
    }
}

void bt_sim_engine_end_step(bt_sim_engine_t *e, double now_s)
{
    for (; e->begun_count > 0; e->begun_count--)
        if (e->begun[e->begun_count - 1]->first_s ==
            0) /* else its prompt's step has made the first token */
            e->begun[e->begun_count - 1]->first_s = now_s;
    e->is_stepping = false;
    e->busy_s += e->step_s;
    e->step++;
    e->running_tokens += e->running_count;
    while (e->running_count > 0 && e->running[0]->last_step <= e->step) {
        bt_sim_job_t *job = take(e, 0);
        e->running_tokens -= (double) job->request->input + job->made + job->steps;
        bt_sim_engine_let_go(e, job, true);
        bt_sim_queue_push(&e->finished, job);
    }
    end_prompts(e);
}
