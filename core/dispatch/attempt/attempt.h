/* attempt.h - one execution of one plan: two legs joined; blame, rooms at the hub, exchanging one
 * worker of a pair, learning. Private to dispatch.
 *
 * Owner: a task, on its request's loop.
 * Life:  start -> ended, by answer, failure or cancel; a prefill leg may drain behind it.
 * Flow:  attempt.c joins two legs and calls the others; they come back by bt_attempt_fail and
 *        bt_attempt_start_decode.
 * Cost:  a gateway-managed attempt writes the hub two mails, three when its prefill is exchanged.
 */
#ifndef BT_DISPATCH_ATTEMPT_ATTEMPT_H
#define BT_DISPATCH_ATTEMPT_ATTEMPT_H

#include "dispatch/state/attempt_state.h"

/* ---- attempt.c ---- */
/* on_end: when it has answered or failed, once. */
int bt_attempt_start(bt_task_t *task, const bt_pair_t *pair, bt_attempt_end_cb on_end);
void bt_attempt_cancel(bt_attempt_t *a);   /* client gone or sibling failed */
void bt_attempt_cut(bt_attempt_t *a);      /* ended: its prefill has drained long enough */
void bt_attempt_leg_commit(bt_leg_t *leg); /* leg -> attempt events */
void bt_attempt_leg_done(bt_leg_t *leg);
void bt_attempt_leg_failed(bt_leg_t *leg, const bt_failure_t *f);
void bt_attempt_resume(bt_attempt_t *a);
void bt_attempt_drop(bt_attempt_t *a); /* its request's memory goes */

/* The one way to fail; nothing when it has ended. */
void bt_attempt_fail(bt_attempt_t *a, const bt_failure_t *f, bt_worker_t *const *guilty,
                     unsigned guilty_count);
/* The same, blaming whom the failure is to be blamed on. */
/* Prefill is lost and decode waits for its KV: fails what may be planned anew. */
void bt_attempt_kv_lost(bt_attempt_t *a);
void bt_attempt_fail_leg(bt_leg_t *leg, const bt_failure_t *f);
/* Ends its call, and tells the engine. */
void bt_attempt_stop_leg(bt_leg_t *leg);
/* The hand-off's second half. */
void bt_attempt_start_decode(bt_attempt_t *a);

/* ---- attempt_workers.c ---- */
/* False: it has no place for us, or its breaker waits for somebody else's probe. */
bool bt_attempt_enter(bt_leg_t *leg);
/* Its pair is another one now: may it be the one request that tries it? */
void bt_attempt_enter_pair(bt_attempt_t *a);
void bt_attempt_take_ranks(bt_attempt_t *a);
/* A worker for the leg that the plan left open. False: the attempt has failed. */
bool bt_attempt_choose_late(bt_attempt_t *a, enum bt_leg_role role);

/* ---- attempt_rooms.c ---- */
void bt_attempt_make_ids(bt_attempt_t *a);
int bt_attempt_mint_rooms(bt_attempt_t *a);
/* Mints one more room, as the pair's prefill wants it; closed with the others. */
int bt_attempt_mint_room(bt_attempt_t *a, uint64_t *room_p);
void bt_attempt_give_rooms_back(bt_attempt_t *a);

/* ---- blame.c ---- */
/* Does this failure prove something about the worker of its leg? */
bool bt_blame_is_guilty(const bt_failure_t *f);
/* Could it be either's? */
bool bt_blame_is_ambiguous(const bt_leg_t *leg, const bt_failure_t *f);
/* Does decode's engine say that the KV did not come? */
bool bt_blame_is_kv_failure(const bt_leg_t *leg, const bt_failure_t *f);
/* Decode's failure, of which the hub may know more. */
bool bt_blame_is_for_hub(const bt_attempt_t *a, const bt_failure_t *f);
/* It could be either's: fills guilty (2) with those that failed so with another partner before. */
unsigned bt_blame_either(const bt_attempt_t *a, bt_worker_t **guilty);
/* Fills guilty (2) and returns how many. */
unsigned bt_blame_find(const bt_leg_t *leg, const bt_failure_t *f, bt_worker_t **guilty);
/* The attempt fails and nobody is guilty, while its legs are as they were: is it the pair's
 * (cluster/pair_breaker.h)? */
void bt_blame_pair(bt_attempt_t *a, const bt_failure_t *f);
/* Decode's answer begins. */
void bt_blame_pair_works(const bt_attempt_t *a);

/* ---- first_token.c ---- */
/* Prefill's reply is in, and decode has been asked. May fail the attempt: the client has another first token. */
void bt_first_token_relay(bt_attempt_t *a);

/* ---- learn.c: what replies teach ---- */
void bt_learn_agent(bt_leg_t *leg);          /* nixl_push: where prefill's KV agent lives */
void bt_learn_token_size(bt_leg_t *leg);     /* bytes of a prompt per token */
void bt_learn_answer(const bt_request_t *r); /* likewise, at its end */
void bt_learn_prediction(const bt_request_t *r);
void bt_learn_prefix_hits(bt_leg_t *leg);

/* ---- replacement.c: false = it may not be, or there is nobody else: nothing has changed ---- */
/* Another decode for a finished prefill. */
bool bt_replacement_decode(bt_attempt_t *a, const bt_failure_t *f);
/* Another prefill for a decode that waits (gateway-managed dialects). True: the attempt goes on, or
 * has failed with the new one. */
bool bt_replacement_prefill(bt_attempt_t *a, const bt_failure_t *f, bool is_guilty);

/* ---- attempt_kv.c: its room at the hub; nothing where the dialect is not gateway-managed ---- */
int bt_attempt_kv_open(bt_attempt_t *a);
void bt_attempt_kv_close(bt_attempt_t *a, bool is_abort, const char *reason);
/* The pair's prefill is another one, and calls the room another name. */
int bt_attempt_kv_repair(bt_attempt_t *a, uint64_t source_room);

/* ---- attempt_trigger.c: decode first, prefill when decode's engine calls; nothing for other kinds ---- */
void bt_attempt_trigger_begin(bt_attempt_t *a);
/* Mail: a metaserver's call, on the loop that may have its room. */
void bt_attempt_trigger_on_call(bt_loop_t *loop, bt_mail_t *mail);
/* Decode's answer begins: it waits for no prefill any more. */
void bt_attempt_trigger_commit(bt_attempt_t *a);
/* Calls that wait are answered, unless prefill still runs. why: it has failed; may be NULL. */
void bt_attempt_trigger_settle(bt_attempt_t *a, const char *why);

/* ---- background_call.c: calls nobody waits for ---- */
size_t bt_background_call_bytes(void); /* for the pool */
void bt_background_call_abort(bt_leg_t *leg);
void bt_background_call_release(bt_attempt_t *a);

#endif
