/* How it works: a call is one lua_pcall of enter() under the watchdog; enter() pushes what the hook gets, calls it and reads
 * the answer inside the protection. Lists of workers are made in a protected call of their own, and only when the view is a
 * new one: that is our work, and not taken from the policy's time.
 *
 * The hooks that are called here are pure: none may wait. Those that may are coroutines (policy_run.c), and share budgets, the
 * view's lists and the counting of failures with these. */
#include "script/policy/policy_impl.h"

#include "base/clock.h"
#include "base/flight.h"
#include "base/rand.h"
#include "script/value/plain.h"
#include "script/view/view.h"

#include <stdio.h>

/* ---- what hooks get ---- */

static void set_id(lua_State *L, const char *key, const bt_worker_t *w)
{
    if (w == NULL)
        return;
    lua_pushnumber(L, (lua_Number) w->id);
    lua_setfield(L, -2, key);
}

static void set_number(lua_State *L, const char *key, double value)
{
    if (value == 0)
        return;
    lua_pushnumber(L, value);
    lua_setfield(L, -2, key);
}

static void push_failure(lua_State *L, const bt_policy_failure_t *failure)
{
    lua_createtable(L, 0, 5);
    lua_pushstring(L, bt_scope_name(failure->scope));
    lua_setfield(L, -2, "scope");
    lua_pushstring(L, failure->name);
    lua_setfield(L, -2, "name");
    lua_pushstring(L, failure->leg);
    lua_setfield(L, -2, "leg");
    lua_pushinteger(L, (lua_Integer) failure->status);
    lua_setfield(L, -2, "status");
    lua_createtable(L, (int) failure->tried_count, 0);
    for (unsigned i = 0; i < failure->tried_count; i++) {
        lua_pushnumber(L, (lua_Number) failure->tried[i]->id);
        lua_rawseti(L, -2, (int) i + 1);
    }
    lua_setfield(L, -2, "tried");
    if (bt_policy_of(L)->call.hook == BT_HOOK_RECOMPUTE) {
        set_number(L, "left", (double) failure->left);
        lua_pushnumber(L, (lua_Number) failure->made);
        lua_setfield(L, -2, "made");
        lua_pushinteger(L, (lua_Integer) failure->replays);
        lua_setfield(L, -2, "replays");
    }
    if (failure->kept_prefill == NULL && failure->kept_decode == NULL)
        return;
    lua_createtable(L, 0, 1);
    set_id(L, "prefill", failure->kept_prefill);
    set_id(L, "decode", failure->kept_decode);
    lua_setfield(L, -2, "keep");
}

static bool is_late(enum bt_policy_hook hook)
{
    return hook == BT_HOOK_PLAN_DECODE || hook == BT_HOOK_PLAN_PREFILL;
}

/* ctx.attempt and ctx.failure of plan, plan_decode and plan_prefill: touched by those that are asked again, and by the next. */
static void take_failure(lua_State *L, bt_policy_t *policy)
{
    const bt_policy_failure_t *failure = policy->call.failure;

    policy->has_failure = failure != NULL || policy->call.attempt > 1;
    bt_vm_push(L, policy->ctx_ref);
    lua_pushinteger(L, (lua_Integer) policy->call.attempt);
    lua_setfield(L, -2, "attempt");
    if (failure != NULL)
        push_failure(L, failure);
    else
        lua_pushnil(L);
    lua_setfield(L, -2, "failure");
    lua_pop(L, 1);
}

static void set_text(lua_State *L, const char *key, bt_str_t value)
{
    if (value.n == 0)
        return;
    bt_vm_push_str(L, value);
    lua_setfield(L, -2, key);
}

