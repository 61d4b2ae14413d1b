/* coalesce.h - pages to runs: as few pieces as both sides' memory allows.
 *
 * Owner: the caller's array.
 * Life:  of a call.
 * Flow:  a part (a block of pages x buffers) goes in, runs come out. What continues the run before it on both sides is merged with it, across
 *        pages, buffers and whole rows; a sliced page that cannot be merged is one strided run.
 * Cost:  O(pages * buffers) adds and compares, no allocation.
 */
#ifndef BT_TRANSPORT_COALESCE_H
#define BT_TRANSPORT_COALESCE_H

#include "transport/agent/layout.h"

typedef struct bt_kv_chunk_side {
    const struct bt_kv_layout *layout;
    const uint32_t *pages; /* of this part */
    bt_kv_cut_t cut;
} bt_kv_side_t;

typedef struct bt_kv_runs {
    bt_kv_run_t *at;
    uint32_t count, room;
    uint64_t bytes;
} bt_kv_runs_t;

/* The sender's layout is this agent's own. Room for pages * buffers must be there. Both cuts move equal bytes per page. */
void bt_kv_coalesce(bt_kv_runs_t *runs, const bt_kv_side_t *src, const bt_kv_side_t *dst,
                    uint32_t page_count, uint32_t buffer_first, uint32_t buffer_count);
/* One contiguous piece more, of at most BT_KV_RUN_MAX bytes. */
void bt_kv_runs_add(bt_kv_runs_t *runs, const bt_kv_mem_t *src, uint64_t src_offset,
                    bt_kv_region_t dst, uint64_t dst_offset, uint64_t bytes);
/* CRC32C of a part's bytes on one side, continued from crc: page by page in the prompt's order, in each buffer by buffer. */
uint32_t bt_kv_part_crc(uint32_t crc, const bt_kv_side_t *side, uint32_t page_count,
                        uint32_t buffer_first, uint32_t buffer_count);

#endif
