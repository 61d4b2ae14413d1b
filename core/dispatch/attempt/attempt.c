/* attempt.c - one execution of one plan: joining two legs into one answer or one failure.
 *
 *   single:     leg ------------------------------> answer
 *   handoff:    prefill -> (reply checked, lease clock) -> decode -> answer
 *   bootstrap:  prefill and decode at once -> decode's answer; prefill's body is only looked into
 *   trigger:    decode -> its engine calls (deadline) -> prefill beside it -> decode's answer
 *
 * First failure wins: bt_attempt_fail() is the one way to fail. It stops the other leg, tells
 * engines to abort by the rid we own, gives rooms back and says whom the failure is to be blamed on.
 * Blame is by leg and by cause:
 *   - the transport of a leg broke, or it answered 5xx: its own worker, unless
 *   - decode says "KV transfer failed" (bootstrap): nobody's until prefill's fate is known or 100 ms
 *     passed, then the pair's;
 *   - decode answers 5xx while a gateway-managed room is not complete: whose the hub says it is, or
 *     either's when it has not said so in 500 ms;
 *   - decode does not call for prefill, or wrongly (trigger): decode's; prefill's, when it is silent
 *     for most of decode's time, until that is over;
 *   - the dialect itself broke (a Lua error): nobody's;
 *   - decode answers 5xx to a hand-off or after its call, or two legs that wait for each other are
 *     silent: could be either's. It is held against a worker only when it fails so with two
 *     different partners in a row (suspect_partner);
 *   - 4xx, 429, 503, a pooled connection that died without a word: nobody's.
 */
#include "dispatch/attempt/attempt.h"
#include "api/inspect.h"
#include "base/log.h"
#include "cluster/engine_ids.h"
#include "cluster/pair_breaker.h"
#include "dispatch/answer/sink.h"
#include "dispatch/answer/token_replay.h"
#include "dispatch/answer/usage.h"
#include "dispatch/attempt/leg.h"
#include "dispatch/attempt/prompt_merge.h"
#include "dispatch/plan/plan.h"
#include "dispatch/plan/policy_call.h"

#define BLAME_WAIT_MS 100
#define ENGINE_CHECK_MS 1000
#define HUB_WAIT_MS 500 /* the hub waits for a second witness itself, before it tells */
#define LEASE_MARGIN_MS 5000
#define PREFILL_DRAIN_MS 10000
#define REPLY_MEMBERS 24 /* a reply with more of them is looked through again where it is asked */

/* is_abort: what the room still moves is not wanted any more. */
static void close_rooms(bt_attempt_t *a, bool is_abort, const char *reason)
{
    bt_attempt_kv_close(a, is_abort, reason);
    if (a->kind != BT_PLAN_TRIGGER) /* a late call is to find out that it is late */
        bt_attempt_give_rooms_back(a);
}

/* ---- failing ---- */

void bt_attempt_stop_leg(bt_leg_t *leg)
{
    const bool was_running = bt_leg_running(leg);

    bt_leg_cancel(leg);
    if (was_running)
        bt_background_call_abort(leg);
}

static void note_end(bt_attempt_t *a)
{
    bt_timer_stop(&a->engine_check);
    a->ended = true;
    a->end_us = bt_clock_event_us();
}

void bt_attempt_fail(bt_attempt_t *a, const bt_failure_t *f, bt_worker_t *const *guilty,
                     unsigned guilty_count)
{
    if (a->ended)
        return;
    if (guilty_count == 0)
        bt_blame_pair(a, f);
    note_end(a);
    bt_timer_stop(&a->blame_wait);
    a->fail_rc = f->rc;
    a->fail_leg = f->leg;
    a->fail_status = f->status;
    for (unsigned i = 0; i < 2; i++) {
        bt_leg_t *leg = &a->legs[i];
        if (leg->worker == NULL)
            continue;
        for (unsigned g = 0; g < guilty_count; g++)
            a->guilty[i] |= leg->worker == guilty[g];
        if (a->guilty[i])
            bt_leg_settle(leg, BT_BLAME_GUILTY);
        if (leg->state == BT_LEG_RUNNING)
            bt_attempt_stop_leg(leg);
        else if (leg->state == BT_LEG_FAILED && a->kind == BT_PLAN_BOOTSTRAP)
            bt_background_call_abort(leg); /* its engine may still wait for the other one */
        bt_leg_settle(leg, leg->state == BT_LEG_DONE ? BT_BLAME_OK : BT_BLAME_INNOCENT);
    }
    if (a->dialect != NULL && a->dialect->learns && f->rc != BT_E_NO_WORKER &&
        (f->status == 0 || f->status >= 500))
        atomic_store(&a->pair.prefill->has_learned, false); /* it may be another engine by now */
    if (a->pair.prefill != NULL && a->pair.prefill->asks_bootstrap && f->status == 0)
        bt_engine_ids_doubt(a->pair.prefill);
    if (f->rc != BT_E_HANDOFF) /* wrong parameters could free somebody else's blocks */
        bt_background_call_release(a);
    close_rooms(a, true, f->reason != NULL ? f->reason : bt_err_text(f->rc));
    bt_attempt_trigger_settle(a, f->reason);
    a->on_end(a, f, guilty, guilty_count);
}

