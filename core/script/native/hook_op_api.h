/* hook_op_api.h - the hosts that policies may call.
 *
 * Owner: the process.
 * Life:  set before policies are made.
 * Flow:  configuration -> baton.http, which refuses every other host.
 * Cost:  none.
 */
#ifndef BT_SCRIPT_HOOK_OP_API_H
#define BT_SCRIPT_HOOK_OP_API_H

/* "host:port", NULL-terminated, borrowed for good. NULL = none, every call is refused. */
void bt_policy_allow_hosts(const char *const *hosts);

#endif
