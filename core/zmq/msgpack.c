/* libmsgpack-c believes a header that promises 2^32 elements, and allocates for them. So the headers are walked first: an element
 * has at least a byte, and nothing may be deeper than a payload of ours ever is. */
#include "zmq/msgpack.h"

#include "base/err.h"

#include <msgpack.h>
#include <stdlib.h>

/* ---- bounds ---- */

typedef struct walk {
    const uint8_t *at;
    size_t left;
} walk_t;

static uint64_t big_endian(const uint8_t *p, unsigned n)
{
    uint64_t value = 0;

    for (unsigned i = 0; i < n; i++)
        value = value << 8 | p[i];
    return value;
}

/* What stands behind a header of one byte: a length of `length` bytes (0: `count` says it), then so many bytes of value, or
 * `children` for each of them. */
typedef struct shape {
    unsigned length, extra, children;
    uint64_t count;
} shape_t;

static shape_t shape_of(uint8_t tag)
{
    static const uint8_t fixed[] = {4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 2, 3, 5, 9, 17}; /* 0xca..0xd8 */

    if (tag < 0x80 || tag >= 0xe0)
        return (shape_t){0};
    if (tag < 0x90)
        return (shape_t){.children = 2, .count = tag & 15};
    if (tag < 0xa0)
        return (shape_t){.children = 1, .count = tag & 15};
    if (tag < 0xc0)
        return (shape_t){.count = tag & 31};
    if (tag < 0xc4)
        return (shape_t){0};
    if (tag < 0xc7) /* bin 8, 16, 32 */
        return (shape_t){.length = 1U << (tag - 0xc4)};
    if (tag < 0xca) /* ext: a type beside its bytes */
        return (shape_t){.length = 1U << (tag - 0xc7), .extra = 1};
    if (tag < 0xd9)
        return (shape_t){.count = fixed[tag - 0xca]};
    if (tag < 0xdc) /* str 8, 16, 32 */
        return (shape_t){.length = 1U << (tag - 0xd9)};
    if (tag < 0xde)
        return (shape_t){.length = 2U << (tag - 0xdc), .children = 1};
    return (shape_t){.length = 2U << (tag - 0xde), .children = 2};
}

static int skip(walk_t *w, uint64_t n)
{
    if (n > w->left)
        return BT_E_INVAL;
    w->at += n;
    w->left -= n;
    return 0;
}

/* One value with all that is in it. */
static int check_value(walk_t *w, unsigned depth)
{
    if (depth > BT_MSGPACK_DEPTH_MAX)
        return BT_E_LIMIT;
    if (w->left == 0 || *w->at == 0xc1) /* never used */
        return BT_E_INVAL;
    shape_t s = shape_of(*w->at);
    if (w->left <= s.length)
        return BT_E_INVAL;
    if (s.length > 0)
        s.count = big_endian(w->at + 1, s.length) + s.extra;
    int rc = skip(w, 1 + s.length);
    if (s.children == 0)
        return rc == 0 ? skip(w, s.count) : rc;
    if (s.count * s.children > w->left)
        return BT_E_INVAL;
    for (uint64_t i = 0; i < s.count * s.children && rc == 0; i++)
        rc = check_value(w, depth + 1);
    return rc;
}

static int check_bounds(bt_str_t bytes)
{
    walk_t w = {(const uint8_t *) bytes.p, bytes.n};
    int rc = check_value(&w, 1);

    return rc == 0 && w.left > 0 ? BT_E_INVAL : rc;
}

/* ---- members ---- */

int bt_msgpack_open(bt_msgpack_t *m, bt_str_t bytes)
{
    int rc = check_bounds(bytes);
    size_t at = 0;

    if (rc < 0)
        return rc;
    m->root = malloc(sizeof(msgpack_object));
    m->zone = msgpack_zone_new(MSGPACK_ZONE_CHUNK_SIZE);
    if (m->root == NULL || m->zone == NULL) {
        bt_msgpack_close(m);
        return BT_E_NOMEM;
    }
    if (msgpack_unpack(bytes.p, bytes.n, &at, m->zone, m->root) == MSGPACK_UNPACK_SUCCESS)
        return 0;
    bt_msgpack_close(m);
    return BT_E_INVAL;
}

void bt_msgpack_close(bt_msgpack_t *m)
{
    if (m->zone != NULL)
        msgpack_zone_free(m->zone);
    free(m->root);
    *m = (bt_msgpack_t){0};
}

