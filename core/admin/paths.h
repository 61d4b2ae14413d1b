/* paths.h - worker routes asked for on the client port. Private to core/admin.
 *
 * Owner: the background call is mail: it belongs to the loop that has it.
 * Life:  request loop -> control loop -> request loop, where it answers and is freed. The client may leave meanwhile.
 * Flow:  copies of path, query and body go out; a plain reply comes back.
 * Cost:  one allocation and two mails a request.
 */
#ifndef BT_ADMIN_PATHS_H
#define BT_ADMIN_PATHS_H

#include "admin/routes.h"

/* What x->user of the admin listener points to while an answer waits for others. */
struct bt_admin_wait {
    void (*gone)(struct bt_admin_wait *wait); /* the client left first */
};

/* who lends the configuration to mail on its way. ref on any thread; both others on the control loop. */
void bt_admin_ref(bt_admin_t *admin);
void bt_admin_unref(bt_admin_t *admin);
const bt_admin_config_t *bt_admin_config_of(
    bt_admin_t *admin);                         /* NULL: closing, the registry may be gone */
bt_loop_t *bt_admin_loop_of(bt_admin_t *admin); /* any thread */

/* Fills request->refusal. Any thread: what it reads of the configuration is constant. */
void bt_admin_check_origin(const bt_admin_t *admin, const bt_head_t *head,
                           bt_admin_request_t *request);
void bt_admin_send(bt_exchange_t *x, const bt_admin_reply_t *reply);
/* The end of a change that took a while: 200 with this JSON, or another status with this sentence. Nobody waits for x any more. */
void bt_admin_notify(bt_exchange_t *x, unsigned status, bt_str_t text);

#endif
