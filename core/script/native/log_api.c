/* log_api.c - baton.log: a policy's own lines in the gateway's log, with its name and the request's id. Ten a second from a
 * policy and thread, as from any place of the gateway; the next line says how many were not shown. */
#include "base/log.h"

#include "script/native/native.h"

#define TEXT_MAX 1024

/* baton.log(level, text) */
static int api_log(lua_State *L)
{
    static const char *const levels[] = {"error", "warn", "info", "debug", NULL};
    bt_policy_t *policy = bt_policy_of(L);
    const int level = luaL_checkoption(L, 1, NULL, levels);
    const bt_policy_request_t *req = policy->call.req;
    bt_str_t text;

    luaL_checkstring(L, 2);
    text = bt_str_cut(bt_vm_str(L, 2), TEXT_MAX);
    if (policy->is_dry_run || policy->call.testing ||
        level > __atomic_load_n(&bt_log_level_now, __ATOMIC_RELAXED))
        return 0;
    bt_log_context(NULL, req != NULL ? req->id : NULL, NULL);
    bt_log_write(&policy->log_site, (enum bt_log_level) level, "policy", "%s: %.*s",
                 policy->name != NULL ? policy->name : policy->path, BT_STR_ARG(text));
    bt_log_context(NULL, NULL, NULL);
    return 0;
}

void bt_log_api_add(lua_State *L)
{
    static const luaL_Reg api[] = {{"log", api_log}, {NULL, NULL}};

    bt_native_set(L, api);
}
