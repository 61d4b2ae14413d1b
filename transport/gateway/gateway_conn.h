/* gate.h - the agent's connections to gateways, and what they have said about rooms. Private to transport.
 *
 * Owner: the agent (agent->steering), from the first bt_kv_gateway_add on; without one nothing here runs. Guarded by the agent's lock.
 * Life:  a gate: IDLE -> CONNECTING -> HELLO -> UP -> IDLE (lost: dialled again) ... until the agent closes.
 *        a directive: WAITING for the engine's room -> OPEN, bound to it -> ENDED, kept until the gateway has surely heard of it. Or a TOMB: aborted unopened.
 * Flow:  a room's change -> bt_kv_steering_changed -> a ROOM message in the gate's buffer -> written by the next turn. A gateway's message -> directive.c.
 * Cost:  a change of a room with a directive is one small encode; a turn without news is one compare.
 */
#ifndef BT_TRANSPORT_GATE_H
#define BT_TRANSPORT_GATE_H

#include "transport/agent/agent.h"
#include "transport/wire/control.h"

enum bt_kv_gate_state { BT_KV_GATE_IDLE, BT_KV_GATE_CONNECTING, BT_KV_GATE_HELLO, BT_KV_GATE_UP };

typedef struct bt_kv_gate {
    bt_kv_agent_t *agent;
    char host[64], worker[BT_KV_STEER_TEXT_MAX + 1], token[BT_KV_STEER_TEXT_MAX + 1];
    uint16_t port;
    uint32_t rank, ranks;
    enum bt_kv_gate_state state;
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
    uint64_t heard_us, said_us, heartbeat_us; /* beat: progress of moving rooms is told next */
    uint64_t taken_us;                        /* it took bytes, or there were none for it */
    bt_list_t known;                          /* directives */
    bt_list_t retell; /* directives it must hear of when its buffer has room */
} bt_kv_gate_t;

enum bt_kv_directive_phase {
    BT_KV_DIRECTIVE_WAITING,
    BT_KV_DIRECTIVE_OPEN,
    BT_KV_DIRECTIVE_ENDED,
    BT_KV_DIRECTIVE_TOMB
};

/* What a gateway has said about a room of one side. */
typedef struct bt_kv_directive {
    bt_kv_entry_t by_id;
    bt_list_t on_gate, retell;
    bt_list_t
        order; /* steering's waiting, orphans, pending, ended or untold; alone while OPEN and well */
    bt_kv_gate_t *gate;
    enum bt_kv_directive_phase phase;
    uint8_t side; /* 0: a tomb for whichever side is opened */
    bool is_orphan;
    uint32_t repair_ms;
    uint64_t source_room;
    uint64_t until_us; /* WAITING, TOMB: expires; orphan: fails; ENDED: forgotten */
    bt_kv_room_t handle;
    uint64_t told_bytes;     /* with the last report */
    bt_kv_steer_room_t last; /* ENDED: what was to be said */
    int rc;                  /* orphan, tomb: why */
    char *reason;            /* orphan, tomb, ENDED; may be NULL */
    bt_kv_peer_t *peers;
    uint32_t peer_count;
} bt_kv_directive_t;

struct bt_kv_steering {
    bt_kv_gate_t gates[BT_KV_GATEWAYS_MAX];
    uint32_t gate_count;
    bool is_dirty;   /* the next turn looks at everything */
    uint64_t due_us; /* when it must at the latest */
    uint64_t sweep_us;
    bt_kv_map_t directives;
    bt_kv_map_t receivers; /* the engine's receiver rooms by id */
    bt_list_t waiting;     /* not opened yet, and tombs; in no order */
    bt_list_t orphans;
    bt_list_t pending;       /* their new sender is on a link where the old end is not quiet yet */
    bt_list_t ended, untold; /* the oldest in front; untold: nobody was there to hear it */
};

/* ---- gate.c ---- */
static inline bool bt_kv_steering_owns(const bt_kv_agent_t *agent, const void *event)
{
    const struct bt_kv_steering *s = agent->steering;
    uintptr_t at = (uintptr_t) event;
    return s != NULL && at >= (uintptr_t) s->gates &&
           at < (uintptr_t) (s->gates + BT_KV_GATEWAYS_MAX);
}
void bt_kv_gate_event(bt_kv_gate_t *gate, uint32_t events);
/* Things done. */
int bt_kv_steering_turn(bt_kv_agent_t *agent);
void bt_kv_steering_close(bt_kv_agent_t *agent); /* says goodbye, and frees */
bool bt_kv_gate_is_full(const bt_kv_gate_t *gate);
void bt_kv_gate_say(bt_kv_gate_t *gate, const bt_kv_steer_t *message);

/* ---- directive.c ---- */
void bt_kv_directive_opened(bt_kv_gate_t *gate, const bt_kv_steer_open_t *open);
void bt_kv_directive_source(bt_kv_gate_t *gate, const bt_kv_steer_open_t *open);
void bt_kv_directive_abort(bt_kv_gate_t *gate, uint64_t room, bt_str_t reason);
struct bt_kv_room *bt_kv_directive_room(const bt_kv_directive_t *d);
void bt_kv_directive_wait(bt_kv_directive_t *d, bt_list_t *list, uint64_t until_us);

/* ---- report.c ---- */
bt_kv_steer_room_t bt_kv_directive_report(bt_kv_agent_t *agent, const bt_kv_directive_t *d,
                                          const struct bt_kv_room *room);
/* The gateway hears how the room stands: now, when its buffer has room, or when it is back. */
void bt_kv_directive_tell(bt_kv_directive_t *d);
/* It has been away: all it knows of is told anew. */
void bt_kv_directives_retell(bt_kv_gate_t *gate);
/* As much of that as its buffer takes. */
void bt_kv_directives_pump(bt_kv_gate_t *gate);
void bt_kv_directives_beat(bt_kv_gate_t *gate); /* progress of moving rooms */

/* ---- directive.c again: time, and what rooms call ---- */
/* It is another process now; the rooms of the old one are nobody's. */
void bt_kv_directives_forget(bt_kv_gate_t *gate);
/* Expiries, orphans, pending sources. The next moment that something is due. */
uint64_t bt_kv_directives_sweep(bt_kv_agent_t *agent);
void bt_kv_directive_free(bt_kv_agent_t *agent, bt_kv_directive_t *d);
int bt_kv_directives_init(bt_kv_agent_t *agent);

#endif
