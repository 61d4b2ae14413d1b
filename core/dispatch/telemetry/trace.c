/* trace.c - the spans of a request, made from what is kept for its decision record.
 *
 *   request (server)
 *     admission, route, queue, policy     the stations before the first attempt; policy again after a failure
 *     encode (client)                     a part of its media, at an encode worker
 *     attempt | failover | replay
 *       prefill (client)                  one more, with an error, for each prefill that was replaced
 *       transfer                          from prefill's end to decode's first byte
 *       decode | single (client)          likewise; the first token is an event of it
 *
 * Times are of one clock, moved to unix time by one offset.
 */
#include "dispatch/telemetry/trace.h"

#include "base/clock.h"
#include "dispatch/answer/usage.h"
#include "dispatch/queue/queue.h"
#include "dispatch/state/encode_params.h"
#include "dispatch/state/traceparent.h"
#include "trace/span.h"

#define ATTEMPTS_MAX 16U /* of a task */
#define SPANS_MAX 256U
#define NAME_BYTES 160

_Static_assert(BT_TRACE_BUCKETS == BT_HISTOGRAM_BUCKETS + 1, "a histogram's last bucket is +Inf");

/* ---- whether ---- */

/* A client that leaves is no failure. */
static bool has_failed(const bt_request_t *r)
{
    return r->status >= 500 || (r->status != 0 && r->status < 400 && r->fail_name != NULL);
}

static enum bt_trace_why why_kept(const bt_request_t *r, uint64_t now_us)
{
    const uint64_t slow_us = r->d->shared->trace_slow_us;
    const uint64_t first_us = r->first_byte_us != 0 ? r->first_byte_us : now_us;

    if (has_failed(r))
        return BT_TRACE_FAILED;
    if (r->attempts > (r->task_count > 0 ? r->task_count : 1))
        return BT_TRACE_RETRIED;
    if (slow_us != 0 && first_us - r->start_us >= slow_us)
        return BT_TRACE_SLOW;
    return r->trace->is_sampled ? BT_TRACE_SAMPLED : BT_TRACE_NOT_KEPT;
}

struct writer {
    const bt_request_t *r;
    const bt_request_trace_t *t;
    bt_record_draft_t *out;
    uint64_t now_us, to_unix_us;
    unsigned spans, left_out;
};

/* False: there are enough. No child begins before the request or ends after it. */
static bool open_span(struct writer *w, bt_str_t name, enum bt_span_kind kind, uint64_t id,
                      uint64_t parent, uint64_t start_us, uint64_t end_us)
{
    const uint64_t from_us = w->r->start_us;

    if (w->spans ==
        SPANS_MAX - (kind != BT_SPAN_SERVER ? 1 : 0)) { /* one is kept for the request's own */
        w->left_out++;
        return false;
    }
    w->spans++;
    start_us = start_us > from_us ? start_us : from_us;
    end_us = end_us != 0 && end_us < w->now_us ? end_us : w->now_us;
    bt_span_open(w->out, &(bt_span_t){.trace = w->t->id,
                                      .id = id,
                                      .parent = parent,
                                      .kind = kind,
                                      .name = name,
                                      .start_us = start_us + w->to_unix_us,
                                      .end_us = end_us + w->to_unix_us});
    return true;
}

static void put_z(struct writer *w, enum bt_trace_attribute attribute, const char *value)
{
    bt_span_text(w->out, attribute, bt_str(value));
}

static void put_worker(struct writer *w, const bt_worker_t *worker)
{
    if (worker == NULL)
        return;
    put_z(w, BT_TRACE_WORKER, worker->name);
    if (worker->engine != BT_ENGINE_UNKNOWN)
        put_z(w, BT_TRACE_PROVIDER, bt_engine_name(worker->engine));
    put_z(w, BT_TRACE_SERVER_ADDRESS, worker->host);
    bt_span_number(w->out, BT_TRACE_SERVER_PORT, worker->port);
}

