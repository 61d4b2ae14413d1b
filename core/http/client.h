/* client.h - HTTP/1.1 calls to workers over pooled keep-alive connections.
 *
 * Owner: an upstream (pool of connections to one address) belongs to one loop; the caller owns the bt_call_t memory.
 * Life:  bt_call_start -> on_head -> on_body* -> exactly one of on_end / on_fail; or bt_call_cancel, after which no
 *        callback comes and the memory may go at once (the connection is a separate object).
 * Flow:  an idle connection is taken newest first, else a new one is opened; where no descriptor is left, an idle one of
 *        anybody's is closed for it first (budget.h), and the call waits for that, as long as for a connect. A *reused* connection that dies before any
 *        answer byte is retried once on a fresh one (but see bt_call.once). 1xx answers are swallowed. Deadlines: connect, first byte (from the
 *        moment the request is written to the first *body* byte or the end: engines send their head at once), stall
 *        (between body bytes, and while the worker takes no request bytes), total (from start).
 * Cost:  no allocation per call or read after warm-up; deadlines are O(1) wheel timers.
 */
#ifndef BT_HTTP_CLIENT_H
#define BT_HTTP_CLIENT_H

#include "base/buf.h"
#include "base/list.h"
#include "http/budget.h"
#include "http/message.h"
#include "loop/loop.h"
#include "loop/stream.h"

typedef struct bt_upstream bt_upstream_t;
typedef struct bt_call bt_call_t;
struct bt_conn; /* private */

typedef struct bt_upstream_config {
    uint64_t
        idle_timeout_ms; /* an idle pooled connection is closed after it (engines close at 5 s); 0 = 4 000 */
    unsigned idle_max;   /* idle connections kept; 0 = none; default 256 */
    bt_budget_t *budget; /* whose descriptors these are; borrowed; NULL = nobody counts */
    struct bt_tls_client
        *tls; /* tls/client.h; the upstream takes a reference of its own; NULL = plain */
    const char *tls_name; /* what the certificate must be for; copied */
} bt_upstream_config_t;

/* addr is copied; config NULL = defaults. */
int bt_upstream_new(bt_upstream_t **up_p, bt_loop_t *loop, const struct sockaddr *addr,
                    const bt_upstream_config_t *config);
void bt_upstream_set_addr(
    bt_upstream_t *up,
    const struct sockaddr *addr); /* new connections only; idle ones dropped if it differs */
/* Closes idle connections now; the struct goes when the last call has ended. */
void bt_upstream_free(bt_upstream_t *up);
unsigned bt_upstream_idle_count(const bt_upstream_t *up);
unsigned bt_upstream_active_count(const bt_upstream_t *up);

/* All four are needed. Each may cancel or free its call, and start or cancel others. */
typedef struct bt_call_ops {
    void (*on_head)(
        bt_call_t *call); /* call->head is there: until on_end, on_fail or cancel has returned */
    /* Decoded body bytes (chunk framing removed); ref buf to keep them. Several calls a turn. */
    void (*on_body)(bt_call_t *call, bt_buf_t *buf, const char *p, size_t n);
    void (*on_end)(
        bt_call_t *call); /* answer complete; the connection has gone back to the pool or closed */
    void (*on_fail)(
        bt_call_t *call,
        int rc); /* BT_E_CONNECT, _CONNECT_TIMEOUT, _TLS, _DESCRIPTORS, _RESET, _FIRST_BYTE_TIMEOUT, _STALL,
                                                 _TOTAL_TIMEOUT, _UPSTREAM_HTTP, or a uv code */
} bt_call_ops_t;

typedef struct bt_call_timeouts {
    uint64_t connect_ms, first_byte_ms, stall_ms, total_ms; /* 0 = none */
} bt_call_timeouts_t;

struct bt_call {
    const bt_call_ops_t *ops;
    void *user;
    bt_upstream_t *up;
    struct bt_conn *conn;  /* while it runs */
    const bt_head_t *head; /* answer's head, from on_head on; NULL = not yet, or dropped */
    unsigned status;       /* and its status, which stays; 0 = not yet */
    bt_call_timeouts_t timeouts;
    uint64_t start_us;
    uint64_t sent_us;       /* last request byte accepted by the kernel; 0 = not yet */
    uint64_t first_byte_us; /* of the answer's head */
    uint64_t body_bytes;
    const char *why; /* after BT_E_TLS: what was wrong, for people; lives for ever */
    bool reused;     /* ran on a pooled connection */
    bool
        any_byte_sent; /* set when the call is over: at least one request byte may have reached the worker on the
                                      last connection tried (a stale pooled one before it may have taken some, too) */
    bool head_request; /* the request was HEAD (read off its first bytes): no body follows */
    bool once; /* set after bt_call_start where the worker must not see the request twice: a reused
                                      connection that dies after some bytes went out is BT_E_RESET, not tried again */
    /* private */
    const struct bt_slice *request; /* slices of head and body */
    unsigned request_count;
    bool retried, paused, done;
    bt_timer_t total_timer;
};

/* request: slices of the complete request (head with Content-Length, then body), borrowed until the call is over
 * (end, fail or cancel); slices without owner must live as long. Never calls back from inside. Fills all of *call. An
 * error (BT_E_NOMEM, a freed upstream: BT_E_INVAL) means that nothing was started. */
int bt_call_start(bt_call_t *call, bt_upstream_t *up, const bt_call_ops_t *ops, void *user,
                  const struct bt_slice *request, unsigned request_count,
                  const bt_call_timeouts_t *timeouts);
/* Closes the connection (the worker sees FIN/RST at once). Idempotent; fine after the end. */
void bt_call_cancel(bt_call_t *call);
/* Back-pressure: a paused call reads nothing more (stall and first-byte deadlines stand still; what one read has brought
 * already, at most BT_BUF_STD_BYTES, still arrives, and may complete the answer). */
void bt_call_pause(bt_call_t *call);
void bt_call_resume(bt_call_t *call);
static inline bool bt_call_paused(const bt_call_t *call)
{
    return call->paused;
}
/* From on_head on, where the head is not looked at again: a long answer does not hold it. */
void bt_call_drop_head(bt_call_t *call);
bool bt_call_running(const bt_call_t *call);
/* False: no byte of the request will be read any more, now or by a try on a fresh connection. */
bool bt_call_needs_request(const bt_call_t *call);

#endif
