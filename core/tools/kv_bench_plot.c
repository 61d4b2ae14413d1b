/* Medians of the repetitions, as the ratios have them: rates by shape, and how long one page takes, each beside what the machine
 * takes for it without the library. */
#include "tools/kv_bench.h"

#include <math.h>

#define COPY_FLOOR 0u
#define WAKE_FLOOR 1u

static const char *const figure_names[] = {"p50", "p99"};
static const enum bench_figure figures[] = {BENCH_P50, BENCH_P99};

static bool is_page(const bench_shape_t *shape)
{
    return shape->pages == 1;
}

/* The floor's bar, then one of each mode that was asked for. */
static unsigned put_bars(const bench_options_t *o, const bench_rows_t *rows, const char *shape,
                         enum bench_figure figure, bt_plot_bar_t floor, bt_plot_bar_t *bars)
{
    unsigned count = 0;

    bars[count++] = floor;
    for (uint32_t t = 0; t < o->progress_count; t++)
        for (uint32_t r = 0; r < o->receiver_count; r++) {
            const bench_mode_t mode = {o->is_thread[t], o->is_sleep[r]};
            bars[count] = (bt_plot_bar_t){.series = BT_PLOT_FLOORS + count - 1,
                                          .value = bench_median(rows, NULL, &mode, shape, figure)};
            count++;
        }
    return count;
}

static unsigned rate_bars(const bench_options_t *o, const bench_rows_t *rows, const char *shape,
                          bt_plot_bar_t *bars)
{
    const double floor = bench_floor(rows, bench_floor_name(o), shape, BENCH_GBPS);

    return put_bars(o, rows, shape, BENCH_GBPS, (bt_plot_bar_t){COPY_FLOOR, floor}, bars);
}

/* Asleep as long as the receiver of a page is; over TCP the page goes with it. */
static const char *wake_floor_name(const bench_options_t *o)
{
    return o->backend == BT_KV_TCP ? "plain-tcp" : "eventfd-paced";
}

static unsigned page_bars(const bench_options_t *o, const bench_rows_t *rows,
                          enum bench_figure figure, bt_plot_bar_t *bars)
{
    const char *shape = o->backend == BT_KV_TCP ? "d" : "wake";
    const double floor = bench_median(rows, wake_floor_name(o), NULL, shape, figure);

    return put_bars(o, rows, "d", figure, (bt_plot_bar_t){WAKE_FLOOR, floor}, bars);
}

static double most_of(double most, const bt_plot_bar_t *bars, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        most = fmax(most, bars[i].value);
    return most;
}

static void draw_rates(const bench_options_t *o, const bench_rows_t *rows, bt_plot_t *out)
{
    bt_plot_bar_t bars[BENCH_MODES + 1];
    bt_plot_axis_t x = {.title = "shape (baton kv-bench --help)"}, y = {.title = "Rate, GB/s"};
    unsigned at = 0;

    for (unsigned i = 0; i < BENCH_SHAPES; i++) {
        if (!o->shapes[i] || is_page(&bench_shapes[i]))
            continue;
        x.groups++;
        y.most = most_of(y.most, bars, rate_bars(o, rows, bench_shapes[i].name, bars));
    }
    if (x.groups == 0)
        return;
    bt_plot_panel(out, &x, &y);
    for (unsigned i = 0; i < BENCH_SHAPES; i++)
        if (o->shapes[i] && !is_page(&bench_shapes[i]))
            bt_plot_bars(out, at++, bench_shapes[i].name, bars,
                         rate_bars(o, rows, bench_shapes[i].name, bars));
}

static void draw_pages(const bench_options_t *o, const bench_rows_t *rows, bt_plot_t *out)
{
    bt_plot_bar_t bars[BENCH_MODES + 1];
    const bt_plot_axis_t x = {.groups = 2};
    bt_plot_axis_t y = {.title = "One page at a time (d), us", .least = 1};
    bool is_asked = false;

    for (unsigned i = 0; i < BENCH_SHAPES; i++)
        is_asked |= o->shapes[i] && is_page(&bench_shapes[i]);
    if (!is_asked)
        return;
    for (unsigned i = 0; i < x.groups; i++)
        y.most = most_of(y.most, bars, page_bars(o, rows, figures[i], bars));
    y.most *= 1.5; /* room for the figure above the tallest one */
    bt_plot_panel(out, &x, &y);
    for (unsigned i = 0; i < x.groups; i++)
        bt_plot_bars(out, i, figure_names[i], bars, page_bars(o, rows, figures[i], bars));
}

static void draw_keys(const bench_options_t *o, bt_plot_t *out)
{
    unsigned series = BT_PLOT_FLOORS;

    bt_plot_key(out, COPY_FLOOR, "rate of %s, without the library",
                strcmp(bench_floor_name(o), "copy") == 0
                    ? "memcpy or stores around the cache, the better one"
                    : bench_floor_name(o));
    bt_plot_key(out, WAKE_FLOOR, "one page: %s, without the library", wake_floor_name(o));
    for (uint32_t t = 0; t < o->progress_count; t++)
        for (uint32_t r = 0; r < o->receiver_count; r++)
            bt_plot_key(out, series++, "libbaton_kv, %s, memory: %s, moved by %s, receiver %s",
                        o->backend_name, o->memory,
                        o->is_thread[t] ? "its own thread" : "the caller",
                        o->is_sleep[r] ? "asleep" : "polling");
}

int bench_draw(const bench_options_t *o, const bench_rows_t *rows, bt_plot_t *out)
{
    draw_rates(o, rows, out);
    draw_pages(o, rows, out);
    draw_keys(o, out);
    return bt_plot_save(out, "KV transfer beside its floors",
                        "Rate of each shape and time of one page, medians, beside what the machine "
                        "does without the library.");
}