static void push_event(lua_State *L, const bt_policy_event_t *event)
{
    lua_createtable(L, 0, 15);
    set_text(L, "kind", bt_str(event->kind));
    set_number(L, "at_ms", (double) event->at_ms);
    set_number(L, "prefill", (double) event->prefill);
    set_number(L, "decode", (double) event->decode);
    set_text(L, "model", event->model);
    set_text(L, "session", event->session);
    set_text(L, "tenant", event->tenant);
    set_number(L, "status", event->status);
    set_text(L, "failure", bt_str(event->failure));
    set_text(L, "scope", bt_str(event->scope));
    set_number(L, "prompt_tokens", (double) event->prompt_tokens);
    set_number(L, "cached_tokens", (double) event->cached_tokens);
    set_number(L, "output_tokens", (double) event->output_tokens);
    set_number(L, "ttft_ms", event->ttft_ms);
    set_number(L, "total_ms", event->total_ms);
    if (event->kept_count == 0)
        return;
    lua_createtable(L, (int) event->kept_count, 0);
    for (unsigned i = 0; i < event->kept_count; i++) {
        lua_pushnumber(L, event->kept[i]);
        lua_rawseti(L, -2, (int) i + 1);
    }
    lua_setfield(L, -2, "kept");
}

static void push_events(lua_State *L, const bt_policy_event_t *events, unsigned count)
{
    lua_createtable(L, (int) count, 0);
    for (unsigned i = 0; i < count; i++) {
        push_event(L, &events[i]);
        lua_rawseti(L, -2, (int) i + 1);
    }
}

/* Of nobody, of another policy, of a VM that is gone: nil. */
void bt_ctx_take_vars(lua_State *L, bt_policy_t *policy)
{
    const bt_policy_request_t *req = policy->call.req;
    const bt_policy_vars_t *vars = req != NULL ? req->vars : NULL;

    if (!bt_policy_has_entry(policy))
        return;
    bt_vm_push(L, policy->ctx_ref);
    lua_pushliteral(L, "vars");
    if (vars != NULL && vars->policy == policy && vars->epoch == policy->epoch)
        bt_vm_push(L, vars->ref);
    else
        lua_pushnil(L);
    lua_rawset(L, -3);
    lua_pop(L, 1);
}

static void enter_handover(lua_State *L, bt_policy_t *policy)
{
    bt_vm_push(L, policy->ctx_ref);
    lua_call(L, 1, 1);
    if (!lua_isnil(L, -1))
        bt_plain_read(L, -1, "handover returned", &policy->call.data);
}

static void push_worker(lua_State *L, bt_policy_t *policy, bt_worker_t *w)
{
    bt_vm_push(L, policy->rows_ref);
    bt_row_push(L, policy, lua_gettop(L), w);
    lua_remove(L, -2);
}

static void enter_choice(lua_State *L, bt_policy_t *policy)
{
    const int before = lua_gettop(L);

    bt_vm_push(L, policy->req_ref);
    bt_vm_push(L, policy->view_ref);
    if (policy->call.hook == BT_HOOK_FALLBACK)
        push_failure(L, policy->call.failure);
    else if (is_late(policy->call.hook))
        push_worker(L, policy, policy->call.partner);
    bt_vm_push(L, policy->ctx_ref);
    lua_call(L, lua_gettop(L) - before, 1);
    bt_choice_read(L, policy, lua_gettop(L));
}

static void enter_recompute(lua_State *L, bt_policy_t *policy)
{
    bt_vm_push(L, policy->req_ref);
    push_failure(L, policy->call.failure);
    bt_vm_push(L, policy->ctx_ref);
    lua_call(L, 3, 1);
    if (!lua_isnil(L, -1) && !lua_isboolean(L, -1))
        luaL_error(L, "recompute returned a %s value; it must be true, false or nothing",
                   luaL_typename(L, -1));
    policy->call.may_recompute = lua_isnil(L, -1) || lua_toboolean(L, -1);
}

static void enter_enqueue(lua_State *L, bt_policy_t *policy)
{
    bt_vm_push(L, policy->req_ref);
    bt_vm_push(L, policy->ctx_ref);
    lua_call(L, 2, 1);
    bt_queueing_read(L, policy);
}

