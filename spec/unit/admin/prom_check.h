/* prom_check.h - a strict reader of the Prometheus text format 0.0.4, for specs. Fails the spec at the first fault. */
#ifndef SPEC_ADMIN_PROM_CHECK_H
#define SPEC_ADMIN_PROM_CHECK_H

#include "base/json.h"
#include "base/text.h"
#include "unit.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define FAMILIES_MAX 256
#define SERIES_MAX 8192

typedef struct prom_check {
    bt_str_t families[FAMILIES_MAX];
    unsigned family_count;
    bt_str_t series[SERIES_MAX]; /* name and labels, as printed */
    unsigned series_count;
    bt_str_t family;
    enum { NO_TYPE, COUNTER, GAUGE, HISTOGRAM } type;
    /* of the histogram being read */
    double last_le, last_bucket, count;
    bool has_inf, has_sum, has_count;
} prom_check_t;

static inline bt_str_t check_cut(bt_str_t *s, char end)
{
    const char *at = s->n > 0 ? memchr(s->p, end, s->n) : NULL;
    bt_str_t head;

    if (at == NULL)
        fail_msg("no '%c' in: %.*s", end, BT_STR_ARG(*s));
    head = (bt_str_t){s->p, (size_t) (at - s->p)};
    *s = (bt_str_t){at + 1, s->n - head.n - 1};
    return head;
}

static inline void check_name(bt_str_t name)
{
    if (name.n == 0 || isdigit((unsigned char) name.p[0]))
        fail_msg("bad name: %.*s", BT_STR_ARG(name));
    for (size_t i = 0; i < name.n; i++)
        if (!isalnum((unsigned char) name.p[i]) && name.p[i] != '_')
            fail_msg("bad name: %.*s", BT_STR_ARG(name));
}

static inline void check_utf8(bt_str_t value)
{
    bt_text_t t;

    bt_text_init(&t);
    bt_text_puts(&t, "\"");
    for (size_t i = 0; i < value.n;
         i++) /* keep what matters: bytes above ASCII and where they stand */
        bt_text_put(&t,
                    (unsigned char) value.p[i] < 0x80 ? BT_STR("x") : (bt_str_t){value.p + i, 1});
    bt_text_puts(&t, "\"");
    if (bt_json_validate(bt_text_str(&t), &(size_t){0}) != 0)
        fail_msg("not UTF-8: %.*s", BT_STR_ARG(value));
    bt_text_fini(&t);
}

/* Reads {a="b",...} off *s; le_p gets the value of "le" when there is one. */
static inline void check_labels(bt_str_t *s, bt_str_t *le_p)
{
    do {
        s->p++, s->n--; /* '{' or ',' */
        bt_str_t name = check_cut(s, '=');
        check_name(name);
        if (s->n == 0 || s->p[0] != '"')
            fail_msg("no quote after %.*s=", BT_STR_ARG(name));
        size_t i = 1;
        while (i < s->n && s->p[i] != '"') {
            if (s->p[i] == '\\') {
                i++;
                if (i >= s->n || strchr("\\\"n", s->p[i]) == NULL)
                    fail_msg("bad escape in %.*s", BT_STR_ARG(name));
            }
            i++;
        }
        if (i + 1 >= s->n)
            fail_msg("value of %.*s has no end", BT_STR_ARG(name));
        bt_str_t value = {s->p + 1, i - 1};
        check_utf8(value);
        if (bt_str_eq(name, BT_STR("le")))
            *le_p = value;
        *s = (bt_str_t){s->p + i + 1, s->n - i - 1};
    } while (s->n > 0 && s->p[0] == ',');
    if (s->n == 0 || s->p[0] != '}')
        fail_msg("labels do not end: %.*s", BT_STR_ARG(*s));
    s->p++, s->n--;
}

static inline double check_number(bt_str_t s)
{
    char number[64], *end;

    if (s.n == 0 || s.n >= sizeof number)
        fail_msg("bad value: %.*s", BT_STR_ARG(s));
    memcpy(number, s.p, s.n);
    number[s.n] = '\0';
    double value = strtod(number, &end);
    if (*end != '\0' || isspace((unsigned char) number[0]))
        fail_msg("bad value: %s", number);
    return value;
}

static inline void check_begin_histogram(prom_check_t *c)
{
    c->last_le = c->last_bucket = -1;
    c->has_inf = c->has_sum = c->has_count = false;
}

/* One of labels that nobody has yet has no series at all. */
static inline void check_end_family(const prom_check_t *c)
{
    if (c->type == HISTOGRAM && c->last_le >= 0 &&
        !(c->has_inf && c->has_sum && c->has_count && c->count == c->last_bucket))
        fail_msg("histogram %.*s is not whole", BT_STR_ARG(c->family));
}

