/* What gateways have said about rooms, and what they are told.
 *
 *                 OPEN                 the engine opens it          it ends
 *     (nothing) -------> WAITING ----------------------------> OPEN -------> ENDED -----> forgotten: a while after it was told (report.c),
 *         |                 | expires, or ABORT                 |            ^            or when the table is full
 *         +---- ABORT ----> TOMB -------------------------------+------------+
 *                              the engine's room fails at once
 *
 * A receiver is orphaned when its only sender is lost, or gives up, before anything has come. The old end is dropped: it goes on draining beside the room, gets no
 * page any more, and the room's release waits for it. The same agent may be named again; then the new end waits until the old one is quiet, because
 * they have the same tag on the same link.
 */
#include "transport/data/end.h"
#include "transport/gateway/gateway_conn.h"

#include <stdio.h>
#include <stdlib.h>

#define COMMANDS_MAX 65536u
#define BUCKETS 16384u
#define SWEEP_US 250000u
#define EXPIRE_MAX_MS 3600000u

static void want_turn(bt_kv_agent_t *agent)
{
    agent->gateways->is_dirty = true;
    agent->has_work = true;
}

/* ---- the table ---- */
int bt_kv_room_commands_init(bt_kv_agent_t *agent)
{
    struct bt_kv_gateways *s = agent->gateways;
    bt_list_t *lists[] = {&s->waiting, &s->orphans, &s->pending, &s->ended, &s->untold};

    for (unsigned i = 0; i < sizeof(lists) / sizeof(*lists); i++)
        bt_list_init(lists[i]);
    int rc = bt_map_init(&s->commands, BUCKETS);
    if (rc == 0)
        rc = bt_map_init(&s->receivers, BUCKETS);
    if (rc != 0) {
        free(s->commands.buckets);
        return rc;
    }
    for (uint32_t i = 0; i < agent->rooms.fresh; i++) { /* opened before the first gateway came */
        struct bt_kv_room *room = agent->rooms.bodies[i];
        if (room != NULL && room->handle != 0 && !room->is_sender)
            bt_map_put(&s->receivers, &room->by_id, room->id);
    }
    return 0;
}

static bt_kv_room_command_t *find(const bt_kv_agent_t *agent, uint64_t id, uint8_t side)
{
    bt_list_t *bucket = bt_map_bucket(&agent->gateways->commands, id);

    for (bt_list_t *it = bucket->next; it != bucket; it = it->next) {
        bt_kv_room_command_t *d = bt_container_of(it, bt_kv_room_command_t, by_id.link);
        if (d->by_id.key == id && (d->side == side || d->side == 0))
            return d;
    }
    return NULL;
}

void bt_kv_room_command_free(bt_kv_agent_t *agent, bt_kv_room_command_t *d)
{
    bt_map_remove(&agent->gateways->commands, &d->by_id);
    bt_list_remove(&d->on_conn);
    bt_list_remove(&d->retell);
    bt_list_remove(&d->order);
    free(d->peers);
    free(d->reason);
    free(d);
}

/* Room for one more, by forgetting the oldest that is over. */
static bool make_room(bt_kv_agent_t *agent)
{
    struct bt_kv_gateways *s = agent->gateways;
    bt_list_t *from = !bt_list_empty(&s->ended) ? &s->ended : &s->untold;

    if (s->commands.count < COMMANDS_MAX)
        return true;
    if (bt_list_empty(from))
        return false;
    bt_kv_room_command_free(agent, bt_container_of(from->next, bt_kv_room_command_t, order));
    return true;
}

static bt_kv_room_command_t *new_command(bt_kv_gateway_conn_t *conn, uint64_t id, uint8_t side)
{
    bt_kv_agent_t *agent = conn->agent;
    bt_kv_room_command_t *d = make_room(agent) ? calloc(1, sizeof(*d)) : NULL;

    if (d == NULL)
        return NULL;
    d->conn = conn;
    d->side = side;
    bt_list_init(&d->retell);
    bt_list_init(&d->order);
    bt_list_push(&conn->known, &d->on_conn);
    bt_map_put(&agent->gateways->commands, &d->by_id, id);
    return d;
}

static void set_reason(bt_kv_room_command_t *d, int rc, bt_str_t reason)
{
    free(d->reason);
    d->reason = bt_str_dup(reason); /* without memory: no reason */
    d->rc = rc;
}

