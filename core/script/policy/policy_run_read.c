/* How it works: both ways between a hook that waits and C. What a hook returns is a closed table, read without running any code
 * of the policy; what it is resumed with is made here. */
#include "script/native/native.h"
#include "script/policy/policy_impl.h"

#include "base/err.h"
#include "script/value/plain.h"

#include <math.h>
#include <stdio.h>
#include <uv.h>

#define RETRY_MAX_S 86400.0
#define FACTOR_MAX 1e9
#define NAME_BYTES 256 /* longer names of headers are left out */

/* ---- what a hook returned ---- */

/* True when the value at `table` is a table of these keys; false when it is nil. */
static bool check_table(lua_State *L, const char *hook, const char *const *keys, int table)
{
    char what[48];

    if (lua_isnil(L, table))
        return false;
    if (!lua_istable(L, table))
        luaL_error(L, "%s returned a %s value; it must be a table, or nothing", hook,
                   luaL_typename(L, table));
    snprintf(what, sizeof(what), "member of what %s returned", hook);
    bt_vm_check_keys(L, what, keys, table);
    return true;
}

static void read_text(lua_State *L, int table, const char *hook, const char *key, char *out,
                      size_t size)
{
    bt_str_t text;

    lua_pushstring(L, key);
    lua_rawget(L, table);
    if (!lua_isnil(L, -1)) {
        if (lua_type(L, -1) != LUA_TSTRING)
            luaL_error(L, "%s: %s must be a string, not a %s value", hook, key,
                       luaL_typename(L, -1));
        text = bt_vm_str(L, -1);
        if (text.n >= size || memchr(text.p, '\0', text.n) != NULL)
            luaL_error(L, "%s: %s must be at most %d bytes, without a NUL", hook, key,
                       (int) size - 1);
        memcpy(out, text.p, text.n + 1);
    }
    lua_pop(L, 1);
}

static double read_number(lua_State *L, int table, const char *hook, const char *key, double low,
                          double high, double otherwise)
{
    double value;

    lua_pushstring(L, key);
    lua_rawget(L, table);
    if (lua_isnil(L, -1)) {
        lua_pop(L, 1);
        return otherwise;
    }
    if (lua_type(L, -1) != LUA_TNUMBER)
        luaL_error(L, "%s: %s must be a number, not a %s value", hook, key, luaL_typename(L, -1));
    value = lua_tonumber(L, -1);
    lua_pop(L, 1);
    if (!(value >= low && value <= high))
        luaL_error(L, "%s: %s must be from %d to %d", hook, key, (int) low, (int) high);
    return value;
}

/* True: it is let in, under limits that are so many times as high. */
static bool read_factors(lua_State *L, int table, bt_policy_admission_t *out)
{
    static const char *const alone[] = {"limits", NULL};

    lua_pushliteral(L, "limits");
    lua_rawget(L, table);
    if (lua_isnil(L, -1)) {
        lua_pop(L, 1);
        return false;
    }
    (void) check_table(L, "admit with limits", alone, table);
    if (!lua_istable(L, -1))
        luaL_error(L, "admit: limits must be a table like { NAME = 2 }, not a %s value",
                   luaL_typename(L, -1));
    for (lua_pushnil(L); lua_next(L, -2) != 0; lua_pop(L, 1))
        if (lua_type(L, -2) != LUA_TSTRING || lua_type(L, -1) != LUA_TNUMBER ||
            !(lua_tonumber(L, -1) >= 0 && lua_tonumber(L, -1) <= FACTOR_MAX))
            luaL_error(L, "admit: limits must be numbers from 0 to %d by a limit's name",
                       (int) FACTOR_MAX);
    bt_plain_read(L, lua_gettop(L), "admit's limits", &out->limits);
    lua_pop(L, 1);
    return true;
}

static void read_admission(lua_State *L, int table, bt_policy_admission_t *out)
{
    static const char *const keys[] = {"status", "retry_after", "reason", "limits", NULL};
    double status;

    if (!check_table(L, "admit", keys, table) || read_factors(L, table, out))
        return;
    read_text(L, table, "admit", "reason", out->reason, sizeof(out->reason));
    out->retry_after_s =
        (unsigned) ceil(read_number(L, table, "admit", "retry_after", 0, RETRY_MAX_S, 0));
    status = read_number(L, table, "admit", "status", 400, 599, 429);
    if (status != floor(status))
        luaL_error(L, "admit: status must be a whole number");
    out->status = (unsigned) status;
}

static void read_direction(lua_State *L, int table, bt_policy_direction_t *out)
{
    static const char *const keys[] = {"pool", "class", "key", NULL};

    if (!check_table(L, "route", keys, table))
        return;
    read_text(L, table, "route", "pool", out->pool, sizeof(out->pool));
    read_text(L, table, "route", "class", out->klass, sizeof(out->klass));
    read_text(L, table, "route", "key", out->key, sizeof(out->key));
}

