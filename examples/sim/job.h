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

#include "world.h"

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
    void (*died)(sim_worker_t *worker);             /* what becomes of its jobs */
    unsigned exit_ms; /* (scaled) from the engine's death to that of its API server */
} sim_engine_ops_t;
extern const sim_engine_ops_t sim_vllm_ops, sim_sglang_ops, sim_trtllm_ops;
const sim_engine_ops_t *sim_engine_of(const sim_worker_t *worker);

void sim_job_start(sim_worker_t *worker, bt_exchange_t *x, enum sim_route route,
                   const sim_fault_t *fault, uint64_t number);
/* Running requests of a worker; the others wait. waiting_p may be NULL. */
unsigned sim_jobs_running(const sim_worker_t *worker, unsigned *waiting_p);
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
