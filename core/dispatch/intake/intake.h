/* intake.h - a request's way in: rules, then its policy's admit and route. Private to dispatch.
 *
 * Owner: the request.
 * Life:  its first stations.
 * Flow:  rules -> admit -> route -> its pool and policy are known, or it has been answered.
 * Cost:  nothing where a policy has neither hook.
 */
#ifndef BT_DISPATCH_INTAKE_INTAKE_H
#define BT_DISPATCH_INTAKE_INTAKE_H

#include "dispatch/state/request_state.h"

/* Stations. */
enum bt_progress bt_intake_rules(bt_request_t *r);
enum bt_progress bt_intake_admit(bt_request_t *r);
enum bt_progress bt_intake_route(bt_request_t *r);

#endif