/* 0: not said. */
static uint64_t read_whole(lua_State *L, int table, const char *key, double high)
{
    return (uint64_t) ceil(read_number(L, table, "enqueue", key, 1, high, 0));
}

void bt_queueing_read(lua_State *L, bt_policy_t *policy)
{
    static const char *const keys[] = {"class", "key", "cost", "weight", "timeout_ms", NULL};
    static const char *const classes[] = {"high", "normal", "low"};
    bt_policy_queueing_t *out = &policy->call.queueing;
    const int table = lua_gettop(L);
    unsigned i = 0;

    *out = (bt_policy_queueing_t){.weight = 0};
    if (!check_table(L, "enqueue", keys, table))
        return;
    read_text(L, table, "enqueue", "class", out->klass, sizeof(out->klass));
    while (i < 3 && strcmp(out->klass, classes[i]) != 0)
        i++;
    if (i == 3 && out->klass[0] != '\0')
        luaL_error(L, "enqueue: class must be high, normal or low, not '%s'", out->klass);
    read_text(L, table, "enqueue", "key", out->key, sizeof(out->key));
    out->cost = read_whole(L, table, "cost", BT_QUEUEING_COST_MAX);
    out->weight = (unsigned) read_whole(L, table, "weight", BT_QUEUEING_WEIGHT_MAX);
    out->timeout_ms = read_whole(L, table, "timeout_ms", BT_QUEUEING_TIMEOUT_MS_MAX);
}

/* start(params, old) -> ctx.state */
static void read_state(lua_State *L, const bt_policy_t *policy)
{
    if (lua_isnil(L, -1))
        return; /* the empty table stays */
    if (!lua_istable(L, -1))
        luaL_error(L,
                   "start returned a %s value; it must be a table (it becomes ctx.state), or nil",
                   luaL_typename(L, -1));
    bt_vm_push(L, policy->ctx_ref);
    lua_insert(L, -2);
    lua_setfield(L, -2, "state");
}

void bt_run_read(lua_State *L, bt_policy_t *policy, bt_policy_run_t *run)
{
    if (run->hook == BT_HOOK_START)
        read_state(L, policy);
    else if (run->hook == BT_HOOK_ADMIT)
        read_admission(L, lua_gettop(L), &run->admission);
    else if (run->hook == BT_HOOK_ROUTE)
        read_direction(L, lua_gettop(L), &run->direction);
}

/* ---- what it is resumed with ---- */

static const char *text_of(int rc)
{
    return rc == BT_E_TOTAL_TIMEOUT    ? "the hook's time is over"
           : rc == UV_ETIMEDOUT        ? "no answer within timeout_ms"
           : rc == BT_E_HTTP_BODY_SIZE ? "the answer is longer than 1 MiB"
                                       : bt_err_text(rc);
}

/* A name that comes twice has both values, with a comma between. */
static void add_header(lua_State *L, const bt_header_t *header)
{
    char name[NAME_BYTES];

    if (header->name.n >= sizeof(name))
        return;
    for (size_t i = 0; i < header->name.n; i++)
        name[i] = header->name.p[i] >= 'A' && header->name.p[i] <= 'Z'
                      ? (char) (header->name.p[i] | 0x20)
                      : header->name.p[i];
    lua_pushlstring(L, name, header->name.n);
    lua_pushvalue(L, -1);
    lua_rawget(L, -3);
    if (lua_isnil(L, -1)) {
        lua_pop(L, 1);
        bt_vm_push_str(L, header->value);
    } else {
        lua_pushliteral(L, ", ");
        bt_vm_push_str(L, header->value);
        lua_concat(L, 3);
    }
    lua_rawset(L, -3);
}

static void push_reply(lua_State *L, const bt_hook_answer_t *answer)
{
    lua_createtable(L, 0, 3);
    lua_pushinteger(L, (lua_Integer) answer->status);
    lua_setfield(L, -2, "status");
    bt_vm_push_str(L, answer->body);
    lua_setfield(L, -2, "body");
    lua_newtable(L);
    for (unsigned i = 0; answer->head != NULL && i < answer->head->header_count; i++)
        add_header(L, &answer->head->headers[i]);
    lua_setfield(L, -2, "headers");
}

int bt_run_push_answer(lua_State *L, const bt_hook_op_t *hook_op, const bt_hook_answer_t *answer)
{
    const bool is_empty = hook_op->kind == BT_HOOK_OP_STORE && answer->store == NULL;

    if (answer->rc < 0 || is_empty) {
        lua_pushnil(L);
        lua_pushstring(L, answer->why != NULL
                              ? answer->why
                              : text_of(answer->rc < 0 ? answer->rc : BT_E_STORE_UNAVAILABLE));
        return 2;
    }
    if (hook_op->kind == BT_HOOK_OP_STORE)
        return bt_shared_push_answer(L, hook_op, answer);
    if (hook_op->kind == BT_HOOK_OP_HTTP)
        push_reply(L, answer);
    else
        lua_pushboolean(L, 1);
    return 1;
}
