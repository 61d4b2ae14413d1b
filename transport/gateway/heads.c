/* Example, 4 heads: rank 1 of 2 receives heads 2 and 3, the second half of a page of rank 0 of 1, or the pages of ranks 2 and 3 of 4. Of 8 ranks those two heads
 * are held twice, by 4 and 5, 6 and 7: each receiver takes the copy that its own rank falls on, so that copies share the work and every head comes once.
 */
#include "transport/gateway/heads.h"

typedef struct share {
    uint32_t first, count;
    uint32_t copies, copy; /* how many ranks hold the same, and which of them this one is */
} share_t;

static share_t share_of(uint32_t total, uint32_t rank, uint32_t ranks)
{
    uint32_t copies = ranks > total ? ranks / total : 1;
    uint32_t count = ranks > total ? 1 : total / ranks;

    return (share_t){rank / copies * count, count, copies, rank % copies};
}

bool bt_kv_heads_fit(uint32_t total, uint32_t ranks)
{
    return total > 0 && ranks > 0 && (total % ranks == 0 || ranks % total == 0);
}

bool bt_kv_heads_slice(bt_kv_heads_t heads, uint32_t to, uint32_t to_ranks, uint32_t from,
                       uint32_t from_ranks, uint64_t page_bytes, bt_kv_slice_t *slice_p)
{
    share_t a = share_of(heads.total, to, to_ranks), b = share_of(heads.total, from, from_ranks);
    uint32_t first = a.first > b.first ? a.first : b.first;
    uint32_t a_end = a.first + a.count, b_end = b.first + b.count;
    uint32_t end = a_end < b_end ? a_end : b_end;

    if (first >= end || to % b.copies != b.copy)
        return false;
    *slice_p = (bt_kv_slice_t){0};
    if (a.first == b.first && a.count == b.count)
        return true;
    uint32_t head_bytes = (uint32_t) (page_bytes / heads.rows / a.count);
    *slice_p = (bt_kv_slice_t){.rows = heads.rows,
                               .src_row = b.count * head_bytes,
                               .dst_row = a.count * head_bytes,
                               .src_offset = (first - b.first) * head_bytes,
                               .dst_offset = (first - a.first) * head_bytes,
                               .bytes = (end - first) * head_bytes};
    return true;
}
