/* How it works: a fleet is three sets of real workers; what a spec may set are the very atomics that the gateway writes.
 * Nothing is simulated but the traffic. */
#include "script/testing.h"

#include "base/clock.h"
#include "base/rand.h"
#include "script/luatable.h"
#include "script/policy.h"
#include "script/prefix_index.h"

#include <lauxlib.h>
#include <lua.h>
#include <stdlib.h>
#include <string.h>

#define FLEET_MAX 20000
#define POLICY_META "baton_testing.policy"
#define FLEET_META "baton_testing.fleet"

struct fleet {
    bt_worker_set_t sets[3]; /* by role */
    uint64_t key;
};

static bt_str_t text_at(lua_State *L, int idx)
{
    bt_str_t s = BT_STR_NULL;

    s.p = lua_tolstring(L, idx, &s.n);
    return s;
}

/* A string member of the table at idx; the table keeps the bytes alive. */
static bt_str_t member(lua_State *L, int idx, const char *key)
{
    bt_str_t s;

    lua_getfield(L, idx, key);
    if (!lua_isnil(L, -1) && lua_type(L, -1) != LUA_TSTRING)
        luaL_error(L, "%s must be a string", key);
    s = text_at(L, -1);
    lua_pop(L, 1);
    return s;
}

static lua_Number number(lua_State *L, int idx, const char *key, lua_Number otherwise)
{
    lua_Number n;

    lua_getfield(L, idx, key);
    n = luaL_optnumber(L, -1, otherwise);
    lua_pop(L, 1);
    return n;
}

/* ---- fleets ---- */

static struct fleet *check_fleet(lua_State *L, int idx)
{
    return luaL_checkudata(L, idx, FLEET_META);
}

static enum bt_role role_of(lua_State *L, bt_str_t name)
{
    for (int role = 0; role < 3; role++)
        if (bt_str_eq(name, bt_str(bt_role_name((enum bt_role) role))))
            return (enum bt_role) role;
    luaL_error(L, "role must be prefill, decode or hybrid");
    return BT_ROLE_HYBRID;
}

static char *dup_member(lua_State *L, int idx, const char *key, const char *otherwise)
{
    bt_str_t s = member(L, idx, key);

    return s.p != NULL ? bt_str_dup(s) : otherwise != NULL ? strdup(otherwise) : NULL;
}

/* fleet:add{name, role, url, connector, zone, labels} */
static int fleet_add(lua_State *L)
{
    static uint64_t last_id;
    struct fleet *f = check_fleet(L, 1);
    bt_breaker_config_t breaker;
    bt_worker_set_t *set;
    bt_worker_spec_t spec;
    bt_worker_t *w;
    char url[64], err[256];
    int rc;

    luaL_checktype(L, 2, LUA_TTABLE);
    bt_worker_spec_init(&spec);
    spec.role = role_of(L, member(L, 2, "role"));
    set = &f->sets[spec.role];
    if (set->count == FLEET_MAX)
        return luaL_error(L, "too many workers");
    last_id++;
    snprintf(url, sizeof(url), "http://10.0.%u.%u:8000", (unsigned) last_id / 250,
             (unsigned) last_id % 250 + 1);
    spec.url = dup_member(L, 2, "url", url);
    spec.name = dup_member(L, 2, "name", url);
    spec.connector = dup_member(L, 2, "connector", "NixlConnector");
    spec.zone = dup_member(L, 2, "zone", NULL);
    spec.labels = dup_member(L, 2, "labels", NULL);
    bt_breaker_config_defaults(&breaker);
    rc = bt_worker_new(&w, &spec, last_id, (unsigned) last_id, &breaker, err, sizeof(err));
    bt_worker_spec_fini(&spec);
    if (rc != 0)
        return luaL_error(L, "%s", err);
    set->items[set->count++] = w;
    f->key++;
    return 0;
}

static bt_worker_t *find(lua_State *L, struct fleet *f, int idx, bt_worker_set_t **set_p,
                         unsigned *at_p)
{
    const char *name = luaL_checkstring(L, idx);

    for (int s = 0; s < 3; s++)
        for (unsigned i = 0; i < f->sets[s].count; i++)
            if (strcmp(f->sets[s].items[i]->name, name) == 0) {
                *set_p = &f->sets[s];
                *at_p = i;
                return f->sets[s].items[i];
            }
    luaL_error(L, "no worker '%s'", name);
    return NULL;
}

