/* How it works: what a hook waits for goes to a function of the spec (testing.lua: network, clock) and is answered at once. An
 * error in there ends the hook first and becomes the spec's error then: nothing is raised through a hook that waits. */
#include "script/testing/testing_impl.h"

#include "base/err.h"

#include <string.h>
#include <uv.h>

#define SERVE_KEY "baton_testing.serve"
#define ROWS_MAX 256
#define MISTAKE_KEY "baton_testing.mistake" /* of serving a start, until it is over */

/* serve(function(hook_op) -> answer or nil, error) */
int bt_testing_serve(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TFUNCTION);
    lua_settop(L, 1);
    lua_setfield(L, LUA_REGISTRYINDEX, SERVE_KEY);
    return 0;
}

static void set_str(lua_State *L, const char *key, bt_str_t s)
{
    if (s.p == NULL)
        return;
    lua_pushlstring(L, s.p, s.n);
    lua_setfield(L, -2, key);
}

static void set_count(lua_State *L, const char *key, double n)
{
    lua_pushnumber(L, n);
    lua_setfield(L, -2, key);
}

/* {op = "get", key =, ...} */
static void push_store_hook_op(lua_State *L, const bt_hook_op_t *hook_op)
{
    static const char *const ops[] = {
        [BT_STORE_COUNTER_ADD] = "add",  [BT_STORE_CELL_GET] = "get",
        [BT_STORE_CELL_SET] = "set",     [BT_STORE_CELL_DROP] = "drop",
        [BT_STORE_LEASE_TAKE] = "lease", [BT_STORE_LEASE_DROP] = "release",
        [BT_STORE_WINDOW_TAKE] = "take", [BT_STORE_WINDOW_GIVE] = "give",
        [BT_STORE_TABLE_PUT] = "put",    [BT_STORE_TABLE_DROP] = "drop_field",
        [BT_STORE_TABLE_ALL] = "fields",
    };

    lua_newtable(L);
    lua_pushstring(L, ops[hook_op->store.what]);
    lua_setfield(L, -2, "op");
    set_str(L, "key", hook_op->store.key);
    set_str(L, "field", hook_op->store.field);
    set_str(L, "value", hook_op->store.value);
    set_count(L, "amount", (double) hook_op->store.amount);
    set_count(L, "limit", (double) hook_op->store.limit);
    set_count(L, "ttl_ms", (double) hook_op->store.ttl_ms);
    set_count(L, "window_ms", (double) hook_op->store.window_ms);
    set_count(L, "window", (double) hook_op->store.window);
    lua_pushboolean(L, hook_op->store.if_absent);
    lua_setfield(L, -2, "if_absent");
}

static void push_hook_op(lua_State *L, const bt_hook_op_t *hook_op)
{
    lua_newtable(L);
    if (hook_op->kind == BT_HOOK_OP_STORE) {
        push_store_hook_op(L, hook_op);
        lua_setfield(L, -2, "store");
        return;
    }
    lua_pushnumber(L, (lua_Number) hook_op->ms);
    lua_setfield(L, -2, hook_op->kind == BT_HOOK_OP_SLEEP ? "sleep_ms" : "timeout_ms");
    if (hook_op->kind == BT_HOOK_OP_SLEEP)
        return;
    set_str(L, "method", hook_op->method);
    set_str(L, "host", hook_op->host);
    set_str(L, "target", hook_op->target);
    set_str(L, "body", hook_op->body);
    lua_pushinteger(L, (lua_Integer) hook_op->port);
    lua_setfield(L, -2, "port");
    lua_newtable(L);
    for (unsigned i = 0; i < hook_op->header_count; i++) {
        lua_pushlstring(L, hook_op->headers[i].name.p, hook_op->headers[i].name.n);
        lua_pushlstring(L, hook_op->headers[i].value.p, hook_op->headers[i].value.n);
        lua_rawset(L, -3);
    }
    lua_setfield(L, -2, "headers");
}

struct reply {
    bt_hook_answer_t answer;
    struct bt_testing_head head;
    bool is_store;
    bt_store_reply_t store;
    bt_store_row_t rows[ROWS_MAX];
};

static int rc_of(lua_State *L, const char *name)
{
#define CODE(code, number, scope, text) code,
    static const int codes[] = {BT_ERR_MAP(CODE)};
#undef CODE

    if (strcmp(name, "timeout") == 0)
        return UV_ETIMEDOUT;
    for (unsigned i = 0; i < sizeof(codes) / sizeof(codes[0]); i++)
        if (strcmp(bt_err_name(codes[i]), name) == 0)
            return codes[i];
    return luaL_error(L, "'%s' is no error's name (connect, resolve, reset, timeout, ...)", name);
}

