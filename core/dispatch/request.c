/* request.c - a request's way: step() has its stations in their order, and what ends it stands first.
 *
 * A request ends for its client when the sink has answered or the client left (finish); its memory
 * goes when no leg runs any more, at the end of that turn of the loop, so that no callback on the
 * stack can find it gone.
 */
#include "dispatch/request.h"
#include "base/log.h"
#include "base/rand.h"
#include "dispatch/answer/answer.h"
#include "dispatch/answer/headers.h"
#include "dispatch/answer/sink.h"
#include "dispatch/answer/token_replay.h"
#include "dispatch/attempt/attempt.h"
#include "dispatch/attempt/encode.h"
#include "dispatch/attempt/first_token.h"
#include "dispatch/attempt/task.h"
#include "dispatch/intake/intake.h"
#include "dispatch/intake/reservation.h"
#include "dispatch/intake/scan.h"
#include "dispatch/plan/candidates.h"
#include "dispatch/plan/plan.h"
#include "dispatch/plan/policy_call.h"
#include "dispatch/plan/request_pool.h"
#include "dispatch/plan/response_affinity.h"
#include "dispatch/plan/tokenize.h"
#include "dispatch/queue/queue.h"
#include "dispatch/state/traceparent.h"
#include "dispatch/telemetry/access_log.h"
#include "dispatch/telemetry/model_stats.h"
#include "dispatch/telemetry/observe.h"
#include "dispatch/telemetry/trace.h"
#include "script/shared/prefix_hash.h"

#include <stdio.h>

/* ---- the end ---- */

static void drop_task(bt_task_t *task)
{
    for (bt_attempt_t *a = task->attempt; a != NULL; a = a->before)
        bt_attempt_drop(a);
}

static void destroy(bt_later_t *reap)
{
    bt_request_t *r = bt_container_of(reap, bt_request_t, reap);
    bt_dispatcher_t *d = r->d;

    bt_request_unlink(d, &r->link);
    bt_encode_drop(r);
    bt_tokenize_drop(r);
    for (unsigned i = 0; i < r->task_count; i++)
        drop_task(&r->tasks[i]);
    if (r->merge != NULL)
        bt_sink_merge_fini(r);
    bt_token_replay_fini(r);
    bt_first_token_fini(r);
    bt_worker_unref(r->pinned);
    bt_workers_unref(r->record.workers);
    bt_workers_unref(r->workers);
    bt_buf_unref(r->body_buf);
    bt_scan_drop(r);
    bt_arena_fini(&r->send_arena);
    bt_arena_fini(&r->arena);
    bt_slab_put(&d->request_slab, r);
}

/* What is counted and told of a client's request. */
static void note_finish(bt_request_t *r, uint64_t us)
{
    bt_stats_t *stats = &r->d->stats;

    bt_stats_add_(&stats->requests[r->route][r->status < BT_STATS_STATUSES ? r->status : 0], 1);
    bt_histogram_note(&stats->duration, us, 1);
    if (r->events > 1 && r->first_byte_us != 0)
        bt_histogram_note(&stats->tpot, (bt_clock_event_us() - r->first_byte_us) / (r->events - 1),
                          1);
    bt_learn_answer(r);
    bt_learn_prediction(r);
    if (r->first_byte_us != 0)
        bt_histogram_note(&stats->decode, bt_clock_event_us() - r->first_byte_us, 1);
    bt_model_stats_note(r, us);
    bt_access_log(r, us);
    bt_record_finish(r);
    if (r->trace != NULL)
        bt_trace_finish(r);
    bt_observe_request(r, us);
}

