/* How it works: the declaration and the values are plain trees (luatable.h), so checking needs no VM and cannot be interrupted
 * half way. A default is checked like a given value: a policy cannot ship one that its own rules refuse. */
#include "script/value/params.h"

#include "base/err.h"
#include "script/vm/vm.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const type_names[] = {"number", "integer", "string", "boolean", "list", NULL};
const char *const bt_param_members[] = {"type", "min", "max", "enum", "default", "doc", NULL};
static const char *const value_names[] = {"a boolean", "a number", "a string", "a list", "a table"};

struct problem {
    char *err;
    size_t size;
    int rc;
};

__attribute__((format(printf, 2, 3))) static int refuse(const struct problem *to, const char *fmt,
                                                        ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(to->err, to->size, fmt, args);
    va_end(args);
    return to->rc;
}

/* ---- values as text ---- */

static void put_json(bt_text_t *out, const bt_value_t *v)
{
    switch (v->type) {
    case BT_VALUE_BOOL:
        bt_text_puts(out, v->boolean ? "true" : "false");
        return;
    case BT_VALUE_NUMBER:
        bt_value_write_number(out, v->number);
        return;
    case BT_VALUE_STRING:
        bt_text_json_str(out, bt_str(v->string));
        return;
    default:
        break;
    }
    bt_text_puts(out, "[");
    for (unsigned i = 0; i < v->count; i++) {
        bt_text_puts(out, i > 0 ? "," : "");
        put_json(out, &v->items[i]);
    }
    bt_text_puts(out, "]");
}

/* 12, "text", true, a list: short, for messages and people. */
static const char *show(const bt_value_t *v, char *out, size_t size)
{
    if (v->type == BT_VALUE_NUMBER)
        snprintf(out, size, "%.14g", v->number);
    else if (v->type == BT_VALUE_STRING)
        snprintf(out, size, "\"%.60s\"", v->string);
    else
        snprintf(out, size, "%s",
                 v->type == BT_VALUE_BOOL ? v->boolean ? "true" : "false" : value_names[v->type]);
    return out;
}

static bool is_same(const bt_value_t *a, const bt_value_t *b)
{
    if (a->type != b->type)
        return false;
    if (a->type == BT_VALUE_NUMBER)
        return a->number == b->number;
    if (a->type == BT_VALUE_STRING)
        return strcmp(a->string, b->string) == 0;
    return a->type == BT_VALUE_BOOL && a->boolean == b->boolean;
}

static bool is_empty_table(const bt_value_t *v)
{
    return v->type == BT_VALUE_TABLE && v->count == 0;
}

/* ---- checking one value ---- */

static bool has_type(const bt_param_t *p, const bt_value_t *v)
{
    static const enum bt_value_type wanted[] = {BT_VALUE_NUMBER, BT_VALUE_NUMBER, BT_VALUE_STRING,
                                                BT_VALUE_BOOL, BT_VALUE_LIST};

    return v->type == wanted[p->type] || (p->type == BT_PARAM_LIST && is_empty_table(v));
}

static double size_of(const bt_value_t *v)
{
    if (v->type == BT_VALUE_NUMBER)
        return v->number;
    return v->type == BT_VALUE_STRING ? (double) strlen(v->string) : (double) v->count;
}

static const char *unit_of(const bt_param_t *p)
{
    return p->type == BT_PARAM_STRING ? " bytes" : p->type == BT_PARAM_LIST ? " elements" : "";
}

static int check_range(const bt_param_t *p, const bt_value_t *v, const char *path,
                       const struct problem *to)
{
    double size = size_of(v);

    if (p->has_min && size < p->min)
        return refuse(to, "%s: %.14g%s is below min %.14g", path, size, unit_of(p), p->min);
    if (p->has_max && size > p->max)
        return refuse(to, "%s: %.14g%s is above max %.14g", path, size, unit_of(p), p->max);
    return 0;
}

static int check_choice(const bt_param_t *p, const bt_value_t *v, const char *path,
                        const struct problem *to)
{
    char shown[80], all[256] = "";

    for (unsigned i = 0; p->choices != NULL && i < p->choices->count; i++) {
        size_t at = strlen(all);
        if (is_same(&p->choices->items[i], v))
            return 0;
        snprintf(all + at, sizeof(all) - at, "%s%s", i > 0 ? ", " : "",
                 show(&p->choices->items[i], shown, sizeof(shown)));
    }
    return p->choices == NULL
               ? 0
               : refuse(to, "%s: %s is not one of %s", path, show(v, shown, sizeof(shown)), all);
}

