/* flight.h - GET /debug/flight: the flight recorder's rings as one list (base/flight.h). Private to core/admin.
 *
 * Owner: nobody; reads rings that others write.
 * Life:  one answer.
 * Flow:  rings -> by time, the newest last -> JSON.
 * Cost:  O(entries), at most 256 a loop.
 */
#ifndef BT_ADMIN_STATUS_FLIGHT_H
#define BT_ADMIN_STATUS_FLIGHT_H

#include "admin/call/call.h"

void bt_admin_flight(const bt_admin_call_t *c);

#endif
