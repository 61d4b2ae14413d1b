/* admin_impl.h - admin.c and paths.c: what mail of the client port needs of the listener.
 *
 * Owner: the admin; mail holds a reference.
 * Life:  as the admin's.
 * Flow:  ref on the request loop -> config_of and unref on the control loop.
 * Cost:  an atomic a call.
 */
#ifndef BT_ADMIN_ADMIN_IMPL_H
#define BT_ADMIN_ADMIN_IMPL_H

#include "admin/admin.h"
#include "admin/call/call.h"

/* who lends the configuration to mail on its way. ref on any thread; both others on the control loop. */
void bt_admin_ref(bt_admin_t *admin);
void bt_admin_unref(bt_admin_t *admin);
const bt_admin_config_t *bt_admin_config_of(
    bt_admin_t *admin);                         /* NULL: closing, the registry may be gone */
bt_loop_t *bt_admin_loop_of(bt_admin_t *admin); /* any thread */

/* Fills request->refusal. Any thread: what it reads of the configuration is constant. */
void bt_admin_check_origin(const bt_admin_t *admin, const bt_head_t *head,
                           bt_admin_request_t *request);

#endif
