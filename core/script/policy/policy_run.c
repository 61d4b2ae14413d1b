/* How it works: a hook that may wait is a coroutine. step() runs on the VM's main thread, under the watchdog like every hook:
 * it makes the coroutine, or looks the waiting one up, and resumes it. baton.sleep, baton.http (hook_op_api.c) and baton.shared
 * (shared_api.c) fill run->hook_op
 * and yield; then step() is over, and the budget's clock stands still until the next one.
 *
 *     begin -> step -> returned: read the answer, over
 *               ^ \--> raised: raised again on the main thread, so that one place counts failures; over
 *               |  \-> yielded: run->hook_op
 *               |           |  generation/wait.c, or spec->serve for start
 *               +- resume <-+
 *
 * Values for the coroutine are made on the main thread and moved: an error on a coroutine that nobody has resumed would have no
 * handler. The watchdog's hook is the whole state's, so it stops coroutines too.
 *
 * Many requests may wait in one VM, and there is one ctx and one req: what they show is set before every step. */
#include "script/policy/policy_run.h"
#include "script/policy/policy_impl.h"

#include "base/err.h"
#include "script/value/plain.h"

#include <stdio.h>

/* ---- one step ---- */

uint64_t bt_policy_next_epoch(void)
{
    static _Atomic uint64_t last;

    return atomic_fetch_add_explicit(&last, 1, memory_order_relaxed) + 1;
}

static void make_vars(lua_State *L, bt_policy_t *policy)
{
    bt_policy_vars_t *vars = policy->call.req != NULL ? policy->call.req->vars : NULL;

    if (vars == NULL || (vars->policy == policy && vars->epoch == policy->epoch))
        return;
    bt_policy_vars_drop(vars);
    lua_newtable(L);
    vars->ref = luaL_ref(L, LUA_REGISTRYINDEX);
    vars->epoch = policy->epoch;
    vars->policy = policy;
}

/* The hook and its arguments; returns how many values that is. */
static int push_call(lua_State *L, const bt_policy_t *policy, int hook)
{
    bt_vm_push(L, policy->hook_refs[hook]);
    switch (hook) {
    case BT_HOOK_START:
        bt_vm_push(L, policy->params_ref);
        bt_plain_push(L, policy->call.old);
        return 3;
    case BT_HOOK_TICK:
        lua_pushnumber(L, (lua_Number) policy->call.tick_ms);
        bt_vm_push(L, policy->view_ref);
        bt_vm_push(L, policy->ctx_ref);
        return 4;
    default:
        bt_vm_push(L, policy->req_ref);
        bt_vm_push(L, policy->ctx_ref);
        return 3;
    }
}

/* Moves what the coroutine needs onto it and runs it until it returns, raises or yields. */
static int resume(lua_State *L, lua_State *co, bt_policy_t *policy)
{
    bt_policy_run_t *run = policy->call.run;
    const bt_hook_answer_t *answer = policy->call.answer;
    int args = answer != NULL ? bt_run_push_answer(L, &run->hook_op, answer)
                              : push_call(L, policy, run->hook);

    run->hook_op.kind = BT_HOOK_OP_NONE;
    lua_settop(co, 0); /* the strings of the operation */
    lua_xmove(L, co, args);
    return lua_resume(co, answer != NULL ? args : args - 1);
}

static int step(lua_State *L)
{
    bt_policy_t *policy = bt_policy_of(L);
    bt_policy_run_t *run = policy->call.run;
    lua_State *co;
    int rc;

    if (run->co_ref == LUA_NOREF) {
        (void) lua_newthread(L);
        run->co_ref = luaL_ref(L, LUA_REGISTRYINDEX);
        make_vars(L, policy);
    }
    bt_vm_push(L, run->co_ref);
    co = lua_tothread(L, -1);
    bt_ctx_take_vars(L, policy);
    rc = resume(L, co, policy);
    if (rc == LUA_YIELD)
        return 0;
    run->hook_op.kind = BT_HOOK_OP_NONE;
    if (rc != 0) {
        bt_vm_of(L)->is_full = rc == LUA_ERRMEM;
        lua_xmove(co, L, 1);
        return lua_error(L);
    }
    lua_settop(co, 1);
    lua_xmove(co, L, 1);
    bt_run_read(L, policy, run);
    return 0;
}

