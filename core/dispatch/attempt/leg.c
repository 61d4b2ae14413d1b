/* leg.c - one upstream exchange of an attempt: building it, starting it, settling what it held.
 *
 * A leg settles exactly once: its ledger entries are released and its breaker hears what the end proves about the worker. Every
 * way out (done, failed, cancelled, never started) passes through bt_leg_settle, so nothing can stay held.
 */
#include "dispatch/attempt/leg.h"
#include "api/mask.h"
#include "api/redact.h"
#include "base/flight.h"
#include "base/log.h"
#include "cluster/checks/health.h"
#include "cluster/engine_ids.h"
#include "dispatch/answer/headers.h"
#include "dispatch/answer/token_replay.h"
#include "dispatch/answer/usage.h"
#include "dispatch/attempt/hints.h"
#include "dispatch/queue/queue.h"
#include "dispatch/state/encode_params.h"

#include <stdio.h>

void bt_leg_init(bt_leg_t *leg, bt_attempt_t *a, enum bt_leg_role role, bt_worker_t *worker)
{
    memset(leg, 0, sizeof(*leg));
    leg->attempt = a;
    leg->role = role;
    leg->worker = worker != NULL ? bt_worker_ref(worker) : NULL;
    leg->rank = -1;
    bt_timer_init(a->task->request->d->loop, &leg->first_event, bt_relay_on_first_event_timeout);
}

bool bt_leg_take_place(bt_leg_t *leg)
{
    const bt_request_t *r = leg->attempt->task->request;
    const unsigned limit = r->warmup == NULL ? r->pool->spec.engine_request_limit : 0;

    leg->has_place = limit != 0 && bt_worker_take_place(leg->worker, limit);
    return leg->has_place || limit == 0;
}

bool bt_leg_has_addresses(const bt_leg_t *leg)
{
    return (leg->role == BT_LEG_PREFILL || leg->role == BT_LEG_DECODE) &&
           leg->attempt->pair.prefill != NULL && leg->attempt->pair.prefill->kv_address != NULL &&
           leg->worker->kv_address != NULL;
}

bt_str_t bt_leg_masked(const bt_leg_t *leg, bt_str_t words)
{
    bt_mask_t mask = {.count = 0};

    if (bt_leg_has_addresses(leg))
        bt_mask_feed(&mask, (char *) (uintptr_t) words.p, words.n);
    return words;
}

bt_failure_t bt_leg_failure(const bt_leg_t *leg, int rc, bool retryable)
{
    return (bt_failure_t){
        .rc = rc, .leg = leg->role, .worker = leg->worker->name, .retryable = retryable};
}

/* Other workers cannot cure a want of descriptors. */
bt_failure_t bt_leg_call_failure(const bt_leg_t *leg, int rc)
{
    bt_failure_t f = bt_leg_failure(leg, rc, rc != BT_E_DESCRIPTORS);

    f.stale = rc == BT_E_RESET && leg->call.reused && leg->call.first_byte_us == 0;
    if (rc == BT_E_TLS)
        bt_log_warn("dispatch", "worker %s at %s: TLS: %s", leg->worker->name,
                    leg->worker->authority,
                    leg->call.why != NULL ? leg->call.why : "the handshake failed");
    if (rc == BT_E_CONNECT || rc == BT_E_CONNECT_TIMEOUT || rc == BT_E_TLS)
        bt_health_note_connect_failure(leg->worker, rc != BT_E_CONNECT_TIMEOUT);
    return f;
}

static bt_head_t kept_head(const bt_leg_t *leg)
{
    bt_arena_t *arena = &leg->attempt->task->request->arena;
    bt_head_t head = *leg->call.head;
    bt_header_t *copies = bt_arena_alloc(arena, (head.header_count + 1) * sizeof(*copies));

    bt_headers_keep(arena, copies, head.headers, head.header_count);
    head.headers = copies;
    return head;
}

void bt_leg_keep_head(const bt_leg_t *leg, bt_failure_t *f)
{
    f->head = kept_head(leg);
}

bt_head_t *bt_leg_own_head(bt_leg_t *leg)
{
    bt_head_t *head = bt_arena_alloc(&leg->attempt->task->request->arena, sizeof(*head));

    *head = kept_head(leg);
    leg->call.head = head;
    return head;
}

