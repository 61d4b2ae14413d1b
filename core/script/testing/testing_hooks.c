/* How it works: the hooks as the gateway calls them, with tables in and tables out. What a hook waits for is answered at once by
 * a function of the spec (testing_serve.c). */
#include "script/testing/testing_impl.h"

#include "base/err.h"
#include "script/shared/now.h"
#include "script/value/plain.h"

#define TRIED_MAX 16
#define EVENTS_MAX 4096

static lua_Number now_ms(void)
{
    return (lua_Number) bt_now_us() / 1000;
}

/* ---- requests ---- */

/* The request's part of ctx.vars, as long as the spec keeps its table. */
static bt_policy_vars_t *vars_of(lua_State *L, int idx)
{
    bt_policy_vars_t *vars;

    lua_getfenv(L, 1);
    lua_pushvalue(L, idx);
    lua_rawget(L, -2);
    vars = lua_touserdata(L, -1);
    if (vars == NULL) {
        vars = lua_newuserdata(L, sizeof(*vars));
        *vars = (bt_policy_vars_t){0};
        lua_pushvalue(L, idx);
        lua_pushvalue(L, -2);
        lua_rawset(L, -5);
        lua_pop(L, 1);
    }
    lua_pop(L, 2);
    return vars;
}

static bool shares_vars(const bt_policy_t *policy)
{
    return bt_policy_has_entry(policy);
}

/* Left on the stack, with the spec's table under it, until the method returns. */
static struct bt_testing_request *request_at(lua_State *L, const bt_policy_t *policy, int idx)
{
    struct bt_testing_request *out;

    if (lua_isnoneornil(L, idx)) {
        lua_settop(L, idx > lua_gettop(L) ? idx : lua_gettop(L));
        lua_newtable(L);
        lua_replace(L, idx);
    }
    out = lua_newuserdata(L, sizeof(*out));
    bt_testing_request(L, idx, out);
    if (shares_vars(policy))
        out->req.vars = vars_of(L, idx);
    return out;
}

/* ---- plans ---- */

static void push_name(lua_State *L, const char *key, const bt_worker_t *w)
{
    if (w == NULL)
        return;
    lua_pushstring(L, w->name);
    lua_setfield(L, -2, key);
}

static void push_rank(lua_State *L, const char *key, int rank)
{
    if (rank < 0)
        return;
    lua_pushinteger(L, rank);
    lua_setfield(L, -2, key);
}

static void push_pair(lua_State *L, const bt_pair_t *pair)
{
    lua_newtable(L);
    push_name(L, "prefill", pair->prefill);
    push_name(L, bt_pair_is_single(pair) ? "worker" : "decode", pair->decode);
    push_rank(L, "prefill_rank", pair->prefill_rank);
    push_rank(L, "decode_rank", pair->decode_rank);
}

/* kv_hints as JSON. */
static void push_hints(lua_State *L, const bt_hints_t *hints)
{
    if (bt_hints_are_empty(hints))
        return;
    lua_newtable(L);
    if (hints->has_priority) {
        lua_pushinteger(L, hints->priority);
        lua_setfield(L, -2, "priority");
    }
    if (hints->kv_actions.n != 0) {
        lua_pushlstring(L, hints->kv_actions.p, hints->kv_actions.n);
        lua_setfield(L, -2, "kv_hints");
    }
    lua_setfield(L, -2, "hints");
}

/* scores = {name = number}: the last that each worker got. */
static void push_scores(lua_State *L, const struct bt_testing_workers *f,
                        const bt_policy_trace_t *trace)
{
    lua_newtable(L);
    for (unsigned i = 0; i < trace->count; i++) {
        const bt_worker_t *w = bt_testing_by_id(f, trace->scores[i].worker);

        if (w == NULL)
            continue;
        lua_pushnumber(L, trace->scores[i].score);
        lua_setfield(L, -2, w->name);
    }
    lua_setfield(L, -2, "scores");
}

static int push_failure(lua_State *L, const bt_policy_t *policy, int rc)
{
    lua_pushnil(L);
    if (rc == BT_E_AGAIN)
        lua_pushliteral(L, "it has no such hook");
    else
        lua_pushstring(L, bt_policy_error(policy));
    return 2;
}

