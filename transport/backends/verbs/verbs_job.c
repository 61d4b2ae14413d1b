/* A share closes with a message that tells the receiver, by the path's mode:
 *
 *     imm      notice (first share only), data ..., the last data message with the serial number as its immediate
 *     send     data ..., notice (the first share's with the note, the others' empty)
 *     control  data ...; when all shares are over here, the control connection carries the note
 *
 * On one connection a share's telling message cannot overtake its data; the receiver counts them, so shares may end in any order.
 *
 * A connection that fails takes its shares with it. They are done again on another one only after the peer has closed its end too and said how
 * many telling messages it got (verbs_path.c): from then on nothing of the dead connection can arrive, late or twice, and a share that
 * was told is not sent again into pages that may have a new owner.
 */
#include "transport/backends/verbs/verbs_job.h"

#include "base/clock.h"
#include "transport/backends/verbs/verbs_conn.h"

#include <arpa/inet.h>
#include <string.h>

#define PIECES_MAX 16
#define CUT_BYTES 4096u /* shares of some size begin at multiples of this */

/* What one call of post_send takes. */
struct chain {
    bt_verbs_conn_t *conn;
    unsigned count, limit;
    struct ibv_send_wr wr[BT_VERBS_CHAIN];
    struct ibv_sge sge[BT_VERBS_CHAIN][PIECES_MAX];
    bt_verbs_notice_t notices[BT_VERBS_CHAIN];
};

/* ---- in and out ---- */
static bool is_valid_run(bt_verbs_path_t *path, const bt_kv_run_t *run)
{
    const bt_verbs_region_t *dst = bt_verbs_mem_find(path, run->dst);

    if (run->rows == 0 || run->bytes == 0 || dst == NULL || bt_verbs_mem_of(run->src) == NULL)
        return false;
    uint64_t src = (uint64_t) (run->rows - 1) * run->src_stride + run->bytes;
    uint64_t to = (uint64_t) (run->rows - 1) * run->dst_stride + run->bytes;
    return src <= run->src->size && run->src_offset <= run->src->size - src && to <= dst->size &&
           run->dst_offset <= dst->size - to;
}

bool bt_verbs_job_refuses(const bt_verbs_path_t *path, uint64_t tag)
{
    for (unsigned i = 0; i < 64 && i < path->refused_count; i++)
        if (path->refused_tags[i] == tag)
            return true;
    return false;
}

int bt_verbs_job_put(bt_kv_path_t *base, bt_kv_batch_t *batch)
{
    bt_verbs_path_t *path = bt_verbs_path_of(base);
    uint64_t bytes = 0;

    if (path->is_failed || !path->is_ready)
        return BT_E_KV_TRANSFER;
    if (bt_verbs_job_refuses(path, batch->tag)) {
        bt_kv_batch_over(batch, BT_E_CANCELLED);
        return 0;
    }
    if (path->job_count == BT_VERBS_WINDOW)
        return BT_E_AGAIN;
    if (batch->note_bytes > BT_KV_NOTE_BYTES)
        return BT_E_INVAL;
    for (uint32_t i = 0; i < batch->run_count; i++) {
        if (!is_valid_run(path, &batch->runs[i]))
            return BT_E_INVAL;
        bytes += (uint64_t) batch->runs[i].bytes * batch->runs[i].rows;
    }
    bt_verbs_job_t *job = bt_slab_get(&path->verbs->jobs);
    if (job == NULL)
        return BT_E_NOMEM;
    job->path = path;
    job->batch = batch;
    job->bytes = bytes;
    bt_list_push(&path->waiting, &job->link);
    path->job_count++;
    bt_verbs_job_pump(path);
    return 0;
}

static void end_job(bt_verbs_job_t *job, int rc)
{
    bt_verbs_path_t *path = job->path;
    bt_kv_batch_t *batch = job->batch;

    bt_list_remove(&job->link);
    bt_slab_put(&path->verbs->jobs, job);
    path->job_count--;
    if (rc == 0 && path->mode == BT_VERBS_CONTROL && batch->note_bytes > 0 &&
        bt_verbs_path_send_note(path, batch) != 0) {
        bt_verbs_path_fail(path, "the control connection did not take a note");
        rc = BT_E_KV_TRANSFER;
    }
    bt_kv_batch_over(batch, rc);
}

