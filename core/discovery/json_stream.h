/* json_stream.h - cuts a stream of JSON into the values that matter, as its bytes come, so that no answer has to be held whole.
 *
 * Owner: the caller's storage.
 * Life:  init -> feed* -> fini; reset before another stream.
 * Flow:  LINES: each line is a value. ITEMS: each element of the array "items" of the top object is one, and what stands around them stays in
 *        `rest`, whose array is empty then. Values are cut, not checked: whoever takes one reads it with base/json.
 * Cost:  one pass; holds the value that is under way.
 */
#ifndef BT_DISCOVERY_JSON_STREAM_H
#define BT_DISCOVERY_JSON_STREAM_H

#include "base/str.h"

enum bt_json_stream_kind { BT_JSON_STREAM_LINES, BT_JSON_STREAM_ITEMS };

typedef struct bt_json_bytes {
    char *data;
    size_t len, cap;
} bt_json_bytes_t;

typedef struct bt_json_stream {
    enum bt_json_stream_kind kind;
    size_t value_max, rest_max;
    bt_json_bytes_t value, rest;
    unsigned depth;
    bool in_string, is_escaped, in_items;
    uint64_t too_large; /* items that were passed over */
} bt_json_stream_t;

/* False: no more. value is borrowed for the call. */
typedef bool (*bt_json_stream_cb)(void *user, bt_str_t value);

void bt_json_stream_init(bt_json_stream_t *s, enum bt_json_stream_kind kind, size_t value_max);
void bt_json_stream_fini(bt_json_stream_t *s);
void bt_json_stream_reset(bt_json_stream_t *s, enum bt_json_stream_kind kind);
/* 0, BT_E_JSON, BT_E_LIMIT (a line, or what stands around the items, is too large), BT_E_NOMEM, BT_E_CANCELLED (by cb). */
int bt_json_stream_feed(bt_json_stream_t *s, bt_str_t bytes, bt_json_stream_cb cb, void *user);
/* Is a value under way? */
static inline bool bt_json_stream_is_within(const bt_json_stream_t *s)
{
    return s->value.len > 0;
}

#endif
