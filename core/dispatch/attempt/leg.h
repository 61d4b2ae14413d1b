/* leg.h - one exchange with a worker. Private to dispatch.
 *
 * Owner: an attempt (attempt.h).
 * Life:  idle -> running -> done, failed or cancelled; its load and its breaker are settled once.
 * Flow:  leg.c starts the call, headers.h writes its head, relay.c takes what comes back, usage.h
 *        counts its tokens.
 * Cost:  per chunk no allocation, no lock, no Lua.
 */
#ifndef BT_DISPATCH_ATTEMPT_LEG_H
#define BT_DISPATCH_ATTEMPT_LEG_H

#include "dispatch/state/attempt_state.h"

void bt_leg_init(bt_leg_t *leg, bt_attempt_t *a, enum bt_leg_role role, bt_worker_t *worker);
/* One of those that the pool's limit leaves its worker, until it is unloaded. False: none is left. */
bool bt_leg_take_place(bt_leg_t *leg);
int bt_leg_start(bt_leg_t *leg, bt_str_t handoff_reply, bt_failure_t *f); /* < 0: f filled */
void bt_leg_hold(bt_leg_t *leg); /* its load counts, whether it has begun or not */
/* A prefill's whole reply, while decode waits for its KV. False: f filled. */
bool bt_leg_reply_is_good(bt_leg_t *leg, bt_failure_t *f);
/* p2p_nccl, moriio: the id that an engine repeats has both engines' KV addresses in it. */
bool bt_leg_has_addresses(const bt_leg_t *leg);
/* What an engine says of an error: masked in place, so it must be ours alone. */
bt_str_t bt_leg_masked(const bt_leg_t *leg, bt_str_t words);
bt_failure_t bt_leg_failure(const bt_leg_t *leg, int rc, bool retryable); /* without an answer */
bt_failure_t bt_leg_call_failure(const bt_leg_t *leg,
                                 int rc); /* its call's on_fail; health hears of it */
void bt_leg_keep_head(const bt_leg_t *leg,
                      bt_failure_t *f); /* end-to-end headers of an error answer, for the client */
/* Its call's head is a copy in the request's arena from here on, to be changed or to outlive the connection's. */
bt_head_t *bt_leg_own_head(bt_leg_t *leg);
void bt_leg_unload(bt_leg_t *leg); /* its worker has done its part: ledger and place */
void bt_leg_settle(bt_leg_t *leg, enum bt_blame blame); /* ledger and breaker, once */
void bt_leg_cancel(bt_leg_t *leg);
void bt_leg_drop(bt_leg_t *leg);             /* gives up references */
uint64_t bt_leg_reply_tokens(bt_leg_t *leg); /* usage.prompt_tokens of its whole reply; 0 = none */
/* relay.c: what comes back */
extern const bt_call_ops_t bt_relay_call_ops;
void bt_relay_on_first_event_timeout(bt_timer_t *timer);
void bt_relay_release(bt_leg_t *leg); /* a held one: prefill's reply is there */
void bt_relay_lost(bt_leg_t *leg);    /* a running one, of a lost worker: it fails */

#endif
