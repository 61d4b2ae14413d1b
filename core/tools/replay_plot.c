/* How it works: compared records are summed in spans of equal length. When all spans are full, neighbours become one and a span is
 * twice as long: a file of any length needs the same memory and makes a picture of 32 to 64 steps. */
#include "tools/replay.h"

#include <math.h>

#define WIDTH_LEAST 16 /* a share of fewer records says little */

static void add_span(bt_replay_span_t *to, const bt_replay_span_t *span)
{
    to->same += span->same;
    for (unsigned side = 0; side < 2; side++) {
        to->prefill_tokens[side] += span->prefill_tokens[side];
        to->decode_tokens[side] += span->decode_tokens[side];
    }
}

static void merge(bt_replay_plot_t *p)
{
    for (unsigned i = 0; i < BT_REPLAY_SPANS / 2; i++) {
        bt_replay_span_t both = p->spans[2 * i];
        add_span(&both, &p->spans[2 * i + 1]);
        p->spans[i] = both;
    }
    memset(&p->spans[BT_REPLAY_SPANS / 2], 0, sizeof p->spans / 2);
    p->width *= 2;
}

/* Whoever serves alone is decode, and has the prompt's work too; what was left open has none yet. */
static void add_side(bt_replay_span_t *span, const bt_replay_workers_t *workers, unsigned side,
                     const bt_replay_side_t *choice)
{
    const bt_str_t prefill = choice->prefill.n > 0   ? choice->prefill
                             : choice->lacks_prefill ? BT_STR_NULL
                                                     : choice->decode;

    span->prefill_tokens[side] += bt_replay_load(workers, prefill, BT_PHASE_PREFILL);
    span->decode_tokens[side] += bt_replay_load(workers, choice->decode, BT_PHASE_DECODE);
}

void bt_replay_plot_add(bt_replay_plot_t *p, const bt_replay_workers_t *workers,
                        enum bt_replay_outcome outcome, const bt_replay_side_t *old,
                        const bt_replay_side_t *new)
{
    if (outcome != BT_REPLAY_SAME && outcome != BT_REPLAY_DIFFERENT)
        return;
    if (p->width == 0)
        p->width = WIDTH_LEAST;
    if (p->count == p->width * BT_REPLAY_SPANS)
        merge(p);
    bt_replay_span_t *span = &p->spans[p->count++ / p->width];
    span->same += outcome == BT_REPLAY_SAME;
    add_side(span, workers, 0, old);
    add_side(span, workers, 1, new);
}

/* ---- the picture ---- */

enum figure { SAME, PREFILL, DECODE };

/* What is left behind the last whole one is a span of its own where it is half as long. */
static unsigned span_count(const bt_replay_plot_t *p)
{
    const uint64_t count = p->count > 0 ? (p->count + p->width / 2) / p->width : 0;

    return p->count > 0 && count == 0 ? 1 : (unsigned) count;
}

static double end_of(const bt_replay_plot_t *p, unsigned span)
{
    return (double) (span + 1 == span_count(p) ? p->count : (span + 1) * p->width);
}

static bt_replay_span_t sums_of(const bt_replay_plot_t *p, unsigned span)
{
    bt_replay_span_t sums = p->spans[span];

    for (unsigned rest = span + 1; span + 1 == span_count(p) && rest < BT_REPLAY_SPANS; rest++)
        add_span(&sums, &p->spans[rest]);
    return sums;
}

static double value_of(const bt_replay_plot_t *p, unsigned span, enum figure figure, unsigned side)
{
    const bt_replay_span_t s = sums_of(p, span);
    const double records = end_of(p, span) - (double) span * (double) p->width;

    return figure == SAME      ? 100 * (double) s.same / records
           : figure == PREFILL ? s.prefill_tokens[side] / records
                               : s.decode_tokens[side] / records;
}

/* Steps: each is the mean of its span, and nothing is known between two. */
static void draw(const bt_replay_plot_t *p, bt_plot_t *out, enum figure figure, unsigned side)
{
    bt_plot_point_t points[2 * BT_REPLAY_SPANS];
    const unsigned count = span_count(p);

    for (unsigned i = 0; i < count; i++) {
        const double y = value_of(p, i, figure, side);
        points[2 * i] = (bt_plot_point_t){(double) i * (double) p->width, y};
        points[2 * i + 1] = (bt_plot_point_t){end_of(p, i), y};
    }
    bt_plot_line(out, side == 0 ? 0 : BT_PLOT_FLOORS, points, 2 * count);
}

static void draw_loads(const bt_replay_plot_t *p, bt_plot_t *out, enum figure figure,
                       const bt_plot_axis_t *x, const char *title)
{
    bt_plot_axis_t y = {.title = title};

    for (unsigned i = 0; i < span_count(p); i++)
        for (unsigned side = 0; side < 2; side++)
            y.most = fmax(y.most, value_of(p, i, figure, side));
    bt_plot_panel(out, x, &y);
    draw(p, out, figure, 0);
    draw(p, out, figure, 1);
}

int bt_replay_plot_save(const bt_replay_plot_t *p, const bt_replay_report_t *report, bt_plot_t *out)
{
    const bt_plot_axis_t x = {.title = "compared records, in the files' order",
                              .most = (double) p->count},
                         y = {.title = "Decided the same", .unit = "%", .most = 100};
    uint64_t same = 0;

    for (unsigned i = 0; i < BT_REPLAY_SPANS; i++)
        same += p->spans[i].same;
    bt_plot_panel(out, &x, &y);
    draw(p, out, SAME, 1);
    draw_loads(p, out, PREFILL, &x, "Prompt tokens on the chosen prefill worker, mean");
    draw_loads(p, out, DECODE, &x, "Tokens on the chosen decode worker, mean");
    bt_plot_key(out, 0, "old: %s", report->old_name);
    bt_plot_key(out, BT_PLOT_FLOORS, "new: %s; %.1f %% of %llu decided the same", report->new_name,
                p->count > 0 ? 100.0 * (double) same / (double) p->count : 0,
                (unsigned long long) p->count);
    return bt_plot_save(out, "Decisions, replayed",
                        "How many records the new policy decided as they were decided before, and "
                        "how many tokens were then on the workers that each of the two chose.");
}
