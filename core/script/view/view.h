/* view.h - views as Lua sees them: the lists of workers that a hook chooses from.
 *
 * Owner: one policy VM.
 * Life:  the lists of the last BT_POLICY_VIEWS views are kept.
 * Flow:  view_refresh makes the lists of a new view, view_find finds them again.
 * Cost:  a compare where the view is known; a row a worker where it is new.
 */
#ifndef BT_SCRIPT_VIEW_H
#define BT_SCRIPT_VIEW_H

#include "script/view/row.h"

void bt_view_open(lua_State *L, bt_policy_t *policy);
/* Makes policy->slot the lists of call.view. Raises. */
void bt_view_refresh(lua_State *L, bt_policy_t *policy);
/* True when policy->slot can be set without Lua. */
bool bt_view_find(bt_policy_t *policy, const bt_policy_view_t *view);

#endif
