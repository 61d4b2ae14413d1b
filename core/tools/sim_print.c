#include "tools/sim.h"

#include "base/err.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- a table ---- */

static void put_fleet(const bt_sim_setup_t *s, char *out, size_t size)
{
    if (s->hybrids > 0)
        snprintf(out, size, "%u alone", s->hybrids);
    else
        snprintf(out, size, "%uP + %uD%s", s->prefills, s->decodes,
                 s->follows_advice ? ", switching" : "");
}

static void put_label(const bt_sim_options_t *o, const bt_sim_row_t *row, char *out, size_t size)
{
    if (o->advises)
        put_fleet(&row->setup, out, size);
    else
        snprintf(out, size, "%s", row->outcome->label);
}

static double prompt_tokens_of(const bt_sim_trace_t *trace)
{
    uint64_t tokens = 0;

    for (unsigned i = 0; i < trace->count; i++)
        tokens += trace->requests[i].input;
    return (double) tokens;
}

static void print_row(const bt_sim_options_t *o, const bt_sim_row_t *row)
{
    const bt_sim_summary_t *s = &row->summary;
    char label[96], gpu[32] = "-";

    put_label(o, row, label, sizeof label);
    if (s->gpu_s_per_good >= 0)
        snprintf(gpu, sizeof gpu, "%.2f", s->gpu_s_per_good);
    printf("%-26.26s %8.2f %6.1f %8.0f %8.0f %8.0f %7.1f %7.1f %6.1f %8.0f %6.2f %5.0f %6s %7u "
           "%6u\n",
           label, s->goodput, 100 * s->attainment, s->ttft_ms.p50, s->ttft_ms.p90, s->ttft_ms.p99,
           s->tpot_ms.p50, s->tpot_ms.p99, 100 * s->hit_ratio, s->output_tokens_s, s->load_spread,
           100 * s->busy, gpu, s->requests - s->served - s->failed, s->failed);
}

static void put_seconds(char *out, size_t size, double s)
{
    if (s >= 0)
        snprintf(out, size, "%.1f s", s);
    else
        snprintf(out, size, "never");
}

static void print_switches(const bt_sim_row_t *row)
{
    for (unsigned i = 0; i < row->outcome->switch_count; i++) {
        const bt_sim_switch_result_t *s = &row->outcome->switches[i];
        printf("%s, %s is to %s from %.1f s on", row->outcome->label, s->name,
               s->is_to_prefill ? "prefill" : "decode", s->asked_s);
        if (s->done_s >= 0)
            printf(": it does, %.1f s later\n", s->done_s - s->asked_s);
        else
            puts(": it never does (the last of its role, switching already, or not idle in time)");
    }
}

static void print_failures(const bt_sim_options_t *o, const bt_sim_trace_t *trace,
                           const bt_sim_row_t *row)
{
    for (unsigned i = 0; i < row->outcome->failure_count; i++) {
        const bt_sim_failure_result_t *f = &row->outcome->failures[i];
        char known[24], usable[24], recovered[24];
        put_seconds(known, sizeof known, f->known_s < 0 ? -1 : f->known_s - f->from_s);
        put_seconds(usable, sizeof usable, f->usable_s < 0 ? -1 : f->usable_s - f->from_s);
        put_seconds(recovered, sizeof recovered,
                    bt_sim_recovery_s(row->outcome, trace->count, &o->slo, f->from_s));
        printf("%s, %s down at %g s: known after %s, used again after %s; legs lost %u, refused "
               "%u; retries %u, requests failed %u; as many good as before after %s\n",
               row->outcome->label, f->name, f->from_s, known, usable, f->lost, f->refused,
               f->retried, f->failed, recovered);
    }
}

static void sum_preempted(const bt_sim_outcome_t *run, uint64_t *times, uint64_t *tokens)
{
    for (unsigned i = 0; i < run->engine_count; i++) {
        *times += run->engines[i].preempted;
        *tokens += run->engines[i].recomputed_tokens;
    }
}

/* 0 of nobody. */
static double mean(double sum, unsigned count)
{
    return count > 0 ? sum / count : 0;
}

static bool is_used(const bt_sim_class_result_t *c)
{
    unsigned n = c->at_once;

    for (unsigned end = 0; end < BT_QUEUE_ENDS; end++)
        n += c->ends[end];
    return n > 0;
}

