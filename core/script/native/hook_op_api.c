/* How it works: baton.sleep and baton.http check what they were given, write it into the operation of the running hook and yield;
 * whoever runs the hook serves the operation and resumes it with what these functions then return. The strings of the operation are
 * among the values that are yielded, so the collector leaves them alone.
 *
 * Arguments that make no sense raise; what the network does comes back as nil and a message. Nothing reaches a socket that
 * could be read as more than one request: names, values, method and target are checked byte by byte here. */
#include "script/native/hook_op_api.h"
#include "script/native/native.h"

#include <stdlib.h>

#define SLEEP_MAX_MS 600000.0
#define HTTP_MAX_MS 60000.0
#define HTTP_DEFAULT_MS 1000.0
#define BODY_MAX ((size_t) 1 << 20)
#define URL_MAX 8192
#define HEADER_MAX 8192

static const char *const *allowed_hosts;

void bt_policy_allow_hosts(const char *const *hosts)
{
    allowed_hosts = hosts;
}

/* ---- may it wait? ---- */

bool bt_hook_op_check_waiting(lua_State *L, const char *what)
{
    const bt_policy_t *policy = bt_policy_of(L);

    if (!bt_hook_may_wait(policy->call.hook))
        luaL_error(
            L, "%s: %s is a pure hook and cannot wait; decide in route and leave it in ctx.vars",
            what, bt_hook_name(policy->call.hook));
    if (!lua_isyieldable(L) || policy->call.run == NULL)
        luaL_error(L,
                   "%s: cannot wait inside pcall, table.sort or a metamethod that C calls; it does "
                   "not raise what goes wrong but returns nil and an error, so call it outside",
                   what);
    if (policy->call.hook != BT_HOOK_START || policy->serve != NULL)
        return true;
    lua_pushnil(L);
    lua_pushliteral(L, "cannot wait here");
    return false;
}

/* baton.sleep(ms) -> true; or nil, message */
static int api_sleep(lua_State *L)
{
    lua_Number ms = luaL_checknumber(L, 1);
    bt_hook_op_t *hook_op;

    luaL_argcheck(L, ms >= 0 && ms <= SLEEP_MAX_MS, 1, "0 to 600000 ms");
    if (!bt_hook_op_check_waiting(L, "baton.sleep"))
        return 2;
    hook_op = &bt_policy_of(L)->call.run->hook_op;
    *hook_op = (bt_hook_op_t){.kind = BT_HOOK_OP_SLEEP, .ms = (uint64_t) ms};
    return lua_yield(L, 0);
}

/* ---- baton.http: the url ---- */

static bool is_token(bt_str_t s)
{
    for (size_t i = 0; i < s.n; i++) {
        const char c = s.p[i];

        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
              (c != '\0' && strchr("!#$%&'*+-.^_`|~", c) != NULL)))
            return false;
    }
    return s.n > 0;
}

static bool is_visible(bt_str_t s)
{
    for (size_t i = 0; i < s.n; i++)
        if (s.p[i] <= ' ' || s.p[i] > '~' || s.p[i] == '#')
            return false;
    return true;
}

static bt_str_t cut_scheme(lua_State *L, bt_str_t url)
{
    if (url.n >= 8 && strncasecmp(url.p, "https://", 8) == 0)
        luaL_error(L, "baton.http: url: https is not supported; use http://");
    if (url.n < 7 || strncasecmp(url.p, "http://", 7) != 0)
        luaL_error(L, "baton.http: url must begin with http://");
    return (bt_str_t){url.p + 7, url.n - 7};
}

