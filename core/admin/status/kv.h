/* kv.h - GET /kv, and the metrics of engines' KV events.
 *
 * Owner: the control loop.
 * Life:  one answer.
 * Flow:  core/kvindex, as of the last second, and whether workers' events are believed -> JSON, metrics.
 * Cost:  O(ranks).
 */
#ifndef BT_ADMIN_STATUS_KV_H
#define BT_ADMIN_STATUS_KV_H

#include "admin/call/call.h"
#include "admin/metrics/prom.h"

void bt_admin_kv(const bt_admin_call_t *c);
void bt_metrics_kv(bt_prom_t *p,
                   const bt_admin_config_t *config); /* nothing where none are followed */

#endif
