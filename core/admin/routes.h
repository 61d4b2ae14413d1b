/* routes.h - from a plain request to a plain answer, without a socket. Private to core/admin.
 *
 * Owner: nobody; the table is constant.
 * Life:  static.
 * Flow:  path (with or without /admin) -> one row of a table -> its handler. The admin listener and the mail of the
 *        client port come the same way.
 * Cost:  control loop only.
 */
#ifndef BT_ADMIN_ROUTES_H
#define BT_ADMIN_ROUTES_H

#include "admin/call/call.h"

enum bt_answer_state bt_routes_answer(const bt_admin_config_t *config,
                                      const bt_admin_request_t *request, bt_admin_reply_t *reply);

#endif
