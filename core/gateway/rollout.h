/* rollout.h - this gateway as one of a fleet that is served by one set of policies and rules.
 *
 * Owner: the control loop; nothing of it is there without --redis-url.
 * Life:  open (before the first generation of policies is made: what the fleet serves is part of
 *        it) -> first -> start -> close.
 * Flow:  rollout/rollout.c says which set to try and to take -> jobs of reload/reload.c -> what
 *        came of them, back.
 * Cost:  a store client of its own; see rollout/rollout.h.
 */
#ifndef BT_GATEWAY_ROLLOUT_H
#define BT_GATEWAY_ROLLOUT_H

#include "gateway/process.h"
#include "rollout/rollout.h"

#define BT_FLEET_JOIN_MS UINT64_C(1000) /* a start waits so long for the store */

/* Reads what is committed, if the store answers in time: then the first request already meets it. */
int bt_gateway_rollout_open(bt_gateway_t *g);
/* A reference to what was read, or NULL. */
bt_policy_set_t *bt_gateway_rollout_first(bt_gateway_t *g, bool *is_pinned_p);
void bt_gateway_rollout_start(bt_gateway_t *g);
void bt_gateway_fleet_drain(bt_gateway_t *g); /* takes no changes any more */
/* On the main thread, while the control loop does not run. */
void bt_gateway_rollout_close(bt_gateway_t *g);

/* ---- between the files ---- */
struct bt_gateway_rollout {
    bt_gateway_t *g;
    bt_store_client_t *client;
    bt_rollout_t *rollout;
    bt_rollout_set_t *first; /* what the first generation was made with; reference, or NULL */
    bt_timer_t join;
    bt_store_op_t leave;  /* our row in the table of replicas goes */
    bt_list_t background; /* sets on their way through the policies' jobs */
};

#endif
