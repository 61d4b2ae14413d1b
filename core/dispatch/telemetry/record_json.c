/* record_json.c - the line, as a draft: every request has one, and few are read. What goes through printf is in sampled lines
 * only. record.h is the list of members.
 */
#include "base/clock.h"
#include "dispatch/answer/token_replay.h"
#include "dispatch/plan/plan.h"
#include "dispatch/plan/tokenize.h"
#include "dispatch/queue/queue.h"
#include "dispatch/state/encode_params.h"
#include "script/shared/prefix_index.h"

#include <math.h>
#include <stdio.h>

#define ATTEMPTS_MAX 64
#define TEXT_MAX 128
#define PATH_MAX_BYTES 256
#define LOAD_FRESH_MS 5000 /* as in script/view/view.c: an engine's older report says nothing */

/* ---- values ---- */

#define UNCUT UINT32_MAX
#define put_lit(out, lit) bt_record_draft_put((out), BT_STR(lit), BT_DRAFT_NOTHING, 0)

static void put_raw(bt_record_draft_t *out, bt_str_t json)
{
    bt_record_draft_put_bytes(out, BT_STR(""), BT_DRAFT_RAW, json, 0);
}

static void put_u64_after(bt_record_draft_t *out, bt_str_t before, uint64_t value)
{
    bt_record_draft_put(out, before, BT_DRAFT_U64, value);
}

static void put_ms_after(bt_record_draft_t *out, bt_str_t before, uint64_t us)
{
    bt_record_draft_put(out, before, BT_DRAFT_MS, us);
}

static void put_text_after(bt_record_draft_t *out, bt_str_t before, bt_str_t value, uint32_t max)
{
    if (value.n != 0)
        bt_record_draft_put_text(out, before, BT_DRAFT_TEXT, value, max);
}

/* NAN and infinities have no JSON. Most numbers of a row are whole. */
static void put_number_after(bt_record_draft_t *out, bt_str_t before, double value)
{
    char z[32];

    if (!isfinite(value))
        return;
    bt_record_draft_put(out, before, BT_DRAFT_NOTHING, 0);
    if (fabs(value) < 1e15 && value == floor(value)) {
        put_u64_after(out, value < 0 ? BT_STR("-") : BT_STR(""), (uint64_t) fabs(value));
    } else {
        snprintf(z, sizeof(z), "%.9g", value);
        put_raw(out, bt_str(z));
    }
}

/* A member as it stands in the line, comma and all. What has no value is left out. */
#define NAMED(name) BT_STR(",\"" name "\":")
#define put_u64(out, name, value) put_u64_after((out), NAMED(name), (value))
#define put_ms(out, name, us) put_ms_after((out), NAMED(name), (us))
#define put_text(out, name, value) put_text_after((out), NAMED(name), (value), TEXT_MAX)
#define put_z(out, name, z) put_text_after((out), NAMED(name), bt_str(z), UNCUT)
#define put_bool(out, name, value)                                                                 \
    bt_record_draft_put((out),                                                                     \
                        (value) ? BT_STR(",\"" name "\":true") : BT_STR(",\"" name "\":false"),    \
                        BT_DRAFT_NOTHING, 0)
#define put_number(out, name, value) put_number_after((out), NAMED(name), (value))
#define put_open(out, name, bracket)                                                               \
    bt_record_draft_put((out), BT_STR(",\"" name "\":" bracket), BT_DRAFT_NOTHING, 0)

/* The date of a second serves all requests of that second. */
static void put_time(bt_record_draft_t *out, uint64_t wall_ms)
{
    static _Thread_local uint64_t second;
    static _Thread_local char text[32];
    const unsigned ms = (unsigned) (wall_ms % 1000);

    if (text[0] == '\0' || second != wall_ms / 1000) {
        second = wall_ms / 1000;
        bt_clock_iso8601(second * 1000, text, sizeof(text));
    }
    text[20] = (char) ('0' + ms / 100);
    text[21] = (char) ('0' + ms / 10 % 10);
    text[22] = (char) ('0' + ms % 10);
    bt_record_draft_put_text(out, NAMED("at"), BT_DRAFT_TEXT, bt_str(text), UNCUT);
}

/* Not a comma before the first member of an object or list. */
static void put_comma(bt_record_draft_t *out)
{
    bt_record_draft_put(out, BT_STR(""), BT_DRAFT_COMMA, 0);
}

