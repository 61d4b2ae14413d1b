/* server_impl.h - one client connection, shared by the server's files. Private to core/http.
 *
 * Owner: its server; the exchange inside is lent to the handler.
 * Life:  accept -> states below -> stream closed -> back to the server's pool.
 * Flow:  server.c makes and ends connections, server_conn.c reads requests, server_body.c their bodies, server_answer.c writes answers;
 *        exchange.c is what handlers call, whichever protocol answers (bt_exchange_wire_t).
 * Cost:  one pooled struct a connection; an idle one holds no buffer.
 */
#ifndef BT_HTTP_SERVER_IMPL_H
#define BT_HTTP_SERVER_IMPL_H

#include "base/list.h"
#include "base/slab.h"
#include "http/chunk.h"
#include "http/server.h"
#include "loop/stream.h"

#define BT_AHEAD_MAX BT_HTTP_HEAD_MAX /* input read beyond the request being answered */
#define BT_OPEN_MAX 32U               /* slices that can share a chunk head */
#define BT_LINGER_MS 5000U            /* wait for the client's FIN after ours */
#define BT_LINGER_REFUSED_MS 1000U    /* of a client that there was no place for */
#define BT_NEW_MS 30U                 /* a new connection is about to ask, and not idle so long */

/* What a handler asks of an exchange, said in its connection's protocol. Calls that come too late (the answer has ended, the connection is
 * closed) do nothing. */
typedef struct bt_exchange_wire {
    void (*start)(bt_exchange_t *x, unsigned status, const bt_header_t *headers,
                  unsigned header_count, uint64_t length);
    void (*write)(bt_exchange_t *x, bt_buf_t *owner, const char *p, size_t n);
    void (*write_copy)(bt_exchange_t *x, const char *p, size_t n); /* a whole body */
    void (*end)(bt_exchange_t *x);
    void (*abort)(bt_exchange_t *x);
    void (*reset)(bt_exchange_t *x);
    void (*flush)(bt_exchange_t *x);
    void (*drop_request)(bt_exchange_t *x);
    size_t (*pending)(const bt_exchange_t *x);
    bool (*is_blocked)(const bt_exchange_t *x);
    /* Before it has a handler: answers and takes no more of the request. */
    void (*refuse)(bt_exchange_t *x, unsigned status, const char *reason);
} bt_exchange_wire_t;

enum bt_conn_state {
    BT_CONN_IDLE,   /* between requests: nothing of the next one is there */
    BT_CONN_HEAD,   /* some of a head is there */
    BT_CONN_BODY,   /* head accepted, body not complete */
    BT_CONN_ANSWER, /* the handler (or a refusal) may write */
    BT_CONN_FLUSH,  /* answer ended, some of it still waits for the client */
    BT_CONN_HTTP2,  /* its streams have states of their own (http2_impl.h) */
    BT_CONN_CLOSED  /* only on_closed is still to come */
};

typedef struct bt_server_conn {
    bt_exchange_t x; /* the current exchange; first, so that one cast leads back */
    bt_stream_t stream;
    bt_list_t link; /* in server->conns */
    bt_budget_client_t ticket;
    char own_peer[48];   /* where x.proxy points to */
    bt_timer_t deadline; /* idle, head or body, whichever the state waits for */
    bt_timer_t
        watch; /* polls what no event tells: FIN while not reading, a client that stopped reading */

    /* input */
    bt_buf_t *in; /* bytes [in_at, in_end) are read and not yet used */
    size_t in_at, in_end;
    size_t scan;        /* bt_head_scan's note */
    bt_buf_t *head_buf; /* keeps the bytes that x.head points into */
    bt_chunk_t chunk;   /* of a chunked request body */

    /* answer */
    struct bt_slice *
        open; /* data of the chunk whose head is not written yet; refs owners; NULL between turns */
    struct bt_slice open_first; /* is enough for one piece */
    size_t open_bytes;
    uint64_t length_left;   /* body bytes promised and not given yet */
    uint64_t stall_written; /* watch: bytes accepted by the kernel at stall_ms */
    uint64_t stall_ms;

    struct bt_http2 *http2; /* NULL: HTTP/1.1 */
    enum bt_conn_state state;
    unsigned open_count;
    bool is_new;      /* it has just come, and said nothing */
    bool has_asked;   /* its first request was HTTP/1.1's */
    bool is_shaking;  /* IDLE, and the TLS handshake is not done */
    bool handling;    /* between on_request and end, abort or on_gone */
    bool direct;      /* the body is read into its own buffer */
    bool blank_seen;  /* the one empty line allowed before a head (RFC 9112 2.2) */
    bool paused;      /* not reading: too much lies ahead */
    bool advancing;   /* bt_conn_advance is on the stack */
    bool chunked;     /* the answer is */
    bool has_length;  /* the answer has a Content-Length */
    bool no_body;     /* HEAD, 204, 304 */
    bool close_after; /* this answer is the connection's last */
    bool broken;      /* out of memory while answering: give up at the next tick */
} bt_server_conn_t;

struct bt_server {
    bt_loop_t *loop;
    const bt_server_ops_t *ops;
    bt_server_config_t config;
    void *user;
    bt_list_t conns;
    bt_slab_t pool;
    bt_slab_t open_pool; /* bt_server_conn_t.open, for several pieces */
    unsigned conn_count, active_count;
    bt_unfinished_loop_t *unfinished; /* NULL = nobody has to go for others */
    struct bt_http2_shared *http2;    /* NULL = not spoken here */
    bool draining, closing;
    bool lets_idle_ask; /* while draining: who was not told that his connection closes */
    void (*done)(void *arg);
    void *done_arg;
    uint64_t date_s; /* second that date_text tells */
    char date_text[32];
    bt_header_t
        headers[BT_HTTP_HEADERS_MAX]; /* room for parsing; what is used is copied to the arena */
};

