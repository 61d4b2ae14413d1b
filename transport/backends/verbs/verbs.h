/* verbs.h - the shapes of the verbs back end: agent's rails, a path's connections, the jobs on them. Private to backend_verbs.c and verbs_*.c.
 *
 * Owner: the back end owns rails and paths; a path its connections, jobs and inbox. All under the agent's lock.
 * Life:  a path has one connection per rail; a batch is a job while the back end has it, cut into shares, one a connection.
 * Flow:  post -> job queued -> started (cut into shares, given a serial number) -> shares post their messages, the last of which
 *        tells the receiver -> completions -> all shares done -> bt_kv_batch_over.
 * Cost:  O(messages); jobs come from a pool, nothing else is allocated per batch.
 */
#ifndef BT_TRANSPORT_VERBS_H
#define BT_TRANSPORT_VERBS_H

#include "base/slab.h"
#include "transport/backends/backend.h"
#include "transport/backends/verbs/verbs_rail.h"

enum bt_verbs_notice_kind { BT_VERBS_NOTICE_NOTE = 1, BT_VERBS_NOTICE_TICK, BT_VERBS_NOTICE_PROBE };

/* What is sent as a message; little-endian as the machine is (checked at the handshake by the magic). */
typedef struct bt_verbs_notice {
    uint8_t kind;
    uint8_t ticks;  /* 1 = it is also the share's telling message */
    uint8_t shares; /* of the batch, in all */
    uint8_t is_cancelled;
    uint32_t serial;
    uint8_t note_bytes;
    uint8_t note[BT_KV_NOTE_BYTES];
    uint8_t pad[7];
} bt_verbs_notice_t;

#define BT_VERBS_PAIRS_MAX BT_VERBS_RAILS_MAX
#define BT_VERBS_CHAIN 64  /* messages posted with one call */
#define BT_VERBS_WINDOW 64 /* batches that a path takes at once */
#define BT_VERBS_NOTES 256 /* > window + what one rail's poll can run ahead of another's */
#define BT_VERBS_WHY_BYTES 160

/* How the receiver learns that a batch has come: the last message of each share carries its serial number (imm), a small message follows it
 * (send), or the control connection says so after the local completion (control). The best that both sides offer. */
enum bt_verbs_mode { BT_VERBS_IMM = 1, BT_VERBS_SEND = 2, BT_VERBS_CONTROL = 4 };

/* Specs turn these; programs leave them. BATON_KV_RDMA_COMPLETION (imm, send or control) overrides `modes`. */
typedef struct bt_verbs_tuning {
    uint32_t modes; /* that this side offers */
    uint32_t slice_bytes;
    uint32_t send_depth, signal_every;
    uint32_t pause_ms; /* of a rail with errors, before a probe */
    uint32_t drain_ms; /* patience with posted messages of a failed room */
    uint64_t message_max;
} bt_verbs_tuning_t;
extern bt_verbs_tuning_t bt_verbs_tuning;

typedef struct bt_verbs bt_verbs_t;
typedef struct bt_verbs_path bt_verbs_path_t;
typedef struct bt_verbs_conn bt_verbs_conn_t;
typedef struct bt_verbs_job bt_verbs_job_t;

/* Where in a batch's bytes we are. */
typedef struct bt_verbs_cursor {
    uint32_t run, row;
    uint64_t byte; /* of the row */
} bt_verbs_cursor_t;

typedef struct bt_verbs_share {
    bt_list_t link; /* conn's backlog or sent, or the path's orphans */
    bt_verbs_job_t *job;
    bt_verbs_conn_t *conn;
    bt_verbs_cursor_t start, at; /* its first byte; the next one to post */
    uint64_t bytes, left;
    bool has_notice;    /* it carries the job's note (the first share does) */
    bool notice_posted; /* imm: ahead of the data */
    bool is_closed;     /* all its messages are posted */
    uint64_t last_seq;  /* of its last message on the connection */
    uint64_t
        closing; /* the connection's so-manieth message that tells the receiver; 0 = none does */
} bt_verbs_share_t;