static inline void check_comment(prom_check_t *c, bt_str_t line)
{
    bt_str_t word, name;

    (void) check_cut(&line, ' '); /* '#' */
    word = check_cut(&line, ' ');
    name = check_cut(&line, ' ');
    check_name(name);
    if (bt_str_eq(word, BT_STR("HELP"))) {
        check_end_family(c);
        assert_true(bt_str_starts(name, BT_STR("baton_")) ||
                    bt_str_starts(name, BT_STR("gen_ai_server_")));
        for (unsigned i = 0; i < c->family_count; i++)
            if (bt_str_eq(c->families[i], name))
                fail_msg("family %.*s comes twice", BT_STR_ARG(name));
        assert_true(c->family_count < FAMILIES_MAX && line.n > 0);
        c->families[c->family_count++] = c->family = name;
        c->type = NO_TYPE;
        return;
    }
    assert_true(bt_str_eq(word, BT_STR("TYPE")) && bt_str_eq(name, c->family) &&
                c->type == NO_TYPE);
    c->type = bt_str_eq(line, BT_STR("counter"))     ? COUNTER
              : bt_str_eq(line, BT_STR("gauge"))     ? GAUGE
              : bt_str_eq(line, BT_STR("histogram")) ? HISTOGRAM
                                                     : NO_TYPE;
    assert_int_not_equal(c->type, NO_TYPE);
    check_begin_histogram(c);
}

static inline void check_histogram(prom_check_t *c, bt_str_t rest, bt_str_t le, double value)
{
    if (bt_str_eq(rest, BT_STR("_sum"))) {
        c->has_sum = true;
    } else if (bt_str_eq(rest, BT_STR("_count"))) {
        c->has_count = true;
        c->count = value;
    } else {
        if (c->has_inf && c->has_sum && c->has_count && c->count == c->last_bucket)
            check_begin_histogram(c); /* of other labels */
        assert_true(bt_str_eq(rest, BT_STR("_bucket")) && le.n > 0 && !c->has_inf);
        double bound = bt_str_eq(le, BT_STR("+Inf")) ? 1e300 : check_number(le);
        if (bound <= c->last_le || value < c->last_bucket)
            fail_msg("bucket le=%.*s of %.*s is out of order", BT_STR_ARG(le),
                     BT_STR_ARG(c->family));
        c->has_inf = bound == 1e300;
        c->last_le = bound;
        c->last_bucket = value;
    }
}

static inline void check_sample(prom_check_t *c, bt_str_t line)
{
    bt_str_t whole = line, le = BT_STR(""), name;
    size_t n = 0;

    while (n < line.n && line.p[n] != '{' && line.p[n] != ' ')
        n++;
    name = (bt_str_t){line.p, n};
    check_name(name);
    line = (bt_str_t){line.p + n, line.n - n};
    if (line.n > 0 && line.p[0] == '{')
        check_labels(&line, &le);
    whole.n -= line.n;
    for (unsigned i = 0; i < c->series_count; i++)
        if (bt_str_eq(c->series[i], whole))
            fail_msg("series comes twice: %.*s", BT_STR_ARG(whole));
    assert_true(c->series_count < SERIES_MAX);
    c->series[c->series_count++] = whole;
    assert_true(line.n > 1 && line.p[0] == ' ');
    double value = check_number((bt_str_t){line.p + 1, line.n - 1});
    if (!bt_str_starts(name, c->family) || c->type == NO_TYPE)
        fail_msg("%.*s stands outside its family", BT_STR_ARG(name));
    bt_str_t rest = {name.p + c->family.n, name.n - c->family.n};
    if (c->type == HISTOGRAM)
        check_histogram(c, rest, le, value);
    else
        assert_int_equal(rest.n, 0);
    if (c->type == COUNTER)
        assert_true(value >= 0 && name.n > 6 && memcmp(name.p + name.n - 6, "_total", 6) == 0);
}

/* Number of series. */
static inline unsigned prom_check(bt_str_t text)
{
    prom_check_t *c = calloc(1, sizeof *c);
    unsigned count;

    assert_non_null(c);
    assert_true(text.n > 0 && text.p[text.n - 1] == '\n');
    while (text.n > 0) {
        bt_str_t line = check_cut(&text, '\n');
        assert_true(line.n > 0);
        if (line.p[0] == '#')
            check_comment(c, line);
        else
            check_sample(c, line);
    }
    check_end_family(c);
    count = c->series_count;
    free(c);
    return count;
}

#endif
