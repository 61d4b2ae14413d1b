/* Columns for people as nixlbench has them (block, batch, rate, prep, post, transfer), JSON lines for programs, and the aims of the transfer engine as ratios of
 * medians within this run. A ratio whose rows were not asked for is left out. */
#include "tools/kv_bench.h"

#include <stdio.h>
#include <stdlib.h>

void bench_print_head(const bench_options_t *o)
{
    if (!o->is_json)
        printf("%-26s %-9s %3s %7s %5s %5s %7s %9s %9s %9s %8s %8s %8s %7s %7s %10s %6s %4s "
               "%s\n",
               "engine", "shape", "rep", "n", "rooms", "descs", "GB/s", "p50_us", "p99_us",
               "local_us", "prep_us", "post_us", "cpu_s/GB", "tx", "rx", "desc/s", "merge", "bad",
               "copy");
}

static void print_json(const bench_options_t *o, const bench_row_t *r)
{
    printf("{\"engine\":\"%s\",\"shape\":\"%s\",\"rep\":%u,\"n\":%llu,\"rooms\":%u,\"descs\":%u,"
           "\"gbps\":%.4f,\"p50_us\":%.3f,\"p99_us\":%.3f,\"local_p50_us\":%.3f,\"prep_p50_us\":"
           "%.3f,\"post_p50_us\":%.3f,\"cpu_s_per_gb\":%.4f,\"tx_cpu\":%.4f,\"rx_cpu\":%.4f,"
           "\"desc_per_s\":%.0f,\"bad\":%llu,\"merge\":%.2f",
           r->engine, r->shape, r->rep, (unsigned long long) r->n, r->rooms, r->descs, r->gbps,
           r->p50, r->p99, r->local_p50, r->prep_p50, r->post_p50, r->tx_cpu + r->rx_cpu, r->tx_cpu,
           r->rx_cpu, r->desc_per_s, (unsigned long long) r->bad, r->merge);
    if (r->copy[0] != '\0')
        printf(",\"copy\":\"%s\"", r->copy);
    if (o->label != NULL)
        printf(",\"label\":\"%s\"", o->label); /* checked: plain characters */
    puts("}");
}

void bench_print_row(const bench_options_t *o, const bench_row_t *r)
{
    if (o->is_json)
        print_json(o, r);
    else
        printf("%-26s %-9s %3u %7llu %5u %5u %7.2f %9.1f %9.1f %9.1f %8.2f %8.2f %8.3f %7.3f "
               "%7.3f %10.0f %6.1f %4llu %s\n",
               r->engine, r->shape, r->rep, (unsigned long long) r->n, r->rooms, r->descs, r->gbps,
               r->p50, r->p99, r->local_p50, r->prep_p50, r->post_p50, r->tx_cpu + r->rx_cpu,
               r->tx_cpu, r->rx_cpu, r->desc_per_s, r->merge, (unsigned long long) r->bad, r->copy);
    fflush(stdout);
}

/* ---- medians ---- */
static int compare(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;
    return (x > y) - (x < y);
}

static double figure_of(const bench_row_t *r, enum bench_figure which)
{
    switch (which) {
    case BENCH_GBPS:
        return r->gbps;
    case BENCH_P50:
        return r->p50;
    case BENCH_P99:
        return r->p99;
    case BENCH_CPU:
        return r->tx_cpu + r->rx_cpu;
    }
    return 0;
}

double bench_median(const bench_rows_t *rows, const char *engine, const bench_mode_t *mode,
                    const char *shape, enum bench_figure which)
{
    double all[BENCH_ROWS];
    size_t n = 0;

    for (uint32_t i = 0; i < rows->count; i++) {
        const bench_row_t *r = &rows->at[i];
        if (r->is_floor != (mode == NULL) || strcmp(r->shape, shape) != 0 || r->n == 0)
            continue;
        if (mode == NULL
                ? strcmp(r->engine, engine) != 0
                : r->mode.is_thread != mode->is_thread || r->mode.is_sleep != mode->is_sleep)
            continue;
        all[n++] = figure_of(r, which);
    }
    qsort(all, n, sizeof(*all), compare);
    return n == 0 ? 0 : all[n / 2];
}

double bench_floor(const bench_rows_t *rows, const char *floor, const char *shape,
                   enum bench_figure which)
{
    if (strcmp(floor, "copy") != 0)
        return bench_median(rows, floor, NULL, shape, which);
    double plain = bench_median(rows, "memcpy", NULL, shape, which);
    double stream = bench_median(rows, "stream", NULL, shape, which);
    bool is_better = which == BENCH_GBPS ? stream > plain : stream < plain;
    return stream > 0 && is_better ? stream : plain;
}

const char *bench_floor_name(const bench_options_t *o)
{
    return o->backend == BT_KV_TCP                    ? "plain-tcp"
           : o->backend == BT_KV_SHM && o->is_private ? "process_vm_readv"
                                                      : "copy";
}

/* ---- aims ---- */
typedef struct aims {
    const bench_options_t *o;
    const bench_rows_t *rows;
    bench_mode_t mode;
} aims_t;

