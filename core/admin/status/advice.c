/* What was measured stands beside what follows of it, so that whoever doubts an advice can work it out again. */
#include "admin/status/advice.h"

#include "admin/call/query.h"
#include "dispatch/queue/queue.h"

#define N(array) (sizeof(array) / sizeof((array)[0]))

typedef struct answer {
    const bt_worker_pool_t *pool;
    bt_advice_input_t in;
    bt_advice_t advice;
} answer_t;

static bool ask(const bt_advisor_t *advisor, const bt_worker_pool_t *pool, answer_t *a)
{
    a->pool = pool;
    if (advisor == NULL || !bt_advisor_input(advisor, pool, &a->in))
        return false;
    bt_advice_make(&a->in, &a->advice);
    return true;
}

/* ---- JSON ---- */

/* What is not known is null. */
static void put(bt_text_t *out, const char *name, double value, bool is_known)
{
    if (is_known)
        bt_text_printf(out, ",\"%s\":%.3f", name, value);
    else
        bt_text_printf(out, ",\"%s\":null", name);
}

static void put_role(bt_text_t *out, const bt_advice_role_t *r, double seen_s, double used,
                     double rate)
{
    bt_text_printf(out, "{\"workers\":%u,\"used_by\":\"%s\"", r->workers, bt_advice_by_name(r->by));
    put(out, "used", used, r->worker_s > 0);
    put(out, "requests_per_second", r->requests / seen_s, seen_s > 0);
    put(out, "tokens_per_second", r->tokens / seen_s, seen_s > 0);
    put(out, "tokens_per_used_second", rate, rate > 0);
    put(out, "inflight_requests", r->inflight, true);
    put(out, "inflight_tokens", r->inflight_tokens, true);
    put(out, "engine_waiting", r->waiting, true);
}

static void put_inputs(bt_text_t *out, const answer_t *a)
{
    const bt_advice_role_t *p = &a->in.prefill, *d = &a->in.decode;

    bt_text_printf(out, ",\"window_secs\":%.3f,\"watched_secs\":%.3f", a->in.window_s,
                   a->in.seen_s);
    bt_text_puts(out, ",\"prefill\":");
    put_role(out, p, a->in.seen_s, a->advice.prefill_used, a->advice.prefill_rate);
    put(out, "cached_share", p->tokens > 0 ? p->cached / p->tokens : 0, p->tokens > 0);
    put(out, "used_ms_per_request", a->advice.service_ms, a->advice.service_ms > 0);
    put(out, "ttft_ms", p->latency_ms, p->latency_ms > 0);
    bt_text_puts(out, "},\"decode\":");
    put_role(out, d, a->in.seen_s, a->advice.decode_used, a->advice.decode_rate);
    put(out, "tpot_ms", d->latency_ms, d->latency_ms > 0);
    bt_text_puts(out, "}");
}

static void put_split(bt_text_t *out, const char *name, unsigned prefill, unsigned decode)
{
    bt_text_printf(out, ",\"%s\":{\"prefill\":%u,\"decode\":%u}", name, prefill, decode);
}

static void put_advice(bt_text_t *out, const answer_t *a)
{
    const bt_advice_t *advice = &a->advice;

    put(out, "predicted_ttft_ms", advice->ttft_ms, advice->ttft_ms > 0);
    bt_text_printf(out, ",\"bottleneck\":\"%s\",\"confidence\":\"%s\"",
                   bt_bottleneck_name(advice->bottleneck), bt_confidence_name(advice->confidence));
    bt_text_json_member(out, "why", advice->why);
    put_split(out, "current", a->in.prefill.workers, a->in.decode.workers);
    if (advice->confidence == BT_CONFIDENCE_NONE) {
        bt_text_puts(out, ",\"advised\":null,\"needed\":null");
        return;
    }
    bt_text_printf(out, ",\"advised\":{\"prefill\":%u,\"decode\":%u", advice->prefill,
                   advice->decode);
    put(out, "gain", advice->gain, true);
    put(out, "model_ttft_ms", advice->model_ttft_ms, advice->model_ttft_ms > 0);
    bt_text_puts(out, "}");
    put_split(out, "needed", advice->prefill_needed, advice->decode_needed);
}

