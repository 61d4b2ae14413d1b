/* verbs_conn.h - one queue pair to a peer: made, connected, filled, emptied, lost.
 *
 * Owner: a path; see bt_verbs_conn_t in verbs.h.
 * Life:  init -> make (INIT) -> connect (RTR, RTS) -> live -> fail (error state; revokes the peer's access) -> unmake -> make ...
 * Flow:  messages are numbered; a completion is for its number and all below it. Every signal_every-th asks for one, and the last of
 *        each share. A slot of the send queue is free again only when that came.
 * Cost:  a chain of up to 64 messages is one call.
 */
#ifndef BT_TRANSPORT_VERBS_CONN_H
#define BT_TRANSPORT_VERBS_CONN_H

#include "transport/backends/verbs/verbs.h"

/* Where the peer's queue pair is, as it goes over the wire. */
typedef struct bt_verbs_address {
    uint32_t qpn, psn;
    uint16_t lid;
    uint8_t mtu, reads_max;
    uint8_t gid[sizeof(union ibv_gid)];
} bt_verbs_address_t;
_Static_assert(sizeof(bt_verbs_address_t) == 28, "wire format");

void bt_verbs_conn_init(bt_verbs_conn_t *conn, bt_verbs_path_t *path, unsigned pair,
                        bt_verbs_rail_t *rail, unsigned peer_rail);
int bt_verbs_conn_make(bt_verbs_conn_t *conn);
int bt_verbs_conn_connect(bt_verbs_conn_t *conn, const bt_verbs_address_t *peer);
/* Into the error state, at once; the rest is bt_verbs_path_progress's. Calls nothing back. */
void bt_verbs_conn_fail(bt_verbs_conn_t *conn, const char *why);
void bt_verbs_conn_unmake(bt_verbs_conn_t *conn);
bt_verbs_conn_t *bt_verbs_conn_find(bt_verbs_rail_t *rail, uint32_t qpn);

static inline unsigned bt_verbs_conn_room(const bt_verbs_conn_t *conn)
{
    return conn->depth - (unsigned) (conn->posted - conn->completed);
}

/* Posts a chain whose numbers begin at conn->posted; there must be room for it. *taken_p: how many were taken; not all = the connection has failed. */
int bt_verbs_conn_post(bt_verbs_conn_t *conn, struct ibv_send_wr *wr, unsigned count,
                       unsigned *taken_p);
/* The message carries this notice, which stays until it is posted. */
void bt_verbs_conn_place(bt_verbs_conn_t *conn, const bt_verbs_notice_t *notice,
                         struct ibv_send_wr *wr);
/* Is message number seq to ask for a completion? */
bool bt_verbs_conn_signals(bt_verbs_conn_t *conn, uint64_t seq, bool is_last);
/* verbs_job.c: all messages of this share are over. */
void bt_verbs_share_over(bt_verbs_share_t *share);
/* Takes completions of what was sent; shares that are over go to bt_verbs_share_over. */
int bt_verbs_conn_poll(bt_verbs_conn_t *conn);

#endif