/* fleet:remove(name) */
static int fleet_remove(lua_State *L)
{
    struct fleet *f = check_fleet(L, 1);
    bt_worker_set_t *set = NULL;
    unsigned at = 0;
    bt_worker_t *w = find(L, f, 2, &set, &at);

    memmove(&set->items[at], &set->items[at + 1], (set->count - at - 1) * sizeof(set->items[0]));
    set->count--;
    f->key++;
    bt_worker_unref(w);
    return 0;
}

static void set_field(lua_State *L, bt_worker_t *w, const char *field, lua_Number value)
{
    const enum bt_phase phase =
        w->spec.role == BT_ROLE_PREFILL ? BT_PHASE_PREFILL : BT_PHASE_DECODE;

    if (strcmp(field, "prefill_tokens") == 0)
        w->tokens[BT_PHASE_PREFILL] = (int64_t) value;
    else if (strcmp(field, "decode_tokens") == 0)
        w->tokens[BT_PHASE_DECODE] = (int64_t) value;
    else if (strcmp(field, "requests") == 0)
        w->requests[phase] = (int64_t) value;
    else if (strcmp(field, "running") == 0)
        w->load.running = (int64_t) value;
    else if (strcmp(field, "waiting") == 0)
        w->load.waiting = (int64_t) value;
    else if (strcmp(field, "kv_free") == 0)
        w->load.kv_used_ppm = (uint32_t) ((1 - value) * 1e6 + 0.5);
    else if (strcmp(field, "ttft_ema_ms") == 0)
        w->ttft_ema_us = (int64_t) (value * 1000);
    else if (strcmp(field, "tpot_ema_ms") == 0)
        w->tpot_ema_us = (int64_t) (value * 1000);
    else
        luaL_error(L, "'%s' cannot be set", field);
}

/* fleet:set(name, {field = number...}); what engines report counts as reported now. */
static int fleet_set(lua_State *L)
{
    bt_worker_set_t *set = NULL;
    unsigned at = 0;
    bt_worker_t *w = find(L, check_fleet(L, 1), 2, &set, &at);

    luaL_checktype(L, 3, LUA_TTABLE);
    for (lua_pushnil(L); lua_next(L, 3) != 0; lua_pop(L, 1)) {
        const char *field = luaL_checkstring(L, -2);

        set_field(L, w, field, luaL_checknumber(L, -1));
        if (strcmp(field, "running") == 0 || strcmp(field, "waiting") == 0 ||
            strcmp(field, "kv_free") == 0)
            w->load.at_ms = bt_clock_ms();
    }
    return 0;
}

/* fleet:bear(name, tokens, requests): as a leg that is held; negative to let go. */
static int fleet_bear(lua_State *L)
{
    bt_worker_set_t *set = NULL;
    unsigned at = 0;
    bt_worker_t *w = find(L, check_fleet(L, 1), 2, &set, &at);
    const enum bt_phase phase =
        w->spec.role == BT_ROLE_PREFILL ? BT_PHASE_PREFILL : BT_PHASE_DECODE;

    w->tokens[phase] += (int64_t) luaL_optnumber(L, 3, 0);
    w->requests[phase] += (int64_t) luaL_optnumber(L, 4, 1);
    return 0;
}

/* fleet:id(name) */
static int fleet_id(lua_State *L)
{
    bt_worker_set_t *set = NULL;
    unsigned at = 0;

    lua_pushnumber(L, (lua_Number) find(L, check_fleet(L, 1), 2, &set, &at)->id);
    return 1;
}

static int fleet_gc(lua_State *L)
{
    struct fleet *f = lua_touserdata(L, 1);

    for (int s = 0; s < 3; s++) {
        for (unsigned i = 0; i < f->sets[s].count; i++)
            bt_worker_unref(f->sets[s].items[i]);
        free(f->sets[s].items);
    }
    return 0;
}

/* fleet() */
static int new_fleet(lua_State *L)
{
    static uint64_t fleets;
    struct fleet *f = lua_newuserdata(L, sizeof(*f));

    *f = (struct fleet){.key = ++fleets << 32};
    for (int s = 0; s < 3; s++)
        f->sets[s].items = calloc(FLEET_MAX, sizeof(f->sets[s].items[0]));
    luaL_getmetatable(L, FLEET_META);
    lua_setmetatable(L, -2);
    return 1;
}