static void peer_view(bt_dialect_peer_t *peer, bt_worker_t *w, int rank, struct bt_learned *learned)
{
    *peer = (bt_dialect_peer_t){.dp_rank = -1};
    if (w == NULL)
        return;
    peer->name = bt_str(w->name);
    peer->host = bt_str(w->host);
    peer->port = w->port;
    peer->version = bt_str(w->spec.version != NULL ? w->spec.version : "");
    peer->bootstrap_port = w->spec.bootstrap_port;
    peer->dp_size = w->dp_size;
    peer->tp_size = w->tp_size;
    peer->pp_size = w->pp_size;
    peer->dp_rank = rank >= 0 ? rank : w->spec.dp_rank;
    peer->engine_id = bt_str(w->spec.engine_id != NULL ? w->spec.engine_id : "");
    peer->kv_host = bt_str(w->spec.kv_host != NULL ? w->spec.kv_host : w->host);
    peer->kv_address = bt_str(w->kv_address != NULL ? w->kv_address : "");
    if (learned != NULL && w->asks_bootstrap) {
        peer->learned = bt_engine_ids_get(w, peer->dp_rank >= 0 ? (unsigned) peer->dp_rank : 0,
                                          learned->engine_id, sizeof(learned->engine_id));
        peer->engine_id = bt_str(peer->learned ? learned->engine_id : "");
        return;
    }
    if (learned == NULL || w->spec.engine_id != NULL ||
        !atomic_load_explicit(&w->has_learned, memory_order_acquire))
        return;
    pthread_mutex_lock(&w->lock);
    *learned = w->learned;
    pthread_mutex_unlock(&w->lock);
    peer->learned = true;
    peer->engine_id = bt_str(learned->engine_id);
    peer->kv_host = bt_str(learned->host);
    peer->bootstrap_port = learned->port;
    peer->tp_size = (unsigned) learned->tp_size;
    peer->pp_size = (unsigned) learned->pp_size;
}

/* Of a reply that is an object. */
static bt_str_t reply_member(const bt_leg_t *leg, bt_str_t name)
{
    const bt_json_members_t *members = leg->reply_members;

    if (members == NULL)
        return bt_json_find(leg->reply.text, name);
    for (unsigned i = 0; i < members->count; i++)
        if (bt_json_key_eq(&members->items[i], name))
            return members->items[i].value;
    return BT_STR_NULL;
}

uint64_t bt_leg_reply_tokens(bt_leg_t *leg)
{
    if (leg->reply_tokens_known)
        return leg->reply_tokens;
    leg->reply_tokens_known = true;
    if (leg->is_reply_object)
        leg->reply_tokens = bt_usage_prompt(reply_member(leg, BT_STR("usage")));
    return leg->reply_tokens;
}

/* leg.has(key) in Lua: answered from the index, not by another walk over the body. */
static enum bt_json_type member_type(const void *user, bt_str_t key)
{
    const bt_json_item_t *item = bt_body_find(user, key);

    return item != NULL ? item->type : BT_JSON_NONE;
}

/* What a gateway-managed room is called at this leg's engine. */
static const uint64_t *room_of(const bt_leg_t *leg)
{
    const bt_attempt_kv_t *kv = &leg->attempt->kv;

    return leg->role == BT_LEG_PREFILL ? &kv->source_room : &kv->room;
}

/* learned: where what is borrowed of prefill lies as long as the view. */
static bt_leg_view_t view_of(bt_leg_t *leg, bt_str_t reply, struct bt_learned *learned)
{
    static const enum bt_dialect_leg legs[] = {[BT_LEG_PREFILL] = BT_DIALECT_PREFILL,
                                               [BT_LEG_DECODE] = BT_DIALECT_DECODE,
                                               [BT_LEG_SINGLE] = BT_DIALECT_SINGLE};
    bt_attempt_t *a = leg->attempt;
    bt_request_t *r = a->task->request;
    const bool is_handoff = a->kind == BT_PLAN_HANDOFF; /* and reply is prefill's */
    bt_leg_view_t view = {
        .which = legs[leg->role],
        .path = r->path,
        .request_id = bt_str(a->id),
        .rid = bt_str(a->rid),
        .rooms = a->kv.room != 0 ? room_of(leg) : a->rooms,
        .room_count = a->kv.room != 0 ? 1 : a->room_count,
        .prompt_count = a->task->prompt_count,
        .stream = r->intent.stream,
        .body = r->intent.body.text,
        .member = member_type,
        .member_user = &r->intent.body,
        .reply = reply,
        .is_reply_object = is_handoff && reply.n != 0 && a->legs[0].is_reply_object,
        .reply_members = is_handoff && reply.n != 0 ? a->legs[0].reply_members : NULL,
        .reply_prompt_tokens = is_handoff && reply.n != 0 ? bt_leg_reply_tokens(&a->legs[0]) : 0,
    };

    if (a->kind == BT_PLAN_TRIGGER && leg->role == BT_LEG_DECODE &&
        r->d->shared->metaserver_url != NULL)
        view.metaserver =
            bt_arena_printf(&r->send_arena, "%s?attempt=%llu", r->d->shared->metaserver_url,
                            (unsigned long long) a->rooms[0]);
    peer_view(&view.prefill, a->pair.prefill, a->pair.prefill_rank, learned);
    peer_view(&view.decode_peer, a->pair.decode, a->pair.decode_rank, NULL);
    return view;
}

