/* sglang.h - the parts of the simulated SGLang engine.
 *
 * Owner: the job.
 * Life:  check -> admit -> rooms -> answer or abort.
 * Flow:  sglang_check.c refuses, sglang.c pairs, computes and aborts.
 * Cost:  O(samples) a request; a duplicate rid is looked for among the live jobs.
 */
#ifndef SIM_SGLANG_H
#define SIM_SGLANG_H

#include "world.h"

static inline enum sim_role sim_sglang_role(const sim_job_t *job)
{
    return job->worker->options.role;
}

static inline bool sim_sglang_is_split(const sim_job_t *job)
{
    return sim_sglang_role(job) != SIM_HYBRID && job->ask.route < SIM_EMBEDDINGS;
}

static inline bool sim_sglang_is_absent(sim_raw_t raw)
{
    return raw.type == BT_JSON_NONE || raw.type == BT_JSON_NULL;
}

int sim_sglang_check(sim_job_t *job, sim_problem_t *problem_p);
/* 0; -1: no integer; -2: beyond 64 bits. A string of digits is as good as a number. */
int sim_sglang_read_room(sim_raw_t raw, uint64_t *room_p);
/* One of its ids begins with rid, or is it. */
bool sim_sglang_has_rid(const sim_job_t *job, bt_str_t rid, bool is_prefix);
/* What /abort_request does to one request. */
void sim_sglang_abort(sim_job_t *job);

#endif
