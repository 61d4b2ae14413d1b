/* Numbers are printed from integers, so that nothing is lost on the way and no locale can put a comma into them. */
#include "admin/metrics/prom.h"

#include <stdio.h>

void bt_prom_family(bt_prom_t *p, const char *name, const char *type, const char *help)
{
    static const char total[] = "_total";
    const size_t n = strlen(name), tail = sizeof(total) - 1;
    const bool is_counter = strcmp(type, "counter") == 0;
    int shown = (int) n;

    p->family = name;
    if (p->is_open && is_counter) { /* whose samples alone have it */
        if (n > tail && strcmp(name + n - tail, total) == 0)
            shown = (int) (n - tail);
        else
            type = "unknown";
    }
    bt_text_printf(p->out, "# HELP %.*s %s\n# TYPE %.*s %s\n", shown, name, help, shown, name,
                   type);
}

/* Length of the well-formed UTF-8 sequence at the start of s; 0 when it is none. */
static size_t utf8_length(bt_str_t s)
{
    const unsigned char *b = (const unsigned char *) s.p;
    size_t n = b[0] < 0x80 ? 1 : b[0] >= 0xc2 && b[0] < 0xe0 ? 2 : (b[0] & 0xf0) == 0xe0 ? 3 : 4;

    if (n == 1)
        return 1;
    if (b[0] < 0xc2 || b[0] > 0xf4 || s.n < n)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((b[i] & 0xc0) != 0x80)
            return 0;
    if ((b[0] == 0xe0 && b[1] < 0xa0) || (b[0] == 0xed && b[1] > 0x9f) ||
        (b[0] == 0xf0 && b[1] < 0x90) || (b[0] == 0xf4 && b[1] > 0x8f))
        return 0; /* overlong, surrogate, beyond the last code point */
    return n;
}

static void put_value(bt_text_t *out, bt_str_t value)
{
    while (value.n > 0) {
        size_t n = utf8_length(value);
        if (n == 0)
            bt_text_puts(out,
                         "\xef\xbf\xbd"); /* U+FFFD: one bad name must not cost the whole scrape */
        else if (value.p[0] == '\\')
            bt_text_puts(out, "\\\\");
        else if (value.p[0] == '"')
            bt_text_puts(out, "\\\"");
        else if (value.p[0] == '\n')
            bt_text_puts(out, "\\n");
        else
            bt_text_put(out, (bt_str_t){value.p, n});
        n = n > 0 ? n : 1;
        value = (bt_str_t){value.p + n, value.n - n};
    }
}

static void put_label(bt_text_t *out, const char *before, const bt_label_t *label)
{
    bt_text_printf(out, "%s%s=\"", before, label->name);
    put_value(out, label->value);
    bt_text_puts(out, "\"");
}

static void start_sample(bt_prom_t *p, const bt_label_t *labels, unsigned label_count)
{
    bt_text_puts(p->out, p->family);
    for (unsigned i = 0; i < label_count; i++)
        put_label(p->out, i == 0 ? "{" : ",", &labels[i]);
    bt_text_puts(p->out, label_count > 0 ? "} " : " ");
}

static void put_micro(bt_text_t *out, uint64_t micro)
{
    bt_text_printf(out, "%llu.%06llu\n", (unsigned long long) (micro / 1000000),
                   (unsigned long long) (micro % 1000000));
}

void bt_prom_int(bt_prom_t *p, const bt_label_t *labels, unsigned label_count, int64_t value)
{
    start_sample(p, labels, label_count);
    bt_text_printf(p->out, "%lld\n", (long long) value);
}

void bt_prom_count(bt_prom_t *p, const bt_label_t *labels, unsigned label_count, uint64_t value)
{
    start_sample(p, labels, label_count);
    bt_text_printf(p->out, "%llu\n", (unsigned long long) value);
}

void bt_prom_micro(bt_prom_t *p, const bt_label_t *labels, unsigned label_count, uint64_t micro)
{
    start_sample(p, labels, label_count);
    put_micro(p->out, micro);
}