/* ---- runs ---- */

void bt_policy_run_drop(bt_policy_run_t *run)
{
    bt_policy_t *policy = run->policy;

    if (policy != NULL && run->epoch == policy->epoch)
        luaL_unref(policy->vm.L, LUA_REGISTRYINDEX, run->co_ref); /* LUA_NOREF: nothing */
    run->policy = NULL;
    run->co_ref = LUA_NOREF;
    run->hook_op.kind = BT_HOOK_OP_NONE;
}

void bt_policy_vars_drop(bt_policy_vars_t *vars)
{
    if (vars->policy != NULL && vars->epoch == vars->policy->epoch)
        luaL_unref(vars->policy->vm.L, LUA_REGISTRYINDEX, vars->ref);
    *vars = (bt_policy_vars_t){0};
}

/* Allocates nothing, so nothing can be raised. */
unsigned bt_policy_vars_kept(const bt_policy_vars_t *vars, double *kept_p)
{
    const bt_policy_t *policy = vars->policy;
    unsigned count = 0;

    if (policy == NULL || vars->epoch != policy->epoch)
        return 0;
    lua_State *L = policy->vm.L;
    bt_vm_push(L, vars->ref);
    bt_vm_push(L, policy->kept_ref);
    lua_rawget(L, -2);
    for (; lua_istable(L, -1) && count < BT_POLICY_KEPT_MAX; count++) {
        lua_rawgeti(L, -1, (int) count + 1);
        const bool is_number = lua_type(L, -1) == LUA_TNUMBER;
        if (is_number)
            kept_p[count] = lua_tonumber(L, -1);
        lua_pop(L, 1);
        if (!is_number)
            break;
    }
    lua_pop(L, 2);
    return count;
}

void bt_policy_set_sender(bt_policy_t *policy,
                          void (*send)(void *user, const bt_hook_op_t *hook_op), void *user)
{
    policy->send = send;
    policy->send_user = user;
}

static int advance(bt_policy_run_t *run, const bt_hook_answer_t *answer)
{
    bt_policy_t *policy = run->policy;
    int rc;

    policy->call.run = run;
    policy->call.answer = answer;
    policy->call.req = run->req;
    policy->call.view = run->view;
    policy->call.failure = NULL;
    policy->call.tick_ms = run->tick_ms;
    rc = bt_hook_call(policy, (enum bt_policy_hook) run->hook, policy->step_ref);
    policy->call.run = NULL;
    policy->call.answer = NULL;
    if (rc == 0 && run->hook_op.kind != BT_HOOK_OP_NONE)
        return 1;
    bt_policy_run_drop(run);
    return rc;
}

static int begin(bt_policy_t *policy, bt_policy_run_t *run, enum bt_policy_hook hook,
                 const bt_policy_request_t *req)
{
    *run = (bt_policy_run_t){.hook = (int) hook, .req = req, .co_ref = LUA_NOREF};
    if (policy->hook_refs[hook] == LUA_NOREF)
        return BT_E_AGAIN;
    if (!bt_policy_is_ready(policy))
        return BT_E_POLICY;
    run->policy = policy;
    run->epoch = policy->epoch;
    return 0;
}

int bt_policy_admit(bt_policy_t *policy, bt_policy_run_t *run, const bt_policy_request_t *req)
{
    int rc = begin(policy, run, BT_HOOK_ADMIT, req);

    return rc == 0 ? advance(run, NULL) : rc;
}

int bt_policy_route(bt_policy_t *policy, bt_policy_run_t *run, const bt_policy_request_t *req)
{
    int rc = begin(policy, run, BT_HOOK_ROUTE, req);

    return rc == 0 ? advance(run, NULL) : rc;
}