static int enter(lua_State *L)
{
    bt_policy_t *policy = bt_policy_of(L);
    enum bt_policy_hook hook = policy->call.hook;

    bt_ctx_take_vars(L, policy);
    if ((hook == BT_HOOK_PLAN || is_late(hook)) &&
        (policy->call.attempt > 1 || policy->has_failure))
        take_failure(L, policy);
    bt_vm_push(L, policy->hook_refs[hook]);
    switch (hook) {
    case BT_HOOK_HANDOVER:
        enter_handover(L, policy);
        break;
    case BT_HOOK_OBSERVE:
        push_events(L, policy->call.events, policy->call.event_count);
        bt_vm_push(L, policy->ctx_ref);
        lua_call(L, 2, 0);
        break;
    case BT_HOOK_RECOMPUTE:
        enter_recompute(L, policy);
        break;
    case BT_HOOK_ENQUEUE:
        enter_enqueue(L, policy);
        break;
    default:
        enter_choice(L, policy);
        break;
    }
    return 0;
}

static int refresh(lua_State *L)
{
    bt_view_refresh(L, bt_policy_of(L));
    return 0;
}

/* ---- calls ---- */

static void note_slow(bt_policy_t *policy, enum bt_policy_hook hook, enum bt_vm_end end)
{
    bt_flight_note(BT_FLIGHT_POLICY, policy->vm.watch.slow_us, "%s of policy %s%s",
                   bt_hook_name(hook), policy->name,
                   end == BT_VM_NO_TIME ? ", stopped over its budget" : "");
    policy->vm.watch.slow_us = 0;
}

static enum bt_vm_end run(bt_policy_t *policy, enum bt_policy_hook hook, int args, uint64_t now_us,
                          char *err, size_t err_size)
{
    enum bt_vm_end end;

    policy->call.hook = hook;
    end = bt_vm_run(&policy->vm, args, bt_hook_name(hook), bt_hook_budget_us(hook), now_us, err,
                    err_size);
    if (policy->vm.watch.slow_us != 0)
        note_slow(policy, hook, end);
    return end;
}

enum bt_vm_end bt_hook_run(bt_policy_t *policy, enum bt_policy_hook hook, int args, char *err,
                           size_t err_size)
{
    return run(policy, hook, args, bt_clock_us(), err, err_size);
}

static bool make_lists(bt_policy_t *policy)
{
    bt_vm_push(policy->vm.L, policy->refresh_ref);
    return bt_vm_call(&policy->vm, 0, policy->error, sizeof(policy->error)) == 0;
}

/* The collector's work for what was made is done here too, or the first calls would do it in steps. */
int bt_policy_prewarm(bt_policy_t *policy, const bt_policy_view_t *view)
{
    bool ready;

    policy->call.view = view;
    ready = bt_view_find(policy, view) || make_lists(policy);
    policy->call.view = NULL;
    lua_gc(policy->vm.L, LUA_GCCOLLECT, 0);
    return ready ? 0 : BT_E_NOMEM;
}

int bt_hook_call(bt_policy_t *policy, enum bt_policy_hook hook, int ref)
{
    const bt_policy_view_t *view = policy->call.view;
    enum bt_vm_end end = BT_VM_ERROR;
    uint64_t now_us;
    bool ready = true;

    if (!bt_policy_is_ready(policy))
        return BT_E_POLICY;
    now_us = bt_clock_us();
    policy->call.running = true;
    policy->call.serial++;
    policy->call.store_ops = 0;
    policy->call.now_ms = bt_policy_now_or(policy, now_us) / 1000;
    memset(&policy->call.choice, 0, sizeof(policy->call.choice));
    if (view != NULL && !bt_view_find(policy, view)) {
        ready = make_lists(policy);
        now_us = bt_clock_us();
    }
    if (ready) {
        bt_vm_push(policy->vm.L, ref);
        end = run(policy, hook, 0, now_us, policy->error, sizeof(policy->error));
    }
    policy->call.running = false;
    if (end == BT_VM_DONE)
        return 0;
    bt_policy_failed(policy, end);
    return BT_E_POLICY;
}

static int choose(bt_policy_t *policy, enum bt_policy_hook hook, enum bt_policy_part part,
                  const bt_policy_request_t *req, const bt_policy_view_t *view,
                  const bt_policy_failure_t *failure, unsigned attempt, bt_choice_t *choice_p)
{
    const bool is_seeded = req->trace != NULL && req->trace->seed != 0;
    bt_rand_state_t before;
    int rc;

    policy->call.part = part;
    policy->call.req = req;
    policy->call.view = view;
    policy->call.failure = failure;
    policy->call.attempt = failure != NULL ? failure->attempt : attempt;
    if (is_seeded)
        bt_rand_begin(&before, req->trace->seed + part);
    rc = bt_hook_call(policy, hook, policy->enter_ref);
    if (is_seeded)
        bt_rand_end(&before);
    if (rc == 0)
        *choice_p = policy->call.choice;
    return rc;
}