static void finish(bt_request_t *r)
{
    if (r->finished)
        return;
    r->finished = true;
    r->step = BT_STEP_END;
    bt_timer_stop(&r->total);
    bt_timer_stop(&r->keepalive);
    bt_scan_cancel(r);
    bt_response_affinity_end(r);
    bt_policy_call_end(r);
    bt_reservation_leave(r);
    bt_encode_cancel(r);
    bt_tokenize_cancel(r);
    for (unsigned i = 0; i < r->task_count; i++)
        bt_task_cancel(&r->tasks[i]);
    bt_queue_leave(r); /* its legs first: who is called needs their room */
    if (r->warmup != NULL)
        r->warmup->on_end(r->warmup, r);
    else
        note_finish(r, bt_clock_event_us() - r->start_us);
    if (r->id_registered)
        bt_ids_remove(r->d->shared->ids, bt_str(r->id));
    if (r->counted)
        atomic_fetch_sub_explicit(&r->d->shared->concurrent, 1, memory_order_relaxed);
    bt_request_unlink(r->d, &r->link);
    r->d->live_count--;
    bt_list_push(&r->d->draining, &r->link);
    if (r->holds == 0)
        bt_loop_later(r->d->loop, &r->reap);
}

/* No other attempt can come, once the client has some of its answer, but of one that may be replayed, or has its first token only: that
 * is planned again, by whoever has decided the first one. */
static void begin_answer(bt_request_t *r)
{
    if (bt_token_replay_is_open(r) || bt_first_token_waits(r))
        bt_policy_call_end_intake(r);
    else
        bt_policy_call_end(r);
}

void bt_request_cut(bt_request_t *r)
{
    for (unsigned i = 0; i < r->task_count; i++)
        if (r->tasks[i].attempt != NULL)
            bt_attempt_cut(r->tasks[i].attempt);
}

/* ---- deadlines ---- */

/* A hand-off waits for prefill until decode has been asked, a trigger since decode has asked for it. */
static enum bt_leg_role waited_for(const bt_request_t *r)
{
    if (bt_encode_is_running(r))
        return BT_LEG_ENCODE;
    for (unsigned i = 0; i < r->task_count; i++) {
        const bt_attempt_t *a = r->tasks[i].attempt;
        if (!r->tasks[i].done && a != NULL && bt_leg_running(&a->legs[0]) &&
            (a->legs[1].state == BT_LEG_IDLE || (a->kind == BT_PLAN_TRIGGER && !a->committed)))
            return BT_LEG_PREFILL;
    }
    return bt_request_kind(r) == BT_PLAN_SINGLE ? BT_LEG_SINGLE : BT_LEG_DECODE;
}

static void on_total(bt_timer_t *timer)
{
    bt_request_t *r = bt_container_of(timer, bt_request_t, total);
    const bt_failure_t f = {.rc = BT_E_TOTAL_TIMEOUT, .leg = waited_for(r)};

    for (unsigned i = 0; i < r->task_count; i++)
        if (!r->tasks[i].done && r->tasks[i].attempt != NULL)
            bt_attempt_cancel(r->tasks[i].attempt);
    r->fail_leg = bt_leg_role_name(f.leg);
    r->fail_name = bt_err_name(f.rc);
    r->sink->fail(&r->tasks[0], &f);
}

static void on_keepalive(bt_timer_t *timer)
{
    bt_request_t *r = bt_container_of(timer, bt_request_t, keepalive);
    static const char comment[] = ": waiting for the first token\n\n";

    bt_sink_begin_stream(r);
    bt_exchange_write(r->x, NULL, comment, sizeof(comment) - 1);
    bt_timer_start(&r->keepalive, r->d->shared->config.stream_keepalive_ms);
}

/* ---- the beginning ---- */

static void go_on(bt_request_t *r, enum bt_progress progress);
static void request_gone(struct bt_handler *h);
static void request_drain(struct bt_handler *h);

static const struct bt_request_ops ops = {
    .go_on = go_on, .begin_answer = begin_answer, .finish = finish};

