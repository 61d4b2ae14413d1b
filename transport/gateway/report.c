/* What gateways are told about rooms: one ROOM message a change, and one a heartbeat while bytes move.
 *
 * Reports have no acknowledgement. So an ended room is kept for a while after it was written: when the connection breaks meanwhile, the gateway hears of it again. A
 * gateway that does not keep up is told the latest state when its buffer has room again (`retell`).
 */
#include "transport/data/end.h"
#include "transport/gateway/gateway_conn.h"

#define KEPT_HEARTBEATS                                                                            \
    2u /* times dead_ms: by then the gateway's side has found out, too, that a connection is gone */

static uint64_t pages_wanted(const struct bt_kv_room *room)
{
    uint64_t units = 0;

    if (!room->is_sender)
        return room->layout == NULL
                   ? 0
                   : (uint64_t) (room->page_count - room->prefix_pages) * room->layout->count;
    for (bt_list_t *it = room->ends.next; it != &room->ends; it = it->next)
        units += bt_container_of(it, bt_kv_end_t, on_room)->units_wanted;
    return units;
}

bt_kv_control_room_t bt_kv_room_command_report(bt_kv_agent_t *agent, const bt_kv_room_command_t *d,
                                               const struct bt_kv_room *room)
{
    bt_kv_room_stats_t stats;

    bt_kv_room_figures(agent, room, &stats);
    return (bt_kv_control_room_t){
        .room = room->id,
        .side = room->is_sender ? BT_KV_SIDE_SENDER : BT_KV_SIDE_RECEIVER,
        .state = (uint8_t) room->state,
        .is_orphan = d->is_orphan,
        .rc = d->is_orphan ? d->rc : room->rc,
        .kind = stats.backend,
        .bytes = stats.bytes,
        .pages = stats.pages,
        .pages_wanted = pages_wanted(room),
        .bootstrap_us = stats.bootstrap_us,
        .wait_us = stats.wait_us,
        .transfer_us = stats.transfer_us,
        .reason = d->is_orphan ? bt_str(d->reason) : bt_str(room->reason),
    };
}

/* An ended room has been told: it is kept for as long as the gateway may turn out to have been gone. */
static void told(bt_kv_room_command_t *d)
{
    bt_kv_agent_t *agent = d->conn->agent;

    if (d->phase == BT_KV_ROOM_COMMAND_ENDED)
        bt_kv_room_command_wait(d, &agent->gateways->ended,
                                agent->now_us +
                                    (uint64_t) d->conn->dead_ms * KEPT_HEARTBEATS * 1000);
}

/* The gateway hears how the room stands: now, when its buffer has room, or when it is back. */
void bt_kv_room_command_notify(bt_kv_room_command_t *d)
{
    bt_kv_gateway_conn_t *conn = d->conn;
    const struct bt_kv_room *room = bt_kv_room_command_room(d);
    bt_kv_control_t message = {.type = BT_KV_CONTROL_ROOM, .room = d->last};

    if (conn->state != BT_KV_GATEWAY_CONN_UP ||
        (room == NULL && d->phase != BT_KV_ROOM_COMMAND_ENDED))
        return;
    if (bt_kv_gateway_conn_is_full(conn)) {
        if (bt_list_empty(&d->retell))
            bt_list_push(&conn->retell, &d->retell);
        return;
    }
    bt_list_remove(&d->retell);
    if (room != NULL)
        message.room = bt_kv_room_command_report(conn->agent, d, room);
    else
        message.room.reason = bt_str(d->reason);
    d->told_bytes = message.room.bytes;
    bt_kv_gateway_conn_send(conn, &message);
    told(d);
}

void bt_kv_room_commands_renotify(bt_kv_gateway_conn_t *conn)
{
    for (bt_list_t *it = conn->known.next; it != &conn->known; it = it->next) {
        bt_kv_room_command_t *d = bt_container_of(it, bt_kv_room_command_t, on_conn);
        bt_list_remove(&d->retell);
        if (d->phase == BT_KV_ROOM_COMMAND_OPEN || d->phase == BT_KV_ROOM_COMMAND_ENDED)
            bt_list_push(&conn->retell, &d->retell);
    }
    conn->agent->gateways->is_dirty = conn->agent->has_work = true;
}

void bt_kv_room_commands_pump(bt_kv_gateway_conn_t *conn)
{
    while (!bt_list_empty(&conn->retell) && !bt_kv_gateway_conn_is_full(conn)) {
        bt_list_t *first = conn->retell.next;
        bt_list_remove(first);
        bt_kv_room_command_notify(bt_container_of(first, bt_kv_room_command_t, retell));
    }
}

void bt_kv_room_commands_heartbeat(bt_kv_gateway_conn_t *conn)
{
    bt_kv_agent_t *agent = conn->agent;

    for (bt_list_t *it = agent->moving.next; it != &agent->moving; it = it->next) {
        struct bt_kv_room *room = bt_container_of(it, struct bt_kv_room, timer);
        bt_kv_room_command_t *d = room->command;
        if (d != NULL && d->conn == conn && d->told_bytes != room->stats.bytes)
            bt_kv_room_command_notify(d);
    }
}
