/* encode.c - each image, audio or video part of a request goes to an encode worker, all of them at once; then the request is planned.
 *
 *   parts -> a leg each -> its reply is looked into -> all are there: the legs that compute the prompt say what the encoders said
 *              ^ failed, and may be tried again: another encoder   `> else: the others stop, the client is told
 *
 * The body keeps its parts as they are, so engines on both sides make the same key of the same bytes: no uuid is added, and what
 * else goes into that key (mm_processor_kwargs, media_io_kwargs) goes along.
 */
#include "dispatch/attempt/encode.h"
#include "api/inspect.h"
#include "base/rand.h"
#include "cluster/checks/health.h"
#include "dispatch/answer/answer.h"
#include "dispatch/answer/headers.h"
#include "dispatch/answer/sink.h"
#include "dispatch/attempt/attempt.h"
#include "dispatch/attempt/leg.h"
#include "dispatch/attempt/task.h"
#include "dispatch/plan/plan.h"

static bt_request_t *request_of(const bt_encode_part_t *p)
{
    return p->task.request;
}

/* ---- the end of the stage ---- */

static void forget_tried(bt_encode_part_t *p)
{
    while (p->task.tried_count > 0)
        bt_plan_forget_tried(&p->task, p->task.tried[0]);
}

bool bt_encode_is_running(const bt_request_t *r)
{
    return r->encode != NULL && !r->encode->is_over;
}

void bt_encode_cancel(bt_request_t *r)
{
    if (!bt_encode_is_running(r))
        return;
    r->encode->is_over = true;
    r->encode->end_us = bt_clock_us();
    for (unsigned i = 0; i < r->encode->count; i++)
        bt_leg_cancel(&r->encode->parts[i].leg);
}

void bt_encode_drop(bt_request_t *r)
{
    for (unsigned i = 0; r->encode != NULL && i < r->encode->count; i++) {
        bt_leg_drop(&r->encode->parts[i].leg);
        forget_tried(&r->encode->parts[i]);
    }
}

static void fail_all(bt_request_t *r, const bt_failure_t *f)
{
    r->encode->fail_rc = f->rc;
    bt_encode_cancel(r);
    if (f->rc == BT_E_NO_WORKER)
        bt_stats_inc(&r->d->stats, unavailable);
    r->fail_leg = bt_leg_role_name(BT_LEG_ENCODE);
    r->fail_name = bt_err_name(f->rc);
    r->sink->fail(&r->tasks[0], f);
}

static void all_there(bt_request_t *r)
{
    bt_encode_t *e = r->encode;
    const bt_failure_t no_memory = {.rc = BT_E_NOMEM, .leg = BT_LEG_ENCODE};

    if (bt_encode_merge(r) < 0) {
        fail_all(r, &no_memory);
        return;
    }
    e->is_over = true;
    e->end_us = bt_clock_us();
    bt_histogram_note(&r->d->stats.encode, e->end_us - e->start_us, 1);
    bt_encode_drop(r);
    r->ops->go_on(r, BT_PROGRESS_NEXT);
}

/* ---- one part's leg ---- */

static bool start(bt_encode_part_t *p, const bt_failure_t *before, bt_failure_t *f);

/* The failure's words lie in its leg, which goes when another one begins, and so may the worker. */
static void keep(bt_encode_part_t *p, bt_failure_t *f)
{
    if (f->body.n != 0)
        f->body = bt_arena_str(&request_of(p)->arena, f->body);
    if (f->worker != NULL)
        f->worker = p->worker;
    bt_task_remember(&p->task, f);
}

static void note_replaced(bt_encode_part_t *p, int rc)
{
    struct bt_replaced *s = bt_arena_alloc(&request_of(p)->arena, sizeof(*s));

    *s = (struct bt_replaced){p->attempt.replaced,  BT_LEG_ENCODE, p->worker, rc,
                              p->leg.call.start_us, bt_clock_us()};
    p->attempt.replaced = s;
}

static bool may_retry(bt_encode_part_t *p, const bt_failure_t *f)
{
    return f->retryable && bt_task_may_go_on(&p->task) &&
           (f->stale || bt_task_take_retry(&p->task));
}