/* ---- stations ---- */

static void write_marks(struct writer *w)
{
    static const bt_str_t names[] = {[BT_MARK_ADMISSION] = BT_STR("admission"),
                                     [BT_MARK_ROUTE] = BT_STR("route"),
                                     [BT_MARK_QUEUE] = BT_STR("queue"),
                                     [BT_MARK_POLICY] = BT_STR("policy")};
    const bt_request_trace_t *t = w->t;

    w->left_out += t->marks_lost;
    for (unsigned i = 0; i < t->mark_count; i++) {
        const enum bt_trace_mark what = t->marks[i].what;
        if (!open_span(w, names[what], BT_SPAN_INTERNAL, bt_span_id(t, i + 1), t->root,
                       t->marks[i].start_us, t->marks[i].start_us + t->marks[i].us))
            continue;
        if (what == BT_MARK_POLICY)
            put_z(w, BT_TRACE_POLICY, w->r->policy_name);
        if (what == BT_MARK_QUEUE && w->r->pool != NULL)
            put_z(w, BT_TRACE_POOL, w->r->pool->spec.name);
        bt_span_close(w->out, NULL);
    }
}

/* ---- legs ---- */

/* Those that others have taken the place of; newest first. */
static void write_replaced(struct writer *w, const bt_attempt_t *a, uint64_t parent)
{
    unsigned left[4];

    for (unsigned role = 0; role < 4; role++)
        left[role] = bt_span_replaced(a, (enum bt_leg_role) role);
    for (const struct bt_replaced *s = a->replaced; s != NULL; s = s->before) {
        const uint64_t id = bt_span_leg_id(w->t, a, s->role, --left[s->role]);
        if (!open_span(w, bt_str(bt_leg_role_name(s->role)), BT_SPAN_CLIENT, id, parent,
                       s->start_us, s->end_us))
            continue;
        put_z(w, BT_TRACE_WORKER, s->worker);
        put_z(w, BT_TRACE_ERROR, bt_err_name(s->rc));
        bt_span_close(w->out, bt_err_name(s->rc));
    }
}

static const char *replaced_by(const bt_attempt_t *a, enum bt_leg_role role)
{
    for (const struct bt_replaced *s = a->replaced; s != NULL; s = s->before)
        if (s->role == role)
            return s->worker;
    return NULL;
}

static uint64_t leg_end_us(const bt_attempt_t *a, const bt_leg_t *leg)
{
    return leg->role == BT_LEG_PREFILL && a->prefill_done_us != 0 ? a->prefill_done_us : a->end_us;
}

static void write_leg(struct writer *w, const bt_attempt_t *a, const bt_leg_t *leg, uint64_t parent)
{
    const char *error =
        a->fail_rc != 0 && a->fail_leg == leg->role ? bt_err_name(a->fail_rc) : NULL;
    const uint64_t id = bt_span_leg_id(w->t, a, leg->role, bt_span_replaced(a, leg->role));

    if (leg->worker == NULL || leg->call.start_us == 0 ||
        !open_span(w, bt_str(bt_leg_role_name(leg->role)), BT_SPAN_CLIENT, id, parent,
                   leg->call.start_us, leg_end_us(a, leg)))
        return;
    put_worker(w, leg->worker);
    put_z(w, BT_TRACE_REPLACES, replaced_by(a, leg->role));
    if (leg->call.status != 0)
        bt_span_number(w->out, BT_TRACE_STATUS, leg->call.status);
    if (leg->events != 0)
        bt_span_number(w->out, BT_TRACE_EVENTS, leg->events);
    put_z(w, BT_TRACE_ERROR, error);
    if (leg->role != BT_LEG_PREFILL && leg->first_body_us != 0)
        bt_span_event(w->out, BT_STR("first token"), leg->first_body_us + w->to_unix_us);
    bt_span_close(w->out, error);
}

