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
#include "dispatch/state/request_state.h"

#include <math.h>

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
    if (config->sample > 0 && bt_rand_unit() < config->sample)
        rec->sample = bt_arena_zalloc(&r->arena, sizeof(*rec->sample));
    if (config->headers != NULL)
        keep_headers(r, config->headers);
}

/* ---- candidates ---- */

static bool is_kept(const struct bt_record_sample *s, unsigned lists, uint64_t id)
{
    for (unsigned i = 0; i < lists; i++)
        for (unsigned k = 0; k < s->rows[i]->count; k++)
            if (s->rows[i]->rows[k].id == id)
                return true;
    return false;
}

/* A worker that stands in an earlier list has its row there, and only its id here. */
static struct bt_record_rows *copy_set(bt_request_t *r, unsigned list, const bt_worker_set_t *set,
                                       uint64_t now_ms)
{
    const unsigned total = set != NULL ? set->count : 0;
    const unsigned count = total < BT_RECORD_ROWS ? total : BT_RECORD_ROWS;
    struct bt_record_rows *rows =
        bt_arena_alloc(&r->arena, sizeof(*rows) + count * sizeof(rows->rows[0]));

    rows->total = total;
    rows->count = count;
    for (unsigned i = 0; i < count; i++) {
        bt_text_t *json = bt_record_ring_scratch(r->d->records);
        bt_record_draft_t *draft = bt_record_ring_draft(r->d->records);
        if (is_kept(r->record.sample, list, set->items[i]->id))
            bt_record_draft_put(draft, BT_STR("{\"id\":"), BT_DRAFT_U64, set->items[i]->id);
        else
            bt_record_put_worker(set->items[i], now_ms, draft);
        bt_record_draft_render(bt_record_draft_str(draft), json);
        rows->rows[i] = (struct bt_record_row){.id = set->items[i]->id,
                                               .json = bt_arena_str(&r->arena, bt_text_str(json)),
                                               .score = NAN};
    }
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
static void close_trace(struct bt_record_sample *s)
{
    for (unsigned i = 0; i < BT_LIST_COUNT; i++)
        if (s->rows[i] != NULL)
            score_rows(s->rows[i], &s->trace);
    if (s->trace.reads != NULL) {
        s->reads = (bt_str_t){s->trace.reads, s->trace.reads_len};
        s->reads_cut = s->trace.reads_cut;
    }
    s->trace = (bt_policy_trace_t){.scores = s->trace.scores};
}

void bt_record_candidates(bt_request_t *r, const bt_policy_view_t *view)
{
    struct bt_record_sample *s = r->record.sample;
    unsigned count = 0;

    if (s == NULL)
        return;
    if (s->rows[0] != NULL) {
        close_trace(s);
        return;
    }
    s->seed = bt_rand_u64() | 1;
    s->clock_us = bt_clock_event_us();
    for (unsigned i = 0; i < BT_LIST_COUNT; i++) {
        s->rows[i] = copy_set(r, i, view->sets[i], s->clock_us / 1000);
        count += s->rows[i]->count;
    }
    s->trace = (bt_policy_trace_t){
        .scores = bt_arena_alloc(&r->arena, (count + 1) * sizeof(s->trace.scores[0])),
        .cap = count,
        .seed = s->seed,
        .now_us = s->clock_us,
        .reads = bt_arena_alloc(&r->arena, BT_POLICY_READS_BYTES),
        .reads_cap = BT_POLICY_READS_BYTES,
    };
}

/* Its workers may go before the record does. */
void bt_record_rests(bt_request_t *r, const bt_worker_t *p, const bt_worker_t *d)
{
    r->record.rests[0] = bt_arena_str(&r->arena, bt_str(p->name)).p;
    r->record.rests[1] = bt_arena_str(&r->arena, bt_str(d->name)).p;
}

/* ---- the end ---- */

static void write_text(const bt_request_t *r, uint64_t now_us, bool is_brief, bt_text_t *line)
{
    bt_record_draft_t *draft = bt_record_ring_draft(r->d->records);

    line->len = 0;
    bt_record_write(r, now_us, is_brief, draft);
    bt_record_draft_render(bt_record_draft_str(draft), line);
    line->failed |= draft->failed;
}

/* Of a sampled one the file has the text, and the ring too: its candidates may be too much for that. */
static void keep_text(bt_request_t *r, bt_text_t *line, uint64_t now_us)
{
    bt_dispatcher_t *d = r->d;

    write_text(r, now_us, false, line);
    if (line->failed) {
        bt_text_fini(line); /* no memory for it: the next one may have more luck */
        return;
    }
    if (r->record.sample != NULL && d->shared->recorder != NULL)
        bt_recorder_put(d->shared->recorder, bt_text_str(line));
    if (line->len > BT_RECORD_LINE_MAX)
        write_text(r, now_us, true, line);
    bt_record_ring_put(d->records, bt_str(r->id), bt_text_str(line));
}

/* A draft is a little longer than its text: one that does not fit is tried as that. */
static void keep_line(bt_request_t *r, uint64_t now_us)
{
    bt_record_ring_t *ring = r->d->records;
    bt_record_draft_t *draft = bt_record_ring_draft(ring);

    if (r->record.sample == NULL) {
        bt_record_write(r, now_us, false, draft);
        if (!draft->failed && bt_record_ring_put_draft(ring, bt_str(r->id), draft))
            return;
    }
    keep_text(r, bt_record_ring_scratch(ring), now_us);
}

void bt_record_finish(bt_request_t *r)
{
    const uint64_t now_us = bt_clock_event_us();

    if (r->record.wall_ms == 0) /* refused before it began */
        r->record.wall_ms = bt_clock_wall_ms() - (now_us - r->start_us) / 1000;
    if (r->record.sample != NULL)
        close_trace(r->record.sample);
    if (r->d->records != NULL)
        keep_line(r, now_us);
}