void bt_verbs_share_over(bt_verbs_share_t *share)
{
    bt_verbs_job_t *job = share->job;

    job->batch->done += share->bytes;
    share->conn = NULL;
    job->shares_done++;
    if (job->shares_done == job->share_count)
        end_job(job, job->is_cancelled ? job->rc : 0);
}

/* ---- shares ---- */
static bt_verbs_conn_t *idlest(bt_verbs_path_t *path)
{
    bt_verbs_conn_t *best = NULL;

    for (unsigned i = 0; i < path->pair_count; i++) {
        bt_verbs_conn_t *conn = &path->conns[(path->turn + i) % path->pair_count];
        if (conn->state == BT_VERBS_LIVE &&
            (best == NULL || conn->backlog_bytes < best->backlog_bytes))
            best = conn;
    }
    path->turn++;
    return best;
}

static void give_share(bt_verbs_conn_t *conn, bt_verbs_share_t *share)
{
    share->conn = conn;
    conn->backlog_bytes += share->left;
    bt_list_push(&conn->backlog, &share->link);
}

static void add_share(bt_verbs_job_t *job, bt_verbs_conn_t *conn, bt_verbs_cursor_t *start,
                      uint64_t bytes)
{
    bt_verbs_share_t *share = &job->shares[job->share_count];

    *share = (bt_verbs_share_t){.job = job,
                                .start = *start,
                                .at = *start,
                                .bytes = bytes,
                                .left = bytes,
                                .has_notice = job->share_count == 0};
    job->share_count++;
    give_share(conn, share);
    bt_verbs_cursor_skip(job->batch, start, bytes);
}

/* How many bytes each of n shares has; the last one has the rest. */
static uint64_t share_bytes(uint64_t bytes, unsigned n)
{
    uint64_t each = bytes / n;

    return each >= 16 * CUT_BYTES ? each / CUT_BYTES * CUT_BYTES : each;
}

static void start_job(bt_verbs_path_t *path, bt_verbs_job_t *job)
{
    unsigned live = 0;
    uint64_t slices = job->bytes / bt_verbs_tuning.slice_bytes, left = job->bytes;
    bt_verbs_cursor_t at = {0};

    for (unsigned i = 0; i < path->pair_count; i++)
        live += path->conns[i].state == BT_VERBS_LIVE;
    unsigned n = slices < 2 ? 1 : slices < live ? (unsigned) slices : live;
    bt_list_remove(&job->link);
    bt_list_push(&path->started, &job->link);
    job->tells =
        path->mode != BT_VERBS_CONTROL && (job->batch->note_bytes > 0 || path->pair_count > 1);
    if (job->tells)
        job->serial = path->next_serial++;
    if (n == 1) {
        add_share(job, idlest(path), &at, left);
        return;
    }
    uint64_t each = share_bytes(job->bytes, n);
    for (unsigned i = 0; i < path->pair_count; i++) {
        if (path->conns[i].state != BT_VERBS_LIVE || job->share_count == n)
            continue;
        uint64_t bytes = job->share_count + 1 == n ? left : each;
        add_share(job, &path->conns[i], &at, bytes);
        left -= bytes;
    }
}

/* ---- messages ---- */
static struct ibv_send_wr *add_message(struct chain *chain, enum ibv_wr_opcode opcode)
{
    unsigned i = chain->count++;
    struct ibv_send_wr *wr = &chain->wr[i];

    *wr = (struct ibv_send_wr){
        .wr_id = chain->conn->posted + i, .sg_list = chain->sge[i], .opcode = opcode};
    if (i > 0)
        chain->wr[i - 1].next = wr;
    return wr;
}

/* The message closes its share when is_last. */
static void number(struct chain *chain, bt_verbs_share_t *share, struct ibv_send_wr *wr,
                   bool is_last)
{
    bt_verbs_conn_t *conn = chain->conn;

    if (bt_verbs_conn_signals(conn, wr->wr_id, is_last))
        wr->send_flags |= IBV_SEND_SIGNALED;
    if (!is_last)
        return;
    share->is_closed = true;
    share->last_seq = wr->wr_id;
    if (share->job->tells)
        share->closing = ++conn->closings_posted;
    bt_list_remove(&share->link);
    bt_list_push(&conn->sent, &share->link);
}