/* Asks the dialect. 0, or < 0 with f filled. */
static int dialect_edits(bt_leg_t *leg, bt_str_t reply, bt_edits_t *edits, bt_failure_t *f)
{
    bt_attempt_t *a = leg->attempt;
    bt_request_t *r = a->task->request;
    struct bt_learned learned = {0};
    bt_str_t reason = BT_STR_NULL;
    const bt_leg_view_t view = view_of(leg, reply, &learned);

    const enum bt_dialect_verdict verdict = bt_dialect_edit(a->dialect, &view, edits, &reason);
    switch (verdict) {
    case BT_DIALECT_OK:
        if (a->dialect->needs_rid)
            leg->rid = a->rid;
        return 0;
    case BT_DIALECT_RECOMPUTE:
    case BT_DIALECT_ENDS_EARLY:
        a->recompute = true;
        bt_stats_inc(&r->d->stats, recomputes);
        if (verdict == BT_DIALECT_ENDS_EARLY || !r->pool->spec.refuse_recompute)
            return 0;
        reason = BT_STR("prefill's reply carried no hand-off parameters");
        break;
    case BT_DIALECT_REFUSED:
    case BT_DIALECT_BROKEN:
        break;
    }
    if (reply.n == 0 || verdict == BT_DIALECT_BROKEN)
        *f = bt_leg_failure(leg, BT_E_DIALECT, true);
    else if (a->kind == BT_PLAN_TRIGGER)
        *f = bt_leg_failure(&a->legs[1], BT_E_CALLBACK, true);
    else
        *f = bt_leg_failure(&a->legs[0], BT_E_HANDOFF, true);
    f->reason = reason.p;
    return f->rc;
}

bool bt_leg_reply_is_good(bt_leg_t *leg, bt_failure_t *f)
{
    bt_attempt_t *a = leg->attempt;
    struct bt_learned learned = {0};
    bt_leg_view_t view = view_of(leg, leg->reply.text, &learned);
    bt_str_t reason = BT_STR_NULL;
    bt_edits_t edits;

    view.which = BT_DIALECT_CHECK;
    bt_edits_init(&edits, &a->task->request->arena);
    if (bt_dialect_edit(a->dialect, &view, &edits, &reason) == BT_DIALECT_OK)
        return true;
    *f = bt_leg_failure(leg, BT_E_DIALECT, true);
    f->reason = reason.p;
    return false;
}

/* A user's dialect whose workers serve alone takes out what a client may not say to them. */
static int own_single_edits(bt_leg_t *leg, bt_edits_t *edits, bt_failure_t *f)
{
    bt_request_t *r = leg->attempt->task->request;
    const bt_dialect_t *dialect = leg->worker->dialect != NULL
                                      ? bt_dialects_find(r->d->dialects, leg->worker->dialect)
                                      : NULL;
    bt_str_t reason = BT_STR_NULL;

    if (dialect == NULL || !dialect->has_single || !r->intent.has_body)
        return 0;
    const bt_leg_view_t view = view_of(leg, BT_STR_NULL, NULL);
    if (bt_dialect_edit(dialect, &view, edits, &reason) == BT_DIALECT_OK)
        return 0;
    *f = bt_leg_failure(leg, BT_E_DIALECT, true);
    f->reason = reason.p;
    return f->rc;
}

static int single_edits(bt_leg_t *leg, bt_edits_t *edits)
{
    bt_attempt_t *a = leg->attempt;
    bt_request_t *r = a->task->request;
    const int pinned = leg->worker->spec.dp_rank, rank = pinned >= 0 ? pinned : a->pair.decode_rank;
    char text[48];
    int n;

    if (rank >= 0 && (pinned >= 0 || leg->worker->dp_size > 1)) {
        n = snprintf(text, sizeof(text), "%d", rank);
        if (bt_edits_header(edits, BT_STR("X-Data-Parallel-Rank"), (bt_str_t){text, (size_t) n}) <
            0)
            return BT_E_LIMIT;
    }
    /* SGLang notices a closed connection late and aborts by rid only, so it gets one of ours. */
    if (leg->worker->engine == BT_ENGINE_SGLANG && bt_route_info(r->route)->generates &&
        a->task->prompt_count == 0 && r->intent.has_body) {
        n = snprintf(text, sizeof(text), "\"%s\"", a->rid);
        leg->rid = a->rid;
        return bt_edits_set(edits, BT_STR(""), BT_STR("rid"), (bt_str_t){text, (size_t) n}, false);
    }
    return 0;
}

