/* relay.c - what a leg does with the bytes that come back.
 *
 *   prefill leg, error status ........... COLLECT (whole, up to a cap), then the attempt judges
 *   decode or single, event stream ...... INSPECT_SSE: hold back until the first data event has been looked into
 *   decode or single, other 200 ......... INSPECT_JSON: hold back the first 4 KiB (or all of it, when it is less)
 *   then ................................ RELAY: slices of the read buffer go to the client as they are
 *
 * Nothing reaches the client before the inspection has passed, so until then another worker can be tried.
 */
#include "api/inspect.h"
#include "api/mask.h"
#include "api/redact.h"
#include "base/log.h"
#include "cluster/checks/health.h"
#include "dispatch/answer/sink.h"
#include "dispatch/answer/token_replay.h"
#include "dispatch/answer/usage.h"
#include "dispatch/attempt/attempt.h"
#include "dispatch/attempt/leg.h"
#include "dispatch/attempt/prompt_merge.h"
#include "dispatch/plan/response_affinity.h"

static bt_request_t *request_of(bt_leg_t *leg)
{
    return leg->attempt->task->request;
}

static bool is_event_stream(const bt_head_t *head)
{
    return bt_str_starts(bt_head_get(head, BT_STR("content-type")), BT_STR("text/event-stream"));
}

static void note_bytes(bt_leg_t *leg, uint64_t now_ms)
{
    leg->last_bytes_ms = now_ms;
    bt_worker_note_bytes(leg->worker, now_ms);
}

static void on_head(bt_call_t *call)
{
    bt_leg_t *leg = call->user;
    bt_request_t *r = request_of(leg);
    uint64_t now_ms = bt_clock_event_ms();

    note_bytes(leg, now_ms);
    leg->is_sse = is_event_stream(call->head);
    if (leg->role == BT_LEG_PREFILL) {
        leg->attempt->lease_until_ms = now_ms + leg->worker->lease_ms;
        leg->mode = BT_MODE_COLLECT;
    } else if (call->status < 200 || call->status > 299) {
        bt_timer_stop(&leg->first_event);
        leg->mode = BT_MODE_COLLECT;
    } else if (leg->is_sse) {
        leg->mode = BT_MODE_INSPECT_SSE;
        bt_sse_init(&leg->sse, BT_INSPECT_SSE_BYTES);
    } else if (bt_route_info(r->route)->body == BT_BODY_JSON) {
        leg->mode = BT_MODE_INSPECT_JSON;
    } else {
        leg->mode = BT_MODE_RELAY;
        bt_attempt_leg_commit(leg);
    }
}

static int keep(bt_leg_t *leg, bt_buf_t *buf, const char *p, size_t n)
{
    const size_t max = bt_prompt_merge_wanted(leg) ? BT_PROMPT_REPLY_MAX_BYTES : BT_REPLY_MAX_BYTES;

    leg->reply_overflow |= leg->reply.text.n + n > max;
    return leg->reply_overflow
               ? 0
               : bt_kept_add(&leg->reply, request_of(leg)->d->shared, buf, (bt_str_t){p, n});
}

static void note_first_body(bt_leg_t *leg, uint64_t now)
{
    const bt_attempt_t *a = leg->attempt;
    bt_request_t *r = request_of(leg);

    leg->first_body_us = now;
    if (leg->role == BT_LEG_SINGLE)
        bt_ledger_pass(&leg->prefill_load, &leg->decode_load, BT_PHASE_DECODE,
                       (int64_t) a->task->prompt_tokens);
    if (r->warmup != NULL) /* what it pays for is not to come again */
        return;
    bt_worker_note_ttft(leg->worker, now - leg->call.start_us);
    if (leg->role == BT_LEG_DECODE && a->kind == BT_PLAN_HANDOFF && a->prefill_done_us != 0)
        bt_histogram_note(&r->d->stats.handoff_wait, now - a->prefill_done_us, 1);
}