/* Where decode came first there is none to be seen. */
static void write_transfer(struct writer *w, const bt_attempt_t *a, uint64_t parent)
{
    const uint64_t from_us = a->prefill_done_us, to_us = a->legs[1].first_body_us;

    if (from_us == 0 || to_us <= from_us ||
        !open_span(w, BT_STR("transfer"), BT_SPAN_INTERNAL, bt_span_transfer_id(w->t, a), parent,
                   from_us, to_us))
        return;
    if (a->kv.is_done) {
        bt_span_number(w->out, BT_TRACE_KV_BYTES, a->kv.bytes);
        bt_span_number(w->out, BT_TRACE_KV_TRANSFER, a->kv.transfer_us);
    }
    bt_span_close(w->out, NULL);
}

/* ---- attempts ---- */

static void write_attempt(struct writer *w, const bt_attempt_t *a)
{
    const uint64_t id = bt_span_attempt_id(w->t, a);
    const char *error = a->fail_rc != 0 ? bt_err_name(a->fail_rc) : NULL;
    const bt_str_t name = a->replay != NULL ? BT_STR("replay")
                          : a->number > 1   ? BT_STR("failover")
                                            : BT_STR("attempt");

    if (!open_span(w, name, BT_SPAN_INTERNAL, id, w->t->root, a->start_us, a->end_us))
        return;
    put_z(w, BT_TRACE_PLAN, bt_plan_kind_name(a->kind));
    bt_span_number(w->out, BT_TRACE_ATTEMPT, a->number);
    if (w->r->task_count > 1)
        bt_span_number(w->out, BT_TRACE_CHILD, a->task->index);
    put_z(w, BT_TRACE_REPLAY, a->replay);
    if (a->replay != NULL)
        bt_span_number(w->out, BT_TRACE_REPLAYED_TOKENS, a->replayed);
    put_z(w, BT_TRACE_ERROR, error);
    bt_span_close(w->out, error);
    write_replaced(w, a, id);
    if (a->kind != BT_PLAN_SINGLE) {
        write_leg(w, a, &a->legs[0], id);
        write_transfer(w, a, id);
    }
    write_leg(w, a, &a->legs[1], id);
}

static void write_attempts(struct writer *w)
{
    for (unsigned i = 0; i < w->r->task_count; i++) {
        unsigned count = 0;
        for (const bt_attempt_t *a = w->r->tasks[i].attempt; a != NULL; a = a->before)
            if (count++ < ATTEMPTS_MAX)
                write_attempt(w, a);
            else
                w->left_out++;
    }
}

static void write_encode(struct writer *w)
{
    const bt_encode_t *e = w->r->encode;

    for (unsigned i = 0; e != NULL && i < e->count; i++) {
        const bt_encode_part_t *p = &e->parts[i];
        write_replaced(w, &p->attempt, w->t->root);
        if (p->leg.call.start_us == 0 || p->end_us == 0 ||
            !open_span(w, BT_STR("encode"), BT_SPAN_CLIENT,
                       bt_span_leg_id(w->t, &p->attempt, BT_LEG_ENCODE,
                                      bt_span_replaced(&p->attempt, BT_LEG_ENCODE)),
                       w->t->root, p->leg.call.start_us, p->end_us))
            continue;
        put_z(w, BT_TRACE_WORKER, p->worker);
        bt_span_number(w->out, BT_TRACE_CHILD, p->task.index);
        bt_span_close(w->out, NULL);
    }
}

/* ---- the request ---- */

/* "chat model", or "POST route" where that says more. */
static bt_str_t name_of(const bt_request_t *r, char out[NAME_BYTES])
{
    const char *operation = bt_route_operation(r->route);
    const bt_str_t first = bt_str(operation != NULL ? operation : r->method);
    bt_str_t second = operation != NULL ? r->intent.model : bt_str(bt_route_info(r->route)->label);
    const size_t room = NAME_BYTES - 1 - (first.n < 64 ? first.n : 64);

    if (second.n == 0)
        return first;
    second.n = second.n < room ? second.n : room;
    memcpy(out, first.p, NAME_BYTES - 1 - room);
    out[NAME_BYTES - 1 - room] = ' ';
    memcpy(out + NAME_BYTES - room, second.p, second.n);
    return (bt_str_t){out, NAME_BYTES - room + second.n};
}

