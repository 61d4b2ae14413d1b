/* The sender: batches -> blocks -> a plan of iovecs -> sendmsg.
 *
 * Whichever connection has written its plan cuts the next block from the batch at hand, so several streams share a large batch by their speed. A plan is up
 * to BT_TCP_PLAN_BYTES of payload: pieces of pages as they lie, behind frames in the plan's arena; small batches share one. The cursor in the iovecs is all that a
 * partial write needs to remember.
 *
 * A slot holds a batch from its first block until the receiver's ACK, also when the agent has dropped it: the number stays taken until the receiver has
 * forgotten it, so a late block can't be counted to another batch. A batch that is dropped while blocks of it are in a plan stays the agent's debt until they
 * are written (the stream must stay in frame); the rest of it is replaced by a block that says so.
 *
 * MSG_ZEROCOPY is not used: on loopback the kernel copies all the same (every completion says so, skb_orphan_frags) and takes 1.5 to 2 times the CPU for it.
 * Between hosts it is not measured; a page pinned by a NIC's queue would have to be waited for by drain.
 */
#include "transport/backends/tcp/tcp.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CRUMB_BYTES ((size_t) 16 << 10) /* a plan with less room than this is full */

/* ---- plans ---- */
static bool is_plan_empty(const bt_tcp_plan_t *plan)
{
    return plan->iov_at == plan->iov_count;
}

static void plan_point(bt_tcp_plan_t *plan, const void *p, size_t size)
{
    plan->iov[plan->iov_count++] =
        (struct iovec){(void *) (uintptr_t) p, size}; /* only read: sendmsg takes no const */
    plan->bytes += size;
}

void bt_tcp_plan_add(bt_tcp_plan_t *plan, const void *p, size_t size)
{
    uint8_t *at = plan->arena + plan->arena_used;

    memcpy(at, p, size);
    plan->arena_used += size;
    plan_point(plan, at, size);
}

static void mark_written(bt_tcp_path_t *path, bt_tcp_plan_t *plan)
{
    while (plan->block_at < plan->block_count &&
           plan->blocks[plan->block_at].iov_end <= plan->iov_at)
        path->slots[plan->blocks[plan->block_at++].slot].unwritten--;
}

/* n bytes of it have gone. */
static void plan_advance(bt_tcp_plan_t *plan, size_t n)
{
    plan->bytes -= n;
    while (plan->iov_at < plan->iov_count && n >= plan->iov[plan->iov_at].iov_len)
        n -= plan->iov[plan->iov_at++].iov_len;
    if (n > 0) {
        struct iovec *iov = &plan->iov[plan->iov_at];
        iov->iov_base = (char *) iov->iov_base + n;
        iov->iov_len -= n;
    }
}

/* ---- blocks ---- */
/* The slot whose batch is being cut; a waiting batch gets one. NULL: there is none, or no slot. */
static bt_tcp_slot_t *slot_to_cut(bt_tcp_path_t *path)
{
    bt_tcp_slot_t *slot = &path->slots[path->cut_number % BT_TCP_SLOTS];

    if (path->cut_number != path->next_number)
        return slot;
    if (bt_list_empty(&path->waiting) || slot->is_busy)
        return NULL;
    bt_kv_batch_t *batch = bt_container_of(path->waiting.next, bt_kv_batch_t, link);
    bt_list_remove(&batch->link);
    *slot = (bt_tcp_slot_t){
        .batch = batch, .number = path->next_number++, .tag = batch->tag, .is_busy = true};
    return slot;
}

/* As much of the batch's next run as fits: on the wire one run, in the plan a piece a row. Bytes. */
static size_t cut_run(bt_tcp_plan_t *plan, bt_kv_batch_t *batch, size_t room, uint8_t *wire)
{
    const bt_kv_run_t *run = &batch->runs[batch->next_run];
    uint64_t row = batch->next_byte / run->bytes, byte = batch->next_byte % run->bytes;
    const char *src = run->src->p + run->src_offset + row * run->src_stride + byte;
    bt_tcp_run_t cut = {.region = run->dst,
                        .offset = run->dst_offset + row * run->dst_stride + byte,
                        .bytes = (uint32_t) (run->bytes - byte),
                        .rows = 1};

    if (cut.bytes > room) {
        cut.bytes = (uint32_t) room;
    } else if (byte == 0 && run->rows - row > 1) {
        uint64_t rows = room / run->bytes;
        uint32_t pieces = BT_TCP_IOVS - plan->iov_count;
        rows = rows < pieces ? rows : pieces;
        cut.rows = (uint32_t) (rows < run->rows - row ? rows : run->rows - row);
        cut.stride = cut.rows > 1 ? run->dst_stride : 0;
    }
    for (uint32_t i = 0; i < cut.rows; i++)
        plan_point(plan, src + (size_t) i * run->src_stride, cut.bytes);
    bt_tcp_run_put(&cut, wire);
    size_t bytes = (size_t) cut.bytes * cut.rows;
    batch->next_byte += bytes;
    if (batch->next_byte == (uint64_t) run->bytes * run->rows) {
        batch->next_byte = 0;
        batch->next_run++;
    }
    return bytes;
}

