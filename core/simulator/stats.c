#include "simulator/stats.h"

#include "base/err.h"
#include "base/rand.h"

#include <math.h>
#include <stdlib.h>

#define BLOCK_REQUESTS 64

bool bt_sim_is_good(const bt_sim_result_t *result, const bt_sim_slo_t *slo)
{
    return result->is_served && result->ttft_ms <= slo->ttft_ms && result->tpot_ms <= slo->tpot_ms;
}

static int by_value(const void *a, const void *b)
{
    const float x = *(const float *) a, y = *(const float *) b;

    return (x > y) - (x < y);
}

static double rank(const float *sorted, unsigned count, double share)
{
    const unsigned at = (unsigned) ceil(share * count);

    return count > 0 ? (double) sorted[at > 0 ? at - 1 : 0] : 0;
}

static bt_sim_spread_t spread_of(float *values, unsigned count)
{
    double sum = 0;

    for (unsigned i = 0; i < count; i++)
        sum += (double) values[i];
    qsort(values, count, sizeof *values, by_value);
    return (bt_sim_spread_t){.mean = count > 0 ? sum / count : 0,
                             .p50 = rank(values, count, 0.5),
                             .p90 = rank(values, count, 0.9),
                             .p99 = rank(values, count, 0.99)};
}

static bt_sim_spread_t spread(const bt_sim_outcome_t *out, unsigned count, size_t offset,
                              bool skips_zero, float *values)
{
    unsigned n = 0;

    for (unsigned i = 0; i < count; i++) {
        const float value = *(const float *) ((const char *) &out->results[i] + offset);
        if (out->results[i].is_served && (value > 0 || !skips_zero))
            values[n++] = value;
    }
    return spread_of(values, n);
}

/* Engines of one role have names that begin alike. */
static double load_spread(const bt_sim_outcome_t *out)
{
    double worst = 0;

    for (const char *role = "pdw"; *role != '\0'; role++) {
        double sum = 0, squares = 0;
        unsigned n = 0;
        for (unsigned i = 0; i < out->engine_count; i++)
            if (out->engines[i].name[0] == *role) {
                sum += (double) out->engines[i].busy_s;
                squares += (double) out->engines[i].busy_s * (double) out->engines[i].busy_s;
                n++;
            }
        if (n > 1 && sum > 0)
            worst = fmax(worst, sqrt(fmax(0, squares / n - sum / n * (sum / n))) / (sum / n));
    }
    return worst;
}

int bt_sim_summarise(const bt_sim_outcome_t *out, const bt_sim_trace_t *trace,
                     const bt_sim_model_t *model, uint64_t ceiling, const bt_sim_slo_t *slo,
                     bt_sim_summary_t *summary_p)
{
    float *values = calloc((size_t) trace->count + 1, sizeof *values);
    bt_sim_summary_t s = {.requests = trace->count};
    uint64_t inputs = 0, served_inputs = 0, cached = 0, outputs = 0;

    if (values == NULL)
        return BT_E_NOMEM;
    for (unsigned i = 0; i < trace->count; i++) {
        const bt_sim_result_t *r = &out->results[i];
        const bool is_good = bt_sim_is_good(r, slo);
        inputs += trace->requests[i].input;
        s.failed += r->is_failed;
        if (!r->is_served)
            continue;
        s.served++;
        s.retried += r->attempts > 1;
        s.good += is_good;
        served_inputs += trace->requests[i].input;
        cached += r->cached;
        outputs += trace->requests[i].output;
        s.wasted_prefill_tokens += is_good ? 0 : trace->requests[i].input - r->cached;
    }
    s.ttft_ms = spread(out, trace->count, offsetof(bt_sim_result_t, ttft_ms), false, values);
    s.tpot_ms = spread(out, trace->count, offsetof(bt_sim_result_t, tpot_ms), true, values);
    s.total_ms = spread(out, trace->count, offsetof(bt_sim_result_t, total_ms), false, values);
    free(values);
    s.attainment = trace->count > 0 ? (double) s.good / trace->count : 0;
    s.goodput = out->virtual_s > 0 ? s.good / out->virtual_s : 0;
    s.output_tokens_s = out->virtual_s > 0 ? (double) outputs / out->virtual_s : 0;
    s.hit_ratio = served_inputs > 0 ? (double) cached / (double) served_inputs : 0;
    s.hit_ceiling = inputs > 0 ? (double) ceiling / (double) inputs : 0;
    s.load_spread = load_spread(out);
    for (unsigned i = 0; i < out->engine_count && out->virtual_s > 0; i++)
        s.busy += (double) out->engines[i].busy_s / out->virtual_s / out->engine_count;
    s.gpu_s = out->virtual_s * out->engine_count * model->gpus;
    s.gpu_s_per_good = s.good > 0 ? s.gpu_s / s.good : -1;
    s.cost = s.gpu_s / 3600 * model->gpu_hour_cost;
    *summary_p = s;
    return 0;
}