/* Head first, which tells of the body's length, then the body's slices: one array for the call. */
static int build_request(bt_leg_t *leg, bt_str_t reply, bt_failure_t *f)
{
    bt_attempt_t *a = leg->attempt;
    bt_request_t *r = a->task->request;
    bt_slices_t *all = &leg->request;
    bt_edits_t edits;
    unsigned head;
    int rc;

    bt_edits_init(&edits, &r->send_arena);
    rc = bt_edits_append(&edits, &r->intent.strip);
    if (rc == 0)
        rc = bt_edits_append(&edits, &a->task->child);
    if (rc == 0 && leg->role == BT_LEG_DECODE)
        rc = bt_prompt_logprobs_strip(r->intent.prompt_logprobs, r->route, &edits);
    if (rc == 0)
        rc = bt_token_replay_edit(leg, &edits);
    if (rc == 0)
        rc = a->kind == BT_PLAN_SINGLE ? single_edits(leg, &edits)
                                       : dialect_edits(leg, reply, &edits, f);
    if (rc == 0 && a->kind == BT_PLAN_SINGLE)
        rc = own_single_edits(leg, &edits, f);
    if (rc == 0)
        rc = bt_encode_edit(leg, &edits);
    if (rc == 0)
        rc = bt_hints_edit(leg, &edits);
    if (rc == BT_E_LIMIT)
        f->reason = "the request's body needs more edits than one leg may have";
    if (rc < 0)
        return rc;
    *all = (bt_slices_t){0};
    head = bt_slices_reserve(all, &r->send_arena);
    if (r->intent.has_body)
        rc = bt_body_apply(&r->intent.body, &edits, &r->send_arena, all);
    else
        bt_slices_put(all, &r->send_arena, r->intent.body.text);
    if (rc == BT_E_LIMIT) { /* the client's size, nobody else's fault */
        f->reason = "an edit goes into an object of the request's body that is too large for it";
        return BT_E_HTTP_BODY_SIZE;
    }
    if (rc < 0)
        return rc;
    bt_slices_fill(all, head,
                   bt_headers_request(leg, &edits, all->bytes, r->intent.body.text.n != 0));
    return 0;
}

void bt_leg_hold(bt_leg_t *leg)
{
    const bool is_decode = leg->role == BT_LEG_DECODE;
    bt_ledger_entry_t *load = is_decode ? &leg->decode_load : &leg->prefill_load;

    if (load->worker == NULL)
        bt_ledger_hold(load, leg->worker, is_decode ? BT_PHASE_DECODE : BT_PHASE_PREFILL,
                       (int64_t) leg->attempt->task->prompt_tokens);
}

static bt_call_timeouts_t timeouts_of(const bt_leg_t *leg)
{
    const bt_request_t *r = leg->attempt->task->request;
    const bt_pool_deadlines_t *dl = &r->pool->spec.deadlines;
    bt_call_timeouts_t t = {.connect_ms = dl->connect_ms, .stall_ms = dl->stall_ms};

    if (leg->role == BT_LEG_PREFILL)
        t.first_byte_ms = dl->prefill_reply_ms;
    else if (r->intent.stream)
        t.first_byte_ms = dl->first_event_ms;
    else
        t.first_byte_ms = dl->answer_ms;
    return t;
}

/* What names a room, a rid or blocks that prefill holds must not be said twice: the engine may have heard it the first time,
 * and then the room is used up, the rid a duplicate, the blocks somebody else's. A new attempt has new ones. */
static bool must_go_once(const bt_leg_t *leg)
{
    const bt_attempt_t *a = leg->attempt;

    return a->kind == BT_PLAN_BOOTSTRAP || a->kind == BT_PLAN_TRIGGER ||
           leg->role == BT_LEG_DECODE ||
           (leg->role == BT_LEG_SINGLE && leg->worker->engine == BT_ENGINE_SGLANG &&
            bt_route_info(a->task->request->route)->generates);
}