static void blame(bt_encode_part_t *p, bt_failure_t *f)
{
    keep(p, f);
    if (p->leg.worker == NULL)
        return;
    note_replaced(p, f->rc);
    if (!f->stale)
        bt_plan_mark_tried(&p->task, p->leg.worker);
    bt_leg_settle(&p->leg, bt_blame_is_guilty(f) ? BT_BLAME_GUILTY : BT_BLAME_INNOCENT);
}

/* Ends the stage, unless another encoder takes the part. */
static void part_failed(bt_encode_part_t *p, bt_failure_t *f)
{
    bt_request_t *r = request_of(p);
    bt_failure_t next;

    for (blame(p, f); may_retry(p, f); blame(p, f)) {
        if (start(p, f, &next)) {
            bt_stats_inc(&r->d->stats, retries);
            return;
        }
        if (next.rc == BT_E_NO_WORKER)
            break;
        *f = next;
    }
    fail_all(r, p->task.best);
}

static void ended_badly(bt_encode_part_t *p, bt_failure_t *f)
{
    bt_request_t *r = request_of(p);

    p->leg.state = BT_LEG_FAILED;
    part_failed(p, f);
    bt_request_release(r);
}

void bt_encode_lost(bt_leg_t *leg)
{
    bt_failure_t f = bt_leg_failure(leg, BT_E_LOST, true);

    bt_call_cancel(&leg->call);
    ended_badly(bt_container_of(leg, bt_encode_part_t, leg), &f);
}

/* ---- its reply ---- */

static bool is_good(bt_encode_part_t *p, bt_failure_t *f)
{
    bt_leg_t *leg = &p->leg;
    bt_json_members_t members = {.cap = 0};

    *f = bt_leg_failure(leg, BT_E_HANDOFF, true);
    if (leg->reply_overflow) {
        f->reason = "the encoder's reply is larger than 4 MiB";
    } else if (bt_inspect_aborted(leg->reply.text, &members)) {
        f->rc = BT_E_UPSTREAM_BODY;
        f->status = bt_inspect_json(leg->reply.text);
        f->retryable = f->status == 0 || f->status >= 500 || f->status == 429;
        f->body = f->status != 0 ? leg->reply.text : BT_STR("");
        f->reason = "the encoder answered 200 with an error or abort inside";
    } else if (members.text.n == 0) {
        f->reason = "the encoder's reply is no JSON object";
    } else {
        f->reason = bt_encode_params_fault(leg->reply.text);
    }
    return f->reason == NULL;
}

static bt_failure_t bad_status(bt_leg_t *leg)
{
    const unsigned status = leg->call.status;
    bt_failure_t f =
        bt_leg_failure(leg, BT_E_UPSTREAM_STATUS, status == 429 || status >= 500 || status < 400);

    if (status < 400) {
        f.rc = BT_E_REDIRECT;
        return f;
    }
    f.status = status;
    bt_leg_keep_head(leg, &f);
    if (leg->reply_overflow)
        f.reason = "the encoder's error body is larger than 4 MiB";
    else
        f.body = leg->reply.text;
    return f;
}

static void on_head(bt_call_t *call)
{
    bt_leg_t *leg = call->user;

    leg->last_bytes_ms = bt_clock_ms();
    bt_worker_note_bytes(leg->worker, leg->last_bytes_ms);
}

static void on_body(bt_call_t *call, bt_buf_t *buf, const char *bytes, size_t n)
{
    bt_leg_t *leg = call->user;
    bt_failure_t f = bt_leg_failure(leg, BT_E_NOMEM, false);

    on_head(call);
    leg->reply_overflow |= leg->reply.text.n + n > BT_REPLY_MAX_BYTES;
    if (leg->reply_overflow || bt_kept_add(&leg->reply, leg->attempt->task->request->d->shared, buf,
                                           (bt_str_t){bytes, n}) == 0)
        return;
    bt_call_cancel(call);
    ended_badly(bt_container_of(leg, bt_encode_part_t, leg), &f);
}

static void on_end(bt_call_t *call)
{
    bt_leg_t *leg = call->user;
    bt_encode_part_t *p = bt_container_of(leg, bt_encode_part_t, leg);
    bt_request_t *r = request_of(p);
    bt_failure_t f;

    if (call->status < 200 || call->status > 299) {
        f = bad_status(leg);
        ended_badly(p, &f);
        return;
    }
    if (!is_good(p, &f)) {
        ended_badly(p, &f);
        return;
    }
    leg->state = BT_LEG_DONE;
    p->end_us = bt_clock_us();
    bt_worker_note_ttft(leg->worker, p->end_us - call->start_us);
    bt_leg_settle(leg, BT_BLAME_OK);
    bt_request_release(r);
    if (--r->encode->left == 0)
        all_there(r);
}

