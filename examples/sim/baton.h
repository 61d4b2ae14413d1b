/* baton.h - BatonConnector: what a vLLM engine does whose KV moves through libbaton_kv.
 *
 * Owner: the job; its room is kv.h's.
 * Life:  check -> admit -> computing -> first_token -> finished or left.
 * Flow:  do_remote_decode: room opened, prompt computed, its pages sent as they come, one token answered; the blocks stay until the room is over.
 *        do_remote_prefill: blocks taken, room opened, nothing else until it has ended; the answer is made of what lies in the blocks then.
 * Cost:  none for requests without a room.
 */
#ifndef SIM_BATON_H
#define SIM_BATON_H

#include "job.h"

int sim_baton_check(sim_job_t *job, sim_problem_t *problem_p);
/* Blocks are taken. True: the request waits for its KV, or is over; false: it computes its prompt here. */
bool sim_baton_admit(sim_job_t *job);
/* Blocks of prompt i have been computed from `first` on. */
void sim_baton_computed(sim_job_t *job, unsigned i, unsigned first);
void sim_baton_computing(sim_job_t *job, uint64_t ms);
void sim_baton_first_token(sim_job_t *job);
void sim_baton_finished(sim_job_t *job);
void sim_baton_left(sim_job_t *job);

/* vllm.c: from the start, without a room. */
void sim_vllm_admit(sim_job_t *job);

#endif