static void choose_id(bt_request_t *r)
{
    bt_str_t given = bt_head_get(&r->x->head, BT_STR("x-request-id"));
    char fresh[BT_UUID_CHARS + 1];

    if (bt_headers_id_ok(given) && !bt_ids_derives(r->d->shared->ids, given) &&
        bt_ids_add(r->d->shared->ids, given)) {
        r->id = bt_arena_str(&r->arena, given).p;
        r->id_registered = true;
        return;
    }
    bt_rand_uuid(fresh);
    r->id = bt_arena_str(&r->arena, bt_str(fresh)).p;
}

bt_request_t *bt_request_new(bt_dispatcher_t *d, bt_exchange_t *x, enum bt_route route)
{
    bt_request_t *r = bt_slab_get(&d->request_slab);

    if (r == NULL)
        return NULL;
    r->ops = &ops;
    r->handler = (struct bt_handler){.gone = request_gone, .drain = request_drain};
    r->d = d;
    r->x = x;
    r->route = route;
    r->start_us = x->start_us;
    bt_arena_init_room(&r->arena, r->room, sizeof(r->room));
    bt_arena_init(&r->send_arena);
    /* Somebody may cancel it, and its failure be told, before its body has been read. */
    r->tasks = bt_arena_zalloc(&r->arena, sizeof(*r->tasks));
    r->tasks[0] = (bt_task_t){.request = r, .suffix = ""};
    bt_timer_init(d->loop, &r->total, on_total);
    bt_timer_init(d->loop, &r->keepalive, on_keepalive);
    bt_later_init(&r->reap, destroy);
    bt_list_push(&d->live, &r->link);
    d->live_count++;
    x->user = &r->handler;
    r->sink = &bt_sink_direct;
    r->identity = &bt_identity_anonymous;
    r->target = bt_arena_str(&r->arena, x->head.target);
    r->path =
        bt_str_eq(x->head.path, x->head.target) ? r->target : bt_arena_str(&r->arena, x->head.path);
    r->method = bt_arena_str(&r->arena, x->head.method_text).p;
    if (x->body_buf != NULL)
        r->body_buf = bt_buf_ref(x->body_buf);
    r->body_bytes = x->body.n;
    r->tls_version = x->tls_version;
    if (bt_access_log_is_json(d))
        r->peer = bt_arena_str(&r->arena, bt_str(x->peer));
    if (!d->shared->config.asks_identity)
        r->authorization = bt_arena_str(&r->arena, bt_head_get(&x->head, BT_STR("authorization")));
    choose_id(r);
    if (d->shared->traces != NULL)
        bt_traceparent_read(r);
    return r;
}

static void start_tasks(bt_request_t *r)
{
    for (unsigned i = 0; i < r->task_count && !r->finished; i++) {
        const bt_kept_choice_t *choice = r->choice;
        char why[256] = "";
        bt_choice_t own;
        if (i != 0 && bt_plan_choose(r, &own, why, sizeof(why)) == 0)
            choice = bt_plan_keep(r, &own);
        bt_task_start(&r->tasks[i], choice);
    }
}

/* Why it needs one worker for all of it; NULL: it does not. */
static const char *why_whole(const bt_request_t *r, const char *why)
{
    const enum bt_prompt_logprobs asked = r->intent.prompt_logprobs;

    if (r->intent.unsplittable != NULL)
        return r->intent.unsplittable;
    return asked != BT_PROMPT_LOGPROBS_NONE && strcmp(why, bt_prompt_logprobs_why(asked)) == 0
               ? bt_prompt_logprobs_why(asked)
               : NULL;
}

/* What no waiting cures is the client's to change (400), anything else may be over in a moment (503). */
static void answer_no_plan(bt_request_t *r, int rc, const char *why)
{
    const char *whole = why_whole(r, why);

    if (whole != NULL && r->pool->hybrid.count == 0) {
        bt_answer_error(
            r, 400, bt_arena_printf(&r->arena, "%s, and this fleet has no hybrid worker", whole).p,
            0);
        return;
    }
    if (rc == BT_E_INVAL) {
        bt_answer_error(r, 400, why, 0);
        return;
    }
    if (rc == BT_E_AGAIN)
        bt_stats_inc(&r->d->stats, limited);
    if (r->warmup == NULL)
        bt_stats_inc(&r->d->stats, unavailable);
    r->fail_name = "no_worker";
    bt_answer_error(r, 503,
                    bt_arena_printf(&r->arena, "no usable worker: %s",
                                    why[0] != '\0' ? why : "the hybrid ones are down")
                        .p,
                    1);
}