static void put_string(bt_record_draft_t *out, bt_str_t text)
{
    bt_record_draft_put_text(out, BT_STR(""), BT_DRAFT_TEXT, text, UNCUT);
}

/* ---- who asked what ---- */

static void put_request(bt_record_draft_t *out, const bt_request_t *r)
{
    const bt_record_t *rec = &r->record;

    bt_record_draft_put_text(out, BT_STR("{\"v\":1,\"id\":"), BT_DRAFT_TEXT, bt_str(r->id), UNCUT);
    put_time(out, rec->wall_ms);
    put_z(out, "route", bt_route_info(r->route)->label);
    put_text_after(out, BT_STR(",\"path\":"), r->path, PATH_MAX_BYTES);
    put_text(out, "model", r->intent.model);
    put_bool(out, "stream", r->intent.stream);
    put_u64(out, "n", r->intent.n);
    put_u64(out, "prompt_tokens", r->prompt_tokens - bt_token_replay_before(r));
    put_u64(out, "prompt_bytes", r->intent.prompt_bytes);
    if (bt_tokenize_source(r) != BT_TOKENS_ESTIMATE)
        put_z(out, "token_source", bt_token_source_name(bt_tokenize_source(r)));
    put_text(out, "session", r->session);
    put_text(out, "tenant", r->tenant);
    put_text(out, "identity", r->identity->id);
    put_text(out, "class", bt_str(rec->klass));
    put_text(out, "key", bt_str(rec->key));
    put_z(out, "trace_id", bt_request_trace_id(r));
}

/* What stands in no row: counters, windows, prefixes. */
static void put_reads(bt_record_draft_t *out, const struct bt_record_sample *s)
{
    if (s->reads.n == 0 && !s->reads_cut)
        return;
    put_open(out, "reads", "[");
    put_raw(out, s->reads);
    put_lit(out, "]");
    if (s->reads_cut)
        put_bool(out, "reads_cut", true);
}

static void put_member(bt_record_draft_t *out, bt_str_t name, const char *value)
{
    bt_record_draft_put_text(out, name, BT_DRAFT_COMMA | BT_DRAFT_TEXT, bt_str(value), UNCUT);
}

static void put_names(bt_record_draft_t *out, const char *prefill, const char *decode,
                      bool is_single)
{
    if (prefill != NULL)
        put_member(out, BT_STR("\"prefill\":"), prefill);
    if (decode != NULL)
        put_member(out, is_single ? BT_STR("\"worker\":") : BT_STR("\"decode\":"), decode);
}

static void put_decision(bt_record_draft_t *out, const bt_request_t *r)
{
    const bt_record_t *rec = &r->record;

    if (r->pool != NULL)
        put_z(out, "pool", r->pool->spec.name);
    put_z(out, "rule", rec->rule);
    put_z(out, "policy", r->policy_name);
    put_z(out, "policy_version", r->policy_version);
    if (r->policy_generation != 0)
        put_u64(out, "generation", r->policy_generation);
    if (rec->sample != NULL && rec->sample->seed != 0) {
        char seed[17];

        snprintf(seed, sizeof(seed), "%016llx", (unsigned long long) rec->sample->seed);
        put_z(out, "seed", seed);
        put_u64(out, "clock_us", rec->sample->clock_us);
        put_reads(out, rec->sample);
    }
    put_z(out, "decided_by", rec->decided_by != NULL ? rec->decided_by : "nobody");
    put_z(out, "why", rec->why);
    if (rec->rests[0] != NULL) {
        put_open(out, "rests", "{");
        put_names(out, rec->rests[0], rec->rests[1], false);
        put_lit(out, "}");
    }
}

/* ---- candidates ---- */

static void put_labels(bt_record_draft_t *out, const char *text)
{
    put_open(out, "labels", "{");
    while (text != NULL && *text != '\0') {
        const char *end = strchrnul(text, ','), *eq = memchr(text, '=', (size_t) (end - text));
        bt_str_t key = bt_str_trim((bt_str_t){text, (size_t) ((eq != NULL ? eq : end) - text)});

        if (key.n > 0) {
            put_comma(out);
            put_string(out, key);
            put_lit(out, ":");
            if (eq != NULL)
                put_string(out, bt_str_trim((bt_str_t){eq + 1, (size_t) (end - eq - 1)}));
            else
                put_lit(out, "true");
        }
        text = *end == ',' ? end + 1 : end;
    }
    put_lit(out, "}");
}

