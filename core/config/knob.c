/* Numbers pass through a double: every limit here is far below 2^53, and one conversion then serves flags and file. */
#include "config/knob.h"

#include "base/err.h"
#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define EXPECTED_MAX 256

static void *at(const bt_knob_t *knob, void *base)
{
    return (char *) base + knob->offset;
}

static const void *at_const(const bt_knob_t *knob, const void *base)
{
    return (const char *) base + knob->offset;
}

static unsigned *count_at(const bt_knob_t *knob, void *base)
{
    return (unsigned *) (void *) ((char *) base + knob->count_offset);
}

static unsigned count_of(const bt_knob_t *knob, const void *base)
{
    return *(const unsigned *) (const void *) ((const char *) base + knob->count_offset);
}

/* ---- describing ---- */

static void describe_words(const bt_word_t *words, char *out, size_t size)
{
    size_t n = (size_t) snprintf(out, size, "one of ");
    const char *comma = "";
    for (; words->word != NULL && n < size; words++) {
        if (words->hidden)
            continue;
        n += (size_t) snprintf(out + n, size - n, "%s%s", comma, words->word);
        comma = ", ";
    }
}

void bt_knob_expected(const bt_knob_t *knob, char *out, size_t size)
{
    switch (knob->kind) {
    case BT_KNOB_BOOL:
        snprintf(out, size, "true or false");
        return;
    case BT_KNOB_UINT:
    case BT_KNOB_INT:
    case BT_KNOB_U64:
    case BT_KNOB_SIZE:
        snprintf(out, size, "a %snumber from %.15g to %.15g", knob->scale == 0 ? "whole " : "",
                 knob->min, knob->max);
        return;
    case BT_KNOB_PORT:
        snprintf(out, size, "a port from 1 to 65535, or none");
        return;
    case BT_KNOB_WORD:
        describe_words(knob->words, out, size);
        return;
    case BT_KNOB_TEXTS:
        snprintf(out, size, "a list of up to %u strings", knob->list_max);
        return;
    case BT_KNOB_LABELS:
        snprintf(out, size, "labels as \"k=v,k=v\" or a table of strings");
        return;
    default:
        snprintf(out, size, "a string that is not empty");
    }
}

static int refuse(const bt_knob_t *knob, const char *got, char *err, size_t err_size)
{
    char expected[EXPECTED_MAX];
    bt_knob_expected(knob, expected, sizeof expected);
    snprintf(err, err_size, "expected %s, got %.120s", expected, got);
    return BT_E_CONFIG;
}

static int refuse_text(const bt_knob_t *knob, bt_str_t text, char *err, size_t err_size)
{
    char got[128];
    snprintf(got, sizeof got, "\"%.*s\"", (int) (text.n < 100 ? text.n : 100), text.p);
    return refuse(knob, got, err, err_size);
}

static int refuse_value(const bt_knob_t *knob, const bt_value_t *v, char *err, size_t err_size)
{
    char got[128];
    switch (v->type) {
    case BT_VALUE_BOOL:
        snprintf(got, sizeof got, "%s", v->boolean ? "true" : "false");
        break;
    case BT_VALUE_NUMBER:
        snprintf(got, sizeof got, "%.15g", v->number);
        break;
    case BT_VALUE_STRING:
        return refuse_text(knob, bt_str(v->string), err, err_size);
    default:
        snprintf(got, sizeof got, "%s", v->type == BT_VALUE_LIST ? "a list" : "a table");
    }
    return refuse(knob, got, err, err_size);
}

/* ---- storing ---- */

static int store_text(char **to, const char *prefix, const char *sep, bt_str_t s)
{
    bt_text_t t;
    bt_text_init(&t);
    bt_text_printf(&t, "%s%s%.*s", prefix, sep, BT_STR_ARG(s));
    char *copy = t.failed ? NULL : bt_str_dup(bt_text_str(&t));
    bt_text_fini(&t);
    if (copy == NULL)
        return BT_E_NOMEM;
    free(*to);
    *to = copy;
    return 0;
}

static int append_text(const bt_knob_t *knob, void *base, bt_str_t s)
{
    char **items = at(knob, base);
    unsigned *count = count_at(knob, base);
    if (*count >= knob->list_max)
        return BT_E_LIMIT;
    items[*count] = bt_str_dup(s);
    if (items[*count] == NULL)
        return BT_E_NOMEM;
    (*count)++;
    return 0;
}

