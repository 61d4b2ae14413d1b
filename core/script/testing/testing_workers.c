/* How it works: a set of workers is the lists of a view, of real workers; what a spec may set are the very atomics that the gateway
 * writes. Nothing is simulated but the traffic. */
#include "script/testing/testing_impl.h"

#include "script/shared/now.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FLEET_MAX 20000
#define WORKERS_META "baton_testing.workers"

struct bt_testing_workers *bt_testing_workers_check(lua_State *L, int idx)
{
    return luaL_checkudata(L, idx, WORKERS_META);
}

static enum bt_role role_of(lua_State *L, bt_str_t name)
{
    for (int role = 0; role < BT_ROLE_COUNT; role++)
        if (bt_str_eq(name, bt_str(bt_role_name((enum bt_role) role))))
            return (enum bt_role) role;
    luaL_error(L, "role must be prefill, decode, hybrid or encode");
    return BT_ROLE_HYBRID;
}

/* What a spec may say of a worker; BT_STR_NULL and 0: nothing. */
struct words {
    bt_str_t url, name, connector, version, zone, labels;
    enum bt_engine engine;
    int dp_size, tp_size, pp_size;
};

static char *copy_of(bt_str_t s, const char *otherwise)
{
    return s.p != NULL ? bt_str_dup(s) : otherwise != NULL ? strdup(otherwise) : NULL;
}

static bt_worker_t *make_worker(lua_State *L, enum bt_role role, const struct words *words)
{
    static uint64_t last_id;
    bt_breaker_config_t breaker;
    bt_worker_t *w = NULL;
    bt_worker_spec_t spec;
    char url[64], err[256];
    int rc;

    bt_worker_spec_init(&spec);
    last_id++;
    snprintf(url, sizeof(url), "http://10.0.%u.%u:8000", (unsigned) last_id / 250,
             (unsigned) last_id % 250 + 1);
    spec.role = role;
    spec.url = copy_of(words->url, url);
    spec.name = copy_of(words->name, url);
    spec.connector = copy_of(words->connector, "NixlConnector");
    spec.engine = words->engine;
    spec.version = copy_of(words->version, NULL);
    spec.dp_size = words->dp_size;
    spec.tp_size = words->tp_size;
    spec.pp_size = words->pp_size;
    spec.zone = copy_of(words->zone, NULL);
    spec.labels = copy_of(words->labels, NULL);
    bt_breaker_config_defaults(&breaker);
    rc = bt_worker_new(&w, &spec, last_id, (unsigned) last_id, &breaker, err, sizeof(err));
    bt_worker_spec_fini(&spec);
    if (rc != 0)
        luaL_error(L, "%s", err);
    return w;
}

static enum bt_engine engine_of(lua_State *L, bt_str_t name)
{
    enum bt_engine engine = BT_ENGINE_UNKNOWN;

    if (name.p != NULL && bt_engine_parse(name, &engine) < 0)
        luaL_error(L, "engine must be sglang, vllm, vllm_ascend, mindie or trtllm");
    return engine;
}

static struct words words_of(lua_State *L, int idx)
{
    return (struct words){
        .url = bt_testing_member(L, idx, "url"),
        .name = bt_testing_member(L, idx, "name"),
        .connector = bt_testing_member(L, idx, "connector"),
        .engine = engine_of(L, bt_testing_member(L, idx, "engine")),
        .version = bt_testing_member(L, idx, "version"),
        .zone = bt_testing_member(L, idx, "zone"),
        .labels = bt_testing_member(L, idx, "labels"),
        .dp_size = (int) bt_testing_number(L, idx, "dp_size", 0),
        .tp_size = (int) bt_testing_number(L, idx, "tp_size", 0),
        .pp_size = (int) bt_testing_number(L, idx, "pp_size", 0),
    };
}

/* workers:add{name, role, url, connector, engine, version, zone, labels, dp_size, tp_size, pp_size, alone}; alone: whatever its role, it stands in view.hybrid, as in a
 * set that has no pair. Who can serve alone stands in view.single too. */
static int workers_add(lua_State *L)
{
    struct bt_testing_workers *f = bt_testing_workers_check(L, 1);
    bt_worker_set_t *set, *single = &f->sets[BT_LIST_SINGLE];
    struct words words;
    bt_worker_t *w;
    enum bt_role role;

    luaL_checktype(L, 2, LUA_TTABLE);
    role = role_of(L, bt_testing_member(L, 2, "role"));
    words = words_of(L, 2);
    set = &f->sets[bt_testing_flag(L, 2, "alone") || role == BT_ROLE_ENCODE ? BT_LIST_HYBRID
                                                                            : (int) role];
    if (set->count == FLEET_MAX)
        return luaL_error(L, "too many workers");
    w = make_worker(L, role, &words);
    set->items[set->count++] = w;
    if (set == &f->sets[BT_LIST_HYBRID] || w->serves_alone)
        single->items[single->count++] = w;
    f->key++;
    return 0;
}

