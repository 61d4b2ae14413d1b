/* The order decides what can be merged. Most caches keep a buffer's pages side by side, so buffers are the outer loop: pages 7, 8, 9 of a buffer
 * become one run. Where a page's buffers lie side by side on both sides (block-major caches), pages are the outer loop, and a page becomes one run.
 * A strided run is one page's rows and never more, so that its extent lies inside the page: receivers check it as such.
 */
#include "transport/agent/coalesce.h"

#include "transport/wire/crc32c.h"

void bt_kv_runs_add(bt_kv_runs_t *runs, const bt_kv_mem_t *src, uint64_t src_offset,
                    bt_kv_region_t dst, uint64_t dst_offset, uint64_t bytes)
{
    bt_kv_run_t *last = runs->count > 0 ? &runs->at[runs->count - 1] : NULL;

    runs->bytes += bytes;
    if (last != NULL && last->rows == 1 && last->src == src && last->dst == dst &&
        last->src_offset + last->bytes == src_offset &&
        last->dst_offset + last->bytes == dst_offset && bytes <= BT_KV_RUN_MAX - last->bytes) {
        last->bytes += (uint32_t) bytes;
        return;
    }
    runs->at[runs->count++] = (bt_kv_run_t){.src = src,
                                            .src_offset = src_offset,
                                            .dst = dst,
                                            .dst_offset = dst_offset,
                                            .bytes = (uint32_t) bytes,
                                            .rows = 1};
}

static void add_rows(bt_kv_runs_t *runs, const bt_kv_mem_t *src, uint64_t src_offset,
                     uint32_t src_row, bt_kv_region_t dst, uint64_t dst_offset, uint32_t dst_row,
                     const bt_kv_cut_t *cut)
{
    runs->bytes += (uint64_t) cut->rows * cut->bytes;
    runs->at[runs->count++] = (bt_kv_run_t){.src = src,
                                            .src_offset = src_offset,
                                            .dst = dst,
                                            .dst_offset = dst_offset,
                                            .bytes = cut->bytes,
                                            .rows = cut->rows,
                                            .src_stride = src_row,
                                            .dst_stride = dst_row};
}

static void add_page(bt_kv_runs_t *runs, const bt_kv_side_t *src, const bt_kv_side_t *dst,
                     uint32_t page, uint32_t buffer)
{
    const bt_kv_mem_t *mem = src->layout->mems[buffer];
    const bt_kv_buffer_t *from = &src->layout->buffers[buffer];
    const bt_kv_buffer_t *to = &dst->layout->buffers[buffer];
    const bt_kv_cut_t *cut = &src->cut;
    uint64_t src_offset = from->offset + src->pages[page] * from->stride;
    uint64_t dst_offset = to->offset + dst->pages[page] * to->stride;

    if (cut->rows == 0) {
        bt_kv_runs_add(runs, mem, src_offset, to->region, dst_offset, from->bytes);
        return;
    }
    src_offset += cut->offset;
    dst_offset += dst->cut.offset;
    if (cut->rows == 1 || (cut->bytes == cut->row && cut->bytes == dst->cut.row))
        bt_kv_runs_add(runs, mem, src_offset, to->region, dst_offset,
                       (uint64_t) cut->rows * cut->bytes);
    else
        add_rows(runs, mem, src_offset, cut->row, to->region, dst_offset, dst->cut.row, cut);
}

void bt_kv_coalesce(bt_kv_runs_t *runs, const bt_kv_side_t *src, const bt_kv_side_t *dst,
                    uint32_t page_count, uint32_t buffer_first, uint32_t buffer_count)
{
    uint32_t buffer_end = buffer_first + buffer_count;

    if (src->layout->is_page_major && dst->layout->is_page_major) {
        for (uint32_t page = 0; page < page_count; page++)
            for (uint32_t buffer = buffer_first; buffer < buffer_end; buffer++)
                add_page(runs, src, dst, page, buffer);
        return;
    }
    for (uint32_t buffer = buffer_first; buffer < buffer_end; buffer++)
        for (uint32_t page = 0; page < page_count; page++)
            add_page(runs, src, dst, page, buffer);
}

static uint32_t page_crc(uint32_t crc, const char *p, const bt_kv_cut_t *cut, uint64_t bytes)
{
    if (cut->rows == 0)
        return bt_kv_crc32c(crc, p, bytes);
    p += cut->offset;
    for (uint32_t row = 0; row < cut->rows; row++, p += cut->row)
        crc = bt_kv_crc32c(crc, p, cut->bytes);
    return crc;
}

uint32_t bt_kv_part_crc(uint32_t crc, const bt_kv_side_t *side, uint32_t page_count,
                        uint32_t buffer_first, uint32_t buffer_count)
{
    for (uint32_t page = 0; page < page_count; page++)
        for (uint32_t b = buffer_first; b < buffer_first + buffer_count; b++) {
            const bt_kv_buffer_t *buffer = &side->layout->buffers[b];
            const char *p =
                side->layout->mems[b]->p + buffer->offset + side->pages[page] * buffer->stride;
            crc = page_crc(crc, p, &side->cut, buffer->bytes);
        }
    return crc;
}
