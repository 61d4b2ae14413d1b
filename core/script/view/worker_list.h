/* worker_list.h - lists of workers as C sees them.
 *
 * Owner: one policy VM.
 * Life:  a list's memory goes with the list; bt_rows while one native function runs, until the next bt_rows_get.
 * Flow:  seal marks a list that C made; rows_get reads such a list, or copies one that a policy made.
 * Cost:  nothing a worker, 15 ns in a list of the policy's own.
 */
#ifndef BT_SCRIPT_WORKER_LIST_H
#define BT_SCRIPT_WORKER_LIST_H

#include "script/view/state.h"

#define BT_CHECK_EVERY 1024 /* elements, at some ten ns each */

/* Hidden in a list that C made: its members, so that native functions need not ask the Lua table. Its environment is a table that
 * keeps the rows alive (1 .. count) and holds what was derived from the list. */
typedef struct bt_worker_list {
    enum bt_policy_magic magic;
    unsigned count;
    uint64_t serial; /* no two lists of a VM have the same */
    /* What nearly all fleets answer for a whole list at once; 0: ask. Kinds of workers (bit by row's class) that can be a pair
     * with all members; the last list of which each member can be a pair with some. */
    uint64_t fits_kinds, fits_list;
    const uint32_t *places; /* of their totals (cluster/ledger_totals.h), behind the workers */
    bt_worker_t *workers[];
} bt_worker_list_t;

enum bt_worker_list_key {
    BT_MEMO_HASHES = -1,
    BT_MEMO_RING = -2,
    BT_MEMO_IDS = -3,
    BT_MEMO_WHERE = -4
}; /* keys in the environment */

typedef struct bt_rows {
    bt_worker_t *const *workers;
    const uint32_t *places; /* NULL = a list of the policy's own */
    unsigned count;
    int idx;                      /* where the Lua list stands */
    const bt_worker_list_t *list; /* NULL = a list of the policy's own */
} bt_rows_t;

/* The table of rows at the top becomes a list that C knows. */
void bt_worker_list_seal(lua_State *L, bt_policy_t *policy);
/* NULL when the value at idx is no such list, or when a policy has added or removed members. */
bt_worker_list_t *bt_worker_list_at(lua_State *L, int idx);
/* Pushes the list's environment. The list must be one. */
void bt_worker_list_push_memory(lua_State *L, int idx);
/* Members of the table at idx; raises when it is no list of workers. */
void bt_rows_get(lua_State *L, bt_policy_t *policy, int idx, bt_rows_t *rows);
void bt_rows_push(lua_State *L, const bt_rows_t *rows, unsigned at);
/* What was derived from the list before; NULL: nothing yet, or a list of the policy's own. */
void *bt_worker_list_memo(lua_State *L, const bt_rows_t *rows, enum bt_worker_list_key what);
/* Pushes a chunk of memory. */
void *bt_native_chunk(lua_State *L, size_t size);
/* Pops a chunk, complete by now, and keeps it for as long as the list lives. The list must be one of the view. */
void bt_worker_list_keep(lua_State *L, const bt_rows_t *rows, enum bt_worker_list_key what);
/* Scratch of at least count numbers; the same each time. */
double *bt_native_values(lua_State *L, bt_policy_t *policy, unsigned count);

#endif
