/* How it works: panels are written one after the other into a text, in the units of the picture; the head, which tells its size,
 * is put before them when it is saved. Two panels stand in a row, keys under the last one. Colours are classes, so one
 * media query turns the page dark. */
#include "tools/plot.h"

#include "tools/print.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#define WIDTH 440 /* of what is drawn in a panel, without its margins */
#define HEIGHT 240
#define LEFT 56
#define TOP 40
#define CELL_WIDTH (LEFT + WIDTH + 24)
#define CELL_HEIGHT (TOP + HEIGHT + 48)
#define KEY_HEIGHT 20
#define TICKS 5
#define DECADES 30 /* between the ends of a logarithmic axis, at the most */

/* Contrast to the page is 3 : 1 or better for the eight, in both; the greys stay behind. */
static const char style[] =
    "svg{background:#fff;font:12px system-ui,sans-serif}"
    "text{fill:#1c1f24}.h{font-weight:600}.n{fill:#565c66;font-size:11px}"
    ".m{text-anchor:middle}.e{text-anchor:end}.v{font-size:9px;text-anchor:middle}"
    ".g{stroke:#d5d7db}.l{fill:none;stroke:currentColor;stroke-width:2}"
    ".k{stroke:currentColor;stroke-width:6}.b{fill:currentColor}"
    ".s0{color:#8a919c}.s1{color:#b9bec6}.s2{color:#1f5fbf}.s3{color:#b35c00}"
    ".s4{color:#1b7a43}.s5{color:#7a4fb5}.s6{color:#b3261e}.s7{color:#0e7c86}"
    ".s8{color:#7a5230}.s9{color:#b0569a}"
    "@media(prefers-color-scheme:dark){svg{background:#14161a}text{fill:#e8eaee}"
    ".n{fill:#a4abb8}.g{stroke:#363b45}"
    ".s0{color:#8f97a3}.s1{color:#5f6773}.s2{color:#8ab4f8}.s3{color:#f2a65a}"
    ".s4{color:#6fcf97}.s5{color:#c3a6f0}.s6{color:#ff8a80}.s7{color:#5fd0d8}"
    ".s8{color:#d0a988}.s9{color:#e59ad2}}";

/* ---- text ---- */

/* As JSON has it, without its quotes: that is UTF-8, and control characters are seen. */
static void put_words(bt_text_t *out, const char *words)
{
    bt_text_t json;

    bt_text_init(&json);
    bt_text_json_str(&json, bt_str(words));
    out->failed |= json.failed;
    for (size_t i = 1; i + 1 < json.len; i++)
        if (strchr("<>&", json.data[i]) != NULL)
            bt_text_printf(out, "&#%d;", json.data[i]);
        else
            bt_text_put(out, (bt_str_t){json.data + i, 1});
    bt_text_fini(&json);
}

static void put_label(bt_text_t *out, const char *class, double x, double y, const char *words)
{
    bt_text_printf(out, "<text class=\"%s\" x=\"%.1f\" y=\"%.1f\">", class, x, y);
    put_words(out, words);
    bt_text_puts(out, "</text>\n");
}

static void number_text(char *out, size_t size, double n, const char *unit)
{
    const double size_of = fabs(n);

    if (size_of >= 1e6)
        snprintf(out, size, "%.4gM%s", n / 1e6, unit);
    else if (size_of >= 1e4)
        snprintf(out, size, "%.4gk%s", n / 1e3, unit);
    else
        snprintf(out, size, "%.4g%s", n, unit);
}

/* ---- axes ---- */

static double step_of(double most)
{
    const double raw = most / TICKS, decade = pow(10, floor(log10(raw))), lead = raw / decade;

    return decade * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 2.5 ? 2.5 : lead <= 5 ? 5 : 10);
}

static bt_plot_axis_t settled(const bt_plot_axis_t *wanted)
{
    bt_plot_axis_t a = *wanted;

    if (a.unit == NULL)
        a.unit = "";
    if (!(a.most > 0) || !isfinite(a.most))
        a.most = 1;
    if (a.least > 0)
        a.most = fmin(fmax(a.most, 10 * a.least), a.least * pow(10, DECADES));
    else
        a.most = ceil(a.most / step_of(a.most) - 1e-9) * step_of(a.most);
    return a;
}