/* ---- after a failure ---- */

#define BEFORE_S 60
#define WINDOW_S 10
#define AS_GOOD 0.95

/* Of those that came from then to then; -1: none did. with_failed: else those that an engine took with it are no part of it. */
static double good_share(const bt_sim_outcome_t *out, unsigned count, const bt_sim_slo_t *slo,
                         double from_s, double until_s, bool with_failed)
{
    unsigned all = 0, good = 0;

    for (unsigned i = 0; i < count; i++) {
        const bt_sim_result_t *r = &out->results[i];
        if ((double) r->came_s < from_s || (double) r->came_s >= until_s ||
            (r->is_failed && !with_failed))
            continue;
        all++;
        good += bt_sim_is_good(r, slo);
    }
    return all > 0 ? (double) good / all : -1;
}

double bt_sim_recovery_s(const bt_sim_outcome_t *out, unsigned count, const bt_sim_slo_t *slo,
                         double failed_s)
{
    const double before = good_share(out, count, slo, failed_s - BEFORE_S, failed_s, false);

    if (before < 0)
        return -1;
    for (double s = failed_s; s < out->virtual_s; s += WINDOW_S) {
        const double share = good_share(out, count, slo, s, s + WINDOW_S, true);
        if (share >= AS_GOOD * before)
            return s - failed_s;
    }
    return -1;
}

/* ---- pairs ---- */

static double value_of(const bt_sim_result_t *r, const bt_sim_slo_t *slo,
                       enum bt_sim_measure measure)
{
    switch (measure) {
    case BT_SIM_TTFT:
        return (double) r->ttft_ms;
    case BT_SIM_TPOT:
        return (double) r->tpot_ms;
    case BT_SIM_TOTAL:
        return (double) r->total_ms;
    case BT_SIM_CACHED:
        return r->cached;
    case BT_SIM_GOOD:
        break;
    }
    return bt_sim_is_good(r, slo) ? 1 : 0;
}

static int by_number(const void *a, const void *b)
{
    const double x = *(const double *) a, y = *(const double *) b;

    return (x > y) - (x < y);
}

struct block {
    double sum;
    unsigned count;
};

static double draw(const struct block *blocks, unsigned count)
{
    double sum = 0;
    unsigned n = 0;

    for (unsigned i = 0; i < count; i++) {
        const struct block *b = &blocks[bt_rand_below(count)];
        sum += b->sum;
        n += b->count;
    }
    return n > 0 ? sum / n : 0;
}

int bt_sim_compare(const bt_sim_outcome_t *a, const bt_sim_outcome_t *b,
                   const bt_sim_trace_t *trace, const bt_sim_slo_t *slo,
                   enum bt_sim_measure measure, bt_sim_difference_t *difference_p)
{
    const unsigned count = (trace->count + BLOCK_REQUESTS - 1) / BLOCK_REQUESTS;
    struct block *blocks = calloc((size_t) count + 1, sizeof *blocks), all = {0};
    double *means = calloc(BT_SIM_BOOTSTRAPS, sizeof *means);
    bt_rand_state_t before;

    if (blocks == NULL || means == NULL) {
        free(blocks);
        free(means);
        return BT_E_NOMEM;
    }
    for (unsigned i = 0; i < trace->count; i++) {
        const bt_sim_result_t *x = &a->results[i], *y = &b->results[i];
        if ((!x->is_served || !y->is_served) && measure != BT_SIM_GOOD)
            continue;
        const double d = value_of(y, slo, measure) - value_of(x, slo, measure);
        blocks[i / BLOCK_REQUESTS].sum += d;
        blocks[i / BLOCK_REQUESTS].count++;
        all.sum += d;
        all.count++;
    }
    bt_rand_begin(&before, 1);
    for (unsigned i = 0; i < BT_SIM_BOOTSTRAPS; i++)
        means[i] = draw(blocks, count);
    bt_rand_end(&before);
    qsort(means, BT_SIM_BOOTSTRAPS, sizeof *means, by_number);
    *difference_p = (bt_sim_difference_t){all.count > 0 ? all.sum / all.count : 0,
                                          means[BT_SIM_BOOTSTRAPS / 40],
                                          means[BT_SIM_BOOTSTRAPS - 1 - BT_SIM_BOOTSTRAPS / 40]};
    free(blocks);
    free(means);
    return 0;
}