static int push_choice(lua_State *L, const bt_policy_t *policy, int rc, const bt_choice_t *choice,
                       const struct bt_testing_workers *f, const bt_policy_trace_t *trace)
{
    if (rc != 0)
        return push_failure(L, policy, rc);
    if (bt_choice_is_nobody(choice)) {
        lua_pushnil(L);
        lua_pushliteral(L, "it returned nil");
        return 2;
    }
    push_pair(L, &choice->first);
    if (choice->first.kind != BT_PLAN_NONE) {
        lua_pushstring(L, bt_plan_kind_name(choice->first.kind));
        lua_setfield(L, -2, "kind");
    }
    lua_createtable(L, (int) choice->alternate_count, 0);
    for (unsigned i = 0; i < choice->alternate_count; i++) {
        push_pair(L, &choice->alternates[i]);
        lua_rawseti(L, -2, (int) i + 1);
    }
    lua_setfield(L, -2, "alternates");
    push_hints(L, &choice->hints);
    push_scores(L, f, trace);
    return 1;
}

static enum bt_scope scope_of(lua_State *L, bt_str_t name)
{
    for (int scope = 0; name.p != NULL && scope <= BT_SCOPE_PROCESS; scope++)
        if (bt_str_eq(name, bt_str(bt_scope_name((enum bt_scope) scope))))
            return (enum bt_scope) scope;
    luaL_error(L, "unknown scope");
    return BT_SCOPE_PROCESS;
}

static const char *text_or(bt_str_t s, const char *otherwise)
{
    return s.p != NULL ? s.p : otherwise;
}

struct failed {
    bt_policy_failure_t failure;
    bt_worker_t *tried[TRIED_MAX];
};

static const bt_worker_t *kept(lua_State *L, const struct bt_testing_workers *f, int idx,
                               const char *side)
{
    const bt_worker_t *w = NULL;

    lua_getfield(L, idx, "keep");
    if (lua_istable(L, -1)) {
        lua_getfield(L, -1, side);
        if (!lua_isnil(L, -1))
            w = bt_testing_worker(L, f, lua_gettop(L));
        lua_pop(L, 1);
    }
    lua_pop(L, 1);
    return w;
}

/* {scope, name, leg, status, attempt, keep = {prefill or decode = name}}, {tried name...} at 4, 5 */
static void read_failure(lua_State *L, const struct bt_testing_workers *f, struct failed *out)
{
    bt_policy_failure_t *failure = &out->failure;

    luaL_checktype(L, 4, LUA_TTABLE);
    luaL_checktype(L, 5, LUA_TTABLE);
    *failure = (bt_policy_failure_t){.tried = out->tried};
    failure->scope = scope_of(L, bt_testing_member(L, 4, "scope"));
    failure->name = text_or(bt_testing_member(L, 4, "name"), "reset");
    failure->leg = text_or(bt_testing_member(L, 4, "leg"), "decode");
    failure->status = (unsigned) bt_testing_number(L, 4, "status", 0);
    failure->attempt = (unsigned) bt_testing_number(L, 4, "attempt", 2);
    failure->kept_prefill = kept(L, f, 4, "prefill");
    failure->kept_decode = kept(L, f, 4, "decode");
    for (int i = 1; i <= (int) lua_objlen(L, 5) && i <= TRIED_MAX; i++) {
        lua_rawgeti(L, 5, i);
        out->tried[failure->tried_count++] = bt_testing_worker(L, f, lua_gettop(L));
        lua_pop(L, 1);
    }
}

/* policy:plan(workers[, req[, failure, tried]]) -> {prefill, decode} or {worker}, names, with kind, ranks, alternates, hints, scores; or
 * nil, message. The last two as in fallback: it is asked again, and the view is the spec's to cut. */
