/* client_impl.h - the connections behind client.h. Private to core/http (upstream.c and client.c).
 *
 * Owner: the upstream owns its connections; a call borrows one while it runs.
 * Life:  open or take_idle -> (a call) -> park -> ... -> close; the memory goes back to the pool once libuv has let go.
 * Flow:  a connection is connecting, with a call, idle or closing; idle ones keep reading, so that the worker's FIN, RST
 *        or a byte nobody asked for removes them at once.
 * Cost:  O(1); less than 1 KiB a connection.
 */
#ifndef BT_HTTP_CLIENT_IMPL_H
#define BT_HTTP_CLIENT_IMPL_H

#include "base/slab.h"
#include "http/answer.h"
#include "http/client.h"
#include "tls/client.h"

struct bt_upstream {
    bt_loop_t *loop;
    struct sockaddr_storage addr;
    bt_upstream_config_t config;
    char *tls_name;         /* config's */
    bt_tls_slot_t tls_slot; /* a ticket for the next connection */
    bt_slab_t conns;
    bt_list_t idle; /* newest first */
    unsigned idle_count;
    unsigned active_count; /* calls running */
    unsigned open_count;   /* connections whose memory is out of the pool */
    unsigned addr_epoch;   /* counts changes of addr */
    bool freed;            /* goes when open_count is 0 */
};

/* What a connection's timer stands for. */
enum bt_call_deadline {
    BT_DEADLINE_IDLE,
    BT_DEADLINE_DIAL, /* waits for a descriptor: tried again then */
    BT_DEADLINE_CONNECT,
    BT_DEADLINE_SEND, /* the worker takes no request bytes */
    BT_DEADLINE_FIRST_BYTE,
    BT_DEADLINE_STALL,
    BT_DEADLINE_WRITE_LOST, /* writing failed; a last chance for an answer sent before that */
    BT_DEADLINE_FAILED      /* failed inside bt_call_start: tell from the loop */
};

typedef struct bt_conn {
    bt_stream_t stream;
    bt_upstream_t *up;
    bt_call_t *call; /* NULL: idle or closing */
    bt_list_t idle_link;
    bt_idle_t spare; /* while it is idle: another connection may have its descriptor */
    bt_timer_t timer;
    enum bt_call_deadline deadline;
    int failed_rc; /* for BT_DEADLINE_FAILED */
    unsigned addr_epoch;
    bool connected, write_lost;
    bool is_counted;         /* in the budget */
    uint64_t dial_until_ms;  /* BT_DEADLINE_DIAL: given up then */
    uint64_t written_before; /* stream's count when the call began */
    uint64_t written_mark;   /* BT_DEADLINE_SEND: count when the timer was last started */
    uint64_t first_due_us;   /* BT_DEADLINE_FIRST_BYTE: when it ends */
    uint64_t first_left_ms;  /* what was left of it when the call was paused */
    uint64_t heard_ms;       /* BT_DEADLINE_STALL: when answer bytes have come last */
    bt_answer_t answer;
} bt_conn_t;

/* Implemented by client.c. */
extern const bt_stream_ops_t bt_call_stream_ops;
void bt_call_on_deadline(bt_timer_t *timer);

/* A fresh connection, not connected yet. */
int bt_upstream_new_conn(bt_conn_t **conn_p, bt_upstream_t *up);
bt_conn_t *bt_upstream_take_idle(bt_upstream_t *up); /* or NULL */
/* To the idle list; closed instead when the upstream is gone, has another address or enough idle ones. */
void bt_upstream_park(bt_conn_t *conn);
void bt_upstream_close_conn(bt_conn_t *conn); /* the call must have been taken off */
void bt_upstream_close_idle(bt_upstream_t *up);
/* Frees the memory; for on_closed. */
void bt_upstream_forget(bt_conn_t *conn);

#endif
