/* media.h - vLLM's encoders apart (E->P->D): media of a chat, who has encoded them, who fetches that.
 *
 * Owner: what an encoder has is the worker's, until it is reset.
 * Life:  a chat's parts are read with it -> an encoder keeps their hashes -> an engine that computes the prompt fetches them.
 * Flow:  ask.c reads -> vllm.c asks here before it computes, and at the end of an encoder's answer.
 * Cost:  a list a worker, looked through a part.
 */
#ifndef SIM_MEDIA_H
#define SIM_MEDIA_H

#include "world.h"

/* An encoder takes one part, and nothing else: 0, or -1. */
int sim_media_check(const sim_job_t *job, sim_problem_t *problem_p);
/* An encoder has encoded: its answer says where it is. */
void sim_media_encoded(sim_job_t *job);
/* Fetches what the prompt needs. False: what it was told ends the engine. */
bool sim_media_fetch(sim_job_t *job);
void sim_media_forget(sim_worker_t *worker);

#endif