static int policy_plan(lua_State *L)
{
    bt_policy_t *policy = bt_testing_policy_check(L);
    const struct bt_testing_workers *f = bt_testing_workers_check(L, 2);
    const bool is_again = !lua_isnoneornil(L, 4);
    bt_policy_view_t view = bt_testing_view(f);
    const struct bt_testing_request *r;
    bt_policy_request_t req;
    bt_choice_t choice = {0};
    struct failed failed;
    int rc;

    if (is_again)
        read_failure(L, f, &failed);
    r = request_at(L, policy, 3);
    req = r->req;
    req.is_counted = is_again;
    rc = is_again
             ? bt_policy_plan_again(policy, BT_POLICY_BOTH, &req, &view, &failed.failure, &choice)
             : bt_policy_plan(policy, BT_POLICY_BOTH, &req, &view, &choice);
    bt_testing_raise_mistake(L);
    return push_choice(L, policy, rc, &choice, f, &r->trace);
}

static int plan_late(lua_State *L, enum bt_policy_part part)
{
    bt_policy_t *policy = bt_testing_policy_check(L);
    const struct bt_testing_workers *f = bt_testing_workers_check(L, 2);
    bt_worker_t *partner = bt_testing_worker(L, f, 4);
    const unsigned attempt = (unsigned) luaL_optinteger(L, 5, 1);
    bt_policy_view_t view = bt_testing_view(f);
    const struct bt_testing_request *r = request_at(L, policy, 3);
    bt_policy_request_t req = r->req;
    bt_choice_t choice = {0};
    int rc;

    req.is_counted = true;
    rc = bt_policy_plan_late(policy, part, &req, &view, partner, attempt, &choice);
    bt_testing_raise_mistake(L);
    return push_choice(L, policy, rc, &choice, f, &r->trace);
}

/* policy:plan_decode(workers, req, prefill[, attempt]) -> as plan */
static int policy_plan_decode(lua_State *L)
{
    return plan_late(L, BT_POLICY_DECODE);
}

/* policy:plan_prefill(workers, req, decode[, attempt]) -> as plan */
static int policy_plan_prefill(lua_State *L)
{
    return plan_late(L, BT_POLICY_PREFILL);
}

/* policy:fallback(workers, req, failure, tried) -> as plan */
static int policy_fallback(lua_State *L)
{
    bt_policy_t *policy = bt_testing_policy_check(L);
    const struct bt_testing_workers *f = bt_testing_workers_check(L, 2);
    bt_policy_view_t view = bt_testing_view(f);
    const struct bt_testing_request *r;
    bt_policy_request_t req;
    bt_choice_t choice = {0};
    struct failed failed;
    int rc;

    read_failure(L, f, &failed);
    r = request_at(L, policy, 3);
    req = r->req;
    req.is_counted = true;
    rc = bt_policy_fallback(policy, &req, &view, &failed.failure, &choice);
    bt_testing_raise_mistake(L);
    return push_choice(L, policy, rc, &choice, f, &r->trace);
}

/* policy:recompute(workers, req, {scope, name, leg, status, made, left, replays}, {tried name...}) -> true or false; nil, message when
 * it failed */
static int policy_recompute(lua_State *L)
{
    bt_policy_t *policy = bt_testing_policy_check(L);
    const struct bt_testing_workers *f = bt_testing_workers_check(L, 2);
    const struct bt_testing_request *r;
    struct failed failed;
    bool may = true;
    int rc;

    read_failure(L, f, &failed);
    failed.failure.made = (uint64_t) bt_testing_number(L, 4, "made", 0);
    failed.failure.left = (uint64_t) bt_testing_number(L, 4, "left", 0);
    failed.failure.replays = (unsigned) bt_testing_number(L, 4, "replays", 0);
    r = request_at(L, policy, 3);
    rc = bt_policy_recompute(policy, &r->req, &failed.failure, &may);
    bt_testing_raise_mistake(L);
    if (rc != 0 && rc != BT_E_AGAIN)
        return push_failure(L, policy, rc);
    lua_pushboolean(L, may);
    return 1;
}

/* ---- the hooks that may wait ---- */

