/* control.h - what a gateway and an agent say to each other, as bytes. For the library and for a gateway in C; not exported from libbaton_kv.so.
 *
 * Owner: nobody; no I/O, no state. What a decoded message points to belongs to the buffer it was read from.
 * Life:  of a call.
 * Flow:  the agent dials the gateway, proves the token where there is one (auth.h: each message has a seal behind it from then on) and says HELLO; the gateway answers WELCOME or REFUSE. Then the gateway says OPEN, SOURCE and ABORT, the agent ROOM; both
 *        PING when they have said nothing else for heartbeat_ms. Rooms live on when the connection is lost: the agent dials again and tells all of them anew.
 * Cost:  O(bytes).
 *
 * A HELLO for a worker and rank that a live agent has is refused: retry_ms says when that agent will have missed enough heartbeats to be taken for dead. The same
 * incarnation on another connection is the same process, whose rooms go on: an agent tells it this gateway only.
 *
 * Reports. A room that was opened (OPEN) is told with each step and, while bytes move, with each heartbeat; the last one says Success or Failed. The same state may
 * come twice: after a reconnect all that the agent knows of is told anew, ended rooms too for twice dead_ms (2 * 5 s by default). A gateway that reads too slowly is
 * told the latest state only. An orphan's rc and reason say why its sender was lost. Failed comes also for a room that the engine has not opened within
 * expire_ms, and for an OPEN that does not fit the agent's table; OPEN or SOURCE for a room that is past it are answered by its state. ABORT for one that is not
 * open is silent until the engine opens it. A WELCOME with another incarnation: the agent forgets what the old one opened.
 *
 * A message: u32 bytes of the payload, u8 type, u8 flags, u16 0; all little-endian, as between agents (frame.h). Flag 1 = a reader that does not know the
 * type may skip it. Payloads may grow at their end: a reader ignores what it does not know. Texts are at most BT_KV_CONTROL_TEXT_MAX bytes.
 */
#ifndef BT_TRANSPORT_CONTROL_H
#define BT_TRANSPORT_CONTROL_H

#include "base/str.h"
#include "transport/baton_kv.h"

#define BT_KV_CONTROL_VERSION 1
#define BT_KV_CONTROL_MAGIC 0x474b5442u /* "BTKG" */
#define BT_KV_CONTROL_MAX (64u << 10)   /* bytes of a payload */
#define BT_KV_CONTROL_SKIP 1            /* flag */
#define BT_KV_CONTROL_TEXT_MAX 240u
#define BT_KV_CONTROL_HOST_MAX 63u
#define BT_KV_CONTROL_BYTES 8192 /* no message that bt_kv_control_encode writes is longer */
#define BT_KV_CONTROL_PEERS_MAX 64u

enum bt_kv_control_type {
    /* from the agent */
    BT_KV_CONTROL_HELLO = 64,
    BT_KV_CONTROL_ROOM = 65,
    /* either */
    BT_KV_CONTROL_PING = 72,
    /* from the gateway */
    BT_KV_CONTROL_WELCOME = 80,
    BT_KV_CONTROL_REFUSE = 81, /* the last one: why. The agent does not come back before retry_ms */
    BT_KV_CONTROL_OPEN = 82,
    BT_KV_CONTROL_SOURCE = 83, /* receiver: these senders instead, and the room's name there */
    BT_KV_CONTROL_ABORT = 84
};

enum bt_kv_side { BT_KV_SIDE_SENDER = 1, BT_KV_SIDE_RECEIVER = 2 };

typedef struct bt_kv_control_hello {
    uint32_t version;
    uint32_t rank,
        ranks;      /* this agent's tensor-parallel rank, and how many agents its worker has */
    uint32_t kinds; /* bits of bt_kv_kind it can use */
    uint32_t pid;
    uint64_t incarnation;  /* new in each life of the process, and known to nobody else */
    bt_str_t name, worker; /* worker: URL or name, as the gateway knows it */
    bt_str_t host;         /* of the agent's own listener: where other agents dial */
    uint16_t port;
} bt_kv_control_hello_t;

typedef struct bt_kv_control_peer {
    uint32_t rank;
    bt_str_t host;
    uint16_t port;
} bt_kv_control_peer_t;

typedef struct bt_kv_control_room {
    uint64_t room;  /* the pair's id */
    uint8_t side;   /* enum bt_kv_side */
    uint8_t state;  /* enum bt_kv_state */
    bool is_orphan; /* receiver: its sender is lost before the first byte; it waits for SOURCE */
    int rc;
    uint32_t kind;                       /* bit of bt_kv_kind, 0 = not known yet */
    uint64_t bytes, pages, pages_wanted; /* pages: times buffers */
    uint64_t bootstrap_us, wait_us, transfer_us;
    bt_str_t reason;
} bt_kv_control_room_t;

typedef struct bt_kv_control_open { /* OPEN and SOURCE */
    uint64_t room;
    uint64_t source_room; /* the room's name at the senders; with OPEN the same as room */
    uint8_t side;
    uint32_t expire_ms; /* the engine must have opened it by then */
    uint32_t repair_ms; /* how long an orphan waits for SOURCE; 0 = it fails at once */
    bt_kv_control_peer_t peers[BT_KV_CONTROL_PEERS_MAX]; /* the other side's agents, by rank */
    uint32_t peer_count;
} bt_kv_control_open_t;

typedef struct bt_kv_control {
    uint8_t type, flags;
    const uint8_t *payload;
    uint32_t size;
    union {
        bt_kv_control_hello_t hello;
        bt_kv_control_room_t room;
        bt_kv_control_open_t open; /* OPEN, SOURCE */
        struct {
            uint32_t version, heartbeat_ms, dead_ms;
            uint64_t incarnation; /* the gateway's: a new one knows none of the rooms */
        } welcome;
        struct {
            uint32_t retry_ms;
            bt_str_t reason;
        } refuse;
        struct {
            uint64_t room;
            bt_str_t reason;
        } abort;
        struct {
            uint64_t rooms_open, bytes_sent, bytes_received;
        } ping;
    };
} bt_kv_control_t;

/* Bytes of the first message in [p, p + n), 0 when it is not all there yet, BT_E_INVAL when it can't become one. */
ptrdiff_t bt_kv_control_next(const uint8_t *p, size_t n, bt_kv_control_t *message_p);
/* Of a message that bt_kv_control_next gave. 0; BT_E_INVAL: malformed, and *why_p says what; 1: an unknown type that may be skipped. */
int bt_kv_control_decode(bt_kv_control_t *message, const char **why_p);
/* Appends the message (type and its member of the union) to [out, out + room); bytes written; BT_E_LIMIT: no room (BT_KV_CONTROL_BYTES is
 * always enough), nothing is written; BT_E_INVAL: no such type, or more than BT_KV_CONTROL_PEERS_MAX peers. Long texts are cut. */
ptrdiff_t bt_kv_control_encode(const bt_kv_control_t *message, uint8_t *out, size_t room);

#endif