static bt_worker_t *find(const struct bt_testing_workers *f, const char *name, int *set_p)
{
    for (int s = 0; s < BT_LIST_SINGLE; s++)
        for (unsigned i = 0; i < f->sets[s].count; i++)
            if (strcmp(f->sets[s].items[i]->name, name) == 0) {
                *set_p = s;
                return f->sets[s].items[i];
            }
    return NULL;
}

bt_worker_t *bt_testing_worker(lua_State *L, const struct bt_testing_workers *f, int idx)
{
    const char *name = luaL_checkstring(L, idx);
    int set;
    bt_worker_t *w = find(f, name, &set);

    if (w == NULL)
        luaL_error(L, "no worker '%s'", name);
    return w;
}

const bt_worker_t *bt_testing_by_id(const struct bt_testing_workers *f, uint64_t id)
{
    for (int s = 0; s < BT_LIST_SINGLE; s++)
        for (unsigned i = 0; i < f->sets[s].count; i++)
            if (f->sets[s].items[i]->id == id)
                return f->sets[s].items[i];
    return NULL;
}

static void take_out(bt_worker_set_t *set, const bt_worker_t *w)
{
    unsigned kept = 0;

    for (unsigned i = 0; i < set->count; i++)
        if (set->items[i] != w)
            set->items[kept++] = set->items[i];
    set->count = kept;
}

/* workers:remove(name) */
static int workers_remove(lua_State *L)
{
    struct bt_testing_workers *f = bt_testing_workers_check(L, 1);
    const char *name = luaL_checkstring(L, 2);
    int s = 0;
    bt_worker_t *w = find(f, name, &s);

    if (w == NULL)
        return luaL_error(L, "no worker '%s'", name);
    take_out(&f->sets[s], w);
    take_out(&f->sets[BT_LIST_SINGLE], w);
    f->key++;
    bt_worker_unref(w);
    return 0;
}

/* ---- what traffic would change ---- */

static enum bt_phase phase_of(const bt_worker_t *w)
{
    return w->spec.role == BT_ROLE_PREFILL ? BT_PHASE_PREFILL : BT_PHASE_DECODE;
}

static void set_age(lua_State *L, bt_worker_t *w, lua_Number age_ms)
{
    uint64_t now_ms = bt_now_us() / 1000;

    if (!(age_ms >= 0 && age_ms < (lua_Number) now_ms))
        luaL_error(L, "age_ms must be between 0 and the clock's own time");
    w->load.at_ms = now_ms - (uint64_t) age_ms;
}

/* False: it is what the engine reports. */
static bool set_own(bt_worker_t *w, const char *field, lua_Number value)
{
    if (strcmp(field, "prefill_tokens") == 0)
        bt_worker_total(w, BT_PHASE_PREFILL)->tokens = (int64_t) value;
    else if (strcmp(field, "decode_tokens") == 0)
        bt_worker_total(w, BT_PHASE_DECODE)->tokens = (int64_t) value;
    else if (strcmp(field, "requests") == 0)
        bt_worker_total(w, phase_of(w))->requests = (int64_t) value;
    else if (strcmp(field, "transfer_bytes") == 0 && w->is_gateway_managed)
        w->transfer_bytes = (int64_t) value;
    else if (strcmp(field, "ttft_ema_ms") == 0)
        w->ttft_ema_us = (int64_t) (value * 1000);
    else if (strcmp(field, "tpot_ema_ms") == 0)
        w->tpot_ema_us = (int64_t) (value * 1000);
    else
        return false;
    return true;
}

static void set_reported(lua_State *L, bt_worker_t *w, const char *field, lua_Number value)
{
    if (strcmp(field, "running") == 0)
        w->load.running = (int64_t) value;
    else if (strcmp(field, "waiting") == 0)
        w->load.waiting = (int64_t) value;
    else if (strcmp(field, "kv_free") == 0)
        w->load.kv_used_ppm = (uint32_t) ((1 - value) * 1e6 + 0.5);
    else
        luaL_error(L, "'%s' cannot be set", field);
}

/* workers:set(name, {field = number...}); what engines report is age_ms old, or as of now. */
static int workers_set(lua_State *L)
{
    bt_worker_t *w = bt_testing_worker(L, bt_testing_workers_check(L, 1), 2);
    bool has_report = false;

    luaL_checktype(L, 3, LUA_TTABLE);
    for (lua_pushnil(L); lua_next(L, 3) != 0; lua_pop(L, 1)) {
        const char *field = lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "?";
        lua_Number value = luaL_checknumber(L, -1);

        if (strcmp(field, "age_ms") == 0)
            has_report = true;
        else if (!set_own(w, field, value)) {
            set_reported(L, w, field, value);
            has_report = true;
        }
    }
    if (has_report)
        set_age(L, w, bt_testing_number(L, 3, "age_ms", 0));
    return 0;
}

