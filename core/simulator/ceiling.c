/* How best works: every use of a block says when it is used next, if that use can be a hit; it is kept until then, or not at all. Each use wants room
 * for the time between; where more want it than there is, whoever wants it longest goes. So what is kept is named by the place of its next
 * use, and the heap has the latest on top; uses that have come are the earliest in it, and never get there while others are left.
 *
 * Prompts stay whole without being asked to: a block is used whenever one behind it is, and sooner. */
#include "simulator/ceiling.h"

#include "base/err.h"
#include "simulator/kv_cache.h"

#include <stdlib.h>

int bt_sim_ceiling_lru(const bt_sim_trace_t *trace, uint32_t blocks, uint64_t *tokens_p)
{
    bt_sim_kv_cache_t kv;
    uint64_t found = 0;
    int rc =
        bt_sim_kv_init(&kv, blocks < trace->block_count ? blocks : (uint32_t) trace->block_count);

    for (unsigned i = 0; rc == 0 && i < trace->count; i++) {
        const bt_sim_request_t *r = &trace->requests[i];
        const uint64_t *ids = bt_sim_blocks(trace, r);
        const uint32_t whole = bt_sim_whole_blocks(trace, r);
        const uint32_t known = bt_sim_kv_match(&kv, ids, bt_sim_findable_blocks(trace, r));
        if (!bt_sim_kv_hold(&kv, ids, whole, 0))
            continue; /* longer than the cache */
        bt_sim_kv_let_go(&kv, ids, whole, 0);
        found += known;
    }
    bt_sim_kv_fini(&kv);
    if (rc == 0)
        *tokens_p = found * trace->block_tokens;
    return rc;
}

/* ---- when a block is used next ---- */

#define NEVER SIZE_MAX

struct last { /* the earliest use that was seen, from the end on */
    uint64_t id;
    size_t place; /* and one; 0 = free */
};

static struct last *find(struct last *all, size_t size, uint64_t id)
{
    size_t at = (size_t) ((id ^ id >> 29) * UINT64_C(0x9e3779b97f4a7c15) >> 20) & (size - 1);

    while (all[at].place != 0 && all[at].id != id)
        at = (at + 1) & (size - 1);
    return &all[at];
}

/* Of the trace's whole blocks, one after the other: the next use that can be a hit. */
static int find_next(const bt_sim_trace_t *trace, size_t count, size_t *next)
{
    size_t size = 1024, place = count;

    while (size < 2 * count)
        size *= 2;
    struct last *all = calloc(size, sizeof *all);
    if (all == NULL)
        return BT_E_NOMEM;
    for (unsigned i = trace->count; i > 0; i--) {
        const bt_sim_request_t *r = &trace->requests[i - 1];
        const uint32_t findable = bt_sim_findable_blocks(trace, r);
        for (uint32_t b = bt_sim_whole_blocks(trace, r); b > 0; b--) {
            struct last *l = find(all, size, bt_sim_blocks(trace, r)[b - 1]);
            next[--place] = l->place > 0 ? l->place - 1 : NEVER;
            if (b <= findable)
                *l = (struct last){bt_sim_blocks(trace, r)[b - 1], place + 1};
        }
    }
    free(all);
    return 0;
}

/* ---- what is kept until then ---- */

static void push(size_t *heap, size_t count, size_t place)
{
    size_t at = count;

    for (; at > 0 && heap[(at - 1) / 2] < place; at = (at - 1) / 2)
        heap[at] = heap[(at - 1) / 2];
    heap[at] = place;
}

/* The latest; count: without it. */
static size_t pop(size_t *heap, size_t count)
{
    const size_t top = heap[0], last = heap[count];
    size_t at = 0;

    for (size_t below; (below = 2 * at + 1) < count; at = below) {
        if (below + 1 < count && heap[below + 1] > heap[below])
            below++;
        if (heap[below] <= last)
            break;
        heap[at] = heap[below];
    }
    heap[at] = last;
    return top;
}

static uint64_t keep_best(const size_t *next, size_t count, uint32_t blocks, bool *is_kept,
                          size_t *heap)
{
    size_t kept = 0, in_heap = 0;
    uint64_t found = 0;

    for (size_t place = 0; place < count; place++) {
        if (is_kept[place]) {
            found++;
            kept--;
        }
        if (next[place] == NEVER || is_kept[next[place]])
            continue;
        is_kept[next[place]] = true;
        push(heap, in_heap++, next[place]);
        if (++kept > blocks) {
            is_kept[pop(heap, --in_heap)] = false;
            kept--;
        }
    }
    return found;
}

int bt_sim_ceiling_best(const bt_sim_trace_t *trace, uint32_t blocks, uint64_t *tokens_p)
{
    size_t count = 0;

    for (unsigned i = 0; i < trace->count; i++)
        count += bt_sim_whole_blocks(trace, &trace->requests[i]);
    size_t *next = calloc(count + 1, sizeof *next), *heap = calloc(count + 1, sizeof *heap);
    bool *is_kept = calloc(count + 1, sizeof *is_kept);
    int rc = next != NULL && heap != NULL && is_kept != NULL ? find_next(trace, count, next)
                                                             : BT_E_NOMEM;
    if (rc == 0)
        *tokens_p = keep_best(next, count, blocks, is_kept, heap) * trace->block_tokens;
    free(next);
    free(heap);
    free(is_kept);
    return rc;
}

/* ---- a fleet's ---- */

int bt_sim_ceilings(const bt_sim_trace_t *trace, uint32_t blocks, unsigned prefills,
                    unsigned engines, bt_sim_ceilings_t *ceilings_p)
{
    const unsigned counts[] = {prefills, engines};
    bt_sim_ceilings_t c = {.memory_count = !trace->has_prefixes ? 0 : prefills < engines ? 2 : 1};
    int rc = bt_sim_ceiling_best(trace, BT_SIM_ENDLESS, &c.endless);

    for (unsigned i = 0; rc == 0 && i < c.memory_count; i++) {
        const uint64_t all = (uint64_t) blocks * counts[i];
        c.memories[i].blocks = all < BT_SIM_ENDLESS ? (uint32_t) all : BT_SIM_ENDLESS;
        rc = bt_sim_ceiling_lru(trace, c.memories[i].blocks, &c.memories[i].lru);
        if (rc == 0)
            rc = bt_sim_ceiling_best(trace, c.memories[i].blocks, &c.memories[i].best);
    }
    if (rc == 0)
        *ceilings_p = c;
    return rc;
}
