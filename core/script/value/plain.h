/* plain.h - plain data of a VM (tables of numbers, strings, booleans) as a tree in C, and back. Private to core/script.
 *
 * Owner: the caller frees trees with bt_value_free.
 * Life:  what a tree holds is a copy: it may outlive the VM and go into another one.
 * Flow:  keys are strings, or 1, 2, 3, ... without a gap; depth, number and bytes are limited.
 * Cost:  linear; not for the request path.
 */
#ifndef BT_SCRIPT_PLAIN_H
#define BT_SCRIPT_PLAIN_H

#include "script/value/luatable.h"

#include <lua.h>

#define BT_PLAIN_DEPTH 8
#define BT_PLAIN_VALUES 65536
#define BT_PLAIN_BYTES ((size_t) 1 << 20) /* of strings and keys */

/* Reads the value at idx into *root_p, which must be NULL. Raises "<what>.a.b: reason"; what was read so far is in *root_p
 * then, and is the caller's to free. */
void bt_plain_read(lua_State *L, int idx, const char *what, bt_value_t **root_p);
/* Pushes a copy; NULL is nil. Raises when memory is short. */
void bt_plain_push(lua_State *L, const bt_value_t *value);
/* As bt_value_json, with a look at the watchdog now and then. Raises; out is the caller's all the same. */
void bt_plain_json(lua_State *L, const bt_value_t *value, bt_text_t *out);
/* Bytes of a text that may be gone through at once; cut where a character begins. */
size_t bt_plain_part(bt_str_t text);

#endif
