/* worker.h - the simulated workers and the process around them.
 *
 * Owner: the world owns its workers; everything lives on one loop.
 * Life:  open (ports bound) -> serving -> die (engine gone, then the listener too) or close. /sim/reset opens it again.
 * Flow:  listener -> server -> routes.c -> job.c; a worker knows its jobs, the KV it holds and its counters.
 * Cost:  an idle worker costs two listening sockets and its block table, touched only as far as used.
 */
#ifndef SIM_WORKER_H
#define SIM_WORKER_H

#include "blocks.h"
#include "faults.h"
#include "http/server.h"
#include "options.h"
#include "record.h"

typedef struct sim_worker sim_worker_t;
typedef struct sim_world sim_world_t;

/* KV that a prefill keeps for a decode that has not read it yet (vLLM). */
typedef struct sim_held {
    bt_list_t link; /* in worker->held */
    sim_worker_t *worker;
    bt_timer_t lease;
    char id[192];       /* engine's internal request id */
    char external[192]; /* without its random end */
    unsigned prompt_tokens, blocks;
    uint32_t *ids;
} sim_held_t;

typedef struct sim_counters {
    uint64_t requests, answered, failed, cancelled; /* of inference routes */
    uint64_t kv_held, kv_read, kv_expired, kv_freed_unread, notifications_after_expiry,
        failed_transfers;
    uint64_t prompt_tokens, generation_tokens;
    uint64_t local_compute, local_cache_hit, external_kv; /* prompt tokens by source */
    uint64_t aborts_asked, aborts_hit, bootstrap_failed, transfer_failed;
    uint64_t rank_requests[16];
} sim_counters_t;

struct sim_kv;

struct sim_worker {
    sim_worker_options_t options;
    sim_world_t *world;
    bt_list_t jobs;
    bt_list_t held;
    sim_blocks_t blocks;
    sim_faults_t faults;
    sim_counters_t counters;
    sim_record_t record;
    bt_server_t *server, *bootstrap_server;
    bt_listener_t *listener, *bootstrap_listener;
    int side_fd; /* side channel: bound, so that the port is really taken */
    unsigned port, bootstrap_port, side_port;
    bool is_dead;       /* the engine process is gone */
    bool is_closed;     /* the API server too: connection refused */
    bool dies_silently; /* SGLang: connections close without an answer */
    bt_timer_t death_timer, refuse_timer;
    uint64_t busy_until_us;    /* end of the last prefill, with queue=1 */
    struct sim_kv *kv;         /* BatonConnector; NULL when the engine is dead */
    struct sim_story *stories; /* answers of /v1/responses by id, newest first */
    unsigned story_count;
};

struct sim_world {
    bt_loop_t *loop;
    const sim_options_t *options;
    sim_worker_t **workers;
    unsigned worker_count;
    uint64_t random;         /* state of the seeded generator */
    uint64_t *shared;        /* KV hashes in the shared store (open addressing, may forget) */
    bt_list_t push_waiters;  /* decodes of NixlPushConnector */
    struct sim_room **rooms; /* sglang.c */
    unsigned open_servers;
    void (*closed)(void *arg);
    void *closed_arg;
};

int sim_world_open(sim_world_t *world, bt_loop_t *loop, const sim_options_t *options, char *error,
                   size_t error_size);
/* done runs when every server is closed. */
void sim_world_close(sim_world_t *world, void (*done)(void *arg), void *arg);
/* Something of the world's ends later: close waits for it. */
void sim_world_hold(sim_world_t *world);
void sim_world_let_go(sim_world_t *world);
void sim_world_fini(sim_world_t *world);
/* Engine times are scaled, latencies are not. At least 1 ms. */
uint64_t sim_scaled_ms(const sim_world_t *world, double ms);
double sim_jitter(sim_world_t *world, const sim_worker_t *worker, double ms);
uint64_t sim_random(sim_world_t *world);

/* The engine behind the worker is gone: running requests end, /health says so, then the listener closes. */
void sim_worker_die(sim_worker_t *worker);
/* No connection is accepted for ms. */
void sim_worker_refuse(sim_worker_t *worker, unsigned ms);
/* As new: jobs cut, KV, counters, faults and records gone, alive again on the same ports. */
void sim_worker_reset(sim_worker_t *worker);
unsigned sim_worker_running(const sim_worker_t *worker, unsigned *waiting_p);

#define SIM_SHARED_SLOTS 65536U
void sim_shared_put(sim_world_t *world, uint64_t kv);
bool sim_shared_has(const sim_world_t *world, uint64_t kv);

#endif
