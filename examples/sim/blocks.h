/* blocks.h - a worker's KV blocks: contents, prefix cache, LRU.
 *
 * Owner: one worker.
 * Life:  init -> take / write / release* -> fini. A block with references is never handed out again.
 * Flow:  take finds cached full blocks from the front of the prompt, then takes free ones, oldest first; what is released
 *        stays readable (and findable) until it is taken for something else, as in real engines.
 * Cost:  O(1) a block; memory is touched only for blocks in use.
 */
#ifndef SIM_BLOCKS_H
#define SIM_BLOCKS_H

#include "base/list.h"
#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct sim_block {
    bt_list_t link; /* in the free list while refs is 0 */
    uint64_t
        key; /* state of the *prompt* at its end: what the prefix cache looks for; 0 = not cached */
    uint64_t from, to; /* content: state before and after, as computed or as received */
    uint32_t bytes;    /* prompt bytes in it */
    uint32_t refs;
    uint32_t next;    /* in its cache bucket, 0 = end */
    int64_t priority; /* the highest that a request with it had */
} sim_block_t;

struct sim_prompt;

typedef struct sim_blocks {
    /* NULL: nobody wants to know what can be found from now on, and what no more */
    void (*on_stored)(void *user, const struct sim_prompt *prompt, unsigned block);
    void (*on_removed)(void *user, uint64_t key);
    void *user;
    sim_block_t *table; /* ids start at 1: block 0 is never handed out */
    uint32_t *buckets;
    unsigned count, bucket_mask;
    unsigned fresh; /* lowest id never used */
    unsigned used;  /* with references */
    bt_list_t free; /* least recently released first */
    size_t block_bytes;
    bool by_priority; /* of the free ones the lowest priority goes first, and of these the oldest */
} sim_blocks_t;

/* A prompt cut into blocks. */
typedef struct sim_prompt {
    bt_str_t text; /* only while the request is read: it may lie in the body */
    bt_str_t echo; /* of a string: likewise, kept where the answer repeats it */
    unsigned tokens;
    size_t bytes;
    uint64_t kv;
    unsigned blocks;
    uint64_t *states; /* at the end of each block */
    uint32_t *ids;    /* chain.h */
    int64_t priority; /* of its request */
} sim_prompt_t;

int sim_blocks_init(sim_blocks_t *b, unsigned count, unsigned block_tokens);
void sim_blocks_fini(sim_blocks_t *b);
/* Takes prompt->blocks blocks; contents of those not found in the cache are not valid until written. *hits_p: blocks found
 * (never the last one: its last token is always computed). False: not enough free blocks, nothing taken. */
bool sim_blocks_take(sim_blocks_t *b, const sim_prompt_t *prompt, uint32_t *ids, unsigned *hits_p);
/* Content as a prefill computes it, for blocks from `first` on. */
void sim_blocks_compute(sim_blocks_t *b, const sim_prompt_t *prompt, const uint32_t *ids,
                        unsigned first);
/* Content read from another worker's blocks: ids[i] gets that of from_ids[i], for i from `first` on. */
void sim_blocks_copy(sim_blocks_t *b, const sim_prompt_t *prompt, const uint32_t *ids,
                     unsigned first, const sim_blocks_t *from, const uint32_t *from_ids);
/* Content that has arrived in block ids[i]. */
void sim_blocks_fill(sim_blocks_t *b, const sim_prompt_t *prompt, const uint32_t *ids, unsigned i,
                     const sim_block_t *content);
/* The KV in these blocks: the prompt's own when they chain from the first to the last, else some other number. */
uint64_t sim_blocks_kv(const sim_blocks_t *b, const uint32_t *ids, unsigned n);
/* One more reference on each; they have some. */
void sim_blocks_hold(sim_blocks_t *b, const uint32_t *ids, unsigned n);
void sim_blocks_release(sim_blocks_t *b, const uint32_t *ids, unsigned n);
/* Overwrites contents, as if somebody else had been given the blocks. */
void sim_blocks_scramble(sim_blocks_t *b, const uint32_t *ids, unsigned n);
bool sim_blocks_valid_id(const sim_blocks_t *b, uint64_t id);

#endif