static void print_queue(const bt_sim_row_t *row)
{
    for (unsigned i = 0; i < BT_FAIR_CLASSES; i++) {
        const bt_sim_class_result_t *c = &row->outcome->classes[i];
        if (is_used(c))
            printf("%s, queue, class %s: %u at once; %u waited, %.2f s on average, %.2f at most, "
                   "predicted to %.2f s; refused: %u full, %u put out, %u too long, %u timed out\n",
                   row->outcome->label, bt_fair_class_name((enum bt_fair_class) i), c->at_once,
                   c->ends[BT_QUEUE_CALLED], mean(c->waited_s, c->ends[BT_QUEUE_CALLED]), c->most_s,
                   mean(c->error_s, c->predicted), c->ends[BT_QUEUE_FULL],
                   c->ends[BT_QUEUE_PUT_OUT], c->ends[BT_QUEUE_TOO_LONG],
                   c->ends[BT_QUEUE_TIMEOUT]);
    }
}

static void print_preempted(const bt_sim_row_t *row)
{
    uint64_t times = 0, tokens = 0;

    sum_preempted(row->outcome, &times, &tokens);
    if (times > 0)
        printf("%s: preempted %llu times, %llu tokens computed again\n", row->outcome->label,
               (unsigned long long) times, (unsigned long long) tokens);
}

static const struct measure {
    enum bt_sim_measure measure;
    const char *name, *unit;
    double factor;
} measures[] = {{BT_SIM_GOOD, "good requests", "points", 100},
                {BT_SIM_TTFT, "ttft", "ms", 1},
                {BT_SIM_TPOT, "tpot", "ms", 1},
                {BT_SIM_CACHED, "cached tokens", "a request", 1}};
#define MEASURE_COUNT (sizeof measures / sizeof measures[0])

static void print_comparison(const bt_sim_options_t *o, const bt_sim_trace_t *trace,
                             const bt_sim_row_t *a, const bt_sim_row_t *b)
{
    bt_sim_difference_t d;

    printf("%s less %s:", b->outcome->label, a->outcome->label);
    for (size_t i = 0; i < MEASURE_COUNT; i++) {
        const struct measure *m = &measures[i];
        if (bt_sim_compare(a->outcome, b->outcome, trace, &o->slo, m->measure, &d) < 0)
            continue;
        printf("%s %s %+.1f %s [%+.1f, %+.1f]%s", i > 0 ? ";" : "", m->name, d.mean * m->factor,
               m->unit, d.low * m->factor, d.high * m->factor,
               d.low <= 0 && d.high >= 0 ? " (may be chance)" : "");
    }
    putchar('\n');
}

static const bt_sim_row_t *best_of(const bt_sim_row_t *rows, unsigned count)
{
    const bt_sim_row_t *best = rows;

    for (unsigned i = 1; i < count; i++) {
        const bt_sim_summary_t *s = &rows[i].summary, *b = &best->summary;
        if (s->good > b->good || (s->good == b->good && s->ttft_ms.mean < b->ttft_ms.mean))
            best = &rows[i];
    }
    return best;
}

/* What of it is choice, and what is memory. */
static void print_ceilings(const bt_sim_ceilings_t *c, double prompt_tokens)
{
    for (unsigned i = 0; i < c->memory_count; i++)
        printf("one cache of %s %u blocks: %.1f %% as engines forget, %.1f %% if it knew what "
               "comes\n",
               i + 1 < c->memory_count ? "prefill's" : "all", c->memories[i].blocks,
               100 * (double) c->memories[i].lru / prompt_tokens,
               100 * (double) c->memories[i].best / prompt_tokens);
    putchar('\n');
}

