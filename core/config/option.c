/* Numbers pass through a double: every limit here is far below 2^53, and one conversion then serves flags and file. */
#include "config/option.h"

#include "base/err.h"
#include "base/text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define EXPECTED_MAX 256

static void *at(const bt_option_t *option, const void *base)
{
    return (char *) (uintptr_t) base + option->offset;
}

static unsigned *count_at(const bt_option_t *option, const void *base)
{
    return (unsigned *) (void *) ((char *) (uintptr_t) base + option->count_offset);
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

void bt_option_expected(const bt_option_t *option, char *out, size_t size)
{
    switch (option->kind) {
    case BT_OPTION_BOOL:
        snprintf(out, size, "true or false");
        return;
    case BT_OPTION_UINT:
    case BT_OPTION_INT:
    case BT_OPTION_U64:
        snprintf(out, size, "a %snumber from %.15g to %.15g", option->scale == 0 ? "whole " : "",
                 option->min, option->max);
        return;
    case BT_OPTION_PORT:
        snprintf(out, size, "a port from 1 to 65535, or none");
        return;
    case BT_OPTION_WORD:
        describe_words(option->words, out, size);
        return;
    case BT_OPTION_TEXTS:
    case BT_OPTION_PATHS:
        snprintf(out, size, "a list of up to %u strings", option->list_max);
        return;
    case BT_OPTION_LABELS:
        snprintf(out, size, "labels as \"k=v,k=v\" or a table of strings and numbers");
        return;
    case BT_OPTION_NONE:
        snprintf(out, size, "a table, or JSON as text");
        return;
    default:
        snprintf(out, size, "a string that is not empty");
    }
}

static int refuse(const bt_option_t *option, const char *got, char *err, size_t err_size)
{
    char expected[EXPECTED_MAX];
    bt_option_expected(option, expected, sizeof expected);
    return bt_err_refuse(err, err_size, "expected %s, got %.120s", expected, got);
}

static int refuse_text(const bt_option_t *option, bt_str_t text, char *err, size_t err_size)
{
    char got[128];
    snprintf(got, sizeof got, "\"%.*s\"", (int) (text.n < 100 ? text.n : 100), text.p);
    return refuse(option, got, err, err_size);
}

static int refuse_value(const bt_option_t *option, const bt_value_t *v, char *err, size_t err_size)
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
        return refuse_text(option, bt_str(v->string), err, err_size);
    default:
        snprintf(got, sizeof got, "%s", v->type == BT_VALUE_LIST ? "a list" : "a table");
    }
    return refuse(option, got, err, err_size);
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

static int append_text(const bt_option_t *option, void *base, const char *dir, bt_str_t s)
{
    char **items = at(option, base);
    unsigned *count = count_at(option, base);
    if (*count >= option->list_max)
        return BT_E_LIMIT;
    int rc = store_text(&items[*count], dir, dir[0] != '\0' ? "/" : "", s);
    if (rc == 0)
        (*count)++;
    return rc;
}

static bool is_list_kind(enum bt_option_kind kind)
{
    return kind == BT_OPTION_TEXTS || kind == BT_OPTION_PATHS;
}

_Static_assert(sizeof(size_t) == sizeof(uint64_t), "BT_OPTION_U64 is both");

bool bt_option_takes_number(const bt_option_t *option)
{
    return option->kind == BT_OPTION_UINT || option->kind == BT_OPTION_INT ||
           option->kind == BT_OPTION_U64;
}

/* False: out of range, or a fraction where none makes sense. */
static bool store_number(const bt_option_t *option, void *base, double written)
{
    double scale = option->scale == 0 ? 1 : option->scale;
    if (!(written >= option->min && written <= option->max) ||
        (option->scale == 0 && floor(written) != written))
        return false;
    double value = floor(written * scale + 0.5);
    if (option->kind != BT_OPTION_INT && value < 0)
        value = 0;
    if (option->kind == BT_OPTION_UINT)
        *(unsigned *) at(option, base) = (unsigned) value;
    else if (option->kind == BT_OPTION_INT)
        *(int *) at(option, base) = (int) value;
    else
        *(uint64_t *) at(option, base) = (uint64_t) value;
    return true;
}

