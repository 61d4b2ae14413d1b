/* paired.h - legs of P2pNcclConnector and MoRIIOConnector: engines that read their partner's address out of the request id.
 *
 * Owner: the job.
 * Life:  one request.
 * Flow:  vllm.c asks at admission; KV then comes as with a push connector: prefill holds it until decode has taken it.
 * Cost:  a look at every worker of the process.
 */
#ifndef SIM_PAIRED_H
#define SIM_PAIRED_H

#include "world.h"

/* True: done with it, for now or for ever (it waits, or the engine is dead). False: the prompt is computed here. */
bool sim_paired_admit(sim_job_t *job);
/* A prefill that has computed: does it keep its KV for decode? */
bool sim_paired_holds(const sim_job_t *job);
/* kv_transfer_params of its answer; empty = null. */
bt_str_t sim_paired_reply(sim_job_t *job, sim_held_t *held);
/* Is this what the decode waits for? */
bool sim_paired_is_for(const sim_job_t *job, const sim_held_t *held);

/* vllm.c: the job reads what peer holds, or will hold, under the same id. */
void sim_vllm_wait(sim_job_t *job, sim_worker_t *peer);

#endif
