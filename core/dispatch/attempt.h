/* attempt.h - the parts of an attempt: blame, rooms at the hub, exchanging one worker of a pair, learning. Private to dispatch.
 *
 * Owner: the attempt (request.h), on its request's loop.
 * Life:  as the attempt.
 * Flow:  attempt.c joins two legs and calls the others; they come back by bt_attempt_fail and bt_attempt_start_decode.
 * Cost:  a steered attempt writes the hub two mails, three when its prefill is exchanged.
 */
#ifndef BT_DISPATCH_ATTEMPT_H
#define BT_DISPATCH_ATTEMPT_H

#include "dispatch/request.h"

/* ---- attempt.c ---- */
static inline bt_leg_t *bt_attempt_prefill(bt_attempt_t *a)
{
    return &a->legs[0];
}

/* Decode or single. */
static inline bt_leg_t *bt_attempt_answer(bt_attempt_t *a)
{
    return &a->legs[1];
}

/* Does decode get what prefill has answered? */
static inline bool bt_attempt_uses_reply(const bt_attempt_t *a)
{
    return a->dialect->needs_reply || a->dialect->learns;
}

/* The one way to fail; nothing when it has ended. */
void bt_attempt_fail(bt_attempt_t *a, const bt_failure_t *f, bt_worker_t *const *guilty,
                     unsigned guilty_count);
/* The same, blaming whom the failure is to be blamed on. */
void bt_attempt_fail_leg(bt_leg_t *leg, const bt_failure_t *f);
/* The hand-off's second half. */
void bt_attempt_start_decode(bt_attempt_t *a);
/* The pair is another one: so do headers and the access log say. */
void bt_attempt_note_pair(bt_attempt_t *a);
/* Mints one more room, as the pair's prefill wants it; closed with the others. */
int bt_attempt_mint_room(bt_attempt_t *a, uint64_t *room_p);

/* ---- blame.c ---- */
/* Does this failure prove something about the worker of its leg? */
bool bt_blame_is_guilty(const bt_failure_t *f);
/* Could it be either's? */
bool bt_blame_is_ambiguous(const bt_leg_t *leg, const bt_failure_t *f);
/* Decode's failure, of which the hub may know more. */
bool bt_blame_is_for_hub(const bt_attempt_t *a, const bt_failure_t *f);
/* It could be either's: fills guilty (2) with those that failed so with another partner before, and returns how many. */
unsigned bt_blame_either(const bt_attempt_t *a, bt_worker_t **guilty);
/* Fills guilty (2) and returns how many. */
unsigned bt_blame_find(const bt_leg_t *leg, const bt_failure_t *f, bt_worker_t **guilty);

/* ---- learn.c: what replies teach ---- */
void bt_learn_agent(bt_leg_t *leg);      /* nixl_push: where prefill's KV agent lives */
void bt_learn_token_size(bt_leg_t *leg); /* bytes of a prompt per token */

/* ---- replacement.c: false = it may not be, or there is nobody else: nothing has changed ---- */
/* Another decode for a finished prefill. */
bool bt_replacement_decode(bt_attempt_t *a, const bt_failure_t *f);
/* Another prefill for a decode that waits (steered dialects). True: the attempt goes on, or has failed with the new one. */
bool bt_replacement_prefill(bt_attempt_t *a, const bt_failure_t *f, bool is_guilty);

/* ---- attempt_kv.c: its room at the hub; nothing where the dialect is not steered ---- */
int bt_attempt_kv_open(bt_attempt_t *a);
void bt_attempt_kv_close(bt_attempt_t *a, bool is_abort, const char *reason);
/* The pair's prefill is another one, and calls the room another name. */
int bt_attempt_kv_repair(bt_attempt_t *a, uint64_t source_room);

#endif
