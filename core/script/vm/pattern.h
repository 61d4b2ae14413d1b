/* pattern.h - string.find, match, gmatch and gsub for configuration files, with an end to their work. Private to core/script.
 *
 * Owner: bt_vm_open.
 * Life:  as the VM.
 * Flow:  patterns as Lua 5.1 describes them: pattern.c matches, pattern_api.c is what Lua calls. Each step of a match is taken off
 *        vm->steps_left, as each instruction is.
 * Cost:  about twice the stock functions'.
 */
#ifndef BT_SCRIPT_PATTERN_H
#define BT_SCRIPT_PATTERN_H

#include "script/vm/vm.h"

#define BT_CAPTURE_OPEN (-1)     /* no ')' yet */
#define BT_CAPTURE_POSITION (-2) /* "()" */

typedef struct bt_match {
    lua_State *L;
    bt_vm_t *vm;
    const char *function; /* "gsub", for messages */
    const char *text, *text_end, *pattern_end;
    unsigned depth, count;
    struct bt_capture {
        const char *at;
        ptrdiff_t n; /* or BT_CAPTURE_* */
    } captures[LUA_MAXCAPTURES];
} bt_match_t;

/* Work of this call; an error where the VM has had its steps. */
void bt_match_spend(bt_match_t *m, size_t steps);

/* Text and pattern are borrowed. */
void bt_match_begin(bt_match_t *m, lua_State *L, const char *function, bt_str_t text,
                    bt_str_t pattern);
/* Where a match of the pattern from p on, begun at s, ends; NULL: there is none. Raises, for a malformed pattern and when no steps
 * are left. */
const char *bt_match_from(bt_match_t *m, const char *s, const char *p);

/* Replaces the four functions. In protected mode, with the string library open. */
void bt_pattern_open(lua_State *L);

#endif
