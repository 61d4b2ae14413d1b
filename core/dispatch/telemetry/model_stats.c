#include "dispatch/telemetry/model_stats.h"

#include "api/route.h"
#include "base/clock.h"
#include "dispatch/answer/usage.h"
#include "dispatch/state/model_rows.h"

#include <stdlib.h>

static const char other[] = "other";

const char *bt_model_outcome_name(enum bt_model_outcome outcome)
{
    static const char *const names[] = {"ok", "failed", "refused", "gone"};

    return names[outcome];
}

/* ---- rows ---- */

struct key {
    const char *pool, *operation;
    bt_str_t model;
};

static bool is_model(const bt_model_row_t *row, const struct key *key)
{
    return bt_str_eq(bt_str(row->model), key->model) && strcmp(row->pool, key->pool) == 0;
}

static void free_row(bt_model_row_t *row)
{
    free(row->pool);
    free(row->model);
    free(row);
}

static bt_model_row_t *new_row(const struct key *key)
{
    bt_model_row_t *row = calloc(1, sizeof(*row));

    if (row == NULL)
        return NULL;
    row->pool = bt_str_dup(bt_str(key->pool));
    row->model = bt_str_dup(key->model);
    row->operation = key->operation;
    if (row->pool == NULL || row->model == NULL) {
        free_row(row);
        return NULL;
    }
    return row;
}

/* A place is kept for what has none, whatever pools there are. Who has answered for a model in one operation makes its name known in all. */
static bt_model_row_t *find(bt_model_stats_t *s, const struct key *key, bool may_add)
{
    const bool is_last_resort = key->operation == NULL && strcmp(key->pool, other) == 0 &&
                                bt_str_eq(key->model, bt_str(other));
    const unsigned max = is_last_resort ? BT_MODEL_STATS_MAX : BT_MODEL_STATS_MAX - 1;
    bt_model_row_t *row = NULL;
    unsigned i = 0;

    for (; i < max && (row = bt_model_stats_row(s, i)) != NULL; i++)
        if (is_model(row, key)) {
            if (row->operation == key->operation)
                return row;
            may_add = true;
        }
    if (i == max || !may_add || (row = new_row(key)) == NULL)
        return NULL;
    atomic_store_explicit(&s->rows[i], row, memory_order_release);
    return row;
}

static bt_model_row_t *row_of(bt_request_t *r, bool is_answered)
{
    bt_model_stats_t *s = &r->d->model_stats;
    const bt_str_t model = r->intent.model;
    struct key key = {r->pool->spec.name, bt_route_operation(r->route), model};

    if (s->last != NULL && s->last->operation == key.operation && is_model(s->last, &key))
        return s->last;
    bt_model_row_t *row = NULL;
    /* A row's name is a C string: what a client puts behind a NUL would make a row a request. */
    if (model.n <= BT_MODEL_STATS_NAME_MAX &&
        (model.n == 0 || memchr(model.p, '\0', model.n) == NULL))
        row = find(s, &key, is_answered);
    if (row == NULL) {
        key.model = bt_str(other);
        row = find(s, &key, true);
    }
    if (row == NULL)
        row = find(s, &(struct key){other, NULL, bt_str(other)}, true);
    s->last = row;
    return row;
}

/* ---- a request ---- */

static enum bt_model_outcome outcome_of(const bt_request_t *r)
{
    if (r->status == 0)
        return BT_MODEL_GONE;
    if (r->status >= 500)
        return BT_MODEL_FAILED;
    if (r->status >= 400)
        return BT_MODEL_REFUSED;
    if (r->fail_name == NULL)
        return BT_MODEL_OK;
    return strcmp(r->fail_name, "client_gone") == 0 ? BT_MODEL_GONE : BT_MODEL_FAILED;
}

static uint64_t tpot_us(const bt_request_t *r, uint64_t us)
{
    return r->events > 1 ? (r->start_us + us - r->first_byte_us) / (r->events - 1) : 0;
}

/* Time to first token means nothing where the whole answer comes at once. */
static void judge(bt_model_row_t *row, const bt_request_t *r, enum bt_model_outcome outcome,
                  uint64_t us)
{
    const uint64_t ttft_us = r->pool->spec.ttft_target_ms * 1000,
                   itl_us = r->pool->spec.itl_target_ms * 1000;

    if ((ttft_us == 0 && itl_us == 0) || !r->intent.stream || outcome > BT_MODEL_FAILED)
        return;
    bt_stats_add_(&row->judged, 1);
    if (outcome == BT_MODEL_OK && (ttft_us == 0 || r->first_byte_us - r->start_us <= ttft_us) &&
        (itl_us == 0 || tpot_us(r, us) <= itl_us))
        bt_stats_add_(&row->good, 1);
}

static void note_times(bt_model_row_t *row, const bt_request_t *r, uint64_t us)
{
    bt_histogram_note(&row->duration, us, 1);
    if (!r->intent.stream || r->first_byte_us == 0)
        return;
    bt_histogram_note(&row->ttft, r->first_byte_us - r->start_us, 1);
    if (r->events > 1)
        bt_histogram_note(&row->tpot, tpot_us(r, us), 1);
}

void bt_model_stats_note(bt_request_t *r, uint64_t us)
{
    const enum bt_model_outcome outcome = outcome_of(r);

    if (r->pool == NULL)
        return;
    bt_model_row_t *row = row_of(r, outcome == BT_MODEL_OK);
    if (row == NULL)
        return; /* no memory */
    bt_stats_add_(&row->requests[outcome], 1);
    judge(row, r, outcome, us);
    if (outcome == BT_MODEL_OK)
        note_times(row, r, us);
    if (r->last == NULL || outcome == BT_MODEL_REFUSED)
        return;
    const bt_usage_t usage = bt_usage_of(r);
    bt_stats_add_(&row->input_tokens, usage.input);
    bt_stats_add_(&row->output_tokens, usage.output);
    bt_stats_add_(&row->cached_tokens, usage.cached);
}

void bt_model_stats_fini(bt_model_stats_t *s)
{
    for (unsigned i = 0; i < BT_MODEL_STATS_MAX; i++)
        if (s->rows[i] != NULL)
            free_row(s->rows[i]);
}