/* {number =, text =, window =, left_ms =, fields = {name = value}}, as the store would say. */
static int read_store_reply(lua_State *L, struct reply *reply)
{
    bt_store_reply_t *out = &reply->store;

    luaL_checktype(L, 1, LUA_TTABLE);
    *out = (bt_store_reply_t){.number = (int64_t) bt_testing_number(L, 1, "number", 0),
                              .window = (uint64_t) bt_testing_number(L, 1, "window", 0),
                              .left_ms = (uint64_t) bt_testing_number(L, 1, "left_ms", 0),
                              .text = bt_testing_member(L, 1, "text"),
                              .rows = reply->rows};
    out->is_none = out->text.p == NULL;
    reply->answer.store = out;
    lua_getfield(L, 1, "fields");
    if (!lua_istable(L, -1))
        return 0;
    for (lua_pushnil(L); lua_next(L, -2) != 0; lua_pop(L, 1)) {
        if (lua_type(L, -2) != LUA_TSTRING || lua_type(L, -1) != LUA_TSTRING)
            return luaL_error(L, "fields are strings by name");
        if (out->row_count == ROWS_MAX)
            return luaL_error(L, "at most %d fields", ROWS_MAX);
        bt_store_row_t *row = &reply->rows[out->row_count++];
        row->name.p = lua_tolstring(L, -2, &row->name.n);
        row->value.p = lua_tolstring(L, -1, &row->value.n);
    }
    return 0;
}

/* read_reply(answer, error, reply), protected */
static int read_reply(lua_State *L)
{
    struct reply *reply = lua_touserdata(L, 3);

    if (lua_isnil(L, 1)) {
        reply->answer.rc = rc_of(L, luaL_optstring(L, 2, "connect"));
        return 0;
    }
    if (reply->is_store)
        return read_store_reply(L, reply);
    luaL_checktype(L, 1, LUA_TTABLE);
    reply->answer.status = (unsigned) bt_testing_number(L, 1, "status", 200);
    reply->answer.body = bt_testing_member(L, 1, "body");
    bt_testing_read_head(L, 1, &reply->head);
    reply->head.head.status = reply->answer.status;
    reply->answer.head = &reply->head.head;
    return 0;
}

/* Calls the spec's function; a struct reply is at this index. False: an error is on top of the stack. Else its answer is, which
 * holds the bytes. */
static bool call_spec(lua_State *L, const bt_hook_op_t *hook_op, int idx)
{
    struct reply *reply = lua_touserdata(L, idx);

    reply->answer = (bt_hook_answer_t){0};
    reply->is_store = hook_op->kind == BT_HOOK_OP_STORE;
    lua_getfield(L, LUA_REGISTRYINDEX, SERVE_KEY);
    push_hook_op(L, hook_op);
    if (lua_pcall(L, 1, 2, 0) != 0)
        return false;
    if (hook_op->kind == BT_HOOK_OP_SLEEP)
        return true;
    lua_pushcfunction(L, read_reply);
    lua_pushvalue(L, -3);
    lua_pushvalue(L, -3);
    lua_pushvalue(L, idx);
    return lua_pcall(L, 3, 0, 0) == 0;
}

int bt_testing_serve_start(void *user, const bt_hook_op_t *hook_op, bt_hook_answer_t *answer_p)
{
    lua_State *L = user;
    struct reply *reply;

    if (!lua_checkstack(L, LUA_MINSTACK))
        return BT_E_NOMEM;
    reply = lua_newuserdata(L, sizeof(*reply));
    if (!call_spec(L, hook_op, lua_gettop(L))) {
        lua_setfield(L, LUA_REGISTRYINDEX, MISTAKE_KEY);
        return BT_E_POLICY;
    }
    *answer_p = reply->answer;
    return 0;
}

void bt_testing_send(void *user, const bt_hook_op_t *hook_op)
{
    lua_State *L = user;
    const int top = lua_gettop(L);

    if (!lua_checkstack(L, LUA_MINSTACK))
        return;
    (void) lua_newuserdata(L, sizeof(struct reply));
    if (!call_spec(L, hook_op, top + 1))
        lua_setfield(L, LUA_REGISTRYINDEX, MISTAKE_KEY);
    lua_settop(L, top);
}

void bt_testing_raise_mistake(lua_State *L)
{
    lua_getfield(L, LUA_REGISTRYINDEX, MISTAKE_KEY);
    if (lua_isnil(L, -1)) {
        lua_pop(L, 1);
        return;
    }
    lua_pushnil(L);
    lua_setfield(L, LUA_REGISTRYINDEX, MISTAKE_KEY);
    lua_error(L);
}

int bt_testing_drive(lua_State *L, bt_policy_run_t *run, int rc)
{
    const struct reply *reply = lua_newuserdata(L, sizeof(*reply));
    int top = lua_gettop(L);

    while (rc == 1) {
        if (!call_spec(L, &run->hook_op, top)) {
            bt_policy_run_drop(run);
            lua_error(L);
        }
        rc = bt_policy_resume(run, &reply->answer);
        lua_settop(L, top);
    }
    return rc;
}