struct bt_verbs_job {
    bt_list_t link; /* path's waiting or started */
    bt_verbs_path_t *path;
    bt_kv_batch_t *batch;
    uint32_t serial;
    bool tells;                     /* the receiver is told: it has a serial */
    bool is_cancelled;              /* the rest is not sent; the receiver is told to forget it */
    int rc;                         /* why */
    uint64_t bytes, drain_since_ms; /* 0 = nobody waits */
    unsigned share_count, shares_done;
    bt_verbs_share_t shares[BT_VERBS_PAIRS_MAX];
};

enum bt_verbs_conn_state {
    BT_VERBS_IDLE,    /* no queue pair */
    BT_VERBS_INIT,    /* ours is made, the peer's not known */
    BT_VERBS_MET,     /* connected; the peer's side may not be yet */
    BT_VERBS_PROBING, /* after a pause: a notice is under way, data waits for it */
    BT_VERBS_LIVE,
    BT_VERBS_FAILING, /* its queue pair is in the error state; progress takes leave of the peer */
    BT_VERBS_LOST,    /* the peer's count of what it got is awaited */
    BT_VERBS_PAUSED
};

struct bt_verbs_conn {
    bt_verbs_path_t *path;
    bt_verbs_rail_t *rail;
    unsigned pair, peer_rail;
    enum bt_verbs_conn_state state;
    uint8_t epoch; /* of this pair: each new queue pair counts it up */
    struct ibv_qp *qp;
    struct ibv_cq *cq;
    bt_list_t qpn_link;    /* rail's by_qpn */
    bt_list_t active_link; /* back end's, while messages are out */
    uint32_t psn, depth, inline_max;
    enum ibv_mtu mtu;
    uint64_t posted, completed; /* messages: next number; all below are over */
    uint64_t last_signalled;
    uint64_t closings_posted, closings_got; /* telling messages, ours to the peer and back */
    bool peer_left;                         /* its LEAVE is here */
    uint64_t peer_closings;                 /* of ours that it got */
    bt_list_t backlog, sent;                /* shares: not wholly posted; posted */
    uint64_t backlog_bytes;
    char *notices; /* where notices lie that cannot go inline; NULL = they can */
    struct ibv_mr *notices_mr;
    uint64_t retry_at_ms; /* paused until */
    uint64_t bytes;
    char why[BT_VERBS_WHY_BYTES];
};

/* What a receiver knows of a batch on its way: from the first sign of it until its notice is here
 * and each of its shares has ticked. */
typedef struct bt_verbs_entry {
    uint32_t serial;
    uint8_t ticks, shares; /* got; to come in all (0 = the notice is not there yet) */
    bool is_cancelled;
    uint8_t note_bytes;
    uint8_t note[BT_KV_NOTE_BYTES];
} bt_verbs_entry_t;

typedef struct bt_verbs_drain { /* of a room that the peer may be writing for */
    bt_list_t link;
    uint64_t tag, asked_ms;
    bool is_answered;
} bt_verbs_drain_t;

typedef struct bt_verbs_region { /* of the peer's */
    bt_kv_region_t id;           /* 0 = free */
    uint64_t base, size;
    uint32_t rkeys[BT_VERBS_RAILS_MAX];
} bt_verbs_region_t;

struct bt_verbs_path {
    bt_kv_path_t base;
    bt_verbs_t *verbs;
    bt_list_t link;
    bool is_initiator, is_ready, ready_told, is_failed, failure_told;
    enum bt_verbs_mode mode;
    char why[BT_VERBS_WHY_BYTES];
    unsigned pair_count, peer_rails;
    bt_verbs_conn_t conns[BT_VERBS_PAIRS_MAX];
    bt_list_t waiting, started; /* jobs */
    bt_list_t orphans;          /* shares that lost their connection */
    unsigned job_count;
    unsigned turn;        /* which connection is next among equals */
    uint32_t next_serial; /* of what we send */
    uint32_t first_open;  /* the lowest serial of the peer's that is not over */
    bt_verbs_entry_t entries[BT_VERBS_NOTES];
    bt_verbs_region_t *regions; /* open addressing */
    uint32_t region_slots, region_count;
    const bt_verbs_region_t *last_region;
    bt_list_t drains, asked; /* ours to the peer; the peer's to us, not answered yet */
    uint32_t asked_count;
    uint64_t refused_tags
        [64]; /* tags that the peer has drained: later batches of theirs are given up at once */
    unsigned refused_count;
};

