/* params.h - what a policy says may be set from outside: declared in its table, checked, described. No Lua in here.
 *
 * Owner: the policy.
 * Life:  declare (from the policy's own table) -> set (from configuration) -> constant.
 * Flow:  every mistake is one line with its path and value: "params.weight: 12 is above max 10".
 * Cost:  at load only.
 *
 * params = { weight = { type = "number" | "integer" | "string" | "boolean" | "list", min =, max =, enum = { ... },
 *            default =, doc = "..." } }
 * min and max bound a number, the bytes of a string, the elements of a list; enum bounds a value, or each element of a list.
 * A parameter without a default is nil until it is set.
 */
#ifndef BT_SCRIPT_PARAMS_H
#define BT_SCRIPT_PARAMS_H

#include "base/text.h"
#include "script/value/value.h"

#define BT_PARAMS_MAX 64

enum bt_param_type {
    BT_PARAM_NUMBER,
    BT_PARAM_INTEGER,
    BT_PARAM_STRING,
    BT_PARAM_BOOLEAN,
    BT_PARAM_LIST
};

typedef struct bt_param {
    const char *name, *doc; /* doc: NULL = none */
    enum bt_param_type type;
    bool has_min, has_max;
    double min, max;
    const bt_value_t *choices;  /* NULL = any */
    const bt_value_t *value;    /* set, else the default, else NULL */
    const bt_value_t *standard; /* the default, or NULL */
} bt_param_t;

typedef struct bt_params {
    bt_value_t *declared, *given;    /* what the others point into */
    bt_param_t items[BT_PARAMS_MAX]; /* by name */
    unsigned count;
} bt_params_t;

/* takes `declared` (NULL = no parameters), also on failure. p: zeroed. BT_E_POLICY. */
int bt_params_declare(bt_params_t *p, bt_value_t *declared, char *err, size_t err_size);
/* Copies `values` (a table, or NULL). Once. BT_E_CONFIG. */
int bt_params_set(bt_params_t *p, const bt_value_t *values, char *err, size_t err_size);
void bt_params_fini(bt_params_t *p);
const bt_param_t *bt_params_find(const bt_params_t *p, const char *name);
/* JSON Schema (draft 2020-12) of the table of values. */
void bt_params_schema(const bt_params_t *p, const char *title, bt_text_t *out);

/* Members of a declaration, NULL-terminated. */
extern const char *const bt_param_members[];

#endif
