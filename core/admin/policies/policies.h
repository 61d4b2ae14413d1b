/* policies.h - policies over the admin listener: put code, take it back. Private to core/admin.
 *
 * Owner: the control loop.
 * Life:  an exchange that waits for a reload lives in its arena; the reload is told when the client leaves first.
 * Flow:  PUT /policies/<name> -> bt_reload_put -> (all loops have it) -> done -> the answer.
 * Cost:  control loop only.
 */
#ifndef BT_ADMIN_POLICIES_POLICIES_H
#define BT_ADMIN_POLICIES_POLICIES_H

#include "admin/call/call.h"

/* A name that can be a file's: letters, digits, '_', '-', '.', not at the start; at most 64. */
bool bt_policies_name_ok(bt_str_t name);
/* Handlers: one text; what serves; whether the change may be asked for. */
void bt_policies_show(const bt_admin_call_t *c);
void bt_policies_list(const bt_admin_call_t *c);
void bt_policies_rules(const bt_admin_call_t *c);
void bt_policies_check(const bt_admin_call_t *c);
/* The key, a name, goes into reply->name; what is none makes it a 400. */
void bt_policies_take_name(const bt_admin_call_t *c);
/* Answers x when the reload is over, and ends the change (may be NULL). wanted is for the call only. */
void bt_policies_change(bt_reload_t *reload, bt_exchange_t *x, bt_audit_change_t *change,
                        bool is_put, const bt_admin_reply_t *wanted);

#endif
