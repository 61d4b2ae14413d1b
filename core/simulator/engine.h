/* engine.h - one simulated inference server: who waits, who computes, what a step does.
 *
 * Owner: one run.
 * Life:  init -> (add_prefill | add_decode, begin_step -> end_step)* -> fini.
 * Flow:  prompts wait in order. A step takes chunks of prompts until its tokens are used up, and a token of each answer, as continuous
 *        batching with chunked prefill does (vLLM, SGLang). A prompt is admitted when its blocks and, where it is answered here, the room
 *        for its whole answer fit: so nobody is preempted. If the engine preempts, an answer finds its room block by block, as in vLLM's v1:
 *        where there is none the youngest loses what it has, and is computed again, its answer so far included, before anybody new.
 * Cost:  a step costs O(prompts in it + answers that end in it); if the engine preempts, O(answers running).
 */
#ifndef BT_SIMULATOR_ENGINE_H
#define BT_SIMULATOR_ENGINE_H

#include "simulator/kv_cache.h"
#include "simulator/model.h"
#include "simulator/trace.h"

typedef struct bt_sim_job {  /* a request on its way */
    struct bt_sim_job *next; /* of the queue that it is in */
    const bt_sim_request_t *request;
    unsigned prefill, decode; /* engines; equal: one does both */
    uint32_t cached, left;    /* prompt tokens found, and still to be computed */
    uint32_t moved;           /* prompt tokens whose KV decode did not have */
    bool is_held;             /* it has its blocks */
    bool is_again;            /* it was preempted */
    uint32_t answer_rooms;    /* blocks that it has beyond its prompt's */
    uint32_t made;            /* of its answer, until it was preempted last */
    uint32_t steps;           /* of decode, that its answer takes from then on */
    uint64_t joined;          /* the engine's joins then; 0 = it has not run yet */
    uint64_t last_step;       /* with which it ends; 0: it does not run yet */
    double came_s, first_s;
} bt_sim_job_t;

typedef struct bt_sim_queue {
    bt_sim_job_t *first, **last;
    unsigned count;
} bt_sim_queue_t;
void bt_sim_queue_init(bt_sim_queue_t *q);
void bt_sim_queue_push(bt_sim_queue_t *q, bt_sim_job_t *job);
void bt_sim_queue_push_front(bt_sim_queue_t *q, bt_sim_job_t *job);
bt_sim_job_t *bt_sim_queue_take(bt_sim_queue_t *q);                   /* NULL: it is empty */
void bt_sim_queue_remove(bt_sim_queue_t *q, const bt_sim_job_t *job); /* not in it: nothing */

typedef struct bt_sim_engine {
    const bt_sim_model_t *model;
    const bt_sim_trace_t *trace;
    bt_sim_kv_cache_t kv;
    bt_sim_queue_t prompts; /* to be computed, in order; the first may be begun */
    bt_sim_queue_t awaited; /* their KV is elsewhere, and there is no room for it yet */
    bt_sim_queue_t joining; /* their KV is here: from the next step on they run */
    bt_sim_job_t **running; /* a heap by last_step */
    bt_sim_job_t **begun;   /* of these, who joined for this step */
    unsigned running_count, running_cap, begun_count;
    double running_tokens; /* of their KV */
    uint64_t step, joins;
    bool is_stepping;
    double step_s; /* the running one's length */
    uint32_t step_prefill_tokens;
    /* What the last step has brought: the run takes them out. */
    bt_sim_queue_t prefilled, finished;
    double busy_s, link_free_s;
    uint64_t prompt_tokens, cached_tokens; /* of prompts that it has computed */
    bool preempts;
    uint64_t preempted, recomputed_tokens;
} bt_sim_engine_t;

int bt_sim_engine_init(bt_sim_engine_t *e, const bt_sim_model_t *model, const bt_sim_trace_t *trace,
                       bool preempts);
void bt_sim_engine_fini(bt_sim_engine_t *e);
/* Its process ends: who was in it is in it no more, and what it kept is gone. What it has done stays counted. */
void bt_sim_engine_reset(bt_sim_engine_t *e);
/* Tokens that it has made for a job, which runs or is joining. */
uint64_t bt_sim_engine_made(const bt_sim_engine_t *e, const bt_sim_job_t *job);

/* True: there is something to do, and step_s says how long it takes. */
bool bt_sim_engine_begin_step(bt_sim_engine_t *e);
void bt_sim_engine_end_step(bt_sim_engine_t *e, double now_s);
/* The first that awaits room has it now, and its KV may move here; NULL: nobody. */
bt_sim_job_t *bt_sim_engine_admit(bt_sim_engine_t *e);
/* It is here: the answer joins those that run. */
void bt_sim_engine_arrived(bt_sim_engine_t *e, bt_sim_job_t *job);
/* Its KV has been taken from here, or will not come. */
void bt_sim_engine_let_go(bt_sim_engine_t *e, const bt_sim_job_t *job, bool answers);
/* Could it ever be admitted? */
bool bt_sim_engine_fits(const bt_sim_engine_t *e, const bt_sim_request_t *r, bool answers);
double bt_sim_engine_kv_used(const bt_sim_engine_t *e); /* 0 to 1 */

#endif