static int64_t load_i64(const _Atomic int64_t *p)
{
    return atomic_load_explicit(p, memory_order_relaxed);
}

static void put_ema(bt_record_draft_t *out, bt_str_t before, const _Atomic int64_t *us)
{
    if (load_i64(us) > 0)
        put_number_after(out, before, (double) load_i64(us) / 1000);
}

/* What a policy is told is nil (script/view/view.c) is not known here either. */
static void put_load(bt_record_draft_t *out, const bt_worker_t *w, uint64_t now_ms)
{
    const bt_load_sample_t *load = &w->load;
    const uint64_t at_ms = atomic_load_explicit(&load->at_ms, memory_order_relaxed);
    const uint64_t age_ms = now_ms > at_ms ? now_ms - at_ms : 0;

    if (at_ms != 0 && age_ms <= LOAD_FRESH_MS) {
        put_number(out, "running", (double) load_i64(&load->running));
        put_number(out, "waiting",
                   (double) (load_i64(&load->waiting) + load_i64(&load->started_since)));
        put_number(out, "kv_free",
                   1.0 - atomic_load_explicit(&load->kv_used_ppm, memory_order_relaxed) / 1e6);
    }
    if (w->is_gateway_managed)
        put_number(out, "transfer_bytes", (double) load_i64(&w->transfer_bytes));
    put_ema(out, NAMED("ttft_ema_ms"), &w->ttft_ema_us);
    put_ema(out, NAMED("tpot_ema_ms"), &w->tpot_ema_us);
    if (at_ms != 0)
        put_u64(out, "age_ms", age_ms);
}

/* One is what every policy takes for granted. */
static void put_size(bt_record_draft_t *out, bt_str_t before, unsigned size)
{
    if (size > 1)
        put_u64_after(out, before, size);
}

void bt_record_put_worker(const bt_worker_t *w, uint64_t now_ms, bt_record_draft_t *out)
{
    const int64_t prefills = bt_worker_requests(w, BT_PHASE_PREFILL);

    put_u64_after(out, BT_STR("{\"id\":"), w->id);
    put_z(out, "name", w->name);
    put_z(out, "url", w->spec.url); /* some native functions hash it */
    put_z(out, "role", bt_role_name(w->spec.role));
    put_z(out, "zone", w->spec.zone);
    if (w->spec.labels != NULL && w->spec.labels[0] != '\0')
        put_labels(out, w->spec.labels);
    put_z(out, "engine", w->engine != BT_ENGINE_UNKNOWN ? bt_engine_name(w->engine) : NULL);
    put_z(out, "connector", w->spec.connector);
    put_z(out, "version", w->spec.version);
    put_z(out, "dialect", w->dialect);
    put_size(out, NAMED("dp_size"), w->dp_size);
    put_size(out, NAMED("tp_size"), w->tp_size);
    put_size(out, NAMED("pp_size"), w->pp_size);
    put_number(out, "prefill_tokens", (double) bt_worker_tokens(w, BT_PHASE_PREFILL));
    put_number(out, "decode_tokens", (double) bt_worker_tokens(w, BT_PHASE_DECODE));
    put_number(out, "requests", (double) (prefills + bt_worker_requests(w, BT_PHASE_DECODE)));
    if (bt_prefix_cached((uint32_t) w->id) > 0)
        put_u64(out, "prefix_cached", bt_prefix_cached((uint32_t) w->id));
    put_load(out, w, now_ms);
}

static void put_candidates(bt_record_draft_t *out, const struct bt_record_sample *s, bool is_brief)
{
    if (s == NULL || s->rows[0] == NULL)
        return;
    put_open(out, "candidates", "{");
    for (unsigned i = 0; i < BT_LIST_COUNT; i++) {
        const struct bt_record_rows *rows = s->rows[i];
        put_comma(out);
        put_string(out, bt_str(bt_policy_list_name((enum bt_policy_list) i)));
        put_u64_after(out, BT_STR(":{\"total\":"), rows->total);
        put_lit(out, ",\"rows\":[");
        for (unsigned k = 0; !is_brief && k < rows->count; k++) {
            put_comma(out);
            put_raw(out, rows->rows[k].json);
            put_number(out, "score", rows->rows[k].score);
            put_lit(out, "}");
        }
        put_lit(out, "]}");
    }
    put_lit(out, "}");
}

