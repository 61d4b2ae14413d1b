/* background_call.c - calls that nobody waits for: abort_request to engines, and the release leg
 * that frees a finished prefill.
 *
 * A background call owns copies of all its bytes, so it may outlive its request. It is never closed
 * early: an engine that has read the words acts on them, one that lost them keeps KV until its
 * lease ends. Deadline 2 s; no breaker hears of it.
 *
 * A worker that hangs gets RUNNING_MAX of them at once, all loops together, and QUEUED_MAX wait for
 * a place; a loop may always run one, so that its queue moves by its own calls alone. What has
 * waited for 2 s, finds the queue full or its worker lost is dropped.
 */
#include "base/log.h"
#include "dispatch/answer/headers.h"
#include "dispatch/attempt/attempt.h"
#include "dispatch/plan/plan.h"

#include <stdio.h>

#define DEADLINE_MS 2000
#define RUNNING_MAX 32
#define QUEUED_MAX 1024

struct background_call {
    bt_call_t call;
    bt_dispatcher_t *d;
    bt_worker_t *worker;
    struct bt_slice slice;
    bt_buf_t *bytes;
    struct background_call *next; /* behind it in the queue */
    bool is_running;
    bt_timer_t deferred; /* ends its wait; then, memory goes after the callback that ended it */
};

size_t bt_background_call_bytes(void)
{
    return sizeof(struct background_call);
}

static void destroy(bt_timer_t *timer)
{
    struct background_call *e = bt_container_of(timer, struct background_call, deferred);
    bt_dispatcher_t *d = e->d;

    bt_buf_unref(e->bytes);
    bt_worker_unref(e->worker);
    bt_slab_put(&d->background_slab, e);
    d->background_count--; /* only now: a dispatcher without background calls is freed */
}

static struct bt_upstream_slot *slot_of(struct background_call *e)
{
    return &e->d->upstreams[e->worker->slot]; /* ours as long as the worker lives */
}

static void start_waiting(struct background_call *ended);

/* Gives its place back; its memory goes later. */
static void end(struct background_call *e)
{
    if (e->is_running) {
        slot_of(e)->background_running--;
        atomic_fetch_sub_explicit(&e->worker->background_running, 1, memory_order_relaxed);
    }
    e->is_running = false;
    bt_timer_init(e->d->loop, &e->deferred, destroy);
    bt_timer_start(&e->deferred, 0);
}

static void finish(struct background_call *e)
{
    end(e);
    start_waiting(e);
}

static void drop(struct background_call *e)
{
    bt_stats_inc(&e->d->stats, background_dropped);
    end(e);
}

static void on_end(bt_call_t *call)
{
    finish(call->user);
}

static void on_fail(bt_call_t *call, int rc)
{
    struct background_call *e = call->user;

    bt_log_debug("dispatch", "background call to %s failed: %s", e->worker->name, bt_err_text(rc));
    finish(e);
}

static void ignore_head(bt_call_t *call)
{
    (void) call;
}

static void ignore_body(bt_call_t *call, bt_buf_t *buf, const char *p, size_t n)
{
    (void) call;
    (void) buf;
    (void) p;
    (void) n;
}

static const bt_call_ops_t background_ops = {
    .on_head = ignore_head, .on_body = ignore_body, .on_end = on_end, .on_fail = on_fail};

/* ---- how many at once ---- */

static bool take_place(struct background_call *e)
{
    struct bt_upstream_slot *slot = slot_of(e);
    const unsigned before =
        atomic_fetch_add_explicit(&e->worker->background_running, 1, memory_order_relaxed);

    e->is_running = before < RUNNING_MAX || slot->background_running == 0;
    if (e->is_running)
        slot->background_running++;
    else
        atomic_fetch_sub_explicit(&e->worker->background_running, 1, memory_order_relaxed);
    return e->is_running;
}

static void start(struct background_call *e)
{
    static const bt_call_timeouts_t timeouts = {.connect_ms = DEADLINE_MS, .total_ms = DEADLINE_MS};
    bt_upstream_t *up = bt_dispatcher_upstream(e->d, e->worker);

    if (up == NULL || bt_call_start(&e->call, up, &background_ops, e, &e->slice, 1, &timeouts) < 0)
        end(e);
}

