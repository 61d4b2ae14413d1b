/* How it works: the module that specs get: policies here, workers, hooks and the rest in the files beside this one. Policies are
 * the real ones, in closed VMs of their own. */
#include "script/testing/testing.h"
#include "script/native/hook_op_api.h"

#include "base/rand.h"
#include "script/policy/policy_source.h"
#include "script/shared/now.h"
#include "script/shared/prefix_index.h"
#include "script/shared/rate.h"
#include "script/shared/shared_cache.h"
#include "script/shared/shared_local.h"
#include "script/testing/testing_impl.h"

#include <stdio.h>

#define US_PER_MS 1000
#define HOSTS_KEY "baton_testing.hosts"

/* ---- policies ---- */

bt_policy_t *bt_testing_policy_check(lua_State *L)
{
    bt_policy_t *policy = *(bt_policy_t **) luaL_checkudata(L, 1, BT_TESTING_POLICY);

    bt_policy_set_sender(policy, bt_testing_send, L);
    return policy;
}

static int policy_gc(lua_State *L)
{
    bt_policy_free(*(bt_policy_t **) lua_touserdata(L, 1));
    return 0;
}

/* Its environment: ctx.vars by the spec's request table, which it does not keep alive. */
static bt_policy_t **push_policy(lua_State *L)
{
    bt_policy_t **box = lua_newuserdata(L, sizeof(*box));

    *box = NULL;
    luaL_getmetatable(L, BT_TESTING_POLICY);
    lua_setmetatable(L, -2);
    lua_newtable(L);
    lua_newtable(L);
    lua_pushliteral(L, "k");
    lua_setfield(L, -2, "__mode");
    lua_setmetatable(L, -2);
    lua_setfenv(L, -2);
    return box;
}

static int make(lua_State *L, const bt_policy_source_t *source, const bt_value_t *params,
                const bt_value_t *old, char *err, size_t err_size)
{
    const bt_policy_spec_t spec = {.path = source->path,
                                   .code = {source->code, source->size},
                                   .params = params,
                                   .old = old,
                                   .is_shadow = bt_testing_flag(L, 1, "shadow"),
                                   .serve = bt_testing_serve_start,
                                   .serve_user = L};

    return bt_policy_make(push_policy(L), &spec, err, err_size);
}

static int open_source(lua_State *L, bt_policy_source_t **source_p, char *err, size_t err_size)
{
    bt_str_t text = bt_testing_member(L, 1, "text");

    if (text.p == NULL)
        return bt_policy_source_open(source_p, bt_testing_member(L, 1, "name").p, NULL, err,
                                     err_size);
    snprintf(err, err_size, "out of memory");
    return bt_policy_source_new(source_p, BT_SOURCE_FILE, "policy.lua", "policy.lua", text);
}

static bt_value_t *tree_member(lua_State *L, const char *key)
{
    bt_value_t *tree;

    lua_getfield(L, 1, key);
    tree = bt_testing_value(L, lua_gettop(L));
    lua_pop(L, 1);
    return tree;
}

/* policy{name = name or path, or text =, params =, old =, shadow =} -> policy; or nil, message */
static int new_policy(lua_State *L)
{
    bt_value_t *params, *old;
    bt_policy_source_t *source = NULL;
    char err[512] = "";
    int rc, policy;

    luaL_checktype(L, 1, LUA_TTABLE);
    luaL_argcheck(
        L, bt_testing_member(L, 1, "text").p != NULL || bt_testing_member(L, 1, "name").p != NULL,
        1, "a name or a text");
    old = tree_member(L, "old");
    params = tree_member(L, "params");
    rc = open_source(L, &source, err, sizeof(err));
    policy = lua_gettop(L) + 1;
    if (rc == 0)
        rc = make(L, source, params, old, err, sizeof(err));
    bt_policy_source_unref(source);
    bt_value_free(params);
    bt_value_free(old);
    bt_testing_raise_mistake(L);
    if (rc == 0) {
        lua_pushvalue(L, policy);
        return 1;
    }
    lua_pushnil(L);
    lua_pushstring(L, err);
    return 2;
}

/* ---- what the process shares ---- */

/* seed(number): makes chance repeatable */
static int seed(lua_State *L)
{
    bt_rand_seed((uint64_t) luaL_checknumber(L, 1));
    return 0;
}

/* forget(): empties the prefix index */
static int forget(lua_State *L)
{
    (void) L;
    bt_prefix_clear();
    bt_prefix_warm();
    return 0;
}