/* ---- the queue before a pool ---- */

struct queued {
    const char *pool;
    unsigned waiting;
};

static void note_queue(void *user, const bt_queue_facts_t *facts)
{
    struct queued *q = user;

    if (strcmp(facts->pool, q->pool) == 0)
        q->waiting = facts->waiting.count;
}

static void put_queue(bt_text_t *out, const bt_dispatch_shared_t *shared, const char *pool)
{
    struct queued q = {.pool = pool};

    if (shared->queues == NULL) {
        bt_text_puts(out, ",\"queued\":null");
        return;
    }
    bt_queues_each(shared->queues, note_queue, &q);
    bt_text_printf(out, ",\"queued\":%u", q.waiting);
}

static void put_pool(const bt_admin_call_t *c, const answer_t *a)
{
    bt_text_t *out = &c->reply->body;

    bt_text_puts(out, "{\"pool\":");
    bt_text_json_str(out, bt_str(a->pool->spec.name));
    put_queue(out, c->config->shared, a->pool->spec.name);
    put_inputs(out, a);
    put_advice(out, a);
    bt_text_puts(out, "}");
}

/* ---- a line for people ---- */

static void say(bt_text_t *out, const answer_t *a)
{
    bt_text_printf(out, "pool %s: %u prefill, %u decode: %s", a->pool->spec.name,
                   a->in.prefill.workers, a->in.decode.workers, a->advice.why);
    if (a->advice.confidence != BT_CONFIDENCE_NONE)
        bt_text_printf(out, " (bottleneck: %s; confidence: %s)",
                       bt_bottleneck_name(a->advice.bottleneck),
                       bt_confidence_name(a->advice.confidence));
    bt_text_puts(out, "\n");
}

static bool read_query(const bt_admin_call_t *c, bool *as_text)
{
    bt_str_t query = c->request->query, name, value;

    while (bt_query_next(&query, &name, &value)) {
        *as_text = bt_str_eq(value, BT_STR("text"));
        if (bt_str_eq(name, BT_STR("format")) && (*as_text || bt_str_eq(value, BT_STR("json"))))
            continue;
        bt_reply_error(c->reply, 400, "%.*s=%.*s: the query may have format=json or format=text",
                       BT_STR_ARG(name), BT_STR_ARG(value));
        return false;
    }
    return true;
}

void bt_admin_advice(const bt_admin_call_t *c)
{
    const bt_workers_t *workers = bt_registry_current(c->config->registry);
    bt_text_t *out = &c->reply->body;
    const char *comma = "";
    bool as_text = false;
    answer_t a;

    if (!read_query(c, &as_text))
        return;
    if (as_text)
        c->reply->type = "text/plain; charset=utf-8";
    bt_text_puts(out, as_text ? "" : "{\"pools\":[");
    for (unsigned i = 0; i < workers->pool_count; i++) {
        if (!ask(c->config->advisor, &workers->pools[i], &a))
            continue;
        if (as_text) {
            say(out, &a);
            continue;
        }
        bt_text_puts(out, comma);
        put_pool(c, &a);
        comma = ",";
    }
    if (as_text && out->len == 0)
        bt_text_puts(out, "no pool has both prefill and decode workers\n");
    bt_text_puts(out, as_text ? "" : "]}\n");
}

/* ---- metrics ---- */

enum unit { WHOLE, SHARE, SECONDS };

static double workers_of(const bt_advice_role_t *r, const bt_advice_t *a, bool is_prefill)
{
    (void) a;
    (void) is_prefill;
    return r->workers;
}

static double used_of(const bt_advice_role_t *r, const bt_advice_t *a, bool is_prefill)
{
    (void) r;
    return is_prefill ? a->prefill_used : a->decode_used;
}

static double tokens_of(const bt_advice_role_t *r, const bt_advice_t *a, bool is_prefill)
{
    (void) a;
    (void) is_prefill;
    return r->inflight_tokens;
}

static double rate_of(const bt_advice_role_t *r, const bt_advice_t *a, bool is_prefill)
{
    (void) r;
    return is_prefill ? a->prefill_rate : a->decode_rate;
}

