/* How it works: a flat array in the order in which the dialect spoke. Nothing is merged here: dispatch/body walks the
 * array from its end, so that the last edit of a key wins without a search on every insert. */
#include "script/dialect/edits.h"

#include "base/err.h"

#include <string.h>

#define FIRST_ITEMS 8U /* as many as a leg has, usually */

void bt_edits_init(bt_edits_t *e, bt_arena_t *arena)
{
    *e = (bt_edits_t){.arena = arena};
}

static int reserve(bt_edits_t *e, unsigned more)
{
    bt_edit_t *items;
    unsigned cap = e->cap == 0 ? FIRST_ITEMS : e->cap;

    if (more > BT_EDITS_MAX - e->count)
        return BT_E_LIMIT;
    while (cap < e->count + more)
        cap *= 2;
    if (cap == e->cap)
        return 0;
    items = bt_arena_alloc(e->arena, cap * sizeof(*items));
    if (e->count > 0)
        memcpy(items, e->items, e->count * sizeof(*items));
    e->items = items;
    e->cap = cap;
    return 0;
}

static int put(bt_edits_t *e, enum bt_edit_op op, bt_str_t object, bt_str_t key, bt_str_t value)
{
    if (reserve(e, 1) < 0)
        return BT_E_LIMIT;
    e->items[e->count++] = (bt_edit_t){
        .op = op,
        .object = object.n == 0 ? BT_STR("") : bt_arena_str(e->arena, object),
        .key = bt_arena_str(e->arena, key),
        .value = value,
    };
    return 0;
}

int bt_edits_set(bt_edits_t *e, bt_str_t object, bt_str_t key, bt_str_t value, bool borrow)
{
    if (e->count == BT_EDITS_MAX)
        return BT_E_LIMIT;
    return put(e, BT_EDIT_SET, object, key, borrow ? value : bt_arena_str(e->arena, value));
}

int bt_edits_remove(bt_edits_t *e, bt_str_t object, bt_str_t key)
{
    return put(e, BT_EDIT_REMOVE, object, key, BT_STR_NULL);
}

int bt_edits_header(bt_edits_t *e, bt_str_t name, bt_str_t value)
{
    if (e->count == BT_EDITS_MAX)
        return BT_E_LIMIT;
    return put(e, BT_EDIT_HEADER, BT_STR(""), name,
               value.p == NULL ? BT_STR_NULL : bt_arena_str(e->arena, value));
}

int bt_edits_append(bt_edits_t *e, const bt_edits_t *more)
{
    if (more->count == 0)
        return 0;
    if (reserve(e, more->count) < 0)
        return BT_E_LIMIT;
    memcpy(&e->items[e->count], more->items, more->count * sizeof(*more->items));
    e->count += more->count;
    return 0;
}
