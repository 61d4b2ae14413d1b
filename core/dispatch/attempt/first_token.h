/* first_token.h - the first token of a stream, sent with prefill's reply while decode still loads the KV (--relay-first-token).
 * Private to dispatch.
 *
 * Owner: its request; whether it may be is decided once, at the plan.
 * Life:  open -> relay (attempt.h), once -> decode's answer without that text -> fini. Where relay finds that it cannot be exact, the
 *        answer is decode's, as without it.
 * Flow:  attempt.c, when decode has been asked -> the client has its first event; from there on the request's sink is this one. Until
 *        decode's answer has begun, another attempt may serve, if it begins with the same text.
 * Cost:  a stream that began so has its events read and patched, a copy each.
 */
#ifndef BT_DISPATCH_ATTEMPT_FIRST_TOKEN_H
#define BT_DISPATCH_ATTEMPT_FIRST_TOKEN_H

#include "dispatch/state/attempt_state.h"

struct bt_first_token {
    const bt_attempt_t *attempt; /* whose prefill has said it; NULL = nothing has been sent */
    bt_str_t id, created, model; /* that event's, and so of all; JSON, request's arena */
    bt_str_t text;               /* that the client has */
    bt_str_t left;               /* of it: not found in decode's answer yet */
    bt_sse_t sse;
    bt_buf_t *out; /* events of one read on their way */
};

/* The request's, once the client has a first token. */
extern const bt_sink_ops_t bt_sink_first_token;
/* When its plan is made and it is not split: dialect is the plan's. */
void bt_first_token_open(bt_request_t *r, const bt_dialect_t *dialect);
void bt_first_token_fini(bt_request_t *r);
/* The client has a first token, and no attempt's answer has begun. */
static inline bool bt_first_token_waits(const bt_request_t *r)
{
    return r->first_token != NULL && r->first_token->attempt != NULL && !r->tasks[0].committed;
}

#endif