static void put_notice(struct chain *chain, bt_verbs_share_t *share, bool closes)
{
    bt_verbs_job_t *job = share->job;
    struct ibv_send_wr *wr = add_message(chain, IBV_WR_SEND);
    bt_verbs_notice_t *notice = &chain->notices[chain->count - 1];

    *notice =
        (bt_verbs_notice_t){.kind = share->has_notice ? BT_VERBS_NOTICE_NOTE : BT_VERBS_NOTICE_TICK,
                            .ticks = closes,
                            .shares = (uint8_t) job->share_count,
                            .is_cancelled = job->is_cancelled,
                            .serial = job->serial,
                            .note_bytes = (uint8_t) job->batch->note_bytes};
    memcpy(notice->note, job->batch->note, job->batch->note_bytes);
    bt_verbs_conn_place(chain->conn, notice, wr);
    share->notice_posted = true;
    number(chain, share, wr, closes);
}

/* A message without data, for its completion. */
static void put_nothing(struct chain *chain, bt_verbs_share_t *share)
{
    number(chain, share, add_message(chain, IBV_WR_RDMA_WRITE), true);
}

static void cancel_job(bt_verbs_job_t *job, int rc)
{
    job->is_cancelled = true;
    job->rc = rc;
    for (unsigned i = 0; i < job->share_count; i++) {
        bt_verbs_share_t *share = &job->shares[i];
        if (share->is_closed)
            continue;
        if (share->conn != NULL)
            share->conn->backlog_bytes -= share->left;
        share->left = 0;
    }
}

static void put_data(struct chain *chain, bt_verbs_share_t *share)
{
    bt_verbs_conn_t *conn = chain->conn;
    bt_verbs_job_t *job = share->job;
    uint64_t max = share->left < conn->rail->message_max ? share->left : conn->rail->message_max;
    bt_verbs_cursor_t at = share->at;
    bt_verbs_write_t write;

    if (max > bt_verbs_tuning.message_max)
        max = bt_verbs_tuning.message_max;
    bt_verbs_write_next(job->batch, &at, max, conn->rail, chain->sge[chain->count], &write);
    const bt_verbs_region_t *dst = bt_verbs_mem_find(conn->path, write.dst);
    if (dst == NULL || write.dst_offset + write.bytes > dst->size) { /* removed meanwhile */
        cancel_job(job, BT_E_INVAL);
        return;
    }
    share->at = at;
    share->left -= write.bytes;
    conn->backlog_bytes -= write.bytes;
    job->batch->posted += write.bytes;
    bool has_imm = share->left == 0 && job->tells && conn->path->mode == BT_VERBS_IMM;
    struct ibv_send_wr *wr =
        add_message(chain, has_imm ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE);
    wr->num_sge = (int) write.count;
    wr->imm_data = htonl(job->serial);
    wr->wr.rdma.remote_addr = dst->base + write.dst_offset;
    wr->wr.rdma.rkey = dst->rkeys[conn->peer_rail];
    number(chain, share, wr, has_imm || (share->left == 0 && !job->tells));
}

static void put_next(struct chain *chain, bt_verbs_share_t *share)
{
    bt_verbs_job_t *job = share->job;

    if (share->left > 0) {
        bool notice_first = chain->conn->path->mode == BT_VERBS_IMM && job->tells &&
                            share->has_notice && !share->notice_posted;
        if (notice_first)
            put_notice(chain, share, false);
        else
            put_data(chain, share);
    } else if (job->tells) {
        put_notice(chain, share, true);
    } else {
        put_nothing(chain, share);
    }
}

static void build(struct chain *chain)
{
    bt_verbs_conn_t *conn = chain->conn;

    while (chain->count < chain->limit && !bt_list_empty(&conn->backlog))
        put_next(chain, bt_container_of(conn->backlog.next, bt_verbs_share_t, link));
}

static int post_backlog(bt_verbs_conn_t *conn)
{
    struct chain chain; /* 25 KiB; only what is used of it is touched */
    unsigned taken;
    int total = 0;

    while (conn->state == BT_VERBS_LIVE && !bt_list_empty(&conn->backlog)) {
        unsigned room = bt_verbs_conn_room(conn);
        chain.conn = conn;
        chain.count = 0;
        chain.limit = room < BT_VERBS_CHAIN ? room : BT_VERBS_CHAIN;
        build(&chain);
        if (chain.count == 0)
            break;
        if (bt_verbs_conn_post(conn, chain.wr, chain.count, &taken) != 0)
            break;
        total += (int) taken;
    }
    return total;
}

static bool has_idle(const bt_verbs_path_t *path)
{
    for (unsigned i = 0; i < path->pair_count; i++) {
        const bt_verbs_conn_t *conn = &path->conns[i];
        if (conn->state == BT_VERBS_LIVE && bt_list_empty(&conn->backlog) &&
            bt_verbs_conn_room(conn) > 0)
            return true;
    }
    return false;
}

