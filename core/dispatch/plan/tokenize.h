/* tokenize.h - a text prompt's token ids, as one of its pool's engines makes them. Private to dispatch.
 *
 * Owner: a request: all but the ids lies in its arena. What is known of the engines that are asked is its loop's.
 * Life:  enter -> the ids are there, or the plan is made without -> drop.
 * Flow:  prompt -> token_cache.h, else POST /tokenize at a worker whose KV events are followed -> ids, for prefix_match.
 * Cost:  nothing without --tokenize-timeout-ms; a call to an engine otherwise, and at most that long.
 */
#ifndef BT_DISPATCH_PLAN_TOKENIZE_H
#define BT_DISPATCH_PLAN_TOKENIZE_H

#include "dispatch/state/request_state.h"

/* A station: it never ends the request. */
enum bt_progress bt_tokenize_enter(bt_request_t *r);
void bt_tokenize_cancel(bt_request_t *r); /* the request ends, wherever it is */
void bt_tokenize_drop(bt_request_t *r);   /* nobody will ask for the ids any more */
/* A list as JSON; "" = there is none. */
bt_str_t bt_tokenize_ids(const bt_request_t *r);
/* How many there are, also when they were dropped; 0 = not known. */
uint64_t bt_tokenize_count(const bt_request_t *r);
enum bt_token_source bt_tokenize_source(const bt_request_t *r);

void bt_tokenizer_free(struct bt_tokenizer *t);

#endif