static bool store_port(const bt_option_t *option, void *base, double number)
{
    if (!(number >= 1 && number <= 65535) || floor(number) != number)
        return false;
    *(int *) at(option, base) = (int) number;
    return true;
}

static bool store_word(const bt_option_t *option, void *base, bt_str_t text)
{
    for (const bt_word_t *w = option->words; w->word != NULL; w++)
        if (bt_str_ieq(text, bt_str(w->word))) {
            *(int *) at(option, base) = w->value; /* enums are as wide as int with both compilers */
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

int bt_option_set_text(const bt_option_t *option, void *base, bt_str_t text, char *err,
                       size_t err_size)
{
    double number = 0;
    bool ok = false;
    int rc = 0;
    switch (option->kind) {
    case BT_OPTION_BOOL:
        ok = parse_bool(text, at(option, base));
        break;
    case BT_OPTION_PORT:
        ok = bt_str_ieq(text, BT_STR("none")) ||
             (parse_number(text, &number) && store_port(option, base, number));
        if (ok && number == 0)
            *(int *) at(option, base) = -1;
        break;
    case BT_OPTION_WORD:
        ok = store_word(option, base, text);
        break;
    case BT_OPTION_TEXTS:
    case BT_OPTION_PATHS:
        ok = text.n > 0 && (rc = append_text(option, base, "", text)) != BT_E_LIMIT;
        break;
    case BT_OPTION_TEXT:
    case BT_OPTION_PATH:
    case BT_OPTION_NAME:
    case BT_OPTION_LABELS:
        ok = text.n > 0;
        rc = ok ? store_text(at(option, base), "", "", text) : 0;
        break;
    default:
        ok = parse_number(text, &number) && store_number(option, base, number);
    }
    return ok ? rc : refuse_text(option, text, err, err_size);
}

/* ---- values of the file ---- */

static bool is_relative_path(const bt_option_t *option, bt_str_t s)
{
    bool is_path =
        (option->kind == BT_OPTION_PATH && !bt_str_eq(s, BT_STR("stderr"))) ||
        option->kind == BT_OPTION_PATHS ||
        (option->kind == BT_OPTION_NAME &&
         (memchr(s.p, '/', s.n) != NULL || (s.n > 4 && memcmp(s.p + s.n - 4, ".lua", 4) == 0)));
    return is_path && s.p[0] != '/';
}

/* count: of items; 1 for a value that is no list. */
static int set_texts(const bt_option_t *option, void *base, const bt_value_t *v, unsigned count,
                     const char *dir, char *err, size_t err_size)
{
    const bt_value_t *items = v->type == BT_VALUE_STRING ? v : v->items;
    bt_option_clear(option, base); /* one value: it replaces, it does not add */
    if (count > option->list_max)
        return refuse_value(option, v, err, err_size);
    for (unsigned i = 0; i < count; i++) {
        if (items[i].type != BT_VALUE_STRING || items[i].string[0] == '\0')
            return refuse_value(option, &items[i], err, err_size);
        bt_str_t s = bt_str(items[i].string);
        int rc = append_text(option, base, is_relative_path(option, s) ? dir : "", s);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int set_string(const bt_option_t *option, void *base, const bt_value_t *v, const char *dir,
                      char *err, size_t err_size)
{
    bt_str_t s = bt_str(v->string);
    if (option->kind == BT_OPTION_PATHS)
        return set_texts(option, base, v, 1, dir, err, err_size);
    if (s.n > 0 && dir[0] != '\0' && is_relative_path(option, s))
        return store_text(at(option, base), dir, "/", s);
    if (bt_option_takes_number(option) || option->kind == BT_OPTION_BOOL ||
        (option->kind == BT_OPTION_PORT && !bt_str_ieq(s, BT_STR("none"))))
        return refuse_value(option, v, err, err_size); /* a quoted number is a slip worth telling */
    return bt_option_set_text(option, base, s, err, err_size);
}

static int set_labels(const bt_option_t *option, void *base, const bt_value_t *v, char *err,
                      size_t err_size)
{
    bt_text_t t;
    int rc = 0;
    bt_text_init(&t);
    for (unsigned i = 0; i < v->count && rc == 0; i++) {
        if (v->items[i].type == BT_VALUE_NUMBER)
            bt_text_printf(&t, "%s%s=%.15g", i > 0 ? "," : "", v->items[i].key, v->items[i].number);
        else if (v->items[i].type != BT_VALUE_STRING)
            rc = refuse_value(option, &v->items[i], err, err_size);
        else
            bt_text_printf(&t, "%s%s=%s", i > 0 ? "," : "", v->items[i].key, v->items[i].string);
    }
    if (rc == 0)
        rc = t.failed ? BT_E_NOMEM : store_text(at(option, base), "", "", bt_text_str(&t));
    bt_text_fini(&t);
    return rc;
}

int bt_option_set_value(const bt_option_t *option, void *base, const bt_value_t *v, const char *dir,
                        char *err, size_t err_size)
{
    bool is_list = v->type == BT_VALUE_LIST || (v->type == BT_VALUE_TABLE && v->count == 0);
    if (v->type == BT_VALUE_STRING)
        return set_string(option, base, v, dir, err, err_size);
    if (v->type == BT_VALUE_BOOL && option->kind == BT_OPTION_BOOL) {
        *(bool *) at(option, base) = v->boolean;
        return 0;
    }
    if (is_list_kind(option->kind) && is_list)
        return set_texts(option, base, v, v->count, dir, err, err_size);
    if (option->kind == BT_OPTION_LABELS && v->type == BT_VALUE_TABLE)
        return set_labels(option, base, v, err, err_size);
    if (v->type == BT_VALUE_NUMBER && option->kind == BT_OPTION_PORT &&
        store_port(option, base, v->number))
        return 0;
    if (v->type == BT_VALUE_NUMBER && bt_option_takes_number(option) &&
        store_number(option, base, v->number))
        return 0;
    return refuse_value(option, v, err, err_size);
}

/* ---- comparing, copying ---- */

static size_t plain_size(enum bt_option_kind kind)
{
    switch (kind) {
    case BT_OPTION_BOOL:
        return sizeof(bool);
    case BT_OPTION_U64:
        return sizeof(uint64_t);
    case BT_OPTION_UINT:
    case BT_OPTION_INT:
    case BT_OPTION_PORT:
    case BT_OPTION_WORD:
        return sizeof(int);
    default:
        return 0; /* strings */
    }
}

static bool same_text(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

bool bt_option_same(const bt_option_t *option, const void *a, const void *b)
{
    size_t size = plain_size(option->kind);
    const char *const *p = at(option, a), *const *q = at(option, b);
    if (size > 0)
        return memcmp(p, q, size) == 0;
    if (!is_list_kind(option->kind))
        return same_text(*p, *q);
    const unsigned count = *count_at(option, a);
    if (count != *count_at(option, b))
        return false;
    for (unsigned i = 0; i < count; i++)
        if (!same_text(p[i], q[i]))
            return false;
    return true;
}

void bt_option_clear(const bt_option_t *option, void *base)
{
    char **p = at(option, base);
    if (plain_size(option->kind) > 0 || option->kind == BT_OPTION_NONE)
        return;
    if (!is_list_kind(option->kind)) {
        free(*p);
        *p = NULL;
        return;
    }
    unsigned *count = count_at(option, base);
    for (unsigned i = 0; i < *count; i++) {
        free(p[i]);
        p[i] = NULL;
    }
    *count = 0;
}