void bt_attempt_fail_leg(bt_leg_t *leg, const bt_failure_t *f)
{
    bt_worker_t *guilty[2];
    const unsigned n = bt_blame_find(leg, f, guilty);

    bt_attempt_fail(leg->attempt, f, guilty, n);
}

static void on_blame_wait(bt_timer_t *timer)
{
    bt_attempt_t *a = bt_container_of(timer, bt_attempt_t, blame_wait);

    if (a->kv.room != 0)
        bt_attempt_fail_leg(bt_attempt_answer(a), a->pending);
    else
        bt_attempt_fail(a, a->pending, NULL, 0); /* the pair's */
}

static void wait_for_blame(bt_attempt_t *a, const bt_failure_t *f, uint64_t ms)
{
    a->pending = bt_arena_alloc(&a->task->request->arena, sizeof(*f));
    *a->pending = *f;
    bt_timer_start(&a->blame_wait, ms);
}

static bool is_prefills_fault(const bt_leg_t *leg, const bt_failure_t *f)
{
    return bt_blame_is_guilty(f) && !bt_blame_is_kv_failure(leg, f) &&
           !bt_blame_is_ambiguous(leg, f);
}

/* The attempt has not failed yet: it goes on with another worker, waits, or fails. */
static void judge(bt_leg_t *leg, const bt_failure_t *f)
{
    bt_attempt_t *a = leg->attempt;

    if (leg->role == BT_LEG_PREFILL && bt_replacement_prefill(a, f, is_prefills_fault(leg, f)))
        return;
    if (leg->role == BT_LEG_DECODE && bt_blame_is_for_hub(a, f)) {
        wait_for_blame(a, f, HUB_WAIT_MS);
        return;
    }
    if (bt_blame_is_kv_failure(leg, f)) {
        if (leg->role == BT_LEG_DECODE && bt_leg_running(bt_attempt_prefill(a))) {
            wait_for_blame(a, f, BLAME_WAIT_MS);
            return;
        }
        bt_attempt_fail(a, f, NULL, 0);
        return;
    }
    if (leg->role == BT_LEG_DECODE && a->kind == BT_PLAN_HANDOFF && bt_replacement_decode(a, f))
        return;
    bt_attempt_fail_leg(leg, f);
}

void bt_attempt_leg_failed(bt_leg_t *leg, const bt_failure_t *f)
{
    bt_attempt_t *a = leg->attempt;

    if (a->ended || ((a->committed || a->kv.is_done) && leg->role == BT_LEG_PREFILL)) {
        /* The answer is out or on its way, or decode has all KV: a late failure of prefill changes nothing for the client. */
        bt_leg_settle(leg, f->status == 0 && bt_blame_is_guilty(f) ? BT_BLAME_GUILTY
                                                                   : BT_BLAME_INNOCENT);
        bt_attempt_trigger_settle(a, f->reason);
        return;
    }
    if (bt_timer_active(&a->blame_wait)) { /* decode failed first; here is prefill's fate */
        bt_failure_t first = *a->pending;
        bt_worker_t *guilty[1] = {leg->worker};
        bt_attempt_fail(a, &first, guilty,
                        bt_blame_is_guilty(f) && !bt_blame_is_kv_failure(leg, f) ? 1 : 0);
        return;
    }
    judge(leg, f);
}

/* ---- the engine that decode was told of ---- */

