/* tcp.h - the insides of the TCP back end, shared by tcp_*.c only.
 *
 * Owner: bt_tcp_t belongs to the agent; a path to the back end until path_close; a connection to its path, or to the back end while it is a guest.
 * Life:  a path: OPENING (the receiver's side tells a token, the other dials) -> READY -> BROKEN, final.
 * Flow:  everything under the agent's lock, but one writev or readv at a time (bt_tcp_write_slice, bt_tcp_take_slice).
 * Cost:  a turn without news is one epoll_wait of no time, one that has work mostly none; nothing is allocated once a path is open.
 */
#ifndef BT_TRANSPORT_TCP_H
#define BT_TRANSPORT_TCP_H

#include "transport/backends/backend.h"
#include "transport/backends/tcp/tcp_wire.h"

#include <netinet/in.h>
#include <sys/uio.h>

#define BT_TCP_STREAMS_MAX 16u
#define BT_TCP_GUESTS_MAX 64u /* connections whose path is not known yet */
#define BT_TCP_HANDSHAKE_MS 5000u
#define BT_TCP_GRACE_MS                                                                            \
    50u /* between the loss of a data connection and telling the agent: the control connection may know why */
#define BT_TCP_IOVS 1024 /* IOV_MAX */
#define BT_TCP_ARENA_BYTES 24576u
#define BT_TCP_STAGE_BYTES 16384u
#define BT_TCP_AHEAD_BYTES                                                                         \
    512u /* read ahead of a frame: what lies behind its head is copied once more */
#define BT_TCP_SLICE_BYTES ((size_t) 1 << 20) /* of a readv */
/* Offered to a writev, which takes what the socket has room for: when 256 KiB were offered, it took half as much CPU again. */
#define BT_TCP_PLAN_BYTES ((size_t) 4 << 20)
#define BT_TCP_DIRECT_BYTES ((size_t) 64 << 10) /* so much is written by post itself */
#define BT_TCP_SLOTS 256u                       /* batches begun and not yet acknowledged, a path */
#define BT_TCP_PLAN_BLOCKS 64u
#define BT_TCP_ACKS 256u /* waiting to be written, a connection */

typedef struct bt_tcp bt_tcp_t;
typedef struct bt_tcp_path bt_tcp_path_t;

enum bt_tcp_conn_state {
    BT_TCP_GUEST,      /* accepted: it has not said which path it belongs to */
    BT_TCP_CONNECTING, /* dialled */
    BT_TCP_GREETING,   /* dialled: the other side has not welcomed it yet */
    BT_TCP_OPEN,
    BT_TCP_DEAD /* closed; freed by the next turn, since an event may name it still */
};

/* What is being written: pieces of the arena (frames) and of the agent's pages, in order. */
typedef struct bt_tcp_plan {
    struct iovec iov[BT_TCP_IOVS];
    uint32_t iov_at, iov_count;
    size_t bytes; /* left */
    uint8_t arena[BT_TCP_ARENA_BYTES];
    size_t arena_used;
    struct {
        uint16_t slot, iov_end;
    } blocks[BT_TCP_PLAN_BLOCKS];
    uint32_t block_at, block_count; /* those before block_at are written */
} bt_tcp_plan_t;

/* What is being read: a frame's head in the stage, then its payload into pages. */
typedef struct bt_tcp_rx {
    uint8_t stage[BT_TCP_STAGE_BYTES + BT_TCP_AHEAD_BYTES];
    size_t stage_at, stage_n; /* bytes [at, n) are not used yet */
    bool in_payload, is_held; /* is_held: frames wait in the stage until acks have gone */
    bt_tcp_head_t head;
    bt_tcp_run_t runs[BT_TCP_RUNS_MAX];
    uint32_t run_at;
    uint64_t run_byte, left; /* into runs[run_at]; of the payload */
} bt_tcp_rx_t;

typedef struct bt_tcp_conn {
    bt_list_t link; /* the back end's guests, or dead */
    bt_tcp_t *tcp;
    bt_tcp_path_t *path; /* NULL: a guest */
    int fd;
    enum bt_tcp_conn_state state;
    uint16_t stream;
    bool may_read, may_write; /* until the kernel says EAGAIN */
    bool is_writing;          /* with the lock let go: the plan is that writev's */
    uint64_t deadline_ms;
    bt_tcp_plan_t plan;
    bt_tcp_rx_t rx;
    uint8_t acks[BT_TCP_ACKS * BT_TCP_SHORT_BYTES];
    uint32_t ack_count;
} bt_tcp_conn_t;

/* A batch of ours that has begun. */
typedef struct bt_tcp_slot {
    bt_kv_batch_t *batch; /* NULL: dropped, and the agent's again */
    uint64_t number, tag;
    uint32_t blocks, unwritten; /* cut; of these, in some plan */
    bool is_busy, is_dropped;
    bool is_cut; /* its last block, or that it is given up, has been put into a plan */
} bt_tcp_slot_t;