typedef struct bt_verbs_mem { /* bt_kv_mem_t.keys[verbs] */
    uint64_t base;            /* what the remote address of its first byte is */
    struct ibv_mr *mr[BT_VERBS_RAILS_MAX];
} bt_verbs_mem_t;

struct bt_verbs {
    bt_kv_backend_t base;
    bt_verbs_rail_t rails[BT_VERBS_RAILS_MAX];
    unsigned rail_count;
    uint32_t modes;
    bool has_dmabuf, is_armed;
    bt_list_t paths, active; /* active: connections with messages out */
    bt_slab_t jobs;
    uint64_t looked_ms; /* when timers and events were last looked at */
};

static inline bt_verbs_t *bt_verbs_of(bt_kv_backend_t *backend)
{
    return bt_container_of(backend, bt_verbs_t, base);
}

static inline bt_verbs_path_t *bt_verbs_path_of(bt_kv_path_t *path)
{
    return bt_container_of(path, bt_verbs_path_t, base);
}

static inline const bt_verbs_mem_t *bt_verbs_mem_of(const bt_kv_mem_t *mem)
{
    return mem->keys[4]; /* bt_kv_backend_index(BT_KV_VERBS) */
}

/* ---- verbs_mem.c ---- */
int bt_verbs_mem_add(bt_kv_backend_t *backend, bt_kv_mem_t *mem);
void bt_verbs_mem_remove(bt_kv_backend_t *backend, bt_kv_mem_t *mem);
size_t bt_verbs_mem_key(bt_kv_backend_t *backend, const bt_kv_mem_t *mem, uint8_t *to, size_t size);
int bt_verbs_mem_peer(bt_kv_path_t *path, bt_kv_region_t id, uint64_t size, const uint8_t *key,
                      size_t key_size);
const bt_verbs_region_t *bt_verbs_mem_find(bt_verbs_path_t *path, bt_kv_region_t id);
/* One call with no file behind it: the kernel says "bad file" only where it knows the request. */
bool bt_verbs_mem_probe_dmabuf(const bt_verbs_rail_t *rail);

/* ---- verbs_inbox.c ---- */
/* Takes what has come to a rail: notices and immediates become notes. Number of completions. */
int bt_verbs_inbox_poll(bt_verbs_rail_t *rail);

/* ---- verbs_path.c: the life of the connections of a path, by messages on the control connection ---- */
int bt_verbs_path_start(bt_verbs_path_t *path);
int bt_verbs_path_received(bt_kv_path_t *path, const uint8_t *message, size_t size);
/* Takes leave of failed connections, probes paused ones, reports ready and failed. Number of things done. */
int bt_verbs_path_progress(bt_verbs_path_t *path, uint64_t now_ms);
void bt_verbs_path_fail(bt_verbs_path_t *path, const char *why);
/* 0, or the message could not be sent. kinds: below. */
int bt_verbs_path_send_tag(bt_verbs_path_t *path, uint8_t kind, uint64_t tag);
/* In `drains` or `asked`; NULL: it is not there. */
bt_verbs_drain_t *bt_verbs_drain_find(const bt_list_t *list, uint64_t tag);
int bt_verbs_path_send_note(bt_verbs_path_t *path, const bt_kv_batch_t *batch);

enum bt_verbs_message {
    BT_VERBS_MEET = 1, /* a queue pair of ours: connect yours to it */
    BT_VERBS_READY,    /* mine is connected to yours */
    BT_VERBS_LEAVE,    /* mine is in the error state, after so many telling messages of yours */
    BT_VERBS_NOTE,     /* control mode: a batch has come */
    BT_VERBS_DRAIN,    /* send nothing more of this tag */
    BT_VERBS_DRAINED   /* nothing of it is under way, nor will be */
};

#endif
