/* The receiver: frames through the stage, payload straight into pages.
 *
 * The stage holds the head of one frame, and whatever was read behind it: a read for a head asks for BT_TCP_AHEAD_BYTES more, a read of payload ends in
 * the stage when it can reach the block's end, so a steady stream costs one system call a slice and copies a few hundred bytes of payload twice.
 *
 * Each readv asks bt_kv_destination anew for every run it touches, whole, under the lock. What is not granted goes to a discard buffer and spoils the batch: no
 * note, an ACK that says REFUSED; the stream goes on. What no honest sender writes breaks the path.
 *
 * SO_RCVLOWAT (waking for 128 KiB) was tried: no gain beyond the noise.
 *
 * ACKs wait for the next turn: the note comes first, and a burst of batches is acknowledged by one write.
 */
#include "transport/backends/tcp/tcp.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

static void refuse_frame(bt_tcp_conn_t *conn, const char *what)
{
    conn->may_read = false;
    bt_tcp_path_break(conn->path, BT_E_KV_TRANSFER, "tcp: the peer sent %s", what);
}

static bt_tcp_entry_t *entry_of(bt_tcp_conn_t *conn)
{
    return &conn->path->entries[conn->rx.head.number % BT_TCP_SLOTS];
}

/* ---- batches ---- */
static void acknowledge(bt_tcp_conn_t *conn, const bt_tcp_entry_t *entry)
{
    bt_tcp_head_t ack = {.type = BT_TCP_ACK,
                         .number = entry->number,
                         .flags = entry->is_refused ? BT_TCP_REFUSED : 0};

    bt_tcp_head_put(&ack, conn->acks + conn->ack_count * BT_TCP_SHORT_BYTES);
    conn->ack_count++;
}

static void end_block(bt_tcp_conn_t *conn)
{
    bt_tcp_entry_t *entry = entry_of(conn);

    conn->rx.in_payload = false;
    entry->blocks++;
    if (entry->blocks_wanted == 0 || entry->blocks < entry->blocks_wanted)
        return;
    if (entry->blocks > entry->blocks_wanted) {
        refuse_frame(conn, "more blocks of a batch than it has");
        return;
    }
    entry->is_busy = false;
    acknowledge(conn, entry);
    if (!entry->is_refused && entry->note_bytes > 0)
        bt_kv_got_note(&conn->path->base, entry->note, entry->note_bytes);
}

/* The whole head is at p. False: the path is broken. */
static bool begin_block(bt_tcp_conn_t *conn, const uint8_t *p)
{
    bt_tcp_rx_t *rx = &conn->rx;
    const bt_tcp_head_t *head = &rx->head;
    bt_tcp_entry_t *entry = entry_of(conn);
    const char *why = "a batch's number that is taken";

    if (!entry->is_busy)
        *entry = (bt_tcp_entry_t){.number = head->number, .tag = head->tag, .is_busy = true};
    p += BT_TCP_BLOCK_HEAD_BYTES;
    if (entry->number != head->number || entry->tag != head->tag ||
        ((head->flags & BT_TCP_LAST) != 0 && entry->blocks_wanted != 0) ||
        bt_tcp_runs_get(p, head, rx->runs, &why) != 0) {
        refuse_frame(conn, why);
        return false;
    }
    if ((head->flags & BT_TCP_LAST) != 0) {
        entry->blocks_wanted = head->blocks;
        entry->note_bytes = head->note_bytes;
        memcpy(entry->note, p + (size_t) BT_TCP_RUN_BYTES * head->run_count, head->note_bytes);
    }
    entry->is_refused |= (head->flags & BT_TCP_GIVEN_UP) != 0;
    rx->in_payload = true;
    rx->run_at = 0;
    rx->run_byte = 0;
    rx->left = head->bytes;
    return true;
}

/* ---- payload ---- */
typedef struct pieces {
    struct iovec iov[BT_TCP_IOVS];
    uint32_t count;
    size_t bytes;
} pieces_t;

static void add_piece(pieces_t *pieces, void *p, size_t bytes)
{
    pieces->iov[pieces->count++] = (struct iovec){p, bytes};
    pieces->bytes += bytes;
}

