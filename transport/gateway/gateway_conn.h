/* gateway_conn.h - the agent's connections to gateways, and what they have said about rooms. Private to transport.
 *
 * Owner: the agent (agent->gateways), from the first bt_kv_gateway_add on; without one nothing here runs. Guarded by the agent's lock.
 * Life:  a conn: IDLE -> CONNECTING -> HELLO -> UP -> IDLE (lost: dialled again) ... until the agent closes.
 *        a command: WAITING for the engine's room -> OPEN, bound to it -> ENDED, kept until the gateway has surely heard of it. Or a TOMB: aborted unopened.
 * Flow:  a room's change -> bt_kv_gateways_changed -> a ROOM message in the conn's buffer -> written by the next turn. A gateway's message -> room_command.c.
 * Cost:  a change of a room with a command is one small encode; a turn without news is one compare.
 */
#ifndef BT_TRANSPORT_GATEWAY_CONN_H
#define BT_TRANSPORT_GATEWAY_CONN_H

#include "transport/agent/agent.h"
#include "transport/wire/control.h"

enum bt_kv_gateway_conn_state {
    BT_KV_GATEWAY_CONN_IDLE,
    BT_KV_GATEWAY_CONN_CONNECTING,
    BT_KV_GATEWAY_CONN_HELLO, /* connected: the token is proved, the hello said, no welcome yet */
    BT_KV_GATEWAY_CONN_UP
};

typedef struct bt_kv_gateway_conn {
    bt_kv_agent_t *agent;
    char host[64], worker[BT_KV_CONTROL_TEXT_MAX + 1];
    char *token;       /* NULL: none */
    bt_kv_auth_t auth; /* of this connection, with a token */
    uint16_t port;
    uint32_t rank, ranks;
    bt_kv_heads_t heads; /* rows is never 0 */
    enum bt_kv_gateway_conn_state state;
    int fd;
    bool wants_out, is_overrun;
    bool is_warned; /* that it is lost has been logged */
    char why[BT_KV_REASON_MAX];
    bt_kv_bytes_t in, out;
    size_t out_at;
    uint64_t incarnation; /* of the gateway's process; 0 = never heard */
    uint64_t
        own_incarnation; /* of this agent, for this gateway only: whoever says it there takes over our rooms */
    uint32_t heartbeat_ms, dead_ms, back_off_ms;
    uint64_t since_us;                        /* in this state */
    uint64_t dial_us;                         /* IDLE: not before */
    uint64_t heard_us, said_us, heartbeat_us; /* heartbeat: progress of moving rooms is told next */
    uint64_t taken_us;                        /* it took bytes, or there were none for it */
    bt_list_t known;                          /* commands */
    bt_list_t retell; /* commands it must hear of when its buffer has room */
} bt_kv_gateway_conn_t;

enum bt_kv_room_command_phase {
    BT_KV_ROOM_COMMAND_WAITING,
    BT_KV_ROOM_COMMAND_OPEN,
    BT_KV_ROOM_COMMAND_ENDED,
    BT_KV_ROOM_COMMAND_TOMB
};

/* What a gateway has said about a room of one side. */
typedef struct bt_kv_room_command {
    bt_map_entry_t by_id;
    bt_list_t on_conn, retell;
    bt_list_t
        order; /* gateways's waiting, orphans, pending, ended or untold; alone while OPEN and well */
    bt_kv_gateway_conn_t *conn;
    enum bt_kv_room_command_phase phase;
    uint8_t side; /* 0: a tomb for whichever side is opened */
    bool is_orphan;
    uint32_t repair_ms;
    uint64_t source_room;
    uint64_t until_us; /* WAITING, TOMB: expires; orphan: fails; ENDED: forgotten */
    bt_kv_room_t handle;
    uint64_t told_bytes;       /* with the last report */
    bt_kv_control_room_t last; /* ENDED: what was to be said */
    int rc;                    /* orphan, tomb: why */
    char *reason;              /* orphan, tomb, ENDED; may be NULL */
    bt_kv_peer_t *peers;
    uint32_t peer_count;
} bt_kv_room_command_t;