static int check_list(const bt_param_t *p, const bt_value_t *v, const char *path,
                      const struct problem *to)
{
    int rc = 0;

    for (unsigned i = 0; i < v->count && rc == 0; i++) {
        char at[160], shown[80];

        snprintf(at, sizeof(at), "%s[%u]", path, i + 1);
        if (v->items[i].type == BT_VALUE_LIST || v->items[i].type == BT_VALUE_TABLE)
            return refuse(to, "%s is %s; elements are numbers, strings or booleans", at,
                          show(&v->items[i], shown, sizeof(shown)));
        rc = check_choice(p, &v->items[i], at, to);
    }
    return rc;
}

static int check_value(const bt_param_t *p, const bt_value_t *v, const char *path,
                       const struct problem *to)
{
    char shown[80];
    int rc;

    if (!has_type(p, v))
        return refuse(to, "%s: %s is %s; it must be %s %s", path, show(v, shown, sizeof(shown)),
                      value_names[v->type], p->type == BT_PARAM_INTEGER ? "an" : "a",
                      type_names[p->type]);
    if (v->type == BT_VALUE_NUMBER && !isfinite(v->number))
        return refuse(to, "%s: not a finite number", path);
    if (p->type == BT_PARAM_INTEGER && v->number != floor(v->number))
        return refuse(to, "%s: %s is not an integer", path, show(v, shown, sizeof(shown)));
    rc = p->type == BT_PARAM_BOOLEAN ? 0 : check_range(p, v, path, to);
    if (rc != 0)
        return rc;
    return p->type == BT_PARAM_LIST ? check_list(p, v, path, to) : check_choice(p, v, path, to);
}

/* ---- declaring ---- */

static int read_type(bt_param_t *p, const bt_value_t *d, const char *path, const struct problem *to)
{
    const bt_value_t *type = bt_value_get(d, "type");

    for (int i = 0; type != NULL && type->type == BT_VALUE_STRING && type_names[i] != NULL; i++)
        if (strcmp(type_names[i], type->string) == 0) {
            p->type = (enum bt_param_type) i;
            return 0;
        }
    return refuse(
        to, "%s.type: must be \"number\", \"integer\", \"string\", \"boolean\" or \"list\"", path);
}

static int read_bound(const bt_value_t *d, const char *key, const char *path, bool *has_p,
                      double *bound_p, const struct problem *to)
{
    const bt_value_t *v = bt_value_get(d, key);

    if (v == NULL)
        return 0;
    if (v->type != BT_VALUE_NUMBER || !isfinite(v->number))
        return refuse(to, "%s.%s: must be a finite number", path, key);
    *has_p = true;
    *bound_p = v->number;
    return 0;
}

static int check_members(const bt_value_t *d, const char *path, const struct problem *to)
{
    for (unsigned i = 0; i < d->count; i++) {
        const char *key = d->items[i].key, *nearest;
        bool known = false;

        for (int k = 0; bt_param_members[k] != NULL; k++)
            known |= strcmp(bt_param_members[k], key) == 0;
        nearest = bt_vm_nearest(bt_param_members, bt_str(key));
        if (!known)
            return refuse(to, "%s.%s: not known here%s%s%s", path, key,
                          nearest != NULL ? " (did you mean '" : "", nearest != NULL ? nearest : "",
                          nearest != NULL ? "'?)" : "");
    }
    return 0;
}

static int read_rest(bt_param_t *p, const bt_value_t *d, const char *path, const struct problem *to)
{
    const bt_value_t *doc = bt_value_get(d, "doc");
    char at[160];

    p->choices = bt_value_get(d, "enum");
    if (p->choices != NULL && p->choices->type != BT_VALUE_LIST)
        return refuse(to, "%s.enum: must be a list", path);
    if (doc != NULL && doc->type != BT_VALUE_STRING)
        return refuse(to, "%s.doc: must be a string", path);
    p->doc = doc != NULL ? doc->string : NULL;
    p->value = p->standard = bt_value_get(d, "default");
    snprintf(at, sizeof(at), "%s.default", path);
    return p->standard != NULL ? check_value(p, p->standard, at, to) : 0;
}

static int declare_one(bt_param_t *p, const bt_value_t *d, const struct problem *to)
{
    char path[120];
    int rc;

    snprintf(path, sizeof(path), "params.%.100s", d->key);
    p->name = d->key;
    if (d->type != BT_VALUE_TABLE)
        return refuse(to, "%s: must be a table like { type = \"number\", default = 1 }", path);
    rc = check_members(d, path, to);
    if (rc == 0)
        rc = read_type(p, d, path, to);
    if (rc == 0)
        rc = read_bound(d, "min", path, &p->has_min, &p->min, to);
    if (rc == 0)
        rc = read_bound(d, "max", path, &p->has_max, &p->max, to);
    return rc == 0 ? read_rest(p, d, path, to) : rc;
}

