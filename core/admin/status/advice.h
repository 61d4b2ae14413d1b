/* advice.h - GET /advice: which role of each pool is short of workers, and the same as metrics. Private to core/admin.
 *
 * Owner: nobody; the advisor is of the control loop, as this is.
 * Life:  one answer.
 * Flow:  cluster/roles/advisor -> its formulas -> JSON, a line for people (?format=text), baton_advice_*.
 * Cost:  O(pools).
 */
#ifndef BT_ADMIN_STATUS_ADVICE_H
#define BT_ADMIN_STATUS_ADVICE_H

#include "admin/call/call.h"
#include "admin/metrics/prom.h"

void bt_admin_advice(const bt_admin_call_t *c);
/* advisor NULL: nothing. */
void bt_metrics_advice(bt_prom_t *p, const bt_advisor_t *advisor, const bt_workers_t *workers);

#endif