int bt_leg_start(bt_leg_t *leg, bt_str_t handoff_reply, bt_failure_t *f)
{
    bt_attempt_t *a = leg->attempt;
    bt_request_t *r = a->task->request;
    const bt_call_timeouts_t timeouts = timeouts_of(leg);
    bt_upstream_t *up;
    int rc;

    *f = bt_leg_failure(leg, 0, false);
    f->rc = rc = build_request(leg, handoff_reply, f);
    if (rc < 0)
        return rc;
    f->retryable = true;
    if (bt_worker_is_lost(leg->worker)) /* since it was chosen */
        return f->rc = BT_E_LOST;
    up = bt_dispatcher_upstream(r->d, leg->worker);
    if (up == NULL) {
        bt_health_note_connect_failure(leg->worker, false);
        return f->rc = BT_E_RESOLVE;
    }
    f->rc = rc = bt_call_start(&leg->call, up, &bt_relay_call_ops, leg, leg->request.items,
                               leg->request.count, &timeouts);
    if (rc < 0)
        return rc;
    leg->call.once = must_go_once(leg);
    leg->state = BT_LEG_RUNNING;
    r->holds++;
    bt_leg_hold(leg);
    if (leg->role != BT_LEG_PREFILL && r->intent.stream)
        bt_timer_start(&leg->first_event, r->pool->spec.deadlines.first_event_ms);
    return 0;
}

void bt_leg_unload(bt_leg_t *leg)
{
    bt_ledger_release(&leg->prefill_load);
    bt_ledger_release(&leg->decode_load);
    if (leg->has_place) {
        leg->has_place = false;
        bt_worker_give_place_back(leg->worker);
        bt_queue_note_room(leg->attempt->task->request, leg->worker);
    }
    if (leg->rank >= 0)
        bt_worker_give_rank_back(leg->worker, leg->rank);
    leg->rank = -1;
}

static void note_guilt(bt_leg_t *leg)
{
    bt_request_t *r = leg->attempt->task->request;
    const char *name = leg->worker->name;

    switch (bt_breaker_failure(&leg->worker->breaker, leg->probe, bt_clock_event_ms())) {
    case BT_BREAKER_OPENED:
        BT_REQUEST_LOG(warn, "dispatch", r, name,
                       "breaker of worker %s opened: too many guilty failures", name);
        bt_flight_note(BT_FLIGHT_BREAKER, 0, "%s opened", name);
        break;
    case BT_BREAKER_SPARED:
        BT_REQUEST_LOG(warn, "dispatch", r, name,
                       "breaker of worker %s stays closed in spite of its failures: too many of "
                       "the pool's %s workers are out (--breaker-max-open-percent)",
                       name, bt_role_name(leg->worker->spec.role));
        break;
    case BT_BREAKER_COUNTED:
        break;
    }
}

void bt_leg_settle(bt_leg_t *leg, enum bt_blame blame)
{
    unsigned row = (unsigned) leg->role;

    bt_leg_unload(leg);
    bt_timer_stop(&leg->first_event);
    if (leg->settled || leg->worker == NULL)
        return;
    leg->settled = true;
    if (leg->role == BT_LEG_DECODE)
        atomic_fetch_add_explicit(&leg->worker->output_tokens_total, bt_usage_tokens(leg),
                                  memory_order_relaxed);
    if (blame == BT_BLAME_GUILTY && leg->attempt->task->request->warmup != NULL)
        blame = BT_BLAME_INNOCENT;
    if (leg->state != BT_LEG_IDLE || blame == BT_BLAME_GUILTY)
        atomic_fetch_add_explicit(&leg->worker->legs_total[row][blame], 1, memory_order_relaxed);
    if (!leg->entered)
        return;
    if (blame == BT_BLAME_OK)
        bt_breaker_success(&leg->worker->breaker, leg->probe);
    else if (blame != BT_BLAME_GUILTY || bt_worker_is_lost(leg->worker)) /* a loss counts once */
        bt_breaker_innocent(&leg->worker->breaker, leg->probe);
    else
        note_guilt(leg);
}

void bt_leg_cancel(bt_leg_t *leg)
{
    if (leg->worker == NULL)
        return;
    if (leg->state == BT_LEG_RUNNING) {
        bt_call_cancel(&leg->call);
        leg->state = BT_LEG_CANCELLED;
        bt_leg_settle(leg, BT_BLAME_CANCELLED);
        bt_request_release(leg->attempt->task->request);
    } else {
        bt_leg_settle(leg, BT_BLAME_INNOCENT);
    }
}

void bt_leg_drop(bt_leg_t *leg)
{
    if (leg->worker == NULL)
        return;
    bt_leg_settle(leg, BT_BLAME_INNOCENT);
    bt_sse_fini(&leg->sse);
    bt_kept_drop(&leg->reply);
    bt_worker_unref(leg->worker);
    leg->worker = NULL;
}
