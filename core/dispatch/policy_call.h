/* policy_call.h - what a request asks of its policies, and what goes wrong with them. Private to dispatch.
 *
 * Owner: the generation that the request pins.
 * Life:  until the first byte.
 * Flow:  request -> the VM of its pool or rule -> a choice.
 * Cost:  one call into Lua a plan.
 */
#ifndef BT_DISPATCH_POLICY_CALL_H
#define BT_DISPATCH_POLICY_CALL_H

#include "dispatch/task.h"

/* policy_call.c */
const struct bt_pool_policies *bt_policy_call_policies(
    bt_request_t *r); /* NULL = none for its pool */
void bt_policy_call_rules(bt_request_t *r);
bt_policy_request_t bt_policy_call_describe(bt_request_t *r); /* borrows from r */
int bt_policy_call_plan(bt_request_t *r, const bt_policy_view_t *view, bt_choice_t *choice_p);
int bt_policy_call_fallback(bt_task_t *task, const bt_failure_t *f, const bt_policy_view_t *view,
                            bt_choice_t *choice_p);
void bt_policy_call_shadow(bt_request_t *r, const bt_policy_view_t *view, const bt_choice_t *taken);
void bt_policy_call_error(bt_request_t *r, const struct bt_pool_policies *p,
                          const bt_policy_t *policy, const char *text);
void bt_policy_call_invalid(bt_request_t *r); /* it named workers that cannot serve */
void bt_policy_call_end(bt_request_t *r);     /* lets go of the generation */

#endif
