/* RESET -> INIT -> RTR -> RTS, with the values that the engines of this trade agree on, but for one: time-out 14 (67 ms a try), and 6 tries, not 7,
 * because Soft-RoCE reads 7 as "for ever". A peer whose queue pair is gone is known after a second or two; receiver not ready: 0.64 ms, for ever (the receiver's software may be asleep; the heartbeat
 * knows whether it is dead).
 *
 * Completions are taken from a queue of this connection's own, as deep as its send queue, so it cannot overflow. Only connections with messages
 * out are looked at.
 */
#include "transport/backends/verbs/verbs_conn.h"

#include "base/rand.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TIMEOUT 14
#define RETRIES 6
#define RNR_RETRIES 7
#define RNR_TIMER 12
#define HOPS 64
#define POLL_MAX 32

void bt_verbs_conn_init(bt_verbs_conn_t *conn, bt_verbs_path_t *path, unsigned pair,
                        bt_verbs_rail_t *rail, unsigned peer_rail)
{
    conn->path = path;
    conn->pair = pair;
    conn->rail = rail;
    conn->peer_rail = peer_rail;
    bt_list_init(&conn->qpn_link);
    bt_list_init(&conn->active_link);
    bt_list_init(&conn->backlog);
    bt_list_init(&conn->sent);
}

static struct ibv_qp *create_qp(bt_verbs_conn_t *conn, uint32_t inline_bytes)
{
    struct ibv_qp_init_attr init = {
        .send_cq = conn->cq,
        .recv_cq = conn->rail->recv_cq,
        .srq = conn->rail->srq,
        .cap = {.max_send_wr = conn->depth,
                .max_send_sge = conn->rail->sge_max,
                .max_inline_data = inline_bytes},
        .qp_type = IBV_QPT_RC,
    };
    struct ibv_qp *qp = ibv_create_qp(conn->rail->pd, &init);

    if (qp != NULL)
        conn->inline_max = init.cap.max_inline_data;
    return qp;
}

/* A device that cannot take a notice inline gets a place for each in registered memory. */
static int make_notices(bt_verbs_conn_t *conn)
{
    size_t bytes = conn->depth * sizeof(bt_verbs_notice_t);

    if (conn->inline_max >= sizeof(bt_verbs_notice_t))
        return 0;
    if (posix_memalign((void **) &conn->notices, 4096, bytes) != 0)
        return BT_E_NOMEM;
    conn->notices_mr = ibv_reg_mr(conn->rail->pd, conn->notices, bytes, 0);
    return conn->notices_mr != NULL ? 0 : BT_E_NOMEM;
}

static int to_init(bt_verbs_conn_t *conn)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT,
                               .port_num = conn->rail->port,
                               .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};

    return ibv_modify_qp(conn->qp, &attr,
                         IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

static bt_list_t *bucket_of(bt_verbs_rail_t *rail, uint32_t qpn)
{
    return &rail->by_qpn[(qpn * 2654435761u) >> 24 & (BT_VERBS_QPN_BUCKETS - 1)];
}

int bt_verbs_conn_make(bt_verbs_conn_t *conn)
{
    conn->depth = bt_verbs_tuning.send_depth < conn->rail->send_max ? bt_verbs_tuning.send_depth
                                                                    : conn->rail->send_max;
    conn->cq = ibv_create_cq(conn->rail->context, (int) conn->depth, conn, conn->rail->channel, 0);
    if (conn->cq != NULL)
        conn->qp = create_qp(conn, sizeof(bt_verbs_notice_t));
    if (conn->cq != NULL && conn->qp == NULL)
        conn->qp = create_qp(conn, 0);
    if (conn->qp == NULL || make_notices(conn) != 0 || to_init(conn) != 0) {
        bt_verbs_conn_unmake(conn);
        return BT_E_NOMEM;
    }
    conn->psn = (uint32_t) bt_rand_u64() & 0xffffff;
    conn->posted = conn->completed = conn->last_signalled = 0;
    conn->closings_posted = conn->closings_got = 0;
    conn->why[0] = '\0';
    conn->state = BT_VERBS_INIT;
    bt_list_push(bucket_of(conn->rail, conn->qp->qp_num), &conn->qpn_link);
    return 0;
}

static int to_rtr(bt_verbs_conn_t *conn, const bt_verbs_address_t *peer)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = conn->mtu,
        .dest_qp_num = peer->qpn,
        .rq_psn = peer->psn,
        .max_dest_rd_atomic = conn->rail->reads_max,
        .min_rnr_timer = RNR_TIMER,
        .ah_attr = {.dlid = peer->lid,
                    .is_global = conn->rail->is_ethernet,
                    .port_num = conn->rail->port,
                    .grh = {.sgid_index = conn->rail->gid_index, .hop_limit = HOPS}},
    };

    memcpy(attr.ah_attr.grh.dgid.raw, peer->gid, sizeof(peer->gid));
    return ibv_modify_qp(conn->qp, &attr,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                             IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

static int to_rts(bt_verbs_conn_t *conn, const bt_verbs_address_t *peer)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTS,
        .timeout = TIMEOUT,
        .retry_cnt = RETRIES,
        .rnr_retry = RNR_RETRIES,
        .sq_psn = conn->psn,
        .max_rd_atomic =
            peer->reads_max < conn->rail->reads_max ? peer->reads_max : conn->rail->reads_max,
    };

    return ibv_modify_qp(conn->qp, &attr,
                         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                             IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

int bt_verbs_conn_connect(bt_verbs_conn_t *conn, const bt_verbs_address_t *peer)
{
    conn->mtu = peer->mtu < (uint8_t) conn->rail->mtu ? (enum ibv_mtu) peer->mtu : conn->rail->mtu;
    if (to_rtr(conn, peer) != 0 || to_rts(conn, peer) != 0)
        return BT_E_CONNECT;
    conn->state = BT_VERBS_MET;
    return 0;
}

void bt_verbs_conn_fail(bt_verbs_conn_t *conn, const char *why)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};

    if (conn->qp == NULL || conn->state == BT_VERBS_FAILING || conn->state == BT_VERBS_LOST)
        return;
    ibv_modify_qp(conn->qp, &attr, IBV_QP_STATE);
    conn->state = BT_VERBS_FAILING;
    conn->rail->errors++;
    snprintf(conn->why, sizeof(conn->why), "%s: %s", conn->rail->name, why);
}

