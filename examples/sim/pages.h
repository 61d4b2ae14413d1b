/* pages.h - KV pages as bytes: what lies in a block of a worker whose KV really moves.
 *
 * Owner: the memory is the agent's or the worker's own (kv.h); here is only where things lie in it.
 * Life:  as long as the agent.
 * Flow:  a computed block is written out; what has arrived is read back. Every byte follows from the block's content, its buffer and its rank, so
 *        that one wrong byte anywhere, or a page of another layer, is other content and makes another text.
 * Cost:  one multiplication chain per 8 bytes, both ways.
 */
#ifndef SIM_PAGES_H
#define SIM_PAGES_H

#include "blocks.h"

#define SIM_PAGE_BYTES_MIN 32 /* head and one word of filling */
#define SIM_AUX_BYTES 32

/* Buffers lie one behind the other: layer 0's K, layer 0's V, layer 1's K, ...; behind them one aux piece a page. */
typedef struct sim_pages {
    char *base;
    unsigned rank;    /* tensor-parallel: each has bytes of its own */
    unsigned buffers; /* twice the layers */
    uint32_t count;   /* pages; numbers are those of blocks, so that page 0 stays empty */
    size_t page_bytes;
} sim_pages_t;

size_t sim_pages_size(const sim_pages_t *p);
size_t sim_pages_offset(const sim_pages_t *p, unsigned buffer, uint32_t page);
size_t sim_pages_aux_offset(const sim_pages_t *p, uint32_t page);

void sim_page_write(const sim_pages_t *p, uint32_t page, const sim_block_t *block);
/* Nothing that was there before can be taken for what should arrive. */
void sim_page_poison(const sim_pages_t *p, uint32_t page);
/* What the page holds. 0, or bits of what is not as it was written (then *block_p is as the first buffer says). */
uint64_t sim_page_read(const sim_pages_t *p, uint32_t page, sim_block_t *block_p);

/* What goes with the last chunk: how long the prompt is, and the KV of all its blocks. */
void sim_aux_write(const sim_pages_t *p, uint32_t page, uint64_t bytes, uint64_t kv);
void sim_aux_poison(const sim_pages_t *p, uint32_t page);
/* 0, or bits of what differs from these. */
uint64_t sim_aux_read(const sim_pages_t *p, uint32_t page, uint64_t bytes, uint64_t kv);

#endif