int bt_policy_plan(bt_policy_t *policy, enum bt_policy_part part, const bt_policy_request_t *req,
                   const bt_policy_view_t *view, bt_choice_t *choice_p)
{
    return choose(policy, BT_HOOK_PLAN, part, req, view, NULL, 1, choice_p);
}

int bt_policy_plan_again(bt_policy_t *policy, enum bt_policy_part part,
                         const bt_policy_request_t *req, const bt_policy_view_t *view,
                         const bt_policy_failure_t *failure, bt_choice_t *choice_p)
{
    return choose(policy, BT_HOOK_PLAN, part, req, view, failure, 1, choice_p);
}

int bt_policy_plan_late(bt_policy_t *policy, enum bt_policy_part part,
                        const bt_policy_request_t *req, const bt_policy_view_t *view,
                        bt_worker_t *partner, unsigned attempt, bt_choice_t *choice_p)
{
    const enum bt_policy_hook hook =
        part == BT_POLICY_DECODE ? BT_HOOK_PLAN_DECODE : BT_HOOK_PLAN_PREFILL;

    if (policy->hook_refs[hook] == LUA_NOREF)
        return BT_E_AGAIN;
    policy->call.partner = partner;
    return choose(policy, hook, part, req, view, NULL, attempt, choice_p);
}

int bt_policy_fallback(bt_policy_t *policy, const bt_policy_request_t *req,
                       const bt_policy_view_t *view, const bt_policy_failure_t *failure,
                       bt_choice_t *choice_p)
{
    if (policy->hook_refs[BT_HOOK_FALLBACK] == LUA_NOREF)
        return BT_E_AGAIN;
    return choose(policy, BT_HOOK_FALLBACK, BT_POLICY_BOTH, req, view, failure, 1, choice_p);
}

int bt_policy_recompute(bt_policy_t *policy, const bt_policy_request_t *req,
                        const bt_policy_failure_t *failure, bool *may_p)
{
    int rc;

    if (policy->hook_refs[BT_HOOK_RECOMPUTE] == LUA_NOREF)
        return BT_E_AGAIN;
    policy->call.req = req;
    policy->call.view = NULL;
    policy->call.failure = failure;
    rc = bt_hook_call(policy, BT_HOOK_RECOMPUTE, policy->enter_ref);
    if (rc == 0)
        *may_p = policy->call.may_recompute;
    return rc;
}

int bt_policy_enqueue(bt_policy_t *policy, const bt_policy_request_t *req,
                      bt_policy_queueing_t *queueing_p)
{
    int rc;

    if (policy->hook_refs[BT_HOOK_ENQUEUE] == LUA_NOREF)
        return BT_E_AGAIN;
    policy->call.req = req;
    policy->call.view = NULL;
    policy->call.failure = NULL;
    rc = bt_hook_call(policy, BT_HOOK_ENQUEUE, policy->enter_ref);
    if (rc == 0)
        *queueing_p = policy->call.queueing;
    return rc;
}

/* No request and no view: both refuse, because there is none to look at. */
static int call_alone(bt_policy_t *policy, enum bt_policy_hook hook)
{
    if (policy->hook_refs[hook] == LUA_NOREF)
        return BT_E_AGAIN;
    policy->call.req = NULL;
    policy->call.view = NULL;
    policy->call.failure = NULL;
    return bt_hook_call(policy, hook, policy->enter_ref);
}

int bt_policy_observe(bt_policy_t *policy, const bt_policy_event_t *events, unsigned count)
{
    policy->call.events = events;
    policy->call.event_count = count;
    return call_alone(policy, BT_HOOK_OBSERVE);
}

int bt_policy_handover(bt_policy_t *policy, bt_value_t **data_p)
{
    int rc = call_alone(policy, BT_HOOK_HANDOVER);

    if (rc == 0)
        *data_p = policy->call.data;
    else
        bt_value_free(policy->call.data);
    policy->call.data = NULL;
    return rc;
}

