/* Rows of all loops with the same pool and model are one; under the GenAI conventions' names, those with the same operation.
 * Loops go on adding rows meanwhile: what was found first is what is printed. */
#include "admin/metrics/metrics.h"
#include "dispatch/telemetry/model_stats.h"
#include "trace/span.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct part {
    const bt_model_row_t *row;
    struct part *next;
} part_t;

typedef struct model {
    const bt_model_row_t *first;
    part_t *parts;
} model_t;

typedef struct models {
    model_t *all;
    part_t *parts;                /* of all */
    const bt_histogram_t **found; /* room for those of one model */
    unsigned count, part_count, max;
    bool by_operation;
} models_t;

static uint64_t load(const _Atomic uint64_t *value)
{
    return atomic_load_explicit(value, memory_order_relaxed);
}

static bool is_same(const models_t *m, const bt_model_row_t *a, const bt_model_row_t *b)
{
    return strcmp(a->pool, b->pool) == 0 && strcmp(a->model, b->model) == 0 &&
           (!m->by_operation || strcmp(a->operation, b->operation) == 0);
}

static void add(models_t *m, const bt_model_row_t *row)
{
    model_t *at = m->all;

    if (m->part_count == m->max || (m->by_operation && row->operation == NULL))
        return;
    while (at < m->all + m->count && !is_same(m, at->first, row))
        at++;
    if (at == m->all + m->count) {
        at->first = row;
        m->count++;
    }
    part_t *part = &m->parts[m->part_count++];
    *part = (part_t){row, at->parts};
    at->parts = part;
}

static bool gather(models_t *m, const bt_dispatch_shared_t *shared)
{
    m->max = shared->dispatcher_count * BT_MODEL_STATS_MAX;
    m->all = calloc((size_t) m->max + 1, sizeof(*m->all));
    m->parts = calloc((size_t) m->max + 1, sizeof(*m->parts));
    m->found = calloc((size_t) m->max + 1, sizeof(*m->found));
    if (m->all == NULL || m->parts == NULL || m->found == NULL)
        return false;
    for (unsigned i = 0; i < shared->dispatcher_count; i++) {
        const bt_model_row_t *row;
        for (unsigned k = 0;
             (row = bt_model_stats_row(&shared->dispatchers[i]->model_stats, k)) != NULL; k++)
            add(m, row);
    }
    return true;
}

/* ---- families ---- */

static void put_labels(const model_t *m, bt_label_t labels[2])
{
    labels[0] = (bt_label_t){"pool", bt_str(m->first->pool)};
    labels[1] = (bt_label_t){"model", bt_str(m->first->model)};
}

static uint64_t sum_at(const model_t *m, size_t offset)
{
    uint64_t sum = 0;

    for (const part_t *part = m->parts; part != NULL; part = part->next)
        sum += load((const _Atomic uint64_t *) (const void *) ((const char *) part->row + offset));
    return sum;
}

static void write_requests(bt_prom_t *p, const models_t *models)
{
    bt_label_t labels[3];

    bt_prom_family(
        p, "baton_model_requests_total", "counter",
        "Requests by pool, model and how they ended; failed: 5xx or a broken answer, gone: "
        "the client left");
    for (unsigned i = 0; i < models->count; i++)
        for (unsigned o = 0; o < BT_MODEL_OUTCOMES; o++) {
            put_labels(&models->all[i], labels);
            labels[2] =
                (bt_label_t){"outcome", bt_str(bt_model_outcome_name((enum bt_model_outcome) o))};
            bt_prom_count(p, labels, 3,
                          sum_at(&models->all[i], offsetof(bt_model_row_t, requests) +
                                                      o * sizeof(_Atomic uint64_t)));
        }
}

static void write_counters(bt_prom_t *p, const models_t *models)
{
    static const struct {
        const char *name, *help;
        size_t offset;
    } rows[] = {
        {"baton_input_tokens_total", "Prompt tokens, as engines say them, else estimated",
         offsetof(bt_model_row_t, input_tokens)},
        {"baton_output_tokens_total",
         "Tokens of answers: events of streams, else as engines say them; of one worker's JSON "
         "only "
         "where it is read for traces, observe or the JSON access log",
         offsetof(bt_model_row_t, output_tokens)},
        {"baton_cached_tokens_total", "Prompt tokens that an engine's prefix cache had",
         offsetof(bt_model_row_t, cached_tokens)},
        {"baton_slo_requests_total", "Streams of pools with --ttft-target-ms or --itl-target-ms",
         offsetof(bt_model_row_t, judged)},
        {"baton_slo_good_requests_total", "Of these, those within the targets: goodput",
         offsetof(bt_model_row_t, good)},
    };
    bt_label_t labels[2];

    for (unsigned r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
        bt_prom_family(p, rows[r].name, "counter", rows[r].help);
        for (unsigned i = 0; i < models->count; i++) {
            put_labels(&models->all[i], labels);
            bt_prom_count(p, labels, 2, sum_at(&models->all[i], rows[r].offset));
        }
    }
}

