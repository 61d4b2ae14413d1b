/* The pages of each shape, what a row is made of, and the order of things. */
#include "tools/kv_bench.h"

#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

const bench_shape_t bench_shapes[BENCH_SHAPES] = {
    {"a", 4096, 4096, 1, false}, {"b", 2000, 1, 1, false}, {"c", 2000, 16, 1, false},
    {"d", 1, 1, 1, false},       {"e1", 256, 1, 1, true},  {"e8", 256, 1, 8, true},
    {"e32", 256, 1, 32, true},
};

/* ---- pages ---- */
static uint32_t orders[2][2][BENCH_PAGES]; /* from, to; of pages, of runs of 16 */

static void shuffle(uint32_t *order, uint32_t n, uint64_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        order[i] = i;
    for (uint32_t i = n - 1; i > 0; i--) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        uint32_t j = (uint32_t) ((seed >> 33) % (i + 1)), was = order[i];
        order[i] = order[j];
        order[j] = was;
    }
}

void bench_pages_init(void)
{
    for (uint32_t side = 0; side < 2; side++) {
        shuffle(orders[side][0], BENCH_PAGES, 11 + side);
        shuffle(orders[side][1], BENCH_PAGES / 16, 21 + side);
    }
}

static uint32_t page_of(const bench_shape_t *shape, uint32_t side, uint32_t i)
{
    if (shape->run == 1)
        return orders[side][0][i];
    if (shape->run == 16)
        return orders[side][1][i / 16] * 16 + i % 16;
    return i;
}

/* Operations take turns with the pool's parts, so that as many in a row as fit share no page. */
void bench_pages(const bench_shape_t *shape, uint32_t k, uint32_t *from, uint32_t *to)
{
    uint32_t first = k % (BENCH_PAGES / shape->pages) * shape->pages;

    for (uint32_t i = 0; i < shape->pages; i++) {
        from[i] = page_of(shape, 0, first + i);
        to[i] = page_of(shape, 1, first + i);
    }
}

uint32_t bench_pieces(const bench_shape_t *shape, const uint32_t *pages, char *base,
                      struct iovec *iov)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < shape->pages; i += shape->run, n++) {
        uint32_t left = shape->pages - i;
        iov[n] = (struct iovec){base + pages[i] * BENCH_PAGE,
                                BENCH_PAGE * (left < shape->run ? left : shape->run)};
    }
    return n;
}

/* ---- rows ---- */
static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *) a, y = *(const uint64_t *) b;
    return (x > y) - (x < y);
}

double bench_percentile(uint64_t *ns, size_t n, double p)
{
    if (n == 0)
        return 0;
    qsort(ns, n, sizeof *ns, compare);
    return (double) ns[(size_t) ((double) (n - 1) * p)] / 1e3;
}

bench_row_t *bench_row(bench_rows_t *rows, const char *engine, const bench_shape_t *shape,
                       uint32_t rep)
{
    bench_row_t *row = &rows->at[rows->count < BENCH_ROWS - 1 ? rows->count++ : rows->count];

    *row = (bench_row_t){
        .shape = shape->name, .rep = rep, .rooms = shape->in_flight, .descs = shape->pages};
    snprintf(row->engine, sizeof row->engine, "%s", engine);
    return row;
}

void bench_row_fill(bench_row_t *row, const bench_shape_t *shape, uint64_t *ns, uint64_t n,
                    uint64_t sum_ns, uint64_t tx_cpu_ns, uint64_t rx_cpu_ns)
{
    size_t kept = n < BENCH_SAMPLES ? (size_t) n : BENCH_SAMPLES;
    double bytes = (double) n * shape->pages * (double) BENCH_PAGE;

    row->n = n;
    row->p50 = bench_percentile(ns, kept, 0.5);
    row->p99 = bench_percentile(ns, kept, 0.99);
    if (sum_ns == 0 || shape->pages == 0)
        return;
    row->gbps = bytes / (double) sum_ns;
    row->desc_per_s = (double) n * shape->pages * 1e9 / (double) sum_ns;
    row->tx_cpu = (double) tx_cpu_ns / bytes;
    row->rx_cpu = (double) rx_cpu_ns / bytes;
}

/* ---- the run ---- */
static void tell(const bench_options_t *o, uint32_t rep, const char *what)
{
    if (isatty(STDERR_FILENO) == 1 && (o->is_json || isatty(STDOUT_FILENO) == 0))
        fprintf(stderr, "\rkv-bench: repetition %u of %u: %-30s", rep, o->reps, what);
}

static int run_cells(const bench_options_t *o, bench_shared_t *shared, bench_rows_t *rows,
                     uint32_t rep)
{
    int status = 0;

    for (uint32_t t = 0; t < o->progress_count; t++)
        for (uint32_t r = 0; r < o->receiver_count; r++)
            for (uint32_t i = 0; i < BENCH_SHAPES; i++) {
                bench_mode_t mode = {o->is_thread[t], o->is_sleep[r]};
                if (!o->shapes[i])
                    continue;
                tell(o, rep, bench_shapes[i].name);
                if (bench_cell(o, shared, &mode, &bench_shapes[i], rows, rep) != 0) {
                    status = 1;
                    continue;
                }
                bench_print_row(o, &rows->at[rows->count - 1]);
                status |= rows->at[rows->count - 1].bad > 0;
            }
    return status;
}

int bt_kv_bench(int argc, const char *const *argv)
{
    static bench_rows_t rows;
    bench_options_t o;
    bt_plot_t plot = {.fd = -1};
    int status = bench_options_read(&o, argc, argv);

    if (status == 0 && o.plot != NULL)
        status = bt_plot_open(&plot, "kv-bench: ", o.plot);
    if (status != 0)
        return status;
    bench_shared_t *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
                                  MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (shared == MAP_FAILED) {
        fputs("baton: kv-bench: no shared memory\n", stderr);
        bt_plot_close(&plot);
        return 1;
    }
    bt_log_set(BT_LOG_WARN, false, STDERR_FILENO);
    bench_pages_init();
    bench_pin(0);
    bench_print_head(&o);
    for (uint32_t rep = 1; rep <= o.reps; rep++) {
        tell(&o, rep, "floors");
        bench_floors(&o, shared, &rows, rep);
        status |= run_cells(&o, shared, &rows, rep);
    }
    tell(&o, o.reps, "done\n");
    bench_print_ratios(&o, &rows);
    if (o.plot != NULL && bench_draw(&o, &rows, &plot) != 0)
        status = 1;
    bt_plot_close(&plot);
    munmap(shared, sizeof *shared);
    return status;
}
