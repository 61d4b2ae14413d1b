/* policy_run.h - hooks that may wait: start, admit, route and tick.
 *
 * Owner: the run is its caller's memory (a request's, a dispatcher's). Policy, req, view and vars must live until it is over.
 * Life:  init -> bt_policy_admit / _route / _tick -> [run->hook_op is served -> bt_policy_resume] ... -> over; bt_policy_run_drop
 *        gives it up at any moment, and is owed after every start that did not return an error.
 * Flow:  such a hook is a coroutine: baton.sleep, baton.http and baton.shared write what they want into run->hook_op and yield. Nothing here
 *        waits: generation/wait.h serves operations on a loop, or blocks for start on a thread of its own.
 * Cost:  a coroutine a call, nothing for policies that have no such hook. Every step has the hook's CPU budget.
 */
#ifndef BT_SCRIPT_POLICY_RUN_H
#define BT_SCRIPT_POLICY_RUN_H

#include "script/policy/policy.h"

/* 0: over, what it answered is in run. 1: run->hook_op is to be served. BT_E_AGAIN: no such hook. BT_E_POLICY: it failed, see
 * bt_policy_error. req->vars must be set for admit and route. */
int bt_policy_admit(bt_policy_t *policy, bt_policy_run_t *run, const bt_policy_request_t *req);
int bt_policy_route(bt_policy_t *policy, bt_policy_run_t *run, const bt_policy_request_t *req);
int bt_policy_tick(bt_policy_t *policy, bt_policy_run_t *run, uint64_t now_ms,
                   const bt_policy_view_t *view);
/* The same answers. After a VM was renewed meanwhile: BT_E_POLICY. */
int bt_policy_resume(bt_policy_run_t *run, const bt_hook_answer_t *answer);
void bt_policy_run_drop(bt_policy_run_t *run); /* zeroed or over: nothing */
/* Before the policy is let go of. Zeroed: nothing. */
void bt_policy_vars_drop(bt_policy_vars_t *vars);
/* ctx.vars.kept, a list of up to BT_POLICY_KEPT_MAX numbers, which observe gets back as event.kept. How many. */
unsigned bt_policy_vars_kept(const bt_policy_vars_t *vars, double *kept_p);

/* What hooks that cannot wait want of the store goes to send, which copies what it needs; nothing comes back. On the policy's loop,
 * before its first hook there; NULL = it is forgotten. */
void bt_policy_set_sender(bt_policy_t *policy,
                          void (*send)(void *user, const bt_hook_op_t *hook_op), void *user);

#endif