static uint64_t count_tokens(const bt_request_t *r, const bt_worker_pool_t *pool)
{
    const uint64_t told = bt_tokenize_count(r);

    if (told != 0)
        return told;
    return bt_intent_prompt_tokens(&r->intent,
                                   bt_estimate_milli(&pool->stat->estimate, r->intent.model));
}

/* Engines keep KV apart by these, as they stand in the body. */
static uint64_t prefix_space(const bt_intent_t *intent)
{
    static const enum bt_member apart[] = {BT_MEMBER_CACHE_SALT, BT_MEMBER_EXTRA_KEY,
                                           BT_MEMBER_LORA_PATH};
    uint64_t space = 0;

    for (unsigned i = 0; i < 3; i++) {
        const bt_json_item_t *item = bt_intent_member(intent, apart[i]);
        if (item != NULL && item->type != BT_JSON_NULL)
            space = bt_hash64(item->value, space + i + 1);
    }
    return space;
}

/* Rules may ask for the length before there is a pool: the model's, else the first one's tokens are as good as any. */
static void prepare(bt_request_t *r)
{
    const bt_worker_pool_t *pool = r->pool != NULL ? r->pool : bt_request_pool(r);

    bt_edits_init(&r->tasks[0].child, &r->send_arena);
    if (pool == NULL && r->workers->pool_count != 0)
        pool = &r->workers->pools[0];
    if (pool != NULL)
        r->prompt_tokens = count_tokens(r, pool);
    r->tenant = bt_arena_str(&r->arena, bt_client_tenant(r->identity, &r->x->head));
    r->session = bt_arena_str(&r->arena, bt_head_get(&r->x->head, BT_STR("x-session-id")));
    if (r->session.n == 0)
        r->session = r->intent.session;
    r->prefix_space = prefix_space(&r->intent);
    bt_record_begin(r);
}

/* A warm-up: its pair is the plan. */
static enum bt_progress plan_warmup(bt_request_t *r)
{
    const bt_choice_t choice = {
        .first = {r->warmup->prefill, r->warmup->decode, -1, -1, BT_PLAN_NONE}};
    const char *why;

    why = bt_request_pin(r, r->warmup->decode->id, BT_STR_NULL)
              ? bt_pair_refusal(r, choice.first.prefill, choice.first.decode)
              : "its worker is gone";
    if (why != NULL) {
        answer_no_plan(r, BT_E_NO_WORKER, why);
        return BT_PROGRESS_ENDED;
    }
    r->prompt_tokens = r->tasks[0].prompt_tokens = count_tokens(r, r->pool);
    r->choice = bt_plan_keep(r, &choice);
    r->task_count = 1;
    r->tasks[0].prompt_count = r->intent.prompt_count;
    return BT_PROGRESS_NEXT;
}

static enum bt_progress plan(bt_request_t *r)
{
    bt_choice_t choice = {.alternate_count = 0};
    const bt_dialect_t *dialect;
    const char *refusal;
    char why[512] = "";
    int rc;

