/* kv.h - a worker's agents of libbaton_kv, and the rooms through which its KV moves (BatonConnector).
 *
 * Owner: the worker; rooms are the kv's own, a job borrows at most one.
 * Life:  open (an agent a rank, memory, layout) -> rooms -> close: at once for the worker, the agents end on a thread of their own.
 * Flow:  send_open or recv_open -> the agents' threads move bytes -> they wake the loop -> on_end, once -> the room's blocks stay referenced until
 *        bt_kv_room_release says that nobody can reach them.
 * Cost:  a wake-up looks at the rooms that have not ended; while some can't be released yet a timer asks every few milliseconds.
 */
#ifndef SIM_KV_H
#define SIM_KV_H

#include "base/text.h"
#include "loop/loop.h"
#include "options.h"
#include "pages.h"
#include "transport/baton_kv.h"

struct sim_worker;
typedef struct sim_kv sim_kv_t;

typedef struct sim_kv_room sim_kv_room_t;
/* It has ended; the room is the kv's alone from here on, but its ids and pages hold until the call returns. */
typedef void (*sim_kv_end_cb)(sim_kv_room_t *room, void *user);

struct sim_kv_room {
    bt_list_t link; /* in one of the kv's three lists */
    sim_kv_t *kv;
    uint64_t number; /* the pair's */
    uint32_t *ids;   /* a reference on each */
    unsigned blocks, prefix;
    bool is_sender, is_failed;
    sim_kv_end_cb on_end; /* NULL: nobody waits for it */
    void *user;
    bt_kv_room_t handles[SIM_KV_RANKS_MAX]; /* 0: released, or never opened */
    bt_kv_room_stats_t stats;               /* of rank 0, once it has ended */
    char reason[256];                       /* of a failure */
    /* sender */
    unsigned sent, limit; /* pages; a stalling sender stops at its limit */
    unsigned sent_by_rank[SIM_KV_RANKS_MAX];
    bool last_by_rank[SIM_KV_RANKS_MAX];
    uint64_t aux_bytes, aux_kv;
    bt_timer_t pace;
    uint64_t start_us, pace_us;
    char *flipped; /* the byte that was corrupted, to be put right when the room goes */
};

typedef struct sim_kv_counters {
    uint64_t rooms, succeeded, failed, bytes;
} sim_kv_counters_t;

typedef struct sim_kv_rank {
    sim_kv_t *kv;
    bt_kv_agent_t *agent;
    bt_kv_layout_t layout;
    bt_kv_region_t region;
    sim_pages_t pages;
    size_t private_bytes; /* of memory that is the worker's own; 0 = the library's pool */
    uint32_t gateways[BT_KV_GATEWAYS_MAX]; /* the agent's numbers for those of the kv */
    uv_poll_t poll;
} sim_kv_rank_t;

struct sim_kv {
    struct sim_worker *worker;
    sim_kv_rank_t ranks[SIM_KV_RANKS_MAX];
    unsigned rank_count;
    bt_list_t live, ended, leaving; /* rooms: moving; to be told of; not to be released yet */
    bt_timer_t release;
    sim_kv_counters_t counters;
    char last_failure[256];
    char gateways[BT_KV_GATEWAYS_MAX][64];
    unsigned gateway_count;
    uv_work_t closing;
    unsigned refs; /* handles and the closing thread */
    bool is_closed;
};

/* 0, or BT_E_* and a line in error. */
int sim_kv_open(sim_kv_t **kv_p, struct sim_worker *worker, char *error, size_t error_size);
/* NULL: nothing. No on_end is called any more; blocks are given back. */
void sim_kv_close(sim_kv_t *kv);
/* One more gateway: "127.0.0.1:4711"; token may be NULL. */
int sim_kv_gateway(sim_kv_t *kv, bt_str_t address, const char *token, char *error,
                   size_t error_size);
/* Blocks that senders keep though their request is over. */
unsigned sim_kv_held(const sim_kv_t *kv, unsigned *rooms_p);
/* ,"kv":{...} of /sim/state. */
void sim_kv_print(sim_kv_t *kv, bt_text_t *out);
unsigned sim_kv_port(const sim_kv_t *kv);

/* Content of computed blocks into their pages. */
void sim_kv_write(sim_kv_t *kv, const uint32_t *ids, unsigned first, unsigned count);
/* The other way: the block table learns what lies in the pages. The KV of all of it. */
uint64_t sim_kv_read(sim_kv_t *kv, const sim_prompt_t *prompt, const uint32_t *ids);

/* ---- rooms ---- */
typedef struct sim_kv_ask {
    uint64_t number;
    const uint32_t *ids;
    unsigned blocks, prefix; /* receiver: leading blocks that are there already */
    bt_str_t source;         /* receiver: "host:port,..." a rank each; empty = the gateway says */
    uint64_t bytes, kv;      /* sender: what its aux piece says */
    sim_kv_end_cb on_end;
    void *user;
} sim_kv_ask_t;
/* References the blocks. */
int sim_kv_send_open(sim_kv_t *kv, const sim_kv_ask_t *ask, sim_kv_room_t **room_p);
int sim_kv_recv_open(sim_kv_t *kv, const sim_kv_ask_t *ask, sim_kv_room_t **room_p);
/* Chunks leave over the next ms, as the pages are computed: those of the prefix at once. The last leaves with send_rest. */
void sim_kv_send_paced(sim_kv_room_t *room, uint64_t ms);
void sim_kv_send_rest(sim_kv_room_t *room);
/* Faults of a sender. */
void sim_kv_stall(sim_kv_room_t *room, unsigned pages);
void sim_kv_corrupt(sim_kv_room_t *room, unsigned page);
/* For kv.c: rooms that have ended, all of them, and the end of all of them. */
void sim_kv_rooms_look(sim_kv_t *kv);
void sim_kv_rooms_release(bt_timer_t *timer);
void sim_kv_rooms_close(sim_kv_t *kv);
/* The aux piece that came: 0, or bits of what is wrong. */
uint64_t sim_kv_aux(const sim_kv_room_t *room, uint64_t bytes, uint64_t kv);
/* Nobody waits any more: it may end by itself. */
void sim_kv_leave(sim_kv_room_t *room);
/* The same, and it is aborted. */
void sim_kv_abort(sim_kv_room_t *room, const char *reason);

#endif
