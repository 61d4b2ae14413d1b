/* From runs to messages. A remote write can gather but not scatter: pieces of ours that lie side by
 * side at the receiver become one message; a gap there ends it. Rows are runs of their own here. */
#include "transport/backends/verbs/verbs_job.h"

static uint64_t src_of(const bt_kv_run_t *run, const bt_verbs_cursor_t *at)
{
    return run->src_offset + (uint64_t) at->row * run->src_stride + at->byte;
}

static uint64_t dst_of(const bt_kv_run_t *run, const bt_verbs_cursor_t *at)
{
    return run->dst_offset + (uint64_t) at->row * run->dst_stride + at->byte;
}

static void advance(const bt_kv_batch_t *batch, bt_verbs_cursor_t *at, uint64_t bytes)
{
    const bt_kv_run_t *run = &batch->runs[at->run];

    at->byte += bytes;
    if (at->byte < run->bytes)
        return;
    at->byte = 0;
    at->row++;
    if (at->row < run->rows)
        return;
    at->row = 0;
    at->run++;
}

/* One more piece, or the last one longer; false: it needs a piece more than there may be. */
static bool add_piece(struct ibv_sge *pieces, unsigned *count, const bt_verbs_rail_t *rail,
                      const struct ibv_sge *piece)
{
    struct ibv_sge *last = *count > 0 ? &pieces[*count - 1] : NULL;

    if (last != NULL && last->lkey == piece->lkey && last->addr + last->length == piece->addr) {
        last->length += piece->length;
        return true;
    }
    if (*count == rail->sge_max)
        return false;
    pieces[(*count)++] = *piece;
    return true;
}

void bt_verbs_write_next(const bt_kv_batch_t *batch, bt_verbs_cursor_t *at, uint64_t bytes_max,
                         const bt_verbs_rail_t *rail, struct ibv_sge *pieces,
                         bt_verbs_write_t *write_p)
{
    write_p->bytes = 0;
    write_p->count = 0;
    while (write_p->bytes < bytes_max && at->run < batch->run_count) {
        const bt_kv_run_t *run = &batch->runs[at->run];
        uint64_t bytes = run->bytes - at->byte, dst = dst_of(run, at);

        if (write_p->count == 0) {
            write_p->dst = run->dst;
            write_p->dst_offset = dst;
        } else if (write_p->dst != run->dst || write_p->dst_offset + write_p->bytes != dst) {
            return;
        }
        if (bytes > bytes_max - write_p->bytes)
            bytes = bytes_max - write_p->bytes;
        const bt_verbs_mem_t *mem = bt_verbs_mem_of(run->src);
        struct ibv_sge piece = {.addr = mem->base + src_of(run, at),
                                .length = (uint32_t) bytes,
                                .lkey = mem->mr[rail->index]->lkey};
        if (!add_piece(pieces, &write_p->count, rail, &piece))
            return;
        write_p->bytes += bytes;
        advance(batch, at, bytes);
    }
}

void bt_verbs_cursor_skip(const bt_kv_batch_t *batch, bt_verbs_cursor_t *at, uint64_t bytes)
{
    while (bytes > 0 && at->run < batch->run_count) {
        uint64_t piece = batch->runs[at->run].bytes - at->byte;

        if (piece > bytes)
            piece = bytes;
        advance(batch, at, piece);
        bytes -= piece;
    }
}
