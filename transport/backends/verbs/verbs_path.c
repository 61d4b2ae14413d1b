/* A path's connections, one a rail (with unequal numbers of rails the shorter list is gone round again). The control connection carries:
 *
 *     MEET  pair epoch address      a queue pair of mine waits for yours
 *     READY pair epoch              mine is connected to yours, so you may send
 *     LEAVE pair epoch closings     mine is in the error state; of your telling messages it got so many, and will get no more
 *     NOTE  bytes                   (control mode)
 *     DRAIN tag, DRAINED tag
 *
 *   IDLE -make, MEET-> INIT -their MEET-> MET -their READY-> LIVE          after a pause: MET -READY-> PROBING -completion-> LIVE (who dialled the link),
 *                                                                           MET -their notice-> LIVE (the other)
 *   any -error-> FAILING -count what came, LEAVE-> LOST -their LEAVE-> PAUSED -pause_ms, by who dialled-> INIT with epoch + 1
 *
 * LEAVE goes out once for each queue pair, from both sides. Between the two nothing of that pair is sent again: a queue pair in the error state takes no
 * write any more, so when the peer's LEAVE is here, a share that was not told is nowhere on its way. When no connection is live the path has failed.
 */
#include "transport/backends/verbs/verbs_conn.h"
#include "transport/backends/verbs/verbs_job.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DRAINS_MAX 65536u

/* ---- messages out ---- */
static int notify_pair(bt_verbs_conn_t *conn, uint8_t kind, const void *rest, size_t size)
{
    uint8_t message[3 + sizeof(bt_verbs_address_t)] = {kind, (uint8_t) conn->pair, conn->epoch};

    memcpy(message + 3, rest, size);
    return bt_kv_path_send(&conn->path->base, message, 3 + size);
}

static int notify_meet(bt_verbs_conn_t *conn)
{
    bt_verbs_address_t address = {.qpn = conn->qp->qp_num,
                                  .psn = conn->psn,
                                  .lid = conn->rail->lid,
                                  .mtu = (uint8_t) conn->rail->mtu,
                                  .reads_max = conn->rail->reads_max};

    memcpy(address.gid, conn->rail->gid.raw, sizeof(address.gid));
    return notify_pair(conn, BT_VERBS_MEET, &address, sizeof(address));
}

int bt_verbs_path_send_tag(bt_verbs_path_t *path, uint8_t kind, uint64_t tag)
{
    uint8_t message[9] = {kind};

    memcpy(message + 1, &tag, 8);
    return bt_kv_path_send(&path->base, message, sizeof(message));
}

int bt_verbs_path_send_note(bt_verbs_path_t *path, const bt_kv_batch_t *batch)
{
    uint8_t message[1 + BT_KV_NOTE_BYTES] = {BT_VERBS_NOTE};

    memcpy(message + 1, batch->note, batch->note_bytes);
    return bt_kv_path_send(&path->base, message, 1 + batch->note_bytes);
}

void bt_verbs_path_fail(bt_verbs_path_t *path, const char *why)
{
    if (path->is_failed)
        return;
    path->is_failed = true;
    snprintf(path->why, sizeof(path->why), "%s", why);
    for (unsigned i = 0; i < path->pair_count; i++)
        bt_verbs_conn_fail(&path->conns[i], why);
}

/* ---- meeting ---- */
int bt_verbs_path_start(bt_verbs_path_t *path)
{
    for (unsigned i = 0; i < path->pair_count; i++) {
        int rc = bt_verbs_conn_make(&path->conns[i]);
        if (rc == 0)
            rc = notify_meet(&path->conns[i]);
        if (rc != 0)
            return rc;
    }
    return 0;
}

static void settle(bt_verbs_conn_t *conn, uint64_t closings)
{
    bt_verbs_conn_poll(conn); /* what has gone well must not be sent again */
    bt_verbs_conn_unmake(conn);
    bt_verbs_job_settle(conn, closings);
    conn->state = BT_VERBS_PAUSED;
    conn->peer_left = false;
    conn->retry_at_ms = bt_clock_ms() + bt_verbs_tuning.pause_ms;
}

static int take_meet(bt_verbs_conn_t *conn, uint8_t epoch, const uint8_t *from)
{
    bt_verbs_address_t peer;

    if (conn->state == BT_VERBS_LOST && conn->peer_left)
        settle(conn, conn->peer_closings);
    if (conn->state == BT_VERBS_PAUSED && epoch == (uint8_t) (conn->epoch + 1)) {
        conn->epoch = epoch;
        if (bt_verbs_conn_make(conn) != 0) {
            uint64_t none = 0;
            conn->state = BT_VERBS_PAUSED;
            return notify_pair(conn, BT_VERBS_LEAVE, &none, 8);
        }
        int rc = notify_meet(conn);
        if (rc != 0)
            return rc;
    }
    if (epoch != conn->epoch || conn->state != BT_VERBS_INIT)
        return 0; /* it has failed here meanwhile; LEAVE tells them */
    memcpy(&peer, from, sizeof(peer));
    if (peer.mtu < IBV_MTU_256 || peer.mtu > IBV_MTU_4096)
        return BT_E_INVAL;
    if (bt_verbs_conn_connect(conn, &peer) != 0) {
        bt_verbs_conn_fail(conn, "the peer's address cannot be reached from here");
        return 0;
    }
    return notify_pair(conn, BT_VERBS_READY, "", 0);
}

