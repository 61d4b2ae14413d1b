/* ask.h - an inference request, read: what it asks for and the prompt(s) in it.
 *
 * Owner: the job; memory comes from the job's arena, nothing points into the body.
 * Life:  as long as the arena.
 * Flow:  body -> one pass over its members -> prompts flattened to bytes, hashed and cut into blocks.
 * Cost:  one pass over the body; prompt text is copied only when it has to be unescaped or joined.
 */
#ifndef SIM_ASK_H
#define SIM_ASK_H

#include "blocks.h"
#include "parts.h"
#include "raw.h"

enum sim_route {
    SIM_COMPLETIONS,
    SIM_CHAT,
    SIM_RESPONSES,
    SIM_MESSAGES,
    SIM_GENERATE, /* SGLang */
    SIM_TOKENS,   /* vLLM /inference/v1/generate */
    SIM_EMBEDDINGS,
    SIM_RERANK,
    SIM_CLASSIFY
};

typedef struct sim_ask {
    enum sim_route route;
    bool stream, include_usage, is_list, has_seed, has_temperature, return_token_ids, echo;
    bool ignores_eos; /* and no stop of the client's */
    bt_str_t model;   /* unescaped; empty when absent */
    sim_prompt_t *prompts;
    unsigned prompt_count;
    int64_t n, max_tokens, min_tokens; /* max_tokens -1: not given */
    int64_t logprobs, prompt_logprobs; /* below -1: not asked for */
    uint64_t seed;
    double temperature;
    bt_str_t text; /* first prompt, flattened (routes that need it later) */
    sim_parts_t media;
    sim_raw_t return_logprob, logprob_start, top_logprobs; /* SGLang: for all prompts, or a list */
    sim_raw_t rid, request_id, kv_params, ec_params, room, host, port, dp_rank, documents;
    sim_raw_t priority, kv_hints; /* SGLang */
} sim_ask_t;

/* before: bytes that stand in front of the prompt (earlier turns of /v1/responses), usually empty.
 * 0, or -1 with *problem_p filled. */
int sim_ask_read(enum sim_route route, bt_str_t body, bt_str_t before, size_t block_bytes,
                 bt_arena_t *arena, sim_ask_t *ask_p, sim_problem_t *problem_p);
/* Only previous_response_id of a /v1/responses body; empty when there is none. */
bt_str_t sim_ask_previous(bt_str_t body, bt_arena_t *arena);
void sim_prompt_make(sim_prompt_t *prompt_p, bt_str_t bytes, size_t block_bytes, bt_arena_t *arena);

#endif
