/* rollout.h - the fleet's policies and rules over the admin listener. Private to core/admin.
 *
 * Owner: the control loop.
 * Life:  an exchange that waits for a rollout lives in its arena; the rollout is told when the
 *        client leaves first.
 * Flow:  PUT /fleet/policies/<name> -> bt_rollout_change -> (every replica has voted, and serves
 *        it) -> the answer.
 * Cost:  control loop only.
 */
#ifndef BT_ADMIN_POLICIES_ROLLOUT_H
#define BT_ADMIN_POLICIES_ROLLOUT_H

#include "admin/call/call.h"

typedef struct bt_rollout_request { /* borrowed for the call */
    enum bt_answer_state what;      /* BT_WANTS_FLEET_* */
    const char *name, *by;
    uint64_t number;
    bool is_dry_run;
    bt_audit_change_t *change; /* may be NULL; lives as long as the exchange */
} bt_rollout_request_t;

/* Answers x, whose body is the request's, when it is over. */
void bt_rollout_answer(bt_rollout_t *r, bt_exchange_t *x, const bt_rollout_request_t *ask);
/* Handlers: what the fleet serves; whether the change may be asked for, and reply->name, by, number of it. */
void bt_rollouts_list(const bt_admin_call_t *c);
void bt_rollouts_check(const bt_admin_call_t *c);
/* ?by=..., ?to=..., ?dry_run=...: by gets "admin" when nothing is said. BT_E_INVAL: to is no number, dry_run neither true nor false. */
int bt_rollout_query(bt_str_t query, char *by, size_t by_size, uint64_t *number_p,
                     bool *is_dry_run_p);

#endif
