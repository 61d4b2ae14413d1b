/* mooncake.h - vLLM's MooncakeConnector: a transfer id joins two legs, a bootstrap server names prefill's engines.
 *
 * Owner: the job.
 * Life:  admit -> waits for prefill's KV -> answer, or for ever.
 * Flow:  vllm.c calls these where the connector decides.
 * Cost:  a prefill that ends looks at all waiting decodes.
 */
#ifndef SIM_MOONCAKE_H
#define SIM_MOONCAKE_H

#include "world.h"

/* Blocks are taken. True: the request waits for its KV, or the engine is dead; false: it computes its prompt here. */
bool sim_mooncake_admit(sim_job_t *job);
void sim_mooncake_finished(sim_job_t *job);
/* Its bootstrap server: GET /query. */
void sim_mooncake_query(sim_worker_t *worker, bt_exchange_t *x);

/* vllm.c: the KV of prompt 0 from there, which is then free. May end job or engine. */
void sim_vllm_receive(sim_job_t *job, sim_held_t *held);
uint64_t sim_vllm_transfer_ms(const sim_job_t *job);

#endif