/* "host", "host:port", "[v6]:port" */
static void split_authority(lua_State *L, bt_str_t s, bt_hook_op_t *hook_op)
{
    const char *bracket = s.n > 0 && s.p[0] == '[' ? memchr(s.p, ']', s.n) : NULL;
    const char *colon = memrchr(s.p, ':', s.n);
    uint64_t port = 80;

    if (colon != NULL && (bracket == NULL || colon > bracket)) {
        const bt_str_t digits = {colon + 1, (size_t) (s.p + s.n - colon) - 1};

        if (digits.n > 5 || bt_str_u64(digits, &port) != 0 || port == 0 || port > 65535)
            luaL_error(L, "baton.http: url: the port must be a number from 1 to 65535");
        s.n = (size_t) (colon - s.p);
    }
    if (s.n == 0 || s.n > 255 || memchr(s.p, '@', s.n) != NULL ||
        (bracket != NULL ? bracket != s.p + s.n - 1 : memchr(s.p, ':', s.n) != NULL))
        luaL_error(L, "baton.http: url must be http://host[:port][/path]");
    hook_op->host = s;
    hook_op->port = (unsigned) port;
}

static void read_url(lua_State *L, bt_str_t url, bt_hook_op_t *hook_op)
{
    bt_str_t rest = cut_scheme(L, url);
    size_t n = 0;

    if (url.n > URL_MAX || !is_visible(url))
        luaL_error(L,
                   "baton.http: url: at most %d bytes, without spaces, '#' or bytes that are "
                   "not ASCII",
                   URL_MAX);
    while (n < rest.n && rest.p[n] != '/' && rest.p[n] != '?')
        n++;
    hook_op->target = (bt_str_t){rest.p + n, rest.n - n};
    if (hook_op->target.n == 0)
        hook_op->target = BT_STR("/");
    else if (hook_op->target.p[0] == '?')
        luaL_error(L, "baton.http: url must have a '/' before its '?'");
    split_authority(L, (bt_str_t){rest.p, n}, hook_op);
}

static bool is_allowed(const bt_hook_op_t *hook_op)
{
    for (unsigned i = 0; allowed_hosts != NULL && allowed_hosts[i] != NULL; i++) {
        const bt_str_t entry = bt_str(allowed_hosts[i]);
        const char *colon = entry.n > 0 ? memrchr(entry.p, ':', entry.n) : NULL;

        if (colon != NULL && (unsigned long) hook_op->port == strtoul(colon + 1, NULL, 10) &&
            bt_str_ieq(hook_op->host, (bt_str_t){entry.p, (size_t) (colon - entry.p)}))
            return true;
    }
    return false;
}

static void check_allowed(lua_State *L, const bt_hook_op_t *hook_op)
{
    if (is_allowed(hook_op))
        return;
    lua_pushlstring(L, hook_op->host.p, hook_op->host.n);
    luaL_error(
        L, "baton.http: %s:%d is not an allowed host; start baton with --policy-http-host %s:%d",
        lua_tostring(L, -1), (int) hook_op->port, lua_tostring(L, -1), (int) hook_op->port);
}

/* ---- baton.http: the rest ---- */

/* The string that is the member, left on the stack; NULL when there is none. */
static bt_str_t take_string(lua_State *L, const char *key)
{
    lua_pushstring(L, key);
    lua_rawget(L, 1);
    if (!lua_isnil(L, -1) && lua_type(L, -1) != LUA_TSTRING)
        luaL_error(L, "baton.http: %s must be a string, not a %s value", key, luaL_typename(L, -1));
    return bt_vm_str(L, -1);
}

static bool is_ours(bt_str_t name)
{
    static const char *const ours[] = {
        "host", "content-length", "transfer-encoding", "connection", "proxy-connection",
        "te",   "upgrade",        "keep-alive",        "trailer",    "expect",
        NULL};

    for (int i = 0; ours[i] != NULL; i++)
        if (bt_str_ieq(name, bt_str(ours[i])))
            return true;
    return false;
}

static void check_header(lua_State *L, bt_str_t name, bt_str_t value)
{
    if (!is_token(name) || name.n > 256)
        luaL_error(L, "baton.http: headers: a name must be 1 to 256 letters, digits or '-'");
    if (is_ours(name))
        luaL_error(L, "baton.http: headers: '%s' is set by baton.http itself", name.p);
    if (value.n > HEADER_MAX)
        luaL_error(L, "baton.http: headers: '%s' is longer than %d bytes", name.p, HEADER_MAX);
    for (size_t i = 0; i < value.n; i++)
        if (value.p[i] == '\r' || value.p[i] == '\n' || value.p[i] == '\0')
            luaL_error(L, "baton.http: headers: '%s' holds a CR, LF or NUL byte", name.p);
}