static void print_table(const bt_sim_options_t *o, const bt_sim_model_t *model,
                        const bt_sim_trace_t *trace, const bt_sim_ceilings_t *ceilings,
                        const bt_sim_row_t *rows, unsigned count)
{
    const double last_s = trace->requests[trace->count - 1].at_s;
    char fleet[48];

    put_fleet(&rows[0].setup, fleet, sizeof fleet);
    printf("%u requests", trace->count);
    if (o->concurrency > 0)
        printf(", %u at once", o->concurrency);
    else
        printf(" in %.0f s", last_s);
    if (!o->advises)
        printf(", %s", fleet);
    printf(", engines: %s; good: ttft <= %g ms, tpot <= %g ms", model->name, o->slo.ttft_ms,
           o->slo.tpot_ms);
    if (trace->has_prefixes)
        printf("; prefix index: %s",
               o->prefix_index == BT_SIM_INDEX_EXACT ? "exact" : "approximate");
    if (trace->has_prefixes)
        printf("; at most %.1f %% of prompt tokens can be hit\n",
               100 * rows[0].summary.hit_ceiling);
    else
        printf("; the trace has no prefixes\n");
    print_ceilings(ceilings, prompt_tokens_of(trace));
    if (trace->note[0] != '\0')
        printf("%s\n\n", trace->note);
    printf("%-26s %8s %6s %8s %8s %8s %7s %7s %6s %8s %6s %5s %6s %7s %6s\n",
           o->advises ? "fleet" : "policy", "good/s", "good%", "ttft p50", "p90", "p99", "tpot p50",
           "p99", "hit%", "tokens/s", "spread", "busy%", "gpu-s", "refused", "failed");
    for (unsigned i = 0; i < count; i++)
        print_row(o, &rows[i]);
    if (count > 1)
        putchar('\n');
    for (unsigned i = 1; !o->advises && i < count; i++)
        print_comparison(o, trace, &rows[0], &rows[i]);
    for (unsigned i = 0; i < count; i++)
        print_failures(o, trace, &rows[i]);
    for (unsigned i = 0; i < count; i++)
        print_switches(&rows[i]);
    for (unsigned i = 0; i < count; i++)
        print_queue(&rows[i]);
    for (unsigned i = 0; i < count; i++)
        print_preempted(&rows[i]);
    for (unsigned i = 0; i < count; i++)
        if (rows[i].outcome->policy_errors > 0)
            printf("%s failed in %llu plans, the least loaded served them: %s\n",
                   rows[i].outcome->label, (unsigned long long) rows[i].outcome->policy_errors,
                   rows[i].outcome->err);
    for (unsigned i = 0; i < count; i++)
        if (rows[i].outcome->unserved_waits > 0)
            printf("%s: %llu waits of its hooks got an error: the simulator has no store and calls "
                   "nobody\n",
                   rows[i].outcome->label, (unsigned long long) rows[i].outcome->unserved_waits);
    if (o->advises) {
        put_fleet(&best_of(rows, count)->setup, fleet, sizeof fleet);
        printf("most good requests: %s\n", fleet);
    }
}

/* ---- JSON ---- */

static void put_spread(bt_text_t *out, const char *name, const bt_sim_spread_t *s)
{
    bt_text_printf(out, ",\"%s\":{\"mean\":%.3f,\"p50\":%.3f,\"p90\":%.3f,\"p99\":%.3f}", name,
                   s->mean, s->p50, s->p90, s->p99);
}

/* -1: it has none. */
static void put_when(bt_text_t *out, const char *name, double s)
{
    if (s >= 0)
        bt_text_printf(out, ",\"%s\":%.3f", name, s);
    else
        bt_text_printf(out, ",\"%s\":null", name);
}

static void put_failures(bt_text_t *out, const bt_sim_options_t *o, const bt_sim_trace_t *trace,
                         const bt_sim_row_t *row)
{
    bt_text_puts(out, ",\"failures\":[");
    for (unsigned i = 0; i < row->outcome->failure_count; i++) {
        const bt_sim_failure_result_t *f = &row->outcome->failures[i];
        bt_text_printf(out, "%s{\"engine\":\"%s\",\"at_s\":%g", i > 0 ? "," : "", f->name,
                       f->from_s);
        put_when(out, "back_s", isfinite(f->until_s) ? f->until_s : -1);
        put_when(out, "known_s", f->known_s);
        put_when(out, "usable_s", f->usable_s);
        put_when(out, "recovery_s",
                 bt_sim_recovery_s(row->outcome, trace->count, &o->slo, f->from_s));
        bt_text_printf(out, ",\"lost\":%u,\"refused\":%u,\"retried\":%u,\"failed\":%u}", f->lost,
                       f->refused, f->retried, f->failed);
    }
    bt_text_puts(out, "]");
}

static void put_switches(bt_text_t *out, const bt_sim_outcome_t *run)
{
    bt_text_puts(out, ",\"switches\":[");
    for (unsigned i = 0; i < run->switch_count; i++) {
        const bt_sim_switch_result_t *s = &run->switches[i];
        bt_text_printf(out, "%s{\"engine\":\"%s\",\"to\":\"%s\",\"asked_s\":%.3f", i > 0 ? "," : "",
                       s->name, s->is_to_prefill ? "prefill" : "decode", s->asked_s);
        put_when(out, "done_s", s->done_s);
        bt_text_puts(out, "}");
    }
    bt_text_puts(out, "]");
}

