/* prompt_merge.h - decode's answer with what only prefill's says of the prompt (api/prompt_logprobs.h). Private to dispatch.
 *
 * Owner: the attempt's answering leg.
 * Life:  for requests that ask for it, from decode's first bytes to its end.
 * Flow:  relay.c holds decode's answer until prefill's reply is there; then all of it at once, or event by event.
 * Cost:  one branch where nobody asks.
 */
#ifndef BT_DISPATCH_ATTEMPT_PROMPT_MERGE_H
#define BT_DISPATCH_ATTEMPT_PROMPT_MERGE_H

#include "dispatch/state/attempt_state.h"

#define BT_PROMPT_REPLY_MAX_BYTES                                                                  \
    ((size_t) 64 << 20) /* of prefill, and of an answer that is not streamed */

/* Is this leg the answer, or the reply, of a pair whose client asks for logprobs of the prompt? */
bool bt_prompt_merge_wanted(const bt_leg_t *leg);
/* Prefill's reply has not come yet. */
bool bt_prompt_merge_waits(const bt_leg_t *leg);
/* The whole answer, which leg->reply holds, or the beginning of a stream: < 0, with a sentence in *why_p. */
int bt_prompt_merge_whole(bt_leg_t *leg, const char **why_p);
int bt_prompt_merge_begin(bt_leg_t *leg, const char **why_p);
/* More of the stream: what may go on now, at the end of *out_p. */
int bt_prompt_merge_feed(bt_leg_t *leg, bt_str_t piece, bt_buf_t **out_p, const char **why_p);
/* The stream has ended: what is left of it. */
bt_str_t bt_prompt_merge_rest(const bt_leg_t *leg);
void bt_prompt_merge_drop(bt_leg_t *leg);

#endif