/* Leaves the strings of all headers on the stack. */
static void take_headers(lua_State *L, bt_hook_op_t *hook_op)
{
    int table;

    lua_pushliteral(L, "headers");
    lua_rawget(L, 1);
    table = lua_gettop(L);
    if (lua_isnil(L, table))
        return;
    if (!lua_istable(L, table))
        luaL_error(L, "baton.http: headers must be a table, not a %s value",
                   luaL_typename(L, table));
    lua_pushnil(L);
    while (lua_next(L, table) != 0) {
        if (lua_type(L, -2) != LUA_TSTRING || lua_type(L, -1) != LUA_TSTRING)
            luaL_error(L, "baton.http: headers: names and values must be strings");
        if (hook_op->header_count == BT_HOOK_OP_HEADERS_MAX)
            luaL_error(L, "baton.http: headers: at most %d", BT_HOOK_OP_HEADERS_MAX);
        check_header(L, bt_vm_str(L, -2), bt_vm_str(L, -1));
        hook_op->headers[hook_op->header_count++] =
            (bt_header_t){bt_vm_str(L, -2), bt_str_trim(bt_vm_str(L, -1))};
        lua_pushvalue(L, -2); /* name and value stay below */
    }
}

static uint64_t take_timeout(lua_State *L)
{
    lua_Number ms = HTTP_DEFAULT_MS;

    lua_pushliteral(L, "timeout_ms");
    lua_rawget(L, 1);
    if (lua_type(L, -1) == LUA_TNUMBER)
        ms = lua_tonumber(L, -1);
    else if (!lua_isnil(L, -1))
        ms = -1;
    if (!(ms >= 1 && ms <= HTTP_MAX_MS))
        luaL_error(L, "baton.http: timeout_ms must be a number from 1 to %d", (int) HTTP_MAX_MS);
    return (uint64_t) ms;
}

static void check_keys(lua_State *L)
{
    static const char *const keys[] = {"url", "method", "headers", "body", "timeout_ms", NULL};

    luaL_checktype(L, 1, LUA_TTABLE);
    bt_vm_check_keys(L, "member of baton.http's table", keys, 1);
}

/* baton.http{url=, method=, headers=, body=, timeout_ms=} -> {status=, headers=, body=}; or nil, message */
static int api_http(lua_State *L)
{
    bt_hook_op_t hook_op = {.kind = BT_HOOK_OP_HTTP};
    bt_str_t url;

    if (!bt_hook_op_check_waiting(L, "baton.http"))
        return 2;
    check_keys(L);
    lua_settop(L, 1);
    luaL_checkstack(L, 3 * BT_HOOK_OP_HEADERS_MAX + 16, "baton.http");
    url = take_string(L, "url");
    if (url.p == NULL)
        return luaL_error(L, "baton.http: url is missing");
    read_url(L, url, &hook_op);
    check_allowed(L, &hook_op);
    hook_op.body = take_string(L, "body");
    if (hook_op.body.n > BODY_MAX)
        return luaL_error(L, "baton.http: body is longer than 1 MiB");
    hook_op.method = take_string(L, "method");
    if (hook_op.method.p == NULL)
        hook_op.method = hook_op.body.p != NULL ? BT_STR("POST") : BT_STR("GET");
    if (!is_token(hook_op.method) || hook_op.method.n > 16 ||
        bt_str_ieq(hook_op.method, BT_STR("CONNECT")))
        return luaL_error(L, "baton.http: method must be a word such as GET or POST");
    hook_op.ms = take_timeout(L);
    take_headers(L, &hook_op);
    bt_policy_of(L)->call.run->hook_op = hook_op;
    return lua_yield(L, lua_gettop(L));
}

void bt_hook_op_api_add(lua_State *L)
{
    static const luaL_Reg api[] = {{"sleep", api_sleep}, {"http", api_http}, {NULL, NULL}};

    bt_native_set(L, api);
}