static void put_queue(bt_text_t *out, const bt_sim_outcome_t *run)
{
    const char *comma = "";

    bt_text_puts(out, ",\"queue\":[");
    for (unsigned i = 0; i < BT_FAIR_CLASSES; i++) {
        const bt_sim_class_result_t *c = &run->classes[i];
        if (!is_used(c))
            continue;
        bt_text_printf(out, "%s{\"class\":\"%s\",\"at_once\":%u", comma,
                       bt_fair_class_name((enum bt_fair_class) i), c->at_once);
        for (unsigned end = 0; end < BT_QUEUE_GONE; end++)
            bt_text_printf(out, ",\"%s\":%u", bt_queue_end_name((enum bt_queue_end) end),
                           c->ends[end]);
        bt_text_printf(out, ",\"waited_s\":%.4f,\"most_s\":%.4f,\"prediction_error_s\":%.4f}",
                       mean(c->waited_s, c->ends[BT_QUEUE_CALLED]), c->most_s,
                       mean(c->error_s, c->predicted));
        comma = ",";
    }
    bt_text_puts(out, "]");
}

static void put_ceilings(bt_text_t *out, const bt_sim_ceilings_t *c, double prompt_tokens)
{
    bt_text_puts(out, ",\"ceilings\":[");
    for (unsigned i = 0; i < c->memory_count; i++)
        bt_text_printf(out, "%s{\"blocks\":%u,\"lru\":%.5f,\"best\":%.5f}", i > 0 ? "," : "",
                       c->memories[i].blocks, (double) c->memories[i].lru / prompt_tokens,
                       (double) c->memories[i].best / prompt_tokens);
    bt_text_puts(out, "]");
}

static void put_run(bt_text_t *out, const bt_sim_options_t *o, const bt_sim_trace_t *trace,
                    const bt_sim_ceilings_t *ceilings, const bt_sim_row_t *row)
{
    const bt_sim_summary_t *s = &row->summary;
    const bt_sim_outcome_t *run = row->outcome;
    uint64_t preempted = 0, recomputed = 0;

    bt_text_puts(out, "{\"policy\":");
    bt_text_json_str(out, bt_str(run->label));
    bt_text_printf(out,
                   ",\"prefill\":%u,\"decode\":%u,\"hybrid\":%u,\"requests\":%u,\"served\":%u,"
                   "\"failed\":%u,\"retried\":%u,\"good\":%u,\"goodput\":%.4f,"
                   "\"attainment\":%.5f",
                   row->setup.prefills, row->setup.decodes, row->setup.hybrids, s->requests,
                   s->served, s->failed, s->retried, s->good, s->goodput, s->attainment);
    put_spread(out, "ttft_ms", &s->ttft_ms);
    put_spread(out, "tpot_ms", &s->tpot_ms);
    put_spread(out, "total_ms", &s->total_ms);
    bt_text_printf(out,
                   ",\"output_tokens_s\":%.2f,\"hit_ratio\":%.5f,\"hit_ceiling\":%.5f,"
                   "\"load_spread\":%.4f,\"busy\":%.4f,\"gpu_s\":%.3f,"
                   "\"cost\":%.6g,\"wasted_prefill_tokens\":%llu,"
                   "\"virtual_s\":%.3f,\"policy_errors\":%llu,\"unserved_waits\":%llu,\"wall_s\":%."
                   "3f,\"plan_us\":%.2f",
                   s->output_tokens_s, s->hit_ratio, s->hit_ceiling, s->load_spread, s->busy,
                   s->gpu_s, s->cost, (unsigned long long) s->wasted_prefill_tokens, run->virtual_s,
                   (unsigned long long) run->policy_errors,
                   (unsigned long long) run->unserved_waits, run->wall_s, run->plan_us);
    put_ceilings(out, ceilings, prompt_tokens_of(trace));
    put_when(out, "gpu_s_per_good", s->gpu_s_per_good);
    if (trace->note[0] != '\0') {
        bt_text_puts(out, ",\"trace_note\":");
        bt_text_json_str(out, bt_str(trace->note));
    }
    if (run->failure_count > 0)
        put_failures(out, o, trace, row);
    if (run->switch_count > 0)
        put_switches(out, run);
    sum_preempted(run, &preempted, &recomputed);
    bt_text_printf(out, ",\"preempted\":%llu,\"recomputed_tokens\":%llu",
                   (unsigned long long) preempted, (unsigned long long) recomputed);
    if (row->setup.queue.places > 0)
        put_queue(out, run);
    bt_text_puts(out, "}\n");
}