static void note_timing(bt_leg_t *leg, uint64_t events)
{
    bt_request_t *r = request_of(leg);
    uint64_t now = bt_clock_event_us();

    if (leg->first_body_us == 0) {
        note_first_body(leg, now);
    } else if (events != 0) {
        bt_histogram_note(&r->d->stats.itl, (now - leg->last_body_us) / events, events);
    }
    if (events != 0) {
        leg->events += events;
        r->events += events;
        bt_ledger_grow(&leg->decode_load, (int64_t) events);
        bt_stats_add_(&r->d->stats.events, events);
    }
    leg->last_body_us = now;
}

/* The bytes are ours alone until they are queued, so blanking in place is safe. */
static void redact(bt_leg_t *leg, const char *p, size_t n)
{
    const bool before = leg->redact->done;

    if (bt_redact_feed(leg->redact, (char *) (uintptr_t) p, n) && !before)
        bt_stats_inc(&request_of(leg)->d->stats, redacted);
}

/* Of an answer that is no stream, tokens (a pair's are its decode's rate) and hits; of a single
 * worker's stream its hits, for policies that learn. Limits are trued up by it. */
static bool is_usage_wanted(bt_leg_t *leg)
{
    const bt_request_t *r = request_of(leg);

    if (request_of(leg)->reservation != NULL)
        return true;
    const bool is_read = r->d->has_observe || bt_request_is_traced(r) || r->predicted != 0;

    if (leg->is_sse)
        return is_read && leg->role == BT_LEG_SINGLE;
    return leg->role == BT_LEG_DECODE || is_read || bt_access_log_is_json(r->d);
}

/* May free the request. */
static void failed(bt_leg_t *leg, const bt_failure_t *f)
{
    bt_request_t *r = request_of(leg);

    leg->state = BT_LEG_FAILED;
    bt_attempt_leg_failed(leg, f);
    bt_request_release(r);
}

static void fail(bt_leg_t *leg, const bt_failure_t *f)
{
    bt_call_cancel(&leg->call);
    failed(leg, f);
}

/* An error inside a 200: the engine's own words, with the status they stand for. */
static void fail_inside(bt_leg_t *leg, unsigned status, bt_str_t words)
{
    bt_failure_t f = bt_leg_failure(leg, BT_E_UPSTREAM_BODY, status >= 500 || status == 429);

    f.status = status;
    f.body = bt_leg_masked(leg, bt_arena_str(&request_of(leg)->arena, words));
    fail(leg, &f);
}

/* Prefill's part and decode's make no whole. An answer that is too long is so at any worker. */
static void fail_merge(bt_leg_t *leg, int rc, const char *why)
{
    bt_failure_t f = bt_leg_failure(leg, rc, rc != BT_E_NOMEM && !leg->reply_overflow);

    f.reason = why;
    fail(leg, &f);
}

/* A stream whose events need something of prefill's reply. */
static void relay_merged(bt_leg_t *leg, bt_str_t piece)
{
    bt_buf_t *out = NULL;
    const char *why = NULL;
    const int rc = bt_prompt_merge_feed(leg, piece, &out, &why);

    if (out != NULL)
        request_of(leg)->sink->data(leg->attempt->task, out, out->data, out->len);
    bt_buf_unref(out);
    if (rc < 0 && leg->state == BT_LEG_RUNNING)
        fail_merge(leg, rc, why);
}

static void relay(bt_leg_t *leg, bt_buf_t *buf, const char *p, size_t n)
{
    bt_request_t *r = request_of(leg);
    uint64_t events = leg->is_sse ? bt_sse_count(&leg->sse, p, n) : 0;

    note_timing(leg, events);
    if (leg->redact != NULL)
        redact(leg, p, n);
    if (leg->mask != NULL)
        bt_mask_feed(leg->mask, (char *) (uintptr_t) p, n);
    if (is_usage_wanted(leg))
        bt_usage_feed(leg, &r->arena, p, n);
    if (leg->prompt == NULL)
        r->sink->data(leg->attempt->task, buf, p, n);
    else
        relay_merged(leg, (bt_str_t){p, n});
    if (leg->state == BT_LEG_RUNNING && r->replay != NULL && r->replay->error_status != 0) {
        fail_inside(leg, r->replay->error_status, r->replay->error);
        return;
    }
    if (leg->state == BT_LEG_RUNNING && r->sink->blocked(leg->attempt->task))
        bt_call_pause(&leg->call);
}