/* A prefill that has restarted answers as before, but decode waits at an engine that is no more, and no one tells it. */
static void on_engine_check(bt_timer_t *timer)
{
    bt_attempt_t *a = bt_container_of(timer, bt_attempt_t, engine_check);
    bt_worker_t *p = a->pair.prefill;
    bt_failure_t f;

    if (atomic_load(&p->engine_ids_version) == a->engine_ids_version) {
        bt_engine_ids_doubt(p);
        bt_timer_start(timer, ENGINE_CHECK_MS);
        return;
    }
    f = bt_leg_failure(bt_attempt_answer(a), BT_E_DIALECT, true);
    f.reason = "prefill has restarted since, and decode was told its old engine id";
    bt_attempt_fail(a, &f, NULL, 0);
}

void bt_attempt_kv_lost(bt_attempt_t *a)
{
    bt_failure_t f = bt_leg_failure(bt_attempt_prefill(a), BT_E_LOST, true);

    f.reason = "prefill has gone before decode had its KV";
    bt_attempt_fail(a, &f, &a->pair.prefill, 1);
}

/* ---- events of legs that go well ---- */

/* Prefill's 200 that is none: an engine's words inside it have the status that they stand for. One that is too long is so at any
 * worker. */
static bt_failure_t failed_inside(const bt_leg_t *leg)
{
    const unsigned status = leg->reply_overflow ? 0 : bt_inspect_json(leg->reply.text);
    bt_failure_t f =
        bt_leg_failure(leg, BT_E_UPSTREAM_BODY,
                       !leg->reply_overflow && (status == 0 || status >= 500 || status == 429));

    f.reason = leg->reply_overflow
                   ? "prefill's reply is larger than 4 MiB (with logprobs of the prompt: 64 MiB)"
                   : "prefill answered 200 with an error or abort inside";
    f.status = status;
    if (status != 0)
        f.body = bt_leg_masked(leg, leg->reply.text);
    return f;
}

/* Of such a pair prefill's reply says nothing to decode and nothing of the engine: it is there to be counted, and its usage can be
 * found without reading it. */
static bool is_only_counted(bt_leg_t *leg)
{
    const bt_attempt_t *a = leg->attempt;
    const bt_str_t text = leg->reply.text;

    leg->reply_tokens_known = a->kind == BT_PLAN_BOOTSTRAP && !a->dialect->learns &&
                              !a->dialect->has_check && text.n != 0 && text.p[0] == '{' &&
                              bt_usage_tells_prompt(text, &leg->reply_tokens);
    return leg->reply_tokens_known;
}

/* False: prefill's 200 is none. members_p: of its reply, which is read once, here. */
static bool read_reply(bt_leg_t *leg, bt_json_members_t *members_p)
{
    if (leg->reply_overflow)
        return false;
    if (is_only_counted(leg))
        return !bt_inspect_aborted(leg->reply.text, NULL);
    if (bt_inspect_aborted(leg->reply.text, members_p))
        return false;
    leg->is_reply_object = members_p->text.n != 0;
    leg->reply_members =
        leg->is_reply_object && members_p->count <= members_p->cap ? members_p : NULL;
    return true;
}

static void use_reply(bt_leg_t *leg, bt_json_members_t *members)
{
    bt_attempt_t *a = leg->attempt;
    bt_failure_t f;

    if (!a->ended && !read_reply(leg, members)) {
        f = failed_inside(leg);
        if (a->committed || a->kv.is_done)
            bt_leg_settle(leg, BT_BLAME_INNOCENT);
        else
            judge(leg, &f);
        return;
    }
    bt_learn_token_size(leg);
    bt_learn_prefix_hits(leg);
    if (a->dialect->learns)
        bt_learn_agent(leg);
    if (a->kind == BT_PLAN_HANDOFF && !a->ended) {
        bt_leg_unload(leg); /* its breaker hears of it when decode has found the hand-off good */
        bt_attempt_start_decode(a);
        bt_first_token_relay(a);
    } else if (!a->ended && !a->committed && a->dialect->has_check &&
               !bt_leg_reply_is_good(leg, &f)) {
        bt_attempt_fail(a, &f, NULL, 0);
    } else {
        if (!a->ended && !a->committed && leg->worker->asks_bootstrap)
            bt_timer_start(&a->engine_check, ENGINE_CHECK_MS);
        bt_leg_settle(leg, BT_BLAME_OK);
    }
}