/* False: out of range, or a fraction where none makes sense. */
static bool store_number(const bt_knob_t *knob, void *base, double written)
{
    double scale = knob->scale == 0 ? 1 : knob->scale;
    if (!(written >= knob->min && written <= knob->max) ||
        (knob->scale == 0 && floor(written) != written))
        return false;
    double value = floor(written * scale + 0.5);
    if (knob->kind != BT_KNOB_INT && value < 0)
        value = 0;
    if (knob->kind == BT_KNOB_UINT)
        *(unsigned *) at(knob, base) = (unsigned) value;
    else if (knob->kind == BT_KNOB_INT)
        *(int *) at(knob, base) = (int) value;
    else if (knob->kind == BT_KNOB_U64)
        *(uint64_t *) at(knob, base) = (uint64_t) value;
    else
        *(size_t *) at(knob, base) = (size_t) value;
    return true;
}

static bool store_port(const bt_knob_t *knob, void *base, double number)
{
    if (!(number >= 1 && number <= 65535) || floor(number) != number)
        return false;
    *(int *) at(knob, base) = (int) number;
    return true;
}

static bool store_word(const bt_knob_t *knob, void *base, bt_str_t text)
{
    for (const bt_word_t *w = knob->words; w->word != NULL; w++)
        if (bt_str_ieq(text, bt_str(w->word))) {
            *(int *) at(knob, base) = w->value; /* enums are as wide as int with both compilers */
            return true;
        }
    return false;
}

static bool parse_number(bt_str_t text, double *number_p)
{
    char z[32], *end;
    if (text.n == 0 || text.n >= sizeof z || strspn(text.p, "0123456789.-") < text.n)
        return false;
    memcpy(z, text.p, text.n);
    z[text.n] = '\0';
    *number_p = strtod(z, &end);
    return *end == '\0';
}

static bool parse_bool(bt_str_t text, bool *value_p)
{
    bool yes = bt_str_ieq(text, BT_STR("true")) || bt_str_eq(text, BT_STR("1")) ||
               bt_str_ieq(text, BT_STR("yes")) || bt_str_ieq(text, BT_STR("on"));
    bool no = bt_str_ieq(text, BT_STR("false")) || bt_str_eq(text, BT_STR("0")) ||
              bt_str_ieq(text, BT_STR("no")) || bt_str_ieq(text, BT_STR("off"));
    *value_p = yes;
    return yes || no;
}

int bt_knob_set_text(const bt_knob_t *knob, void *base, bt_str_t text, char *err, size_t err_size)
{
    double number = 0;
    bool ok = false;
    int rc = 0;
    switch (knob->kind) {
    case BT_KNOB_BOOL:
        ok = parse_bool(text, at(knob, base));
        break;
    case BT_KNOB_PORT:
        ok = bt_str_ieq(text, BT_STR("none")) ||
             (parse_number(text, &number) && store_port(knob, base, number));
        if (ok && number == 0)
            *(int *) at(knob, base) = -1;
        break;
    case BT_KNOB_WORD:
        ok = store_word(knob, base, text);
        break;
    case BT_KNOB_TEXTS:
        ok = text.n > 0 && (rc = append_text(knob, base, text)) != BT_E_LIMIT;
        break;
    case BT_KNOB_TEXT:
    case BT_KNOB_PATH:
    case BT_KNOB_NAME:
    case BT_KNOB_LABELS:
        ok = text.n > 0;
        rc = ok ? store_text(at(knob, base), "", "", text) : 0;
        break;
    default:
        ok = parse_number(text, &number) && store_number(knob, base, number);
    }
    return ok ? rc : refuse_text(knob, text, err, err_size);
}

/* ---- values of the file ---- */

static bool is_relative_path(const bt_knob_t *knob, bt_str_t s)
{
    bool is_path =
        knob->kind == BT_KNOB_PATH ||
        (knob->kind == BT_KNOB_NAME &&
         (memchr(s.p, '/', s.n) != NULL || (s.n > 4 && memcmp(s.p + s.n - 4, ".lua", 4) == 0)));
    return is_path && s.p[0] != '/';
}

static int set_string(const bt_knob_t *knob, void *base, const bt_value_t *v, const char *dir,
                      char *err, size_t err_size)
{
    bt_str_t s = bt_str(v->string);
    if (s.n > 0 && dir[0] != '\0' && is_relative_path(knob, s))
        return store_text(at(knob, base), dir, "/", s);
    bool is_number = knob->kind == BT_KNOB_UINT || knob->kind == BT_KNOB_INT ||
                     knob->kind == BT_KNOB_U64 || knob->kind == BT_KNOB_SIZE ||
                     knob->kind == BT_KNOB_BOOL;
    if (is_number || (knob->kind == BT_KNOB_PORT && !bt_str_ieq(s, BT_STR("none"))))
        return refuse_value(knob, v, err, err_size); /* a quoted number is a slip worth telling */
    return bt_knob_set_text(knob, base, s, err, err_size);
}

