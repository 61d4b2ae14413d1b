/* rooms.h - GET /rooms: KV transfer as the hub sees it; GET /rooms/<room>: whose one room is. Private to core/admin.
 *
 * Owner: nobody; the hub and the share are of the control loop, as this is.
 * Life:  one answer.
 * Flow:  ?limit=N -> bt_transfer_describe. A room: its number is read -> every loop looks whether it is there (BT_GATHER_ROOM) -> what the hub knows of it, and which
 *        other replicas may have minted it.
 * Cost:  O(agents + rooms shown), on the control loop; one room: O(replicas + ended rooms that the hub keeps).
 */
#ifndef BT_ADMIN_STATUS_ROOMS_H
#define BT_ADMIN_STATUS_ROOMS_H

#include "admin/call/call.h"
#include "admin/call/live.h"

#define BT_ADMIN_ROOMS_LIMIT 1000

void bt_admin_rooms_list(const bt_admin_call_t *c);
/* A room's number goes into reply->number; what is none makes it a 400. */
void bt_admin_room_check(const bt_admin_call_t *c);
/* facts: of BT_GATHER_ROOM with this room.
 * {"room":"123","replica":own name or null,"here":null or {"request":{...},"attempt":{...},"transfer":{...}},"elsewhere":[{"name":...,"admin":...}]}
 * request and attempt are null when it has ended and only the hub remembers it; transfer is null when it is not gateway-managed. 404 when nobody here or known can have it. */
void bt_admin_room_answer(const bt_admin_config_t *config, uint64_t room,
                          const bt_loop_facts_t *facts, unsigned count, bt_admin_reply_t *reply);

#endif
