/* rooms.h - GET /rooms: KV transfer as the hub sees it. Private to core/admin.
 *
 * Owner: nobody; the hub is of the control loop, as this is.
 * Life:  one answer.
 * Flow:  ?limit=N -> bt_transfer_describe.
 * Cost:  O(agents + rooms shown), on the control loop.
 */
#ifndef BT_ADMIN_ROOMS_H
#define BT_ADMIN_ROOMS_H

#include "admin/prom.h"
#include "admin/routes.h"

#define BT_ADMIN_ROOMS_LIMIT 1000

void bt_admin_rooms_list(const bt_transfer_t *transfer, bt_str_t query, bt_admin_reply_t *reply);
/* metrics_transfer.c */
void bt_metrics_transfer(bt_prom_t *p, const bt_transfer_stats_t *stats);

#endif