static void aim(const aims_t *a, const char *what, double have, bool is_floor_there, bool is_least,
                double wanted)
{
    const char *verdict = (is_least ? have >= wanted : have <= wanted) ? "met" : "missed";

    if (have <= 0 || !is_floor_there)
        return;
    if (a->o->is_json)
        printf("{\"aim\":\"%s\",\"progress\":\"%s\",\"receiver\":\"%s\",\"have\":%.3f,\"%s\":%.3f,"
               "\"verdict\":\"%s\"}\n",
               what, a->mode.is_thread ? "thread" : "caller", a->mode.is_sleep ? "sleep" : "poll",
               have, is_least ? "at_least" : "at_most", wanted, verdict);
    else
        printf("%-44s %-6s %-5s %8.3f   %s %.2f   %s\n", what,
               a->mode.is_thread ? "thread" : "caller", a->mode.is_sleep ? "sleep" : "poll", have,
               is_least ? ">=" : "<=", wanted, verdict);
}

static void ratio(const aims_t *a, const char *shape, enum bench_figure which, const char *floor,
                  const char *floor_shape, bool is_least, double wanted)
{
    static const char *const names[] = {"rate", "p50", "p99", "CPU"};
    double have = bench_median(a->rows, NULL, &a->mode, shape, which);
    double there = bench_floor(a->rows, floor, floor_shape, which);
    char what[80];

    snprintf(what, sizeof what, "%s %s / %s", shape, names[which], floor);
    aim(a, what, there > 0 ? have / there : 0, there > 0, is_least, wanted);
}

static void bulk(const aims_t *a)
{
    static const char *const shapes[] = {"a", "b", "c", "e1", "e8", "e32"};
    const char *floor = bench_floor_name(a->o);
    double b = bench_median(a->rows, NULL, &a->mode, "b", BENCH_GBPS);

    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (a->o->backend == BT_KV_TCP || (shapes[i][0] != 'e' || shapes[i][1] == '8'))
            ratio(a, shapes[i], BENCH_GBPS, floor, shapes[i], true, 0.95);
    if (a->o->is_private && b > 0)
        aim(a, "c rate / b rate", bench_median(a->rows, NULL, &a->mode, "c", BENCH_GBPS) / b, true,
            true, 1.3);
    if (a->mode.is_sleep && a->o->is_private) /* what the kernel takes for it */
        ratio(a, "b", BENCH_CPU, "process_vm_readv", "b", false, 1.15);
    if (a->mode.is_sleep)
        ratio(a, "b", BENCH_CPU, a->o->backend == BT_KV_TCP ? "plain-tcp" : "copy", "b", false,
              a->o->backend == BT_KV_TCP ? 1.1 : 1.15);
}

static void latency(const aims_t *a)
{
    double p50 = bench_median(a->rows, NULL, &a->mode, "d", BENCH_P50);
    double p99 = bench_median(a->rows, NULL, &a->mode, "d", BENCH_P99);

    if (a->mode.is_thread) {
        aim(a, "d p99, us", p99, true, false, 150);
    } else if (a->mode.is_sleep) {
        ratio(a, "d", BENCH_P50, a->o->backend == BT_KV_TCP ? "tcp-pingpong" : "eventfd",
              "pingpong", false, 1.0);
        if (a->o->backend ==
            BT_KV_TCP) /* what the machine takes for it, asleep as long and with the page */
            ratio(a, "d", BENCH_P50, "plain-tcp", "d", false, 1.0);
        else
            ratio(a, "d", BENCH_P50, "eventfd-paced", "wake", false, 1.0);
    } else if (a->o->backend == BT_KV_SHM) {
        aim(a, "d p50, us", p50, true, false, 2.5);
        aim(a, "d p99, us", p99, true, false, 6);
    }
}

static void rooms(const aims_t *a)
{
    double e1 = bench_median(a->rows, NULL, &a->mode, "e1", BENCH_GBPS);
    double e32 = bench_median(a->rows, NULL, &a->mode, "e32", BENCH_GBPS);
    double p50 = bench_median(a->rows, NULL, &a->mode, "e32", BENCH_P50);

    aim(a, "e32 rate / e1 rate", e1 > 0 ? e32 / e1 : 0, true, true, 0.95);
    aim(a, "e32 p99 / e32 p50",
        p50 > 0 ? bench_median(a->rows, NULL, &a->mode, "e32", BENCH_P99) / p50 : 0, true, false,
        4);
}

void bench_print_ratios(const bench_options_t *o, const bench_rows_t *rows)
{
    bench_mode_t polled = {false, false};
    uint64_t bad = 0;

    for (uint32_t i = 0; i < rows->count; i++)
        bad += rows->at[i].bad;
    if (!o->is_json)
        puts("");
    for (uint32_t t = 0; t < o->progress_count; t++)
        for (uint32_t s = 0; s < o->receiver_count; s++) {
            aims_t a = {o, rows, {o->is_thread[t], o->is_sleep[s]}};
            bulk(&a);
            latency(&a);
            rooms(&a);
            double caller = bench_median(rows, NULL, &polled, "b", BENCH_GBPS);
            if (a.mode.is_thread && caller > 0)
                aim(&a, "b rate / b rate, caller, poll",
                    bench_median(rows, NULL, &a.mode, "b", BENCH_GBPS) / caller, true, true, 0.8);
        }
    if (!o->is_json)
        printf("verified: %llu wrong blocks\n", (unsigned long long) bad);
}
