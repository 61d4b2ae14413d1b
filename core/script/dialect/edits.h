/* edits.h - what a dialect wants changed in one leg: set, remove, header. Filled by Lua, applied by dispatch/splice.
 *
 * Owner: the leg; memory from its arena.
 * Life:  init -> filled by one dialect call -> applied once.
 * Flow:  the last edit of a key wins; a set of an absent key is appended to its object.
 * Cost:  linear in the handful of edits; values are raw JSON text or "the same bytes as in the hand-off reply".
 */
#ifndef BT_SCRIPT_EDITS_H
#define BT_SCRIPT_EDITS_H

#include "base/arena.h"
#include "base/str.h"

#define BT_EDITS_MAX 48

enum bt_edit_op {
    BT_EDIT_SET,    /* object ("" = top level) . key = value (raw JSON) */
    BT_EDIT_REMOVE, /* object . key goes away; absent: nothing */
    BT_EDIT_HEADER  /* header key: value; value.p == NULL drops the client's header of that name */
};

typedef struct bt_edit {
    enum bt_edit_op op;
    bt_str_t object; /* one level of nesting at most: "sampling_params" */
    bt_str_t key;
    bt_str_t value;
} bt_edit_t;

typedef struct bt_edits {
    bt_arena_t *arena;
    bt_edit_t *items; /* in the arena; NULL = none yet */
    unsigned count, cap;
} bt_edits_t;

void bt_edits_init(bt_edits_t *e, bt_arena_t *arena);
/* All copy key and object into the arena; value is copied too unless `borrow` (bytes that outlive the leg). BT_E_LIMIT. */
int bt_edits_set(bt_edits_t *e, bt_str_t object, bt_str_t key, bt_str_t value, bool borrow);
int bt_edits_remove(bt_edits_t *e, bt_str_t object, bt_str_t key);
int bt_edits_header(bt_edits_t *e, bt_str_t name, bt_str_t value);
int bt_edits_append(bt_edits_t *e, const bt_edits_t *more); /* borrows what they point to */

#endif
