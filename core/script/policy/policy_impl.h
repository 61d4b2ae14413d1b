/* policy_impl.h - what the files behind policy.h share. Private to core/script.
 *
 * Owner: one bt_policy_t, one loop.
 * Life:  as the policy; `call` only while a hook runs.
 * Flow:  policy.c loads, hooks.c calls, policy_run.c those that may wait, policy_choice.c and policy_run_read.c read the
 *        answer, renew.c counts what went wrong.
 * Cost:  see policy.h.
 */
#ifndef BT_SCRIPT_POLICY_IMPL_H
#define BT_SCRIPT_POLICY_IMPL_H

#include "script/policy/policy.h"
#include "script/view/state.h"

/* ---- policy.c ---- */
extern const char *const bt_policy_members[]; /* of a policy's table, NULL-terminated */

/* ---- hooks.c ---- */
/* Keeps the hooks of the policy's table at index 1, and opens ctx. Raise. */
void bt_hooks_read(lua_State *L, bt_policy_t *policy);
void bt_hooks_open(lua_State *L, bt_policy_t *policy);
/* Calls the function under `args` values of the stack as this hook, within its budget; nothing is counted. */
enum bt_vm_end bt_hook_run(bt_policy_t *policy, enum bt_policy_hook hook, int args, char *err,
                           size_t err_size);
/* Calls the function `ref` as this hook, with what `call` says; failures are counted. 0 or BT_E_POLICY. */
int bt_hook_call(bt_policy_t *policy, enum bt_policy_hook hook, int ref);
/* ctx.vars becomes that of call.req. Raises. */
void bt_ctx_take_vars(lua_State *L, bt_policy_t *policy);
/* ctx.params and ctx.state; with `old`, which may be NULL. BT_E_POLICY. */
int bt_hooks_start(bt_policy_t *policy, const bt_value_t *old, char *err, size_t err_size);

/* ---- policy_run.c ---- */
void bt_runs_open(lua_State *L, bt_policy_t *policy);
/* Runs start to its end; call.old is set. BT_E_POLICY. */
int bt_run_start(bt_policy_t *policy, char *err, size_t err_size);
uint64_t bt_policy_next_epoch(void);

/* ---- policy_run_read.c ---- */
/* Reads what the hook returned, at the top of the stack, into the run. Raises. */
void bt_run_read(lua_State *L, bt_policy_t *policy, bt_policy_run_t *run);
/* Reads what enqueue returned, at the top of the stack, into call.queueing. Raises. */
void bt_queueing_read(lua_State *L, bt_policy_t *policy);
/* Pushes what resumes the hook: one value to three. */
int bt_run_push_answer(lua_State *L, const bt_hook_op_t *hook_op, const bt_hook_answer_t *answer);

/* ---- renew.c ---- */
/* False while the policy has no VM that may be used; puts a new one in its place when it is ready. */
bool bt_policy_is_ready(bt_policy_t *policy);
/* Tidies up after a failed call. */
void bt_policy_failed(bt_policy_t *policy, enum bt_vm_end end);
void bt_renewal_end(bt_policy_t *policy);

/* ---- policy_choice.c ---- */
void bt_choice_open(lua_State *L, bt_policy_t *policy);
/* Reads the hook's answer at idx into call.choice. Raises. */
void bt_choice_read(lua_State *L, bt_policy_t *policy, int idx);

#endif