/* Where the run's rest may go, row by row; NULL: nowhere. */
static char *place_of(bt_tcp_conn_t *conn, const bt_tcp_run_t *run, uint64_t row, uint64_t byte)
{
    bt_tcp_entry_t *entry = entry_of(conn);
    uint64_t skip = row * run->stride + byte;
    uint64_t extent = (uint64_t) (run->rows - 1) * run->stride + run->bytes;
    char *p = NULL;

    if (!entry->is_refused && run->offset <= UINT64_MAX - extent)
        p = bt_kv_destination(&conn->path->base, entry->tag, run->region, run->offset + skip,
                              extent - skip);
    entry->is_refused |= p == NULL;
    return p;
}

/* The rest of a run, as far as there is room for it. False: no room for more. */
static bool add_run(bt_tcp_conn_t *conn, pieces_t *pieces, const bt_tcp_run_t *run, uint64_t at)
{
    uint64_t row = at / run->bytes, byte = at % run->bytes;
    char *to = place_of(conn, run, row, byte);

    for (; row < run->rows; row++, byte = 0) {
        size_t left = run->bytes - byte;
        if (pieces->count >= BT_TCP_IOVS - 1 || pieces->bytes >= BT_TCP_SLICE_BYTES)
            return false;
        if (to == NULL && left > BT_TCP_SLICE_BYTES) {
            add_piece(pieces, conn->tcp->discard, BT_TCP_SLICE_BYTES);
            return false;
        }
        add_piece(pieces, to != NULL ? to : conn->tcp->discard, left);
        if (to != NULL && row + 1 < run->rows)
            to += run->stride - byte;
    }
    return true;
}

/* The rest of the block up to a slice, and behind its end the stage. */
static void gather(bt_tcp_conn_t *conn, pieces_t *pieces)
{
    bt_tcp_rx_t *rx = &conn->rx;
    uint64_t at = rx->run_byte;
    uint32_t i = rx->run_at;

    pieces->count = 0;
    pieces->bytes = 0;
    for (; i < rx->head.run_count && add_run(conn, pieces, &rx->runs[i], at); i++)
        at = 0;
    if (i == rx->head.run_count)
        add_piece(pieces, rx->stage, BT_TCP_AHEAD_BYTES);
}

/* n bytes of payload are in place. */
static void advance(bt_tcp_rx_t *rx, size_t n)
{
    rx->left -= n;
    rx->run_byte += n;
    while (rx->run_at < rx->head.run_count) {
        uint64_t bytes = (uint64_t) rx->runs[rx->run_at].bytes * rx->runs[rx->run_at].rows;
        if (rx->run_byte < bytes)
            return;
        rx->run_byte -= bytes;
        rx->run_at++;
    }
}

static void read_payload(bt_tcp_conn_t *conn)
{
    bt_kv_agent_t *agent = conn->tcp->base.agent;
    bt_tcp_rx_t *rx = &conn->rx;
    pieces_t pieces;

    gather(conn, &pieces);
    struct msghdr msg = {.msg_iov = pieces.iov, .msg_iovlen = pieces.count};
    bt_kv_unlock(agent);
    ssize_t n = recvmsg(conn->fd, &msg, MSG_DONTWAIT);
    int error = errno;
    bt_kv_relock(agent);
    if (n < 0 && error == EINTR)
        return;
    conn->may_read = n == (ssize_t) pieces.bytes; /* less: there is no more, an edge comes */
    if (n <= 0) {
        if (n == 0 || error != EAGAIN)
            bt_tcp_path_lost(conn, n == 0 ? 0 : error);
        return;
    }
    conn->path->bytes_in += (size_t) n;
    size_t payload = (size_t) n < rx->left ? (size_t) n : (size_t) rx->left;
    advance(rx, payload);
    rx->stage_at = 0;
    rx->stage_n = (size_t) n - payload;
}

/* Payload that came with the head. */
static void copy_payload(bt_tcp_conn_t *conn)
{
    bt_tcp_rx_t *rx = &conn->rx;
    pieces_t pieces;
    size_t n = rx->stage_n - rx->stage_at, left;

    left = n = n < rx->left ? n : (size_t) rx->left;
    gather(conn, &pieces);
    for (uint32_t i = 0; i < pieces.count && left > 0; i++) {
        size_t bytes = pieces.iov[i].iov_len < left ? pieces.iov[i].iov_len : left;
        memcpy(pieces.iov[i].iov_base, rx->stage + rx->stage_at, bytes);
        rx->stage_at += bytes;
        left -= bytes;
    }
    advance(rx, n - left);
}

