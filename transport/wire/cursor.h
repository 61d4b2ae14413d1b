/* cursor.h - reading and writing bytes of messages: what frame.c and control.c share.
 *
 * Owner: the caller's stack; a cursor borrows the bytes.
 * Life:  of a call.
 * Flow:  a reader goes bad once and stays bad: a decoder takes what it needs and looks at is_bad at the end. Every count is bounded before it is used.
 * Cost:  O(bytes); no allocation.
 */
#ifndef BT_TRANSPORT_CURSOR_H
#define BT_TRANSPORT_CURSOR_H

#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef struct bt_kv_cursor {
    const uint8_t *p;
    size_t n;
    bool is_bad;
} bt_kv_cursor_t;

static inline uint32_t bt_kv_get_u32(const uint8_t *p)
{
    return (uint32_t) p[0] | (uint32_t) p[1] << 8 | (uint32_t) p[2] << 16 | (uint32_t) p[3] << 24;
}

static inline uint64_t bt_kv_get_u64(const uint8_t *p)
{
    return bt_kv_get_u32(p) | (uint64_t) bt_kv_get_u32(p + 4) << 32;
}

static inline const uint8_t *bt_kv_take(bt_kv_cursor_t *c, size_t n)
{
    if (c->is_bad || c->n < n) {
        c->is_bad = true;
        return NULL;
    }
    const uint8_t *p = c->p;
    c->p += n;
    c->n -= n;
    return p;
}

static inline uint8_t bt_kv_take_u8(bt_kv_cursor_t *c)
{
    const uint8_t *p = bt_kv_take(c, 1);
    return p != NULL ? *p : 0;
}

static inline uint16_t bt_kv_take_u16(bt_kv_cursor_t *c)
{
    const uint8_t *p = bt_kv_take(c, 2);
    return p != NULL ? (uint16_t) ((unsigned) p[0] | (unsigned) p[1] << 8) : 0;
}

static inline uint32_t bt_kv_take_u32(bt_kv_cursor_t *c)
{
    const uint8_t *p = bt_kv_take(c, 4);
    return p != NULL ? bt_kv_get_u32(p) : 0;
}

static inline uint64_t bt_kv_take_u64(bt_kv_cursor_t *c)
{
    const uint8_t *p = bt_kv_take(c, 8);
    return p != NULL ? bt_kv_get_u64(p) : 0;
}

/* A count that may be at most max. */
static inline uint32_t bt_kv_take_count(bt_kv_cursor_t *c, uint32_t max)
{
    uint32_t count = bt_kv_take_u32(c);

    if (count <= max)
        return count;
    c->is_bad = true;
    return 0;
}

static inline bt_str_t bt_kv_take_bytes(bt_kv_cursor_t *c, uint32_t max)
{
    uint32_t n = bt_kv_take_count(c, max);
    const uint8_t *p = bt_kv_take(c, n);

    return p != NULL ? (bt_str_t){(const char *) p, n} : BT_STR_NULL;
}

static inline void bt_kv_store_u32(uint8_t *p, uint32_t value)
{
    for (unsigned i = 0; i < 4; i++)
        p[i] = (uint8_t) (value >> (8 * i));
}

static inline void bt_kv_store_u64(uint8_t *p, uint64_t value)
{
    bt_kv_store_u32(p, (uint32_t) value);
    bt_kv_store_u32(p + 4, (uint32_t) (value >> 32));
}

#endif
