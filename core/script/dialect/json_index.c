/* How it works: objects are recognised by where their text begins, which is unique within a call. When more objects are
 * looked into than can be remembered, the last slot is used again. */
#include "script/dialect/json_index.h"

#include <string.h>

void bt_json_index_reset(bt_json_index_t *index, bt_arena_t *arena)
{
    index->arena = arena;
    index->used = 0;
}

static void grow(bt_arena_t *arena, bt_json_object_index_t *object, unsigned *cap)
{
    unsigned wider = *cap == 0 ? 16 : *cap * 2;
    bt_json_item_t *items = bt_arena_alloc(arena, wider * sizeof(*items));

    if (object->count > 0)
        memcpy(items, object->items, object->count * sizeof(*items));
    object->items = items;
    *cap = wider;
}

static void read_object(bt_arena_t *arena, bt_json_object_index_t *object, bt_str_t text)
{
    bt_json_cursor_t cursor;
    bt_json_item_t item;
    unsigned cap = 0;
    int rc;

    *object = (bt_json_object_index_t){.text = text};
    if (bt_json_object(&cursor, text) != 0)
        return;
    while ((rc = bt_json_next(&cursor, &item)) == 1) {
        if (object->count == cap)
            grow(arena, object, &cap);
        object->items[object->count++] = item;
    }
    if (rc != 0)
        object->count = 0;
}

const bt_json_object_index_t *bt_json_index_object(bt_json_index_t *index, bt_str_t text)
{
    for (unsigned i = 0; i < index->used; i++)
        if (index->objects[i].text.p == text.p && index->objects[i].text.n == text.n)
            return &index->objects[i];
    if (index->used < BT_JSON_INDEX_OBJECTS)
        index->used++;
    read_object(index->arena, &index->objects[index->used - 1], text);
    return &index->objects[index->used - 1];
}

const bt_json_item_t *bt_json_index_member(bt_json_index_t *index, bt_str_t object, bt_str_t key)
{
    const bt_json_object_index_t *found = bt_json_index_object(index, object);

    for (unsigned i = found->count; i > 0; i--)
        if (bt_json_key_eq(&found->items[i - 1], key))
            return &found->items[i - 1];
    return NULL;
}

bt_str_t bt_json_element(bt_str_t array, unsigned at)
{
    bt_json_cursor_t cursor;
    bt_json_item_t item;

    if (bt_json_array(&cursor, array) != 0)
        return BT_STR_NULL;
    while (bt_json_next(&cursor, &item) == 1)
        if (item.ordinal == at)
            return item.value;
    return BT_STR_NULL;
}