static void on_fail(bt_call_t *call, int rc)
{
    bt_leg_t *leg = call->user;
    bt_failure_t f = bt_leg_call_failure(leg, rc);

    ended_badly(bt_container_of(leg, bt_encode_part_t, leg), &f);
}

static const bt_call_ops_t call_ops = {
    .on_head = on_head, .on_body = on_body, .on_end = on_end, .on_fail = on_fail};

/* ---- asking ---- */

/* <request>:<part>:<6 hex digits>, other ones for each try. */
static void name(bt_encode_part_t *p)
{
    bt_request_t *r = request_of(p);
    char hex[17], *at = hex;

    bt_str_put_hex64(&at, bt_rand_u64());
    *at = '\0';
    p->attempt.id = bt_arena_printf(&r->arena, "%s:%u:%s", r->id, p->task.index, hex + 10).p;
}

static void put(bt_slices_t *body, bt_arena_t *arena, const char *before, bt_str_t value)
{
    if (value.n == 0)
        return;
    if (*before != '\0')
        bt_slices_put(body, arena, bt_str(before));
    bt_slices_put(body, arena, value);
}

static bt_str_t member(const bt_request_t *r, bt_str_t key)
{
    const bt_json_item_t *item = bt_body_find(&r->intent.body, key);

    return item != NULL && item->type != BT_JSON_NULL ? item->value : BT_STR("");
}

/* No max_tokens: an encoder ends when the part is encoded. */
static void build(bt_encode_part_t *p)
{
    bt_request_t *r = request_of(p);
    bt_arena_t *arena = &r->send_arena;
    const bt_str_t model = member(r, BT_STR("model"));
    bt_slices_t body = {0};
    bt_edits_t none;

    bt_slices_put(&body, arena, BT_STR("{"));
    put(&body, arena, "\"model\":", model);
    bt_slices_put(&body, arena,
                  bt_str(&",\"messages\":[{\"role\":\"user\",\"content\":["[model.n == 0]));
    put(&body, arena, "", p->item.before);
    put(&body, arena, "", p->item.value);
    put(&body, arena, "", p->item.after);
    bt_slices_put(&body, arena, BT_STR("]}],\"stream\":false"));
    put(&body, arena, ",\"mm_processor_kwargs\":", member(r, BT_STR("mm_processor_kwargs")));
    put(&body, arena, ",\"media_io_kwargs\":", member(r, BT_STR("media_io_kwargs")));
    bt_slices_put(&body, arena, BT_STR("}"));
    bt_edits_init(&none, arena);
    bt_slices_put(&p->leg.request, arena, bt_headers_request(&p->leg, &none, body.bytes, true));
    for (unsigned i = 0; i < body.count; i++)
        bt_slices_put(&p->leg.request, arena, (bt_str_t){body.items[i].p, body.items[i].n});
}

/* Does another part's probe of this encoder run already? Then this one goes with it. */
static bool rides_along(const bt_encode_part_t *p)
{
    const bt_encode_t *e = request_of(p)->encode;

    for (unsigned i = 0; i < e->count; i++)
        if (e->parts[i].leg.worker == p->leg.worker && e->parts[i].leg.probe &&
            !e->parts[i].leg.settled)
            return true;
    return false;
}

static bool enter(bt_encode_part_t *p)
{
    bt_leg_t *leg = &p->leg;

    leg->entered =
        bt_leg_take_place(leg) &&
        (bt_breaker_enter(&leg->worker->breaker, bt_clock_ms(), &leg->probe) || rides_along(p));
    return leg->entered;
}

static bool choose(bt_encode_part_t *p, const bt_failure_t *before, bt_failure_t *f)
{
    bt_worker_t *w;

    bt_leg_drop(&p->leg);
    *f = (bt_failure_t){.rc = BT_E_NO_WORKER, .leg = BT_LEG_ENCODE};
    for (unsigned spins = 0; spins < BT_TRIED_MAX; spins++) {
        w = bt_plan_encoder(&p->task, before, &f->reason);
        if (w == NULL)
            return false;
        bt_leg_init(&p->leg, &p->attempt, BT_LEG_ENCODE, w);
        if (enter(p))
            return true;
        bt_plan_mark_tried(&p->task, w);
        bt_leg_drop(&p->leg);
    }
    return false;
}