static void put_comparison(bt_text_t *out, const bt_sim_options_t *o, const bt_sim_trace_t *trace,
                           const bt_sim_row_t *a, const bt_sim_row_t *b)
{
    static const char *const names[] = {"good", "ttft_ms", "tpot_ms", "cached"};
    bt_sim_difference_t d;

    bt_text_puts(out, "{\"policy\":");
    bt_text_json_str(out, bt_str(b->outcome->label));
    bt_text_puts(out, ",\"less\":");
    bt_text_json_str(out, bt_str(a->outcome->label));
    for (size_t i = 0; i < MEASURE_COUNT; i++)
        if (bt_sim_compare(a->outcome, b->outcome, trace, &o->slo, measures[i].measure, &d) == 0)
            bt_text_printf(out, ",\"%s\":{\"mean\":%.5f,\"low\":%.5f,\"high\":%.5f}", names[i],
                           d.mean, d.low, d.high);
    bt_text_puts(out, "}\n");
}

void bt_sim_print(const bt_sim_options_t *o, const bt_sim_model_t *model,
                  const bt_sim_trace_t *trace, const bt_sim_ceilings_t *ceilings,
                  const bt_sim_row_t *rows, unsigned count)
{
    bt_text_t out;

    if (!o->is_json) {
        print_table(o, model, trace, ceilings, rows, count);
        return;
    }
    bt_text_init(&out);
    for (unsigned i = 0; i < count; i++)
        put_run(&out, o, trace, ceilings, &rows[i]);
    for (unsigned i = 1; !o->advises && i < count; i++)
        put_comparison(&out, o, trace, &rows[0], &rows[i]);
    fwrite(out.data, 1, out.len, stdout);
    bt_text_fini(&out);
}

/* ---- a plot ---- */

#define POINTS 100

static int by_value(const void *a, const void *b)
{
    const float x = *(const float *) a, y = *(const float *) b;

    return (x > y) - (x < y);
}

static unsigned sorted(const bt_sim_outcome_t *out, unsigned count, bool is_tpot, float *values)
{
    unsigned n = 0;

    for (unsigned i = 0; i < count; i++)
        if (out->results[i].is_served)
            values[n++] = is_tpot ? out->results[i].tpot_ms : out->results[i].ttft_ms;
    qsort(values, n, sizeof *values, by_value);
    return n;
}

static void draw_run(bt_plot_t *plot, unsigned series, const float *values, unsigned count)
{
    bt_plot_point_t points[POINTS + 1];

    for (unsigned i = 0; i <= POINTS && count > 0; i++)
        points[i] = (bt_plot_point_t){(double) values[(uint64_t) i * (count - 1) / POINTS],
                                      100.0 * i / POINTS};
    bt_plot_line(plot, series, points, count > 0 ? POINTS + 1 : 0);
}

/* Logarithmic from 1 ms on: what is slow must not hide what is fast. */
static void draw_panel(bt_plot_t *plot, const bt_sim_trace_t *trace, const bt_sim_row_t *rows,
                       unsigned count, bool is_tpot, float *values)
{
    bt_plot_axis_t x = {.least = 1, .title = "ms"},
                   y = {.most = 100,
                        .unit = "%",
                        .title = is_tpot ? "Time per output token, share of requests"
                                         : "Time to first token, share of requests"};

    for (unsigned i = 0; i < count; i++) {
        const unsigned n = sorted(rows[i].outcome, trace->count, is_tpot, values);
        x.most = fmax(x.most, n > 0 ? (double) values[n - 1] : 0);
    }
    bt_plot_panel(plot, &x, &y);
    for (unsigned i = 0; i < count; i++)
        draw_run(plot, BT_PLOT_FLOORS + i, values,
                 sorted(rows[i].outcome, trace->count, is_tpot, values));
}

int bt_sim_plot(bt_plot_t *plot, const bt_sim_trace_t *trace, const bt_sim_row_t *rows,
                unsigned count)
{
    float *values = calloc(trace->count, sizeof *values);

    if (values == NULL)
        return bt_tool_error(BT_TOOL_FAILED, "sim: ", "%s", bt_err_text(BT_E_NOMEM));
    draw_panel(plot, trace, rows, count, false, values);
    draw_panel(plot, trace, rows, count, true, values);
    free(values);
    for (unsigned i = 0; i < count; i++)
        bt_plot_key(plot, BT_PLOT_FLOORS + i, "%s, %u prefill, %u decode, %u alone: %.1f %% good",
                    rows[i].outcome->label, rows[i].setup.prefills, rows[i].setup.decodes,
                    rows[i].setup.hybrids, 100 * rows[i].summary.attainment);
    return bt_plot_save(plot, "Latencies by policy, simulated",
                        "Time to first token and time per output token: how large a share of the "
                        "requests was at least as fast, a line a run.");
}
