/* How it works: as luatable.c, but with limits fit for data that a policy made, and numbers that need not be finite. An item is
 * counted before it is filled, so that bt_value_free of the root finds everything whatever is raised in between. */
#include "script/value/plain.h"

#include "script/vm/vm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define SORT_CHECK_EVERY 128
#define PART_BYTES ((size_t) 16 << 10)

struct reader {
    char path[256];
    unsigned depth, values;
    size_t bytes;
};

static void refuse(lua_State *L, const struct reader *r, const char *why)
{
    luaL_error(L, "%s: %s", r->path, why);
}

static void read_value(lua_State *L, struct reader *r, bt_value_t *out);

static char *copy_text(lua_State *L, struct reader *r, int idx)
{
    bt_str_t s = bt_vm_str(L, idx);
    char *copy;

    r->bytes += s.n;
    if (r->bytes > BT_PLAIN_BYTES)
        refuse(L, r, "more than 1 MiB of text in all");
    if (memchr(s.p, '\0', s.n) != NULL)
        refuse(L, r, "a string holds a NUL byte");
    copy = bt_str_dup(s);
    if (copy == NULL)
        refuse(L, r, "out of memory");
    return copy;
}

static bt_value_t *add_item(lua_State *L, struct reader *r, bt_value_t *out, unsigned *cap)
{
    const bt_vm_t *vm = bt_vm_of(L);

    if (bt_watch_is_over(&vm->watch))
        bt_watch_raise(L, &vm->watch, 0);
    if (++r->values > BT_PLAIN_VALUES)
        refuse(L, r, "more than 65536 values in all");
    if (out->count == *cap) {
        unsigned wider = *cap == 0 ? 8 : *cap * 2;
        bt_value_t *items = realloc(out->items, wider * sizeof(*items));
        if (items == NULL)
            refuse(L, r, "out of memory");
        out->items = items;
        *cap = wider;
    }
    out->items[out->count] = (bt_value_t){.type = BT_VALUE_BOOL};
    return &out->items[out->count++];
}

static void read_list(lua_State *L, struct reader *r, bt_value_t *out, int table, size_t n)
{
    size_t at = strlen(r->path), keys = 0;
    unsigned cap = 0;

    out->type = BT_VALUE_LIST;
    for (lua_pushnil(L); lua_next(L, table) != 0; lua_pop(L, 1))
        if (lua_type(L, -2) != LUA_TNUMBER || ++keys > n)
            refuse(L, r, "keys must be strings, or 1, 2, 3, ... without a gap");
    if (keys != n)
        refuse(L, r, "keys must be strings, or 1, 2, 3, ... without a gap");
    for (size_t i = 1; i <= n; i++) {
        snprintf(r->path + at, sizeof(r->path) - at, "[%zu]", i);
        lua_rawgeti(L, table, (int) i);
        read_value(L, r, add_item(L, r, out, &cap));
        lua_pop(L, 1);
        r->path[at] = '\0';
    }
}

static bool is_before(const bt_value_t *a, const bt_value_t *b)
{
    return strcmp(a->key, b->key) < 0;
}

/* The member at i goes down until none below it comes after it. */
static void sink(bt_value_t *items, size_t i, size_t count)
{
    const bt_value_t item = items[i];

    for (size_t below = 2 * i + 1; below < count; below = 2 * i + 1) {
        if (below + 1 < count && is_before(&items[below], &items[below + 1]))
            below++;
        if (!is_before(&item, &items[below]))
            break;
        items[i] = items[below];
        i = below;
    }
    items[i] = item;
}

/* A heap, because it can be left at any moment: every member is still there once. */
static void sort_members(lua_State *L, bt_value_t *items, size_t count)
{
    for (size_t i = count / 2; i-- > 0;) {
        if (i % SORT_CHECK_EVERY == 0)
            bt_vm_check_time(L);
        sink(items, i, count);
    }
    for (size_t left = count; left-- > 1;) {
        const bt_value_t last = items[left];

        if (left % SORT_CHECK_EVERY == 0)
            bt_vm_check_time(L);
        items[left] = items[0];
        items[0] = last;
        sink(items, 0, left);
    }
}

