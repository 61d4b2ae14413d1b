/* All products are of a u32 and a u64 that came from a caller or a peer, so they are made with overflow checks here and nowhere else. */
#include "transport/agent/layout.h"

#include "transport/wire/frame.h"

#include <stdlib.h>
#include <string.h>

static const char *check_buffer(const bt_kv_buffer_t *b, uint32_t pages, uint64_t size)
{
    uint64_t end;

    if (size == 0)
        return "a layout's buffer lies in an unknown region";
    if (b->bytes == 0 || b->bytes > BT_KV_RUN_MAX || b->stride < b->bytes)
        return "a layout's stride is less than its page, or a page has no bytes, or above 1 GiB";
    if (__builtin_mul_overflow(b->stride, (uint64_t) pages - 1, &end) ||
        __builtin_add_overflow(end, b->bytes, &end) ||
        __builtin_add_overflow(end, b->offset, &end) || end > size)
        return "a layout's pages reach beyond their region";
    return NULL;
}

static bool is_page_major(const bt_kv_buffer_t *buffers, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++)
        if (buffers[i].region != buffers[0].region || buffers[i].stride != buffers[0].stride ||
            buffers[i].offset != buffers[i - 1].offset + buffers[i - 1].bytes)
            return false;
    return count > 1;
}

int bt_kv_layout_make(struct bt_kv_layout **layout_p, const bt_kv_buffer_t *buffers, uint32_t count,
                      uint32_t pages, uint64_t (*size_of)(void *user, bt_kv_region_t region),
                      void *user, const char **why_p)
{
    *why_p = "a layout has no pages or buffers, or too many";
    if (count == 0 || count > BT_KV_BUFFERS_MAX || pages == 0)
        return BT_E_INVAL;
    for (uint32_t i = 0; i < count; i++) {
        *why_p = check_buffer(&buffers[i], pages, size_of(user, buffers[i].region));
        if (*why_p != NULL)
            return BT_E_INVAL;
    }
    struct bt_kv_layout *layout = calloc(1, sizeof(*layout) + count * sizeof(*buffers));
    if (layout == NULL) {
        *why_p = "out of memory";
        return BT_E_NOMEM;
    }
    bt_list_init(&layout->link);
    layout->pages = pages;
    layout->count = count;
    layout->is_page_major = is_page_major(buffers, count);
    memcpy(layout->buffers, buffers, count * sizeof(*buffers));
    *layout_p = layout;
    return 0;
}

void bt_kv_layout_free(struct bt_kv_layout *layout)
{
    if (layout != NULL)
        free((void *) layout->mems);
    free(layout);
}

bt_kv_cut_t bt_kv_cut_src(const bt_kv_slice_t *slice)
{
    return (bt_kv_cut_t){slice->rows, slice->src_row, slice->src_offset, slice->bytes};
}

bt_kv_cut_t bt_kv_cut_dst(const bt_kv_slice_t *slice)
{
    return (bt_kv_cut_t){slice->rows, slice->dst_row, slice->dst_offset, slice->bytes};
}

bool bt_kv_cut_fits(const bt_kv_cut_t *cut, const struct bt_kv_layout *layout)
{
    if (cut->rows == 0)
        return true;
    if (cut->bytes == 0 || (uint64_t) cut->offset + cut->bytes > cut->row)
        return false;
    for (uint32_t i = 0; i < layout->count; i++)
        if ((uint64_t) cut->rows * cut->row != layout->buffers[i].bytes)
            return false;
    return true;
}