/* 0 to 1; what is beyond the ends stands at them. */
static double share_of(const bt_plot_axis_t *a, double value)
{
    const double share = a->least > 0
                             ? log10(fmax(value, a->least) / a->least) / log10(a->most / a->least)
                             : value / a->most;

    return fmin(1, fmax(0, share));
}

static double x_of(const bt_plot_t *p, double value)
{
    return LEFT + WIDTH * share_of(&p->x, value);
}

static double y_of(const bt_plot_t *p, double value)
{
    return TOP + HEIGHT * (1 - share_of(&p->y, value));
}

static void draw_tick(bt_plot_t *p, double value, bool is_x)
{
    const double at = is_x ? x_of(p, value) : y_of(p, value);
    char words[48];

    number_text(words, sizeof words, value, is_x ? p->x.unit : p->y.unit);
    if (is_x) {
        bt_text_printf(&p->body, "<path class=\"g\" d=\"M%.1f %d v%d\"/>", at, TOP, HEIGHT);
        put_label(&p->body, "n m", at, TOP + HEIGHT + 16, words);
    } else {
        bt_text_printf(&p->body, "<path class=\"g\" d=\"M%d %.1f h%d\"/>", LEFT, at, WIDTH);
        put_label(&p->body, "n e", LEFT - 6, at + 4, words);
    }
}

static void draw_axis(bt_plot_t *p, bool is_x)
{
    const bt_plot_axis_t *a = is_x ? &p->x : &p->y;
    const double step = step_of(a->most);

    if (a->groups > 0)
        return;
    if (a->least > 0)
        for (double at = a->least; at <= a->most * 1.001; at *= 10)
            draw_tick(p, at, is_x);
    else
        for (unsigned i = 0; (double) i * step <= a->most * 1.001; i++)
            draw_tick(p, i * step, is_x);
}

void bt_plot_panel(bt_plot_t *p, const bt_plot_axis_t *x, const bt_plot_axis_t *y)
{
    if (p->panels > 0)
        bt_text_puts(&p->body, "</g>\n");
    bt_text_printf(&p->body, "<g transform=\"translate(%u %u)\">\n", p->panels % 2 * CELL_WIDTH,
                   p->panels / 2 * CELL_HEIGHT);
    p->panels++;
    p->x = settled(x);
    p->y = settled(y);
    put_label(&p->body, "h", LEFT, 24, y->title);
    draw_axis(p, false);
    draw_axis(p, true);
    if (x->title != NULL)
        put_label(&p->body, "n m", LEFT + WIDTH / 2.0, TOP + HEIGHT + 34, x->title);
}

/* ---- lines and bars ---- */

static void put_class(bt_text_t *out, char kind, unsigned series)
{
    const bool is_floor = series < BT_PLOT_FLOORS;
    const unsigned color = is_floor ? 0 : (series - BT_PLOT_FLOORS) % BT_PLOT_COLORS;

    bt_text_printf(out, " class=\"%c s%u\"", kind, is_floor ? series : BT_PLOT_FLOORS + color);
    if (!is_floor && (series - BT_PLOT_FLOORS) / BT_PLOT_COLORS % 2 == 1)
        bt_text_puts(out, " stroke-dasharray=\"6 3\"");
}

void bt_plot_line(bt_plot_t *p, unsigned series, const bt_plot_point_t *points, unsigned count)
{
    bt_text_puts(&p->body, "<polyline");
    put_class(&p->body, 'l', series);
    bt_text_puts(&p->body, " points=\"");
    for (unsigned i = 0; i < count; i++)
        bt_text_printf(&p->body, "%.1f,%.1f ", x_of(p, points[i].x), y_of(p, points[i].y));
    bt_text_puts(&p->body, "\"/>\n");
}

