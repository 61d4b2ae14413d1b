/* pages.c - see pages.h.
 *
 * A page: state before the block, state after it, prompt bytes in it, then words drawn from these three, the buffer and the rank.
 */
#include "pages.h"

#include "words.h"

#include <string.h>

#define HEAD_WORDS 3
#define POISON 0xA5
#define AUX_MARK UINT64_C(0x78756120746F6E62)

size_t sim_pages_size(const sim_pages_t *p)
{
    return sim_pages_aux_offset(p, p->count);
}

size_t sim_pages_offset(const sim_pages_t *p, unsigned buffer, uint32_t page)
{
    return ((size_t) buffer * p->count + page) * p->page_bytes;
}

size_t sim_pages_aux_offset(const sim_pages_t *p, uint32_t page)
{
    return sim_pages_offset(p, p->buffers, 0) + (size_t) page * SIM_AUX_BYTES;
}

static uint64_t *words_of(const sim_pages_t *p, unsigned buffer, uint32_t page)
{
    return (uint64_t *) (void *) (p->base + sim_pages_offset(p, buffer, page));
}

static uint64_t seed_of(const sim_pages_t *p, unsigned buffer, const sim_block_t *block)
{
    uint64_t seed = sim_mix(block->from + 1);

    seed = sim_mix(seed ^ block->to);
    seed = sim_mix(seed ^ block->bytes);
    return sim_mix(seed ^ ((uint64_t) p->rank << 32) ^ (buffer + 1));
}

static uint64_t word_of(const sim_block_t *block, uint64_t seed, size_t i)
{
    switch (i) {
    case 0:
        return block->from;
    case 1:
        return block->to;
    case 2:
        return block->bytes;
    default:
        return sim_mix(seed + i * SIM_STATE_FIRST);
    }
}

void sim_page_write(const sim_pages_t *p, uint32_t page, const sim_block_t *block)
{
    for (unsigned b = 0; b < p->buffers; b++) {
        uint64_t *words = words_of(p, b, page), seed = seed_of(p, b, block);
        for (size_t i = 0; i < p->page_bytes / 8; i++)
            words[i] = word_of(block, seed, i);
    }
}

void sim_page_poison(const sim_pages_t *p, uint32_t page)
{
    for (unsigned b = 0; b < p->buffers; b++)
        memset(words_of(p, b, page), POISON, p->page_bytes);
}

uint64_t sim_page_read(const sim_pages_t *p, uint32_t page, sim_block_t *block_p)
{
    const uint64_t *head = words_of(p, 0, page);
    uint64_t wrong = head[2] >> 32;

    block_p->from = head[0];
    block_p->to = head[1];
    block_p->bytes = (uint32_t) head[2];
    for (unsigned b = 0; b < p->buffers; b++) {
        const uint64_t *words = words_of(p, b, page);
        uint64_t seed = seed_of(p, b, block_p);
        for (size_t i = 0; i < p->page_bytes / 8; i++)
            wrong |= words[i] ^ word_of(block_p, seed, i);
    }
    return wrong;
}

/* ---- aux ---- */

static uint64_t *aux_of(const sim_pages_t *p, uint32_t page)
{
    return (uint64_t *) (void *) (p->base + sim_pages_aux_offset(p, page));
}

void sim_aux_write(const sim_pages_t *p, uint32_t page, uint64_t bytes, uint64_t kv)
{
    uint64_t *aux = aux_of(p, page);

    aux[0] = AUX_MARK;
    aux[1] = bytes;
    aux[2] = kv;
    aux[3] = sim_mix(bytes ^ sim_mix(kv + p->rank + 1));
}

void sim_aux_poison(const sim_pages_t *p, uint32_t page)
{
    memset(aux_of(p, page), POISON, SIM_AUX_BYTES);
}

uint64_t sim_aux_read(const sim_pages_t *p, uint32_t page, uint64_t bytes, uint64_t kv)
{
    const uint64_t *aux = aux_of(p, page);

    return (aux[0] ^ AUX_MARK) | (aux[1] ^ bytes) | (aux[2] ^ kv) |
           (aux[3] ^ sim_mix(bytes ^ sim_mix(kv + p->rank + 1)));
}
