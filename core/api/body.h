/* body.h - the index of a JSON body: where each top-level member lies, and the splicing of edits into it.
 *
 * Owner: the request; items live in its arena, spans point into the client's bytes.
 * Life:  indexed once when the request arrives; read by every leg of every attempt.
 * Flow:  index (validates the whole text) -> apply edits -> slices of old and new bytes in order.
 * Cost:  one pass to index; applying is linear in members and edits, untouched neighbours stay one slice. The body is never
 *        printed again, so no unknown field, number format or key order can change.
 */
#ifndef BT_API_BODY_H
#define BT_API_BODY_H

#include "base/arena.h"
#include "base/json.h"
#include "loop/stream.h"
#include "script/dialect/edits.h"

#define BT_BODY_MEMBERS_MAX 4096 /* more top-level members than that is no request */
/* An object within the body that edits go into is looked through for each leg. */
#define BT_BODY_NESTED_MAX ((size_t) 1 << 20)

typedef struct bt_body {
    bt_str_t text;
    size_t open_off, close_off;
    bt_json_item_t *items;
    unsigned count;
} bt_body_t;

/* 0, BT_E_JSON*, BT_E_LIMIT; *err_off_p tells where. */
int bt_body_index(bt_body_t *body, bt_arena_t *arena, bt_str_t text, size_t *err_off_p);
/* First member of that name, or NULL. */
const bt_json_item_t *bt_body_find(const bt_body_t *body, bt_str_t name);

typedef struct bt_slices {
    struct bt_slice *items; /* arena */
    unsigned count, cap;
    size_t bytes;
} bt_slices_t;

/* Appends one slice; p lives as long as the arena (owner is left NULL). */
void bt_slices_put(bt_slices_t *s, bt_arena_t *arena, bt_str_t bytes);
/* Appends one that is not known yet, and is filled before the slices are used. */
unsigned bt_slices_reserve(bt_slices_t *s, bt_arena_t *arena);
void bt_slices_fill(bt_slices_t *s, unsigned at, bt_str_t bytes);
/* Appends body with edits applied. The last edit of a (object, key) wins; every duplicate of an edited key goes. BT_E_LIMIT: an object
 * that they go into is too large (BT_BODY_NESTED_MAX, BT_BODY_MEMBERS_MAX). */
int bt_body_apply(const bt_body_t *body, const bt_edits_t *edits, bt_arena_t *arena,
                  bt_slices_t *out);

#endif
