/* How it works: the hook that stops a runaway is seen by Lua code only, so one C call must not take longer than a few
 * milliseconds. Where a limit on size is enough, there is one; sorting asks the watchdog's state at every comparison. */
#include "script/vm/bounded.h"

#include "script/vm/vm.h"

#define CONCAT_PART 2048

/* Calls the stock function with the arguments that this one got. */
static int call_stock(lua_State *L)
{
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_insert(L, 1);
    lua_call(L, lua_gettop(L) - 1, LUA_MULTRET);
    return lua_gettop(L);
}

static int refuse_size(lua_State *L, const char *what)
{
    return luaL_error(L, "%s: the result would be longer than 1 MiB", what);
}

/* ---- strings ---- */

static int bounded_rep(lua_State *L)
{
    size_t n = 0, sep_n = 0;
    lua_Number times = luaL_checknumber(L, 2);

    (void) luaL_checklstring(L, 1, &n);
    (void) luaL_optlstring(L, 3, "", &sep_n);
    if (times > 0 && times * (lua_Number) (n + sep_n) > BT_BOUNDED_STRING)
        return refuse_size(L, "string.rep");
    if ((n + sep_n == 0 && times > 0) || times < 1) {
        lua_pushliteral(L, ""); /* the stock function counts to 2^31 for it */
        return 1;
    }
    return call_stock(L);
}

/* Tables and the like become text now, so that their length can be seen. */
static size_t format_argument(lua_State *L, int i)
{
    size_t n = 0;

    if (lua_type(L, i) == LUA_TTABLE || lua_type(L, i) == LUA_TUSERDATA) {
        bt_vm_check_depth(L);
        if (luaL_callmeta(L, i, "__tostring"))
            lua_replace(L, i);
    }
    if (lua_type(L, i) == LUA_TSTRING)
        (void) lua_tolstring(L, i, &n);
    return n;
}

static int bounded_format(lua_State *L)
{
    size_t n = 0, total;
    int top = lua_gettop(L);

    (void) luaL_checklstring(L, 1, &n);
    if (n > BT_BOUNDED_FORMAT_BYTES)
        return luaL_error(L, "string.format: a format has at most %d bytes",
                          BT_BOUNDED_FORMAT_BYTES);
    if (top > BT_BOUNDED_FORMAT_ARGS + 1)
        return luaL_error(L, "string.format: at most %d values", BT_BOUNDED_FORMAT_ARGS);
    total = n;
    for (int i = 2; i <= top; i++)
        total += format_argument(L, i);
    if (total > BT_BOUNDED_STRING)
        return refuse_size(L, "string.format");
    return call_stock(L);
}

/* ---- lists ---- */

/* Bytes of the element at the top; 0 for what concat refuses anyway. */
static size_t element_bytes(lua_State *L)
{
    return lua_type(L, -1) == LUA_TSTRING   ? lua_objlen(L, -1)
           : lua_type(L, -1) == LUA_TNUMBER ? 16
                                            : 0;
}

/* Pushes elements from .. to, joined, with the separator behind them where more follow. */
static void push_part(lua_State *L, int from, int to, bool is_last)
{
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_pushvalue(L, 1);
    lua_pushvalue(L, 2);
    lua_pushinteger(L, from);
    lua_pushinteger(L, to);
    lua_call(L, 4, 1);
    if (is_last)
        return;
    lua_pushvalue(L, 2);
    lua_concat(L, 2);
}

/* In parts: a number takes a fifth of a microsecond to become text. */
static int concat_parts(lua_State *L, int from, int to)
{
    int parts = 0;

    for (int64_t at = from; at <= to; at += CONCAT_PART, parts++) {
        const int64_t end = at + CONCAT_PART - 1 < to ? at + CONCAT_PART - 1 : to;

        bt_vm_check_time(L);
        push_part(L, (int) at, (int) end, end == to);
    }
    lua_concat(L, parts);
    return 1;
}