static struct background_call *take_first(struct bt_upstream_slot *slot)
{
    struct background_call *e = slot->background_first;

    slot->background_first = e->next;
    if (e->next == NULL)
        slot->background_last = NULL;
    e->next = NULL;
    bt_timer_stop(&e->deferred);
    atomic_fetch_sub_explicit(&e->worker->background_queued, 1, memory_order_relaxed);
    return e;
}

static void start_waiting(struct background_call *ended)
{
    struct bt_upstream_slot *slot = slot_of(ended);

    while (slot->background_first != NULL) {
        struct background_call *e = slot->background_first;
        if (bt_worker_is_lost(e->worker)) {
            drop(take_first(slot));
            continue;
        }
        if (!take_place(e))
            return;
        start(take_first(slot));
    }
}

/* They wait equally long: those before it have waited enough, too. */
static void on_waited(bt_timer_t *timer)
{
    struct background_call *e = bt_container_of(timer, struct background_call, deferred);
    struct bt_upstream_slot *slot = slot_of(e);
    struct background_call *first;

    do {
        first = take_first(slot);
        drop(first);
    } while (first != e);
}

static void wait_for_place(struct background_call *e)
{
    struct bt_upstream_slot *slot = slot_of(e);
    _Atomic unsigned *queued = &e->worker->background_queued;

    if (atomic_fetch_add_explicit(queued, 1, memory_order_relaxed) >= QUEUED_MAX) {
        atomic_fetch_sub_explicit(queued, 1, memory_order_relaxed);
        drop(e);
        return;
    }
    if (slot->background_last != NULL)
        slot->background_last->next = e;
    else
        slot->background_first = e;
    slot->background_last = e;
    bt_timer_init(e->d->loop, &e->deferred, on_waited);
    bt_timer_start(&e->deferred, DEADLINE_MS);
}

static void send_background(bt_dispatcher_t *d, bt_worker_t *w, bt_str_t head, bt_str_t body)
{
    bt_upstream_t *up = bt_dispatcher_upstream(d, w);
    struct background_call *e = up != NULL ? bt_slab_get(&d->background_slab) : NULL;

    if (e == NULL)
        return;
    e->d = d;
    e->next = NULL;
    e->is_running = false;
    e->worker = bt_worker_ref(w);
    e->bytes = bt_buf_new(head.n + body.n);
    d->background_count++;
    if (e->bytes == NULL) {
        end(e);
        return;
    }
    memcpy(e->bytes->data, head.p, head.n);
    memcpy(e->bytes->data + head.n, body.p, body.n);
    e->bytes->len = head.n + body.n;
    e->slice = (struct bt_slice){.p = e->bytes->data, .n = e->bytes->len, .owner = e->bytes};
    if (slot_of(e)->background_first == NULL && take_place(e))
        start(e);
    else
        wait_for_place(e);
}

static void post(bt_request_t *r, bt_worker_t *w, bt_str_t path, const char *request_id,
                 bt_str_t body)
{
    send_background(r->d, w, bt_headers_own(r, w, path, request_id, body.n), body);
}

/* SGLang sees a closed connection only by a slow poll and does not tell the other side of a failed prefill. */
void bt_background_call_abort(bt_leg_t *leg)
{
    bt_attempt_t *a = leg->attempt;
    bt_request_t *r = a->task->request;
    const bool pair_abort = a->dialect != NULL && a->dialect->has_abort_route;
    const bool single_abort = a->kind == BT_PLAN_SINGLE && leg->worker->engine == BT_ENGINE_SGLANG;

    if ((!pair_abort && !single_abort) || leg->rid == NULL || !leg->call.any_byte_sent ||
        bt_worker_is_lost(leg->worker))
        return;
    bt_stats_inc(&r->d->stats, aborts);
    post(r, leg->worker, BT_STR("/abort_request"), a->id,
         bt_arena_printf(&r->arena, "{\"rid\":\"%s\"}", leg->rid));
}

