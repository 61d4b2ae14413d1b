/* http2_impl.h - a client connection that speaks HTTP/2 (RFC 9113), shared by the http2_ files. Private to core/http.
 *
 * Owner: its bt_server_conn_t, whose socket, place in the budget and timers it uses.
 * Life:  the connection's first bytes are the client's preface -> bt_http2_begin -> streams come and go -> bt_http2_free when the socket is
 *        closed. A stream lives while nghttp2 knows it or a handler has it.
 * Flow:  http2_conn.c gives nghttp2 what was read, and lets it write when the turn ends; http2_stream.c makes an exchange of each stream, http2_answer.c writes its answer.
 *        nghttp2 frames, compresses heads, keeps windows and refuses what is malformed; bodies are not copied on their way out.
 * Cost:  one pooled struct a connection and one a stream, besides nghttp2's own (about 30 KB a connection); one write a turn for all streams.
 */
#ifndef BT_HTTP_HTTP2_IMPL_H
#define BT_HTTP_HTTP2_IMPL_H

#include "http/http2_counts.h"
#include "http/server_impl.h"

#include <nghttp2/nghttp2.h>

#define BT_HTTP2_PREFACE_BYTES ((size_t) NGHTTP2_CLIENT_MAGIC_LEN)

struct bt_http2 {
    nghttp2_session *session;
    bt_server_conn_t *conn;
    bt_list_t streams;
    bt_list_t
        ready; /* streams whose request is whole; handled when all that was read is understood */
    bt_list_t to_tell; /* streams whose handler has something to hear: gone, or drained */
    unsigned stream_count;
    size_t head_bytes; /* of all streams' heads that are kept */
    int credit;        /* for frames that bring nothing: see spend() */
    uint64_t credit_ms;
    enum bt_http2_end too_much;       /* what it is told to be calm for */
    uint64_t stall_written, stall_ms; /* bytes of the socket at stall_ms */
    bool is_idle;                     /* no stream, and its time runs */
    bool reading_head;                /* a head has begun, and not ended */
    bool noticed; /* told that it will go; the last GOAWAY comes with the next tick */
    bool broken;  /* out of memory while writing: ends with the next tick */
};

typedef struct bt_http2_stream {
    bt_exchange_t x; /* first, so that one cast leads back */
    struct bt_http2 *h2;
    bt_list_t link, ready_link, tell_link;
    bt_timer_t deadline; /* the body's; then how long the rest of a refused one is dropped */
    struct bt_slice_queue out;
    size_t out_bytes;
    bt_buf_t *copies;     /* where small and lent bytes of the answer are gathered */
    uint64_t length_left; /* body bytes promised and not given yet */
    uint64_t moved_ms;    /* the client took some of `out`, or it was empty */
    size_t head_bytes;    /* as SETTINGS_MAX_HEADER_LIST_SIZE counts */
    size_t kept_bytes;    /* of them, counted in the connection\'s */
    unsigned header_cap;
    int32_t id;
    bool is_open;      /* nghttp2 knows it */
    bool is_head_done; /* what comes now are trailers */
    bool is_refused;   /* before it had a handler; what else comes is dropped */
    bool handling;     /* between on_request and end, abort or on_gone */
    bool has_length, no_body;
    bool has_no_data; /* the head is the whole answer */
    bool ended;       /* no more will be written */
    bool cut;         /* nor is it the whole answer */
    bool has_left;    /* its last frame has: nothing of it waits for the client */
    bool waiting;     /* nghttp2 has been told to ask again when there is something */
    bool is_above;    /* the handler may have seen it blocked */
} bt_http2_stream_t;

/* http2_conn.c */
void bt_http2_wake(struct bt_http2 *h2);  /* there is something to write */
void bt_http2_tell(bt_http2_stream_t *s); /* its handler, soon */
bt_slab_t *bt_http2_stream_pool(bt_server_t *server);
bt_http2_counts_t *bt_http2_counts_of(const bt_server_t *server);
void bt_http2_run(struct bt_http2 *h2); /* after anything has happened; may close the connection */

/* http2_time.c */
void bt_http2_init_timers(bt_server_conn_t *c);
void bt_http2_watch(struct bt_http2 *h2); /* the client has to take something */
void bt_http2_say_goodbye(struct bt_http2 *h2);

/* http2_stream.c */
bt_http2_stream_t *bt_http2_stream_new(struct bt_http2 *h2, int32_t id); /* NULL: out of memory */
void bt_http2_stream_header(bt_http2_stream_t *s, bt_str_t name, bt_str_t value);
void bt_http2_stream_head_done(bt_http2_stream_t *s, bool is_whole);
void bt_http2_stream_data(bt_http2_stream_t *s, bt_str_t data);
void bt_http2_stream_whole(bt_http2_stream_t *s);  /* the request has ended */
void bt_http2_stream_handle(bt_http2_stream_t *s); /* gives it to the handler */
void bt_http2_stream_told(bt_http2_stream_t *s);   /* what bt_http2_tell promised; may free it */
void bt_http2_stream_closed(bt_http2_stream_t *s); /* nghttp2 has forgotten it */
void bt_http2_stream_leave(bt_http2_stream_t *s);  /* the connection is closed: no more of it */
void bt_http2_stream_linger(bt_http2_stream_t *s); /* answered, and its request still comes */
void bt_http2_stream_free(bt_http2_stream_t *s);
void bt_http2_stream_drop_out(bt_http2_stream_t *s);
void bt_http2_stream_drop_request(bt_http2_stream_t *s); /* nobody looks at it any more */
void bt_http2_stream_let_go(bt_http2_stream_t *s);       /* it has no handler any more */
void bt_http2_refuse(bt_exchange_t *x, unsigned status, const char *reason);

/* http2_answer.c */
extern const bt_exchange_wire_t bt_http2_wire;
/* n bytes of `out` go to the socket's queue. */
int bt_http2_stream_send(bt_http2_stream_t *s, size_t n);

#endif