/* policy:admit(req) -> true and the factors of limits that it gave, or {status, retry_after, reason}; or nil, message */
static int policy_admit(lua_State *L)
{
    bt_policy_t *policy = bt_testing_policy_check(L);
    const struct bt_testing_request *r = request_at(L, policy, 2);
    bt_policy_run_t run = {0};
    int rc = bt_testing_drive(L, &run, bt_policy_admit(policy, &run, &r->req));

    if (rc != 0)
        return push_failure(L, policy, rc);
    if (run.admission.status == 0) {
        lua_pushboolean(L, 1);
        bt_plain_push(L, run.admission.limits);
        bt_value_free(run.admission.limits);
        return 2;
    }
    lua_newtable(L);
    lua_pushinteger(L, (lua_Integer) run.admission.status);
    lua_setfield(L, -2, "status");
    if (run.admission.retry_after_s != 0) {
        lua_pushinteger(L, (lua_Integer) run.admission.retry_after_s);
        lua_setfield(L, -2, "retry_after");
    }
    lua_pushstring(L, run.admission.reason);
    lua_setfield(L, -2, "reason");
    return 1;
}

static void set_word(lua_State *L, const char *key, const char *word)
{
    if (word[0] == '\0')
        return;
    lua_pushstring(L, word);
    lua_setfield(L, -2, key);
}

/* policy:route(req) -> {pool, class, key}, what it said of these; or nil, message. As in the gateway, req has the class from
 * then on, and the key is its session. */
static int policy_route(lua_State *L)
{
    bt_policy_t *policy = bt_testing_policy_check(L);
    const struct bt_testing_request *r = request_at(L, policy, 2);
    bt_policy_run_t run = {0};
    int rc = bt_testing_drive(L, &run, bt_policy_route(policy, &run, &r->req));

    if (rc != 0)
        return push_failure(L, policy, rc);
    lua_pushvalue(L, 2);
    set_word(L, "class", run.direction.klass);
    set_word(L, "session", run.direction.key);
    lua_newtable(L);
    set_word(L, "pool", run.direction.pool);
    set_word(L, "class", run.direction.klass);
    set_word(L, "key", run.direction.key);
    return 1;
}

static void set_count(lua_State *L, const char *key, uint64_t count)
{
    if (count == 0)
        return;
    lua_pushnumber(L, (lua_Number) count);
    lua_setfield(L, -2, key);
}

/* policy:enqueue(req) -> {class, key, cost, weight, timeout_ms}, what it said of these; or nil, message */
static int policy_enqueue(lua_State *L)
{
    bt_policy_t *policy = bt_testing_policy_check(L);
    const struct bt_testing_request *r = request_at(L, policy, 2);
    bt_policy_queueing_t queueing = {.weight = 0};
    const int rc = bt_policy_enqueue(policy, &r->req, &queueing);

    bt_testing_raise_mistake(L);
    if (rc != 0 && rc != BT_E_AGAIN)
        return push_failure(L, policy, rc);
    lua_newtable(L);
    set_word(L, "class", queueing.klass);
    set_word(L, "key", queueing.key);
    set_count(L, "cost", queueing.cost);
    set_count(L, "weight", queueing.weight);
    set_count(L, "timeout_ms", queueing.timeout_ms);
    return 1;
}

/* policy:tick(now_ms or nil, workers) -> true; or nil, message */
static int policy_tick(lua_State *L)
{
    bt_policy_t *policy = bt_testing_policy_check(L);
    lua_Number at_ms = luaL_optnumber(L, 2, now_ms());
    bt_policy_view_t view = bt_testing_view(bt_testing_workers_check(L, 3));
    bt_policy_run_t run = {0};
    int rc = bt_testing_drive(L, &run, bt_policy_tick(policy, &run, (uint64_t) at_ms, &view));

    if (rc != 0)
        return push_failure(L, policy, rc);
    lua_pushboolean(L, 1);
    return 1;
}

/* ---- observe, handover ---- */

