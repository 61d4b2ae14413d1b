/* trace.h - what a simulated fleet is asked: when, how many tokens in and out, and which prompts begin alike.
 *
 * Owner: the tool; read once, then shared by all runs.
 * Life:  read or generate -> fini.
 * Flow:  a block's id names the whole prompt up to its end, as the traces' hash_ids do: equal ids are equal prefixes. There are no
 *        texts in it; bt_sim_prompt makes token ids whose prefixes are equal where ids are.
 * Cost:  40 bytes a request and 8 a block.
 */
#ifndef BT_SIMULATOR_TRACE_H
#define BT_SIMULATOR_TRACE_H

#include "base/str.h"

typedef struct bt_sim_request {
    double at_s;            /* since the trace began */
    uint32_t input, output; /* tokens, both at least 1 */
    uint32_t block_count;   /* of its input, the last one may be partial */
    uint32_t session;       /* 0 = the trace does not say */
    size_t first_block;
} bt_sim_request_t;

typedef struct bt_sim_trace {
    bt_sim_request_t *requests; /* by time */
    unsigned count;
    unsigned block_tokens;
    uint64_t *blocks; /* of all requests */
    size_t block_count;
    unsigned request_cap;
    size_t block_cap;
    bool has_prefixes; /* its blocks say what is alike */
    unsigned left_out; /* of a file: what is no request to be simulated */
    char note[400];    /* what it does not know, and what is taken instead; "" = nothing */
} bt_sim_trace_t;

/* Mooncake's JSON lines (timestamp in ms, blocks of 512 tokens), Qwen-Bailian's (seconds, 16), BurstGPT's CSV (arrivals and lengths, no
 * prefixes), a gateway's decision records (--record-file): told apart by their first line. BT_E_INVAL: err names file, line and what is wrong with it. */
int bt_sim_trace_read(bt_sim_trace_t *trace, const char *path, char *err, size_t err_size);

/* "conversations" or "agents", or with parameters: "conversations:requests=5000,rate=4". Sessions come by chance (exponential gaps, or bursts); each
 * turn's prompt is the last one's with its answer and a new question behind it, and all begin with one of a few system prompts. */
#define BT_SIM_GENERATORS                                                                          \
    "conversations[:requests=10000,rate=4,turns=5,think_s=20,systems=8,system=1024,question=400,"  \
    "answer=250,burst=1], or agents[:turns=20,think_s=2,systems=4,system=6000,question=800,"       \
    "answer=80,...]"
bool bt_sim_is_generator(const char *text);
int bt_sim_trace_generate(bt_sim_trace_t *trace, const char *text, uint64_t seed, char *err,
                          size_t err_size);

/* What is left of it: `skip` requests are left out, then at most `most` are kept (0 = all); times begin at 0 and are divided by speed. */
void bt_sim_trace_cut(bt_sim_trace_t *trace, unsigned skip, unsigned most, double speed);
void bt_sim_trace_fini(bt_sim_trace_t *trace);

static inline const uint64_t *bt_sim_blocks(const bt_sim_trace_t *trace, const bt_sim_request_t *r)
{
    return trace->blocks + r->first_block;
}
/* Those that an engine can keep: it caches whole blocks only. */
static inline uint32_t bt_sim_whole_blocks(const bt_sim_trace_t *trace, const bt_sim_request_t *r)
{
    const uint32_t whole = r->input / trace->block_tokens;
    return whole < r->block_count ? whole : r->block_count;
}
/* Of these, what it takes from its cache: a prompt's last token is computed in any case, and its whole block with it. */
static inline uint32_t bt_sim_findable_blocks(const bt_sim_trace_t *trace,
                                              const bt_sim_request_t *r)
{
    const uint32_t before_last = (r->input - 1) / trace->block_tokens;
    return before_last < r->block_count ? before_last : r->block_count;
}

/* A JSON list of token ids, of one digit each. out has room for BT_SIM_PROMPT_BYTES of its input. */
#define BT_SIM_PROMPT_BYTES(input) ((size_t) (input) *2 + 1)
bt_str_t bt_sim_prompt(const bt_sim_trace_t *trace, const bt_sim_request_t *r, char *out);
/* The same ids, of one block. */
void bt_sim_block_tokens(uint64_t id, unsigned count, uint32_t *out);

/* ---- between trace.c, records.c and generate.c ---- */
bool bt_sim_is_record(bt_str_t line);
int bt_sim_record_read(bt_sim_trace_t *trace, bt_str_t line, const char **why);
void bt_sim_records_end(bt_sim_trace_t *trace);
/* A block's id, of the one before and of what is new in it, so that equal beginnings have equal ids. */
uint64_t bt_sim_chain(uint64_t before, uint64_t piece);
/* Room for one request more and its blocks, which begin at *blocks_p; NULL: memory is short. */
bt_sim_request_t *bt_sim_trace_add(bt_sim_trace_t *trace, uint32_t block_count,
                                   uint64_t **blocks_p);
int bt_sim_trace_sort(bt_sim_trace_t *trace); /* by time, equal times as they came */
#define BT_SIM_TOKENS_MAX 4000000u            /* of a request, in or out */
#define BT_SIM_REQUESTS_MAX 20000000u

#endif
