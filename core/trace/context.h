/* context.h - W3C Trace Context: the headers traceparent and tracestate, strictly.
 *
 * Owner: the caller; text is borrowed.
 * Life:  static.
 * Flow:  what is not as the specification says counts as absent: a new trace begins.
 * Cost:  a pass over the header; printing is 55 stores.
 */
#ifndef BT_TRACE_CONTEXT_H
#define BT_TRACE_CONTEXT_H

#include "base/str.h"

#define BT_TRACE_ID_CHARS 32
#define BT_TRACE_SPAN_CHARS 16
#define BT_TRACE_PARENT_CHARS 55 /* "00-<trace>-<span>-01" */
#define BT_TRACE_STATE_MEMBERS 32

typedef struct bt_trace_context {
    char trace[BT_TRACE_ID_CHARS]; /* as in the header */
    uint64_t parent;
    bool is_sampled;
} bt_trace_context_t;

/* Of a version that is not known yet, what version 00 has. False: it is malformed. */
bool bt_trace_parse(bt_str_t traceparent, bt_trace_context_t *context_p);
/* One header of perhaps several; members_p counts those of all. False: it is malformed, or there are more than 32. */
bool bt_trace_state_ok(bt_str_t tracestate, unsigned *members_p);
void bt_trace_print(char out[BT_TRACE_PARENT_CHARS], const char trace[BT_TRACE_ID_CHARS],
                    uint64_t span, bool is_sampled);
void bt_trace_print_span(char out[BT_TRACE_SPAN_CHARS], uint64_t span);

#endif
