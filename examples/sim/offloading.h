/* offloading.h - vLLM's OffloadingConnector with a peer-to-peer tier: decode fetches what prefill has stored under a request id.
 *
 * Owner: the job.
 * Life:  one look when decode is admitted; what prefill has stored goes after 60 s.
 * Flow:  vllm.c calls these where the connector decides.
 * Cost:  O(stored requests) a decode.
 */
#ifndef SIM_OFFLOADING_H
#define SIM_OFFLOADING_H

#include "world.h"

/* Where prefill has the blocks of this very prompt; NULL: decode computes it itself. Fills job->peer. */
sim_held_t *sim_offloading_find(sim_job_t *job);
void sim_offloading_finished(sim_job_t *job);

#endif
