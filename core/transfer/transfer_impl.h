/* transfer_impl.h - what the files of core/transfer share. Private to this folder.
 *
 * Owner: the control loop, all of it; mail (transfer.c) is the only thing that other threads make.
 * Life:  the hub lives until its last connection is closed and its last mail has come; an agent until its stream is closed; a room until it has ended, and a
 *        little longer for people to look at.
 * Flow:  agent.c (bytes) -> rank_group.c (whose agent is it) and report.c (what a room does) -> rooms.c (its life) -> mail to the loop that opened it.
 * Cost:  see transfer.h.
 */
#ifndef BT_TRANSFER_TRANSFER_IMPL_H
#define BT_TRANSFER_TRANSFER_IMPL_H

#include "base/err.h"
#include "base/log.h"
#include "base/map.h"
#include "loop/listener.h"
#include "loop/stream.h"
#include "transfer/transfer.h"
#include "transport/wire/auth.h"
#include "transport/wire/control.h"

#define BT_TRANSFER_REASON 240
#define BT_TRANSFER_RANKS BT_KV_CONTROL_PEERS_MAX
#define BT_TRANSFER_KEPT 128 /* ended rooms that can still be looked at */
#define BT_TRANSFER_TOMBS 16384
/* Who is to blame for a failure that a side has told is known when the other side's agent is lost too; after so long it is nobody's (rules.md, 5). */
#define BT_TRANSFER_BLAME_MS 100
/* A receiver may still tell that its old sender is lost while SOURCE is on its way to it. */
#define BT_TRANSFER_SETTLE_MS 1000

typedef struct bt_transfer_agent bt_transfer_agent_t;
typedef struct bt_transfer_rank_group bt_transfer_rank_group_t;
typedef struct bt_transfer_room bt_transfer_room_t;
typedef struct bt_transfer_mail bt_transfer_mail_t;

/* ---- agents ---- */
struct bt_transfer_agent {
    bt_transfer_t *t;
    bt_stream_t stream;
    bt_list_t link;         /* in t->agents from accept on; alone once it is lost */
    bt_list_t participants; /* in rooms that have not ended */
    unsigned participant_count;
    bt_transfer_rank_group_t *group; /* NULL: its worker is not known (yet) */
    bt_kv_auth_t auth;               /* with a token: before HELLO, and what seals messages then */
    bool is_registered;              /* HELLO was good */
    bool is_over;                    /* lost or refused: nothing is read or said any more */
    char peer[64];                   /* address it connects from */
    /* HELLO */
    char name[BT_KV_CONTROL_TEXT_MAX + 1], worker[BT_KV_CONTROL_TEXT_MAX + 1], host[64];
    uint16_t port;
    uint32_t rank, ranks, kinds, pid;
    uint64_t incarnation;
    /* signs of life */
    bt_timer_t timer;
    uint64_t since_ms, heard_ms, said_ms;
    bool may_return;    /* it has hung up because we slept */
    const char *broken; /* set where it must not be lost at once: the timer does it */
    uint64_t bytes_sent, bytes_received, page_bytes; /* its PINGs; its last ROOM that knew */
    /* the beginning of a message whose end has not come */
    uint8_t *in;
    size_t in_len, in_cap;
};

/* agent.c. Takes fd, counted in loop->connections. */
void bt_transfer_agent_accept(bt_transfer_t *t, int fd);
/* Queues it. Never loses the agent inside the call. */
void bt_transfer_agent_send(bt_transfer_agent_t *agent, const bt_kv_control_t *message);
/* Its rooms on this side are lost, the connection is closed, the struct goes when uv has let go. */
void bt_transfer_agent_lose(bt_transfer_agent_t *agent, const char *why);
/* The same, with a last word. */
void bt_transfer_agent_refuse(bt_transfer_agent_t *agent, uint32_t retry_ms, const char *why);
/* True when nothing has come for ms, and nothing waits to be read either (we may have been asleep, not it). */
bool bt_transfer_agent_is_silent(bt_transfer_agent_t *agent, uint64_t ms);
/* hello.c: fills the agent from a HELLO. NULL, or why it is refused. */
const char *bt_transfer_hello_read(bt_transfer_agent_t *agent, const bt_kv_control_hello_t *hello);

/* ---- groups: the agents of one worker ---- */
struct bt_transfer_rank_group {
    bt_worker_t *worker; /* a reference */
    unsigned count;
    bt_transfer_agent_t *agents[BT_TRANSFER_RANKS]; /* by rank; NULL = not registered */
};

