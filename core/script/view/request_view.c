/* How it works: `req` is one userdata for the life of the VM; it looks into the request of the running call and refuses
 * outside of it, so a policy that keeps it cannot read freed memory. req.headers works the same way. */
#include "script/view/request_view.h"
#include "script/view/view.h"

enum {
    REQ_PATH,
    REQ_MODEL,
    REQ_HEADERS,
    REQ_STREAM,
    REQ_N,
    REQ_PROMPT_BYTES,
    REQ_PROMPT_TOKENS,
    REQ_MAX_TOKENS,
    REQ_SESSION,
    REQ_TENANT,
    REQ_CLASS
};
static const char *const req_names[] = {"path",    "model",        "headers",       "stream",
                                        "n",       "prompt_bytes", "prompt_tokens", "max_tokens",
                                        "session", "tenant",       "class",         NULL};

static bt_policy_t *running(lua_State *L)
{
    bt_policy_t *policy = bt_policy_of(L);

    if (!policy->call.running || policy->call.req == NULL)
        luaL_error(L, "req can only be used while a hook that gets it runs");
    return policy;
}

static int req_index(lua_State *L)
{
    bt_policy_t *policy = running(L);
    const bt_policy_request_t *req = policy->call.req;

    switch (bt_vm_fields_find(L, &policy->req_fields, 2)) {
    case REQ_PATH:
        bt_vm_push_str(L, req->path);
        break;
    case REQ_MODEL:
        policy->asked_client = true;
        bt_vm_push_opt(L, req->model);
        break;
    case REQ_HEADERS:
        policy->asked_client = true;
        bt_vm_push(L, policy->headers_ref);
        break;
    case REQ_STREAM:
        lua_pushboolean(L, req->stream);
        break;
    case REQ_N:
        lua_pushnumber(L, req->n);
        break;
    case REQ_PROMPT_BYTES:
        lua_pushnumber(L, (lua_Number) req->prompt_bytes);
        break;
    case REQ_PROMPT_TOKENS:
        lua_pushnumber(L, (lua_Number) req->prompt_tokens);
        break;
    case REQ_MAX_TOKENS:
        if (req->max_tokens == 0)
            lua_pushnil(L);
        else
            lua_pushnumber(L, (lua_Number) req->max_tokens);
        break;
    case REQ_SESSION:
        policy->asked_client = true;
        bt_vm_push_opt(L, req->session);
        break;
    case REQ_TENANT:
        policy->asked_client = true;
        bt_vm_push_opt(L, req->tenant);
        break;
    case REQ_CLASS:
        policy->asked_client = true;
        bt_vm_push_opt(L, req->klass);
        break;
    default:
        return bt_vm_unknown(L, "field of req", req_names, 2);
    }
    return 1;
}

static int headers_index(lua_State *L)
{
    const bt_head_t *head = running(L)->call.req->head;
    bt_str_t value = BT_STR_NULL;

    if (lua_type(L, 2) == LUA_TSTRING && head != NULL)
        value = bt_head_get(head, bt_vm_str(L, 2));
    if (value.p == NULL)
        lua_pushnil(L);
    else
        bt_vm_push_str(L, value);
    return 1;
}

static int read_only(lua_State *L)
{
    return luaL_error(L, "req cannot be written");
}

static int push_view(lua_State *L, lua_CFunction index)
{
    enum bt_policy_magic *magic = lua_newuserdata(L, sizeof(*magic));

    *magic = BT_MAGIC_OTHER;
    bt_vm_push_closed_meta(L, index, read_only);
    lua_setmetatable(L, -2);
    return luaL_ref(L, LUA_REGISTRYINDEX);
}

void bt_request_view_open(lua_State *L, bt_policy_t *policy)
{
    bt_vm_fields_init(L, &policy->req_fields, req_names);
    policy->req_ref = push_view(L, req_index);
    policy->headers_ref = push_view(L, headers_index);
}