/* The smallest body of this route that carries the parameters and a model no engine serves: a refused decode leg makes the
 * engine tell prefill to free (measured: within 0.5 s). */
static bt_str_t release_body(bt_request_t *r, bt_str_t params)
{
    const char *prompt;

    switch (r->route) {
    case BT_ROUTE_CHAT:
    case BT_ROUTE_MESSAGES:
        prompt = "\"messages\":[{\"role\":\"user\",\"content\":\"release\"}]";
        break;
    case BT_ROUTE_RESPONSES:
        prompt = "\"input\":\"release\"";
        break;
    case BT_ROUTE_TOKENS:
        prompt = "\"token_ids\":[1],\"sampling_params\":{\"max_tokens\":1}";
        break;
    default:
        prompt = "\"prompt\":\"release\"";
        break;
    }
    return bt_arena_printf(&r->arena,
                           "{\"model\":\"baton-release-no-such-model\",%s,\"max_tokens\":1,\"kv_"
                           "transfer_params\":%.*s}",
                           prompt, BT_STR_ARG(params));
}

static bool is_true_member(bt_str_t object, const char *name)
{
    bt_json_item_t item;

    return bt_json_get(object, bt_str(name), &item) == 0 && item.type == BT_JSON_TRUE;
}

static bool is_complete(bt_str_t params)
{
    static const char *const needed[] = {"remote_block_ids", "remote_engine_id",
                                         "remote_request_id", "remote_host", "remote_port"};
    bt_json_item_t item;

    for (unsigned i = 0; i < sizeof(needed) / sizeof(needed[0]); i++)
        if (bt_json_get(params, bt_str(needed[i]), &item) < 0 || item.type == BT_JSON_NONE ||
            item.type == BT_JSON_NULL)
            return false; /* partial parameters kill real decode engines */
    return is_true_member(params, "do_remote_prefill");
}

/* As decode legs get it (lua/baton/handoff.lua): a name that means prefill's own machine becomes the host we dialled. */
static bt_str_t reachable(bt_request_t *r, bt_str_t params, const bt_worker_t *prefill)
{
    static const bt_str_t local[] = {BT_STR("\"localhost\""), BT_STR("\"0.0.0.0\""),
                                     BT_STR("\"::\""), BT_STR("\"[::]\"")};
    bt_json_item_t host;

    if (bt_json_get(params, BT_STR("remote_host"), &host) < 0)
        return params;
    for (unsigned i = 0; i < sizeof(local) / sizeof(local[0]); i++)
        if (bt_str_eq(host.value, local[i]))
            return bt_arena_printf(
                &r->arena, "%.*s\"%s\"%s", (int) host.value_off, params.p, prefill->host,
                bt_arena_str(&r->arena, (bt_str_t){host.value.p + host.value.n,
                                                   params.n - host.value_off - host.value.n})
                    .p);
    return params;
}

/* Only when decode can't have read the whole request: otherwise it has told prefill itself, by reading or by refusing. */
void bt_background_call_release(bt_attempt_t *a)
{
    bt_leg_t *p = &a->legs[0], *d = &a->legs[1];
    bt_request_t *r = a->task->request;
    bt_worker_t *teller = d->worker; /* NULL: it was left open, and nobody was chosen */
    bt_json_item_t params;

    if (a->dialect == NULL || !a->dialect->has_release || a->recompute || p->state != BT_LEG_DONE ||
        d->call.sent_us != 0 || bt_clock_event_ms() >= a->lease_until_ms ||
        bt_worker_is_lost(p->worker))
        return;
    if (bt_json_get(p->reply.text, BT_STR("kv_transfer_params"), &params) < 0 ||
        params.type != BT_JSON_OBJECT || !is_complete(params.value))
        return;
    if (teller == NULL ||
        !bt_worker_usable(
            teller,
            bt_clock_event_ms())) /* a dead decode tells nobody; any that could read the KV can refuse it */
        teller = bt_plan_other_decode(a->task, p->worker);
    if (teller == NULL)
        return;
    bt_stats_inc(&r->d->stats, releases);
    post(r, teller, r->path, a->id, release_body(r, reachable(r, params.value, p->worker)));
}