void bt_kv_room_command_wait(bt_kv_room_command_t *d, bt_list_t *list, uint64_t until_us)
{
    bt_list_remove(&d->order);
    bt_list_push(list, &d->order);
    d->until_us = until_us;
}

static void wait_for_engine(bt_kv_room_command_t *d, uint32_t expire_ms)
{
    bt_kv_agent_t *agent = d->conn->agent;

    if (expire_ms == 0)
        expire_ms = agent->config.bootstrap_ms;
    if (expire_ms > EXPIRE_MAX_MS)
        expire_ms = EXPIRE_MAX_MS;
    bt_kv_room_command_wait(d, &agent->gateways->waiting,
                            agent->now_us + (uint64_t) expire_ms * 1000);
    want_turn(agent);
}

struct bt_kv_room *bt_kv_room_command_room(const bt_kv_room_command_t *d)
{
    return d->handle != 0 ? bt_kv_room_find(d->conn->agent, d->handle) : NULL;
}

/* ---- binding ---- */
static void end_orphanhood(bt_kv_room_command_t *d)
{
    d->is_orphan = false;
    bt_list_remove(&d->order);
}

/* The room is over: what is left to say is the command's own from here on. */
static void keep_last(bt_kv_agent_t *agent, bt_kv_room_command_t *d, struct bt_kv_room *room)
{
    end_orphanhood(d);
    d->last = bt_kv_room_command_report(agent, d, room);
    set_reason(d, room->rc, room->state == BT_KV_FAILED ? bt_str(room->reason) : BT_STR_NULL);
    d->last.reason = BT_STR_NULL;
    d->phase = BT_KV_ROOM_COMMAND_ENDED;
    d->handle = 0;
    room->command = NULL;
    bt_kv_room_command_wait(d, &agent->gateways->untold,
                            agent->now_us + (uint64_t) agent->config.bootstrap_ms * 1000);
}

void bt_kv_gateways_changed(bt_kv_agent_t *agent, struct bt_kv_room *room)
{
    bt_kv_room_command_t *d = room->command;

    if (bt_kv_room_is_over(room))
        keep_last(agent, d, room);
    bt_kv_room_command_notify(d);
}

static void bind(bt_kv_room_command_t *d, struct bt_kv_room *room)
{
    d->phase = BT_KV_ROOM_COMMAND_OPEN;
    d->side = room->is_sender ? BT_KV_SIDE_SENDER : BT_KV_SIDE_RECEIVER;
    d->handle = room->handle;
    bt_list_remove(&d->order);
    room->command = d;
}

void bt_kv_gateways_freed(bt_kv_agent_t *agent, struct bt_kv_room *room)
{
    if (!room->is_sender)
        bt_map_remove(&agent->gateways->receivers, &room->by_id);
    if (room->command != NULL)
        keep_last(agent, room->command, room);
}

/* ---- sources ---- */
static int set_peers(bt_kv_room_command_t *d, const bt_kv_control_open_t *open)
{
    bt_kv_peer_t *peers = NULL;

    if (open->peer_count > 0 && (peers = calloc(open->peer_count, sizeof(*peers))) == NULL)
        return BT_E_NOMEM;
    for (uint32_t i = 0; i < open->peer_count; i++) {
        snprintf(peers[i].host, sizeof(peers[i].host), "%.*s", BT_STR_ARG(open->peers[i].host));
        peers[i].port = open->peers[i].port;
        peers[i].rank = open->peers[i].rank;
    }
    free(d->peers);
    d->peers = peers;
    d->peer_count = open->peer_count;
    d->source_room = open->source_room;
    d->repair_ms = open->repair_ms;
    return 0;
}

/* ---- what the engine does ---- */
static void apply(bt_kv_room_command_t *d, struct bt_kv_room *room)
{
    bt_kv_agent_t *agent = d->conn->agent;
    bool is_tomb = d->phase == BT_KV_ROOM_COMMAND_TOMB;
    bool is_over = bt_kv_room_is_over(room);

    bind(d, room);
    if (!room->is_sender && room->announced_ends == 0)
        room->source_room = d->source_room != 0 ? d->source_room : room->id;
    if (is_over) {
        bt_kv_gateways_changed(agent, room);
        return;
    }
    bt_kv_room_command_notify(d);
    if (is_tomb)
        bt_kv_room_fail(agent, room, d->rc, "%s",
                        d->reason != NULL ? d->reason : "aborted by the gateway");
    else if (room->wants_source && room->end_count == 0)
        bt_kv_partners_seek(d, room);
    else if (room->is_sender && !room->is_dummy && room->receivers == BT_KV_RECEIVERS_OF_GATEWAY)
        bt_kv_partners_expect(d, room);
}