static void put_tokens(struct writer *w)
{
    const bt_usage_t usage = bt_usage_of(w->r);

    bt_span_number(w->out, BT_TRACE_INPUT_TOKENS, usage.input);
    bt_span_number(w->out, BT_TRACE_OUTPUT_TOKENS, usage.output);
    if (usage.cached != 0)
        bt_span_number(w->out, BT_TRACE_CACHED_TOKENS, usage.cached);
}

static void put_decision(struct writer *w)
{
    const bt_request_t *r = w->r;

    put_z(w, BT_TRACE_REQUEST_ID, r->id);
    bt_span_text(w->out, BT_TRACE_TENANT, r->tenant);
    put_z(w, BT_TRACE_POOL, r->pool != NULL ? r->pool->spec.name : NULL);
    put_z(w, BT_TRACE_POLICY, r->policy_name);
    put_z(w, BT_TRACE_RULE, r->record.rule);
    if (bt_request_kind(r) != BT_PLAN_NONE)
        put_z(w, BT_TRACE_PLAN, bt_plan_kind_name(bt_request_kind(r)));
}

/* The last one, as it tells of those that had no room. */
static void write_request(struct writer *w, enum bt_trace_why why)
{
    const bt_request_t *r = w->r;
    char name[NAME_BYTES];
    const char *error = has_failed(r) ? r->fail_name != NULL ? r->fail_name : "status" : NULL;

    (void) open_span(w, name_of(r, name), BT_SPAN_SERVER, w->t->root, w->t->parent, r->start_us,
                     w->now_us);
    put_z(w, BT_TRACE_OPERATION, bt_route_operation(r->route));
    if (r->last != NULL && r->last->legs[1].worker != NULL &&
        r->last->legs[1].worker->engine != BT_ENGINE_UNKNOWN)
        put_z(w, BT_TRACE_PROVIDER, bt_engine_name(r->last->legs[1].worker->engine));
    bt_span_text(w->out, BT_TRACE_MODEL, r->intent.model);
    if (r->intent.max_tokens != 0)
        bt_span_number(w->out, BT_TRACE_MAX_TOKENS, r->intent.max_tokens);
    if (r->last != NULL)
        put_tokens(w);
    put_z(w, BT_TRACE_METHOD, r->method);
    bt_span_text(w->out, BT_TRACE_PATH, r->path);
    if (r->status != 0)
        bt_span_number(w->out, BT_TRACE_STATUS, r->status);
    put_z(w, BT_TRACE_ERROR, r->fail_name);
    put_decision(w);
    put_z(w, BT_TRACE_KEPT, bt_trace_why_name(why));
    if (w->left_out != 0)
        bt_span_number(w->out, BT_TRACE_LEFT_OUT, w->left_out);
    if (r->first_byte_us != 0)
        bt_span_event(w->out, BT_STR("first byte"), r->first_byte_us + w->to_unix_us);
    bt_span_close(w->out, error);
}

/* ---- exemplars: what its histograms have counted of it ---- */

static void set_exemplar(bt_trace_kept_t *kept, enum bt_trace_metric metric, uint64_t us)
{
    const unsigned unit = metric == BT_TRACE_DECISION ? BT_DECISION_UNIT : 1;

    kept->values[metric].us = us;
    kept->values[metric].bucket = bt_histogram_bucket(us * unit);
}

