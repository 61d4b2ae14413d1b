/* How it works: the global `baton` of a policy VM is one closed table; each file beside this one adds its functions. */
#include "script/native/native.h"

static int unknown_member(lua_State *L)
{
    const char *names[64];
    unsigned count = 0;

    for (lua_pushnil(L); lua_next(L, 1) != 0 && count < 63; lua_pop(L, 1))
        names[count++] = lua_tostring(L, -2);
    names[count] = NULL;
    lua_settop(L, 2);
    return bt_vm_unknown(L, "member of baton", names, 2);
}

static int read_only(lua_State *L)
{
    return luaL_error(L, "baton cannot be written");
}

void bt_native_set(lua_State *L, const luaL_Reg *f)
{
    for (; f->name != NULL; f++) {
        lua_pushcfunction(L, f->func);
        lua_setfield(L, -2, f->name);
    }
}

static void open_state(lua_State *L, bt_policy_t *policy)
{
    struct bt_native *k = lua_newuserdata(L, sizeof(*k));

    memset(k, 0, sizeof(*k));
    k->magic = BT_MAGIC_OTHER;
    k->worker_ref = k->value_ref = LUA_NOREF;
    luaL_ref(L, LUA_REGISTRYINDEX);
    lua_newtable(L);
    k->wheels_ref = luaL_ref(L, LUA_REGISTRYINDEX);
    policy->native = k;
}

void bt_native_open(lua_State *L, bt_policy_t *policy)
{
    open_state(L, policy);
    lua_newtable(L);
    bt_native_add_pick(L);
    bt_native_add_pair(L);
    bt_native_add_hash(L);
    bt_native_add_turn(L);
    bt_native_add_rate(L);
    bt_native_add_prefix(L);
    bt_json_api_add(L);
    bt_hook_op_api_add(L);
    bt_shared_api_add(L);
    bt_log_api_add(L);
    bt_vm_push_closed_meta(L, unknown_member, read_only);
    lua_setmetatable(L, -2);
    lua_pushliteral(L, "baton");
    lua_insert(L, -2);
    lua_rawset(L, LUA_GLOBALSINDEX);
}
