/* request_trace.h - a request as a trace. Private to dispatch.
 *
 * Owner: a request: what is kept on the way lies in its arena, where there are traces at all (--trace-endpoint).
 * Life:  begins with the request's head (traceparent.h) -> marks -> trace.h, while its attempts are there.
 * Flow:  traceparent says whose trace it is, else a new one begins. Each leg is told the id of its own span. Which spans there are is
 *        known at the end; whether they are kept, too: it was sampled, failed, was tried again or is slow.
 * Cost:  off, a test per station; on, some stores; kept, a draft of each span and a copy into the queue.
 */
#ifndef BT_DISPATCH_STATE_REQUEST_TRACE_H
#define BT_DISPATCH_STATE_REQUEST_TRACE_H

#include "trace/context.h"

/* What the stations before the first attempt took. */
enum bt_trace_mark { BT_MARK_ADMISSION, BT_MARK_ROUTE, BT_MARK_QUEUE, BT_MARK_POLICY };
#define BT_TRACE_MARKS 8

typedef struct bt_request_trace {
    char id[BT_TRACE_ID_CHARS + 1];
    bool is_sampled;  /* from the beginning on */
    bool keeps_state; /* the client's tracestate goes on to workers */
    uint64_t parent;  /* the client's span; 0 = it has none */
    uint64_t root;    /* span of the request; all others' ids follow from it */
    unsigned mark_count, marks_lost;
    struct {
        uint64_t start_us, us;
        enum bt_trace_mark what;
    } marks[BT_TRACE_MARKS];
} bt_request_trace_t;

static inline void bt_request_trace_add(bt_request_trace_t *t, enum bt_trace_mark what,
                                        uint64_t start_us, uint64_t us)
{
    if (t->mark_count == BT_TRACE_MARKS) {
        t->marks_lost++;
        return;
    }
    t->marks[t->mark_count].what = what;
    t->marks[t->mark_count].start_us = start_us;
    t->marks[t->mark_count++].us = us;
}

#endif