void bt_kv_gateways_opened(bt_kv_agent_t *agent, struct bt_kv_room *room)
{
    if (!room->is_sender)
        bt_map_put(&agent->gateways->receivers, &room->by_id, room->id);
    bt_kv_room_command_t *d =
        find(agent, room->id, room->is_sender ? BT_KV_SIDE_SENDER : BT_KV_SIDE_RECEIVER);
    if (d != NULL &&
        (d->phase == BT_KV_ROOM_COMMAND_WAITING || d->phase == BT_KV_ROOM_COMMAND_TOMB))
        apply(d, room);
}

bool bt_kv_gateways_orphans(bt_kv_agent_t *agent, bt_kv_end_t *end, int rc, const char *reason)
{
    struct bt_kv_room *room = end->room;
    bt_kv_room_command_t *d = room->command;

    if (d == NULL || room->is_sender || room->has_moved || room->end_count != 1 ||
        d->repair_ms == 0 || d->conn->state != BT_KV_GATEWAY_CONN_UP || agent->is_closing ||
        bt_kv_room_is_over(room))
        return false;
    set_reason(d, rc, bt_str(reason));
    bt_kv_receiver_drop(agent, end, rc, reason);
    d->is_orphan = true;
    bt_kv_room_command_wait(d, &agent->gateways->orphans,
                            agent->now_us + (uint64_t) d->repair_ms * 1000);
    bt_kv_room_command_notify(d);
    want_turn(agent);
    return true;
}

/* ---- what the gateway says ---- */
static struct bt_kv_room *open_room(bt_kv_agent_t *agent, uint64_t id, uint8_t side)
{
    const bt_map_t *map = side == BT_KV_SIDE_SENDER ? &agent->senders : &agent->gateways->receivers;
    bt_map_entry_t *entry = bt_map_get(map, id);

    return entry != NULL ? bt_container_of(entry, struct bt_kv_room, by_id) : NULL;
}

static void refuse_open(bt_kv_gateway_conn_t *conn, const bt_kv_control_open_t *open)
{
    bt_kv_gateway_conn_send(
        conn, &(bt_kv_control_t){.type = BT_KV_CONTROL_ROOM,
                                 .room = {.room = open->room,
                                          .side = open->side,
                                          .state = BT_KV_FAILED,
                                          .rc = BT_E_LIMIT,
                                          .reason = BT_STR("this agent has no memory for more "
                                                           "rooms of gateways")}});
}

void bt_kv_room_command_opened(bt_kv_gateway_conn_t *conn, const bt_kv_control_open_t *open)
{
    bt_kv_room_command_t *d = find(conn->agent, open->room, open->side);

    if (d != NULL && (d->conn != conn || d->phase != BT_KV_ROOM_COMMAND_WAITING)) {
        if (d->conn == conn)
            bt_kv_room_command_notify(d); /* it asks again */
        return;
    }
    if (d == NULL)
        d = new_command(conn, open->room, open->side);
    if (d == NULL || set_peers(d, open) != 0) {
        refuse_open(conn, open);
        if (d != NULL)
            bt_kv_room_command_free(conn->agent, d);
        return;
    }
    struct bt_kv_room *room = open_room(conn->agent, open->room, open->side);
    if (room != NULL && room->command == NULL)
        apply(d, room);
    else
        wait_for_engine(d, open->expire_ms);
}

/* Another sender for a room that has not moved yet. */
static void replace_source(bt_kv_room_command_t *d, struct bt_kv_room *room)
{
    bt_kv_agent_t *agent = d->conn->agent;
    bt_list_t *it, *tmp;

    end_orphanhood(d);
    bt_list_each (&room->ends, it, tmp) {
        bt_kv_end_t *end = bt_container_of(it, bt_kv_end_t, on_room);
        if (!end->is_dropped)
            bt_kv_receiver_drop(agent, end, BT_E_CANCELLED, "the gateway has found another sender");
    }
    bt_kv_partners_seek(d, room);
    if (room->command != NULL)
        bt_kv_room_command_notify(d);
}

