/* How it works: a spec's own tables, read as the gateway reads what it got from a client. Strings are borrowed from the tables,
 * so nothing is freed here. */
#include "script/testing/testing_impl.h"

#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 8
#define BYTES_PER_TOKEN 4

static bt_str_t text_at(lua_State *L, int idx)
{
    bt_str_t s = BT_STR_NULL;

    s.p = lua_tolstring(L, idx, &s.n);
    return s;
}

bt_str_t bt_testing_member(lua_State *L, int idx, const char *key)
{
    bt_str_t s;

    lua_getfield(L, idx, key);
    if (!lua_isnil(L, -1) && lua_type(L, -1) != LUA_TSTRING)
        luaL_error(L, "%s must be a string", key);
    s = text_at(L, -1);
    lua_pop(L, 1);
    return s;
}

lua_Number bt_testing_number(lua_State *L, int idx, const char *key, lua_Number otherwise)
{
    lua_Number n;

    lua_getfield(L, idx, key);
    if (!lua_isnil(L, -1) && lua_type(L, -1) != LUA_TNUMBER)
        luaL_error(L, "%s must be a number", key);
    n = luaL_optnumber(L, -1, otherwise);
    lua_pop(L, 1);
    return n;
}

bool bt_testing_flag(lua_State *L, int idx, const char *key)
{
    bool is;

    lua_getfield(L, idx, key);
    is = lua_toboolean(L, -1) != 0;
    lua_pop(L, 1);
    return is;
}

/* ---- plain data ---- */

static int compare_keys(const void *a, const void *b)
{
    return strcmp(((const bt_value_t *) a)->key, ((const bt_value_t *) b)->key);
}

static bool read_value(lua_State *L, int idx, bt_value_t *out, int depth);

static bool read_list(lua_State *L, int idx, bt_value_t *out, int depth)
{
    unsigned count = (unsigned) lua_objlen(L, idx);
    bool ok = true;

    *out = (bt_value_t){.type = BT_VALUE_LIST, .items = calloc(count, sizeof(*out))};
    for (; ok && out->items != NULL && out->count < count; out->count++) {
        lua_rawgeti(L, idx, (int) out->count + 1);
        ok = read_value(L, lua_gettop(L), &out->items[out->count], depth);
        lua_pop(L, 1);
    }
    return ok && out->items != NULL;
}

static unsigned members_of(lua_State *L, int idx)
{
    unsigned count = 0;

    for (lua_pushnil(L); lua_next(L, idx) != 0; lua_pop(L, 1))
        count++;
    return count;
}

static bool read_members(lua_State *L, int idx, bt_value_t *out, int depth)
{
    unsigned count = members_of(L, idx);
    bool ok = true;

    *out = (bt_value_t){.type = BT_VALUE_TABLE, .items = calloc(count + 1, sizeof(*out))};
    for (lua_pushnil(L); lua_next(L, idx) != 0; lua_pop(L, 1)) {
        bt_value_t *item = &out->items[out->count];

        ok = ok && lua_type(L, -2) == LUA_TSTRING && read_value(L, lua_gettop(L), item, depth);
        item->key = strdup(lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "?");
        out->count++;
    }
    qsort(out->items, out->count, sizeof(out->items[0]), compare_keys);
    return ok;
}

/* False: something that is no plain data. What was read so far is in *out. */
static bool read_value(lua_State *L, int idx, bt_value_t *out, int depth)
{
    *out = (bt_value_t){.type = BT_VALUE_BOOL};
    switch (lua_type(L, idx)) {
    case LUA_TBOOLEAN:
        out->boolean = lua_toboolean(L, idx) != 0;
        return true;
    case LUA_TNUMBER:
        *out = (bt_value_t){.type = BT_VALUE_NUMBER, .number = lua_tonumber(L, idx)};
        return true;
    case LUA_TSTRING:
        *out = (bt_value_t){.type = BT_VALUE_STRING, .string = bt_str_dup(text_at(L, idx))};
        return true;
    case LUA_TTABLE:
        luaL_checkstack(L, 8, "plain data");
        if (depth == DEPTH_MAX)
            return false;
        return lua_objlen(L, idx) > 0 ? read_list(L, idx, out, depth + 1)
                                      : read_members(L, idx, out, depth + 1);
    default:
        return false;
    }
}

