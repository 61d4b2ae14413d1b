/* Serial numbers come roughly in order; an entry's place is its number modulo the table. first_open is the lowest number that is not over; what lies
 * below is over, what lies BT_VERBS_NOTES above it cannot be (the sender has at most BT_VERBS_WINDOW under way) and ends the path.
 *
 * When the peer's connection has been taken leave of (verbs_path.c), its count has been told: what its queue pair still completes after that does not count.
 */
#include "transport/backends/verbs/verbs_conn.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#define POLL_MAX 16 /* small, so that no rail runs far ahead of another */
#define ROUNDS_MAX 4

/* NULL: the number is over, or impossible (the path has failed then). */
static bt_verbs_entry_t *entry_of(bt_verbs_path_t *path, uint32_t serial)
{
    uint32_t ahead = serial - path->first_open;

    if (ahead >= BT_VERBS_NOTES) {
        if (ahead <= UINT32_MAX / 2)
            bt_verbs_path_fail(path, "the peer numbers its batches wrong");
        return NULL;
    }
    bt_verbs_entry_t *entry = &path->entries[serial % BT_VERBS_NOTES];
    if (entry->serial != serial) {
        memset(entry, 0, sizeof(*entry));
        entry->serial = serial;
    }
    return entry;
}

static bool is_over(const bt_verbs_entry_t *entry)
{
    return entry->shares > 0 && entry->ticks >= entry->shares;
}

static void look(bt_verbs_path_t *path, bt_verbs_entry_t *entry)
{
    if (!is_over(entry))
        return;
    if (entry->note_bytes > 0 && !entry->is_cancelled)
        bt_kv_got_note(&path->base, entry->note, entry->note_bytes);
    entry->note_bytes = 0; /* it may wait here for lower numbers */
    for (;;) {
        const bt_verbs_entry_t *first = &path->entries[path->first_open % BT_VERBS_NOTES];
        if (first->serial != path->first_open || !is_over(first))
            return;
        path->first_open++;
    }
}

static void take_tick(bt_verbs_conn_t *conn, uint32_t serial, bool is_cancelled)
{
    bt_verbs_entry_t *entry = entry_of(conn->path, serial);

    conn->closings_got++;
    if (entry == NULL || is_over(entry))
        return;
    entry->ticks++;
    entry->is_cancelled = entry->is_cancelled || is_cancelled;
    look(conn->path, entry);
}

static void take_note(bt_verbs_conn_t *conn, const bt_verbs_notice_t *notice)
{
    bt_verbs_entry_t *entry = entry_of(conn->path, notice->serial);

    if (notice->shares == 0 || notice->shares > BT_VERBS_PAIRS_MAX ||
        notice->note_bytes > BT_KV_NOTE_BYTES) {
        bt_verbs_path_fail(conn->path, "the peer sent a malformed notice");
        return;
    }
    if (entry == NULL || is_over(entry))
        return;
    entry->shares = notice->shares;
    entry->note_bytes = notice->note_bytes;
    memcpy(entry->note, notice->note, notice->note_bytes);
}

static void take_notice(bt_verbs_conn_t *conn, const bt_verbs_notice_t *notice)
{
    switch (notice->kind) {
    case BT_VERBS_NOTICE_PROBE:
        if (conn->state == BT_VERBS_MET)
            conn->state = BT_VERBS_LIVE;
        return;
    case BT_VERBS_NOTICE_NOTE:
        take_note(conn, notice);
        break;
    case BT_VERBS_NOTICE_TICK:
        break;
    default:
        bt_verbs_path_fail(conn->path, "the peer sent a notice of an unknown kind");
        return;
    }
    if (notice->ticks > 0)
        take_tick(conn, notice->serial, notice->is_cancelled);
    else /* a share that was told before it had its notice */
        look(conn->path, &conn->path->entries[notice->serial % BT_VERBS_NOTES]);
}

static void take(bt_verbs_rail_t *rail, const struct ibv_wc *wc)
{
    bt_verbs_conn_t *conn = bt_verbs_conn_find(rail, wc->qp_num);
    char why[96];

    if (conn == NULL || conn->path->is_failed || conn->state == BT_VERBS_LOST)
        return;
    if (wc->status != IBV_WC_SUCCESS) {
        snprintf(why, sizeof(why), "receiving: %s", ibv_wc_status_str(wc->status));
        bt_verbs_conn_fail(conn, why);
    } else if (wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
        take_tick(conn, ntohl(wc->imm_data), false);
    } else if (wc->opcode == IBV_WC_RECV && wc->byte_len == sizeof(bt_verbs_notice_t)) {
        bt_verbs_notice_t notice;
        memcpy(&notice, rail->slots + wc->wr_id * BT_VERBS_SLOT_BYTES, sizeof(notice));
        take_notice(conn, &notice);
    } else {
        bt_verbs_path_fail(conn->path, "the peer sent a notice of the wrong size");
    }
}

int bt_verbs_inbox_poll(bt_verbs_rail_t *rail)
{
    struct ibv_wc wc[POLL_MAX];
    uint64_t slots[POLL_MAX];
    int total = 0;

    for (int round = 0; round < ROUNDS_MAX; round++) {
        int count = ibv_poll_cq(rail->recv_cq, POLL_MAX, wc);
        if (count <= 0) {
            rail->is_dead = rail->is_dead || count < 0;
            break;
        }
        for (int i = 0; i < count; i++) {
            take(rail, &wc[i]);
            slots[i] = wc[i].wr_id;
        }
        if (bt_verbs_rail_refill(rail, slots, (unsigned) count) != 0)
            rail->is_dead = true;
        total += count;
        if (count < POLL_MAX)
            break;
    }
    return total;
}