static int bounded_concat(lua_State *L)
{
    size_t sep_n = 0, total = 0;
    int from = (int) luaL_optinteger(L, 3, 1), to;

    luaL_checktype(L, 1, LUA_TTABLE);
    (void) luaL_optlstring(L, 2, "", &sep_n);
    to = (int) luaL_optinteger(L, 4, (lua_Integer) lua_objlen(L, 1));
    if ((int64_t) to - from >= BT_BOUNDED_ELEMENTS)
        return luaL_error(L, "table.concat: more than %d elements", BT_BOUNDED_ELEMENTS);
    for (int64_t i = from; i <= to && total <= BT_BOUNDED_STRING; i++) {
        lua_rawgeti(L, 1, (int) i);
        total += element_bytes(L) + sep_n;
        lua_pop(L, 1);
    }
    if (total > BT_BOUNDED_STRING + sep_n)
        return refuse_size(L, "table.concat");
    lua_settop(L, 2);
    if (lua_isnil(L, 2)) {
        lua_pushliteral(L, "");
        lua_replace(L, 2);
    }
    luaL_checkstack(L, BT_BOUNDED_ELEMENTS / CONCAT_PART + 8, "table.concat");
    return concat_parts(L, from, to);
}

static void check_move(lua_State *L, const char *what)
{
    lua_Number at = luaL_checknumber(L, 2);

    if (!((lua_Number) lua_objlen(L, 1) - at <= BT_BOUNDED_ELEMENTS))
        luaL_error(L, "%s: it would move more than %d elements", what, BT_BOUNDED_ELEMENTS);
}

static int bounded_insert(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TTABLE);
    if (lua_gettop(L) > 2)
        check_move(L, "table.insert");
    return call_stock(L);
}

static int bounded_remove(lua_State *L)
{
    luaL_checktype(L, 1, LUA_TTABLE);
    if (lua_gettop(L) > 1 && !lua_isnil(L, 2))
        check_move(L, "table.remove");
    return call_stock(L);
}

/* Upvalue 1: what the caller of sort gave, or nil. */
static int compare(lua_State *L)
{
    const bt_vm_t *vm = bt_vm_of(L);

    if (bt_watch_is_over(&vm->watch))
        return bt_watch_raise(L, &vm->watch,
                              3); /* this, the stock sort, bounded_sort, the Lua caller */
    if (lua_isnil(L, lua_upvalueindex(1))) {
        lua_pushboolean(L, lua_lessthan(L, 1, 2));
        return 1;
    }
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_insert(L, 1);
    lua_call(L, 2, 1);
    return 1;
}

/* A comparison in Lua is stopped by the hook; for others we look ourselves. */
static int bounded_sort(lua_State *L)
{
    bt_vm_check_depth(L);
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_settop(L, 2);
    if (!lua_isnil(L, 2))
        luaL_checktype(L, 2, LUA_TFUNCTION);
    if (lua_isnil(L, 2) || lua_iscfunction(L, 2))
        lua_pushcclosure(L, compare, 1);
    return call_stock(L);
}

/* ---- pcall ---- */

/* The stock one allows ten thousand levels, and the error that ends a runaway is caught and raised again at each of them: 30 ms.
 * Ours nests on the C stack, which has a limit, and passes that error on. Nothing can be resumed across it: baton.sleep and
 * baton.http say so (hook_op_api.c). */
static int bounded_pcall(lua_State *L)
{
    const bt_vm_t *vm = bt_vm_of(L);
    int rc;

    luaL_checkany(L, 1);
    bt_vm_check_depth(L);
    rc = lua_pcall(L, lua_gettop(L) - 1, LUA_MULTRET, 0);
    if (rc != 0 && bt_watch_is_over(&vm->watch))
        return bt_watch_raise(L, &vm->watch, 1);
    lua_pushboolean(L, rc == 0);
    lua_insert(L, 1);
    return lua_gettop(L);
}

/* ---- opening ---- */

static void bound(lua_State *L, const char *library, const char *name, lua_CFunction fn)
{
    lua_getglobal(L, library);
    lua_getfield(L, -1, name);
    lua_pushcclosure(L, fn, 1);
    lua_setfield(L, -2, name);
    lua_pop(L, 1);
}

void bt_bounded_open(lua_State *L)
{
    bound(L, "string", "rep", bounded_rep);
    bound(L, "string", "format", bounded_format);
    bound(L, "table", "concat", bounded_concat);
    bound(L, "table", "insert", bounded_insert);
    bound(L, "table", "remove", bounded_remove);
    bound(L, "table", "sort", bounded_sort);
    lua_pushcfunction(L, bounded_pcall);
    lua_setglobal(L, "pcall");
}