void bt_prom_one(bt_prom_t *p, const char *name, const char *type, const char *help, uint64_t value)
{
    bt_prom_family(p, name, type, help);
    bt_prom_count(p, NULL, 0, value);
}

void bt_prom_one_micro(bt_prom_t *p, const char *name, const char *type, const char *help,
                       uint64_t micro)
{
    bt_prom_family(p, name, type, help);
    bt_prom_micro(p, NULL, 0, micro);
}

void bt_prom_rows(bt_prom_t *p, const bt_prom_row_t *rows, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        bt_prom_one(p, rows[i].name, rows[i].type, rows[i].help, rows[i].value);
}

static uint64_t load(const _Atomic uint64_t *value)
{
    return atomic_load_explicit(value, memory_order_relaxed);
}

/* "0.001", "2.5", "240": the bound without the zeros at its end, as other exporters write it. */
static void put_bound(bt_text_t *out, uint64_t us)
{
    char text[32];

    snprintf(text, sizeof text, "%llu.%06llu", (unsigned long long) (us / 1000000),
             (unsigned long long) (us % 1000000));
    size_t n = strlen(text);
    while (n > 1 && text[n - 1] == '0')
        n--;
    if (text[n - 1] == '.')
        n--;
    bt_text_put(out, (bt_str_t){text, n});
}

static void put_exemplar(bt_text_t *out, const bt_trace_exemplar_t *e)
{
    bt_text_printf(out, " # {trace_id=\"%.*s\"} %llu.%06llu %llu.%03llu", BT_TRACE_ID_CHARS,
                   e->trace, (unsigned long long) (e->us / 1000000),
                   (unsigned long long) (e->us % 1000000), (unsigned long long) (e->wall_ms / 1000),
                   (unsigned long long) (e->wall_ms % 1000));
}

static void put_labels(bt_prom_t *p, const char *suffix, const bt_prom_histogram_t *h)
{
    bt_text_puts(p->out, p->family);
    bt_text_puts(p->out, suffix);
    for (unsigned i = 0; i < h->label_count; i++)
        put_label(p->out, i == 0 ? "{" : ",", &h->labels[i]);
}

static void put_bucket(bt_prom_t *p, const bt_prom_histogram_t *h, unsigned b, uint64_t so_far)
{
    const unsigned unit = h->unit != 0 ? h->unit : 1;
    bt_trace_exemplar_t found;

    put_labels(p, "_bucket", h);
    bt_text_puts(p->out, h->label_count > 0 ? ",le=\"" : "{le=\"");
    if (b < BT_HISTOGRAM_BUCKETS)
        put_bound(p->out, bt_histogram_bounds_us[b] / unit);
    else
        bt_text_puts(p->out, "+Inf");
    bt_text_printf(p->out, "\"} %llu", (unsigned long long) so_far);
    if (p->is_open && h->exemplar != NULL && h->exemplar(h->user, b, &found))
        put_exemplar(p->out, &found);
    bt_text_puts(p->out, "\n");
}

/* The loops go on counting while we read: count is made of the buckets that were read, so that both always agree. */
void bt_prom_histogram(bt_prom_t *p, const bt_prom_histogram_t *h)
{
    const char *close = h->label_count > 0 ? "} " : " ";
    uint64_t so_far = 0, sum_us = 0;

    for (unsigned b = 0; b <= BT_HISTOGRAM_BUCKETS; b++) {
        for (unsigned i = 0; i < h->part_count; i++)
            so_far += load(&h->parts[i]->buckets[b]);
        put_bucket(p, h, b, so_far);
    }
    for (unsigned i = 0; i < h->part_count; i++)
        sum_us += load(&h->parts[i]->sum_us);
    put_labels(p, "_sum", h);
    bt_text_puts(p->out, close);
    put_micro(p->out, sum_us / (h->unit != 0 ? h->unit : 1));
    put_labels(p, "_count", h);
    bt_text_printf(p->out, "%s%llu\n", close, (unsigned long long) so_far);
}

void bt_prom_end(bt_prom_t *p)
{
    if (p->is_open)
        bt_text_puts(p->out, "# EOF\n");
}
