/* kernels.h - what the files of the global `baton` share: lists as C sees them, scratch space, fields. Private to core/script.
 *
 * Owner: one policy VM.
 * Life:  bt_kernels as the VM; bt_rows while one kernel runs, and only until the next bt_rows_get.
 * Flow:  kernels.c opens the table; _pick, _hash, _turn, _rate, _prefix, _pair each add their functions.
 * Cost:  a list of the view is read through an array of worker pointers, about 2 ns a worker; a list that a policy made itself
 *        is first copied into such an array, about 15 ns a worker.
 *
 * Kernels take lists, numbers and names, never functions or metatables: their time is bounded by the list's length. A policy can make
 * a list of 262,144, so they check the budget on the way (bt_vm_check_time).
 */
#ifndef BT_SCRIPT_KERNELS_H
#define BT_SCRIPT_KERNELS_H

#include "script/policy/policy_impl.h"
#include "script/shared/prefix_hash.h"
#include "script/shared/prefix_index.h"

#define BT_CHECK_EVERY 1024 /* elements, at some ten ns each */

/* Hidden in a list that C made: its members, so that kernels need not ask the Lua table. Its environment is a table that
 * keeps the rows alive (1 .. count) and holds what was derived from the list. */
typedef struct bt_roster {
    enum bt_policy_magic magic;
    unsigned count;
    uint64_t serial; /* no two lists of a VM have the same */
    bt_worker_t *workers[];
} bt_roster_t;

enum bt_roster_key {
    BT_MEMO_HASHES = -1,
    BT_MEMO_RING = -2,
    BT_MEMO_IDS = -3,
    BT_MEMO_WHERE = -4
}; /* keys in the environment */

typedef struct bt_rows {
    bt_worker_t *const *workers;
    unsigned count;
    int idx;                 /* where the Lua list stands */
    const bt_roster_t *list; /* NULL = a list of the policy's own */
} bt_rows_t;

struct bt_kernels {
    enum bt_policy_magic magic;
    uint64_t roster_serial;
    bt_worker_t **workers; /* scratch of bt_rows_get */
    double *values;        /* scratch of a ranking */
    unsigned worker_cap, value_cap;
    int worker_ref, value_ref, wheels_ref;
    unsigned wheel_count;
    struct {
        uint64_t serial; /* of the call it belongs to */
        unsigned block_tokens, count;
        bool is_matched;
        uint64_t hashes[BT_PREFIX_BLOCKS_MAX];
        bt_prefix_matches_t matches;
    } prefix;
};

/* ---- roster.c ---- */
/* The table of rows at the top becomes a list that C knows. */
void bt_roster_seal(lua_State *L, bt_policy_t *policy);
/* NULL when the value at idx is no such list, or when a policy has added or removed members. */
const bt_roster_t *bt_roster_at(lua_State *L, int idx);
/* Pushes the list's environment. The list must be one. */
void bt_roster_push_memory(lua_State *L, int idx);
/* Members of the table at idx; raises when it is no list of workers. */
void bt_rows_get(lua_State *L, bt_policy_t *policy, int idx, bt_rows_t *rows);
void bt_rows_push(lua_State *L, const bt_rows_t *rows, unsigned at);
/* What was derived from the list before; NULL: nothing yet, or a list of the policy's own. */
void *bt_roster_memo(lua_State *L, const bt_rows_t *rows, enum bt_roster_key what);
/* Pushes a chunk of memory. */
void *bt_kernels_chunk(lua_State *L, size_t size);
/* Pops a chunk, complete by now, and keeps it for as long as the list lives. The list must be one of the view. */
void bt_roster_keep(lua_State *L, const bt_rows_t *rows, enum bt_roster_key what);
/* Scratch of at least count numbers; the same each time. */
double *bt_kernels_values(lua_State *L, bt_policy_t *policy, unsigned count);

/* ---- kernels_pick.c ---- */
#define BT_TERMS_MAX 8
typedef struct bt_term {
    enum bt_row_field field;
    double weight;
} bt_term_t;
void bt_term_check(lua_State *L, bt_policy_t *policy, int idx, bt_term_t *term); /* raises */
/* The field of each worker times the weight; HUGE_VAL where it is not known. */
void bt_term_fill(lua_State *L, const bt_rows_t *rows, const bt_term_t *term, double *values);
/* Scores of a ranking, values[i] * unit each, for whoever keeps a record of the call; values that are not finite are left out. */
void bt_kernels_trace(lua_State *L, const bt_rows_t *rows, const double *values, double unit);
bool bt_kernels_is_traced(const bt_policy_t *policy);

/* ---- kernels_prefix.c ---- */
/* Leading blocks of this request's prompt that the worker is thought to have; 0 before the first prefix_match of a call. */
unsigned bt_prefix_blocks_of(const bt_policy_t *policy, const bt_worker_t *w);
/* The same for all of them, times the weight. */
void bt_prefix_fill(lua_State *L, const bt_rows_t *rows, double weight, double *values);

/* Each adds its functions to the table at the top. */
void bt_kernels_add_pick(lua_State *L);
void bt_kernels_add_pair(lua_State *L);
void bt_kernels_add_hash(lua_State *L);
void bt_kernels_add_turn(lua_State *L);
void bt_kernels_add_rate(lua_State *L);
void bt_kernels_add_prefix(lua_State *L);
void bt_kernels_set(lua_State *L, const luaL_Reg *functions);

#endif
