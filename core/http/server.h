/* server.h - client connections, of HTTP/1.1 and of HTTP/2 where it is on.
 *
 * Owner: the loop. A connection owns its current exchange (HTTP/2: those of its streams); the handler borrows the exchange until it has called
 *        bt_exchange_end/_abort or got on_gone.
 * Life:  on_request (head and whole body are there) -> respond | start + write* + end -> next request on the connection.
 *        With TLS the handshake comes first; what is plain HTTP then is told so (400).
 * Flow:  strict: no Host, two Hosts, CL+TE, two lengths, bare CR/LF, obs-fold, bad chunk, NUL -> 400 and close, handler
 *        never sees it. Expect: 100-continue answered before the body is read; Upgrade ignored; HEAD answers carry no
 *        body. The client's socket is watched all the time: FIN or RST before the end calls on_gone exactly once, also
 *        while pipelined bytes wait (read up to 64 KiB ahead, beyond that POLLRDHUP is polled every 50 ms).
 * Cost:  head parsed in place, body one contiguous buffer (a large one is read directly into it, and grows as it arrives); no
 *        allocation per written chunk; head and first body bytes leave in one write.
 */
#ifndef BT_HTTP_SERVER_H
#define BT_HTTP_SERVER_H

#include "base/arena.h"
#include "base/buf.h"
#include "base/text.h"
#include "http/budget.h"
#include "http/edge.h"
#include "http/message.h"
#include "http/unfinished.h"
#include "loop/listener.h"
#include "loop/loop.h"

struct bt_tls_info; /* tls/server.h */

typedef struct bt_server bt_server_t;     /* one per loop and listener address */
typedef struct bt_exchange bt_exchange_t; /* one request and its answer */

typedef struct bt_server_ops {
    /* Head is read, body not yet. Return 0 to go on, or an HTTP status (413, 415, 503 ...) to refuse before the body is
     * read; *reason_p may get a static text. May be NULL. Setting x->user here is allowed. */
    unsigned (*on_head)(bt_exchange_t *x, const char **reason_p);
    /* Whole request is there. The handler answers now or later. */
    void (*on_request)(bt_exchange_t *x);
    /* The client went away before the answer ended. The handler must drop x at once (no call on it any more).
     * Only called between on_request and end/abort. */
    void (*on_gone)(bt_exchange_t *x);
    /* The client reads again after bt_exchange_blocked() was true. May be NULL. */
    void (*on_drain)(bt_exchange_t *x);
    /* The JSON body of what the server refuses itself, before on_request; head.path is empty where no head was read. NULL: one of
     * {"error":{"message","type","code"}}. */
    void (*put_refusal)(bt_exchange_t *x, unsigned status, const char *message, bt_text_t *t);
} bt_server_ops_t;

typedef struct bt_server_config {
    size_t max_body_bytes;     /* 413 above; default 64 MiB */
    size_t max_buffered_bytes; /* whole process (bt_mem_total_bytes); 503 + Retry-After above */
    /* Deadlines; 0 = none. */
    uint64_t head_timeout_ms; /* from the first byte of a head to its end; default 10 000 */
    uint64_t body_stall_ms;   /* no body byte for so long: 408; default 30 000 */
    uint64_t body_timeout_ms; /* from the head's end to the body's; default 600 000 */
    uint64_t body_min_rate; /* bytes a second on average, after body_grace_ms: 408; default 1 024 */
    uint64_t body_grace_ms; /* default 10 000: round trips, a slow start */
    uint64_t idle_timeout_ms; /* keep-alive wait; default 75 000 */
    uint64_t
        write_stall_ms; /* the client takes no byte of its answer for so long: reset; default 60 000 */
    bool has_http2;     /* connections that begin with its preface are served too; default no */
    const char *server_name;   /* Server header, NULL = none */
    struct bt_tls_server *tls; /* tls/server.h; borrowed; NULL = plain */
    uint64_t tls_handshake_ms; /* from accept to the handshake's end; default 10 000 */
    uint64_t refused_body_ms;  /* HTTP/2: a refused request's body is dropped so long; 1 000 */
    bt_budget_t *budget;       /* how many connections there may be; borrowed; NULL = any number */
    const bt_edge_t *edge;     /* whom it believes what; borrowed; NULL = heads stay as they came */
} bt_server_config_t;
void bt_server_config_defaults(bt_server_config_t *config);