static void read_members(lua_State *L, struct reader *r, bt_value_t *out, int table)
{
    size_t at = strlen(r->path);
    unsigned cap = 0;

    out->type = BT_VALUE_TABLE;
    for (lua_pushnil(L); lua_next(L, table) != 0; lua_pop(L, 1)) {
        bt_value_t *item;

        if (lua_type(L, -2) != LUA_TSTRING)
            refuse(L, r, "keys must be strings, or 1, 2, 3, ... without a gap");
        snprintf(r->path + at, sizeof(r->path) - at, ".%s", lua_tostring(L, -2));
        item = add_item(L, r, out, &cap);
        item->key = copy_text(L, r, -2);
        read_value(L, r, item);
        r->path[at] = '\0';
    }
    if (out->count > 1)
        sort_members(L, out->items, out->count);
}

static void read_table(lua_State *L, struct reader *r, bt_value_t *out)
{
    int table = lua_gettop(L);
    size_t n = lua_objlen(L, table);

    if (r->depth == BT_PLAIN_DEPTH)
        refuse(L, r, "nested more than 8 deep (or a table holds itself)");
    luaL_checkstack(L, 8, "plain data");
    r->depth++;
    if (n > 0)
        read_list(L, r, out, table, n);
    else
        read_members(L, r, out, table);
    r->depth--;
}

static void read_value(lua_State *L, struct reader *r, bt_value_t *out)
{
    switch (lua_type(L, -1)) {
    case LUA_TBOOLEAN:
        out->boolean = lua_toboolean(L, -1);
        return;
    case LUA_TNUMBER:
        out->type = BT_VALUE_NUMBER;
        out->number = lua_tonumber(L, -1);
        return;
    case LUA_TSTRING:
        out->type = BT_VALUE_STRING;
        out->string = copy_text(L, r, -1);
        return;
    case LUA_TTABLE:
        read_table(L, r, out);
        return;
    default:
        luaL_error(L, "%s: a %s value; only tables, numbers, strings and booleans are plain data",
                   r->path, luaL_typename(L, -1));
    }
}

void bt_plain_read(lua_State *L, int idx, const char *what, bt_value_t **root_p)
{
    struct reader r = {.depth = 0};

    snprintf(r.path, sizeof(r.path), "%s", what);
    *root_p = calloc(1, sizeof(**root_p));
    if (*root_p == NULL)
        refuse(L, &r, "out of memory");
    lua_pushvalue(L, idx);
    read_value(L, &r, *root_p);
    lua_pop(L, 1);
}

static void push_items(lua_State *L, const bt_value_t *value)
{
    bool is_list = value->type == BT_VALUE_LIST;

    luaL_checkstack(L, 8, "plain data");
    lua_createtable(L, is_list ? (int) value->count : 0, is_list ? 0 : (int) value->count);
    for (unsigned i = 0; i < value->count; i++) {
        bt_plain_push(L, &value->items[i]);
        if (is_list)
            lua_rawseti(L, -2, (int) i + 1);
        else
            lua_setfield(L, -2, value->items[i].key);
    }
}

void bt_plain_push(lua_State *L, const bt_value_t *value)
{
    if (value == NULL) {
        lua_pushnil(L);
        return;
    }
    switch (value->type) {
    case BT_VALUE_BOOL:
        lua_pushboolean(L, value->boolean);
        return;
    case BT_VALUE_NUMBER:
        lua_pushnumber(L, value->number);
        return;
    case BT_VALUE_STRING:
        lua_pushstring(L, value->string);
        return;
    default:
        push_items(L, value);
        return;
    }
}

/* ---- copies ---- */

static char *copy_or_null(const char *z)
{
    return z != NULL ? strdup(z) : NULL;
}