/* ---- ctx ---- */

static int unknown_param(lua_State *L)
{
    const bt_policy_t *policy = bt_policy_of(L);
    const char *names[BT_PARAMS_MAX + 1] = {NULL};

    for (unsigned i = 0; i < policy->params.count; i++)
        names[i] = policy->params.items[i].name;
    if (lua_type(L, 2) == LUA_TSTRING &&
        bt_params_find(&policy->params, lua_tostring(L, 2)) != NULL)
        return 0; /* declared, and neither set nor given a default */
    return bt_vm_unknown(L, "parameter", names, 2);
}

static int read_only(lua_State *L)
{
    return luaL_error(L, "params cannot be written");
}

static void push_meta(lua_State *L)
{
    lua_createtable(L, 0, 3);
    lua_pushboolean(L, 0);
    lua_setfield(L, -2, "__metatable");
}

/* An empty table in front of the values, or __newindex would not be asked. */
static void push_params(lua_State *L, const bt_params_t *params)
{
    lua_newtable(L);
    push_meta(L);
    lua_createtable(L, 0, (int) params->count);
    for (unsigned i = 0; i < params->count; i++) {
        bt_plain_push(L, params->items[i].value);
        lua_setfield(L, -2, params->items[i].name);
    }
    push_meta(L);
    lua_pushcfunction(L, unknown_param);
    lua_setfield(L, -2, "__index");
    lua_setmetatable(L, -2);
    lua_setfield(L, -2, "__index");
    lua_pushcfunction(L, read_only);
    lua_setfield(L, -2, "__newindex");
    lua_setmetatable(L, -2);
}

static int make_ctx(lua_State *L)
{
    bt_policy_t *policy = bt_policy_of(L);

    push_params(L, &policy->params);
    lua_pushvalue(L, -1);
    policy->params_ref = luaL_ref(L, LUA_REGISTRYINDEX);
    bt_vm_push(L, policy->ctx_ref);
    lua_insert(L, -2);
    lua_setfield(L, -2, "params");
    return 0;
}

int bt_hooks_start(bt_policy_t *policy, const bt_value_t *old, char *err, size_t err_size)
{
    int rc;

    lua_pushcfunction(policy->vm.L, make_ctx);
    if (bt_vm_call(&policy->vm, 0, err, err_size) != 0)
        return BT_E_POLICY;
    if (policy->hook_refs[BT_HOOK_START] == LUA_NOREF)
        return 0;
    policy->call.old = old;
    rc = bt_run_start(policy, err, err_size);
    policy->call.old = NULL;
    return rc;
}

/* ---- opening ---- */

void bt_hooks_read(lua_State *L, bt_policy_t *policy)
{
    policy->hook_refs[BT_HOOK_LOAD] = LUA_NOREF;
    for (enum bt_policy_hook hook = BT_HOOK_START; hook < BT_HOOK_COUNT; hook++) {
        policy->hook_refs[hook] = LUA_NOREF;
        lua_getfield(L, 1, bt_hook_name(hook));
        if (lua_isnil(L, -1) && hook != BT_HOOK_PLAN) {
            lua_pop(L, 1);
            continue;
        }
        if (!lua_isfunction(L, -1) || lua_iscfunction(L, -1))
            luaL_error(L, "%s must be a function", bt_hook_name(hook));
        policy->hook_refs[hook] = luaL_ref(L, LUA_REGISTRYINDEX);
    }
}

static int function_ref(lua_State *L, lua_CFunction fn)
{
    lua_pushcfunction(L, fn);
    return luaL_ref(L, LUA_REGISTRYINDEX);
}

void bt_hooks_open(lua_State *L, bt_policy_t *policy)
{
    policy->enter_ref = function_ref(L, enter);
    policy->refresh_ref = function_ref(L, refresh);
    lua_newtable(L);
    lua_newtable(L);
    lua_setfield(L, -2, "state");
    lua_pushinteger(L, 1);
    lua_setfield(L, -2, "attempt");
    policy->ctx_ref = luaL_ref(L, LUA_REGISTRYINDEX);
}