    r->prompt_tokens = count_tokens(r, r->pool);
    r->tasks[0].prompt_tokens = r->prompt_tokens;
    rc = bt_plan_choose(r, &choice, why, sizeof(why));
    if (rc < 0 && bt_queue_block(r, rc)) {
        r->step = BT_STEP_TOKENIZE; /* it goes on with the next: this one */
        return BT_PROGRESS_WAITS;
    }
    if (rc < 0) {
        r->record.decided_by = "nobody";
        r->record.why = bt_arena_str(&r->arena, bt_str(why)).p;
        answer_no_plan(r, rc, why);
        return BT_PROGRESS_ENDED;
    }
    r->choice = bt_plan_keep(r, &choice);
    r->record.workers = bt_workers_ref(r->workers);
    if (r->degraded)
        bt_stats_inc(&r->d->stats, degraded);
    r->task_count = 1;
    r->tasks[0].prompt_count = r->intent.prompt_count;
    if (bt_plan_kind_of(r->d, &choice.first, &dialect) == BT_PLAN_SINGLE ||
        !bt_fanout_needed(r, dialect)) {
        bt_token_replay_open(r);
        bt_first_token_open(r, dialect);
        return BT_PROGRESS_NEXT;
    }
    if (bt_fanout_make(r, &refusal) < 0) {
        bt_answer_error(r, 400, refusal, 0);
        return BT_PROGRESS_ENDED;
    }
    bt_stats_inc(&r->d->stats, fanouts);
    return BT_PROGRESS_NEXT;
}

static enum bt_progress encode(bt_request_t *r)
{
    const enum bt_progress progress = bt_encode_enter(r);

    if (progress == BT_PROGRESS_WAITS)
        bt_timer_start(&r->total, r->pool->spec.deadlines.total_ms);
    return progress;
}

/* Until its sink has answered. */
static enum bt_progress run(bt_request_t *r)
{
    if (!bt_timer_active(&r->total))
        bt_timer_start(&r->total, r->pool->spec.deadlines.total_ms);
    if (r->intent.stream && r->d->shared->config.stream_keepalive_ms != 0 && r->task_count == 1)
        bt_timer_start(&r->keepalive, r->d->shared->config.stream_keepalive_ms);
    start_tasks(r);
    return BT_PROGRESS_WAITS;
}

/* ---- the way ---- */

static enum bt_progress step(bt_request_t *r)
{
    switch (r->step) {
    case BT_STEP_FOLLOW_UP:
        return bt_response_affinity_find(r);
    case BT_STEP_RULES:
        return bt_intake_rules(r);
    case BT_STEP_ADMIT:
        return bt_intake_admit(r);
    case BT_STEP_ROUTE:
        return bt_intake_route(r);
    case BT_STEP_LIMITS:
        return bt_reservation_enter(r);
    case BT_STEP_QUEUE:
        return bt_queue_enter(r);
    case BT_STEP_ENCODE:
        return encode(r);
    case BT_STEP_TOKENIZE:
        return bt_tokenize_enter(r);
    case BT_STEP_PLAN:
        return r->warmup != NULL ? plan_warmup(r) : plan(r);
    case BT_STEP_RUN:
        return run(r);
    case BT_STEP_END:
        break;
    }
    return BT_PROGRESS_ENDED;
}

static void go_on(bt_request_t *r, enum bt_progress progress)
{
    while (progress == BT_PROGRESS_NEXT && r->step != BT_STEP_END) {
        r->step = (enum bt_request_step)(r->step + 1);
        progress = step(r);
    }
}

void bt_request_start(bt_request_t *r)
{
    prepare(r);
    if (r->warmup != NULL) /* no rule, hook or line is for it */
        r->step = BT_STEP_PLAN;
    go_on(r, step(r));
}

/* ---- what the client does meanwhile ---- */

static void request_gone(struct bt_handler *h)
{
    bt_request_t *r = bt_container_of(h, bt_request_t, handler);

    r->x = NULL;
    if (r->warmup == NULL)
        bt_stats_inc(&r->d->stats, client_gone);
    if (r->fail_name == NULL)
        r->fail_name = "client_gone";
    finish(r);
}

static void request_drain(struct bt_handler *h)
{
    bt_request_t *r = bt_container_of(h, bt_request_t, handler);

    for (unsigned i = 0; i < r->task_count; i++)
        if (r->tasks[i].attempt != NULL && !r->tasks[i].done)
            bt_attempt_resume(r->tasks[i].attempt);
}
