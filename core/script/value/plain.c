/* How it works: a walk with the path of keys at hand, so that what is wrong can be named the way its author wrote it. An item is
 * counted before it is filled, so that bt_value_free of the root finds everything whatever is raised in between. */
#include "script/value/plain.h"

#include "script/vm/vm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define SORT_CHECK_EVERY 128
#define KEYS "keys must be strings, or 1, 2, 3, ... without a gap"

struct reader {
    const bt_plain_rules_t *rules;
    char path[512];                          /* where it stands: "pools[1].workers" */
    const void *parents[BT_PLAIN_DEPTH_MAX]; /* tables above: a cycle is one of them again */
    unsigned depth, values;
    size_t bytes;
};

static void refuse(lua_State *L, const struct reader *r, const char *why)
{
    const char *file = r->rules->file, *path = r->path[0] != '\0' ? r->path : "the returned table";

    lua_pushfstring(L, "%s%s%s: %s", file != NULL ? file : "", file != NULL ? ": " : "", path, why);
    lua_error(L);
}

static void check_time(lua_State *L, const struct reader *r)
{
    if (r->rules->is_watched)
        bt_vm_check_time(L);
}

static void read_value(lua_State *L, struct reader *r, bt_value_t *out);

static char *copy_text(lua_State *L, struct reader *r, int idx)
{
    const bool is_small = r->rules->bytes < (size_t) 1 << 20;
    bt_str_t s = BT_STR_NULL;
    char *copy;

    s.p = lua_tolstring(L, idx, &s.n);
    r->bytes += s.n;
    if (r->bytes > r->rules->bytes)
        refuse(L, r,
               lua_pushfstring(L, "too many bytes of strings in all (more than %d %s)",
                               (int) (r->rules->bytes >> (is_small ? 10 : 20)),
                               is_small ? "KiB" : "MiB"));
    if (memchr(s.p, '\0', s.n) != NULL)
        refuse(L, r, "a string holds a NUL byte");
    copy = bt_str_dup(s);
    if (copy == NULL)
        refuse(L, r, "out of memory");
    return copy;
}

static bt_value_t *add_item(lua_State *L, struct reader *r, bt_value_t *out, unsigned *cap)
{
    check_time(L, r);
    if (++r->values > r->rules->values)
        refuse(L, r, "too many values in all");
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
        if (lua_type(L, -2) != LUA_TNUMBER)
            refuse(L, r, "has both list elements and named members; " KEYS);
        else if (++keys > n)
            refuse(L, r, KEYS);
    if (keys != n)
        refuse(L, r, KEYS);
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
static void sort_members(lua_State *L, const struct reader *r, bt_value_t *items, size_t count)
{
    for (size_t i = count / 2; i-- > 0;) {
        if (i % SORT_CHECK_EVERY == 0)
            check_time(L, r);
        sink(items, i, count);
    }
    for (size_t left = count; left-- > 1;) {
        const bt_value_t last = items[left];

        if (left % SORT_CHECK_EVERY == 0)
            check_time(L, r);
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
            refuse(L, r, KEYS);
        snprintf(r->path + at, sizeof(r->path) - at, "%s%s", at > 0 ? "." : "",
                 lua_tostring(L, -2));
        item = add_item(L, r, out, &cap);
        item->key = copy_text(L, r, -2);
        read_value(L, r, item);
        r->path[at] = '\0';
    }
    if (out->count > 1)
        sort_members(L, r, out->items, out->count);
}

static void read_table(lua_State *L, struct reader *r, bt_value_t *out)
{
    int table = lua_gettop(L);
    const void *self = lua_topointer(L, table);
    size_t n = lua_objlen(L, table);

    for (unsigned i = 0; i < r->depth; i++)
        if (r->parents[i] == self)
            refuse(L, r, "a table holds itself");
    if (r->depth == r->rules->depth)
        refuse(L, r, lua_pushfstring(L, "nested more than %d deep", (int) r->depth));
    luaL_checkstack(L, 8, "plain data");
    r->parents[r->depth++] = self;
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
        if (r->rules->is_finite && !isfinite(out->number))
            refuse(L, r, "is not a finite number");
        return;
    case LUA_TSTRING:
        out->type = BT_VALUE_STRING;
        out->string = copy_text(L, r, -1);
        return;
    case LUA_TTABLE:
        read_table(L, r, out);
        return;
    case LUA_TNIL:
        refuse(L, r, KEYS);
        return;
    default:
        refuse(L, r,
               lua_pushfstring(
                   L, "a %s value; only tables, numbers, strings and booleans are plain data",
                   luaL_typename(L, -1)));
    }
}

void bt_plain_read_by(lua_State *L, int idx, const bt_plain_rules_t *rules, bt_value_t **root_p)
{
    struct reader r = {.rules = rules};

    snprintf(r.path, sizeof(r.path), "%s", rules->what);
    *root_p = calloc(1, sizeof(**root_p));
    if (*root_p == NULL)
        refuse(L, &r, "out of memory");
    lua_pushvalue(L, idx);
    read_value(L, &r, *root_p);
    lua_pop(L, 1);
}

void bt_plain_read(lua_State *L, int idx, const char *what, bt_value_t **root_p)
{
    const bt_plain_rules_t rules = {.what = what,
                                    .depth = BT_PLAIN_DEPTH,
                                    .values = 65536,
                                    .bytes = (size_t) 1 << 20,
                                    .is_watched = true};

    bt_plain_read_by(L, idx, &rules, root_p);
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

static void check_watch(void *L)
{
    bt_vm_check_time(L);
}

void bt_plain_json(lua_State *L, const bt_value_t *value, bt_text_t *out)
{
    bt_value_json_checked(value, check_watch, L, out);
}
