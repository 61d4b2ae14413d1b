/* usage.h - the tokens of prompts and answers: what workers say of them, and what was counted. Private to dispatch.
 *
 * Owner: nobody; what is kept of an answer lies in its request's arena.
 * Life:  fed as bytes pass, asked while the attempts are there.
 * Flow:  relay.c -> the end of an answer -> its numbers, for limits, metrics, records and policies.
 * Cost:  a copy of an answer's last 512 bytes where somebody asks.
 */
#ifndef BT_DISPATCH_ANSWER_USAGE_H
#define BT_DISPATCH_ANSWER_USAGE_H

#include "dispatch/state/attempt_state.h"

/* Tokens that decode has made. */
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
/* The same of a reply that nobody has read: its "usage" is looked for. False: it has none, or not in the usual place. */
bool bt_usage_tells_prompt(bt_str_t reply, uint64_t *prompt_p);
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
