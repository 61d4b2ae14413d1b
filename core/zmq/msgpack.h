/* msgpack.h - a msgpack payload that came over a wire: one map looked into by key, or any value walked through.
 *
 * Owner: the caller's storage.
 * Life:  open -> looked into -> close; texts are spans of the bytes, which outlive it.
 * Flow:  bytes -> bounds (depth, and no more elements promised than there are bytes) -> libmsgpack-c -> members.
 * Cost:  two passes; what libmsgpack-c allocates is bounded by the bytes.
 */
#ifndef BT_ZMQ_MSGPACK_H
#define BT_ZMQ_MSGPACK_H

#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>

#define BT_MSGPACK_DEPTH_MAX 16

typedef struct bt_msgpack {
    void *zone;
    void *root;
} bt_msgpack_t;

/* The bytes must be one value and nothing behind it. BT_E_INVAL, BT_E_LIMIT (too deep), BT_E_NOMEM: nothing to close. */
int bt_msgpack_open(bt_msgpack_t *m, bt_str_t bytes);
void bt_msgpack_close(bt_msgpack_t *m);
bool bt_msgpack_is_map(const bt_msgpack_t *m);
/* Of the map's member; BT_STR_NULL: it is not there, or no text. A key that stands twice: the last. */
bt_str_t bt_msgpack_text(const bt_msgpack_t *m, const char *key);
/* BT_E_AGAIN: it is not there; BT_E_INVAL: it is no whole number from 0 on. */
int bt_msgpack_uint(const bt_msgpack_t *m, const char *key, uint64_t *value_p);

/* ---- any value: borrowed until close. NULL is taken as nil ---- */

typedef struct bt_msgpack_value bt_msgpack_value_t;
enum bt_msgpack_type {
    BT_MSGPACK_NIL,
    BT_MSGPACK_INT, /* whole, of either sign */
    BT_MSGPACK_TEXT,
    BT_MSGPACK_BYTES,
    BT_MSGPACK_ARRAY,
    BT_MSGPACK_MAP,
    BT_MSGPACK_OTHER
};

const bt_msgpack_value_t *bt_msgpack_root(const bt_msgpack_t *m);
enum bt_msgpack_type bt_msgpack_type(const bt_msgpack_value_t *v);
unsigned bt_msgpack_count(const bt_msgpack_value_t *v); /* of an array; 0 of all else */
const bt_msgpack_value_t *bt_msgpack_at(const bt_msgpack_value_t *array, unsigned i);
const bt_msgpack_value_t *bt_msgpack_member(const bt_msgpack_value_t *map, const char *key);
/* Of a text or of bytes. */
bt_str_t bt_msgpack_string(const bt_msgpack_value_t *v);
/* A negative one as two's complement. False: it is no whole number. */
bool bt_msgpack_int(const bt_msgpack_value_t *v, uint64_t *value_p);

#endif
