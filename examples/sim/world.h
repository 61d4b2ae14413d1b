/* world.h - what workers and their jobs are made of, and what they share: loop, time, chance, the shared store.
 *
 * Owner: the world owns its workers; everything lives on one loop.
 * Life:  worker.h's.
 * Flow:  every file of an engine works on these structs; worker.c opens, ends and resets them.
 * Cost:  an idle worker costs two listening sockets and its block table, touched only as far as used.
 */
#ifndef SIM_WORLD_H
#define SIM_WORLD_H

#include "ask.h"
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
    unsigned rank;      /* MooncakeConnector */
    uint64_t ids_kv;    /* TensorRT-LLM: KV of the same prompt, given as ids */
    unsigned prompt_tokens, blocks;
    uint32_t *ids;
    char transfer_id[80]; /* MoRIIOConnector */
    int paired_rank;      /* likewise */
} sim_held_t;

typedef struct sim_counters {
    uint64_t requests, answered, failed, cancelled; /* of inference routes */
    uint64_t kv_held, kv_read, kv_expired, kv_freed_unread, notifications_after_expiry,
        failed_transfers;
    uint64_t callbacks_sent, callbacks_answered, callback_status; /* the last one's */
    uint64_t prompt_tokens, generation_tokens;
    uint64_t local_compute, local_cache_hit, external_kv; /* prompt tokens by source */
    uint64_t media_encoded, media_fetched, media_local;   /* parts: media.c */
    uint64_t aborts_asked, aborts_hit, bootstrap_failed, transfer_failed;
    uint64_t rank_requests[16];
} sim_counters_t;

struct sim_kv;
struct sim_trtllm;

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
    unsigned life;      /* how often it has begun anew */
    unsigned rank_turn; /* of requests that name no rank */
    bool is_dead;       /* the engine process is gone */
    bool is_closed;     /* the API server too: connection refused */
    bt_timer_t death_timer, refuse_timer;
    uint64_t busy_until_us;            /* end of the last prefill, with queue=1 */
    struct sim_events *events;         /* NULL when it publishes none, or is dead */
    struct sim_registrant *registrant; /* NULL when it does not register, or is dead */
    struct sim_kv *kv;                 /* BatonConnector; NULL when the engine is dead */
    struct sim_story *stories;         /* answers of /v1/responses by id, newest first */
    unsigned story_count;
    uint64_t *media; /* an encoder's: hashes of what it has encoded */
    unsigned media_count;
};

struct sim_world {
    bt_loop_t *loop;
    const sim_options_t *options;
    sim_worker_t **workers;
    unsigned worker_count;
    uint64_t random;         /* state of the seeded generator */
    uint64_t *shared;        /* KV hashes in the shared store (open addressing, may forget) */
    bt_list_t push_waiters;  /* decodes of NixlPushConnector */
    bt_list_t callbacks;     /* calls to metaservers under way */
    struct sim_room **rooms; /* sglang.c */
    const struct sim_servers *servers;
    unsigned open_servers;
    void (*closed)(void *arg);
    void *closed_arg;
};

/* ---- one inference request inside a simulated engine (job.h) ---- */

enum sim_phase {
    SIM_WAITING,   /* for KV, or for room to run */
    SIM_PARKED,    /* for ever: only the client's leaving ends it */
    SIM_COMPUTING, /* the first token is being computed */
    SIM_ANSWERING,
    SIM_OVER
};

typedef struct sim_job sim_job_t;

/* One answer to one prompt: what an engine calls a request. */
typedef struct sim_sample {
    sim_job_t *job;
    unsigned prompt; /* index in ask.prompts */
    unsigned index;  /* choice number */
    uint64_t kv, seed;
    bool has_kv, is_paired;
    uint64_t chain; /* chain.h */
    uint32_t *chain_ids;
    unsigned chain_count;
    struct sim_room *room; /* SGLang */
    uint64_t room_number;
    bt_list_t room_link;
} sim_sample_t;