static void read_event(lua_State *L, int idx, bt_policy_event_t *event)
{
    *event = (bt_policy_event_t){
        .kind = text_or(bt_testing_member(L, idx, "kind"), "finished"),
        .at_ms = (uint64_t) bt_testing_number(L, idx, "at_ms", now_ms()),
        .prefill = (uint64_t) bt_testing_number(L, idx, "prefill", 0),
        .decode = (uint64_t) bt_testing_number(L, idx, "decode", 0),
        .model = bt_testing_member(L, idx, "model"),
        .session = bt_testing_member(L, idx, "session"),
        .tenant = bt_testing_member(L, idx, "tenant"),
        .status = (unsigned) bt_testing_number(L, idx, "status", 0),
        .failure = bt_testing_member(L, idx, "failure").p,
        .scope = bt_testing_member(L, idx, "scope").p,
        .prompt_tokens = (uint64_t) bt_testing_number(L, idx, "prompt_tokens", 0),
        .cached_tokens = (uint64_t) bt_testing_number(L, idx, "cached_tokens", 0),
        .output_tokens = (uint64_t) bt_testing_number(L, idx, "output_tokens", 0),
        .ttft_ms = bt_testing_number(L, idx, "ttft_ms", 0),
        .total_ms = bt_testing_number(L, idx, "total_ms", 0),
    };
    lua_getfield(L, idx, "kept");
    for (; lua_istable(L, -1) && event->kept_count < BT_POLICY_KEPT_MAX; event->kept_count++) {
        lua_rawgeti(L, -1, (int) event->kept_count + 1);
        const bool is_last = lua_isnil(L, -1);
        event->kept[event->kept_count] = lua_tonumber(L, -1);
        lua_pop(L, 1);
        if (is_last)
            break;
    }
    lua_pop(L, 1);
}

/* policy:kept(req) -> what its ctx.vars.kept holds, a list of numbers, or nil: for the event that observe gets */
static int policy_kept(lua_State *L)
{
    const bt_policy_t *policy = bt_testing_policy_check(L);
    const struct bt_testing_request *r = request_at(L, policy, 2);
    double kept[BT_POLICY_KEPT_MAX];
    const unsigned count = r->req.vars != NULL ? bt_policy_vars_kept(r->req.vars, kept) : 0;

    if (count == 0)
        return 0;
    lua_createtable(L, (int) count, 0);
    for (unsigned i = 0; i < count; i++) {
        lua_pushnumber(L, kept[i]);
        lua_rawseti(L, -2, (int) i + 1);
    }
    return 1;
}

/* policy:observe{event...} -> true; or nil, message. kind is "finished" and at_ms now where they are not said. */
static int policy_observe(lua_State *L)
{
    bt_policy_t *policy = bt_testing_policy_check(L);
    bt_policy_event_t *events;
    unsigned count;
    int rc;

    luaL_checktype(L, 2, LUA_TTABLE);
    count = (unsigned) lua_objlen(L, 2);
    luaL_argcheck(L, count <= EVENTS_MAX, 2, "at most 4096 events");
    events = lua_newuserdata(L, (count + 1) * sizeof(*events));
    for (unsigned i = 0; i < count; i++) {
        lua_rawgeti(L, 2, (int) i + 1);
        luaL_checktype(L, -1, LUA_TTABLE);
        read_event(L, lua_gettop(L), &events[i]);
        lua_pop(L, 1);
    }
    rc = bt_policy_observe(policy, events, count);
    bt_testing_raise_mistake(L);
    if (rc != 0)
        return push_failure(L, policy, rc);
    lua_pushboolean(L, 1);
    return 1;
}

/* policy:handover() -> what start of the next generation gets as old, or nil; nil, message when it failed */
static int policy_handover(lua_State *L)
{
    bt_policy_t *policy = bt_testing_policy_check(L);
    bt_value_t *data = NULL;
    int rc = bt_policy_handover(policy, &data);

    if (rc != 0)
        return push_failure(L, policy, rc);
    bt_plain_push(L, data);
    bt_value_free(data);
    return 1;
}

const luaL_Reg bt_testing_policy_methods[] = {{"plan", policy_plan},
                                              {"plan_decode", policy_plan_decode},
                                              {"plan_prefill", policy_plan_prefill},
                                              {"fallback", policy_fallback},
                                              {"recompute", policy_recompute},
                                              {"admit", policy_admit},
                                              {"route", policy_route},
                                              {"enqueue", policy_enqueue},
                                              {"observe", policy_observe},
                                              {"tick", policy_tick},
                                              {"handover", policy_handover},
                                              {"kept", policy_kept},
                                              {NULL, NULL}};
