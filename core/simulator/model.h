/* model.h - what an engine is: how long its steps take, how much KV it keeps, how fast KV moves.
 *
 * Owner: the tool; shared by all engines of a run.
 * Life:  read once.
 * Flow:  a step computes `prefill_tokens` new prompt tokens (chunks of several prompts) and one token for each of `running`:
 *          prefill_ms = p0 + p1 t + p2 t^2, with t tokens; 0 for none
 *          decode_ms  = d0 + d1 running + d2 kv_tokens + d3 u + d4 u^2, with u = kv_tokens / capacity; 0 for none running
 *        and takes their sum, at least min_step_ms. Both are the shape of Dynamo's mocker (lib/mocker perf_model.rs), where d1 = d2 = 0.
 * Cost:  none.
 */
#ifndef BT_SIMULATOR_MODEL_H
#define BT_SIMULATOR_MODEL_H

#include <stddef.h>
#include <stdint.h>

typedef struct bt_sim_model {
    char name[64], source[160];
    double prefill_ms[3], decode_ms[5];
    double min_step_ms;
    double max_batched_tokens, max_seqs; /* of a step */
    double kv_tokens;                    /* that fit into an engine */
    double kv_bytes_per_token,
        link_gb_s;        /* of a transfer, on the sender's link and the receiver's */
    double gpus;          /* of an engine */
    double gpu_hour_cost; /* in any currency; 0 = not known */
} bt_sim_model_t;

/* The name of one that is built in, or a Lua file that returns a table with these members (those that it leaves out are the first model's).
 * BT_E_INVAL with one line in err. */
int bt_sim_model_load(bt_sim_model_t *model, const char *name, char *err, size_t err_size);

double bt_sim_step_ms(const bt_sim_model_t *model, double prefill_tokens, double running,
                      double kv_tokens);

#endif
