/* json_index.h - members of the JSON objects that one dialect call looks into. Private to core/script.
 *
 * Owner: one dialect call; items live in the leg's arena.
 * Life:  reset before the call, dead after it.
 * Flow:  the first look into an object indexes (and so validates) it; later looks are a walk over its keys.
 * Cost:  one pass an object, at most BT_JSON_INDEX_OBJECTS objects are remembered.
 */
#ifndef BT_SCRIPT_JSON_INDEX_H
#define BT_SCRIPT_JSON_INDEX_H

#include "base/arena.h"
#include "base/json.h"

#define BT_JSON_INDEX_OBJECTS 4

typedef struct bt_json_object_index {
    bt_str_t text;
    bt_json_item_t *items; /* NULL when the text is no object */
    unsigned count, cap;
    bool is_right; /* well-formed */
} bt_json_object_index_t;

typedef struct bt_json_index {
    bt_arena_t *arena;
    bt_str_t known; /* has been validated by the caller; empty: nothing has */
    bt_json_object_index_t objects[BT_JSON_INDEX_OBJECTS];
    unsigned used;
} bt_json_index_t;

void bt_json_index_reset(bt_json_index_t *index, bt_arena_t *arena, bt_str_t known);
/* Of an object that has been read: the first of those that are remembered. Its items stay the caller's. */
void bt_json_index_add(bt_json_index_t *index, const bt_json_members_t *members);
/* The object's members in order; count 0 when the text is no well-formed object. */
const bt_json_object_index_t *bt_json_index_object(bt_json_index_t *index, bt_str_t text);
/* The member that a parser keeps when a key stands twice: the last one. NULL when absent. */
const bt_json_item_t *bt_json_index_member(bt_json_index_t *index, bt_str_t object, bt_str_t key);
/* Element `at` (from 0) of an array: its raw text, or BT_STR_NULL. */
bt_str_t bt_json_index_element(const bt_json_index_t *index, bt_str_t array, unsigned at);
/* Number of elements or members; < 0 on malformed text. */
long bt_json_index_count(const bt_json_index_t *index, bt_str_t value);

#endif
