/* Which agents of the other side a room has to do with, of those that a gateway names: the one of this agent's rank, or, where the two workers have unlike numbers of
 * ranks, those with the same heads (heads.h). A receiver asks them for its pages; a sender waits for them to ask.
 */
#include "transport/data/end.h"
#include "transport/gateway/gateway_conn.h"
#include "transport/gateway/heads.h"

/* Why this agent's rank has no partners among so many, or NULL. */
static const char *mismatch(const bt_kv_room_command_t *d)
{
    const bt_kv_gateway_conn_t *conn = d->conn;

    if (d->peer_count == conn->ranks)
        return NULL;
    if (conn->heads.total == 0)
        return "pages that can't be cut by heads: give both workers the same tensor-parallel size, "
               "or the sources (see bt_kv_gateway_peers)";
    if (!bt_kv_heads_fit(conn->heads.total, d->peer_count))
        return "heads that so many can't share: give both workers the same tensor-parallel size";
    return NULL;
}

static bool has_partners(bt_kv_room_command_t *d, struct bt_kv_room *room)
{
    const char *why = mismatch(d);

    if (why != NULL)
        bt_kv_room_fail(d->conn->agent, room, BT_E_INVAL,
                        "the gateway names %u %s and this agent is rank %u of %u, with %s",
                        d->peer_count, room->is_sender ? "receivers" : "senders", d->conn->rank,
                        d->conn->ranks, why);
    return why == NULL;
}

/* slice_p: which part of the receiver's page; zeroed when it is the whole of it. */
static bool is_partner(const bt_kv_room_command_t *d, const struct bt_kv_room *room, uint32_t rank,
                       bt_kv_slice_t *slice_p)
{
    const bt_kv_gateway_conn_t *conn = d->conn;
    uint32_t own = conn->rank, ranks = conn->ranks, peers = d->peer_count;
    uint64_t bytes = room->layout->buffers[0].bytes;

    *slice_p = (bt_kv_slice_t){0};
    if (peers == ranks)
        return rank == own;
    return room->is_sender
               ? bt_kv_heads_slice(conn->heads, rank, peers, own, ranks, bytes, slice_p)
               : bt_kv_heads_slice(conn->heads, own, ranks, rank, peers, bytes, slice_p);
}

/* ---- the receiver ---- */
/* At most BT_KV_CONTROL_PEERS_MAX. False: the room has failed. */
static bool find_sources(const bt_kv_room_command_t *d, struct bt_kv_room *room,
                         bt_kv_source_t *sources, uint32_t *count_p)
{
    bt_kv_agent_t *agent = d->conn->agent;
    const char *why = NULL;
    uint32_t count = 0;

    for (uint32_t i = 0; i < d->peer_count; i++) {
        bt_kv_source_t source = {.host = d->peers[i].host, .port = d->peers[i].port};
        if (!is_partner(d, room, d->peers[i].rank, &source.slice))
            continue;
        if (d->conn->heads.total == 0 && !bt_list_empty(&room->ends)) /* the engine has cut it */
            source.slice = bt_container_of(room->ends.prev, bt_kv_end_t, on_room)->slice;
        bt_kv_cut_t cut = bt_kv_cut_dst(&source.slice);
        if (!bt_kv_cut_fits(&cut, room->layout))
            why =
                "the pages of its buffers are not all of one size, so they can't be cut by heads: "
                "give both workers the same tensor-parallel size";
        sources[count++] = source;
    }
    if (count == 0)
        why = "none of them has its part of the KV";
    else if (count > 1 && !bt_list_empty(&room->ends))
        why = "a sender that is lost can be replaced by one other only";
    if (why != NULL)
        bt_kv_room_fail(agent, room, BT_E_INVAL,
                        "the gateway names %u senders and this agent is rank %u of %u: %s",
                        d->peer_count, d->conn->rank, d->conn->ranks, why);
    *count_p = count;
    return why == NULL;
}

void bt_kv_partners_seek(bt_kv_room_command_t *d, struct bt_kv_room *room)
{
    bt_kv_agent_t *agent = d->conn->agent;
    bt_kv_source_t sources[BT_KV_CONTROL_PEERS_MAX];
    uint32_t count = 0;
    int rc = 0;

    if (!has_partners(d, room) || !find_sources(d, room, sources, &count))
        return;
    room->source_room = d->source_room;
    for (uint32_t i = 0; i < count && rc == 0; i++) {
        rc = bt_kv_receiver_attach(agent, room, &sources[i]);
        if (rc != 0 && rc != BT_E_AGAIN)
            bt_kv_room_fail(agent, room, rc,
                            "cannot reach the sender %s:%u that the gateway names: %s",
                            sources[i].host, sources[i].port, bt_kv_error_text(rc));
    }
    if (rc == 0)
        bt_kv_receiver_attached(agent, room);
    else if (rc == BT_E_AGAIN) /* the only one: nothing is attached yet */
        bt_kv_room_command_wait(d, &agent->gateways->pending, UINT64_MAX);
}

/* ---- the sender ---- */
void bt_kv_partners_expect(bt_kv_room_command_t *d, struct bt_kv_room *room)
{
    bt_kv_slice_t slice;
    uint32_t count = 0;

    if (!has_partners(d, room))
        return;
    for (uint32_t i = 0; i < d->peer_count; i++)
        count += is_partner(d, room, d->peers[i].rank, &slice);
    bt_kv_sender_expect(d->conn->agent, room, count);
}