void bt_verbs_conn_unmake(bt_verbs_conn_t *conn)
{
    bt_list_remove(&conn->qpn_link);
    bt_list_remove(&conn->active_link);
    if (conn->qp != NULL)
        ibv_destroy_qp(conn->qp);
    if (conn->cq != NULL)
        ibv_destroy_cq(conn->cq);
    if (conn->notices_mr != NULL)
        ibv_dereg_mr(conn->notices_mr);
    free(conn->notices);
    conn->qp = NULL;
    conn->cq = NULL;
    conn->notices_mr = NULL;
    conn->notices = NULL;
    conn->state = BT_VERBS_IDLE;
}

bt_verbs_conn_t *bt_verbs_conn_find(bt_verbs_rail_t *rail, uint32_t qpn)
{
    bt_list_t *bucket = bucket_of(rail, qpn), *it, *tmp;

    bt_list_each (bucket, it, tmp) {
        bt_verbs_conn_t *conn = bt_container_of(it, bt_verbs_conn_t, qpn_link);
        if (conn->qp->qp_num == qpn)
            return conn;
    }
    return NULL;
}

bool bt_verbs_conn_signals(bt_verbs_conn_t *conn, uint64_t seq, bool is_last)
{
    uint64_t every = bt_verbs_tuning.signal_every;

    if (every > conn->depth / 2) /* or a short queue would fill up with nothing to wait for */
        every = conn->depth > 1 ? conn->depth / 2 : 1;
    if (!is_last && seq + 1 < conn->last_signalled + every)
        return false;
    conn->last_signalled = seq + 1;
    return true;
}

void bt_verbs_conn_place(bt_verbs_conn_t *conn, const bt_verbs_notice_t *notice,
                         struct ibv_send_wr *wr)
{
    struct ibv_sge *sge = wr->sg_list;

    *sge = (struct ibv_sge){.addr = (uintptr_t) notice, .length = (uint32_t) sizeof(*notice)};
    wr->num_sge = 1;
    if (conn->notices == NULL) {
        wr->send_flags |= IBV_SEND_INLINE;
        return;
    }
    /* The place is free when the slot of the send queue is. */
    char *place = conn->notices + wr->wr_id % conn->depth * sizeof(*notice);
    memcpy(place, notice, sizeof(*notice));
    sge->addr = (uintptr_t) place;
    sge->lkey = conn->notices_mr->lkey;
}

int bt_verbs_conn_post(bt_verbs_conn_t *conn, struct ibv_send_wr *wr, unsigned count,
                       unsigned *taken_p)
{
    bt_verbs_t *verbs = conn->path->verbs;
    struct ibv_send_wr *bad = NULL;
    unsigned taken = count;
    char why[64];

    /* Before, not after: an event is made only for completions that come later. */
    if (verbs->is_armed)
        ibv_req_notify_cq(conn->cq, 0);
    int rc = ibv_post_send(conn->qp, wr, &bad);
    if (rc != 0)
        for (taken = 0; taken < count && &wr[taken] != bad;)
            taken++;
    conn->posted += taken;
    *taken_p = taken;
    if (taken > 0 && bt_list_empty(&conn->active_link))
        bt_list_push(&verbs->active, &conn->active_link);
    if (rc == 0)
        return 0;
    snprintf(why, sizeof(why), "a message was not taken: %s", strerror(rc));
    bt_verbs_conn_fail(conn, why);
    return BT_E_KV_TRANSFER;
}

static void retire(bt_verbs_conn_t *conn)
{
    bt_list_t *it, *tmp;

    bt_list_each (&conn->sent, it, tmp) {
        bt_verbs_share_t *share = bt_container_of(it, bt_verbs_share_t, link);
        if (share->last_seq >= conn->completed)
            break;
        bt_list_remove(&share->link);
        bt_verbs_share_over(share);
    }
}

static void take(bt_verbs_conn_t *conn, const struct ibv_wc *wc)
{
    char why[96];

    if (wc->status == IBV_WC_SUCCESS) {
        conn->completed = wc->wr_id + 1;
        if (conn->state == BT_VERBS_PROBING)
            conn->state = BT_VERBS_LIVE;
    } else if (conn->state != BT_VERBS_FAILING && conn->state != BT_VERBS_LOST) {
        conn->completed = wc->wr_id; /* what was before it has gone well */
        snprintf(why, sizeof(why), "%s", ibv_wc_status_str(wc->status));
        bt_verbs_conn_fail(conn, why);
    }
    retire(conn);
}

int bt_verbs_conn_poll(bt_verbs_conn_t *conn)
{
    struct ibv_wc wc[POLL_MAX];
    int total = 0, count;

    while ((count = ibv_poll_cq(conn->cq, POLL_MAX, wc)) > 0) {
        for (int i = 0; i < count; i++)
            take(conn, &wc[i]);
        total += count;
    }
    if (count < 0)
        bt_verbs_conn_fail(conn, "its completion queue is broken");
    if (conn->completed == conn->posted)
        bt_list_remove(&conn->active_link);
    return total;
}
