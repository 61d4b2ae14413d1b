/* trtllm.h - the simulated TensorRT-LLM server's own part of a request.
 *
 * Owner: the job's arena.
 * Life:  read by check, while the body is there.
 * Flow:  trtllm.c decides, reply_openai.c prints it into choices and beside them.
 * Cost:  a copy of the parameters, and of a context_only prompt as ids.
 */
#ifndef SIM_TRTLLM_H
#define SIM_TRTLLM_H

#include "world.h"

typedef struct sim_trtllm {
    bool is_context, is_generation;
    bool has_first; /* first_gen_tokens */
    int64_t first;  /* the first of them */
    bt_str_t id;    /* digits of disagg_request_id, else of ctx_request_id; empty = neither */
    bt_str_t given; /* digits of disagg_request_id */
    bt_str_t state, endpoint;
    bt_str_t params;  /* as they came */
    bt_str_t ids;     /* the prompt as a JSON list of ids */
    uint64_t ids_kv;  /* KV of a prompt that is given so */
    sim_prompt_t own; /* prompt_token_ids of a chat */
} sim_trtllm_t;

/* The members of a choice, and of the whole answer, that only this engine has. */
void sim_trtllm_print_choice(bt_text_t *t, const sim_job_t *job, const sim_sample_t *s);
void sim_trtllm_print_tail(bt_text_t *t, const sim_job_t *job);

#endif