/* ---- frames ---- */
static void got_short(bt_tcp_conn_t *conn, const bt_tcp_head_t *head)
{
    if (head->type == BT_TCP_ACK && conn->state == BT_TCP_OPEN) {
        bt_tcp_acked(conn->path, head);
    } else if (head->type == BT_TCP_WELCOME && conn->state == BT_TCP_GREETING) {
        conn->state = BT_TCP_OPEN;
        bt_tcp_path_opened(conn->path);
    } else {
        refuse_frame(conn, "a frame out of order");
    }
}

/* A frame that is all in the stage up to its payload. False: it is not, *need_p bytes would make it so (or the path is broken). */
static bool take_frame(bt_tcp_conn_t *conn, size_t *need_p)
{
    bt_tcp_rx_t *rx = &conn->rx;
    const uint8_t *p = rx->stage + rx->stage_at;
    size_t n = rx->stage_n - rx->stage_at;
    const char *why = "";
    ptrdiff_t size = bt_tcp_head_get(p, n, &rx->head, &why);

    if (size < 0) {
        refuse_frame(conn, why);
        return false;
    }
    *need_p = size > 0                 ? (size_t) size
              : n < BT_TCP_SHORT_BYTES ? BT_TCP_SHORT_BYTES
                                       : BT_TCP_BLOCK_HEAD_BYTES;
    if (size == 0 || n < (size_t) size)
        return false;
    rx->stage_at += (size_t) size;
    if (rx->head.type == BT_TCP_BLOCK && conn->state == BT_TCP_OPEN)
        return begin_block(conn, p);
    got_short(conn, &rx->head);
    return conn->path->stage != BT_TCP_BROKEN;
}

/* All that the stage holds. Bytes that the next frame needs there. */
static size_t use_stage(bt_tcp_conn_t *conn)
{
    bt_tcp_rx_t *rx = &conn->rx;
    size_t need = BT_TCP_SHORT_BYTES;

    rx->is_held = false;
    for (;;) {
        while (rx->in_payload && rx->left > 0 && rx->stage_at < rx->stage_n)
            copy_payload(conn); /* again: very short rows do not all fit in its pieces */
        if (rx->in_payload && rx->left > 0)
            return 0; /* the rest goes around the stage */
        if (rx->in_payload)
            end_block(conn);
        if (conn->path->stage == BT_TCP_BROKEN)
            return 0;
        rx->is_held = conn->ack_count == BT_TCP_ACKS;
        if (rx->is_held || !take_frame(conn, &need))
            return need;
    }
}

static void read_head(bt_tcp_conn_t *conn, size_t need)
{
    bt_tcp_rx_t *rx = &conn->rx;
    size_t have = rx->stage_n - rx->stage_at;

    memmove(rx->stage, rx->stage + rx->stage_at, have);
    rx->stage_at = 0;
    rx->stage_n = have;
    size_t want = need - have + BT_TCP_AHEAD_BYTES;
    ssize_t n = recv(conn->fd, rx->stage + have, want, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR)
        return;
    conn->may_read = n == (ssize_t) want;
    if (n <= 0) {
        if (n == 0 || errno != EAGAIN)
            bt_tcp_path_lost(conn, n == 0 ? 0 : errno);
        return;
    }
    conn->path->bytes_in += (size_t) n;
    rx->stage_n += (size_t) n;
}

int bt_tcp_take_slice(bt_tcp_conn_t *conn)
{
    uint64_t before = conn->path->bytes_in;
    bool was_held = conn->rx.is_held;
    size_t need = use_stage(conn);

    if (conn->path->stage == BT_TCP_BROKEN || conn->rx.is_held)
        return 1;
    if (!conn->may_read)
        return was_held;
    if (conn->rx.in_payload)
        read_payload(conn);
    else
        read_head(conn, need);
    if (conn->state == BT_TCP_DEAD) /* the next of the peer's addresses is tried */
        return 1;
    (void) use_stage(conn);
    /* A head alone is half of a message: the payload is there already. */
    if (conn->rx.in_payload && conn->may_read && conn->path->stage != BT_TCP_BROKEN) {
        read_payload(conn);
        (void) use_stage(conn);
    }
    return conn->path->bytes_in != before || conn->path->stage == BT_TCP_BROKEN;
}
