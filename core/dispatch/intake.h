/* intake.h - a request's way in: rules, then its policy's admit and route. Private to dispatch.
 *
 * Owner: a request.
 * Life:  from admit to the end of route; its vars live until plan and fallback are over.
 * Flow:  stations of request.c.
 * Cost:  nothing where the policy has no hooks.
 */
#ifndef BT_DISPATCH_INTAKE_H
#define BT_DISPATCH_INTAKE_H

#include "dispatch/request.h"

/* admit and route of one request, and ctx.vars, which plan and fallback see too. */
struct bt_intake {
    const struct bt_pool_policies *policies; /* of the pinned generation; `both` has the hooks */
    bt_policy_run_t run;
    bt_policy_vars_t vars;
    bt_policy_request_t req;
    bt_wait_t *wait; /* what the hook waits for now, or NULL */
    uint64_t since_us, until_ms;
    bool is_late; /* its deadline is over, and it has been told */
};

/* intake.c */
enum bt_progress bt_intake_rules(bt_request_t *r);
enum bt_progress bt_intake_admit(bt_request_t *r);
enum bt_progress bt_intake_route(bt_request_t *r);
void bt_intake_end(bt_request_t *r); /* gives up what waits, and ctx.vars */

#endif