/* workers:bear(name, tokens, requests): as a leg that is held; negative to let go. */
static int workers_bear(lua_State *L)
{
    bt_worker_t *w = bt_testing_worker(L, bt_testing_workers_check(L, 1), 2);

    bt_worker_total(w, phase_of(w))->tokens += (int64_t) luaL_optnumber(L, 3, 0);
    bt_worker_total(w, phase_of(w))->requests += (int64_t) luaL_optnumber(L, 4, 1);
    return 0;
}

/* workers:id(name) */
static int workers_id(lua_State *L)
{
    lua_pushnumber(L, (lua_Number) bt_testing_worker(L, bt_testing_workers_check(L, 1), 2)->id);
    return 1;
}

/* workers:name(id) -> name or nil */
static int workers_name(lua_State *L)
{
    const bt_worker_t *w =
        bt_testing_by_id(bt_testing_workers_check(L, 1), (uint64_t) luaL_checknumber(L, 2));

    lua_pushstring(L, w != NULL ? w->name : NULL);
    return 1;
}

/* workers:pool(name): view.pool from now on */
static int workers_pool(lua_State *L)
{
    struct bt_testing_workers *f = bt_testing_workers_check(L, 1);
    const char *name = luaL_checkstring(L, 2);

    luaL_argcheck(L, strlen(name) < sizeof(f->pool), 2, "at most 63 bytes");
    strcpy(f->pool, name);
    f->key++;
    return 0;
}

static unsigned count_member(lua_State *L, const char *name)
{
    return (unsigned) bt_testing_number(L, 2, name, 0);
}

/* workers:advice {bottleneck = "prefill", ...}: view.advice of tick from now on; of what is not named, 0 */
static int workers_advice(lua_State *L)
{
    bt_pool_advice_t *a = &bt_testing_workers_check(L, 1)->advice;
    const bt_str_t word = bt_testing_member(L, 2, "bottleneck");
    int b = BT_BOTTLENECK_UNKNOWN;

    while (b < BT_BOTTLENECK_COUNT &&
           !bt_str_eq(word, bt_str(bt_bottleneck_name((enum bt_bottleneck) b))))
        b++;
    luaL_argcheck(L, b < BT_BOTTLENECK_COUNT, 2,
                  "bottleneck: none, prefill, decode, both, unknown");
    atomic_store(&a->bottleneck, b);
    atomic_store(&a->prefill, count_member(L, "prefill"));
    atomic_store(&a->decode, count_member(L, "decode"));
    atomic_store(&a->advised_prefill, count_member(L, "advised_prefill"));
    atomic_store(&a->advised_decode, count_member(L, "advised_decode"));
    atomic_store(&a->prefill_used_milli,
                 (uint32_t) (1000 * bt_testing_number(L, 2, "prefill_used", 0)));
    atomic_store(&a->decode_used_milli,
                 (uint32_t) (1000 * bt_testing_number(L, 2, "decode_used", 0)));
    atomic_store(&a->ttft_ms, count_member(L, "predicted_ttft_ms"));
    return 0;
}

/* ---- life ---- */

static int workers_gc(lua_State *L)
{
    struct bt_testing_workers *f = lua_touserdata(L, 1);

    for (int s = 0; s < BT_LIST_COUNT; s++) {
        for (unsigned i = 0; s != BT_LIST_SINGLE && i < f->sets[s].count; i++)
            bt_worker_unref(f->sets[s].items[i]);
        free(f->sets[s].items);
    }
    return 0;
}

int bt_testing_workers_new(lua_State *L)
{
    static uint64_t sets;
    struct bt_testing_workers *f = lua_newuserdata(L, sizeof(*f));

    *f = (struct bt_testing_workers){.key = ++sets << 32, .pool = "default"};
    for (int s = 0; s < BT_LIST_COUNT; s++)
        f->sets[s].items = calloc(BT_LIST_SINGLE * FLEET_MAX, sizeof(f->sets[s].items[0]));
    luaL_getmetatable(L, WORKERS_META);
    lua_setmetatable(L, -2);
    return 1;
}

bt_policy_view_t bt_testing_view(const struct bt_testing_workers *f)
{
    bt_policy_view_t view = {.key = f->key, .pool = bt_str(f->pool), .advice = &f->advice};

    for (int s = 0; s < BT_LIST_COUNT; s++)
        view.sets[s] = &f->sets[s];
    return view;
}

void bt_testing_workers_open(lua_State *L)
{
    static const luaL_Reg methods[] = {
        {"add", workers_add},   {"remove", workers_remove}, {"set", workers_set},
        {"bear", workers_bear}, {"id", workers_id},         {"name", workers_name},
        {"pool", workers_pool}, {"advice", workers_advice}, {NULL, NULL}};

    bt_testing_class(L, WORKERS_META, workers_gc, methods);
}
