/* leg.h - one exchange with a worker. Private to dispatch.
 *
 * Owner: an attempt (attempt.h).
 * Life:  idle -> running -> done, failed or cancelled; its load and its breaker are settled once.
 * Flow:  leg.c starts the call, headers.c writes its head, relay.c takes what comes back, usage.c
 *        counts its tokens.
 * Cost:  per chunk no allocation, no lock, no Lua.
 */
#ifndef BT_DISPATCH_LEG_H
#define BT_DISPATCH_LEG_H

#include "dispatch/attempt_state.h"

#define BT_REPLY_MAX_BYTES                                                                         \
    ((size_t) 4 << 20) /* a prefill reply or an error body is read whole up to this */

/* leg.c */
const char *bt_leg_role_name(enum bt_leg_role role);
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
void bt_leg_drop(bt_leg_t *leg); /* gives up references */
bool bt_leg_running(const bt_leg_t *leg);
uint64_t bt_leg_reply_tokens(bt_leg_t *leg); /* usage.prompt_tokens of its whole reply; 0 = none */
/* relay.c */
extern const bt_call_ops_t bt_relay_call_ops;
void bt_relay_on_first_event_timeout(bt_timer_t *timer);
void bt_relay_release(bt_leg_t *leg); /* a held one: prefill's reply is there */
void bt_relay_lost(bt_leg_t *leg);    /* a running one, of a lost worker: it fails */
/* headers.c */
bt_str_t bt_headers_request(bt_leg_t *leg, const bt_edits_t *edits, size_t body_bytes,
                            bool has_body);
/* Of a call that is the gateway's own, on behalf of the request. */
bt_str_t bt_headers_own(bt_request_t *r, const bt_worker_t *w, bt_str_t path,
                        const char *request_id, size_t body_bytes);
/* usage.c: tokens that decode has made */
void bt_usage_feed(bt_leg_t *leg, bt_arena_t *arena, const char *p, size_t n);
/* Of a request whose attempts are still there: all its prompts, as estimated where no worker has said it; what decode made, events
 * where it does not say it; prompt tokens that were cached. */
typedef struct bt_usage {
    uint64_t input, output, cached;
} bt_usage_t;
bt_usage_t bt_usage_of(const bt_request_t *r);
uint64_t bt_usage_tokens(const bt_leg_t *leg);
/* What its usage says of the prompt, 0 = nothing; what it has made, as it says, else as events were counted. Not known: it is no
 * stream, and its usage is not there, or too far from its end. */
typedef struct bt_leg_usage {
    uint64_t prompt, output;
    bool is_output_known;
} bt_leg_usage_t;
bt_leg_usage_t bt_usage_of_leg(const bt_leg_t *leg);
/* prompt_tokens of a whole reply's usage or meta_info; 0 = none, or it is no object. */
uint64_t bt_usage_prompt(bt_str_t usage);
/* Tokens of the prompt that the worker's own prefix cache had; 0 = none, or it says nothing. Of a
 * reply, and of the answer of a worker that serves alone, where its end was kept. */
uint64_t bt_usage_cached(bt_str_t reply);
bool bt_usage_tells_cached(bt_str_t reply, uint64_t *cached_p);
uint64_t bt_usage_answer_cached(const bt_leg_t *leg);
bool bt_usage_is_kept(const bt_leg_t *leg); /* whole: no usage has left the kept end */
bool bt_usage_answer_tells_cached(const bt_leg_t *leg, uint64_t *cached_p);
/* True: decode's own figure is wrong, and this is prefill's, which a hand-off has before decode begins. */
bool bt_usage_prefill_cached(const bt_attempt_t *a, uint64_t *cached_p);

#endif