int bt_verbs_job_pump(bt_verbs_path_t *path)
{
    bt_verbs_conn_t *conn;
    int total = 0;

    if (!path->is_ready || path->is_failed)
        return 0;
    while (!bt_list_empty(&path->orphans) && (conn = idlest(path)) != NULL) {
        bt_verbs_share_t *share = bt_container_of(path->orphans.next, bt_verbs_share_t, link);
        bt_list_remove(&share->link);
        give_share(conn, share);
    }
    for (;;) {
        for (unsigned i = 0; i < path->pair_count; i++)
            total += post_backlog(&path->conns[i]);
        if (bt_list_empty(&path->waiting) || !has_idle(path))
            return total;
        start_job(path, bt_container_of(path->waiting.next, bt_verbs_job_t, link));
    }
}

/* ---- the end of a connection, of a room, of a path ---- */
static void orphan(bt_verbs_share_t *share)
{
    if (share->job->drain_since_ms != 0 && !share->job->is_cancelled) {
        share->job->is_cancelled = true;
        share->job->rc = BT_E_CANCELLED;
    }
    share->job->batch->posted -= share->bytes - share->left;
    share->conn = NULL;
    share->at = share->start;
    share->left = share->job->is_cancelled ? 0 : share->bytes;
    share->notice_posted = share->is_closed = false;
    share->closing = 0;
    bt_list_remove(&share->link);
    bt_list_push(&share->job->path->orphans, &share->link);
}

void bt_verbs_job_settle(bt_verbs_conn_t *conn, uint64_t closings)
{
    bt_list_t *it, *tmp;

    bt_list_each (&conn->sent, it, tmp) {
        bt_verbs_share_t *share = bt_container_of(it, bt_verbs_share_t, link);
        if (share->closing == 0 || share->closing > closings) {
            orphan(share);
            continue;
        }
        bt_list_remove(&share->link);
        bt_verbs_share_over(share);
    }
    bt_list_each (&conn->backlog, it, tmp)
        orphan(bt_container_of(it, bt_verbs_share_t, link));
    conn->backlog_bytes = 0;
}

static void hurry(bt_verbs_job_t *job, uint64_t now_ms)
{
    job->drain_since_ms = now_ms; /* its shares may find another connection */
    for (unsigned i = 0; i < job->share_count; i++)
        if (job->shares[i].conn != NULL)
            bt_verbs_conn_fail(job->shares[i].conn, "a failed room's messages did not end in time");
}

bool bt_verbs_job_drain(bt_verbs_path_t *path, uint64_t tag)
{
    uint64_t now_ms = bt_clock_ms();
    bt_list_t *it, *tmp;
    bool is_idle = true;

    bt_list_each (&path->waiting, it, tmp) {
        bt_verbs_job_t *job = bt_container_of(it, bt_verbs_job_t, link);
        if (job->batch->tag == tag)
            end_job(job, BT_E_CANCELLED);
    }
    bt_list_each (&path->started, it, tmp) {
        bt_verbs_job_t *job = bt_container_of(it, bt_verbs_job_t, link);
        if (job->batch->tag != tag)
            continue;
        is_idle = false;
        if (job->drain_since_ms == 0) {
            job->drain_since_ms = now_ms;
            bool is_posted = true;
            for (unsigned i = 0; i < job->share_count; i++)
                is_posted = is_posted && job->shares[i].is_closed;
            if (!is_posted)
                cancel_job(job, BT_E_CANCELLED);
        } else if (now_ms - job->drain_since_ms >= bt_verbs_tuning.drain_ms) {
            hurry(job, now_ms);
        }
    }
    return is_idle;
}

void bt_verbs_job_cancel_all(bt_verbs_path_t *path)
{
    bt_list_t *it, *tmp;

    bt_list_each (&path->started, it, tmp)
        end_job(bt_container_of(it, bt_verbs_job_t, link), BT_E_CANCELLED);
    bt_list_each (&path->waiting, it, tmp)
        end_job(bt_container_of(it, bt_verbs_job_t, link), BT_E_CANCELLED);
    bt_list_init(&path->orphans);
    for (unsigned i = 0; i < path->pair_count; i++) {
        bt_list_init(&path->conns[i].backlog);
        bt_list_init(&path->conns[i].sent);
        path->conns[i].backlog_bytes = 0;
    }
}
