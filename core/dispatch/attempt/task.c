/* task.c - one unit of generation: tries attempts until one answers or none is left.
 *
 * Tries again only while no byte has gone to the client (or a first token, first_token.h), never after a 4xx, never past the request's total deadline. An answer that
 * has begun may be gone on with (token_replay.h), and then has tries of its own.
 */
#include "dispatch/attempt/task.h"
#include "base/log.h"
#include "dispatch/answer/sink.h"
#include "dispatch/answer/token_replay.h"
#include "dispatch/attempt/attempt.h"
#include "dispatch/attempt/leg.h"
#include "dispatch/attempt/replay_round.h"
#include "dispatch/plan/plan.h"

static void forget_all_tried(bt_task_t *task)
{
    while (task->tried_count > 0)
        bt_plan_forget_tried(task, task->tried[0]);
}

static void finish(bt_task_t *task)
{
    task->done = true;
    forget_all_tried(task);
    task->request->tasks_done++;
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
void bt_task_remember(bt_task_t *task, const bt_failure_t *f)
{
    if (task->best == NULL)
        task->best = bt_arena_zalloc(&task->request->arena, sizeof(*task->best));
    if (task->best->rc == 0 || f->status != 0 || task->best->status == 0)
        *task->best = *f;
}

/* What is merely passed through may do anything at the worker (an upload, a batch): said twice only when it was not heard. */
static bool is_safe_to_repeat(const bt_task_t *task)
{
    const bt_request_t *r = task->request;

    return bt_route_info(r->route)->body == BT_BODY_JSON || strcmp(r->method, "GET") == 0 ||
           strcmp(r->method, "HEAD") == 0 || task->attempt == NULL ||
           !task->attempt->legs[1].call.any_byte_sent;
}

bool bt_task_may_go_on(const bt_task_t *task)
{
    const bt_request_t *r = task->request;

    return !r->finished && r->warmup == NULL && !r->d->shared->config.disable_retries &&
           task->attempts - task->before_replay < r->pool->spec.max_attempts;
}

bool bt_task_take_retry(bt_task_t *task)
{
    bt_request_t *r = task->request;
    const unsigned percent = r->pool->spec.retry_budget_percent;

    if (percent == 0 ||
        bt_retry_budget_take(&r->pool->stat->retry_budget, percent, bt_clock_event_ms()))
        return true;
    r->is_over_budget = true;
    bt_stats_inc(&r->d->stats, retries_over_budget);
    return false;
}

static bool may_retry(bt_task_t *task, const bt_failure_t *f)
{
    return f->retryable && is_safe_to_repeat(task) && !task->committed && bt_task_may_go_on(task) &&
           (f->stale || bt_task_take_retry(task));
}

static void on_attempt_end(bt_attempt_t *a, const bt_failure_t *f, bt_worker_t *const *guilty,
                           unsigned guilty_count);

/* 0: it runs. BT_E_NO_WORKER: nobody is left. BT_E_POLICY: its policy ends it. */
static int try_next(bt_task_t *task, const bt_failure_t *f)
{
    for (unsigned spins = 0; spins < BT_TRIED_MAX; spins++) {
        bt_choice_t next = {0};
        int rc = bt_plan_next(task, f, &next);
        if (rc < 0)
            return rc;
        if (bt_attempt_start(task, &next.first, on_attempt_end) == 0)
            return 0;
        bt_plan_mark_tried(
            task,
            next.first
                .prefill); /* could not be entered: somebody else has the probe, or the last place */
        bt_plan_mark_tried(task, next.first.decode);
    }
    return BT_E_NO_WORKER;
}

static void start_next(bt_task_t *task, const bt_failure_t *f)
{
    if (task->request->warmup != NULL || try_next(task, f) < 0) /* of this pair, or not at all */
        give_up(task, task->best);
}

/* Each of two that failed as a pair may be good with another: its decode is not tried again; where
 * that leaves no pair, its prefill instead. */
static void exclude_one(bt_task_t *task, const bt_pair_t *pair)
{
    bt_plan_mark_tried(task, pair->decode);
    if (pair->prefill == NULL || (pair->decode != NULL && bt_plan_has_pair(task)))
        return;
    bt_plan_forget_tried(task, pair->decode);
    bt_plan_mark_tried(task, pair->prefill);
}

/* Nobody is to blame: back-pressure is routed around, a pair that cannot is not tried again. */
static void exclude_innocent(bt_task_t *task, const bt_failure_t *f, const bt_pair_t *pair)
{
    if (f->status != 429 && f->status != 503)
        exclude_one(task, pair);
    else
        bt_plan_mark_tried(task, f->leg == BT_LEG_PREFILL ? pair->prefill : pair->decode);
}

static void finish_well(bt_task_t *task)
{
    finish(task);
    task->request->sink->end(task);
}

/* NULL: it may. */
static const char *may_go_on(bt_task_t *task, const bt_failure_t *f)
{
    const char *why = bt_replay_round_refusal(task, f);

    if (why == NULL && f->rc != BT_E_RECOMPUTED && !bt_task_take_retry(task))
        why = "the retry budget is spent";
    return why;
}

/* NULL: another attempt makes the rest of the answer, or nothing is missing. */
static const char *go_on(bt_attempt_t *a, const bt_failure_t *f)
{
    bt_task_t *task = a->task;
    const char *why;

    if (f->rc != BT_E_RECOMPUTED && bt_sink_replay_complete(task->request)) {
        finish_well(task);
        return NULL;
    }
    why = may_go_on(task, f);
    if (why == NULL && bt_replay_round_begin(task, f) < 0)
        why = "memory is short";
    if (why != NULL)
        return why;
    task->committed = false;
    task->before_replay = task->attempts;
    task->best = NULL;
    bt_task_remember(task, f);
    if (try_next(task, f) < 0)
        give_up(task, task->best);
    else
        bt_replay_round_count(task, f);
    return NULL;
}

/* A decode that has given a request up has no room for it, and may have some in a moment. */
static void ask_others_first(bt_task_t *task, bt_worker_t *decode)
{
    forget_all_tried(task);
    bt_plan_mark_tried(task, decode);
    if (!bt_plan_has_pair(task))
        bt_plan_forget_tried(task, decode);
}

/* Its leg has ended well, and so has the attempt: nobody is to blame. */
static void attempt_recomputed(bt_attempt_t *a)
{
    bt_task_t *task = a->task;
    const bt_leg_t *leg = bt_attempt_answer(a);
    bt_failure_t f = bt_leg_failure(leg, BT_E_RECOMPUTED, true);

    a->fail_rc = f.rc;
    a->fail_leg = f.leg;
    ask_others_first(task, leg->worker);
    f.reason = go_on(a, &f);
    if (f.reason == NULL)
        return;
    f.reason =
        bt_arena_printf(&task->request->arena,
                        "decode has given the request up (recomputed), and the answer cannot "
                        "be continued: %s",
                        f.reason)
            .p;
    give_up(task, &f);
}

static void attempt_failed(bt_attempt_t *a, const bt_failure_t *f, bt_worker_t *const *guilty,
                           unsigned guilty_count)
{
    bt_task_t *task = a->task;
    bt_request_t *r = task->request;
    const bool same_again = f->rc == BT_E_LEASE || f->stale; /* these workers did nothing wrong */

    BT_REQUEST_LOG(debug, "dispatch", r, f->worker, "attempt %u failed at %s: %s, status %u",
                   a->number, bt_leg_role_name(f->leg), bt_err_name(f->rc), f->status);
    bt_task_remember(task, f);
    for (unsigned i = 0; i < guilty_count; i++)
        bt_plan_mark_tried(task, guilty[i]);
    if (guilty_count == 0 && !same_again)
        exclude_innocent(task, f, &a->pair);
    if (may_retry(task, f))
        start_next(task, f);
    else if (!task->committed || r->replay == NULL || go_on(a, f) != NULL)
        give_up(task, task->committed ? f : task->best);
}

static void on_attempt_end(bt_attempt_t *a, const bt_failure_t *f, bt_worker_t *const *guilty,
                           unsigned guilty_count)
{
    if (f != NULL) {
        attempt_failed(a, f, guilty, guilty_count);
        return;
    }
    if (bt_sink_replay_is_recomputed(a->task->request))
        attempt_recomputed(a);
    else
        finish_well(a->task);
}

void bt_task_start(bt_task_t *task, const bt_kept_choice_t *choice)
{
    static const bt_failure_t nobody = {
        .rc = BT_E_NO_WORKER,
        .retryable = true,
        .reason = "no usable worker: each is at its limit, or its breaker waits for its probe"};
    const bt_worker_pool_t *pool = task->request->pool;
    int rc;

    if (pool->spec.retry_budget_percent != 0 && task->request->warmup == NULL)
        bt_retry_budget_count(&pool->stat->retry_budget, bt_clock_event_ms());
    task->choice = choice;
    task->hints = choice->hints;
    rc = bt_attempt_start(task, &choice->first, on_attempt_end);
    if (rc == 0)
        return;
    bt_plan_mark_tried(task, choice->first.prefill);
    bt_plan_mark_tried(task, choice->first.decode);
    bt_task_remember(task, &nobody);
    start_next(task, &nobody);
}

void bt_task_cancel(bt_task_t *task)
{
    if (task->attempt != NULL)
        bt_attempt_cancel(task->attempt);
    if (!task->done)
        finish(task);
}
