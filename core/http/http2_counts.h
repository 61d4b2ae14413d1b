/* http2_counts.h - HTTP/2 connections and streams of clients, and why some of them were ended.
 *
 * Owner: the process. A server takes one of a few places of its own, so that loops do not write into each other's cache lines.
 * Life:  the process's.
 * Flow:  counts only grow; the reader adds the places up. What is open now is what was begun less what was closed.
 * Cost:  an atomic a stream.
 */
#ifndef BT_HTTP_HTTP2_COUNTS_H
#define BT_HTTP_HTTP2_COUNTS_H

#include <stdatomic.h>
#include <stdint.h>

/* Streams that were reset: by the client, and by us. */
enum bt_http2_reset {
    BT_HTTP2_RESET_CLIENT,    /* cancelled by its client */
    BT_HTTP2_RESET_STALL,     /* the client took nothing of its answer */
    BT_HTTP2_RESET_CUT,       /* its answer broke off */
    BT_HTTP2_RESET_REFUSED,   /* above the streams that a connection may have */
    BT_HTTP2_RESET_MALFORMED, /* against RFC 9113 */
    BT_HTTP2_RESETS
};

/* Connections that we have ended for what they did. */
enum bt_http2_end {
    BT_HTTP2_END_FLOOD,       /* frames that bring nothing; nghttp2's own limits, too */
    BT_HTTP2_END_RAPID_RESET, /* requests that were reset before their answer */
    BT_HTTP2_END_STALL,       /* the socket takes nothing */
    BT_HTTP2_END_SLOW_HEAD,   /* a head that has begun and does not end */
    BT_HTTP2_END_MALFORMED,   /* against RFC 9113 */
    BT_HTTP2_ENDS
};

typedef struct bt_http2_counts {
    _Atomic uint64_t connections, connections_closed, streams, streams_closed;
    _Atomic uint64_t resets[BT_HTTP2_RESETS], ends[BT_HTTP2_ENDS];
} bt_http2_counts_t;

/* "client", "stall", ...: labels of metrics. */
const char *bt_http2_reset_name(enum bt_http2_reset reset);
const char *bt_http2_end_name(enum bt_http2_end end);

/* A place to count in. */
bt_http2_counts_t *bt_http2_counts_take(void);
/* All places; what is read while others count may be a little apart. */
void bt_http2_counts_sum(bt_http2_counts_t *sum);

static inline void bt_http2_count(_Atomic uint64_t *counter)
{
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

#endif