static bool is_all_cut(bt_kv_batch_t *batch)
{
    while (batch->next_run < batch->run_count && batch->next_byte == 0 &&
           (batch->runs[batch->next_run].bytes == 0 || batch->runs[batch->next_run].rows == 0))
        batch->next_run++; /* nothing in it */
    return batch->next_run == batch->run_count;
}

/* The head's and the runs' place in the arena is taken first, their bytes are known last. */
static void cut_runs(bt_tcp_plan_t *plan, bt_kv_batch_t *batch, bt_tcp_head_t *head)
{
    uint8_t *at = plan->arena + plan->arena_used;
    size_t frame = BT_TCP_BLOCK_HEAD_BYTES;
    size_t frame_room = sizeof(plan->arena) - plan->arena_used - BT_KV_NOTE_BYTES;
    size_t room = BT_TCP_PLAN_BYTES > plan->bytes ? BT_TCP_PLAN_BYTES - plan->bytes : 0;
    uint32_t head_iov = plan->iov_count++;

    while (!is_all_cut(batch) && head->run_count < BT_TCP_RUNS_MAX &&
           plan->iov_count < BT_TCP_IOVS && frame + BT_TCP_RUN_BYTES <= frame_room &&
           (room >= CRUMB_BYTES || (head->run_count == 0 && room > 0))) {
        size_t n = cut_run(plan, batch, room, at + frame);
        frame += BT_TCP_RUN_BYTES;
        head->run_count++;
        head->bytes += n;
        room -= n;
    }
    if (is_all_cut(batch)) {
        head->flags = BT_TCP_LAST;
        head->note_bytes = batch->note_bytes;
        memcpy(at + frame, batch->note, batch->note_bytes);
        frame += batch->note_bytes;
    }
    plan->iov[head_iov] = (struct iovec){at, frame};
    plan->bytes += frame;
    plan->arena_used += frame;
}

static bool has_room(const bt_tcp_plan_t *plan)
{
    return plan->bytes + CRUMB_BYTES <= BT_TCP_PLAN_BYTES && plan->iov_count + 2 <= BT_TCP_IOVS &&
           plan->block_count < BT_TCP_PLAN_BLOCKS &&
           plan->arena_used + BT_TCP_BLOCK_HEAD_BYTES + BT_TCP_RUN_BYTES + BT_KV_NOTE_BYTES <=
               sizeof(plan->arena);
}

static bool cut_block(bt_tcp_path_t *path, bt_tcp_plan_t *plan)
{
    bt_tcp_slot_t *slot = has_room(plan) ? slot_to_cut(path) : NULL;

    if (slot == NULL)
        return false;
    bt_tcp_head_t head = {.type = BT_TCP_BLOCK, .number = slot->number, .tag = slot->tag};
    uint8_t *at = plan->arena + plan->arena_used;
    slot->blocks++;
    if (slot->is_dropped) {
        head.flags = BT_TCP_LAST | BT_TCP_GIVEN_UP;
        head.blocks = slot->blocks;
        uint8_t bytes[BT_TCP_BLOCK_HEAD_BYTES];
        bt_tcp_plan_add(plan, bytes, bt_tcp_head_put(&head, bytes));
    } else {
        cut_runs(plan, slot->batch, &head);
        head.blocks = (head.flags & BT_TCP_LAST) != 0 ? slot->blocks : 0;
        bt_tcp_head_put(&head, at);
        slot->unwritten++;
        plan->blocks[plan->block_count].slot = (uint16_t) (slot->number % BT_TCP_SLOTS);
        plan->blocks[plan->block_count++].iov_end = (uint16_t) plan->iov_count;
    }
    slot->is_cut = (head.flags & BT_TCP_LAST) != 0;
    path->cut_number += slot->is_cut;
    return true;
}

static bool may_cut(const bt_tcp_path_t *path)
{
    if (path->stage != BT_TCP_READY)
        return false;
    return path->cut_number != path->next_number ||
           (!bt_list_empty(&path->waiting) &&
            !path->slots[path->cut_number % BT_TCP_SLOTS].is_busy);
}

static void fill(bt_tcp_conn_t *conn)
{
    bt_tcp_plan_t *plan = &conn->plan;

    plan->iov_at = plan->iov_count = 0;
    plan->block_at = plan->block_count = 0;
    plan->arena_used = plan->bytes = 0;
    if (conn->ack_count > 0)
        bt_tcp_plan_add(plan, conn->acks, conn->ack_count * BT_TCP_SHORT_BYTES);
    conn->ack_count = 0;
    while (conn->state == BT_TCP_OPEN && may_cut(conn->path) && cut_block(conn->path, plan))
        ;
}

