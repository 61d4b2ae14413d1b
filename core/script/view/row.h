/* row.h - workers as Lua sees them.
 *
 * Owner: one policy VM.
 * Life:  a row as long as Lua holds it, and its worker with it.
 * Flow:  rows read the live worker.
 * Cost:  a row a worker and VM, made once; a field is one atomic load.
 */
#ifndef BT_SCRIPT_ROW_H
#define BT_SCRIPT_ROW_H

#include "script/view/state.h"

typedef struct bt_row {
    enum bt_policy_magic magic;
    unsigned klass;             /* BT_POLICY_CLASSES = not remembered */
    unsigned at[BT_LIST_COUNT]; /* where it stood when a list was last made: a hint */
    bool has_tables;            /* its environment holds labels, kinds, dialects */
    unsigned kinds;             /* that these tables tell of */
    bt_worker_t *worker;        /* referenced */
} bt_row_t;

enum bt_row_field {
    BT_ROW_ID,
    BT_ROW_NAME,
    BT_ROW_ROLE,
    BT_ROW_LABELS,
    BT_ROW_ZONE,
    BT_ROW_ENGINE,
    BT_ROW_CONNECTOR,
    BT_ROW_VERSION,
    BT_ROW_KINDS,
    BT_ROW_DIALECTS,
    BT_ROW_DP_SIZE, /* numbers from here on */
    BT_ROW_TP_SIZE,
    BT_ROW_PP_SIZE,
    BT_ROW_PREFILL_TOKENS,
    BT_ROW_DECODE_TOKENS,
    BT_ROW_TOKENS,
    BT_ROW_REQUESTS,
    BT_ROW_TRANSFER_BYTES,
    BT_ROW_RUNNING,
    BT_ROW_WAITING,
    BT_ROW_KV_FREE,
    BT_ROW_TTFT_EMA_MS,
    BT_ROW_TPOT_EMA_MS,
    BT_ROW_AGE_MS,
    BT_ROW_PREFIX_BLOCKS,
    BT_ROW_PREFIX_HOST_BLOCKS,
    BT_ROW_PREFIX_DISK_BLOCKS,
    BT_ROW_KV_HIT_TOKENS,
    BT_ROW_PREFIX_CACHED,
    BT_ROW_PAIRS_WITH
};
extern const char *const bt_row_names[];
void bt_rows_open(lua_State *L, bt_policy_t *policy);
/* Pushes the worker's row; the VM's table of rows is at stack index `rows`. */
bt_row_t *bt_row_push(lua_State *L, bt_policy_t *policy, int rows, bt_worker_t *w);
/* For metatables: raises. */
int bt_row_read_only(lua_State *L);
/* The row at idx, or NULL when it is anything else. */
bt_row_t *bt_row_at(lua_State *L, int idx);
bt_row_t *bt_row_check(lua_State *L, int idx); /* raises */
/* Row of the worker with this id that is alive in this VM (not pushed), or NULL. */
bt_row_t *bt_row_by_id(lua_State *L, bt_policy_t *policy, lua_Number id);
/* A number of the worker as policies see it; false = not known, or no number. */
bool bt_worker_number(bt_policy_t *policy, const bt_worker_t *w, enum bt_row_field field,
                      double *value_p);
bool bt_row_is_numeric(enum bt_row_field field);
/* May these two (one prefill, one decode) be a pair? */
bool bt_rows_fit(bt_policy_t *policy, const bt_row_t *a, const bt_row_t *b);

/* What its engine's events say of this request's prompt, after a prefix_match. False: nothing. */
bool bt_prefix_exact(const bt_policy_t *policy, const bt_worker_t *w, bt_kv_hit_t *hit_p);
/* Leading blocks of this request's prompt that the worker has, or is thought to have; 0 before the first prefix_match of a call. */
unsigned bt_prefix_blocks_of(const bt_policy_t *policy, const bt_worker_t *w);

#endif
