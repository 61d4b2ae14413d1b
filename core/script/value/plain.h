/* plain.h - plain data of a VM (tables of numbers, strings, booleans) as a tree in C, and back. Private to core/script.
 *
 * Owner: the caller frees trees with bt_value_free.
 * Life:  what a tree holds is a copy: it may outlive the VM and go into another one.
 * Flow:  keys are strings, or 1, 2, 3, ... without a gap; depth, number and bytes are limited.
 * Cost:  linear; not for the request path.
 */
#ifndef BT_SCRIPT_PLAIN_H
#define BT_SCRIPT_PLAIN_H

#include "script/value/value.h"

#include <lua.h>

/* What may be read. */
typedef struct bt_plain_rules {
    const char *what; /* messages begin with "<what>.a.b: "; "" = the table that a file returned */
    const char *file; /* and with this, or NULL */
    unsigned depth, values;
    size_t bytes;    /* of strings and keys */
    bool is_finite;  /* numbers are */
    bool is_watched; /* the state is a bt_vm_t's: its watchdog is looked at */
} bt_plain_rules_t;

#define BT_PLAIN_DEPTH 8      /* of what policies make */
#define BT_PLAIN_DEPTH_MAX 32 /* of any rules */

/* What policies make: eight deep, 65,536 values, a MiB of text. Reads the value at idx into *root_p, which must be NULL. Raises
 * "<what>.a.b: reason"; what was read so far is in *root_p then, and is the caller's to free. */
void bt_plain_read(lua_State *L, int idx, const char *what, bt_value_t **root_p);
/* The same by other rules. */
void bt_plain_read_by(lua_State *L, int idx, const bt_plain_rules_t *rules, bt_value_t **root_p);
/* Pushes a copy; NULL is nil. Raises when memory is short. */
void bt_plain_push(lua_State *L, const bt_value_t *value);
/* As bt_value_json, with a look at the watchdog now and then. Raises; out is the caller's all the same. */
void bt_plain_json(lua_State *L, const bt_value_t *value, bt_text_t *out);

#endif