/* rank_group.c. NULL, or why an agent that has said HELLO may not register now, and when it may ask again. */
const char *bt_transfer_rank_group_refuses(const bt_transfer_agent_t *agent, uint32_t *retry_ms_p);
/* Finds the agent's worker in the fleet; a silent agent of the same rank that is there makes way. */
void bt_transfer_rank_group_join(bt_transfer_agent_t *agent);
void bt_transfer_rank_group_leave(bt_transfer_agent_t *agent);
/* Its process is gone, and with it what the worker had: before it leaves. */
void bt_transfer_rank_group_gone(const bt_transfer_agent_t *agent, const char *why);
void bt_transfer_rank_groups_remap(bt_transfer_t *t); /* the fleet is another */
bt_transfer_rank_group_t *bt_transfer_rank_group_of(const bt_transfer_t *t,
                                                    const bt_worker_t *worker);
/* False: out says which agents are missing ("worker p0: the agent of rank 1 of 2 is not registered"). */
bool bt_transfer_rank_group_is_whole(const bt_transfer_rank_group_t *group,
                                     const bt_worker_t *worker, char *out, size_t size);

/* ---- rooms ---- */
typedef struct bt_transfer_participant { /* one agent's part of a room */
    bt_list_t link;                      /* agent->participants */
    bt_transfer_room_t *room;
    bt_transfer_agent_t *agent; /* NULL = lost, or the room has ended */
    uint64_t incarnation;       /* the agent's: a lost one may come back */
    uint32_t rank;
    uint8_t side;
    bool is_lost, is_aborted, has_told, is_orphan;
    bt_kv_control_room_t told; /* the last report; its reason is not kept */
} bt_transfer_participant_t;

typedef struct bt_transfer_side {
    bt_transfer_participant_t *participants;
    unsigned count;
} bt_transfer_side_t;

/* In t->names; a room is found by both its names. */
typedef struct bt_transfer_node {
    bt_map_entry_t entry;
    bt_transfer_room_t *room; /* NULL: a tomb, see bt_transfer_bury */
} bt_transfer_node_t;

/* What the room's timer waits for. */
enum bt_transfer_wait {
    BT_TRANSFER_WAIT_START,   /* the first byte */
    BT_TRANSFER_WAIT_STALL,   /* the next one */
    BT_TRANSFER_WAIT_REPAIR,  /* another prefill */
    BT_TRANSFER_WAIT_CONFIRM, /* receivers have everything, a sender has not said Success */
    BT_TRANSFER_WAIT_BLAME,   /* failed or orphaned, and not told yet */
    BT_TRANSFER_WAIT_SETTLE   /* orphaned again right after SOURCE? */
};

struct bt_transfer_room {
    bt_transfer_t *t;
    bt_transfer_node_t by_id, by_source;
    bt_list_t order; /* t->rooms, then t->ended */
    uint64_t id, source_room;
    bt_worker_t *prefill, *decode; /* references; NULL once it has ended */
    char prefill_name[BT_WORKER_NAME_MAX + 1], decode_name[BT_WORKER_NAME_MAX + 1];
    char request_id[160];
    uint64_t start_ms, stall_ms, repair_ms;
    bt_loop_t *loop;
    bt_transfer_event_cb on_event;
    void *user;
    bt_transfer_mail_t *last; /* kept for the last event, so that it needs no memory */
    enum bt_transfer_phase phase;
    bool has_moved, is_closed;
    enum bt_transfer_wait wait;
    bt_timer_t timer;
    uint64_t opened_us, phase_us, settle_us, ended_us;
    /* why it failed or was orphaned */
    int rc;
    bool is_prefill_fault, is_decode_fault;
    char reason[BT_TRANSFER_REASON];
    unsigned repairs;
    uint64_t progress, in_flight; /* bytes told by both sides; on their way, as both workers say */
    uint64_t rate, rate_bytes, rate_us; /* bytes/s, and the sample it is counted from */
    bt_transfer_side_t sender, receiver;
    bt_transfer_participant_t *spare; /* where sender.participants lie after a repair */
    bt_transfer_participant_t participants[];
};

/* room_open.c */
void bt_transfer_on_room_open(bt_transfer_t *t, bt_transfer_mail_t *mail);  /* takes the mail */
void bt_transfer_room_repair(bt_transfer_t *t, bt_transfer_mail_t *mail);   /* borrows it */
void bt_transfer_on_room_close(bt_transfer_t *t, bt_transfer_mail_t *mail); /* borrows it */