/* ---- policies ---- */

static bt_policy_t *check_policy(lua_State *L)
{
    return *(bt_policy_t **) luaL_checkudata(L, 1, POLICY_META);
}

static int policy_gc(lua_State *L)
{
    bt_policy_free(*(bt_policy_t **) lua_touserdata(L, 1));
    return 0;
}

/* A value of a parameter; lists hold no lists. False: something else. */
static bool read_value(lua_State *L, int idx, bt_value_t *out)
{
    switch (lua_type(L, idx)) {
    case LUA_TBOOLEAN:
        *out = (bt_value_t){.type = BT_VALUE_BOOL, .boolean = lua_toboolean(L, idx) != 0};
        return true;
    case LUA_TNUMBER:
        *out = (bt_value_t){.type = BT_VALUE_NUMBER, .number = lua_tonumber(L, idx)};
        return true;
    case LUA_TSTRING:
        *out = (bt_value_t){.type = BT_VALUE_STRING, .string = bt_str_dup(text_at(L, idx))};
        return true;
    default:
        return false;
    }
}

static bool read_list(lua_State *L, int idx, bt_value_t *out)
{
    unsigned count = (unsigned) lua_objlen(L, idx);
    bool ok = true;

    *out = (bt_value_t){.type = BT_VALUE_LIST, .items = calloc(count + 1, sizeof(*out))};
    for (; ok && out->count < count; out->count++) {
        lua_rawgeti(L, idx, (int) out->count + 1);
        ok = read_value(L, lua_gettop(L), &out->items[out->count]);
        lua_pop(L, 1);
    }
    return ok;
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp(((const bt_value_t *) a)->key, ((const bt_value_t *) b)->key);
}

/* The table at idx, or NULL; for bt_value_free. */
static bt_value_t *read_params(lua_State *L, int idx)
{
    bt_value_t *root = lua_istable(L, idx) ? calloc(1, sizeof(*root)) : NULL;
    bool ok = true;

    if (root == NULL)
        return NULL;
    *root = (bt_value_t){.type = BT_VALUE_TABLE, .items = calloc(64, sizeof(*root))};
    for (lua_pushnil(L); ok && root->count < 64 && lua_next(L, idx) != 0; lua_pop(L, 1)) {
        bt_value_t *item = &root->items[root->count];
        int value = lua_gettop(L);

        ok = lua_istable(L, value) ? read_list(L, value, item) : read_value(L, value, item);
        item->key = strdup(lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "?");
        root->count++;
    }
    qsort(root->items, root->count, sizeof(root->items[0]), compare_keys);
    if (ok)
        return root;
    bt_value_free(root);
    luaL_error(L, "a parameter is a boolean, a number, a string or a list of these");
    return NULL;
}

/* policy(name or path[, params]) -> policy; or nil, message */
static int new_policy(lua_State *L)
{
    const char *name = luaL_checkstring(L, 1);
    bt_value_t *params = read_params(L, 2);
    bt_policy_t **policy = lua_newuserdata(L, sizeof(*policy));
    char err[512] = "";
    int rc;

    *policy = NULL;
    rc = bt_policy_load_with(policy, name, NULL, params, NULL, err, sizeof(err));
    bt_value_free(params);
    if (rc != 0) {
        lua_pushnil(L);
        lua_pushstring(L, err);
        return 2;
    }
    luaL_getmetatable(L, POLICY_META);
    lua_setmetatable(L, -2);
    return 1;
}

static bt_policy_request_t request_of(lua_State *L, int idx)
{
    bt_policy_request_t req = {.path = BT_STR("/v1/completions"), .n = 1};

    if (lua_isnoneornil(L, idx))
        return req;
    luaL_checktype(L, idx, LUA_TTABLE);
    if (member(L, idx, "path").p != NULL)
        req.path = member(L, idx, "path");
    req.model = member(L, idx, "model");
    req.session = member(L, idx, "session");
    req.tenant = member(L, idx, "tenant");
    req.prompt = member(L, idx, "prompt");
    req.prompt_bytes = req.prompt.n;
    req.prompt_tokens = (uint64_t) number(L, idx, "prompt_tokens", (lua_Number) req.prompt.n / 4);
    req.n = (unsigned) number(L, idx, "n", 1);
    return req;
}

static void push_name(lua_State *L, const char *key, const bt_worker_t *w)
{
    if (w == NULL)
        return;
    lua_pushstring(L, w->name);
    lua_setfield(L, -2, key);
}