/* A notice must go and be acknowledged before the pair carries data again. */
static void send_probe(bt_verbs_conn_t *conn)
{
    bt_verbs_notice_t notice = {.kind = BT_VERBS_NOTICE_PROBE};
    struct ibv_sge sge;
    struct ibv_send_wr wr = {.wr_id = conn->posted,
                             .sg_list = &sge,
                             .opcode = IBV_WR_SEND,
                             .send_flags = IBV_SEND_SIGNALED};
    unsigned taken;

    bt_verbs_conn_place(conn, &notice, &wr);
    conn->state = BT_VERBS_PROBING;
    bt_verbs_conn_signals(conn, conn->posted, true);
    bt_verbs_conn_post(conn, &wr, 1, &taken);
}

static void take_ready(bt_verbs_conn_t *conn, uint8_t epoch)
{
    if (epoch != conn->epoch || conn->state != BT_VERBS_MET)
        return;
    if (epoch == 0)
        conn->state = BT_VERBS_LIVE;
    else if (conn->path->is_initiator)
        send_probe(conn);
}

static void take_leave(bt_verbs_conn_t *conn, uint8_t epoch, uint64_t closings)
{
    if (epoch != conn->epoch || conn->state == BT_VERBS_PAUSED || conn->state == BT_VERBS_IDLE)
        return;
    conn->peer_left = true;
    conn->peer_closings = closings;
    bt_verbs_conn_fail(conn, "the peer has given this connection up");
}

/* ---- rooms ---- */
bt_verbs_drain_t *bt_verbs_drain_find(const bt_list_t *list, uint64_t tag)
{
    for (const bt_list_t *it = list->next; it != list; it = it->next) {
        bt_verbs_drain_t *drain = bt_container_of(it, bt_verbs_drain_t, link);
        if (drain->tag == tag)
            return drain;
    }
    return NULL;
}

static int take_drain(bt_verbs_path_t *path, uint64_t tag)
{
    if (!bt_verbs_job_refuses(path, tag)) {
        path->refused_tags[path->refused_count % 64] = tag;
        path->refused_count++;
    }
    if (bt_verbs_job_drain(path, tag))
        return bt_verbs_path_send_tag(path, BT_VERBS_DRAINED, tag);
    if (bt_verbs_drain_find(&path->asked, tag) != NULL)
        return 0;
    bt_verbs_drain_t *drain = calloc(1, sizeof(*drain));
    if (drain == NULL || path->asked_count++ >= DRAINS_MAX) {
        free(drain);
        return BT_E_NOMEM;
    }
    drain->tag = tag;
    bt_list_push(&path->asked, &drain->link);
    return 0;
}

static int answer_drains(bt_verbs_path_t *path)
{
    bt_list_t *it, *tmp;
    int count = 0;

    bt_list_each (&path->asked, it, tmp) {
        bt_verbs_drain_t *drain = bt_container_of(it, bt_verbs_drain_t, link);
        if (!bt_verbs_job_drain(path, drain->tag))
            continue;
        if (bt_verbs_path_send_tag(path, BT_VERBS_DRAINED, drain->tag) != 0)
            bt_verbs_path_fail(path, "the control connection did not take an answer");
        bt_list_remove(&drain->link);
        free(drain);
        path->asked_count--;
        count++;
    }
    return count;
}

/* ---- messages in ---- */
static int told_pair(bt_verbs_path_t *path, const uint8_t *message, size_t size)
{
    uint64_t closings;

    if (size < 3 || message[1] >= path->pair_count)
        return BT_E_INVAL;
    bt_verbs_conn_t *conn = &path->conns[message[1]];
    size -= 3;
    switch (message[0]) {
    case BT_VERBS_MEET:
        if (size != sizeof(bt_verbs_address_t))
            return BT_E_INVAL;
        return take_meet(conn, message[2], message + 3);
    case BT_VERBS_READY:
        if (size != 0)
            return BT_E_INVAL;
        take_ready(conn, message[2]);
        return 0;
    default:
        if (size != 8)
            return BT_E_INVAL;
        memcpy(&closings, message + 3, 8);
        take_leave(conn, message[2], closings);
        return 0;
    }
}

