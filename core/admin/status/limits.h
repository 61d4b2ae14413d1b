/* limits.h - GET /limits: the limits in force, row by row, and what has come of each name; the same as metrics. Private to core/admin.
 *
 * Owner: nobody; reads atomics, and the list under its lock.
 * Life:  one answer.
 * Flow:  core/limits -> JSON, baton_limit_*.
 * Cost:  O(limits).
 */
#ifndef BT_ADMIN_STATUS_LIMITS_H
#define BT_ADMIN_STATUS_LIMITS_H

#include "admin/call/call.h"
#include "admin/metrics/prom.h"

void bt_admin_limits(const bt_admin_call_t *c);
void bt_metrics_limits(bt_prom_t *p, bt_limits_t *limits); /* NULL, or none: nothing */

#endif
