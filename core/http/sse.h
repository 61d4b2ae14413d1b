/* sse.h - splits a text/event-stream into events without copying what need not be copied.
 *
 * Owner: the relay of one leg.
 * Life:  init -> (next | count)* -> fini.
 * Flow:  walks bytes and reports each complete event (everything up to and including its blank line; LF, CRLF and CR line
 *        ends as WHATWG HTML 9.2 says). A block without a data line (comments, keep-alives) is no event: skipped, not
 *        counted. An event that lies whole in one piece is reported as a slice of it; one that is cut is collected in a
 *        small buffer (limit -> BT_E_LIMIT). A CR at the end of a piece ends its line at once: the LF that follows in the
 *        next piece is then not part of the event. Counting collects nothing.
 * Cost:  memchr speed; no allocation unless an event is cut in two.
 */
#ifndef BT_HTTP_SSE_H
#define BT_HTTP_SSE_H

#include "base/str.h"

#include <stdint.h>

typedef struct bt_sse {
    char *carry; /* start of an event cut by a read */
    size_t carry_len, carry_cap;
    size_t limit_bytes;
    uint64_t events;     /* complete events seen so far (comment-only blocks not counted) */
    unsigned char state; /* line state across pieces */
    bool has_data;       /* the open event has a data line */
} bt_sse_t;

void bt_sse_init(bt_sse_t *sse, size_t limit_bytes);
void bt_sse_fini(bt_sse_t *sse);
/* Counts complete events in n bytes; keeps only line state. Returns how many ended in this piece. */
unsigned bt_sse_count(bt_sse_t *sse, const char *p, size_t n);
/* Next complete event: *at_p walks over the piece. 1 = event_p filled (valid until the next call), 0 = piece used up
 * (rest carried over), BT_E_LIMIT, BT_E_NOMEM: that event is lost, only counting the rest makes sense from there. */
int bt_sse_next(bt_sse_t *sse, bt_str_t piece, size_t *at_p, bt_str_t *event_p);
/* Payload of an event's data lines: a slice when there is one data line, else joined with LF into out and cut at size.
 * BT_STR_NULL when there is no data. */
bt_str_t bt_sse_data(bt_str_t event, char *out, size_t size);

#endif
