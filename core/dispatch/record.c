/* record.c - what a request keeps on its way for the line at its end.
 *
 * Facts that are gone by then are copied when they pass: of the head, because the exchange may end first; of the candidates,
 * because their load moves on. Names of the plan are not copied: the record holds the
 * fleet that the plan was made of.
 *
 * Scores: native functions write them into the trace while the policy plans. Only the first plan's count (a split request plans
 * for every child), so they move into the rows before the second one.
 */
#include "base/clock.h"
#include "base/rand.h"
#include "dispatch/request.h"

#include <math.h>

#define LOAD_FRESH_MS                                                                              \
    5000 /* as in script/view/view.c: an engine's own report older than this says nothing */
#define TEXT_KEPT                                                                                  \
    129 /* of what a client wrote: a byte more than the line has, to see where a character ends */

/* ---- the beginning ---- */

static bt_str_t keep(bt_request_t *r, bt_str_t s)
{
    if (s.n == 0)
        return BT_STR_NULL;
    s.n = s.n < TEXT_KEPT ? s.n : TEXT_KEPT;
    return bt_arena_str(&r->arena, s);
}

static void keep_headers(bt_request_t *r, const char *const *names)
{
    unsigned count = 0;
    bt_str_t *values;

    while (names[count] != NULL)
        count++;
    values = bt_arena_alloc(&r->arena, count * sizeof(*values));
    for (unsigned i = 0; i < count; i++)
        values[i] = keep(r, bt_head_get(&r->x->head, bt_str(names[i])));
    r->record.headers = values;
}

void bt_record_begin(bt_request_t *r)
{
    const bt_record_config_t *config = &r->d->shared->record;
    bt_record_t *rec = &r->record;

    rec->wall_ms = bt_clock_wall_ms();
    rec->sampled = config->sample > 0 && bt_rand_unit() < config->sample;
    if (r->x == NULL)
        return;
    if (config->headers != NULL)
        keep_headers(r, config->headers);
}

/* ---- candidates ---- */

static const char *copy(bt_request_t *r, const char *z)
{
    return z != NULL ? bt_arena_str(&r->arena, bt_str(z)).p : NULL;
}

static int64_t load_i64(const _Atomic int64_t *p)
{
    return atomic_load_explicit(p, memory_order_relaxed);
}

static double ema_ms(const _Atomic int64_t *us)
{
    const int64_t value = load_i64(us);

    return value > 0 ? (double) value / 1000 : NAN;
}

/* The rules of script/view/view.c: what a policy is told is nil is not known here either. */
static void fill_load(struct bt_record_row *row, const bt_load_sample_t *load, uint64_t now_ms)
{
    const uint64_t at_ms = atomic_load_explicit(&load->at_ms, memory_order_relaxed);
    const uint64_t age_ms = now_ms > at_ms ? now_ms - at_ms : 0;

    row->running = row->waiting = row->kv_free = row->age_ms = NAN;
    if (at_ms == 0)
        return;
    row->age_ms = (double) age_ms;
    if (age_ms > LOAD_FRESH_MS)
        return;
    row->running = (double) load_i64(&load->running);
    row->waiting = (double) (load_i64(&load->waiting) + load_i64(&load->started_since));
    row->kv_free = 1.0 - atomic_load_explicit(&load->kv_used_ppm, memory_order_relaxed) / 1e6;
}

static void fill_row(bt_request_t *r, struct bt_record_row *row, const bt_worker_t *w,
                     uint64_t now_ms)
{
    *row = (struct bt_record_row){
        .id = w->id,
        .role = w->spec.role,
        .name = copy(r, w->name),
        .url = copy(r, w->spec.url),
        .zone = copy(r, w->spec.zone),
        .labels = copy(r, w->spec.labels),
        .dialect = copy(r, w->dialect),
        .prefill_tokens = bt_worker_tokens(w, BT_PHASE_PREFILL),
        .decode_tokens = bt_worker_tokens(w, BT_PHASE_DECODE),
        .requests =
            bt_worker_requests(w, BT_PHASE_PREFILL) + bt_worker_requests(w, BT_PHASE_DECODE),
        .ttft_ema_ms = ema_ms(&w->ttft_ema_us),
        .tpot_ema_ms = ema_ms(&w->tpot_ema_us),
        .score = NAN,
    };
    fill_load(row, &w->load, now_ms);
}

static struct bt_record_rows *copy_set(bt_request_t *r, const bt_worker_set_t *set, uint64_t now_ms)
{
    const unsigned total = set != NULL ? set->count : 0;
    const unsigned count = total < BT_RECORD_ROWS ? total : BT_RECORD_ROWS;
    struct bt_record_rows *rows =
        bt_arena_alloc(&r->arena, sizeof(*rows) + count * sizeof(rows->rows[0]));

    rows->total = total;
    rows->count = count;
    for (unsigned i = 0; i < count; i++)
        fill_row(r, &rows->rows[i], set->items[i], now_ms);
    return rows;
}

static void score_rows(struct bt_record_rows *rows, const bt_policy_trace_t *trace)
{
    for (unsigned i = 0; i < rows->count; i++)
        for (unsigned k = 0; k < trace->count; k++)
            if (trace->scores[k].worker == rows->rows[i].id)
                rows->rows[i].score = trace->scores[k].score;
}

/* Whatever native functions write from here on belongs to another plan, and finds no room. */
static void close_trace(bt_record_t *rec)
{
    for (unsigned i = 0; i < 3; i++)
        if (rec->rows[i] != NULL)
            score_rows(rec->rows[i], &rec->trace);
    rec->trace.count = rec->trace.cap = 0;
}

void bt_record_candidates(bt_request_t *r, const bt_policy_view_t *view)
{
    const bt_worker_set_t *const sets[3] = {view->prefill, view->decode, view->single};
    const uint64_t now_ms = bt_clock_ms();
    bt_record_t *rec = &r->record;
    unsigned count = 0;

    if (!rec->sampled)
        return;
    if (rec->rows[0] != NULL) {
        close_trace(rec);
        return;
    }
    for (unsigned i = 0; i < 3; i++) {
        rec->rows[i] = copy_set(r, sets[i], now_ms);
        count += rec->rows[i]->count;
    }
    rec->trace = (bt_policy_trace_t){
        .scores = bt_arena_alloc(&r->arena, (count + 1) * sizeof(rec->trace.scores[0])),
        .cap = count,
    };
}

/* ---- the end ---- */

static void keep_line(bt_request_t *r, bt_text_t *line, uint64_t now_us)
{
    bt_dispatcher_t *d = r->d;

    bt_record_write(r, now_us, false, line);
    if (line->failed) {
        bt_text_fini(line); /* no memory for it: the next one may have more luck */
        return;
    }
    if (r->record.sampled && d->shared->recorder != NULL)
        bt_recorder_put(d->shared->recorder, bt_text_str(line));
    if (line->len > BT_RECORD_LINE_MAX) {
        line->len = 0;
        bt_record_write(r, now_us, true, line);
    }
    bt_record_ring_put(d->records, bt_str(r->id), bt_text_str(line));
}

void bt_record_finish(bt_request_t *r)
{
    const uint64_t now_us = bt_clock_us();

    if (r->record.wall_ms == 0) /* refused before it began */
        r->record.wall_ms = bt_clock_wall_ms() - (now_us - r->start_us) / 1000;
    close_trace(&r->record);
    if (r->d->records != NULL)
        keep_line(r, bt_record_ring_scratch(r->d->records), now_us);
}