/* /v1/responses: the id by which a follow-up will ask for this answer; `text` may be cut. */
static void remember_response(bt_leg_t *leg, bt_str_t text)
{
    bt_request_t *r = request_of(leg);
    bt_json_cursor_t c;
    bt_json_item_t item;
    char id[128];
    long n;

    if (r->route != BT_ROUTE_RESPONSES || bt_json_object(&c, text) < 0)
        return;
    while (bt_json_next(&c, &item) == 1) {
        if (bt_json_key_eq(&item, BT_STR("response")) && item.type == BT_JSON_OBJECT)
            (void) bt_json_get(item.value, BT_STR("id"), &item);
        else if (!bt_json_key_eq(&item, BT_STR("id")))
            continue;
        n = item.type == BT_JSON_STRING ? bt_json_unescape(item.value, id, sizeof(id)) : -1;
        if (n > 0)
            bt_response_affinity_note(r, (bt_str_t){id, (size_t) n}, leg->worker);
        return;
    }
}

/* nixl, nixl_push and triggers: decode may tell the client where its KV came from. */
static bool has_parameters(const bt_leg_t *leg)
{
    const bt_attempt_t *a = leg->attempt;

    return a->kind == BT_PLAN_HANDOFF || a->kind == BT_PLAN_TRIGGER ||
           (a->dialect != NULL && a->dialect->learns);
}

/* An answer that is here as a whole is asked at once whether there is anything to look for. */
static bool is_redact_wanted(const bt_leg_t *leg, bool is_whole)
{
    return has_parameters(leg) && !leg->is_sse &&
           (!is_whole || bt_redact_may_have(leg->reply.text));
}

/* The answer is good so far: tell the attempt, then let everything held go. is_whole: that is all of it. */
static void commit(bt_leg_t *leg, bool is_whole)
{
    const bool is_redacted = is_redact_wanted(leg, is_whole);
    bt_kept_t kept = leg->reply;

    leg->reply = (bt_kept_t){.text = BT_STR("")};
    bt_timer_stop(&leg->first_event);
    leg->mode = BT_MODE_RELAY;
    bt_sse_fini(&leg->sse);
    bt_sse_init(&leg->sse, 0);
    if (is_redacted) {
        leg->redact = bt_arena_alloc(&request_of(leg)->arena, sizeof(*leg->redact));
        bt_redact_init(leg->redact);
    }
    if (bt_leg_has_addresses(leg))
        leg->mask = bt_arena_zalloc(&request_of(leg)->arena, sizeof(*leg->mask));
    bt_attempt_leg_commit(leg);
    if (leg->state == BT_LEG_RUNNING && kept.text.n > 0)
        relay(leg, kept.buf, kept.text.p, kept.text.n);
    bt_kept_drop(&kept);
    bt_request_drop_input(request_of(leg));
}

/* Our own memory, nobody's fault. */
static void fail_short(bt_leg_t *leg)
{
    const bt_failure_t f = bt_leg_failure(leg, BT_E_NOMEM, false);

    fail(leg, &f);
}

void bt_relay_on_first_event_timeout(bt_timer_t *timer)
{
    bt_leg_t *leg = bt_container_of(timer, bt_leg_t, first_event);
    const bt_failure_t f = bt_leg_failure(leg, BT_E_FIRST_BYTE_TIMEOUT, true);

    fail(leg, &f);
}

