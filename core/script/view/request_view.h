/* request_view.h - `req` as Lua sees it.
 *
 * Owner: one policy VM.
 * Life:  one userdata a VM; it shows the request of the running call, and refuses when there is none.
 * Flow:  a field is read when asked for.
 * Cost:  nothing is copied beforehand.
 */
#ifndef BT_SCRIPT_REQUEST_VIEW_H
#define BT_SCRIPT_REQUEST_VIEW_H

#include "script/view/state.h"

void bt_request_view_open(lua_State *L, bt_policy_t *policy);

#endif
