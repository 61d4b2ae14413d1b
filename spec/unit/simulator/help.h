/* help.h - a small fleet whose times can be said beforehand, and a policy that takes the first of each list. Shared by the specs of
 * core/simulator. */
#ifndef SPEC_SIMULATOR_HELP_H
#define SPEC_SIMULATOR_HELP_H

#include "simulator/sim.h"
#include "unit.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#define REQUESTS 8

/* A prefill step: 10 ms and 1 ms a token; a decode step: 5 ms and 1 ms a running answer. A transfer: 1 ms a token. */
static bt_sim_model_t model = {.prefill_ms = {10, 1, 0},
                               .decode_ms = {5, 1, 0, 0, 0},
                               .min_step_ms = 1,
                               .max_batched_tokens = 64,
                               .max_seqs = 2,
                               .kv_tokens = 1024,
                               .kv_bytes_per_token = 1e6,
                               .link_gb_s = 1};

static bt_sim_outcome_t *out;
static bt_sim_request_t requests[REQUESTS];
static uint64_t blocks[256];
static bt_sim_trace_t trace;

static char policy_file[] = "/tmp/failure_test_XXXXXX.lua";
static const char *policy_text =
    "return { api = 2, name = \"first\", version = \"1\", plan = function(_, view)\n"
    "  if #view.prefill == 0 then return { kind = \"single\", worker = view.hybrid[1] } end\n"
    "  return { prefill = view.prefill[1], decode = view.decode[1] }\n"
    "end }\n";

static inline int write_policy(void **state)
{
    const int fd = mkstemps(policy_file, 4);

    const bool is_written =
        fd >= 0 && write(fd, policy_text, strlen(policy_text)) == (ssize_t) strlen(policy_text);
    return fd >= 0 && close(fd) == 0 && is_written ? 0 : -1;
}

static inline int remove_policy(void **state)
{
    return unlink(policy_file);
}

static inline int begin(void **state)
{
    out = calloc(1, BT_SIM_OUTCOME_BYTES(REQUESTS));
    trace = (bt_sim_trace_t){
        .requests = requests, .blocks = blocks, .block_tokens = 16, .has_prefixes = true};
    return out != NULL ? 0 : -1;
}

static inline int end(void **state)
{
    free(out);
    return 0;
}

/* first: of its blocks' ids, which follow one another. */
static inline void ask(double at_s, uint32_t input, uint32_t output, uint64_t first)
{
    bt_sim_request_t *r = &requests[trace.count++];

    *r = (bt_sim_request_t){.at_s = at_s,
                            .input = input,
                            .output = output,
                            .block_count = (input + 15) / 16,
                            .first_block = trace.block_count};
    for (uint32_t b = 0; b < r->block_count; b++)
        blocks[trace.block_count++] = first + b;
}

static inline void near(double expected, double got)
{
    if (fabs(expected - got) > 0.01)
        fail_msg("expected %.3f, got %.3f", expected, got);
}

#endif