bool bt_msgpack_is_map(const bt_msgpack_t *m)
{
    return ((const msgpack_object *) m->root)->type == MSGPACK_OBJECT_MAP;
}

static bt_str_t text_of(const msgpack_object *o)
{
    return o->type == MSGPACK_OBJECT_STR ? (bt_str_t){o->via.str.ptr, o->via.str.size}
                                         : BT_STR_NULL;
}

static const msgpack_object *find_in(const msgpack_object *map, const char *key)
{
    const msgpack_object *found = NULL;

    for (uint32_t i = 0; map->type == MSGPACK_OBJECT_MAP && i < map->via.map.size; i++) {
        const bt_str_t name = text_of(&map->via.map.ptr[i].key);
        if (name.p != NULL && bt_str_eq(name, bt_str(key)))
            found = &map->via.map.ptr[i].val;
    }
    return found;
}

static const msgpack_object *find(const bt_msgpack_t *m, const char *key)
{
    return find_in(m->root, key);
}

bt_str_t bt_msgpack_text(const bt_msgpack_t *m, const char *key)
{
    const msgpack_object *o = find(m, key);

    return o != NULL ? text_of(o) : BT_STR_NULL;
}

int bt_msgpack_uint(const bt_msgpack_t *m, const char *key, uint64_t *value_p)
{
    const msgpack_object *o = find(m, key);

    if (o == NULL)
        return BT_E_AGAIN;
    if (o->type != MSGPACK_OBJECT_POSITIVE_INTEGER)
        return BT_E_INVAL;
    *value_p = o->via.u64;
    return 0;
}

/* ---- any value ---- */

static const msgpack_object *object_of(const bt_msgpack_value_t *v)
{
    return (const msgpack_object *) v;
}

static const bt_msgpack_value_t *value_of(const msgpack_object *o)
{
    return (const bt_msgpack_value_t *) o;
}

const bt_msgpack_value_t *bt_msgpack_root(const bt_msgpack_t *m)
{
    return value_of(m->root);
}

enum bt_msgpack_type bt_msgpack_type(const bt_msgpack_value_t *v)
{
    if (v == NULL)
        return BT_MSGPACK_NIL;
    switch (object_of(v)->type) {
    case MSGPACK_OBJECT_NIL:
        return BT_MSGPACK_NIL;
    case MSGPACK_OBJECT_POSITIVE_INTEGER:
    case MSGPACK_OBJECT_NEGATIVE_INTEGER:
        return BT_MSGPACK_INT;
    case MSGPACK_OBJECT_STR:
        return BT_MSGPACK_TEXT;
    case MSGPACK_OBJECT_BIN:
        return BT_MSGPACK_BYTES;
    case MSGPACK_OBJECT_ARRAY:
        return BT_MSGPACK_ARRAY;
    case MSGPACK_OBJECT_MAP:
        return BT_MSGPACK_MAP;
    default:
        return BT_MSGPACK_OTHER;
    }
}

unsigned bt_msgpack_count(const bt_msgpack_value_t *v)
{
    return bt_msgpack_type(v) == BT_MSGPACK_ARRAY ? object_of(v)->via.array.size : 0;
}

const bt_msgpack_value_t *bt_msgpack_at(const bt_msgpack_value_t *array, unsigned i)
{
    return i < bt_msgpack_count(array) ? value_of(&object_of(array)->via.array.ptr[i]) : NULL;
}

const bt_msgpack_value_t *bt_msgpack_member(const bt_msgpack_value_t *map, const char *key)
{
    return map != NULL ? value_of(find_in(object_of(map), key)) : NULL;
}

bt_str_t bt_msgpack_string(const bt_msgpack_value_t *v)
{
    switch (bt_msgpack_type(v)) {
    case BT_MSGPACK_TEXT:
        return text_of(object_of(v));
    case BT_MSGPACK_BYTES:
        return (bt_str_t){object_of(v)->via.bin.ptr, object_of(v)->via.bin.size};
    default:
        return BT_STR_NULL;
    }
}

bool bt_msgpack_int(const bt_msgpack_value_t *v, uint64_t *value_p)
{
    if (bt_msgpack_type(v) != BT_MSGPACK_INT)
        return false;
    *value_p = object_of(v)->via.u64; /* a negative one lies in the same eight bytes */
    return true;
}
