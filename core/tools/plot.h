/* plot.h - a page of SVG: panels with lines or bars, a key for their colours; light or dark as its reader's screen is.
 *
 * Owner: the command that draws (sim, replay, kv-bench).
 * Life:  open -> panel, then its lines or bars, panel by panel; keys -> save. close ends it at any time.
 * Flow:  open comes before the work, so that a path which cannot be written is told first; what stood in the file goes with save.
 * Cost:  memory of the picture. No fonts, no scripts: one file that any browser shows.
 */
#ifndef BT_TOOLS_PLOT_H
#define BT_TOOLS_PLOT_H

#include "base/text.h"

#define BT_PLOT_FLOORS 2u /* series 0 and 1 are grey: what the others are held against */
#define BT_PLOT_COLORS 8u /* series from there on; their lines are dashed from the ninth on */

typedef struct bt_plot_axis {
    const char *title; /* x: under its ticks, NULL = none; y: the panel's own */
    const char *unit;  /* behind a tick's number, such as "%" */
    double most;       /* its end; a linear one is rounded up to a tick */
    double least;      /* above 0: logarithmic, from here on */
    unsigned groups;   /* x alone: places for bars, without numbers */
} bt_plot_axis_t;

typedef struct bt_plot {
    const char *who, *path;
    int fd;         /* -1 = none is open */
    bt_text_t body; /* of the panels and keys */
    unsigned panels, keys;
    bt_plot_axis_t x, y; /* of the last panel */
} bt_plot_t;

typedef struct bt_plot_point {
    double x, y;
} bt_plot_point_t;

typedef struct bt_plot_bar {
    unsigned series;
    double value; /* not above 0: not measured */
} bt_plot_bar_t;

/* who: "sim: ", for lines on stderr. 0, or an exit status. */
int bt_plot_open(bt_plot_t *p, const char *who, const char *path);
void bt_plot_panel(bt_plot_t *p, const bt_plot_axis_t *x, const bt_plot_axis_t *y);
void bt_plot_line(bt_plot_t *p, unsigned series, const bt_plot_point_t *points, unsigned count);
/* The bars of the at-th group, side by side, and its name under them. */
void bt_plot_bars(bt_plot_t *p, unsigned at, const char *name, const bt_plot_bar_t *bars,
                  unsigned count);
void bt_plot_key(bt_plot_t *p, unsigned series, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* title and description: for whoever does not see the picture. 0, or an exit status. */
int bt_plot_save(bt_plot_t *p, const char *title, const char *description);
void bt_plot_close(bt_plot_t *p); /* nothing where it is not open */

#endif