static int call(bt_encode_part_t *p)
{
    bt_request_t *r = request_of(p);
    const bt_pool_deadlines_t *dl = &r->pool->spec.deadlines;
    const bt_call_timeouts_t timeouts = {.connect_ms = dl->connect_ms,
                                         .first_byte_ms = dl->prefill_reply_ms,
                                         .stall_ms = dl->stall_ms};
    bt_upstream_t *up;

    if (bt_worker_is_lost(p->leg.worker))
        return BT_E_LOST;
    up = bt_dispatcher_upstream(r->d, p->leg.worker);
    if (up == NULL) {
        bt_health_note_connect_failure(p->leg.worker, false);
        return BT_E_RESOLVE;
    }
    return bt_call_start(&p->leg.call, up, &call_ops, &p->leg, p->leg.request.items,
                         p->leg.request.count, &timeouts);
}

/* False: f says why it does not run. NO_WORKER: nobody is left. */
static bool start(bt_encode_part_t *p, const bt_failure_t *before, bt_failure_t *f)
{
    bt_request_t *r = request_of(p);
    int rc;

    if (!choose(p, before, f))
        return false;
    p->task.attempts++;
    p->worker = bt_arena_str(&r->arena, bt_str(p->leg.worker->name)).p;
    name(p);
    build(p);
    rc = call(p);
    if (rc < 0) {
        *f = bt_leg_failure(&p->leg, rc, true);
        return false;
    }
    p->leg.state = BT_LEG_RUNNING;
    r->holds++;
    bt_ledger_hold(&p->leg.prefill_load, p->leg.worker, BT_PHASE_PREFILL,
                   (int64_t) p->task.prompt_tokens);
    return true;
}

/* ---- the beginning ---- */

static void open_part(bt_request_t *r, unsigned i, bt_media_part_t item)
{
    bt_encode_part_t *p = &r->encode->parts[i];
    const uint64_t milli = bt_estimate_milli(&r->pool->stat->estimate, r->intent.model);

    p->item = item;
    p->task =
        (bt_task_t){.request = r,
                    .index = i,
                    .suffix = "",
                    .prompt_tokens = milli != 0 ? bt_media_size(&item) * 1000 / milli + 1 : 1};
    p->attempt = (bt_attempt_t){.task = &p->task, .number = 1, .kind = BT_PLAN_SINGLE};
}

static enum bt_progress refuse_many(bt_request_t *r)
{
    bt_answer_error(r, 400,
                    bt_arena_printf(&r->arena,
                                    "more than %u images, audio and video parts in one request, "
                                    "which is as many as are encoded apart (max_fanout)",
                                    r->pool->spec.max_fanout)
                        .p,
                    0);
    return BT_PROGRESS_ENDED;
}

enum bt_progress bt_encode_enter(bt_request_t *r)
{
    const unsigned max = r->pool->spec.max_fanout;
    bt_media_part_t *items;
    bt_failure_t f;
    const char *why;
    int found;

    if (r->pool->encode.count == 0)
        return BT_PROGRESS_NEXT;
    items = bt_arena_alloc(&r->arena, (max + 1) * sizeof(*items));
    found = bt_media_find(&r->intent, items, max + 1, &why);
    if (found == 0)
        return BT_PROGRESS_NEXT;
    if (found < 0) {
        bt_answer_error(r, 400, why, 0);
        return BT_PROGRESS_ENDED;
    }
    if ((unsigned) found > max)
        return refuse_many(r);
    const unsigned count = (unsigned) found;
    r->encode = bt_arena_zalloc(&r->arena, sizeof(*r->encode));
    *r->encode =
        (bt_encode_t){.parts = bt_arena_zalloc(&r->arena, count * sizeof(bt_encode_part_t)),
                      .count = count,
                      .left = count,
                      .start_us = bt_clock_us()};
    for (unsigned i = 0; i < count; i++)
        open_part(r, i, items[i]);
    for (unsigned i = 0; i < count && !r->encode->is_over; i++)
        if (!start(&r->encode->parts[i], NULL, &f))
            part_failed(&r->encode->parts[i], &f);
    return r->encode->is_over ? BT_PROGRESS_ENDED : BT_PROGRESS_WAITS;
}
