/* job.h - one inference request inside a simulated engine.
 *
 * Owner: its worker's list; the exchange is borrowed until the answer has ended or the client has gone.
 * Life:  start -> checked -> (waiting for KV | parked) -> computing -> answering -> over.
 * Flow:  vllm.c or sglang.c decides where each sample's KV comes from and calls got_kv; time and tokens are made here;
 *        reply.h writes them in the route's form. A job may outlive its client (SGLang notices by a slow poll).
 * Cost:  one arena and one timer a job; a streamed token is one small write, an unstreamed answer one timer in all.
 */
#ifndef SIM_JOB_H
#define SIM_JOB_H

#include "ask.h"
#include "worker.h"

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
    bool has_engine_id, has_host, has_port, has_request_id, has_tp;
    bt_str_t engine_id, host, port, request_id;
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
    sim_params_t params;             /* vLLM */
    sim_worker_t *peer;              /* vLLM: whose KV it will read */
    struct sim_kv_room *kv_room;     /* BatonConnector: until it has ended, or is left */
    bool kills_on_leave;             /* vLLM: parked with broken parameters */
    bt_list_t push_link;             /* vLLM push: waiting for a prefill */
    bt_str_t kv_reply;               /* vLLM: kv_transfer_params of the answer; empty = null */
    bt_str_t chunk_head, chunk_tail; /* fixed parts of a stream event */
    char failure[400];               /* message of a failure that a timer brings */
};

/* What differs between the engines. */
typedef struct sim_engine_ops {
    /* 0, or -1: answered with the problem as an error. */
    int (*check)(sim_job_t *job, sim_problem_t *problem_p);
    void (*admit)(sim_job_t *job);
    void (*first_token)(sim_job_t *job); /* prefill is done */
    void (*finished)(sim_job_t *job);    /* before the end of the answer is written */
    void (*left)(sim_job_t *job);        /* over, for whatever reason: let go of rooms, KV, peers */
    void (*client_gone)(sim_job_t *job); /* x is NULL already */
    bool stream_head_first; /* 200 and headers before anything is known, for routes but /generate */
    void (*computing)(sim_job_t *job, uint64_t ms); /* the first token comes in ms; may be NULL */
} sim_engine_ops_t;
extern const sim_engine_ops_t sim_vllm_ops, sim_sglang_ops;
const sim_engine_ops_t *sim_engine_of(const sim_job_t *job);

void sim_job_start(sim_worker_t *worker, bt_exchange_t *x, enum sim_route route,
                   const sim_fault_t *fault, uint64_t number);
void sim_job_gone(sim_job_t *job);
void sim_job_drain(sim_job_t *job);
/* Sample i has its KV; the job runs when all have. ms: time that moving it took. */
void sim_job_got_kv(sim_job_t *job, unsigned i, uint64_t kv);
void sim_job_compute(sim_job_t *job);
void sim_job_park(sim_job_t *job);
/* Calls fn after ms (now when 0), unless the job is over before. */
void sim_job_later(sim_job_t *job, uint64_t ms, void (*fn)(sim_job_t *job));
/* Ends it with an error in the form of engine, route and stream state. */
void sim_job_fail(sim_job_t *job, unsigned status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The engine stops it: what has been made is the answer. */
void sim_job_stop(sim_job_t *job, const char *finish);
/* Ends it without (the rest of) an answer. */
void sim_job_cut(sim_job_t *job, bool with_reset);

#endif
