/* answer.h - what the gateway answers itself, in the form of the path's API family. Private to dispatch.
 *
 * Owner: nobody.
 * Life:  a call; the request has been answered then, or the exchange.
 * Flow:  a refusal or a failure -> status, headers, body -> http/server.
 * Cost:  once a request.
 */
#ifndef BT_DISPATCH_ANSWER_ANSWER_H
#define BT_DISPATCH_ANSWER_ANSWER_H

#include "dispatch/state/attempt_state.h"

void bt_answer_error(bt_request_t *r, unsigned status, const char *message, unsigned retry_after_s);
/* With more headers; at most 2. */
void bt_answer_error_with(bt_request_t *r, unsigned status, const char *message,
                          unsigned retry_after_s, const bt_header_t *more, unsigned more_count);
/* What has no request. */
void bt_answer_exchange(bt_exchange_t *x, unsigned status, const char *message);
void bt_answer_exchange_with(bt_exchange_t *x, unsigned status, const char *message,
                             const bt_header_t *headers, unsigned count);
/* The server's put_refusal. */
void bt_answer_put_refusal(bt_exchange_t *x, unsigned status, const char *message, bt_text_t *t);
void bt_answer_failure(bt_request_t *r, const bt_failure_t *f);
bt_str_t bt_answer_event(bt_request_t *r, const bt_failure_t *f);

#endif
