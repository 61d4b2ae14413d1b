/* ratelimit.h - x-ratelimit-*: what is left of the limits that a request was held to. Private to dispatch.
 *
 * Owner: nobody; texts lie in the request's arena.
 * Life:  a call, as an answer's head is written.
 * Flow:  reservation_state.h -> headers.
 * Cost:  nothing where no limit fits.
 */
#ifndef BT_DISPATCH_ANSWER_RATELIMIT_H
#define BT_DISPATCH_ANSWER_RATELIMIT_H

#include "dispatch/state/request_state.h"

/* Of each kind, the limit of which least is left. For a request that has a reservation. */
void bt_ratelimit_headers(bt_request_t *r, bt_header_t *out, unsigned *n, unsigned max);

#endif
