/* attempt_rig.h - a dispatcher between a client, engines played by hand over loopback, and a hub that is not there: the spec is the
 * hub, so every order in which its mail and the legs' ends can arrive is one that it chooses.
 *
 * Owner: attempt_rig.c holds the one rig of a program, and replaces the hub's functions for all of
 *        it.
 * Life:  of a test: setup or rig_start -> (steps) -> teardown, which checks that nothing is held
 *        any more.
 * Flow:  one thread: the loop turns while a spec waits; engines and the client are plain sockets
 *        that it reads and writes.
 * Cost:  a few milliseconds a test. Time-outs that a spec waits for are short, all others long: it
 *        ends by the one it names.
 */
#ifndef SPEC_DISPATCH_ATTEMPT_RIG_H
#define SPEC_DISPATCH_ATTEMPT_RIG_H

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "dispatch/attempt/attempt.h"
#include "dispatch/dispatcher.h"
#include "loop/util.h"
#include "transfer/transfer.h"

#include <arpa/inet.h>
#include <stdio.h>

/* ---- the hub ---- */

#define CALLS_MAX 16

struct hub {
    bt_transfer_room_spec_t opened[CALLS_MAX];
    char opened_for[CALLS_MAX][2][32];
    unsigned open_count;
    struct {
        uint64_t room, source_room;
        char prefill[32];
    } repaired[CALLS_MAX];
    unsigned repair_count;
    struct {
        uint64_t room;
        bool is_abort;
        char reason[200];
    } closed[CALLS_MAX];
    unsigned close_count;
    int rc; /* of open and repair */
};
extern struct hub hub;

enum { NOBODY, PREFILL_FAULT, DECODE_FAULT };

/* As mail about the i-th room that was opened. source_room 0: as opened. */
void tell(unsigned i, enum bt_transfer_what what, uint64_t source_room, int fault);

/* ---- the metaserver ---- */

struct metaserver_answers {
    unsigned count, status[CALLS_MAX]; /* in the order in which they were given */
    char words[256];                   /* of the last one */
};
extern struct metaserver_answers metaserver;

/* As decode's engine of that room; turns until the loop has it. */
void call_metaserver(uint64_t room, const char *body);
/* The room in the URL that decode was told. */
uint64_t called_room(int which);

/* ---- engines ---- */

#define CONNS_MAX 16
#define REQUEST_MAX ((size_t) 128 * 1024)

struct engine {
    bt_worker_t *worker;
    int listener, conn; /* the connection of the last request; -1 = none */
    int conns[CONNS_MAX];
    unsigned requests;
    char got[REQUEST_MAX]; /* the last request */
    struct {
        size_t len;
        char text[REQUEST_MAX];
    } parts[CONNS_MAX]; /* of requests that have not come whole */
};

enum { P0, P1, P2, D0, D1, S0, S1, ENGINES };
extern const char *const names[ENGINES];
extern struct engine engines[ENGINES];

extern struct rig {
    bt_loop_t loop;
    bt_dispatch_shared_t shared;
    bt_registry_t *registry;
    bt_dispatcher_t *d;
    bt_server_t *server;
    int client;
    char answer[256 * 1024];
    size_t answer_len;
    bool is_closed;   /* the server */
    bool has_hung_up; /* the client's connection has ended */
} rig;

void take(int which);        /* waits for a request, which `answer` and others then are about */
bool has_request(int which); /* the same, without waiting */
bool has_hung_up(const struct engine *e); /* the gateway has closed the last request's connection */
bool has_caller(const struct engine *e);  /* a connection that nobody has taken */
void hang_up(struct engine *e);           /* all connections */
void reset(int which);
void refuse(int which); /* connections from here on */
uint64_t room_in(int which);
/* The bytes of a leg's body. */
const char *body_of(int which);
bool heard(int which, const char *what); /* the last request holds it */

void answer(int which, unsigned status, const char *body);
void answer_with(int which, unsigned status, const char *headers, const char *body);
void stream_head(int which);
void event(int which, const char *data);
void stream_end(int which); /* with its [DONE] */

/* ---- the client ---- */

/* A body as most tests need it. */
#define BODY "{\"model\":\"m\",\"prompt\":\"x\"}"
#define STREAM_BODY "{\"model\":\"m\",\"prompt\":\"x\",\"stream\":true}"
#define REPLY "{\"id\":\"cmpl-1\",\"choices\":[{\"text\":\"hello\"}]}"

/* What prefill says to decode in a hand-off; id: as in prefill's X-Request-Id. */
#define HANDOFF(id)                                                                                \
    "{\"id\":\"cmpl-" id "\",\"choices\":[{\"text\":\"h\"}],\"usage\":{\"prompt_tokens\":1},"      \
    "\"kv_transfer_params\":{\"do_remote_prefill\":true,\"do_remote_decode\":false,"               \
    "\"remote_block_ids\":[[1,2]],\"remote_engine_id\":\"e\",\"remote_request_id\":\"cmpl-" id     \
    "-0\",\"remote_host\":\"127.0.0.1\",\"remote_port\":5600}}"

void ask(void);
void ask_body(const char *body);
/* headers: lines with their ends, or "". */
void ask_with(const char *path, const char *headers, const char *body);
void client_leaves(void);
void client_comes(void);           /* another one; rig_start brings the first */
bool has_answer(void);             /* all of it */
bool client_got(const char *what); /* so far */
void answered(const char *what);   /* waits for all of it */
void recorded(const char *what);   /* a part of the last record's line */

/* The text that two engines were asked by, and the room between them. */
void begin(int prefill, int decode);
/* Of the one request that lives. */
bt_attempt_t *live_attempt(void);

uint64_t blamed(int which);
uint64_t legs_of(int which, enum bt_blame how);
/* On the ledger, beyond what make_usable has put there. */
int64_t held(int which, enum bt_phase phase);

/* ---- fixture ---- */

/* All zero: prefill and decode workers of BatonConnector, no policy. */
struct rig_options {
    const char *connector;
    bool has_single, has_other_pool; /* s0; s1 in a pool "other" */
    bool is_single_only;
    bool keeps_idle; /* connections to engines are used again */
    unsigned dp_size;
    uint64_t lease_ms;
    unsigned max_attempts, max_fanout, retry_budget_percent, engine_request_limit;
    bool refuse_recompute;
    bt_pool_deadlines_t deadlines; /* 0 = a minute */
    bt_dispatch_config_t config;
    const char *policy, *prefill_policy, *decode_policy, *other_policy,
        *rules; /* Lua; other: of the pool "other" */
};

void rig_start(const struct rig_options *options);
/* The next generation: the policy of the pool "default", and rules that name no policies. NULL:
 * none. */
void rig_serve(const char *policy, const char *rules);
int setup(void **state); /* rig_start with nothing */
int teardown(void **state);

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
#define CASE_OF(name) cmocka_unit_test_setup_teardown(name, NULL, teardown) /* starts it itself */

#endif