int bt_params_declare(bt_params_t *p, bt_value_t *declared, char *err, size_t err_size)
{
    const struct problem to = {err, err_size, BT_E_POLICY};
    int rc = 0;

    p->declared = declared;
    if (declared == NULL)
        return 0;
    if (declared->type != BT_VALUE_TABLE)
        return refuse(&to, "params: must be a table of names");
    if (declared->count > BT_PARAMS_MAX)
        return refuse(&to, "params: more than %d", BT_PARAMS_MAX);
    for (; p->count < declared->count && rc == 0; p->count++)
        rc = declare_one(&p->items[p->count], &declared->items[p->count], &to);
    return rc;
}

/* ---- setting ---- */

const bt_param_t *bt_params_find(const bt_params_t *p, const char *name)
{
    for (unsigned i = 0; i < p->count; i++)
        if (strcmp(p->items[i].name, name) == 0)
            return &p->items[i];
    return NULL;
}

static int refuse_unknown(const bt_params_t *p, const char *name, const struct problem *to)
{
    const char *names[BT_PARAMS_MAX + 1] = {NULL}, *nearest;

    for (unsigned i = 0; i < p->count; i++)
        names[i] = p->items[i].name;
    nearest = bt_vm_nearest(names, bt_str(name));
    if (nearest != NULL)
        return refuse(to, "params.%.100s: the policy has no such parameter (did you mean '%s'?)",
                      name, nearest);
    return refuse(to, "params.%.100s: the policy has no such parameter", name);
}

int bt_params_set(bt_params_t *p, const bt_value_t *values, char *err, size_t err_size)
{
    const struct problem to = {err, err_size, BT_E_CONFIG};

    if (values == NULL)
        return 0;
    if (values->type != BT_VALUE_TABLE)
        return refuse(&to, "params: must be a table");
    p->given = bt_value_copy(values);
    if (p->given == NULL)
        return refuse(&to, "params: out of memory");
    for (unsigned i = 0; i < p->given->count; i++) {
        const bt_value_t *v = &p->given->items[i];
        bt_param_t *param = (bt_param_t *) bt_params_find(p, v->key);
        char path[120];
        int rc;

        snprintf(path, sizeof(path), "params.%.100s", v->key);
        rc = param == NULL ? refuse_unknown(p, v->key, &to) : check_value(param, v, path, &to);
        if (rc != 0)
            return rc;
        param->value = v;
    }
    return 0;
}

void bt_params_fini(bt_params_t *p)
{
    bt_value_free(p->declared);
    bt_value_free(p->given);
    p->declared = p->given = NULL;
    p->count = 0;
}

/* ---- describing ---- */

static void put_bound(bt_text_t *out, const bt_param_t *p, bool is_max)
{
    static const char *const words[][2] = {
        {"minimum", "maximum"}, {"minLength", "maxLength"}, {"minItems", "maxItems"}};
    int kind = p->type == BT_PARAM_STRING ? 1 : p->type == BT_PARAM_LIST ? 2 : 0;

    if (is_max ? p->has_max : p->has_min) {
        bt_text_printf(out, ",\"%s\":", words[kind][is_max]);
        bt_value_write_number(out, is_max ? p->max : p->min);
    }
}

static void put_choices(bt_text_t *out, const bt_param_t *p)
{
    if (p->choices == NULL)
        return;
    bt_text_puts(out, p->type == BT_PARAM_LIST ? ",\"items\":{\"enum\":" : ",\"enum\":");
    put_json(out, p->choices);
    bt_text_puts(out, p->type == BT_PARAM_LIST ? "}" : "");
}

static void put_property(bt_text_t *out, const bt_param_t *p)
{
    bt_text_json_str(out, bt_str(p->name));
    bt_text_printf(out, ":{\"type\":\"%s\"",
                   p->type == BT_PARAM_LIST ? "array" : type_names[p->type]);
    put_bound(out, p, false);
    put_bound(out, p, true);
    put_choices(out, p);
    if (p->standard != NULL) {
        bt_text_puts(out, ",\"default\":");
        put_json(out, p->standard);
    }
    if (p->doc != NULL) {
        bt_text_puts(out, ",\"description\":");
        bt_text_json_str(out, bt_str(p->doc));
    }
    bt_text_puts(out, "}");
}

void bt_params_schema(const bt_params_t *p, const char *title, bt_text_t *out)
{
    bt_text_puts(out, "{\"$schema\":\"https://json-schema.org/draft/2020-12/schema\",\"title\":");
    bt_text_json_str(out, bt_str(title));
    bt_text_puts(out, ",\"type\":\"object\",\"additionalProperties\":false,\"properties\":{");
    for (unsigned i = 0; i < p->count; i++) {
        bt_text_puts(out, i > 0 ? "," : "");
        put_property(out, &p->items[i]);
    }
    bt_text_puts(out, "}}");
}
