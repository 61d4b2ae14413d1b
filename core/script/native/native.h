/* native.h - what the files of the global `baton` share. Private to core/script.
 *
 * Owner: one policy VM.
 * Life:  as the VM.
 * Flow:  native.c opens the table; _pick, _hash, _turn, _rate, _prefix, _pair each add their functions; _reads notes what some answer.
 * Cost:  worker list.h says what a list costs.
 *
 * Native functions take lists, numbers and names, never functions or metatables: their time is bounded by the list's length. A policy can make
 * a list of 262,144, so they check the budget on the way (bt_vm_check_time).
 */
#ifndef BT_SCRIPT_NATIVE_H
#define BT_SCRIPT_NATIVE_H

#include "script/view/view.h"
#include "script/view/worker_list.h"

/* ---- native.c ---- */
void bt_native_open(lua_State *L, bt_policy_t *policy); /* sets the global `baton` */

/* ---- hook_op_api.c, shared_api.c ---- */
/* May this call wait? False: it was told why not, and two values are pushed. Raises in hooks that never wait. */
bool bt_hook_op_check_waiting(lua_State *L, const char *what);
/* Pushes what a call of baton.shared returns: one value to three. answer->rc is 0. */
int bt_shared_push_answer(lua_State *L, const bt_hook_op_t *hook_op,
                          const bt_hook_answer_t *answer);

/* ---- native_pick.c ---- */
#define BT_TERMS_MAX 8
typedef struct bt_term {
    enum bt_row_field field;
    double weight;
} bt_term_t;
void bt_term_check(lua_State *L, bt_policy_t *policy, int idx, bt_term_t *term); /* raises */
/* The field of each worker times the weight; HUGE_VAL where it is not known. */
void bt_term_fill(lua_State *L, const bt_rows_t *rows, const bt_term_t *term, double *values);
/* Scores of a ranking, values[i] * unit each, for whoever keeps a record of the call; values that are not finite are left out. */
void bt_native_trace(lua_State *L, const bt_rows_t *rows, const double *values, double unit);
bool bt_native_is_traced(const bt_policy_t *policy);

/* ---- native_prefix.c ---- */
/* bt_prefix_blocks_of for all of them, times the weight. */
void bt_prefix_fill(lua_State *L, const bt_rows_t *rows, double weight, double *values);

/* Each adds its functions to the table at the top. */
void bt_native_add_pick(lua_State *L);
void bt_native_add_pair(lua_State *L);
void bt_native_add_hash(lua_State *L);
void bt_native_add_turn(lua_State *L);
void bt_native_add_rate(lua_State *L);
void bt_native_add_prefix(lua_State *L);
void bt_json_api_add(lua_State *L);
/* Empties policy->json. */
void bt_json_drop(bt_policy_t *policy);
void bt_hook_op_api_add(lua_State *L);
void bt_shared_api_add(lua_State *L);
void bt_log_api_add(lua_State *L);
void bt_native_set(lua_State *L, const luaL_Reg *functions);
/* The same for those that answer from the process's memory (native_reads.c); table: what stands before their names in notes. None
 * may have upvalues. */
void bt_native_set_reads(lua_State *L, const char *table, const luaL_Reg *functions);

#endif
