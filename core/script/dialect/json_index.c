/* How it works: objects are recognised by where their text begins, which is unique within a call.
 * When more objects are looked into than can be remembered, the last slot is used again. What lies
 * within validated text is not validated again. */
#include "script/dialect/json_index.h"

#include <string.h>

void bt_json_index_reset(bt_json_index_t *index, bt_arena_t *arena, bt_str_t known)
{
    index->arena = arena;
    index->known = known;
    index->used = 0;
}

static void grow(bt_arena_t *arena, bt_json_object_index_t *object)
{
    unsigned wider = object->cap == 0 ? 16 : object->cap * 2;
    bt_json_item_t *items = bt_arena_alloc(arena, wider * sizeof(*items));

    if (object->count > 0)
        memcpy(items, object->items, object->count * sizeof(*items));
    object->items = items;
    object->cap = wider;
}

static void add(bt_arena_t *arena, bt_json_object_index_t *object, const bt_json_item_t *item)
{
    if (object->count == object->cap)
        grow(arena, object);
    object->items[object->count++] = *item;
}

static void read_object(bt_arena_t *arena, bt_json_object_index_t *object)
{
    bt_json_cursor_t cursor;
    bt_json_item_t item;
    int rc;

    if (bt_json_object(&cursor, object->text) != 0)
        return;
    while ((rc = bt_json_next(&cursor, &item)) == 1)
        add(arena, object, &item);
    object->is_right = rc == 0;
    if (rc != 0)
        object->count = 0;
}

static void walk_object(bt_arena_t *arena, bt_json_object_index_t *object)
{
    bt_json_walk_t walk;
    bt_json_item_t item;

    object->is_right = true;
    bt_json_walk(&walk, object->text);
    while (bt_json_walk_member(&walk, &item))
        add(arena, object, &item);
}

void bt_json_index_add(bt_json_index_t *index, const bt_json_members_t *members)
{
    index->objects[index->used++] = (bt_json_object_index_t){
        .text = members->text, .items = members->items, .count = members->count, .is_right = true};
}

static bool is_within(bt_str_t text, bt_str_t whole)
{
    return whole.n != 0 && text.p >= whole.p && text.p + text.n <= whole.p + whole.n;
}

/* Has it been validated, with what it is part of? */
static bool knows(const bt_json_index_t *index, bt_str_t text)
{
    if (is_within(text, index->known))
        return true;
    for (unsigned i = 0; i < index->used; i++)
        if (index->objects[i].is_right && is_within(text, index->objects[i].text))
            return true;
    return false;
}

const bt_json_object_index_t *bt_json_index_object(bt_json_index_t *index, bt_str_t text)
{
    bt_json_object_index_t *object;
    bool is_right;

    for (unsigned i = 0; i < index->used; i++)
        if (index->objects[i].text.p == text.p && index->objects[i].text.n == text.n)
            return &index->objects[i];
    is_right = knows(index, text);
    if (index->used < BT_JSON_INDEX_OBJECTS)
        index->used++;
    object = &index->objects[index->used - 1];
    *object = (bt_json_object_index_t){.text = text};
    if (!is_right)
        read_object(index->arena, object);
    else if (bt_json_type_of(bt_str_trim(text)) == BT_JSON_OBJECT)
        walk_object(index->arena, object);
    return object;
}

const bt_json_item_t *bt_json_index_member(bt_json_index_t *index, bt_str_t object, bt_str_t key)
{
    const bt_json_object_index_t *found = bt_json_index_object(index, object);

    for (unsigned i = found->count; i > 0; i--)
        if (bt_json_key_eq(&found->items[i - 1], key))
            return &found->items[i - 1];
    return NULL;
}

static bt_str_t walk_to(bt_str_t array, unsigned at)
{
    bt_json_walk_t walk;
    bt_str_t element;
    size_t inner;

    bt_json_walk(&walk, array);
    while (bt_json_walk_next(&walk, &element, &inner))
        if (at-- == 0)
            return element;
    return BT_STR_NULL;
}

bt_str_t bt_json_index_element(const bt_json_index_t *index, bt_str_t array, unsigned at)
{
    bt_json_cursor_t cursor;
    bt_json_item_t item;

    if (knows(index, array))
        return bt_json_type_of(array) == BT_JSON_ARRAY ? walk_to(array, at) : BT_STR_NULL;
    if (bt_json_array(&cursor, array) != 0)
        return BT_STR_NULL;
    while (bt_json_next(&cursor, &item) == 1)
        if (item.ordinal == at)
            return item.value;
    return BT_STR_NULL;
}

long bt_json_index_count(const bt_json_index_t *index, bt_str_t value)
{
    return knows(index, value) ? (long) bt_json_size(value) : bt_json_count(value);
}