/* ---- plan and attempts ---- */

static const char *name_of(const bt_worker_t *w)
{
    return w != NULL ? w->name : NULL;
}

static void put_plan(bt_record_draft_t *out, const bt_request_t *r)
{
    const bt_kept_choice_t *choice = r->choice;
    const bt_dialect_t *dialect;

    if (choice == NULL || r->record.workers == NULL)
        return;
    put_lit(out, ",\"plan\":{\"kind\":");
    put_string(out, bt_str(bt_plan_kind_name(bt_plan_kind_of(r->d, &choice->first, &dialect))));
    put_names(out, name_of(choice->first.prefill), name_of(choice->first.decode),
              bt_pair_is_single(&choice->first));
    if (choice->alternate_count > 0)
        put_lit(out, ",\"alternates\":[");
    for (unsigned i = 0; i < choice->alternate_count; i++) {
        put_comma(out);
        put_lit(out, "{");
        put_names(out, name_of(choice->alternates[i].prefill),
                  name_of(choice->alternates[i].decode), bt_pair_is_single(&choice->alternates[i]));
        put_lit(out, "}");
    }
    if (choice->alternate_count > 0)
        put_lit(out, "]");
    if (choice->hints != NULL) {
        put_open(out, "hints", "{");
        put_raw(out, choice->hints->json);
        put_lit(out, "}");
    }
    put_lit(out, "}");
}

static void put_since(bt_record_draft_t *out, bt_str_t before, uint64_t from_us, uint64_t at_us)
{
    if (at_us != 0)
        put_ms_after(out, before, at_us > from_us ? at_us - from_us : 0);
}

static void put_failure(bt_record_draft_t *out, const bt_attempt_t *a)
{
    put_z(out, "failure", bt_err_name(a->fail_rc));
    put_z(out, "leg", bt_leg_role_name(a->fail_leg));
    put_u64(out, "status", a->fail_status);
    put_open(out, "guilty", "[");
    for (unsigned i = 0; i < 2; i++)
        if (a->guilty[i] && a->legs[i].worker != NULL) {
            put_comma(out);
            put_string(out, bt_str(a->legs[i].worker->name));
        }
    put_lit(out, "]");
}

/* Newest first. */
static void put_replaced(bt_record_draft_t *out, const bt_attempt_t *a)
{
    put_open(out, "replaced", "[");
    for (const struct bt_replaced *s = a->replaced; s != NULL; s = s->before) {
        put_comma(out);
        put_lit(out, "{");
        put_string(out, bt_str(bt_leg_role_name(s->role)));
        put_text_after(out, BT_STR(":"), bt_str(s->worker), UNCUT);
        put_z(out, "failure", bt_err_name(s->rc));
        put_lit(out, "}");
    }
    put_lit(out, "]");
}

/* What the hub has told of its room. */
static void put_kv(bt_record_draft_t *out, const bt_attempt_kv_t *kv)
{
    put_u64_after(out, BT_STR(",\"kv\":{\"bytes\":"), kv->bytes);
    put_ms(out, "wait_ms", kv->wait_us);
    put_ms(out, "transfer_ms", kv->transfer_us);
    put_lit(out, "}");
}

static void put_rank(bt_record_draft_t *out, bt_str_t before, const bt_worker_t *w, int rank)
{
    if (w != NULL && w->dp_size > 1 && rank >= 0)
        put_u64_after(out, before, (uint64_t) rank);
}