static double advised_of(const bt_advice_role_t *r, const bt_advice_t *a, bool is_prefill)
{
    (void) r;
    return is_prefill ? a->prefill : a->decode;
}

static double needed_of(const bt_advice_role_t *r, const bt_advice_t *a, bool is_prefill)
{
    (void) r;
    return is_prefill ? a->prefill_needed : a->decode_needed;
}

static double bottleneck_of(const bt_advice_role_t *r, const bt_advice_t *a, bool is_prefill)
{
    (void) r;
    return a->bottleneck == (is_prefill ? BT_BOTTLENECK_PREFILL : BT_BOTTLENECK_DECODE) ||
           a->bottleneck == BT_BOTTLENECK_BOTH;
}

static const struct {
    const char *name, *help;
    double (*read)(const bt_advice_role_t *r, const bt_advice_t *a, bool is_prefill);
    enum unit unit;
    bool is_advice; /* absent where traffic says too little */
} rows[] = {
    {"baton_advice_workers", "Usable workers of a role", workers_of, WHOLE, false},
    {"baton_advice_used_ratio", "Mean use of a role's workers over the window; 1: at their limit",
     used_of, SHARE, false},
    {"baton_advice_inflight_tokens", "Tokens of the requests that a role's workers have now",
     tokens_of, WHOLE, false},
    {"baton_advice_tokens_per_used_second",
     "Tokens a second that a worker takes while it is in use: its capacity", rate_of, WHOLE, false},
    {"baton_advice_advised_workers",
     "Of the present workers, those that should have the role: what balances both", advised_of,
     WHOLE, true},
    {"baton_advice_needed_workers", "Workers of the role that would carry the load at 80 % use",
     needed_of, WHOLE, true},
    {"baton_advice_bottleneck", "1 where the role holds the pool up", bottleneck_of, WHOLE, true},
};

static void write_value(bt_prom_t *p, const bt_label_t *labels, unsigned count, double value,
                        enum unit unit)
{
    if (unit == WHOLE)
        bt_prom_int(p, labels, count, (int64_t) (value + 0.5));
    else
        bt_prom_micro(p, labels, count, (uint64_t) (value * (unit == SHARE ? 1e6 : 1e3) + 0.5));
}

static void write_row(bt_prom_t *p, size_t row, const answer_t *a)
{
    for (unsigned is_prefill = 0; is_prefill < 2; is_prefill++) {
        const bt_label_t labels[] = {
            {"pool", bt_str(a->pool->spec.name)},
            {"role", is_prefill ? BT_STR("prefill") : BT_STR("decode")},
        };
        write_value(
            p, labels, 2,
            rows[row].read(is_prefill ? &a->in.prefill : &a->in.decode, &a->advice, is_prefill),
            rows[row].unit);
    }
}

static void write_ttft(bt_prom_t *p, const bt_advisor_t *advisor, const bt_workers_t *workers)
{
    answer_t a;

    bt_prom_family(p, "baton_advice_predicted_ttft_seconds", "gauge",
                   "TTFT of a request that came now: what waits at prefill, its own prompt, one "
                   "decode step");
    for (unsigned i = 0; i < workers->pool_count; i++) {
        const bt_label_t label = {"pool", bt_str(workers->pools[i].spec.name)};
        if (ask(advisor, &workers->pools[i], &a) && a.advice.ttft_ms > 0)
            write_value(p, &label, 1, a.advice.ttft_ms, SECONDS);
    }
}

void bt_metrics_advice(bt_prom_t *p, const bt_advisor_t *advisor, const bt_workers_t *workers)
{
    answer_t a;

    if (advisor == NULL)
        return;
    for (size_t row = 0; row < N(rows); row++) {
        bt_prom_family(p, rows[row].name, "gauge", rows[row].help);
        for (unsigned i = 0; i < workers->pool_count; i++)
            if (ask(advisor, &workers->pools[i], &a) &&
                (!rows[row].is_advice || a.advice.confidence != BT_CONFIDENCE_NONE))
                write_row(p, row, &a);
    }
    write_ttft(p, advisor, workers);
}