static void write_histogram(bt_prom_t *p, const models_t *models, const model_t *m, size_t offset,
                            const bt_label_t *labels, unsigned label_count)
{
    unsigned n = 0;

    for (const part_t *part = m->parts; part != NULL; part = part->next)
        models->found[n++] = (const void *) ((const char *) part->row + offset);
    bt_prom_histogram(p, &(bt_prom_histogram_t){.labels = labels,
                                                .label_count = label_count,
                                                .parts = models->found,
                                                .part_count = n});
}

static void write_histograms(bt_prom_t *p, const models_t *models)
{
    static const struct {
        const char *name, *help;
        size_t offset;
    } rows[] = {
        {"baton_model_ttft_seconds", "From a stream's arrival to its first answer byte",
         offsetof(bt_model_row_t, ttft)},
        {"baton_model_tpot_seconds", "A stream's time per output token after the first",
         offsetof(bt_model_row_t, tpot)},
        {"baton_model_request_duration_seconds", "From a request's arrival to its last answer byte",
         offsetof(bt_model_row_t, duration)},
    };
    bt_label_t labels[2];

    for (unsigned r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
        bt_prom_family(p, rows[r].name, "histogram", rows[r].help);
        for (unsigned i = 0; i < models->count; i++) {
            put_labels(&models->all[i], labels);
            write_histogram(p, models, &models->all[i], rows[r].offset, labels, 2);
        }
    }
}

/* ---- the same under the GenAI conventions' names ---- */

/* provider: who answers is the gateway; a pool may have several engines. */
static void write_gen_ai(bt_prom_t *p, const models_t *models)
{
    static const struct {
        const char *name, *help;
        size_t offset;
    } rows[] = {
        {BT_GEN_AI_DURATION, "Time to the last byte of answers that ended well",
         offsetof(bt_model_row_t, duration)},
        {BT_GEN_AI_TTFT, "Time to a stream's first answer byte", offsetof(bt_model_row_t, ttft)},
        {BT_GEN_AI_TPOT, "A stream's time per output token after the first",
         offsetof(bt_model_row_t, tpot)},
    };
    static const enum bt_trace_attribute attributes[] = {BT_TRACE_OPERATION, BT_TRACE_PROVIDER,
                                                         BT_TRACE_MODEL, BT_TRACE_POOL};
    char names[4][48];
    bt_label_t labels[4];

    for (unsigned i = 0; i < 4; i++) {
        snprintf(names[i], sizeof names[i], "%s", bt_trace_attribute_name(attributes[i]));
        for (char *dot = names[i]; (dot = strchr(dot, '.')) != NULL;)
            *dot = '_';
        labels[i].name = names[i];
    }
    labels[1].value = BT_STR("baton");
    for (unsigned r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
        bt_prom_family(p, rows[r].name, "histogram", rows[r].help);
        for (unsigned i = 0; i < models->count; i++) {
            const model_t *m = &models->all[i];
            labels[0].value = bt_str(m->first->operation);
            labels[2].value = bt_str(m->first->model);
            labels[3].value = bt_str(m->first->pool);
            write_histogram(p, models, m, rows[r].offset, labels, 4);
        }
    }
}

static void drop(models_t *models)
{
    free(models->all);
    free(models->parts);
    free(models->found);
}

void bt_metrics_models(bt_prom_t *p, const bt_dispatch_shared_t *shared)
{
    models_t models = {0};

    if (gather(&models, shared)) {
        write_requests(p, &models);
        write_counters(p, &models);
        write_histograms(p, &models);
    }
    drop(&models);
}

void bt_metrics_gen_ai(bt_prom_t *p, const bt_dispatch_shared_t *shared)
{
    models_t models = {.by_operation = true};

    if (gather(&models, shared))
        write_gen_ai(p, &models);
    drop(&models);
}
