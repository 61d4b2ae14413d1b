/* How it works: names of counters and rates that all loops share, as Lua calls them. */
#include "script/native/native.h"

#include "script/shared/rate.h"
#include "script/shared/shared_local.h"

#include <math.h>

#define WHOLE_MAX 9007199254740992.0 /* 2^53 */

/* ---- baton.shared_local ---- */

/* The name at 1. That of a shadow gets its prefix, so nobody else's is touched. */
static bt_str_t check_name(lua_State *L)
{
    const char *prefix = bt_policy_of(L)->shadow;

    (void) luaL_checkstring(L, 1);
    if (prefix[0] != '\0') {
        lua_pushstring(L, prefix);
        lua_pushvalue(L, 1);
        lua_concat(L, 2);
        lua_replace(L, 1);
    }
    return bt_vm_str(L, 1);
}

static _Atomic int64_t *check_cell(lua_State *L)
{
    const bool is_empty = luaL_checkstring(L, 1)[0] == '\0' && lua_objlen(L, 1) == 0;
    _Atomic int64_t *cell =
        is_empty ? NULL : bt_shared_local_cell(bt_policy_of(L)->counters, check_name(L));

    if (cell == NULL)
        luaL_error(L, "shared_local: a name has 1 to %d bytes, and there are at most %d names",
                   BT_SHARED_LOCAL_NAME_MAX, BT_SHARED_LOCAL_MAX);
    return cell;
}

/* A whole number that a double holds exactly; cells never leave that range by one step. */
static int64_t check_whole(lua_State *L, int idx, lua_Number otherwise)
{
    lua_Number value = idx <= lua_gettop(L) ? luaL_checknumber(L, idx) : otherwise;

    luaL_argcheck(L, value >= -WHOLE_MAX && value <= WHOLE_MAX, idx,
                  "whole number between -2^53 and 2^53 expected");
    return (int64_t) value;
}

static int shared_add(lua_State *L)
{
    _Atomic int64_t *cell = check_cell(L);
    int64_t delta = check_whole(L, 2, 1);
    uint64_t before = (uint64_t) atomic_fetch_add_explicit(
        cell, delta, memory_order_relaxed); /* wraps, as atomics do */

    lua_pushnumber(L, (lua_Number) (int64_t) (before + (uint64_t) delta));
    return 1;
}

static int shared_get(lua_State *L)
{
    lua_pushnumber(L, (lua_Number) atomic_load_explicit(check_cell(L), memory_order_relaxed));
    return 1;
}

static int shared_set(lua_State *L)
{
    _Atomic int64_t *cell = check_cell(L);

    luaL_checkany(L, 2);
    atomic_store_explicit(cell, check_whole(L, 2, 0), memory_order_relaxed);
    return 0;
}

/* ---- rates ---- */

/* A dry run gets its table with the first name: most need none. */
static bt_rates_t *rates_of(lua_State *L)
{
    bt_policy_t *policy = bt_policy_of(L);

    if (policy->rates == NULL)
        policy->rates = bt_rates_new();
    if (policy->rates == NULL)
        luaL_error(L, "out of memory");
    return policy->rates;
}

static double check_range(lua_State *L, int idx, double low, double high, const char *what)
{
    double value = luaL_checknumber(L, idx);

    luaL_argcheck(L, value >= low && value <= high, idx, what);
    return value;
}

/* baton.ewma(name) -> value or nil; baton.ewma(name, sample[, weight]) -> the new value */
static int native_ewma(lua_State *L)
{
    bt_str_t name = check_name(L);
    uint64_t now_us = bt_policy_now_us(bt_policy_of(L));
    double value, weight;

    if (lua_isnoneornil(L, 2)) {
        if (!bt_rate_ewma_get(rates_of(L), name, &value, now_us))
            return 0;
        lua_pushnumber(L, value);
        return 1;
    }
    value = check_range(L, 2, -1e300, 1e300, "a finite number");
    weight = lua_isnoneornil(L, 3) ? 0.125 : check_range(L, 3, 0, 1, "0 to 1");
    lua_pushnumber(L, bt_rate_ewma(rates_of(L), name, value, weight, now_us));
    return 1;
}

/* A request counts once, however often its plan is asked. */
static double counted(lua_State *L, double amount)
{
    const bt_policy_request_t *req = bt_policy_of(L)->call.req;

    return req != NULL && req->is_counted ? 0 : amount;
}

/* baton.take(name, per_second, burst[, cost]) -> true; or false and the seconds until there is enough (nil: never) */
static int native_take(lua_State *L)
{
    double per_s = check_range(L, 2, 1e-6, 1e12, "a rate above 0");
    double burst = check_range(L, 3, 0, 1e12, "0 or more");
    double cost = lua_isnoneornil(L, 4) ? 1 : check_range(L, 4, 0, 1e12, "0 or more");
    double wait_s = bt_rate_take(rates_of(L), check_name(L), per_s, burst, counted(L, cost),
                                 bt_policy_now_us(bt_policy_of(L)));

    lua_pushboolean(L, wait_s == 0);
    if (wait_s == 0 || wait_s == HUGE_VAL)
        return 1;
    lua_pushnumber(L, wait_s);
    return 2;
}

/* baton.window(name, amount, seconds) -> what came in the last so many seconds, this amount included */
static int native_window(lua_State *L)
{
    double amount = check_range(L, 2, -1e300, 1e300, "a finite number");
    double seconds = check_range(L, 3, 0.001, 86400, "0.001 to 86400 seconds");

    lua_pushnumber(L,
                   bt_rate_window(rates_of(L), check_name(L), counted(L, amount),
                                  (uint64_t) (seconds * 1e6), bt_policy_now_us(bt_policy_of(L))));
    return 1;
}

void bt_native_add_rate(lua_State *L)
{
    static const luaL_Reg set[] = {{"set", shared_set}, {NULL, NULL}};
    static const luaL_Reg shared[] = {{"add", shared_add}, {"get", shared_get}, {NULL, NULL}};
    static const luaL_Reg functions[] = {
        {"ewma", native_ewma}, {"take", native_take}, {"window", native_window}, {NULL, NULL}};

    bt_native_set_reads(L, "", functions);
    lua_newtable(L);
    bt_native_set(L, set);
    bt_native_set_reads(L, "shared_local.", shared);
    lua_setfield(L, -2, "shared_local");
}
