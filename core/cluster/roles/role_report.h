/* role_report.h - asks SGLang engines which role they have, and switches workers whose engine has another one than is known here.
 *
 * Owner: the control loop.
 * Life:  new -> asks by itself -> free.
 * Flow:  a worker comes up, or its time has come -> GET /server_info -> another role: drained, and taken in anew in that role; its engine is not asked to.
 * Cost:  one small request an engine and interval, at most BT_ROLE_REPORTS_MAX at once.
 */
#ifndef BT_CLUSTER_ROLES_ROLE_REPORT_H
#define BT_CLUSTER_ROLES_ROLE_REPORT_H

#include "cluster/roles/role_switch.h"

#define BT_ROLE_REPORTS_MAX 16

typedef struct bt_role_reports bt_role_reports_t;
/* interval_ms: between two questions to one engine. api_key: as of bt_role_switches_new. switches must outlive it. */
int bt_role_reports_new(bt_role_reports_t **reports_p, bt_loop_t *loop, bt_registry_t *registry,
                        bt_role_switches_t *switches, const char *api_key, uint64_t interval_ms);
void bt_role_reports_free(bt_role_reports_t *r); /* NULL is fine */

/* The live role in an answer of /server_info: BT_E_INVAL when it tells none. */
int bt_role_report_read(bt_str_t json, enum bt_role *role_p);

#endif