void bt_kv_room_command_source(bt_kv_gateway_conn_t *conn, const bt_kv_control_open_t *open)
{
    bt_kv_room_command_t *d = find(conn->agent, open->room, BT_KV_SIDE_RECEIVER);

    if (open->side != BT_KV_SIDE_RECEIVER)
        return;
    if (d == NULL) {
        bt_kv_room_command_opened(conn, open);
        return;
    }
    struct bt_kv_room *room = bt_kv_room_command_room(d);
    bool is_late = room != NULL && (room->has_moved || room->end_count > 1);
    if (d->conn != conn || d->phase == BT_KV_ROOM_COMMAND_TOMB)
        return;
    if (d->phase == BT_KV_ROOM_COMMAND_ENDED || is_late || set_peers(d, open) != 0)
        bt_kv_room_command_notify(d); /* too late: this is how it stands */
    else if (room != NULL)
        replace_source(d, room);
    else
        wait_for_engine(d, open->expire_ms);
}

/* Another gateway's room is none of this one's business. */
static void abort_room(bt_kv_gateway_conn_t *conn, struct bt_kv_room *room, const char *reason)
{
    if (room != NULL && (room->command == NULL || room->command->conn == conn))
        bt_kv_room_fail(conn->agent, room, BT_E_CANCELLED, "%s", reason);
}

/* Not opened yet, whichever side: it fails when it is. */
static void entomb(bt_kv_gateway_conn_t *conn, uint64_t id, const char *reason, bool is_unheard_of)
{
    bt_kv_agent_t *agent = conn->agent;
    bool is_known = false;

    for (int side = BT_KV_SIDE_SENDER; side <= BT_KV_SIDE_RECEIVER; side++) {
        bt_kv_room_command_t *d = find(agent, id, (uint8_t) side);
        is_known |= d != NULL;
        if (d == NULL || d->conn != conn || d->phase != BT_KV_ROOM_COMMAND_WAITING)
            continue;
        d->phase = BT_KV_ROOM_COMMAND_TOMB;
        set_reason(d, BT_E_CANCELLED, bt_str(reason));
    }
    bt_kv_room_command_t *d = is_known || !is_unheard_of ? NULL : new_command(conn, id, 0);
    if (d == NULL)
        return;
    d->phase = BT_KV_ROOM_COMMAND_TOMB;
    set_reason(d, BT_E_CANCELLED, bt_str(reason));
    wait_for_engine(d, 0);
}

void bt_kv_room_command_abort(bt_kv_gateway_conn_t *conn, uint64_t id, bt_str_t why)
{
    bt_kv_agent_t *agent = conn->agent;
    struct bt_kv_room *from = open_room(agent, id, BT_KV_SIDE_SENDER);
    struct bt_kv_room *to = open_room(agent, id, BT_KV_SIDE_RECEIVER);
    char reason[BT_KV_REASON_MAX];

    snprintf(reason, sizeof(reason), "aborted by the gateway: %.*s", BT_STR_ARG(why));
    bt_str_tame(reason, strlen(reason));
    abort_room(conn, from, reason);
    abort_room(conn, to, reason);
    entomb(conn, id, reason, from == NULL && to == NULL);
}

void bt_kv_room_commands_forget(bt_kv_gateway_conn_t *conn)
{
    bt_kv_agent_t *agent = conn->agent;
    bt_list_t *it, *tmp;

    bt_list_each (&conn->known, it, tmp) {
        bt_kv_room_command_t *d = bt_container_of(it, bt_kv_room_command_t, on_conn);
        struct bt_kv_room *room = bt_kv_room_command_room(d);
        if (room != NULL) {
            room->command = NULL;
            if (d->is_orphan) /* nobody is left to find it a sender */
                bt_kv_room_fail(agent, room, d->rc, "%s", d->reason != NULL ? d->reason : "");
        }
        bt_kv_room_command_free(agent, d);
    }
}

/* ---- time ---- */
static void expire_waiting(bt_kv_agent_t *agent, bt_kv_room_command_t *d)
{
    char reason[120];

    if (d->phase == BT_KV_ROOM_COMMAND_TOMB) {
        bt_kv_room_command_free(agent, d);
        return;
    }
    d->last = (bt_kv_control_room_t){.room = d->by_id.key,
                                     .side = d->side,
                                     .state = BT_KV_FAILED,
                                     .rc = BT_E_FIRST_BYTE_TIMEOUT};
    snprintf(reason, sizeof(reason), "the engine of %s has not opened this room in time",
             agent->config.name);
    set_reason(d, BT_E_FIRST_BYTE_TIMEOUT, bt_str(reason));
    d->phase = BT_KV_ROOM_COMMAND_ENDED;
    bt_kv_room_command_wait(d, &agent->gateways->untold,
                            agent->now_us + (uint64_t) agent->config.bootstrap_ms * 1000);
    bt_kv_room_command_notify(d);
}