static void put_attempt(bt_record_draft_t *out, const bt_request_t *r, const bt_attempt_t *a)
{
    bt_record_draft_put(out, BT_STR("{\"n\":"), BT_DRAFT_COMMA | BT_DRAFT_U64, a->number);
    if (r->task_count > 1)
        put_u64(out, "child", a->task->index);
    put_z(out, "kind", bt_plan_kind_name(a->kind));
    put_names(out, name_of(a->legs[0].worker), name_of(a->legs[1].worker),
              a->kind == BT_PLAN_SINGLE);
    put_rank(out, NAMED("prefill_rank"), a->legs[0].worker, a->pair.prefill_rank);
    put_rank(out, NAMED("decode_rank"), a->legs[1].worker, a->pair.decode_rank);
    put_z(out, "prefill_hints", a->legs[0].hinted);
    put_z(out, "decode_hints", a->legs[1].hinted);
    put_z(out, "replay", a->replay);
    if (a->replay != NULL)
        put_u64(out, "replayed_tokens", a->replayed);
    put_since(out, BT_STR(",\"start_ms\":"), r->start_us, a->start_us);
    put_since(out, BT_STR(",\"callback_ms\":"), r->start_us, a->called_us);
    put_since(out, BT_STR(",\"prefill_ms\":"), r->start_us, a->prefill_done_us);
    put_since(out, BT_STR(",\"first_byte_ms\":"), r->start_us, a->legs[1].first_body_us);
    put_since(out, BT_STR(",\"end_ms\":"), r->start_us, a->end_us);
    if (a->fail_rc != 0)
        put_failure(out, a);
    if (a->replaced != NULL)
        put_replaced(out, a);
    if (a->kv.bytes != 0 || a->kv.is_done)
        put_kv(out, &a->kv);
    put_lit(out, "}");
}

/* In the order in which they ran; a task keeps its last one, and that the one before. */
static unsigned put_task(bt_record_draft_t *out, const bt_request_t *r, const bt_task_t *task,
                         unsigned room)
{
    const bt_attempt_t *order[ATTEMPTS_MAX];
    unsigned count = 0, total = 0;

    for (const bt_attempt_t *a = task->attempt; a != NULL; a = a->before, total++)
        if (count < ATTEMPTS_MAX)
            order[count++] = a;
    for (unsigned i = 0; i < count && i < room; i++)
        put_attempt(out, r, order[count - 1 - i]);
    return total;
}

static void put_attempts(bt_record_draft_t *out, const bt_request_t *r)
{
    unsigned total = 0;

    put_open(out, "attempts", "[");
    for (unsigned i = 0; i < r->task_count; i++)
        total += put_task(out, r, &r->tasks[i], total < ATTEMPTS_MAX ? ATTEMPTS_MAX - total : 0);
    put_lit(out, "]");
    if (total > ATTEMPTS_MAX)
        put_u64(out, "attempts_total", total);
    if (r->is_over_budget)
        put_bool(out, "over_budget", true);
}

/* ---- media ---- */

static void put_part(bt_record_draft_t *out, const bt_request_t *r, const bt_encode_part_t *p)
{
    bt_record_draft_put(out, BT_STR("{\"n\":"), BT_DRAFT_COMMA | BT_DRAFT_U64, p->task.index);
    put_z(out, "worker", p->end_us != 0 ? p->worker : NULL);
    put_since(out, BT_STR(",\"end_ms\":"), r->start_us, p->end_us);
    if (p->attempt.replaced != NULL)
        put_replaced(out, &p->attempt);
    put_lit(out, "}");
}

static void put_encode(bt_record_draft_t *out, const bt_request_t *r)
{
    const bt_encode_t *e = r->encode;

    if (e == NULL)
        return;
    put_lit(out, ",\"encode\":{\"parts\":[");
    for (unsigned i = 0; i < e->count; i++)
        put_part(out, r, &e->parts[i]);
    put_lit(out, "]");
    put_since(out, BT_STR(",\"start_ms\":"), r->start_us, e->start_us);
    put_since(out, BT_STR(",\"end_ms\":"), r->start_us, e->end_us);
    if (e->fail_rc != 0)
        put_z(out, "failure", bt_err_name(e->fail_rc));
    put_lit(out, "}");
}

/* ---- the line ---- */

static void put_queue(bt_record_draft_t *out, const struct bt_record_queue *q)
{
    if (q == NULL)
        return;
    put_open(out, "queue", "{\"class\":");
    put_string(out, bt_str(q->klass));
    put_text(out, "share", q->key);
    put_u64(out, "weight", q->weight);
    put_u64(out, "cost", q->cost);
    put_u64(out, "ahead_requests", q->ahead.count);
    put_u64(out, "ahead_tokens", q->ahead.cost);
    put_open(out, "behind", "[");
    for (unsigned i = 0; i < q->ahead.before_count; i++) {
        put_comma(out);
        put_lit(out, "{\"share\":");
        put_string(out, bt_str(q->ahead.before[i].key));
        put_u64(out, "tokens", q->ahead.before[i].cost);
        put_lit(out, "}");
    }
    put_lit(out, "]");
    if (q->has_prediction)
        put_u64(out, "predicted_ms", q->predicted_ms);
    put_u64(out, "passed", q->passed);
    put_z(out, "end", q->end);
    put_lit(out, "}");
}

