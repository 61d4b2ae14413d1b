/* Rows of all loops with the same pool and model are one. Loops go on adding rows meanwhile: what was found first is what is printed. */
#include "admin/metrics.h"

#include <stdlib.h>

typedef struct model {
    const bt_model_row_t *first;
    const bt_model_row_t **parts; /* one a loop, at most */
    unsigned part_count;
} model_t;

typedef struct models {
    model_t *all;
    const bt_model_row_t **parts; /* of all */
    unsigned count, loops;
} models_t;

static uint64_t load(const _Atomic uint64_t *value)
{
    return atomic_load_explicit(value, memory_order_relaxed);
}

static void add(models_t *m, const bt_model_row_t *row)
{
    model_t *at = m->all;

    while (at < m->all + m->count &&
           (strcmp(at->first->pool, row->pool) != 0 || strcmp(at->first->model, row->model) != 0))
        at++;
    if (at == m->all + m->count) {
        at->first = row;
        at->parts = m->parts + m->loops * m->count++;
    }
    if (at->part_count < m->loops) /* one a loop */
        at->parts[at->part_count++] = row;
}

static bool gather(models_t *m, const bt_dispatch_shared_t *shared)
{
    const size_t max = (size_t) shared->dispatcher_count * BT_MODEL_STATS_MAX + 1;

    m->loops = shared->dispatcher_count;
    m->all = calloc(max, sizeof(*m->all));
    m->parts = calloc(max * (m->loops + 1), sizeof(*m->parts));
    if (m->all == NULL || m->parts == NULL)
        return false;
    for (unsigned i = 0; i < m->loops; i++) {
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

    for (unsigned i = 0; i < m->part_count; i++)
        sum +=
            load((const _Atomic uint64_t *) (const void *) ((const char *) m->parts[i] + offset));
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

static void write_histogram(bt_prom_t *p, const model_t *m, size_t offset,
                            const bt_histogram_t **parts)
{
    bt_label_t labels[2];

    put_labels(m, labels);
    for (unsigned i = 0; i < m->part_count; i++)
        parts[i] = (const void *) ((const char *) m->parts[i] + offset);
    bt_prom_histogram(
        p, &(bt_prom_histogram_t){
               .labels = labels, .label_count = 2, .parts = parts, .part_count = m->part_count});
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
    const bt_histogram_t **parts = calloc(models->loops + 1, sizeof(*parts));

    for (unsigned r = 0; parts != NULL && r < sizeof(rows) / sizeof(rows[0]); r++) {
        bt_prom_family(p, rows[r].name, "histogram", rows[r].help);
        for (unsigned i = 0; i < models->count; i++)
            write_histogram(p, &models->all[i], rows[r].offset, parts);
    }
    free(parts);
}

void bt_metrics_models(bt_prom_t *p, const bt_dispatch_shared_t *shared)
{
    models_t models = {0};

    if (gather(&models, shared)) {
        write_requests(p, &models);
        write_counters(p, &models);
        write_histograms(p, &models);
    }
    free(models.all);
    free(models.parts);
}
