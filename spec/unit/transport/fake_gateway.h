/* fake_gateway.h - a small gateway for specs: accepts agents, welcomes them, keeps what they report, says what it is told to say.
 *
 * Owner: the spec; everything happens in fake_turn, in the spec's thread.
 * Life:  fake_open -> turns -> fake_close. fake_die and fake_live: the process ends, and another, or the same one, is at its port.
 * Flow:  FAKE_WAIT(fake, condition) turns until the condition holds; fails the spec after 20 s.
 * Cost:  a loop over a few sockets.
 */
#ifndef SPEC_TRANSPORT_FAKE_GATEWAY_H
#define SPEC_TRANSPORT_FAKE_GATEWAY_H

#include "suite.h"

#include "transport/wire/control.h"

#define FAKE_CONNS 8u
#define FAKE_IN_BYTES ((size_t) 256 << 10)

typedef struct fake_conn {
    int fd; /* -1: nobody */
    uint8_t *in;
    size_t n;
    bool is_registered;
    bt_kv_control_hello_t hello; /* its texts are the ones below */
    char name[64], worker[256], host[64];
    uint64_t pinged_ms;
    uint32_t pings; /* heard */
} fake_conn_t;

typedef struct fake_report {
    char agent[64];
    bt_kv_control_room_t room; /* its reason is the one below */
    char reason[256];
} fake_report_t;

typedef struct fake {
    int listen_fd;
    uint16_t port;
    uint64_t incarnation;
    uint32_t heartbeat_ms, dead_ms, version;
    const char *refusal; /* NULL: welcome */
    uint32_t retry_ms;
    bool is_mute, is_deaf; /* sends no pings; reads nothing but hellos */
    uint32_t accepted, refused, lost;
    fake_conn_t conns[FAKE_CONNS];
    fake_report_t *reports;
    uint32_t report_count, report_room;
    rig_side_t *sides[4]; /* those in CALLER mode get their turns too */
} fake_t;

void fake_open(fake_t *fake);
void fake_close(fake_t *fake);
void fake_die(fake_t *fake);
void fake_live(fake_t *fake, uint64_t incarnation);
void fake_turn(fake_t *fake);
/* Adds this gateway to the side's agent and waits for its hello. */
uint32_t fake_join(fake_t *fake, rig_side_t *side, uint32_t rank, uint32_t ranks);
uint32_t fake_join_heads(fake_t *fake, rig_side_t *side, uint32_t rank, uint32_t ranks,
                         bt_kv_heads_t heads);
/* A live, registered connection, or NULL. */
fake_conn_t *fake_find(fake_t *fake, const char *agent);
void fake_say(fake_t *fake, const char *agent, const bt_kv_control_t *message);
void fake_say_bytes(fake_t *fake, const char *agent, const void *p, size_t n);
/* OPEN or SOURCE; the peers are these sides' agents, ranks by position. */
void fake_open_room(fake_t *fake, uint8_t type, const char *agent, uint8_t side, uint64_t room,
                    uint64_t source_room, uint32_t repair_ms, rig_side_t *const *peers,
                    uint32_t count);
void fake_abort(fake_t *fake, const char *agent, uint64_t room, const char *reason);
/* The latest report of a room by an agent, or NULL; the number of them; the states in order, e.g. "1234" (repeated ones once; 'o' after one that is orphaned). */
const fake_report_t *fake_last(const fake_t *fake, const char *agent, uint64_t room);
uint32_t fake_count(const fake_t *fake, const char *agent, uint64_t room);
const char *fake_states(const fake_t *fake, const char *agent, uint64_t room);
bool fake_is_last(const fake_t *fake, const char *agent, uint64_t room, enum bt_kv_state state);

#define FAKE_WAIT(fake, condition)                                                                 \
    do {                                                                                           \
        uint64_t end_ms_ = rig_now_ms() + 30000;                                                   \
        while (!(condition)) {                                                                     \
            if (rig_now_ms() > end_ms_)                                                            \
                fail_msg("line %d: never: %s", __LINE__, #condition);                              \
            fake_turn(fake);                                                                       \
        }                                                                                          \
    } while (0)

#endif