struct bt_kv_gateways {
    bt_kv_gateway_conn_t conns[BT_KV_GATEWAYS_MAX];
    uint32_t conn_count;
    bool is_dirty;   /* the next turn looks at everything */
    uint64_t due_us; /* when it must at the latest */
    uint64_t sweep_us;
    bt_map_t commands;
    bt_map_t receivers; /* the engine's receiver rooms by id */
    bt_list_t waiting;  /* not opened yet, and tombs; in no order */
    bt_list_t orphans;
    bt_list_t pending;       /* their new sender is on a link where the old end is not quiet yet */
    bt_list_t ended, untold; /* the oldest in front; untold: nobody was there to hear it */
};

/* ---- gateway_conn.c ---- */
static inline bool bt_kv_gateways_owns(const bt_kv_agent_t *agent, const void *event)
{
    const struct bt_kv_gateways *s = agent->gateways;
    uintptr_t at = (uintptr_t) event;
    return s != NULL && at >= (uintptr_t) s->conns &&
           at < (uintptr_t) (s->conns + BT_KV_GATEWAYS_MAX);
}
static inline void bt_kv_gateways_want_turn(bt_kv_agent_t *agent)
{
    agent->gateways->is_dirty = true;
    agent->has_work = true;
}
void bt_kv_gateway_conn_event(bt_kv_gateway_conn_t *conn, uint32_t events);
/* Things done. */
int bt_kv_gateways_turn(bt_kv_agent_t *agent);
void bt_kv_gateways_close(bt_kv_agent_t *agent); /* says goodbye, and frees */
bool bt_kv_gateway_conn_is_full(const bt_kv_gateway_conn_t *conn);
void bt_kv_gateway_conn_send(bt_kv_gateway_conn_t *conn, const bt_kv_control_t *message);

/* ---- room_command.c ---- */
void bt_kv_room_command_opened(bt_kv_gateway_conn_t *conn, const bt_kv_control_open_t *open);
void bt_kv_room_command_source(bt_kv_gateway_conn_t *conn, const bt_kv_control_open_t *open);
void bt_kv_room_command_abort(bt_kv_gateway_conn_t *conn, uint64_t room, bt_str_t reason);
struct bt_kv_room *bt_kv_room_command_room(const bt_kv_room_command_t *d);
void bt_kv_room_command_wait(bt_kv_room_command_t *d, bt_list_t *list, uint64_t until_us);

/* ---- partners.c ---- */
/* The room asks those of the other side that have its part of the KV for its pages, or fails. */
void bt_kv_partners_seek(bt_kv_room_command_t *d, struct bt_kv_room *room);
/* The sender's room waits for those that will ask it, or fails. */
void bt_kv_partners_expect(bt_kv_room_command_t *d, struct bt_kv_room *room);

/* ---- report.c ---- */
bt_kv_control_room_t bt_kv_room_command_report(bt_kv_agent_t *agent, const bt_kv_room_command_t *d,
                                               const struct bt_kv_room *room);
/* The gateway hears how the room stands: now, when its buffer has room, or when it is back. */
void bt_kv_room_command_notify(bt_kv_room_command_t *d);
/* It has been away: all it knows of is told anew. */
void bt_kv_room_commands_renotify(bt_kv_gateway_conn_t *conn);
/* As much of that as its buffer takes. */
void bt_kv_room_commands_pump(bt_kv_gateway_conn_t *conn);
void bt_kv_room_commands_heartbeat(bt_kv_gateway_conn_t *conn); /* progress of moving rooms */

/* ---- room_command.c again: time, and what rooms call ---- */
/* It is another process now; the rooms of the old one are nobody's. */
void bt_kv_room_commands_forget(bt_kv_gateway_conn_t *conn);
/* Expiries, orphans, pending sources. The next moment that something is due. */
uint64_t bt_kv_room_commands_sweep(bt_kv_agent_t *agent);
void bt_kv_room_command_free(bt_kv_agent_t *agent, bt_kv_room_command_t *d);
int bt_kv_room_commands_init(bt_kv_agent_t *agent);

#endif
