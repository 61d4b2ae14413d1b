/* fleet_trace.h - the request trace that bench_fleet replays, the prompts made of it, and the best that caches could do.
 *
 * Owner: bench_fleet; one trace a process.
 * Life:  read once, then constant.
 * Flow:  a row's block ids -> a prompt whose blocks of text, or of token ids, are equal where the ids are -> what one LRU cache finds of
 *        it.
 * Cost:  a prompt is written when it is sent; the ceiling is a pass over all ids.
 */
#ifndef BENCH_FLEET_TRACE_H
#define BENCH_FLEET_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TRACE_BLOCK_TOKENS 512 /* of the trace itself */
#define TRACE_TOKEN_BYTES 4    /* of the simulator: four bytes of prompt are a token */

struct trace_row {
    uint64_t due_ms;
    uint64_t input_tokens; /* of the trace */
    uint32_t *ids;
    unsigned id_count;
};

struct trace {
    struct trace_row *rows;
    unsigned count;
    unsigned block_tokens; /* tokens that stand for a block of the trace; even, 2 to 512 */
    uint32_t id_max;
    bool has_ids; /* prompts are token ids, else text */
};

/* At most `rows_max` rows (0 = all). A file that cannot be read, or a row that makes no sense, ends the program. */
void trace_read(struct trace *t, const char *path, unsigned rows_max, unsigned block_tokens);
/* Tokens of a row's prompt, in the simulator's measure. */
uint64_t trace_tokens(const struct trace *t, const struct trace_row *row);
/* The prompt as JSON: a string of digits and blanks, or a list of ids of one digit. out: trace_prompt_bytes(). */
size_t trace_prompt_bytes(const struct trace *t, const struct trace_row *row);
void trace_prompt(const struct trace *t, const struct trace_row *row, char *out);
/* Tokens found by one LRU cache of so many blocks (0 = endless) that all rows go through, one after the other. */
uint64_t trace_lru_hits(const struct trace *t, unsigned blocks);

#endif
