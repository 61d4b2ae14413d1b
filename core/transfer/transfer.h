/* transfer.h - the gateway's side of KV transfer: agents that register here, and the rooms between them.
 *
 * Owner: the control loop. Event threads open, repair and close rooms by mail and get mail back; they share nothing else with it.
 * Life:  new -> listen -> set_fleet on every change -> close (agents are told; their rooms go on without us).
 * Flow:  open: OPEN goes to the agents of both workers -> each tells its states -> deadlines watch -> told once: over. A side that dies, or says Failed, fails the
 *        room at once on the other side too. A receiver that still waits for its first byte may get another sender: orphaned -> repair -> SOURCE.
 * Cost:  O(1) a message and a deadline; a room is one allocation; nothing is sent while nothing changes but a ping.
 *
 * A worker whose connector is gateway-managed (bt_worker_t.is_gateway_managed) is usable for pairs only while all its agents are registered (bt_worker_t.has_agents).
 * The words on the wire are transport/wire/control.h's. An agent registers with the URL or the name of its worker; one that names no worker of the fleet is kept
 * waiting, because the worker may be added later. An agent that lives keeps its place: a second one of the same worker and rank is refused until the first has missed
 * two heartbeats, or, where no token is asked and it comes from another address, until the first is lost (dead_ms). See rank_group.c.
 */
#ifndef BT_TRANSFER_TRANSFER_H
#define BT_TRANSFER_TRANSFER_H

#include "base/text.h"
#include "cluster/workers.h"
#include "loop/loop.h"

typedef struct bt_transfer bt_transfer_t;

typedef struct bt_transfer_config { /* zero means the default */
    const char *token; /* proved by agents, and to them; as bt_transfer_set_token. Never logged */
    uint32_t heartbeat_ms; /* 1,000 */
    uint32_t dead_ms;    /* 5,000 without a sign of life: the agent is lost, and so are its rooms */
    uint32_t max_agents; /* 16,384 */
    /* The process of one of the worker's agents is gone: it has closed its connection, or another
     * one has registered in its place. Not told of an agent that is only silent. NULL = nobody asks. */
    void (*on_gone)(void *user, bt_worker_t *worker, const char *why);
    void *user;
} bt_transfer_config_t;

int bt_transfer_new(bt_transfer_t **transfer_p, bt_loop_t *control,
                    const bt_transfer_config_t *config);
int bt_transfer_listen(bt_transfer_t *t, int fd); /* takes a listening socket */
/* One or several, one a line; NULL: none is asked for. Of agents that come from now on; those that are here stay. BT_E_NOMEM: nothing has changed. */
int bt_transfer_set_token(bt_transfer_t *t, const char *tokens);
void bt_transfer_set_workers(bt_transfer_t *t, bt_workers_t *workers);
/* Hangs up on all agents and frees, then done runs. Mail that is still under way is dropped. */
void bt_transfer_free(bt_transfer_t *t, void (*done)(void *user), void *user);

/* ---- rooms: from any loop ---- */
enum bt_transfer_what {
    BT_TRANSFER_MOVING,   /* the first byte has come: no other sender is possible any more */
    BT_TRANSFER_ORPHANED, /* the sender is lost before that: repair it, or close it */
    BT_TRANSFER_DONE,     /* Success on every agent of both sides */
    BT_TRANSFER_FAILED    /* for good */
};

/* Mail to the loop that opened the room. */
typedef struct bt_transfer_event {
    bt_mail_t envelope;
    enum bt_transfer_what what;
    uint64_t room; /* as opened */
    uint64_t
        source_room; /* the sender's name for it now: an event of a sender that has been replaced is known by it */
    int rc; /* FAILED: BT_E_* */
    bool
        is_prefill_fault; /* FAILED, ORPHANED: this side's agent died, or said Failed first with a cause of its own */
    bool is_decode_fault;
    uint64_t bytes, wait_us, transfer_us; /* DONE, FAILED; of the receiver that took longest */
    char reason[240];
} bt_transfer_event_t;
/* On the loop that opened the room; event is the callee's for the call only. */
typedef void (*bt_transfer_event_cb)(void *user, const bt_transfer_event_t *event);

typedef struct bt_transfer_room_spec {
    uint64_t room;
    bt_worker_t *prefill, *decode; /* references are taken */
    uint64_t start_ms;             /* opening to the first byte; 0 = 300,000 */
    uint64_t stall_ms;             /* without progress while moving; 0 = 60,000 */
    uint64_t repair_ms;            /* how long an orphan waits; 0 = 5,000 */
    char request_id[160];          /* for people */
    bt_loop_t *loop;               /* events go there */
    bt_transfer_event_cb on_event;
    void *user; /* must live as long as loop */
} bt_transfer_room_spec_t;

/* 0, or BT_E_NOMEM; whatever else goes wrong comes as an event. */
int bt_transfer_room_open(bt_transfer_t *t, const bt_transfer_room_spec_t *spec);
/* An orphan, or a room whose prefill is to be replaced: source_room is the new id at the new prefill. Comes too late (bytes have moved, or over): FAILED follows. */
int bt_transfer_repair(bt_transfer_t *t, uint64_t room, uint64_t source_room, bt_worker_t *prefill);
/* Nobody waits for it any more: no event comes after this, but for one that is on its way already. is_abort: what has not ended is aborted on both sides; else it may end by itself, watched; one without a byte has dead_ms for it. */
void bt_transfer_room_close(bt_transfer_t *t, uint64_t room, bool is_abort, const char *reason);

/* ---- for the admin API and metrics: control loop ---- */
enum bt_transfer_phase {
    BT_TRANSFER_PHASE_OPENING, /* until every receiver's pages are announced to every sender */
    BT_TRANSFER_PHASE_WAITING, /* for the first byte */
    BT_TRANSFER_PHASE_MOVING,
    BT_TRANSFER_PHASE_ORPHANED, /* for another sender */
    BT_TRANSFER_PHASE_DONE,
    BT_TRANSFER_PHASE_FAILED,
    BT_TRANSFER_PHASES
};
const char *bt_transfer_phase_name(enum bt_transfer_phase phase); /* "opening" ... */
/* {"agents": [...], "rooms": [...], "rooms_total": n}: at most `limit` rooms: those that are open, oldest first, then the last ones that have ended. */
void bt_transfer_describe(const bt_transfer_t *t, unsigned limit, bt_text_t *out);
/* One of those rows: a room that is open or among the last ones that have ended, by decode's number or by that of its (last) prefill. False: nothing is written. */
bool bt_transfer_describe_room(const bt_transfer_t *t, uint64_t room, bt_text_t *out);
typedef struct bt_transfer_stats {
    uint64_t agents, agents_waiting; /* registered; those whose worker is not known */
    uint64_t agents_lost, agents_refused;
    uint64_t rooms_open, rooms_done, rooms_failed, rooms_orphaned, rooms_repaired;
    uint64_t rooms_closed;                       /* ended by bt_transfer_room_close */
    uint64_t rooms_by_phase[BT_TRANSFER_PHASES]; /* open ones */
    uint64_t bytes;                              /* of rooms that are over */
    uint64_t wait_us, transfer_us;               /* sums over done rooms */
} bt_transfer_stats_t;
void bt_transfer_stats(const bt_transfer_t *t, bt_transfer_stats_t *stats_p);

#endif
