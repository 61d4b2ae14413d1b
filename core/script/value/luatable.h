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

#include "script/value/value.h"

/* A file on this machine. err: "file:line: message". An empty Lua table is a TABLE with count 0 (callers accept it as an empty
 * list too). */
int bt_lua_table_load(const char *path, bt_value_t **root_p, char *err, size_t err_size);
/* Code that was pushed; messages begin with `name`. Any thread. */
int bt_lua_table_read(const char *name, bt_str_t text, bt_value_t **root_p, char *err,
                      size_t err_size);

#endif