/* kv_transfer_params as a decode reads them (vLLM). */
typedef struct sim_params {
    bool is_there, do_remote_decode, do_remote_prefill;
    bool has_room, is_room_wrong; /* baton_room; the one that is no number from 1 to 2^63 - 1 */
    uint64_t room;
    bt_str_t source; /* sim_source: the sender's agents, where no gateway names them */
    bool
        has_prefill_cached; /* remote_prefill_cached_tokens: prefill's own hits, for decode to tell */
    int64_t prefill_cached;
    bool has_engine_id, has_host, has_port, has_request_id, has_tp;
    bt_str_t engine_id, host, port, request_id;
    bt_str_t transfer_id, bootstrap; /* MooncakeConnector; empty = not there */
    int64_t tp;
    uint32_t *ids;
    unsigned id_count;
} sim_params_t;

struct sim_job {
    bt_list_t link;
    sim_worker_t *worker;
    bt_exchange_t *x; /* NULL: the client has gone */
    bt_arena_t arena;
    sim_ask_t ask;
    enum sim_phase phase;
    uint64_t number; /* in the worker's record */
    uint64_t start_us, answer_us;
    uint64_t created_s;
    char id[192];   /* id in the answer; vLLM's engine ids begin so, SGLang's rid is it */
    bt_str_t *rids; /* SGLang: one of each prompt when the client sent a list, else NULL */
    sim_sample_t *samples;
    unsigned sample_count, without_kv;
    unsigned max_tokens, made; /* tokens each sample gets / has */
    const char *finish;        /* finish_reason in the answer */
    bool is_recomputed;        /* vLLM-Ascend's decode has given it up */
    bool is_cut;               /* the next event is written by half */
    uint32_t **ids;            /* KV blocks of each prompt; NULL when not held */
    unsigned *hits;            /* of each prompt: blocks found in the worker's own cache */
    unsigned computed_tokens, cached_tokens, external_tokens;
    const char *kv_source; /* for x-sim-kv-source */
    sim_fault_t fault;
    unsigned chunks;   /* stream events written */
    bool is_streaming; /* answer is an event stream whose head is out */
    bool is_blocked;   /* the client reads too slowly */
    bool is_polled;    /* SGLang: the poll has found that the client is gone */
    bt_timer_t timer, poll;
    void (*on_timer)(sim_job_t *job);
    struct sim_trtllm *trtllm;   /* TensorRT-LLM */
    sim_params_t params;         /* vLLM */
    sim_worker_t *peer;          /* vLLM: whose KV it will read */
    unsigned rank;               /* MooncakeConnector: its own, or that of the peer */
    struct sim_kv_room *kv_room; /* BatonConnector: until it has ended, or is left */
    bt_str_t transfer_id;        /* MoRIIOConnector */
    int paired_rank;             /* likewise; -1 = not told */
    bool kills_on_leave;         /* vLLM: parked with broken parameters */
    bt_list_t push_link;         /* vLLM push: waiting for a prefill */
    bt_str_t ec_reply;           /* an encoder's ec_transfer_params; empty = null */
    bt_str_t kv_reply;           /* vLLM: kv_transfer_params of the answer; empty = null */
    bt_str_t chunk_head;         /* what each stream event begins with */
    char failure[400];           /* message of a failure that a timer brings */
};

/* Something of the world's ends later: close waits for it. */
void sim_world_hold(sim_world_t *world);
void sim_world_let_go(sim_world_t *world);
/* Engine times are scaled, latencies are not. At least 1 ms. */
uint64_t sim_scaled_ms(const sim_world_t *world, double ms);
double sim_jitter(sim_world_t *world, const sim_worker_t *worker, double ms);
uint64_t sim_random(sim_world_t *world);

#define SIM_SHARED_SLOTS 65536U
void sim_shared_put(sim_world_t *world, uint64_t kv);
bool sim_shared_has(const sim_world_t *world, uint64_t kv);

#endif
