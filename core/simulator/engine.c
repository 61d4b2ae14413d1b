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

int bt_sim_engine_init(bt_sim_engine_t *e, const bt_sim_model_t *model, const bt_sim_trace_t *trace)
{
    *e = (bt_sim_engine_t){.model = model, .trace = trace};
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
    return job->last_step > 0 ? job->steps - (job->last_step - e->step) : 0;
}

/* ---- answers that run: a heap, the first to end on top ---- */

static void sift_up(bt_sim_engine_t *e, unsigned at)
{
    bt_sim_job_t *job = e->running[at];

    for (; at > 0 && e->running[(at - 1) / 2]->last_step > job->last_step; at = (at - 1) / 2)
        e->running[at] = e->running[(at - 1) / 2];
    e->running[at] = job;
}

static bt_sim_job_t *take_top(bt_sim_engine_t *e)
{
    bt_sim_job_t *top = e->running[0], *job = e->running[--e->running_count];
    unsigned at = 0;

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
    return top;
}

static void run(bt_sim_engine_t *e, bt_sim_job_t *job)
{
    job->last_step = e->step + job->steps;
    e->running[e->running_count++] = job;
    e->running_tokens += job->request->input;
    sift_up(e, e->running_count - 1);
}

/* ---- room ---- */

static uint32_t blocks_of(const bt_sim_engine_t *e, uint64_t tokens)
{
    return (uint32_t) ((tokens + e->trace->block_tokens - 1) / e->trace->block_tokens);
}

/* What it needs beside the blocks that are known by id: a prompt's partial end, and an answer where it is made. */
static uint32_t rooms_of(const bt_sim_engine_t *e, const bt_sim_request_t *r, bool answers)
{
    return blocks_of(e, (uint64_t) r->input + (answers ? r->output : 0)) -
           bt_sim_whole_blocks(e->trace, r);
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

    if (!bt_sim_kv_hold(&e->kv, blocks, whole, rooms_of(e, r, job->prefill == job->decode)))
        return false;
    job->is_held = true;
    job->cached = matched * e->trace->block_tokens;
    job->left = r->input - job->cached;
    e->prompt_tokens += r->input;
    e->cached_tokens += job->cached;
    return true;
}

void bt_sim_engine_let_go(bt_sim_engine_t *e, const bt_sim_job_t *job, bool answers)
{
    const bt_sim_request_t *r = job->request;

    bt_sim_kv_let_go(&e->kv, bt_sim_blocks(e->trace, r), bt_sim_whole_blocks(e->trace, r),
                     rooms_of(e, r, answers));
}

/* KV that comes from elsewhere is a prefix here too, once it has come, and what is here already does not come. */
bt_sim_job_t *bt_sim_engine_admit(bt_sim_engine_t *e)
{
    const bt_sim_job_t *first = e->awaited.first;

    if (first == NULL)
        return NULL;
    const uint64_t *blocks = bt_sim_blocks(e->trace, first->request);
    const uint32_t whole = bt_sim_whole_blocks(e->trace, first->request);
    const uint32_t matched =
        bt_sim_kv_match(&e->kv, blocks, bt_sim_findable_blocks(e->trace, first->request));
    if (!bt_sim_kv_expect(&e->kv, blocks, whole, rooms_of(e, first->request, true)))
        return NULL;
    bt_sim_job_t *job = bt_sim_queue_take(&e->awaited);
    job->moved = job->request->input - matched * e->trace->block_tokens;
    return job;
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

/* ---- steps ---- */

/* Chunks, first come first served; who does not fit keeps those behind from passing. */
static uint32_t take_chunks(bt_sim_engine_t *e)
{
    const double most = e->model->max_batched_tokens - e->running_count;
    uint32_t budget = most > 0 ? (uint32_t) most : 0, taken = 0;
    unsigned seqs = e->running_count;

    for (bt_sim_job_t *job = e->prompts.first; job != NULL && taken < budget; job = job->next) {
        if (seqs++ >= (unsigned) e->model->max_seqs || (!job->is_held && !hold_prompt(e, job)))
            break;
        const uint32_t chunk = job->left < budget - taken ? job->left : budget - taken;
        job->left -= chunk;
        taken += chunk;
    }
    return taken;
}

bool bt_sim_engine_begin_step(bt_sim_engine_t *e)
{
    while (e->joining.first != NULL && e->running_count < e->running_cap) {
        bt_sim_job_t *job = bt_sim_queue_take(&e->joining);
        run(e, job);
        e->begun[e->begun_count++] = job;
    }
    e->step_prefill_tokens = take_chunks(e);
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
        bt_sim_queue_push(&e->prefilled, job);
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
        bt_sim_job_t *job = take_top(e);
        e->running_tokens -= (double) job->request->input + job->steps;
        bt_sim_engine_let_go(e, job, true);
        bt_sim_queue_push(&e->finished, job);
    }
    end_prompts(e);
}
