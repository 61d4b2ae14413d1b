/* bounded.h - library functions whose time in C could grow without a hook seeing it, with limits. Private to core/script.
 *
 * Owner: bt_vm_open.
 * Life:  as the VM.
 * Flow:  each one checks its arguments, then calls the stock function, which only it can reach (an upvalue).
 * Cost:  one more C call.
 */
#ifndef BT_SCRIPT_BOUNDED_H
#define BT_SCRIPT_BOUNDED_H

#include <lua.h>

#define BT_BOUNDED_STRING (1 << 20) /* bytes of a string that a library function makes */
#define BT_BOUNDED_ELEMENTS 65536   /* of a list, joined or moved at once */
#define BT_BOUNDED_FORMAT_ARGS 100
#define BT_BOUNDED_FORMAT_BYTES 4096

/* Replaces pcall, table.concat, insert, remove, sort and string.rep, format. In protected mode, with both libraries open. */
void bt_bounded_open(lua_State *L);

#endif