void bt_relay_lost(bt_leg_t *leg)
{
    const bt_failure_t f = bt_leg_failure(leg, BT_E_LOST, true);

    bt_timer_stop(&leg->first_event);
    fail(leg, &f);
}

/* True: prefill's reply is wanted, and not there yet. */
static bool hold(bt_leg_t *leg)
{
    leg->is_held = bt_prompt_merge_wanted(leg) && bt_prompt_merge_waits(leg);
    if (leg->is_held) {
        bt_timer_stop(&leg->first_event);
        bt_call_pause(&leg->call);
    }
    return leg->is_held;
}

/* Nothing has gone to the client so far: decode's answer may go on from here with prefill's part in it. False: it has failed. */
static bool merge(bt_leg_t *leg)
{
    const char *why = NULL;
    int rc = 0;

    if (bt_prompt_merge_wanted(leg))
        rc = leg->is_sse ? bt_prompt_merge_begin(leg, &why) : bt_prompt_merge_whole(leg, &why);
    if (rc < 0)
        fail_merge(leg, rc, why);
    return rc == 0;
}

static void commit_events(bt_leg_t *leg)
{
    if (!hold(leg) && merge(leg))
        commit(leg, false);
}

static void commit_json(bt_leg_t *leg, bool is_whole)
{
    if (!hold(leg) && merge(leg))
        commit(leg, is_whole);
}

static void inspect_events(bt_leg_t *leg, const char *p, size_t n)
{
    char joined[2048];
    bt_str_t event;
    size_t at = 0;
    int rc;

    if (leg->is_held) { /* its client has read, so that it was resumed */
        bt_call_pause(&leg->call);
        return;
    }
    while ((rc = bt_sse_next(&leg->sse, (bt_str_t){p, n}, &at, &event)) == 1) {
        bt_str_t data = bt_sse_data(event, joined, sizeof(joined));
        unsigned status;
        if (data.n == 0)
            continue; /* a comment: keep waiting */
        status = bt_inspect_event(data);
        if (status != 0) {
            fail_inside(leg, status, data);
            return;
        }
        remember_response(leg, data);
        commit_events(leg);
        return;
    }
    if (rc < 0 || leg->reply.text.n > BT_INSPECT_SSE_BYTES)
        commit_events(leg);
}

static void inspect_json(bt_leg_t *leg, bool complete)
{
    unsigned status;

    if (!complete && (leg->reply.text.n < BT_INSPECT_JSON_BYTES || bt_prompt_merge_wanted(leg)))
        return;
    status = bt_inspect_json(leg->reply.text);
    if (status != 0) {
        fail_inside(leg, status, leg->reply.text);
        return;
    }
    remember_response(leg, leg->reply.text);
    commit_json(leg, complete);
}

static void on_body(bt_call_t *call, bt_buf_t *buf, const char *p, size_t n)
{
    bt_leg_t *leg = call->user;

    note_bytes(leg, bt_clock_event_ms());
    if (leg->mode == BT_MODE_RELAY)
        relay(leg, buf, p, n);
    else if (keep(leg, buf, p, n) < 0)
        fail_short(leg);
    else if (leg->mode == BT_MODE_INSPECT_SSE)
        inspect_events(leg, p, n);
    else if (leg->mode == BT_MODE_INSPECT_JSON)
        inspect_json(leg, false);
}

/* Engines send none of their own accord: what stands before one does, or its address is wrong. Where it points to is our side's
 * business, and a client that followed it would go round the gateway. 304 is an answer. */
static bool is_redirect(unsigned status)
{
    return status >= 300 && status < 400 && status != 304;
}

static void redirected(bt_leg_t *leg)
{
    const bt_failure_t f = bt_leg_failure(leg, BT_E_REDIRECT, true);

    BT_REQUEST_LOG(warn, "dispatch", request_of(leg), leg->worker->name,
                   "worker %s answers %u to %.*s: give its own address, with the right path",
                   leg->worker->name, leg->call.status, BT_STR_ARG(request_of(leg)->path));
    failed(leg, &f);
}

