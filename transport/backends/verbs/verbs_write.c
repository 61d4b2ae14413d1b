/* From runs to messages. A remote write can gather but not scatter: pieces of ours that lie side by side at the receiver become one message, whatever
 * their places here; a gap at the receiver ends it. Rows are runs of their own in this respect. */
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

/* Puts a piece on the write; false: it needs a piece more than there may be. */
static bool add_piece(bt_verbs_write_t *write, unsigned pieces_max, const bt_kv_mem_t *mem,
                      uint64_t offset, uint32_t bytes)
{
    unsigned last = write->count - 1;

    if (write->count > 0 && write->from[last].mem == mem &&
        write->from[last].offset + write->from[last].bytes == offset) {
        write->from[last].bytes += bytes;
        return true;
    }
    if (write->count == pieces_max)
        return false;
    write->from[write->count].mem = mem;
    write->from[write->count].offset = offset;
    write->from[write->count].bytes = bytes;
    write->count++;
    return true;
}

void bt_verbs_write_next(const bt_kv_batch_t *batch, bt_verbs_cursor_t *at, uint64_t bytes_max,
                         unsigned pieces_max, bt_verbs_write_t *write_p)
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
        if (!add_piece(write_p, pieces_max, run->src, src_of(run, at), (uint32_t) bytes))
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
