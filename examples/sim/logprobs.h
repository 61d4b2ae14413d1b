/* logprobs.h - log probabilities of prompts and answers, in the forms of SGLang and vLLM.
 *
 * Owner: nobody; printed into the caller's text.
 * Life:  as long as the job.
 * Flow:  the prompt's own bytes -> an id and a number for each of its tokens; KV and seed -> those of the answer's.
 * Cost:  one multiplication or two a token.
 */
#ifndef SIM_LOGPROBS_H
#define SIM_LOGPROBS_H

#include "world.h"

/* vLLM: it asks for the prompt's (prompt_logprobs, or echo with logprobs), which only who computes the prompt has. */
bool sim_logprobs_wants_prompt(const sim_ask_t *ask);
int sim_logprobs_check(const sim_ask_t *ask, sim_problem_t *problem_p); /* vLLM */
/* vLLM's prompt_logprobs of a prompt: a list, or null. */
void sim_logprobs_prompt(bt_text_t *t, const sim_job_t *job, unsigned prompt);
/* SGLang's members of meta_info, each behind a comma; none where the prompt asks for none. */
void sim_logprobs_meta(bt_text_t *t, const sim_job_t *job, const sim_sample_t *s, unsigned count);
/* SGLang's logprobs of a choice of /v1/completions: tokens from .. to - 1 of the answer, and before the first one with echo the
 * prompt's. */
void sim_logprobs_choice(bt_text_t *t, const sim_job_t *job, const sim_sample_t *s, unsigned from,
                         unsigned to);

#endif
