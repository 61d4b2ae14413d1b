/* layout.h - where pages lie: a list of buffers, this agent's or a peer's.
 *
 * Owner: the agent (its own), a link (the peer's).
 * Life:  made from checked numbers, never changed; refs counts the rooms that use it.
 * Flow:  bt_kv_layout_make checks everything once, so that users of it add and multiply without looking.
 * Cost:  O(buffers) to make.
 */
#ifndef BT_TRANSPORT_LAYOUT_H
#define BT_TRANSPORT_LAYOUT_H

#include "transport/backends/backend.h"

#define BT_KV_RUN_MAX (1u << 30) /* bytes of a merged run */

struct bt_kv_layout {
    bt_list_t link; /* of a peer's */
    bt_kv_layout_t id;
    uint32_t pages, count;
    uint32_t refs;
    bool is_page_major; /* buffer b + 1 of a page begins where buffer b of it ends */
    bool is_opaque;     /* device memory: this process cannot read it, so no CRC */
    bt_kv_mem_t **mems; /* of this agent's own layouts: the buffers' regions; a peer's: NULL */
    bt_kv_buffer_t buffers[];
};

/* size_of tells a region's bytes, 0 = unknown. BT_E_INVAL, *why_p: what is wrong. */
int bt_kv_layout_make(struct bt_kv_layout **layout_p, const bt_kv_buffer_t *buffers, uint32_t count,
                      uint32_t pages, uint64_t (*size_of)(void *user, bt_kv_region_t region),
                      void *user, const char **why_p);
void bt_kv_layout_free(struct bt_kv_layout *layout);

/* Which bytes of a page of this side belong to a transfer: `rows` pieces of `bytes`, `row` apart, from `offset` on. rows 0: all. */
typedef struct bt_kv_cut {
    uint32_t rows, row, offset, bytes;
} bt_kv_cut_t;

bt_kv_cut_t bt_kv_cut_src(const bt_kv_slice_t *slice);
bt_kv_cut_t bt_kv_cut_dst(const bt_kv_slice_t *slice);
/* Does the cut fit every buffer's page? */
bool bt_kv_cut_fits(const bt_kv_cut_t *cut, const struct bt_kv_layout *layout);

#endif
