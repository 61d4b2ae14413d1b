/* trace.h - the spans of a request that has ended. Private to dispatch.
 *
 * Owner: nobody; what is kept lies in the request (request_trace.h).
 * Life:  a call, at the request's end, while its attempts are there.
 * Flow:  request -> is it to be kept? -> spans as OTLP's JSON -> the exporter's queue (core/trace).
 * Cost:  kept, a draft of each span and a copy into the queue.
 */
#ifndef BT_DISPATCH_TELEMETRY_TRACE_H
#define BT_DISPATCH_TELEMETRY_TRACE_H

#include "dispatch/state/request_state.h"

/* For a request that has a trace. */
void bt_trace_finish(bt_request_t *r);

#endif