struct bt_exchange {
    bt_loop_t *loop;
    bt_server_t *server;
    const struct bt_exchange_wire *wire; /* private: how this connection's protocol answers */
    void *user;                          /* the handler's */
    bt_head_t head;
    bt_str_t body;           /* contiguous; empty when there is none */
    bt_buf_t *body_buf;      /* owner of body's bytes; handlers may take a reference */
    bt_arena_t arena;        /* dies with the exchange */
    uint64_t start_us;       /* first byte of the head */
    char peer[48];           /* client address as text */
    const char *proxy;       /* the connection's own, where it is a listed proxy's; else NULL */
    const char *cors_origin; /* cors.h's word on the page that asks; NULL = none */
    const char *tls_version; /* "TLSv1.3"; NULL = plain */
    const struct bt_stream *stream; /* the connection's; for bt_exchange_tls */
    uint64_t sender; /* whom unfinished bytes are charged to; on_head may set it; 0 = the peer */
    /* answer so far */
    unsigned status;    /* 0 until started */
    uint64_t body_sent; /* body bytes given to write */
    /* private: of a body that is being read */
    uint64_t body_ms;                 /* its head was accepted */
    bt_unfinished_entry_t unfinished; /* open while the request holds much */
};

/* A server takes accepted sockets of one loop. user is given to nobody; ops and config are borrowed for its life. */
int bt_server_new(bt_server_t **server_p, bt_loop_t *loop, const bt_server_ops_t *ops,
                  const bt_server_config_t *config, void *user);
void *bt_server_user(const bt_server_t *server);
const bt_edge_t *bt_server_edge(const bt_server_t *server);
/* Unfinished requests of all servers that share a table pay for one another's memory (unfinished.h). Before the first connection; the
 * table's evict must be bt_exchange_evict. */
void bt_server_share_memory(bt_server_t *server, bt_unfinished_loop_t *unfinished);
void bt_exchange_evict(bt_unfinished_entry_t *e);
/* Takes fd. client: whose connection it is, where somebody before us has said so; NULL: its other end's. */
void bt_server_accept(bt_server_t *server, int fd, const struct sockaddr_storage *client);
/* No new requests: idle connections close now, others after their answer. lets_idle_ask: a connection closes only after an answer that says
 * so (Connection: close), because the next request may be under way. */
void bt_server_drain(bt_server_t *server, bool lets_idle_ask);
unsigned bt_server_connection_count(const bt_server_t *server);
unsigned bt_server_active_count(
    const bt_server_t *server); /* exchanges between on_request and end */
/* Closes all connections (on_gone runs for open exchanges), then frees; done runs when the last one is closed. */
void bt_server_close(bt_server_t *server, void (*done)(void *arg), void *arg);

/* What is known of the client's session; false: the connection is plain. Borrowed until the exchange ends. */
bool bt_exchange_tls(const bt_exchange_t *x, struct bt_tls_info *info_p);

/* ---- answering ---- */
#define BT_LENGTH_CHUNKED                                                                          \
    UINT64_MAX /* unknown length: chunked for HTTP/1.1, close-delimited for 1.0 */

/* Starts the answer; nothing leaves before the end of the turn. headers are copied; Content-Length /
 * Transfer-Encoding / Connection / Date are made here, do not pass them. */
void bt_exchange_start(bt_exchange_t *x, unsigned status, const bt_header_t *headers,
                       unsigned header_count, uint64_t length);
/* Body bytes; refs owner; owner NULL = bytes live in x->arena or are static. Slices of one turn share one chunk head. */
void bt_exchange_write(bt_exchange_t *x, bt_buf_t *owner, const char *p, size_t n);
/* Ends the answer; trailers only with chunked. x must not be used after it. */
void bt_exchange_end(bt_exchange_t *x);
/* Gives up what the client has sent, headers and body, and x->arena: nobody reads them any more, they may be many bytes,
 * and the answer long. Nothing of the arena may still wait to be sent. */
void bt_exchange_drop_request(bt_exchange_t *x);
/* Breaks the answer off so that the client sees it is incomplete (connection closed without last chunk). Not on_gone. */
void bt_exchange_abort(bt_exchange_t *x);
/* The same with RST; what the kernel has not taken yet is lost. Also before the start. */
void bt_exchange_reset(bt_exchange_t *x);
/* Whole answer at once; body is copied. extra headers may be NULL/0. */
void bt_exchange_respond(bt_exchange_t *x, unsigned status, const char *content_type, bt_str_t body,
                         const bt_header_t *headers, unsigned header_count);
/* More than the high mark waits for the client: stop producing until on_drain. */
bool bt_exchange_blocked(const bt_exchange_t *x);
size_t bt_exchange_pending(const bt_exchange_t *x);
/* Sends now what was written in this turn (first token). */
void bt_exchange_flush(bt_exchange_t *x);

#endif
