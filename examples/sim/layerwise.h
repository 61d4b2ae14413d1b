/* layerwise.h - MooncakeLayerwiseConnector: decode takes blocks and calls the metaserver; prefill pushes into them.
 *
 * Owner: the job.
 * Life:  decode: check -> wait (called) -> got its KV, from a prefill's first token. Prefill: check -> computed -> push.
 * Flow:  they find each other by decode's engine id, side channel and request id, as the call said them.
 * Cost:  none for requests without parameters.
 */
#ifndef SIM_LAYERWISE_H
#define SIM_LAYERWISE_H

#include "job.h"

int sim_layerwise_check(sim_job_t *job, sim_problem_t *problem_p);
/* Blocks are taken. True: a decode has called and waits, or the engine is dead; false: it computes its prompt here. */
bool sim_layerwise_admit(sim_job_t *job);
/* Prefill has computed its blocks. */
void sim_layerwise_push(sim_job_t *job);

/* vllm.c: what lies in its blocks is its KV. */
void sim_vllm_received(sim_job_t *job);

#endif