int bt_policy_tick(bt_policy_t *policy, bt_policy_run_t *run, uint64_t now_ms,
                   const bt_policy_view_t *view)
{
    int rc = begin(policy, run, BT_HOOK_TICK, NULL);

    run->view = view;
    run->tick_ms = now_ms;
    return rc == 0 ? advance(run, NULL) : rc;
}

int bt_policy_resume(bt_policy_run_t *run, const bt_hook_answer_t *answer)
{
    bt_policy_t *policy = run->policy;
    bool is_ready;

    if (policy == NULL)
        return BT_E_INVAL;
    is_ready = bt_policy_is_ready(policy);
    if (is_ready && run->epoch == policy->epoch)
        return advance(run, answer);
    if (is_ready)
        snprintf(policy->error, sizeof(policy->error), "%s: the VM was made anew while %s waited",
                 policy->path, bt_hook_name((enum bt_policy_hook) run->hook));
    policy->stats.errors++;
    bt_policy_run_drop(run);
    return BT_E_POLICY;
}

/* ---- start ---- */

/* BT_VM_DONE: it is over, or run->hook_op says what it waits for. */
static enum bt_vm_end step_start(bt_policy_t *policy, bt_policy_run_t *run,
                                 const bt_hook_answer_t *answer, char *why, size_t why_size)
{
    enum bt_vm_end end;

    policy->call.run = run;
    policy->call.answer = answer;
    bt_vm_push(policy->vm.L, policy->step_ref);
    end = bt_hook_run(policy, BT_HOOK_START, 0, why, why_size);
    policy->call.run = NULL;
    policy->call.answer = NULL;
    return end;
}

/* Its own time is over once it was told so: the next wait is one too many. */
static enum bt_vm_end run_start(bt_policy_t *policy, bt_policy_run_t *run, char *why,
                                size_t why_size)
{
    bt_hook_answer_t answer = {0};
    enum bt_vm_end end = step_start(policy, run, NULL, why, why_size);

    while (end == BT_VM_DONE && run->hook_op.kind != BT_HOOK_OP_NONE) {
        int rc;

        if (answer.rc == BT_E_TOTAL_TIMEOUT) {
            snprintf(why, why_size, "start wanted to wait again when its time was over");
            return BT_VM_ERROR;
        }
        answer = (bt_hook_answer_t){0};
        rc = policy->serve(policy->serve_user, &run->hook_op, &answer);
        if (rc < 0)
            answer = (bt_hook_answer_t){.rc = rc};
        end = step_start(policy, run, &answer, why, why_size);
    }
    return end;
}

int bt_run_start(bt_policy_t *policy, char *err, size_t err_size)
{
    bt_policy_run_t run = {
        .policy = policy, .hook = BT_HOOK_START, .epoch = policy->epoch, .co_ref = LUA_NOREF};
    char why[400];
    enum bt_vm_end end = run_start(policy, &run, why, sizeof(why));

    bt_policy_run_drop(&run);
    if (end == BT_VM_DONE)
        return 0;
    snprintf(err, err_size, "%s%s%s", strstr(why, ".lua:") == NULL ? policy->path : "",
             strstr(why, ".lua:") == NULL ? ": " : "", why);
    return BT_E_POLICY;
}

/* ---- opening ---- */

void bt_runs_open(lua_State *L, bt_policy_t *policy)
{
    lua_pushcfunction(L, step);
    policy->step_ref = luaL_ref(L, LUA_REGISTRYINDEX);
    lua_pushliteral(L, "kept");
    policy->kept_ref = luaL_ref(L, LUA_REGISTRYINDEX);
    /* The first unref makes the registry's list of free places, and that may need memory; the later ones, which nothing
     * protects, do not. */
    lua_newtable(L);
    luaL_unref(L, LUA_REGISTRYINDEX, luaL_ref(L, LUA_REGISTRYINDEX));
}