void bt_plot_bars(bt_plot_t *p, unsigned at, const char *name, const bt_plot_bar_t *bars,
                  unsigned count)
{
    const double place = (double) WIDTH / (p->x.groups > 0 ? p->x.groups : 1),
                 left = LEFT + place * at, wide = fmin(40, place * 0.8 / (count > 0 ? count : 1));
    char words[48];

    put_label(&p->body, "n m", left + place / 2, TOP + HEIGHT + 16, name);
    for (unsigned i = 0; i < count; i++) {
        const double x = left + place / 2 + wide * (i - count / 2.0), y = y_of(p, bars[i].value);
        if (!(bars[i].value > 0))
            continue;
        bt_text_puts(&p->body, "<rect");
        put_class(&p->body, 'b', bars[i].series);
        bt_text_printf(&p->body, " x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"1\"/>",
                       x + 0.5, y, wide - 1, TOP + HEIGHT - y);
        snprintf(words, sizeof words,
                 bars[i].value < 1     ? "%.2g"
                 : bars[i].value < 100 ? "%.3g"
                                       : "%.0f",
                 bars[i].value);
        put_label(&p->body, "v", x + wide / 2, y - 3, words);
    }
}

void bt_plot_key(bt_plot_t *p, unsigned series, const char *fmt, ...)
{
    const unsigned y = (p->panels + 1) / 2 * CELL_HEIGHT + KEY_HEIGHT * p->keys++ + 8;
    char words[512];
    va_list args;

    if (p->keys == 1)
        bt_text_puts(&p->body, "</g>\n"); /* of the last panel */
    va_start(args, fmt);
    vsnprintf(words, sizeof words, fmt, args);
    va_end(args);
    bt_text_puts(&p->body, "<path");
    put_class(&p->body, 'k', series);
    bt_text_printf(&p->body, " d=\"M%d %u h24\"/>", LEFT, y);
    put_label(&p->body, "", LEFT + 32, y + 4, words);
}

/* ---- the file ---- */

static int refuse(const bt_plot_t *p, int status)
{
    return bt_tool_error(status, p->who, "--plot %s: %s", p->path, strerror(errno));
}

int bt_plot_open(bt_plot_t *p, const char *who, const char *path)
{
    *p = (bt_plot_t){.who = who, .path = path};
    bt_text_init(&p->body);
    p->fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    return p->fd >= 0 ? 0 : refuse(p, BT_TOOL_WRONG);
}

static void put_head(const bt_plot_t *p, bt_text_t *out, const char *title, const char *description)
{
    const unsigned width = (p->panels > 1 ? 2 : 1) * CELL_WIDTH,
                   height = (p->panels + 1) / 2 * CELL_HEIGHT + KEY_HEIGHT * p->keys + 4;

    bt_text_printf(out,
                   "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %u %u\" width=\"%u\" "
                   "height=\"%u\" role=\"img\" aria-labelledby=\"t d\">\n<title id=\"t\">",
                   width, height, width, height);
    put_words(out, title);
    bt_text_puts(out, "</title>\n<desc id=\"d\">");
    put_words(out, description);
    bt_text_printf(out, "</desc>\n<style>%s</style>\n", style);
}

/* What is no file, such as a pipe, has nothing to be cut. */
static bool write_all(int fd, const char *data, size_t size)
{
    if (ftruncate(fd, 0) != 0 && errno != EINVAL)
        return false;
    for (size_t done = 0; done < size;) {
        const ssize_t n = write(fd, data + done, size - done);
        if (n < 0 && errno != EINTR)
            return false;
        done += n > 0 ? (size_t) n : 0;
    }
    return true;
}

int bt_plot_save(bt_plot_t *p, const char *title, const char *description)
{
    bt_text_t page;
    int status = 0;

    bt_text_init(&page);
    put_head(p, &page, title, description);
    bt_text_put(&page, bt_text_str(&p->body));
    bt_text_puts(&page, p->keys == 0 && p->panels > 0 ? "</g>\n</svg>\n" : "</svg>\n");
    errno = ENOMEM;
    if (page.failed || p->body.failed || !write_all(p->fd, page.data, page.len))
        status = refuse(p, BT_TOOL_FAILED);
    const int fd = p->fd;
    p->fd = -1;
    if (close(fd) != 0 && status == 0)
        status = refuse(p, BT_TOOL_FAILED);
    bt_text_fini(&page);
    return status;
}

void bt_plot_close(bt_plot_t *p)
{
    bt_text_fini(&p->body);
    if (p->path != NULL && p->fd >= 0)
        close(p->fd);
    *p = (bt_plot_t){.fd = -1};
}