static void push_pair(lua_State *L, const bt_pair_t *pair)
{
    lua_newtable(L);
    push_name(L, "prefill", pair->prefill);
    push_name(L, pair->prefill != NULL ? "decode" : "worker", pair->decode);
}

static int push_choice(lua_State *L, bt_policy_t *policy, int rc, const bt_choice_t *choice)
{
    if (rc != 0 || choice->first.decode == NULL) {
        lua_pushnil(L);
        lua_pushstring(L, rc != 0 ? bt_policy_error(policy) : "gives up");
        return 2;
    }
    push_pair(L, &choice->first);
    lua_newtable(L);
    for (unsigned i = 0; i < choice->alternate_count; i++) {
        push_pair(L, &choice->alternates[i]);
        lua_rawseti(L, -2, (int) i + 1);
    }
    lua_setfield(L, -2, "alternates");
    return 1;
}

static bt_policy_view_t view_of(const struct fleet *f)
{
    return (bt_policy_view_t){&f->sets[BT_ROLE_PREFILL], &f->sets[BT_ROLE_DECODE],
                              &f->sets[BT_ROLE_HYBRID], f->key, BT_STR("default")};
}

/* policy:plan(fleet[, req]) -> {prefill, decode} or {worker}, names, with alternates; or nil, message */
static int policy_plan(lua_State *L)
{
    bt_policy_t *policy = check_policy(L);
    bt_policy_view_t view = view_of(check_fleet(L, 2));
    bt_policy_request_t req = request_of(L, 3);
    bt_choice_t choice;

    return push_choice(L, policy, bt_policy_plan(policy, BT_POLICY_BOTH, &req, &view, &choice),
                       &choice);
}

static enum bt_scope scope_of(lua_State *L, bt_str_t name)
{
    for (int scope = 0; name.p != NULL && scope <= BT_SCOPE_PROCESS; scope++)
        if (bt_str_eq(name, bt_str(bt_scope_name((enum bt_scope) scope))))
            return (enum bt_scope) scope;
    luaL_error(L, "unknown scope");
    return BT_SCOPE_PROCESS;
}

/* policy:fallback(fleet, req, {scope, name, leg, status}, {tried name...}) -> as plan */
static int policy_fallback(lua_State *L)
{
    bt_policy_t *policy = check_policy(L);
    struct fleet *f = check_fleet(L, 2);
    bt_policy_view_t view = view_of(f);
    bt_policy_request_t req = request_of(L, 3);
    bt_worker_t *tried[16];
    bt_policy_failure_t failure = {.name = "upstream", .leg = "decode", .tried = tried};
    bt_choice_t choice;

    luaL_checktype(L, 4, LUA_TTABLE);
    luaL_checktype(L, 5, LUA_TTABLE);
    failure.scope = scope_of(L, member(L, 4, "scope"));
    failure.status = (unsigned) number(L, 4, "status", 0);
    for (int i = 1; i <= (int) lua_objlen(L, 5) && i <= 16; i++) {
        bt_worker_set_t *set = NULL;
        unsigned at = 0;

        lua_rawgeti(L, 5, i);
        tried[failure.tried_count++] = find(L, f, lua_gettop(L), &set, &at);
        lua_pop(L, 1);
    }
    return push_choice(L, policy, bt_policy_fallback(policy, &req, &view, &failure, &choice),
                       &choice);
}

/* ---- the module ---- */

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

static void new_class(lua_State *L, const char *name, lua_CFunction gc, const luaL_Reg *methods)
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
    static const luaL_Reg fleet_methods[] = {{"add", fleet_add}, {"remove", fleet_remove},
                                             {"set", fleet_set}, {"bear", fleet_bear},
                                             {"id", fleet_id},   {NULL, NULL}};
    static const luaL_Reg policy_methods[] = {
        {"plan", policy_plan}, {"fallback", policy_fallback}, {NULL, NULL}};
    static const luaL_Reg functions[] = {{"fleet", new_fleet}, {"policy", new_policy},
                                         {"seed", seed},       {"forget", forget},
                                         {"names", names},     {NULL, NULL}};

    new_class(L, FLEET_META, fleet_gc, fleet_methods);
    new_class(L, POLICY_META, policy_gc, policy_methods);
    lua_newtable(L);
    luaL_register(L, NULL, functions);
    return 1;
}
