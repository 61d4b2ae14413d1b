/* traceparent.h - whose trace a request belongs to, and what its legs tell their workers of it. Private to dispatch.
 *
 * Owner: the request (request_trace.h).
 * Life:  read with the request's head; written as a leg starts.
 * Flow:  the client's traceparent, else a new one -> each leg's own, with the id of its span.
 * Cost:  off, a test; on, a few multiplications a leg.
 *
 * A span's id is a bijection of the root's and a number of its own, so that none has to be kept from the start of a leg, which tells
 * it to its worker, to the end.
 */
#ifndef BT_DISPATCH_STATE_TRACEPARENT_H
#define BT_DISPATCH_STATE_TRACEPARENT_H

#include "dispatch/state/attempt_state.h"

void bt_traceparent_read(bt_request_t *r);
/* Headers of the client's that do not go on to workers. */
bool bt_traceparent_drops(const bt_request_t *r, bt_str_t name);
/* Of a leg that is about to start. */
void bt_traceparent_write(const bt_leg_t *leg, char out[BT_TRACE_PARENT_CHARS]);

/* ---- ids of spans ---- */
/* number: 0 is the root's own. */
uint64_t bt_span_id(const bt_request_trace_t *t, uint64_t number);
uint64_t bt_span_attempt_id(const bt_request_trace_t *t, const bt_attempt_t *a);
uint64_t bt_span_transfer_id(const bt_request_trace_t *t, const bt_attempt_t *a);
/* index: of the leg's workers, the first one is 0. */
uint64_t bt_span_leg_id(const bt_request_trace_t *t, const bt_attempt_t *a, enum bt_leg_role role,
                        unsigned index);
/* How many workers this leg has had before: the index of its present one. */
unsigned bt_span_replaced(const bt_attempt_t *a, enum bt_leg_role role);

#endif
