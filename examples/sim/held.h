/* held.h - KV that prefill workers keep until a decode has read it.
 *
 * Owner: the prefill worker's list.
 * Life:  keep -> free (read, refused, reset) or the lease runs out.
 * Flow:  a held entry owns references on its blocks; the ids travel in kv_transfer_params.
 * Cost:  look-ups walk the list of what is held now.
 */
#ifndef SIM_HELD_H
#define SIM_HELD_H

#include "world.h"

/* Takes the job's blocks of that prompt. NULL when out of memory. */
sim_held_t *sim_held_keep(sim_job_t *job, unsigned prompt);
void sim_held_free(sim_held_t *held);
sim_held_t *sim_held_find(sim_worker_t *worker, bt_str_t id);
sim_held_t *sim_held_find_external(sim_worker_t *worker, const char *external);
void sim_held_clear(sim_worker_t *worker);
/* Engine id of a prompt without its random end. */
void sim_external_id(const sim_job_t *job, unsigned prompt, char *out, size_t size);

#endif