static int set_texts(const bt_knob_t *knob, void *base, const bt_value_t *v, char *err,
                     size_t err_size)
{
    bt_knob_clear(knob, base); /* one value: it replaces, it does not add */
    if (v->count > knob->list_max)
        return refuse_value(knob, v, err, err_size);
    for (unsigned i = 0; i < v->count; i++) {
        if (v->items[i].type != BT_VALUE_STRING || v->items[i].string[0] == '\0')
            return refuse_value(knob, &v->items[i], err, err_size);
        int rc = append_text(knob, base, bt_str(v->items[i].string));
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int set_labels(const bt_knob_t *knob, void *base, const bt_value_t *v, char *err,
                      size_t err_size)
{
    bt_text_t t;
    int rc = 0;
    bt_text_init(&t);
    for (unsigned i = 0; i < v->count && rc == 0; i++) {
        if (v->items[i].type != BT_VALUE_STRING)
            rc = refuse_value(knob, &v->items[i], err, err_size);
        else
            bt_text_printf(&t, "%s%s=%s", i > 0 ? "," : "", v->items[i].key, v->items[i].string);
    }
    if (rc == 0)
        rc = t.failed ? BT_E_NOMEM : store_text(at(knob, base), "", "", bt_text_str(&t));
    bt_text_fini(&t);
    return rc;
}

int bt_knob_set_value(const bt_knob_t *knob, void *base, const bt_value_t *v, const char *dir,
                      char *err, size_t err_size)
{
    bool is_list = v->type == BT_VALUE_LIST || (v->type == BT_VALUE_TABLE && v->count == 0);
    if (v->type == BT_VALUE_STRING)
        return set_string(knob, base, v, dir, err, err_size);
    if (v->type == BT_VALUE_BOOL && knob->kind == BT_KNOB_BOOL) {
        *(bool *) at(knob, base) = v->boolean;
        return 0;
    }
    if (knob->kind == BT_KNOB_TEXTS && is_list)
        return set_texts(knob, base, v, err, err_size);
    if (knob->kind == BT_KNOB_LABELS && v->type == BT_VALUE_TABLE)
        return set_labels(knob, base, v, err, err_size);
    if (v->type == BT_VALUE_NUMBER && knob->kind == BT_KNOB_PORT &&
        store_port(knob, base, v->number))
        return 0;
    bool takes_number = knob->kind >= BT_KNOB_UINT && knob->kind <= BT_KNOB_SIZE;
    if (v->type == BT_VALUE_NUMBER && takes_number && store_number(knob, base, v->number))
        return 0;
    return refuse_value(knob, v, err, err_size);
}

/* ---- comparing, copying ---- */

static size_t plain_size(enum bt_knob_kind kind)
{
    switch (kind) {
    case BT_KNOB_BOOL:
        return sizeof(bool);
    case BT_KNOB_U64:
        return sizeof(uint64_t);
    case BT_KNOB_SIZE:
        return sizeof(size_t);
    case BT_KNOB_UINT:
    case BT_KNOB_INT:
    case BT_KNOB_PORT:
    case BT_KNOB_WORD:
        return sizeof(int);
    default:
        return 0; /* strings */
    }
}

static bool same_text(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

bool bt_knob_same(const bt_knob_t *knob, const void *a, const void *b)
{
    size_t size = plain_size(knob->kind);
    const char *const *p = at_const(knob, a), *const *q = at_const(knob, b);
    if (size > 0)
        return memcmp(p, q, size) == 0;
    if (knob->kind != BT_KNOB_TEXTS)
        return same_text(*p, *q);
    if (count_of(knob, a) != count_of(knob, b))
        return false;
    for (unsigned i = 0; i < count_of(knob, a); i++)
        if (!same_text(p[i], q[i]))
            return false;
    return true;
}

void bt_knob_clear(const bt_knob_t *knob, void *base)
{
    char **p = at(knob, base);
    if (plain_size(knob->kind) > 0 || knob->kind == BT_KNOB_NONE)
        return;
    if (knob->kind != BT_KNOB_TEXTS) {
        free(*p);
        *p = NULL;
        return;
    }
    unsigned *count = count_at(knob, base);
    for (unsigned i = 0; i < *count; i++) {
        free(p[i]);
        p[i] = NULL;
    }
    *count = 0;
}