bt_value_t *bt_testing_value(lua_State *L, int idx)
{
    bt_value_t *root;

    if (lua_isnoneornil(L, idx))
        return NULL;
    luaL_checktype(L, idx, LUA_TTABLE);
    root = calloc(1, sizeof(*root));
    if (root != NULL && read_value(L, idx, root, 0))
        return root;
    bt_value_free(root);
    luaL_error(L, "plain data is booleans, numbers, strings and tables of these, eight deep");
    return NULL;
}

void bt_testing_push_value(lua_State *L, const bt_value_t *value)
{
    luaL_checkstack(L, 4, "plain data");
    if (value == NULL)
        lua_pushnil(L);
    else if (value->type == BT_VALUE_BOOL)
        lua_pushboolean(L, value->boolean);
    else if (value->type == BT_VALUE_NUMBER)
        lua_pushnumber(L, value->number);
    else if (value->type == BT_VALUE_STRING)
        lua_pushstring(L, value->string);
    else
        lua_newtable(L);
    for (unsigned i = 0; value != NULL && i < value->count; i++) {
        bt_testing_push_value(L, &value->items[i]);
        if (value->type == BT_VALUE_LIST)
            lua_rawseti(L, -2, (int) i + 1);
        else
            lua_setfield(L, -2, value->items[i].key);
    }
}

/* ---- requests ---- */

void bt_testing_read_head(lua_State *L, int idx, struct bt_testing_head *out)
{
    out->head = (bt_head_t){.headers = out->headers};
    lua_getfield(L, idx, "headers");
    if (lua_isnil(L, -1)) {
        lua_pop(L, 1);
        return;
    }
    luaL_checktype(L, -1, LUA_TTABLE);
    for (lua_pushnil(L); lua_next(L, -2) != 0; lua_pop(L, 1)) {
        if (lua_type(L, -2) != LUA_TSTRING || lua_type(L, -1) != LUA_TSTRING)
            luaL_error(L, "headers are strings by name");
        if (out->head.header_count == BT_TESTING_HEADERS_MAX)
            luaL_error(L, "at most %d headers", BT_TESTING_HEADERS_MAX);
        out->headers[out->head.header_count++] = (bt_header_t){text_at(L, -2), text_at(L, -1)};
    }
    lua_pop(L, 1);
}

static void read_request(lua_State *L, int idx, bt_policy_request_t *req)
{
    if (bt_testing_member(L, idx, "path").p != NULL)
        req->path = bt_testing_member(L, idx, "path");
    req->model = bt_testing_member(L, idx, "model");
    req->session = bt_testing_member(L, idx, "session");
    req->tenant = bt_testing_member(L, idx, "tenant");
    req->klass = bt_testing_member(L, idx, "class");
    req->prompt = bt_testing_member(L, idx, "prompt");
    req->prompt_bytes =
        (uint64_t) bt_testing_number(L, idx, "prompt_bytes", (lua_Number) req->prompt.n);
    req->prompt_tokens = (uint64_t) bt_testing_number(
        L, idx, "prompt_tokens", (lua_Number) req->prompt_bytes / BYTES_PER_TOKEN);
    req->max_tokens = (uint64_t) bt_testing_number(L, idx, "max_tokens", 0);
    req->n = (unsigned) bt_testing_number(L, idx, "n", 1);
    req->stream = bt_testing_flag(L, idx, "stream");
}

void bt_testing_request(lua_State *L, int idx, struct bt_testing_request *out)
{
    luaL_checktype(L, idx, LUA_TTABLE);
    out->req = (bt_policy_request_t){.path = BT_STR("/v1/completions"), .n = 1};
    out->trace = (bt_policy_trace_t){.scores = out->scores, .cap = BT_TESTING_SCORES_MAX};
    read_request(L, idx, &out->req);
    bt_testing_read_head(L, idx, &out->head);
    out->head.head.method = BT_POST;
    out->req.head = &out->head.head;
    out->req.trace = &out->trace;
}