static void prefill_done(bt_leg_t *leg)
{
    bt_attempt_t *a = leg->attempt;
    bt_json_item_t items[REPLY_MEMBERS];
    bt_json_members_t members = {.items = items, .cap = REPLY_MEMBERS};

    a->prefill_done_us = bt_clock_event_us();
    if (a->task->request->warmup == NULL)
        bt_histogram_note(&a->task->request->d->stats.prefill,
                          a->prefill_done_us - leg->call.start_us, 1);
    use_reply(leg, &members);
    leg->reply_members = NULL;
    if (!a->ended && bt_attempt_answer(a)->is_held)
        bt_relay_release(bt_attempt_answer(a));
}

static void answer_done(bt_leg_t *leg)
{
    bt_attempt_t *a = leg->attempt;
    bt_leg_t *p = bt_attempt_prefill(a);

    note_end(a);
    bt_timer_stop(&a->blame_wait);
    bt_leg_settle(leg, BT_BLAME_OK);
    if (a->pair.prefill != NULL) {
        atomic_store_explicit(&a->pair.prefill->suspect_partner, 0, memory_order_relaxed);
        atomic_store_explicit(&a->pair.decode->suspect_partner, 0, memory_order_relaxed);
    }
    if (leg->events > 1)
        bt_worker_note_tpot(leg->worker,
                            (leg->last_body_us - leg->first_body_us) / (leg->events - 1));
    if (p->worker != NULL &&
        bt_leg_running(p)) /* not waited for, but its connection is worth keeping */
        bt_timer_start(&a->drain, PREFILL_DRAIN_MS);
    else if (p->worker != NULL)
        bt_leg_settle(p, p->state == BT_LEG_DONE ? BT_BLAME_OK : BT_BLAME_INNOCENT);
    close_rooms(a, false, "");
    a->on_end(a, NULL, NULL, 0);
}

void bt_attempt_cut(bt_attempt_t *a)
{
    bt_timer_stop(&a->drain);
    bt_attempt_stop_leg(bt_attempt_prefill(a));
}

static void on_drain_over(bt_timer_t *timer)
{
    bt_attempt_cut(bt_container_of(timer, bt_attempt_t, drain));
}

void bt_attempt_leg_done(bt_leg_t *leg)
{
    if (leg->role == BT_LEG_PREFILL)
        prefill_done(leg);
    else
        answer_done(leg);
    bt_attempt_trigger_settle(leg->attempt, NULL);
}

void bt_attempt_leg_commit(bt_leg_t *leg)
{
    bt_attempt_t *a = leg->attempt;
    bt_request_t *r = a->task->request;

    bt_timer_stop(&a->engine_check);
    bt_blame_pair_works(a);
    a->committed = true;
    a->task->committed = true;
    bt_attempt_trigger_commit(a);
    r->sink->head(a->task, leg->call.head, leg->is_sse);
    bt_call_drop_head(&leg->call);
}

void bt_attempt_resume(bt_attempt_t *a)
{
    bt_leg_t *leg = bt_attempt_answer(a);

    if (!bt_leg_running(leg))
        return;
    if (bt_call_paused(&leg->call))
        leg->last_bytes_ms = bt_clock_event_ms(); /* what came meanwhile is read from here on */
    bt_call_resume(&leg->call);
}

void bt_attempt_cancel(bt_attempt_t *a)
{
    if (a->ended) /* only prefill's drain can be left */
        return;
    note_end(a);
    bt_timer_stop(&a->blame_wait);
    bt_attempt_stop_leg(bt_attempt_prefill(a));
    bt_attempt_stop_leg(bt_attempt_answer(a));
    bt_background_call_release(a);
    close_rooms(a, true, "the request was given up");
    bt_attempt_trigger_settle(a, NULL);
}

void bt_attempt_drop(bt_attempt_t *a)
{
    bt_timer_stop(&a->blame_wait);
    bt_timer_stop(&a->drain);
    bt_attempt_trigger_settle(a, NULL);
    bt_prompt_merge_drop(&a->legs[1]);
    bt_leg_drop(&a->legs[0]);
    bt_leg_drop(&a->legs[1]);
    bt_attempt_give_rooms_back(a);
}

/* ---- the hand-off ---- */