/* rooms.c */
void bt_transfer_rooms_free(bt_transfer_t *t); /* all, without a word */
void bt_transfer_room_set_phase(bt_transfer_room_t *room, enum bt_transfer_phase phase);
void bt_transfer_room_wait(bt_transfer_room_t *room, enum bt_transfer_wait wait, uint64_t ms);
/* In phase done or failed: aborts what has not ended, tells, takes the room out. It may be freed by it. */
void bt_transfer_room_end(bt_transfer_room_t *room);
/* Nobody wants it any more (is_closed): aborted on both sides, nobody's failure. */
void bt_transfer_room_cancel(bt_transfer_room_t *room, const char *reason);
void bt_transfer_room_abort(bt_transfer_room_t *room, bt_transfer_side_t *side);
void bt_transfer_room_notify(bt_transfer_room_t *room, enum bt_transfer_what what);
void bt_transfer_send_abort(bt_transfer_agent_t *agent, uint64_t name, const char *reason);
bool bt_transfer_participant_has_ended(const bt_transfer_participant_t *participant);
uint64_t bt_transfer_side_bytes(const bt_transfer_side_t *side);
void bt_transfer_room_set_in_flight(bt_transfer_room_t *room, uint64_t bytes);
void bt_transfer_side_leave(bt_transfer_side_t *side);
/* A lost agent that comes back with a room of this name, which has ended here, is told to abort it. */
void bt_transfer_bury(bt_transfer_room_t *room, const bt_transfer_side_t *side, uint64_t name);

/* report.c: what states, losses and deadlines make of a room. Each may end it. */
enum bt_transfer_fault {
    BT_TRANSFER_FAULT_NONE,    /* nobody's, for certain */
    BT_TRANSFER_FAULT_UNKNOWN, /* wait a moment for an agent to be lost */
    BT_TRANSFER_FAULT_PREFILL,
    BT_TRANSFER_FAULT_DECODE
};
void bt_transfer_report(bt_transfer_agent_t *agent, const bt_kv_control_room_t *told);
void bt_transfer_participant_lost(bt_transfer_participant_t *participant,
                                  const char *why); /* unlinked already */
void bt_transfer_room_due(bt_timer_t *timer);
/* How long it may be without its first byte. Once decode has answered without it only prefill's blocks wait, for nothing. */
uint64_t bt_transfer_start_ms(const bt_transfer_room_t *room);
__attribute__((format(printf, 4, 5))) void bt_transfer_room_fail(bt_transfer_room_t *room, int rc,
                                                                 enum bt_transfer_fault fault,
                                                                 const char *fmt, ...);

bt_transfer_node_t *bt_transfer_node_find(const bt_transfer_t *t, uint64_t name); /* NULL: none */
/* The live room of this name (either of its two), or NULL. */
bt_transfer_room_t *bt_transfer_room_find(const bt_transfer_t *t, uint64_t name);

/* ---- the hub ---- */
struct bt_transfer {
    bt_loop_t *loop;
    bt_transfer_config_t config; /* token is our own copy */
    char *token;                 /* one or several, one a line */
    bt_listener_t *listener;
    bt_workers_t *workers; /* a reference; NULL before the first */
    uint64_t incarnation;
    bt_list_t agents; /* connections, oldest first */
    unsigned connection_count;
    bt_transfer_rank_group_t **groups; /* by worker->slot */
    unsigned group_cap;
    bt_map_t names;         /* of rooms and tombs */
    bt_list_t rooms, ended; /* oldest first */
    unsigned ended_count;
    bt_transfer_node_t *tombs; /* ring of BT_TRANSFER_TOMBS; NULL before the first */
    unsigned tomb_at;
    bt_transfer_stats_t stats;
    uint8_t scratch[BT_KV_CONTROL_MAX + 16]; /* where messages are written */
    _Atomic unsigned refs;                   /* itself, connections, mail */
    bool is_closing, is_remapping;
    uint64_t turned_ms,
        woke_ms; /* agent.c: when this process last was awake; when it last had slept */
    void (*done)(void *user);
    void *done_user;
};
void bt_transfer_unref(bt_transfer_t *t);

/* ---- mail ---- */
struct bt_transfer_mail {
    union {
        bt_mail_t envelope;        /* on its way to us */
        bt_transfer_event_t event; /* the same memory on its way back */
    };
    bt_transfer_event_cb on_event;
    void *user;
    bt_transfer_t *t;
    uint64_t room, source_room;
    bt_worker_t *prefill, *decode; /* references, the mail's */
    bool is_abort;
    char reason[BT_TRANSFER_REASON];
    bt_transfer_room_spec_t spec; /* of an open */
};
/* Fills nothing but where it goes; takes the mail. */
void bt_transfer_mail_return(bt_transfer_mail_t *mail, bt_loop_t *loop,
                             bt_transfer_event_cb on_event, void *user);

#endif