static bool copy_into(bt_value_t *out, const bt_value_t *from)
{
    *out = (bt_value_t){.type = from->type, .boolean = from->boolean, .number = from->number};
    out->key = copy_or_null(from->key);
    out->string = copy_or_null(from->string);
    if ((from->key != NULL && out->key == NULL) || (from->string != NULL && out->string == NULL))
        return false;
    if (from->count == 0)
        return true;
    out->items = calloc(from->count, sizeof(*out->items));
    if (out->items == NULL)
        return false;
    for (; out->count < from->count; out->count++)
        if (!copy_into(&out->items[out->count], &from->items[out->count])) {
            out->count++; /* half made, but to be freed */
            return false;
        }
    return true;
}

bt_value_t *bt_value_copy(const bt_value_t *value)
{
    bt_value_t *copy = value != NULL ? calloc(1, sizeof(*copy)) : NULL;

    if (copy == NULL || copy_into(copy, value))
        return copy;
    bt_value_free(copy);
    return NULL;
}

/* ---- comparing, showing ---- */

static bool same_text(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

bool bt_value_equal(const bt_value_t *a, const bt_value_t *b)
{
    if (a == NULL || b == NULL || a == b)
        return a == b;
    if (a->type != b->type || a->count != b->count || !same_text(a->key, b->key))
        return false;
    if (a->type == BT_VALUE_BOOL)
        return a->boolean == b->boolean;
    if (a->type == BT_VALUE_NUMBER)
        return a->number == b->number;
    if (a->type == BT_VALUE_STRING)
        return same_text(a->string, b->string);
    for (unsigned i = 0; i < a->count; i++)
        if (!bt_value_equal(&a->items[i], &b->items[i]))
            return false;
    return true;
}

static void put_number(double number, bt_text_t *out)
{
    char text[40];

    snprintf(text, sizeof(text), "%.15g", number);
    if (strtod(text, NULL) != number)
        snprintf(text, sizeof(text), "%.17g", number);
    bt_text_puts(out, isfinite(number) ? text : "null");
}

/* In parts: quoting a MiB takes milliseconds. Each part brings quotes of its own, and those between two go. */
static void put_text(lua_State *L, bt_str_t left, bt_text_t *out)
{
    size_t seam = 0;

    do {
        const size_t n = L != NULL ? bt_plain_part(left) : left.n;

        if (L != NULL)
            bt_vm_check_time(L);
        bt_text_json_str(out, (bt_str_t){left.p, n});
        if (seam > 0 && !out->failed) {
            out->len -= 2;
            memmove(out->data + seam, out->data + seam + 2, out->len - seam + 1);
        }
        seam = out->len > 0 ? out->len - 1 : 0;
        left = (bt_str_t){left.p + n, left.n - n};
    } while (left.n > 0 && !out->failed);
}

static void put_value(lua_State *L, const bt_value_t *value, bt_text_t *out)
{
    const bool is_list = value->type == BT_VALUE_LIST;

    if (L != NULL)
        bt_vm_check_time(L);
    if (value->type == BT_VALUE_BOOL) {
        bt_text_puts(out, value->boolean ? "true" : "false");
    } else if (value->type == BT_VALUE_NUMBER) {
        put_number(value->number, out);
    } else if (value->type == BT_VALUE_STRING) {
        put_text(L, bt_str(value->string), out);
    } else {
        bt_text_puts(out, is_list ? "[" : "{");
        for (unsigned i = 0; i < value->count; i++) {
            bt_text_puts(out, i > 0 ? "," : "");
            if (!is_list) {
                put_text(L, bt_str(value->items[i].key), out);
                bt_text_puts(out, ":");
            }
            put_value(L, &value->items[i], out);
        }
        bt_text_puts(out, is_list ? "]" : "}");
    }
}

void bt_value_json(const bt_value_t *value, bt_text_t *out)
{
    put_value(NULL, value, out);
}

void bt_plain_json(lua_State *L, const bt_value_t *value, bt_text_t *out)
{
    put_value(L, value, out);
}

size_t bt_plain_part(bt_str_t text)
{
    size_t n = text.n < PART_BYTES ? text.n : PART_BYTES;

    while (n < text.n && n > PART_BYTES - 4 && ((unsigned char) text.p[n] & 0xc0) == 0x80)
        n--;
    return n;
}
