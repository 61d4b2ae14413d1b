/* How it works: what a policy can reach is looked up in its VM and in the very lists of names that its reads go through; nothing
 * is listed here. spec/policy/api_spec.lua compares it with lua/baton/api.lua. */
#include "script/policy/policy_impl.h"
#include "script/testing/testing_impl.h"

/* Adds to the list at the top. */
static void add_name(lua_State *L, const char *prefix, const char *name)
{
    lua_pushfstring(L, "%s%s", prefix, name);
    lua_rawseti(L, -2, (int) lua_objlen(L, -2) + 1);
}

static void set_names(lua_State *L, const char *key, const char *const *names)
{
    lua_newtable(L);
    for (; *names != NULL; names++)
        add_name(L, "", *names);
    lua_setfield(L, -2, key);
}

/* Keys of the table at the top of the VM, "shared_local.add" for those of tables in it. */
static void add_keys(lua_State *L, lua_State *vm, const char *prefix)
{
    for (lua_pushnil(vm); lua_next(vm, -2) != 0; lua_pop(vm, 1)) {
        if (lua_type(vm, -2) != LUA_TSTRING)
            continue;
        if (prefix[0] == '\0' && lua_istable(vm, -1)) {
            lua_pushfstring(L, "%s.", lua_tostring(vm, -2));
            lua_insert(L, -2);
            add_keys(L, vm, lua_tostring(L, -2));
            lua_remove(L, -2);
        } else {
            add_name(L, prefix, lua_tostring(vm, -2));
        }
    }
}

/* The global `name` of the VM, or all globals but `baton`. */
static void set_reachable(lua_State *L, lua_State *vm, const char *key, const char *name)
{
    lua_newtable(L);
    lua_pushvalue(vm, LUA_GLOBALSINDEX);
    if (name != NULL) {
        lua_pushstring(vm, name);
        lua_rawget(vm, -2);
        lua_remove(vm, -2);
    }
    add_keys(L, vm, "");
    lua_pop(vm, 1);
    lua_setfield(L, -2, key);
}

static void set_hooks(lua_State *L)
{
    lua_newtable(L);
    for (int i = BT_HOOK_START; i < BT_HOOK_COUNT; i++) {
        const enum bt_policy_hook hook = (enum bt_policy_hook) i;

        lua_newtable(L);
        lua_pushstring(L, bt_hook_may_wait(hook) ? "waiting" : "pure");
        lua_setfield(L, -2, "kind");
        lua_pushnumber(L, bt_hook_budget_us(hook) / 1e3);
        lua_setfield(L, -2, "budget_ms");
        lua_setfield(L, -2, bt_hook_name(hook));
    }
    lua_setfield(L, -2, "hooks");
}

/* api_names(policy) -> {worker, req, view, plan, ... = names, hooks = {name = {kind, budget_ms}}, baton, globals = names}; what the policy's
 * globals are in is "math.abs" and so on, and baton's functions are among them too ("baton.take"). */
int bt_testing_api_names(lua_State *L)
{
    bt_policy_t *policy = *(bt_policy_t **) luaL_checkudata(L, 1, BT_TESTING_POLICY);
    lua_State *vm = policy->vm.L;

    lua_newtable(L);
    set_names(L, "worker", policy->row_fields.names);
    set_names(L, "req", policy->req_fields.names);
    set_names(L, "req.identity", policy->identity_fields.names);
    set_names(L, "view", policy->view_fields.names);
    set_names(L, "plan", policy->plan_fields.names);
    set_names(L, "policy", bt_policy_members);
    set_names(L, "param", bt_param_members);
    set_hooks(L);
    set_reachable(L, vm, "baton", "baton");
    set_reachable(L, vm, "globals", NULL);
    return 1;
}
