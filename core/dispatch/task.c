/* task.c - one unit of generation: tries attempts until one answers or none is left.
 *
 * Tries again only while no byte has gone to the client, never after a 4xx, never past the request's total deadline.
 */
#include "base/log.h"
#include "dispatch/attempt.h"
#include "dispatch/plan.h"
#include "dispatch/sink.h"

void bt_task_mark_tried(bt_task_t *task, bt_worker_t *w)
{
    if (w == NULL || task->tried_count == BT_TRIED_MAX)
        return;
    for (unsigned i = 0; i < task->tried_count; i++)
        if (task->tried[i] == w)
            return;
    task->tried[task->tried_count++] = bt_worker_ref(w);
}

static void drop_attempt(bt_task_t *task)
{
    for (unsigned i = 0; i < task->tried_count; i++)
        bt_worker_unref(task->tried[i]);
    task->tried_count = 0;
}

static void finish(bt_task_t *task)
{
    bt_request_t *r = task->request;

    task->done = true;
    drop_attempt(task);
    r->tasks_done++;
}

static void give_up(bt_task_t *task, const bt_failure_t *f)
{
    bt_request_t *r = task->request;

    finish(task);
    if (f->rc != BT_E_NO_WORKER) /* no leg ever ran */
        r->fail_leg = bt_leg_role_name(f->leg);
    r->fail_name = bt_err_name(f->rc);
    r->sink->fail(task, f);
}

/* An engine's own words beat ours: keep the failure that tells the client most. */
static void remember(bt_task_t *task, const bt_failure_t *f)
{
    if (task->best.rc == 0 || f->status != 0 || task->best.status == 0)
        task->best = *f;
}

/* What is merely passed through may do anything at the worker (an upload, a batch): said twice only when it was not heard. */
static bool is_safe_to_repeat(const bt_task_t *task)
{
    const bt_request_t *r = task->request;

    return bt_route_info(r->route)->body == BT_BODY_JSON || strcmp(r->method, "GET") == 0 ||
           strcmp(r->method, "HEAD") == 0 || task->attempt == NULL ||
           !task->attempt->legs[1].call.any_byte_sent;
}

static bool may_retry(const bt_task_t *task, const bt_failure_t *f)
{
    const bt_request_t *r = task->request;

    return f->retryable && is_safe_to_repeat(task) && !task->committed && !r->expired &&
           !r->finished && !r->d->shared->config.disable_retries &&
           task->attempts < r->pool->spec.max_attempts;
}

static void forget_tried(bt_task_t *task, const bt_worker_t *w)
{
    for (unsigned i = 0; i < task->tried_count; i++) {
        if (task->tried[i] != w)
            continue;
        bt_worker_unref(task->tried[i]);
        task->tried[i] = task->tried[--task->tried_count];
        return;
    }
}

static bool try_next(bt_task_t *task, const bt_failure_t *f)
{
    for (unsigned spins = 0; spins < BT_TRIED_MAX; spins++) {
        bt_choice_t next = {0};
        if (bt_plan_next(task, f, &next) < 0 || next.first.decode == NULL)
            return false;
        if (bt_attempt_start(task, &next.first) == 0)
            return true;
        bt_task_mark_tried(task,
                           next.first.prefill); /* could not be entered: probe of somebody else */
        bt_task_mark_tried(task, next.first.decode);
    }
    return false;
}

/* Two that failed as a pair may each be good with another: where nobody else is left, one of them is tried again, never both. */
static bool try_half(bt_task_t *task, const bt_failure_t *f, const bt_pair_t *pair)
{
    bt_worker_t *const halves[] = {pair->decode, pair->prefill};

    for (unsigned i = 0; i < 2; i++) {
        forget_tried(task, halves[i]);
        if (try_next(task, f))
            return true;
        bt_task_mark_tried(task, halves[i]);
    }
    return false;
}

/* pair: whose failure it was together, or NULL. */
static void start_next(bt_task_t *task, const bt_failure_t *f, const bt_pair_t *pair)
{
    if (!try_next(task, f) && (pair == NULL || !try_half(task, f, pair)))
        give_up(task, &task->best);
}

void bt_task_attempt_failed(bt_task_t *task, bt_attempt_t *a, const bt_failure_t *f,
                            bt_worker_t *const *guilty, unsigned guilty_count)
{
    bt_request_t *r = task->request;
    const bool same_again = f->rc == BT_E_LEASE || f->stale; /* these workers did nothing wrong */
    const bt_pair_t *pair = NULL;

    BT_REQUEST_LOG(debug, "dispatch", r, f->worker, "attempt %u failed at %s: %s, status %u",
                   a->number, bt_leg_role_name(f->leg), bt_err_name(f->rc), f->status);
    remember(task, f);
    for (unsigned i = 0; i < guilty_count; i++)
        bt_task_mark_tried(task, guilty[i]);
    if (guilty_count == 0 && !same_again) {
        /* Nobody's or the pair's: back-pressure is routed around, a pair that can't is not tried as that pair again. */
        const bool one_leg = f->status == 429 || f->status == 503;
        if (!one_leg || f->leg == BT_LEG_PREFILL)
            bt_task_mark_tried(task, a->pair.prefill);
        if (!one_leg || f->leg != BT_LEG_PREFILL)
            bt_task_mark_tried(task, a->pair.decode);
        if (!one_leg && a->pair.prefill != NULL)
            pair = &a->pair;
    }
    if (may_retry(task, f))
        start_next(task, f, pair);
    else
        give_up(task, task->committed ? f : &task->best);
}

void bt_task_start(bt_task_t *task, const bt_choice_t *choice)
{
    static const bt_failure_t nobody = {
        .rc = BT_E_NO_WORKER,
        .retryable = true,
        .reason = "no usable worker: every breaker is waiting for its probe"};
    int rc;

    task->choice = *choice;
    rc = bt_attempt_start(task, &choice->first);
    if (rc == 0)
        return;
    bt_task_mark_tried(task, choice->first.prefill);
    bt_task_mark_tried(task, choice->first.decode);
    remember(task, &nobody);
    start_next(task, &nobody, NULL);
}

void bt_task_attempt_done(bt_task_t *task)
{
    finish(task);
}

void bt_task_cancel(bt_task_t *task)
{
    if (task->attempt != NULL)
        bt_attempt_cancel(task->attempt);
    if (!task->done)
        finish(task);
}
