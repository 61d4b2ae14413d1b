/* chain.h - answers that are a function of all token ids before them, one by one.
 *
 * Owner: the sample; memory is its job's.
 * Life:  start, when its KV is there -> ids, each made once.
 * Flow:  (worker key by_ids) prompt ids, then each id made -> state -> the next id; its five letters are the id's 18 bits, with
 *        a blank before them. So the prompt [1, 2, 3, id 0, id 1] goes on where the answer to [1, 2, 3] was broken off.
 * Cost:  one multiplication an id.
 */
#ifndef SIM_CHAIN_H
#define SIM_CHAIN_H

#include "world.h"

/* The prompt's ids: 4 bytes each, the last one padded with zeros. Copies; before the body goes. */
void sim_chain_read(sim_job_t *job);
/* Of token i; those before it are made too. */
unsigned sim_chain_id(sim_sample_t *s, unsigned i);
/* Its text, in a static buffer. */
bt_str_t sim_chain_word(sim_sample_t *s, unsigned i);
/* ,"prompt_token_ids":..,"token_ids":..: of tokens from .. to - 1; null where they were not asked for. */
void sim_chain_put_ids(bt_text_t *t, const sim_job_t *job, sim_sample_t *s, unsigned from,
                       unsigned to, bool has_prompt);

#endif