static int take_message(bt_verbs_path_t *path, const uint8_t *message, size_t size)
{
    bt_verbs_drain_t *drain;
    uint64_t tag;

    if (size == 0)
        return BT_E_INVAL;
    switch (message[0]) {
    case BT_VERBS_MEET:
    case BT_VERBS_READY:
    case BT_VERBS_LEAVE:
        return told_pair(path, message, size);
    case BT_VERBS_NOTE:
        if (size < 2 || size > 1 + BT_KV_NOTE_BYTES || path->mode != BT_VERBS_CONTROL)
            return BT_E_INVAL;
        bt_kv_got_note(&path->base, message + 1, size - 1);
        return 0;
    case BT_VERBS_DRAIN:
    case BT_VERBS_DRAINED:
        if (size != 9)
            return BT_E_INVAL;
        memcpy(&tag, message + 1, 8);
        if (message[0] == BT_VERBS_DRAIN)
            return take_drain(path, tag);
        drain = bt_verbs_drain_find(&path->drains, tag);
        if (drain != NULL)
            drain->is_answered = true;
        return 0;
    default:
        return BT_E_INVAL;
    }
}

int bt_verbs_path_received(bt_kv_path_t *base, const uint8_t *message, size_t size)
{
    int rc = take_message(bt_verbs_path_of(base), message, size);

    if (rc < 0)
        bt_verbs_path_fail(bt_verbs_path_of(base), "the peer sent a message that cannot be");
    return rc;
}

/* ---- progress ---- */
static void leave(bt_verbs_conn_t *conn)
{
    /* Whatever came before the error state is in the queue by now. */
    while (bt_verbs_inbox_poll(conn->rail) > 0)
        ;
    conn->state = BT_VERBS_LOST;
    if (notify_pair(conn, BT_VERBS_LEAVE, &conn->closings_got, 8) != 0)
        bt_verbs_path_fail(conn->path, "the control connection did not take a message");
}

static bool has_live(const bt_verbs_path_t *path)
{
    for (unsigned i = 0; i < path->pair_count; i++)
        if (path->conns[i].state == BT_VERBS_LIVE)
            return true;
    return false;
}

static bool is_meeting(const bt_verbs_path_t *path)
{
    for (unsigned i = 0; i < path->pair_count; i++)
        if (path->conns[i].epoch == 0 &&
            (path->conns[i].state == BT_VERBS_INIT || path->conns[i].state == BT_VERBS_MET))
            return true;
    return false;
}

/* A queue pair that cannot be made leaves all as it was: the peer has not heard of it. */
static int probe(bt_verbs_conn_t *conn, uint64_t now_ms)
{
    conn->retry_at_ms = now_ms + bt_verbs_tuning.pause_ms;
    if (bt_verbs_conn_make(conn) != 0) {
        conn->state = BT_VERBS_PAUSED;
        return 0;
    }
    conn->epoch++;
    if (notify_meet(conn) != 0)
        bt_verbs_path_fail(conn->path, "the control connection did not take a message");
    return 1;
}

static int conn_progress(bt_verbs_conn_t *conn, uint64_t now_ms)
{
    bool was_meeting = !conn->path->is_ready;

    if ((!conn->rail->is_up || conn->rail->is_dead) && conn->qp != NULL)
        bt_verbs_conn_fail(conn, conn->rail->is_dead ? "the device is lost" : "its port is down");
    if (conn->state == BT_VERBS_FAILING) {
        leave(conn);
        if (!has_live(conn->path) && !(was_meeting && is_meeting(conn->path)))
            bt_verbs_path_fail(conn->path, conn->why);
        return 1;
    }
    if (conn->state == BT_VERBS_LOST && conn->peer_left) {
        settle(conn, conn->peer_closings);
        return 1;
    }
    if (conn->state != BT_VERBS_PAUSED || !conn->path->is_initiator || conn->path->is_failed ||
        now_ms < conn->retry_at_ms || !conn->rail->is_up || conn->rail->is_dead)
        return 0;
    return probe(conn, now_ms);
}

static int report(bt_verbs_path_t *path)
{
    if (!path->is_ready && !path->is_failed && has_live(path) && !is_meeting(path))
        path->is_ready = true;
    if (path->is_failed && !path->failure_told) {
        path->failure_told = true;
        bt_kv_path_failed(&path->base, BT_E_KV_TRANSFER, path->why);
        return 1;
    }
    if (path->is_ready && !path->is_failed && !path->ready_told) {
        path->ready_told = true;
        bt_kv_path_ready(&path->base);
        return 1;
    }
    return 0;
}

int bt_verbs_path_progress(bt_verbs_path_t *path, uint64_t now_ms)
{
    int count = 0;

    for (unsigned i = 0; i < path->pair_count; i++)
        count += conn_progress(&path->conns[i], now_ms);
    if (!bt_list_empty(&path->asked))
        count += answer_drains(path);
    count += bt_verbs_job_pump(path);
    return count + report(path);
}