static inline bt_server_conn_t *bt_conn_of(const bt_exchange_t *x)
{
    return (bt_server_conn_t *) (uintptr_t) x;
}

static inline bt_budget_t *bt_conn_budget(const bt_server_conn_t *c)
{
    return c->x.server->config.budget;
}

static inline size_t bt_conn_unread(const bt_server_conn_t *c)
{
    return c->in_end - c->in_at;
}

/* server.c */
void bt_conn_close(bt_server_conn_t *c); /* at once; no callback but the last */
void bt_conn_gone(
    bt_server_conn_t *c); /* the client left: on_gone when a handler has it, then close */
void bt_conn_retire(bt_server_conn_t *c); /* nothing left to say: FIN, wait for the client's */
void bt_conn_closed(bt_stream_t *stream); /* the stream's last word */

/* exchange.c */
/* Refuses what nobody wants to read, before the body: 0 = go on, or the status. Our own limits come first, so that a handler which has seen
 * on_head is not left with a request that is refused here. */
unsigned bt_exchange_check_head(bt_exchange_t *x, const bt_budget_client_t *ticket,
                                const char **reason_p);
void bt_exchange_put_refusal(bt_exchange_t *x, unsigned status, const char *reason);
/* The answer's first headers: Date, Server and CORS, as many as are returned. */
#define BT_OWN_HEADERS_MAX (2 + BT_CORS_HEADERS_MAX)
unsigned bt_exchange_own_headers(bt_exchange_t *x, bt_header_t headers[BT_OWN_HEADERS_MAX]);
bool bt_header_is_clean(const bt_header_t *header);

/* exchange_body.c: what a body holds while it is read, and how long it may take. */
extern const char bt_exchange_no_room[];
bool bt_exchange_has_room(bt_exchange_t *x);             /* for one more request with a body */
bool bt_exchange_reserve(bt_exchange_t *x, size_t more); /* may its body hold so much more? */
void bt_exchange_note(bt_exchange_t *x, size_t bytes); /* it holds so much, and more has to come */
/* The first buffer of a body of `whole` bytes; NULL: it is refused with 503, *reason_p. */
bt_buf_t *bt_exchange_first_buf(bt_exchange_t *x, size_t whole, const char **reason_p);
unsigned bt_exchange_grow_body(bt_exchange_t *x, size_t need, size_t most); /* 0 or the status */
unsigned bt_exchange_add_body(bt_exchange_t *x, bt_str_t data);             /* 0 or the status */
void bt_exchange_drop_body(bt_exchange_t *x); /* its bytes may be many */
/* From now to the nearest deadline of a body of which so much is there; 0 = none. */
uint64_t bt_exchange_body_wait_ms(const bt_exchange_t *x, uint64_t received);

/* server_body.c */
bool bt_conn_begin_body(bt_server_conn_t *c);
bool bt_conn_read_body(bt_server_conn_t *c); /* false: more has to come */
/* Of a body that is read into its own buffer: where its next bytes go, and that n have gone there. What of them is not its own is returned,
 * SPARE_BYTES at most. */
size_t bt_conn_body_room(const bt_server_conn_t *c, char **p_p);
bt_str_t bt_conn_add_body(bt_server_conn_t *c, size_t n);
void bt_conn_note_unfinished(bt_server_conn_t *c);

/* server_conn.c */
extern const bt_stream_ops_t bt_server_stream_ops;
void bt_conn_init_timers(bt_server_conn_t *c);
void bt_conn_wait_idle(bt_server_conn_t *c);                 /* -> IDLE */
uint64_t bt_conn_idle_ms(const bt_server_conn_t *c);         /* how long it may be idle */
void bt_conn_advance(bt_server_conn_t *c);                   /* does what the unread input allows */
void bt_conn_set_deadline(bt_server_conn_t *c, uint64_t ms); /* 0 = none */
void bt_conn_stop_reading_request(bt_server_conn_t *c);      /* it is complete, or refused */
/* Before it has a handler. Returns true: the next step can be taken. */
bool bt_conn_refuse_request(bt_server_conn_t *c, unsigned status, const char *reason);
void bt_conn_watch(bt_server_conn_t *c);         /* starts polling when there is a reason to */
void bt_conn_drop_exchange(bt_server_conn_t *c); /* frees what belongs to the exchange */
void bt_conn_drop_request(bt_server_conn_t *c);  /* the head's bytes */

/* http2_conn.c */
int bt_http2_share(bt_server_t *server);
void bt_http2_unshare(bt_server_t *server);
enum bt_preface { BT_PREFACE_NO, BT_PREFACE_MAYBE, BT_PREFACE_YES };
enum bt_preface bt_http2_preface(bt_str_t first); /* is a connection's first input HTTP/2's? */
void bt_http2_begin(bt_server_conn_t *c);         /* may close it */
void bt_http2_drain(bt_server_conn_t *c);
void bt_http2_leave(bt_server_conn_t *c); /* it is closed: nothing more comes of its streams */
void bt_http2_gone(bt_server_conn_t *c);  /* then their handlers are told */
void bt_http2_free(bt_server_conn_t *c);

/* server_answer.c */
extern const bt_exchange_wire_t bt_http1_wire;
void bt_conn_refuse(bt_server_conn_t *c, unsigned status, const char *reason);
void bt_conn_emit(bt_server_conn_t *c, bool last); /* writes the open chunk */
void bt_conn_answered(bt_server_conn_t *c);        /* in FLUSH: goes on when all has left */
void bt_conn_drop_open(bt_server_conn_t *c);

#endif
