/* discovery.h - GET /discovery, and the metrics of sources that find workers by themselves.
 *
 * Owner: the control loop.
 * Life:  one answer.
 * Flow:  core/discovery -> JSON, metrics.
 * Cost:  O(pods).
 */
#ifndef BT_ADMIN_STATUS_DISCOVERY_H
#define BT_ADMIN_STATUS_DISCOVERY_H

#include "admin/call/call.h"
#include "admin/metrics/prom.h"

void bt_admin_discovery(const bt_admin_call_t *c);
void bt_metrics_kubernetes(bt_prom_t *p, bt_kube_t *const *kubes, unsigned count);

#endif