static void set_exemplars_of_marks(const bt_request_trace_t *t, bt_trace_kept_t *kept)
{
    static const enum bt_trace_metric metrics[] = {[BT_MARK_ADMISSION] = BT_TRACE_ADMISSION,
                                                   [BT_MARK_ROUTE] = BT_TRACE_ROUTE,
                                                   [BT_MARK_QUEUE] = BT_TRACE_QUEUE_WAIT,
                                                   [BT_MARK_POLICY] = BT_TRACE_DECISION};

    for (unsigned i = 0; i < t->mark_count; i++)
        set_exemplar(kept, metrics[t->marks[i].what], t->marks[i].us);
}

static void set_exemplars_of_queue(const bt_request_t *r, bt_trace_kept_t *kept)
{
    const struct bt_record_queue *q = r->record.queue;

    if (q == NULL || !q->has_prediction || q->end != bt_queue_end_name(BT_QUEUE_CALLED))
        return;
    const uint64_t waited = r->record.queue_us, predicted = q->predicted_ms * 1000;
    set_exemplar(kept, BT_TRACE_QUEUE_ERROR,
                 waited > predicted ? waited - predicted : predicted - waited);
}

/* Of the last attempt. */
static void set_exemplars_of_legs(const bt_attempt_t *a, bt_trace_kept_t *kept)
{
    const bt_leg_t *p = &a->legs[0], *d = &a->legs[1];

    if (a->prefill_done_us != 0)
        set_exemplar(kept, BT_TRACE_PREFILL, a->prefill_done_us - p->call.start_us);
    if (a->kind == BT_PLAN_HANDOFF && a->prefill_done_us != 0 && d->first_body_us != 0)
        set_exemplar(kept, BT_TRACE_HANDOFF_WAIT, d->first_body_us - a->prefill_done_us);
    if (a->called_us != 0)
        set_exemplar(kept, BT_TRACE_CALLBACK_WAIT, a->called_us - d->call.start_us);
}

static void set_exemplars(const bt_request_t *r, uint64_t now_us, bt_trace_kept_t *kept)
{
    for (unsigned i = 0; i < BT_TRACE_METRICS; i++)
        kept->values[i].bucket = BT_TRACE_BUCKETS;
    set_exemplar(kept, BT_TRACE_DURATION, now_us - r->start_us);
    set_exemplars_of_marks(r->trace, kept);
    set_exemplars_of_queue(r, kept);
    if (r->encode != NULL && r->encode->is_over)
        set_exemplar(kept, BT_TRACE_ENCODE, r->encode->end_us - r->encode->start_us);
    if (r->last != NULL)
        set_exemplars_of_legs(r->last, kept);
    if (r->first_byte_us == 0)
        return;
    set_exemplar(kept, BT_TRACE_TTFT, r->first_byte_us - r->start_us);
    set_exemplar(kept, BT_TRACE_DECODE, now_us - r->first_byte_us);
    if (r->events > 1)
        set_exemplar(kept, BT_TRACE_TPOT, (now_us - r->first_byte_us) / (r->events - 1));
}

void bt_trace_finish(bt_request_t *r)
{
    const uint64_t now_us = bt_clock_event_us();
    const enum bt_trace_why why = why_kept(r, now_us);

    if (why == BT_TRACE_NOT_KEPT || r->d->records == NULL)
        return;
    struct writer w = {
        .r = r, .t = r->trace, .out = bt_record_ring_draft(r->d->records), .now_us = now_us};
    const uint64_t wall_us = bt_clock_wall_us();
    w.to_unix_us = wall_us - bt_clock_us();
    write_marks(&w);
    write_encode(&w);
    write_attempts(&w);
    write_request(&w, why);
    if (w.out->failed)
        return;
    bt_trace_kept_t kept = {.draft = bt_record_draft_str(w.out),
                            .spans = w.spans,
                            .why = why,
                            .trace = r->trace->id,
                            .wall_ms = wall_us / 1000};
    set_exemplars(r, now_us, &kept);
    (void) bt_trace_queue_put(r->d->shared->traces, &kept);
}
