/* params.h - kv_transfer_params as a vLLM engine reads them, and as it writes them.
 *
 * Owner: the job's arena.
 * Life:  one request.
 * Flow:  read never refuses: what a wrong member leads to is vllm.c's business, as it is the engine's.
 * Cost:  one pass over a small object.
 */
#ifndef SIM_PARAMS_H
#define SIM_PARAMS_H

#include "world.h"

void sim_params_read(sim_raw_t raw, bt_arena_t *arena, sim_params_t *params_p);
/* remote_engine_id, _request_id, _host and _port are there, and blocks too. */
bool sim_params_complete(const sim_params_t *params);
/* The object that tells a decode about held KV. */
bt_str_t sim_params_print(const sim_held_t *held, unsigned cached_tokens, bt_arena_t *arena);

#endif
