/* How it works: a spec's own tables, read as the gateway reads what it got from a client. Strings are borrowed from the tables,
 * so nothing is freed here. */
#include "script/testing/testing_impl.h"

#include "script/shared/prefix_hash.h"
#include "script/value/plain.h"

#include <limits.h>
#include <stdint.h>

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

/* read_plain(value, root): what was read is freed when an error is raised */
static int read_plain(lua_State *L)
{
    const bt_plain_rules_t rules = {
        .what = "plain data", .depth = BT_PLAIN_DEPTH, .values = UINT_MAX, .bytes = SIZE_MAX};

    bt_plain_read_by(L, 1, &rules, lua_touserdata(L, 2));
    return 0;
}

bt_value_t *bt_testing_value(lua_State *L, int idx)
{
    bt_value_t **root_p, *root;

    if (lua_isnoneornil(L, idx))
        return NULL;
    luaL_checktype(L, idx, LUA_TTABLE);
    lua_pushcfunction(L, read_plain);
    lua_pushvalue(L, idx);
    root_p = lua_newuserdata(L, sizeof(*root_p));
    *root_p = NULL;
    lua_pushvalue(L, -1);
    lua_insert(L, -4);
    if (lua_pcall(L, 2, 0, 0) != 0) {
        bt_value_free(*root_p);
        lua_error(L);
    }
    root = *root_p;
    lua_pop(L, 1);
    return root;
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

/* identity = { id, source, scopes = "inference gold", claims = '{"plan":"pro"}' }; its tenant is the request's. */
static void read_identity(lua_State *L, int idx, bt_identity_t *out)
{
    static const char *const sources[] = {"anonymous", "key", "jwt", "mtls", NULL};

    *out = bt_identity_anonymous;
    lua_getfield(L, idx, "identity");
    if (!lua_isnil(L, -1)) {
        luaL_checktype(L, -1, LUA_TTABLE);
        const int at = lua_gettop(L);
        lua_getfield(L, at, "source");
        out->source = (enum bt_identity_source) luaL_checkoption(L, -1, "key", sources);
        lua_pop(L, 1);
        out->id = bt_testing_member(L, at, "id");
        out->scope_names = bt_testing_member(L, at, "scopes");
        if (out->scope_names.n == 0)
            out->scope_names = BT_STR(BT_SCOPES_CLIENT);
        out->scopes = bt_scopes_read(out->scope_names, NULL);
        out->claims = bt_testing_member(L, at, "claims");
    }
    lua_pop(L, 1);
}

static void read_request(lua_State *L, int idx, bt_policy_request_t *req, bt_identity_t *identity)
{
    if (bt_testing_member(L, idx, "path").p != NULL)
        req->path = bt_testing_member(L, idx, "path");
    req->model = bt_testing_member(L, idx, "model");
    req->session = bt_testing_member(L, idx, "session");
    req->tenant = bt_testing_member(L, idx, "tenant");
    req->klass = bt_testing_member(L, idx, "class");
    read_identity(L, idx, identity);
    req->identity = identity;
    req->prompt = bt_testing_member(L, idx, "prompt");
    req->token_source = bt_prompt_is_ids(req->prompt) ? BT_TOKENS_CLIENT : BT_TOKENS_ESTIMATE;
    req->cache_salt = bt_testing_member(L, idx, "cache_salt");
    if (req->cache_salt.p != NULL)
        req->prefix_space = bt_hash64(bt_testing_member(L, idx, "cache_salt"), 1);
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
    read_request(L, idx, &out->req, &out->identity);
    bt_testing_read_head(L, idx, &out->head);
    out->head.head.method = BT_POST;
    out->req.head = &out->head.head;
    out->req.trace = &out->trace;
}