/* TensorRT-LLM says 400 of all that goes wrong, of a transfer too. */
static bool is_failed_transfer(const bt_leg_t *leg)
{
    return leg->call.status == 400 && leg->role == BT_LEG_DECODE &&
           leg->worker->engine == BT_ENGINE_TRTLLM &&
           bt_str_find(leg->reply.text, BT_STR("kv cache transfer")) >= 0;
}

static void answered_with_status(bt_leg_t *leg)
{
    const unsigned status = is_failed_transfer(leg) ? 502 : leg->call.status;
    bt_failure_t f = bt_leg_failure(leg, BT_E_UPSTREAM_STATUS, status == 429 || status >= 500);

    f.status = status;
    f.body = bt_leg_masked(leg, leg->reply.text);
    if (f.status == 503 && bt_str_find(leg->reply.text, BT_STR("currently scaling")) >= 0)
        bt_health_note_scaling(leg->worker);
    else if (f.status >= 500 && bt_str_find(leg->reply.text, BT_STR("EngineDead")) >= 0)
        bt_health_note_engine_dead(leg->worker);
    if (leg->reply_overflow) { /* half of it would be no answer at all */
        f.body = BT_STR_NULL;
        f.reason = "the worker's error body is larger than 4 MiB";
    } else {
        bt_leg_keep_head(leg, &f);
    }
    failed(leg, &f);
}

static void ended_without_event(bt_leg_t *leg)
{
    bt_failure_t f = bt_leg_failure(leg, BT_E_RESET, true);

    f.reason = "worker ended its event stream before the first event";
    failed(leg, &f);
}

/* Its connection serves others now, or is gone: what is still needed of its answer's head is copied. */
static void end_held(bt_leg_t *leg)
{
    bt_leg_own_head(leg);
    leg->is_over = true;
}

static void end_well(bt_leg_t *leg)
{
    const bt_str_t rest = leg->prompt != NULL ? bt_prompt_merge_rest(leg) : BT_STR("");
    bt_request_t *r = request_of(leg);

    if (rest.n != 0)
        r->sink->data(leg->attempt->task, NULL, bt_arena_str(&r->arena, rest).p, rest.n);
    if (leg->state != BT_LEG_RUNNING) /* the sink could not take it: the request is over */
        return;
    leg->state = BT_LEG_DONE;
    bt_attempt_leg_done(leg);
    bt_request_release(r);
}

void bt_relay_release(bt_leg_t *leg)
{
    if (!leg->is_held || leg->state != BT_LEG_RUNNING)
        return;
    leg->is_held = false;
    if (leg->is_sse)
        commit_events(leg);
    else
        commit_json(leg, true);
    if (leg->state != BT_LEG_RUNNING)
        return;
    if (leg->is_over)
        end_well(leg);
    else if (!request_of(leg)->sink->blocked(leg->attempt->task))
        bt_attempt_resume(leg->attempt);
}

static void on_end(bt_call_t *call)
{
    bt_leg_t *leg = call->user;

    if (leg->mode == BT_MODE_INSPECT_JSON)
        inspect_json(leg, true); /* may fail, which counts the leg closed, commit, or hold it */
    if (leg->state != BT_LEG_RUNNING)
        return;
    if (leg->is_held) {
        end_held(leg);
    } else if (leg->mode == BT_MODE_INSPECT_SSE) {
        ended_without_event(leg);
    } else if (is_redirect(call->status)) {
        redirected(leg);
    } else if (call->status < 200 || call->status > 299) {
        answered_with_status(leg);
    } else {
        end_well(leg);
    }
}

static void on_fail(bt_call_t *call, int rc)
{
    bt_leg_t *leg = call->user;
    bt_failure_t f = bt_leg_call_failure(leg, rc);

    failed(leg, &f);
}

const bt_call_ops_t bt_relay_call_ops = {
    .on_head = on_head, .on_body = on_body, .on_end = on_end, .on_fail = on_fail};