/* names() -> shipped policies */
static int names(lua_State *L)
{
    const char *const *all = bt_policy_embedded_names();

    lua_newtable(L);
    for (int i = 0; all[i] != NULL; i++) {
        lua_pushstring(L, all[i]);
        lua_rawseti(L, -2, i + 1);
    }
    return 1;
}

/* set_now(ms), or set_now(nil): the real clock again */
static int set_now(lua_State *L)
{
    lua_Number ms = luaL_optnumber(L, 1, 0);

    luaL_argcheck(L, lua_isnoneornil(L, 1) || (ms >= 1 && ms < 1e13), 1, "1 ms or more");
    atomic_store_explicit(&bt_now_faked_us, (uint64_t) (ms * US_PER_MS), memory_order_relaxed);
    return 0;
}

/* now() -> ms */
static int now(lua_State *L)
{
    lua_pushnumber(L, (lua_Number) bt_now_us() / US_PER_MS);
    return 1;
}

static void push_cell(void *user, bt_str_t name, int64_t value)
{
    lua_State *L = user;

    lua_pushlstring(L, name.p, name.n);
    lua_pushnumber(L, (lua_Number) value);
    lua_rawset(L, -3);
}

/* shared() -> {name = value} of baton.shared_local, those that are not 0 */
static int shared(lua_State *L)
{
    lua_newtable(L);
    bt_shared_local_each(push_cell, L);
    return 1;
}

/* set_shared(name, value) */
static int set_shared(lua_State *L)
{
    bt_str_t name = BT_STR_NULL;
    _Atomic int64_t *cell;

    name.p = luaL_checklstring(L, 1, &name.n);
    cell = bt_shared_local_cell(bt_shared_local_process(), name);
    luaL_argcheck(L, cell != NULL, 1, "no name for baton.shared_local");
    atomic_store(cell, (int64_t) luaL_checknumber(L, 2));
    return 0;
}

/* reset_cached(): nothing is known of the fleet's state */
static int reset_cached(lua_State *L)
{
    (void) L;
    bt_shared_cache_clear();
    return 0;
}

/* reset_shared(): counters become 0; averages, buckets and windows are forgotten */
static int reset_shared(lua_State *L)
{
    (void) L;
    bt_shared_local_reset();
    bt_rate_clear();
    return 0;
}

/* allow_hosts{"host:port"...}: those that baton.http may call. The registry keeps the texts and the list of them. */
static int allow_hosts(lua_State *L)
{
    const unsigned count = (unsigned) lua_objlen(L, 1);
    const char **hosts;

    luaL_checktype(L, 1, LUA_TTABLE);
    lua_settop(L, 1);
    hosts = lua_newuserdata(L, (count + 1) * sizeof(*hosts));
    for (unsigned i = 0; i < count; i++) {
        lua_rawgeti(L, 1, (int) i + 1);
        hosts[i] = luaL_checkstring(L, -1);
        lua_pop(L, 1);
    }
    hosts[count] = NULL;
    bt_policy_allow_hosts(hosts);
    lua_setfield(L, 1, "list");
    lua_setfield(L, LUA_REGISTRYINDEX, HOSTS_KEY);
    return 0;
}

/* ---- the module ---- */

void bt_testing_class(lua_State *L, const char *name, lua_CFunction gc, const luaL_Reg *methods)
{
    luaL_newmetatable(L, name);
    lua_pushcfunction(L, gc);
    lua_setfield(L, -2, "__gc");
    lua_newtable(L);
    luaL_register(L, NULL, methods);
    lua_setfield(L, -2, "__index");
    lua_pop(L, 1);
}

int bt_testing_open(lua_State *L)
{
    static const luaL_Reg functions[] = {{"workers", bt_testing_workers_new},
                                         {"policy", new_policy},
                                         {"seed", seed},
                                         {"forget", forget},
                                         {"names", names},
                                         {"now", now},
                                         {"set_now", set_now},
                                         {"shared", shared},
                                         {"set_shared", set_shared},
                                         {"reset_shared", reset_shared},
                                         {"reset_cached", reset_cached},
                                         {"allow_hosts", allow_hosts},
                                         {"serve", bt_testing_serve},
                                         {"api_names", bt_testing_api_names},
                                         {NULL, NULL}};

    bt_testing_workers_open(L);
    bt_testing_class(L, BT_TESTING_POLICY, policy_gc, bt_testing_policy_methods);
    lua_newtable(L);
    luaL_register(L, NULL, functions);
    return 1;
}