static void expire_orphan(bt_kv_agent_t *agent, bt_kv_room_command_t *d)
{
    bt_kv_room_fail(agent, bt_kv_room_command_room(d), d->rc, "%s; no other sender within %u ms",
                    d->reason != NULL ? d->reason : "its sender is lost", d->repair_ms);
}

/* Those that still have to wait are back in the list afterwards. */
static void retry_sources(struct bt_kv_gateways *s)
{
    bt_list_t list;

    if (bt_list_empty(&s->pending))
        return;
    list = s->pending;
    list.next->prev = list.prev->next = &list;
    bt_list_init(&s->pending);
    while (!bt_list_empty(&list)) {
        bt_kv_room_command_t *d = bt_container_of(list.next, bt_kv_room_command_t, order);
        bt_list_remove(&d->order);
        bt_kv_partners_seek(d, bt_kv_room_command_room(d));
    }
}

static void forget_ended(bt_kv_agent_t *agent, bt_list_t *list)
{
    while (!bt_list_empty(list)) {
        bt_kv_room_command_t *d = bt_container_of(list->next, bt_kv_room_command_t, order);
        if (d->until_us > agent->now_us)
            return;
        bt_kv_room_command_free(agent, d);
    }
}

/* The soonest of a list, after those that are due have been dealt with. */
static uint64_t expire(bt_kv_agent_t *agent, bt_list_t *list,
                       void (*over)(bt_kv_agent_t *agent, bt_kv_room_command_t *d))
{
    uint64_t due_us = UINT64_MAX;
    bt_list_t *it, *tmp;

    bt_list_each (list, it, tmp) {
        bt_kv_room_command_t *d = bt_container_of(it, bt_kv_room_command_t, order);
        if (d->until_us <= agent->now_us)
            over(agent, d);
        else if (d->until_us < due_us)
            due_us = d->until_us;
    }
    return due_us;
}

uint64_t bt_kv_room_commands_sweep(bt_kv_agent_t *agent)
{
    struct bt_kv_gateways *s = agent->gateways;

    retry_sources(s);
    uint64_t due_us = expire(agent, &s->orphans, expire_orphan);
    if (agent->now_us >= s->sweep_us) {
        expire(agent, &s->waiting, expire_waiting);
        forget_ended(agent, &s->ended);
        forget_ended(agent, &s->untold);
        s->sweep_us = agent->now_us + SWEEP_US;
    }
    bool is_idle =
        bt_list_empty(&s->waiting) && bt_list_empty(&s->ended) && bt_list_empty(&s->untold);
    if (!is_idle && s->sweep_us < due_us)
        due_us = s->sweep_us;
    return due_us;
}

/* ---- the API ---- */
static const bt_kv_room_command_t *named(const bt_kv_agent_t *agent, uint64_t room)
{
    const bt_kv_room_command_t *d = find(agent, room, BT_KV_SIDE_RECEIVER);

    if (d == NULL || d->phase == BT_KV_ROOM_COMMAND_TOMB)
        d = find(agent, room, BT_KV_SIDE_SENDER);
    return d != NULL && d->phase != BT_KV_ROOM_COMMAND_TOMB ? d : NULL;
}

int bt_kv_gateway_peers(bt_kv_agent_t *agent, uint64_t room, bt_kv_peer_t *peers, uint32_t max,
                        uint32_t *count_p)
{
    int rc = BT_E_AGAIN;

    if (agent == NULL || count_p == NULL || (max > 0 && peers == NULL))
        return BT_E_INVAL;
    bt_kv_enter(agent);
    const bt_kv_room_command_t *d = agent->gateways != NULL ? named(agent, room) : NULL;
    if (d != NULL) {
        for (uint32_t i = 0; i < d->peer_count && i < max; i++)
            peers[i] = d->peers[i];
        *count_p = d->peer_count;
        rc = 0;
    }
    bt_kv_leave(agent);
    return rc;
}
