/* How it works: `req` is one userdata for the life of the VM; it looks into the request of the running call and refuses
 * outside of it, so a policy that keeps it cannot read freed memory. req.headers works the same way. */
#include "script/view/request_view.h"

#include "base/json.h"

#define BT_CLAIM_TEXT_MAX 2048 /* as all claims of a token */

enum {
    REQ_PATH,
    REQ_MODEL,
    REQ_HEADERS,
    REQ_STREAM,
    REQ_N,
    REQ_PROMPT_BYTES,
    REQ_PROMPT_TOKENS,
    REQ_TOKEN_SOURCE,
    REQ_MAX_TOKENS,
    REQ_SESSION,
    REQ_TENANT,
    REQ_CLASS,
    REQ_IDENTITY
};
static const char *const req_names[] = {
    "path",         "model",      "headers", "stream", "n",     "prompt_bytes", "prompt_tokens",
    "token_source", "max_tokens", "session", "tenant", "class", "identity",     NULL};

const char *bt_token_source_name(enum bt_token_source source)
{
    static const char *const names[BT_TOKEN_SOURCES] = {"estimate", "client", "engine"};

    return names[source];
}

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
    case REQ_TOKEN_SOURCE:
        lua_pushstring(L, bt_token_source_name(req->token_source));
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
    case REQ_IDENTITY:
        policy->asked_client = true;
        bt_vm_push(L, policy->identity_ref);
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

/* ---- identity ---- */

enum { WHO_ID, WHO_TENANT, WHO_SOURCE, WHO_SCOPES, WHO_CLAIMS };
static const char *const who_names[] = {"id", "tenant", "source", "scopes", "claims", NULL};

static const bt_identity_t *identity_of(const bt_policy_t *policy)
{
    const bt_identity_t *identity = policy->call.req->identity;

    return identity != NULL ? identity : &bt_identity_anonymous;
}

static int identity_index(lua_State *L)
{
    bt_policy_t *policy = running(L);
    const bt_identity_t *who = identity_of(policy);
    const bt_str_t tenant = policy->call.req->tenant;

    switch (bt_vm_fields_find(L, &policy->identity_fields, 2)) {
    case WHO_ID:
        bt_vm_push_opt(L, who->id);
        break;
    case WHO_TENANT:
        bt_vm_push_str(L, tenant.n > 0 ? tenant : BT_STR(BT_TENANT_ANONYMOUS));
        break;
    case WHO_SOURCE:
        lua_pushstring(L, bt_identity_source_name(who->source));
        break;
    case WHO_SCOPES:
        bt_vm_push(L, policy->scopes_ref);
        break;
    case WHO_CLAIMS:
        bt_vm_push(L, policy->claims_ref);
        break;
    default:
        return bt_vm_unknown(L, "field of req.identity", who_names, 2);
    }
    return 1;
}

static int scopes_index(lua_State *L)
{
    const bt_identity_t *who = identity_of(running(L));
    bt_str_t rest = who->scope_names, name;
    bool is_in = false;

    if (lua_type(L, 2) == LUA_TSTRING) {
        const bt_str_t wanted = bt_vm_str(L, 2);
        is_in = (who->scopes & bt_scope_of(wanted)) != 0 && bt_scope_of(wanted) != 0;
        while (!is_in && bt_scopes_next(&rest, &name))
            is_in = bt_str_eq(name, wanted);
    }
    lua_pushboolean(L, is_in);
    return 1;
}

/* A list or an object is its JSON text, for baton.json_decode: who does not look inside pays nothing. */
static void push_claim(lua_State *L, const bt_json_item_t *claim)
{
    char text[BT_CLAIM_TEXT_MAX];
    double number;
    long n;

    switch (claim->type) {
    case BT_JSON_TRUE:
    case BT_JSON_FALSE:
        lua_pushboolean(L, claim->type == BT_JSON_TRUE);
        return;
    case BT_JSON_NUMBER:
        if (bt_json_double(claim->value, &number) == 0) {
            lua_pushnumber(L, number);
            return;
        }
        break;
    case BT_JSON_STRING:
        n = bt_json_unescape(claim->value, text, sizeof(text));
        if (n >= 0) {
            lua_pushlstring(L, text, (size_t) n);
            return;
        }
        break;
    case BT_JSON_ARRAY:
    case BT_JSON_OBJECT:
        bt_vm_push_str(L, claim->value);
        return;
    default:
        break;
    }
    lua_pushnil(L);
}

static int claims_index(lua_State *L)
{
    const bt_identity_t *who = identity_of(running(L));
    bt_json_item_t claim = {.type = BT_JSON_NONE};

    if (who->claims.n == 0 || lua_type(L, 2) != LUA_TSTRING ||
        bt_json_get(who->claims, bt_vm_str(L, 2), &claim) < 0)
        claim.type = BT_JSON_NONE;
    push_claim(L, &claim);
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
    bt_vm_fields_init(L, &policy->identity_fields, who_names);
    policy->identity_ref = push_view(L, identity_index);
    policy->scopes_ref = push_view(L, scopes_index);
    policy->claims_ref = push_view(L, claims_index);
}