/* A batch of the peer's that has begun. */
typedef struct bt_tcp_entry {
    uint64_t number, tag;
    uint32_t blocks, blocks_wanted; /* wanted 0: not known yet */
    bool is_busy, is_refused;
    uint8_t note[BT_KV_NOTE_BYTES];
    uint32_t note_bytes;
} bt_tcp_entry_t;

enum bt_tcp_stage { BT_TCP_OPENING, BT_TCP_READY, BT_TCP_BROKEN };

struct bt_tcp_path {
    bt_kv_path_t base;
    bt_list_t link;
    enum bt_tcp_stage stage;
    bool is_initiator, has_told,
        has_dialled; /* has_told: the agent knows that it is READY, or BROKEN */
    int rc;
    char why[200];
    uint64_t tell_ms, deadline_ms, opened_us;
    uint8_t token[BT_TCP_TOKEN_BYTES];
    bt_tcp_offer_t offer; /* the peer's */
    uint32_t address_at;  /* of the offer's: which one is dialled */
    int dial_errno;       /* at once; looked at by the next step */
    bt_tcp_conn_t *conns[BT_TCP_STREAMS_MAX];
    uint32_t streams, open; /* wanted (0: not known yet), of which open */
    /* sender */
    bt_list_t waiting; /* bt_kv_batch_t.link: not begun */
    bt_tcp_slot_t slots[BT_TCP_SLOTS];
    uint64_t cut_number,
        next_number; /* the one being cut (== next_number: none); the next to begin */
    /* receiver */
    bt_tcp_entry_t entries[BT_TCP_SLOTS];
    uint64_t bytes_out, bytes_in;
};

struct bt_tcp {
    bt_kv_backend_t base;
    int listener, inner, wake_fd; /* inner: an edge-triggered epoll over all sockets */
    bt_tcp_offer_t offer;
    uint32_t streams;
    bt_list_t paths, guests, dead;
    uint32_t guest_count, blind_turns; /* blind: since the sockets' events were looked at */
    bool is_armed, in_progress;
    char *discard; /* where refused payload goes */
};

static inline bt_tcp_path_t *bt_tcp_path_of(const bt_kv_path_t *base)
{
    return (bt_tcp_path_t *) (uintptr_t) base;
}

static inline bt_tcp_t *bt_tcp_of(const bt_tcp_path_t *path)
{
    return (bt_tcp_t *) (void *) path->base.backend;
}

/* tcp_conn.c: sockets */
int bt_tcp_listen(bt_tcp_t *tcp, const char *host, char *err, size_t err_size);
void bt_tcp_conn_close(bt_tcp_conn_t *conn);
void bt_tcp_conns_reap(bt_tcp_t *tcp);
/* All streams, to the offer's address_at. */
void bt_tcp_dial(bt_tcp_path_t *path);
void bt_tcp_connected(bt_tcp_conn_t *conn); /* or not */
void bt_tcp_accept(bt_tcp_t *tcp);
/* A guest has something to read: it joins its path, or goes. */
void bt_tcp_guest_read(bt_tcp_conn_t *conn);
void bt_tcp_guests_expire(bt_tcp_t *tcp, uint64_t now_ms);

/* tcp_path.c */
int bt_tcp_path_open(bt_kv_path_t **path_p, bt_kv_backend_t *backend, bt_kv_link_t *link,
                     const uint8_t *offer, size_t size, bool is_initiator);
int bt_tcp_path_received(bt_kv_path_t *path, const uint8_t *message, size_t size);
void bt_tcp_path_close(bt_kv_path_t *path);
/* Final; the agent hears of it from progress. */
void bt_tcp_path_break(bt_tcp_path_t *path, int rc, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void bt_tcp_path_lost(bt_tcp_conn_t *conn, int error); /* 0: the peer has closed it */
int bt_tcp_path_step(bt_tcp_path_t *path, uint64_t now_ms);
bool bt_tcp_path_has_news(const bt_tcp_path_t *path);
/* One more of its connections works. */
void bt_tcp_path_opened(bt_tcp_path_t *path);

/* tcp_send.c */
int bt_tcp_post(bt_kv_path_t *path, bt_kv_batch_t *batch);
void bt_tcp_plan_add(bt_tcp_plan_t *plan, const void *p, size_t size); /* copied; there is room */
/* One writev. is_unlocked: without the agent's lock. Number of things done. */
int bt_tcp_write_slice(bt_tcp_conn_t *conn, bool is_unlocked);
bool bt_tcp_has_output(const bt_tcp_conn_t *conn);
void bt_tcp_acked(bt_tcp_path_t *path, const bt_tcp_head_t *head);
/* All that there is to drain: every readv asks anew whether the room still wants its bytes. */
bool bt_tcp_drain(bt_kv_path_t *path, uint64_t tag);
void bt_tcp_tx_drop(bt_tcp_path_t *path); /* all of it, BT_E_CANCELLED */

/* tcp_take.c */
/* At most one slice; lets the lock go. Number of things done. */
int bt_tcp_take_slice(bt_tcp_conn_t *conn);
static inline bool bt_tcp_can_take(const bt_tcp_conn_t *conn)
{
    return conn->ack_count < BT_TCP_ACKS && (conn->may_read || conn->rx.is_held);
}

#endif