bool bt_tcp_has_output(const bt_tcp_conn_t *conn)
{
    return !is_plan_empty(&conn->plan) || conn->ack_count > 0 ||
           (conn->state == BT_TCP_OPEN && may_cut(conn->path));
}

int bt_tcp_write_slice(bt_tcp_conn_t *conn, bool is_unlocked)
{
    bt_tcp_plan_t *plan = &conn->plan;
    bt_kv_agent_t *agent = conn->tcp->base.agent;

    if (is_plan_empty(plan))
        fill(conn);
    if (is_plan_empty(plan))
        return 0;
    struct msghdr msg = {.msg_iov = plan->iov + plan->iov_at,
                         .msg_iovlen = plan->iov_count - plan->iov_at};
    conn->is_writing = true;
    if (is_unlocked)
        bt_kv_unlock(agent);
    ssize_t n = sendmsg(conn->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    int error = errno;
    if (is_unlocked)
        bt_kv_relock(agent);
    conn->is_writing = false;
    if (n < 0 && error == EINTR)
        return 1;
    conn->may_write = n == (ssize_t) plan->bytes; /* less: the buffer is full, an edge comes */
    if (n < 0) {
        if (error != EAGAIN)
            bt_tcp_path_lost(conn, error);
        return error != EAGAIN;
    }
    plan_advance(plan, (size_t) n);
    mark_written(conn->path, plan);
    conn->path->bytes_out += (size_t) n;
    return 1;
}

/* ---- post, ack, drain ---- */
/* A small batch goes at once, by the first connection, when nothing is before it. */
static void write_directly(bt_tcp_path_t *path)
{
    bt_tcp_conn_t *conn = path->conns[0];

    if (conn->may_write && !conn->is_writing && is_plan_empty(&conn->plan))
        (void) bt_tcp_write_slice(conn, false);
}

int bt_tcp_post(bt_kv_path_t *base, bt_kv_batch_t *batch)
{
    bt_tcp_path_t *path = bt_tcp_path_of(base);
    bt_tcp_t *tcp = bt_tcp_of(path);
    uint64_t one = 1;

    if (path->stage == BT_TCP_BROKEN)
        return path->rc;
    batch->next_run = 0;
    batch->next_byte = 0;
    bool is_first = !may_cut(path);
    bt_list_push(&path->waiting, &batch->link);
    if (is_first && batch->bytes <= BT_TCP_DIRECT_BYTES && path->stage == BT_TCP_READY)
        write_directly(path);
    if (tcp->is_armed && bt_tcp_path_has_news(path)) {
        tcp->is_armed = false;
        (void) !write(tcp->wake_fd, &one, sizeof(one));
    }
    return 0;
}

void bt_tcp_acked(bt_tcp_path_t *path, const bt_tcp_head_t *head)
{
    bt_tcp_slot_t *slot = &path->slots[head->number % BT_TCP_SLOTS];
    bt_kv_batch_t *batch = slot->batch;

    if (!slot->is_busy || slot->number != head->number || !slot->is_cut || slot->unwritten > 0) {
        bt_tcp_path_break(path, BT_E_KV_TRANSFER,
                          "tcp: the peer acknowledges a batch that it has not got");
        return;
    }
    *slot = (bt_tcp_slot_t){0};
    if (batch != NULL)
        bt_kv_batch_over(batch, (head->flags & BT_TCP_REFUSED) != 0 ? BT_E_CANCELLED : 0);
}

static void drop_slot(bt_tcp_slot_t *slot)
{
    bt_kv_batch_t *batch = slot->batch;

    slot->batch = NULL;
    if (batch != NULL)
        bt_kv_batch_over(batch, BT_E_CANCELLED);
}

static void drop_waiting(bt_tcp_path_t *path, bool is_all, uint64_t tag)
{
    bt_list_t *it, *tmp;

    bt_list_each (&path->waiting, it, tmp) {
        bt_kv_batch_t *batch = bt_container_of(it, bt_kv_batch_t, link);
        if (!is_all && batch->tag != tag)
            continue;
        bt_list_remove(it);
        bt_kv_batch_over(batch, BT_E_CANCELLED);
    }
}

bool bt_tcp_drain(bt_kv_path_t *base, uint64_t tag)
{
    bt_tcp_path_t *path = bt_tcp_path_of(base);
    bool is_still = true;

    drop_waiting(path, false, tag);
    for (uint32_t i = 0; i < BT_TCP_SLOTS; i++) {
        bt_tcp_slot_t *slot = &path->slots[i];
        if (!slot->is_busy || slot->tag != tag)
            continue;
        slot->is_dropped = true;
        if (slot->unwritten == 0 ||
            path->stage == BT_TCP_BROKEN) /* broken: nothing is written any more */
            drop_slot(slot);
        else
            is_still = false;
    }
    return is_still;
}

void bt_tcp_tx_drop(bt_tcp_path_t *path)
{
    drop_waiting(path, true, 0);
    for (uint32_t i = 0; i < BT_TCP_SLOTS; i++)
        drop_slot(&path->slots[i]);
}
