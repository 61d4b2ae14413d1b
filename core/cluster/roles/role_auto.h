/* role_auto.h - switches roles by the advice (--role-switch-auto).
 *
 * Owner: the control loop.
 * Life:  new -> a look each window of the advisor -> free.
 * Flow:  the same advice in LOOKS looks in a row -> one worker of the role that has one too many -> role_switch.h.
 * Cost:  O(pools) a window.
 */
#ifndef BT_CLUSTER_ROLES_ROLE_AUTO_H
#define BT_CLUSTER_ROLES_ROLE_AUTO_H

#include "cluster/roles/advisor.h"
#include "cluster/roles/role_switch.h"

#define BT_ROLE_AUTO_LOOKS 3

typedef struct bt_role_auto bt_role_auto_t;
/* All that is given is borrowed, and outlives it. */
int bt_role_auto_new(bt_role_auto_t **auto_p, bt_loop_t *loop, bt_registry_t *registry,
                     const bt_advisor_t *advisor, bt_role_switches_t *switches);
void bt_role_auto_free(bt_role_auto_t *a); /* NULL is fine */

#endif