/* ---- times and the end ---- */

static void put_phase(bt_record_draft_t *out, bt_str_t name, uint64_t us)
{
    if (us != 0)
        bt_record_draft_put(out, name, BT_DRAFT_COMMA | BT_DRAFT_MS, us);
}

static void put_leg_phases(bt_record_draft_t *out, const bt_attempt_t *a)
{
    const uint64_t done_us = a->prefill_done_us, first_us = a->legs[1].first_body_us;

    if (a->called_us != 0)
        put_phase(out, BT_STR("\"callback\":"), a->called_us - a->legs[1].call.start_us);
    if (done_us == 0)
        return;
    put_phase(out, BT_STR("\"prefill\":"), done_us - a->legs[0].call.start_us);
    if (first_us > done_us)
        put_phase(out, BT_STR("\"kv_wait\":"), first_us - done_us);
}

static void put_phases(bt_record_draft_t *out, const bt_request_t *r, uint64_t now_us)
{
    const bt_record_t *rec = &r->record;

    put_open(out, "phases_ms", "{");
    put_phase(out, BT_STR("\"admit\":"), rec->admit_us);
    put_phase(out, BT_STR("\"route\":"), rec->route_us);
    if (rec->queue_us != 0)
        put_phase(out, BT_STR("\"queue\":"), rec->queue_us);
    if (r->encode != NULL && r->encode->is_over)
        put_phase(out, BT_STR("\"encode\":"), r->encode->end_us - r->encode->start_us);
    put_phase(out, BT_STR("\"plan\":"), rec->plan_us);
    if (r->task_count == 1 && r->tasks[0].attempt != NULL)
        put_leg_phases(out, r->tasks[0].attempt);
    if (r->first_byte_us != 0)
        put_phase(out, BT_STR("\"first_byte\":"), r->first_byte_us - r->start_us);
    put_phase(out, BT_STR("\"last_byte\":"), now_us - r->start_us);
    put_lit(out, "}");
}

static void put_outcome(bt_record_draft_t *out, const bt_request_t *r)
{
    put_u64(out, "status", r->status);
    put_z(out, "error", r->fail_name);
    put_u64(out, "bytes_in", r->body_bytes);
    put_u64(out, "bytes_out", r->sent_bytes);
    put_u64(out, "events", r->events);
}

static void put_headers(bt_record_draft_t *out, const bt_request_t *r)
{
    const char *const *names = r->d->shared->record.headers;
    const bt_str_t *values = r->record.headers;

    if (names == NULL || values == NULL)
        return;
    put_open(out, "headers", "{");
    for (unsigned i = 0; names[i] != NULL; i++) {
        if (values[i].n == 0)
            continue;
        put_comma(out);
        put_string(out, bt_str(names[i]));
        put_lit(out, ":");
        bt_record_draft_put_text(out, BT_STR(""), BT_DRAFT_TEXT, values[i], TEXT_MAX);
    }
    put_lit(out, "}");
}

static void put_shadow(bt_record_draft_t *out, const struct bt_record_shadow *shadow)
{
    if (shadow == NULL)
        return;
    put_lit(out, ",\"shadow\":{\"rule\":");
    put_string(out, bt_str(shadow->rule));
    put_z(out, "policy", shadow->policy);
    put_z(out, "version", shadow->version);
    put_z(out, "error", shadow->error);
    if (shadow->error == NULL) {
        put_names(out, shadow->prefill, shadow->decode, shadow->is_single);
        put_bool(out, "same", shadow->same);
    }
    put_ms(out, "plan_ms", shadow->plan_us);
    put_lit(out, "}");
}

void bt_record_write(const bt_request_t *r, uint64_t now_us, bool is_brief, bt_record_draft_t *out)
{
    put_request(out, r);
    put_decision(out, r);
    put_candidates(out, r->record.sample, is_brief);
    put_plan(out, r);
    put_queue(out, r->record.queue);
    put_encode(out, r);
    put_attempts(out, r);
    put_phases(out, r, now_us);
    put_outcome(out, r);
    put_headers(out, r);
    put_shadow(out, r->record.shadow);
    put_lit(out, "}");
}
