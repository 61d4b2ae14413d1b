/* luatable.h - a configuration file that is Lua, as a plain tree.
 *
 * Owner: the caller frees the tree.
 * Life:  start, SIGHUP, and a thread of the gateway that tries new rules.
 * Flow:  the code runs in a sandbox and must return one table; functions, cycles and non-string/array keys are refused with
 *        their key path. Files on this machine may read the environment (`env`) and have Lua's patterns; pushed code has
 *        neither, its sandbox is that of policies. Code that exceeds its limits ends with a one-line error, whatever it does.
 * Cost:  not for a request's loop: at most 3 s of CPU and 256 MiB for a file, 0.25 s and 32 MiB for pushed code.
 */
#ifndef BT_SCRIPT_LUATABLE_H
#define BT_SCRIPT_LUATABLE_H

#include "base/text.h"

enum bt_value_type {
    BT_VALUE_BOOL,
    BT_VALUE_NUMBER,
    BT_VALUE_STRING,
    BT_VALUE_LIST,
    BT_VALUE_TABLE
};

typedef struct bt_value {
    enum bt_value_type type;
    char *key; /* inside a table */
    bool boolean;
    double number;
    char *string;
    struct bt_value *items; /* list elements or table members (sorted by key) */
    unsigned count;
} bt_value_t;

/* A file on this machine. err: "file:line: message". An empty Lua table is a TABLE with count 0 (callers accept it as an empty
 * list too). */
int bt_lua_table_load(const char *path, bt_value_t **root_p, char *err, size_t err_size);
/* Code that was pushed; messages begin with `name`. Any thread. */
int bt_lua_table_read(const char *name, bt_str_t text, bt_value_t **root_p, char *err,
                      size_t err_size);
void bt_value_free(bt_value_t *root);
const bt_value_t *bt_value_get(const bt_value_t *table, const char *key);
/* plain.c. NULL of NULL, and when memory is short. */
bt_value_t *bt_value_copy(const bt_value_t *value);
/* Same members, same values; NULL equals NULL only. */
bool bt_value_equal(const bt_value_t *a, const bt_value_t *b);
void bt_value_json(const bt_value_t *value, bt_text_t *out);

#endif