void bt_attempt_start_decode(bt_attempt_t *a)
{
    bt_leg_t *p = bt_attempt_prefill(a), *d = bt_attempt_answer(a);
    bt_request_t *r = a->task->request;
    bt_failure_t f;

    if (bt_attempt_uses_reply(a) && bt_clock_event_ms() + LEASE_MARGIN_MS >= a->lease_until_ms) {
        f = bt_leg_failure(p, BT_E_LEASE, true);
        f.reason = "prefill's lease on the KV cache ran out before decode could be asked";
        bt_stats_inc(&r->d->stats, lease_expired);
        bt_attempt_fail(a, &f, NULL, 0);
        return;
    }
    if (d->worker == NULL && !bt_attempt_choose_late(a, BT_LEG_DECODE))
        return;
    if (bt_leg_start(d, bt_attempt_uses_reply(a) ? p->reply.text : BT_STR(""), &f) < 0 &&
        !bt_replacement_decode(a, &f))
        bt_attempt_fail_leg(d, &f);
}

/* ---- starting ---- */

static void run(bt_attempt_t *a)
{
    bt_leg_t *p = bt_attempt_prefill(a), *d = bt_attempt_answer(a);
    bt_failure_t f;

    if (a->kind == BT_PLAN_TRIGGER) {
        bt_attempt_trigger_begin(a);
        return;
    }
    if (a->kind != BT_PLAN_SINGLE && bt_leg_start(p, BT_STR(""), &f) < 0) {
        bt_attempt_fail_leg(p, &f);
        return;
    }
    if (a->kind == BT_PLAN_HANDOFF)
        return;
    if (bt_leg_start(d, BT_STR(""), &f) < 0) {
        /* nixl_push before anything is known about this prefill: its own reply will carry the parameters. */
        if (a->kind == BT_PLAN_BOOTSTRAP && a->dialect->learns && f.rc == BT_E_DIALECT) {
            if (a->pair.kind == BT_PLAN_BOOTSTRAP) /* it was known when the policy chose */
                bt_policy_call_invalid(a->task->request, bt_plan_cannot_serve);
            a->kind = BT_PLAN_HANDOFF;
            return;
        }
        bt_attempt_fail_leg(d, &f);
    }
}

int bt_attempt_start(bt_task_t *task, const bt_pair_t *pair, bt_attempt_end_cb on_end)
{
    bt_request_t *r = task->request;
    bt_attempt_t *a = bt_arena_zalloc(&r->arena, sizeof(*a));
    int rc = 0;

    a->task = task;
    a->on_end = on_end;
    a->number = task->attempts + 1;
    a->start_us = bt_clock_event_us();
    a->pair = *pair;
    a->is_late = bt_pair_lacks_decode(pair);
    a->kind = bt_plan_kind_of(r->d, pair, &a->dialect);
    bt_timer_init(r->d->loop, &a->blame_wait, on_blame_wait);
    bt_timer_init(r->d->loop, &a->drain, on_drain_over);
    bt_timer_init(r->d->loop, &a->engine_check, on_engine_check);
    if (pair->prefill != NULL)
        a->engine_ids_version = atomic_load(&pair->prefill->engine_ids_version);
    if (a->kind != BT_PLAN_SINGLE)
        bt_leg_init(&a->legs[0], a, BT_LEG_PREFILL, pair->prefill);
    bt_leg_init(&a->legs[1], a, a->kind == BT_PLAN_SINGLE ? BT_LEG_SINGLE : BT_LEG_DECODE,
                pair->decode);
    if ((pair->prefill != NULL && !bt_attempt_enter(&a->legs[0])) ||
        (!a->is_late && !bt_attempt_enter(&a->legs[1])))
        rc = BT_E_AGAIN; /* somebody else has the probe, or the last place */
    if (rc == 0) {
        bt_attempt_enter_pair(a);
        bt_attempt_take_ranks(a);
    }
    if (rc == 0 && a->dialect != NULL && a->dialect->needs_room)
        rc = bt_attempt_mint_rooms(a);
    if (rc == 0) {
        bt_attempt_make_ids(a);
        rc = bt_attempt_kv_open(a);
    }
    if (rc < 0) {
        close_rooms(a, true, bt_err_text(rc));
        bt_attempt_drop(a);
        return rc;
    }
    if (r->replay != NULL && r->replay->reason != NULL) {
        a->replay = r->replay->reason;
        a->replayed = r->replay->before;
    }
    a->before = task->attempt;
    task->attempt = a;
    task->attempts++;
    r->attempts++;
    bt_stats_inc(&r->d->stats, attempts);
    if (task->attempts > 1)
        bt_stats_inc(&r->d->stats, retries);
    r->last = a;
    run(a);
    return 0;
}
