/* Rooms, whichever side: their life as the engine sees it. A room's state changes in bt_kv_room_advance and bt_kv_room_fail and nowhere else.
 *
 * Deadlines need no timers: all rooms of a phase have the same patience, so each phase is a list in the order of its clocks, and only the heads are
 * looked at: `starting` by birth (bootstrap_ms), `moving` by last progress (stall_ms), `ending` by failure (release_ms).
 */
#include "transport/agent/agent.h"

#include "transport/control/link.h"
#include "transport/data/end.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

int bt_kv_room_new(bt_kv_agent_t *agent, struct bt_kv_room **room_p)
{
    bt_kv_room_t handle;
    int rc = agent->is_closing ? BT_E_CANCELLED : bt_kv_rooms_take(&agent->rooms, &handle);

    if (rc != 0)
        return rc;
    struct bt_kv_room **body = &agent->rooms.bodies[bt_kv_room_slot(handle)];
    struct bt_kv_room kept = {0};
    if (*body == NULL)
        *body = malloc(sizeof(**body));
    else
        kept = (struct bt_kv_room){
            .pages = (*body)->pages, .sorted = (*body)->sorted, .pages_room = (*body)->pages_room};
    if (*body == NULL) {
        bt_kv_rooms_give(&agent->rooms, handle);
        return BT_E_NOMEM;
    }
    struct bt_kv_room *room = *body;
    *room = kept;
    room->handle = handle;
    room->state = BT_KV_BOOTSTRAPPING;
    room->opened_us = room->progress_us = agent->now_us;
    bt_list_init(&room->timer);
    bt_list_init(&room->ends);
    bt_list_init(&room->jobs);
    bt_list_init(&room->by_id.link);
    agent->stats.rooms_open++;
    *room_p = room;
    return 0;
}

void bt_kv_room_body_free(struct bt_kv_room *room)
{
    if (room == NULL)
        return;
    free(room->pages);
    free(room->sorted);
    free(room);
}

void bt_kv_room_free(bt_kv_agent_t *agent, struct bt_kv_room *room)
{
    bt_list_t *it, *tmp;

    bt_list_each (&room->ends, it, tmp)
        bt_kv_end_free(agent, bt_container_of(it, bt_kv_end_t, on_room));
    bt_list_each (&room->jobs, it, tmp)
        bt_kv_job_unref(agent, bt_container_of(it, bt_kv_job_t, link));
    if (agent->gateways != NULL)
        bt_kv_gateways_freed(agent, room);
    if (room->is_sender)
        bt_map_remove(&agent->senders, &room->by_id);
    bt_list_remove(&room->timer);
    if (room->layout != NULL)
        room->layout->refs--;
    for (uint32_t i = 0; i < room->piece_count; i++)
        if (room->pieces[i].bytes > 0)
            bt_kv_mem_find(agent, room->pieces[i].region)->refs--;
    bt_kv_room_t handle = room->handle;
    room->handle = 0;
    agent->stats.rooms_open--;
    bt_kv_rooms_give(&agent->rooms, handle);
}

struct bt_kv_room *bt_kv_room_find(const bt_kv_agent_t *agent, bt_kv_room_t handle)
{
    enum bt_kv_state state;

    if (!bt_kv_rooms_state(&agent->rooms, handle, &state))
        return NULL;
    return agent->rooms.bodies[bt_kv_room_slot(handle)];
}

/* ---- states ---- */
static void set_timer(struct bt_kv_room *room, bt_list_t *list)
{
    bt_list_remove(&room->timer);
    bt_list_push(list, &room->timer);
}

static void end_well(bt_kv_agent_t *agent, struct bt_kv_room *room)
{
    room->ended_us = agent->now_us;
    bt_list_remove(&room->timer);
    for (bt_list_t *it = room->ends.next; it != &room->ends; it = it->next) {
        bt_kv_end_t *end = bt_container_of(it, bt_kv_end_t, on_room);
        if (!end->is_dropped)
            bt_kv_end_set_quiet(agent, end);
    }
    if (room->noisy_ends > 0) /* senders that it has dropped */
        set_timer(room, &agent->ending);
    agent->stats.rooms_success++;
}

void bt_kv_room_advance(bt_kv_agent_t *agent, struct bt_kv_room *room, enum bt_kv_state state)
{
    if (!bt_kv_rooms_move(&agent->rooms, room->handle, state))
        return;
    room->state = state;
    switch (state) {
    case BT_KV_WAITING_FOR_INPUT:
        room->ready_us = agent->now_us;
        break;
    case BT_KV_TRANSFERRING:
        room->first_us = room->progress_us = agent->now_us;
        set_timer(room, &agent->moving);
        break;
    case BT_KV_SUCCESS:
        end_well(agent, room);
        break;
    default:
        break;
    }
    if (room->command != NULL)
        bt_kv_gateways_changed(agent, room);
    if (state != BT_KV_TRANSFERRING)
        bt_kv_agent_notify(agent);
}

void bt_kv_room_touch(bt_kv_agent_t *agent, struct bt_kv_room *room)
{
    room->progress_us = agent->now_us;
    if (room->state == BT_KV_TRANSFERRING)
        set_timer(room, &agent->moving);
}

void bt_kv_room_fail(bt_kv_agent_t *agent, struct bt_kv_room *room, int rc, const char *fmt, ...)
{
    va_list args;

    if (!bt_kv_rooms_move(&agent->rooms, room->handle, BT_KV_FAILED))
        return;
    room->state = BT_KV_FAILED;
    room->ended_us = agent->now_us;
    room->rc = rc;
    va_start(args, fmt);
    vsnprintf(room->reason, sizeof(room->reason), fmt, args);
    va_end(args);
    set_timer(room, &agent->ending);
    if (room->is_sender)
        bt_kv_sender_failed(agent, room);
    for (bt_list_t *it = room->ends.next; it != &room->ends; it = it->next)
        bt_kv_end_abort(agent, bt_container_of(it, bt_kv_end_t, on_room), rc, room->reason);
    if (room->noisy_ends == 0)
        bt_list_remove(&room->timer);
    agent->stats.rooms_failed++;
    if (room->command != NULL)
        bt_kv_gateways_changed(agent, room);
    bt_kv_agent_notify(agent);
}

/* ---- deadlines ---- */
static struct bt_kv_room *head(const bt_list_t *list)
{
    return bt_list_empty(list) ? NULL : bt_container_of(list->next, struct bt_kv_room, timer);
}

static uint64_t earliest(uint64_t due_us, const struct bt_kv_room *room, uint64_t since_us,
                         uint32_t patience_ms)
{
    if (room == NULL || since_us + (uint64_t) patience_ms * 1000 > due_us)
        return due_us;
    return since_us + (uint64_t) patience_ms * 1000;
}

uint64_t bt_kv_rooms_due_us(const bt_kv_agent_t *agent)
{
    const struct bt_kv_room *starting = head(&agent->starting), *moving = head(&agent->moving),
                            *ending = head(&agent->ending);
    uint64_t due_us = UINT64_MAX;

    due_us = earliest(due_us, starting, starting != NULL ? starting->opened_us : 0,
                      agent->config.bootstrap_ms);
    due_us =
        earliest(due_us, moving, moving != NULL ? moving->progress_us : 0, agent->config.stall_ms);
    return earliest(due_us, ending, ending != NULL ? ending->ended_us : 0,
                    agent->config.release_ms);
}

/* Whom a receiver still waits for. */
static const char *missing_peer(const struct bt_kv_room *room)
{
    for (bt_list_t *it = room->ends.next; it != &room->ends; it = it->next) {
        const bt_kv_end_t *end = bt_container_of(it, bt_kv_end_t, on_room);
        bool is_missing = room->state == BT_KV_BOOTSTRAPPING ? !end->is_announced : !end->is_done;
        if (is_missing && end->link != NULL && !end->is_dropped)
            return end->link->peer;
    }
    if (room->wants_source && room->end_count == 0)
        return "a gateway to name the sender";
    return room->is_sender ? "this side's engine" : "its peers";
}

static void fail_late_start(bt_kv_agent_t *agent, struct bt_kv_room *room)
{
    uint32_t ms = agent->config.bootstrap_ms;

    if (room->is_sender && room->receivers == BT_KV_RECEIVERS_OF_GATEWAY)
        bt_kv_room_fail(agent, room, BT_E_FIRST_BYTE_TIMEOUT,
                        "timed out after %u ms in Bootstrapping, waiting for a gateway to name the "
                        "receivers",
                        ms);
    else if (room->is_sender && room->state == BT_KV_BOOTSTRAPPING)
        bt_kv_room_fail(agent, room, BT_E_FIRST_BYTE_TIMEOUT,
                        "timed out after %u ms in Bootstrapping: %u of %u receivers have announced",
                        ms, room->end_count, room->receivers);
    else if (room->is_sender)
        bt_kv_room_fail(agent, room, BT_E_FIRST_BYTE_TIMEOUT,
                        "timed out after %u ms in WaitingForInput: nothing was sent", ms);
    else
        bt_kv_room_fail(agent, room, BT_E_FIRST_BYTE_TIMEOUT,
                        "timed out after %u ms in %s, waiting for %s", ms,
                        room->state == BT_KV_BOOTSTRAPPING ? "Bootstrapping" : "WaitingForInput",
                        missing_peer(room));
}

/* The other side has not confirmed that it is out of our memory: its access ends with the link. */
static void force_release(struct bt_kv_room *room, uint32_t release_ms)
{
    for (bt_list_t *it = room->ends.next; it != &room->ends; it = it->next) {
        bt_kv_end_t *end = bt_container_of(it, bt_kv_end_t, on_room);
        if (end->is_quiet || end->link == NULL)
            continue;
        end->is_expired = true;
        bt_kv_link_break(end->link, BT_E_STALL, "%s did not confirm the end of a room within %u ms",
                         end->link->peer, release_ms);
        bt_kv_link_want(end->link);
    }
}

void bt_kv_rooms_expire(bt_kv_agent_t *agent)
{
    const bt_kv_config_t *config = &agent->config;
    struct bt_kv_room *room;

    while ((room = head(&agent->starting)) != NULL &&
           room->opened_us + (uint64_t) config->bootstrap_ms * 1000 <= agent->now_us)
        fail_late_start(agent, room);
    while ((room = head(&agent->moving)) != NULL &&
           room->progress_us + (uint64_t) config->stall_ms * 1000 <= agent->now_us)
        bt_kv_room_fail(agent, room, BT_E_STALL,
                        "timed out after %u ms without progress in Transferring, waiting for %s",
                        config->stall_ms, missing_peer(room));
    while ((room = head(&agent->ending)) != NULL &&
           room->ended_us + (uint64_t) config->release_ms * 1000 <= agent->now_us) {
        bt_list_remove(&room->timer);
        force_release(room, config->release_ms);
    }
}

/* ---- the API ---- */
enum bt_kv_state bt_kv_poll(const bt_kv_agent_t *agent, bt_kv_room_t room)
{
    enum bt_kv_state state;

    if (agent == NULL || !bt_kv_rooms_state(&agent->rooms, room, &state))
        return BT_KV_FAILED;
    return state;
}

void bt_kv_poll_many(const bt_kv_agent_t *agent, const bt_kv_room_t *rooms, uint32_t count,
                     uint8_t *states)
{
    for (uint32_t i = 0; i < count; i++)
        states[i] = (uint8_t) bt_kv_poll(agent, rooms[i]);
}

int bt_kv_abort(bt_kv_agent_t *agent, bt_kv_room_t handle, const char *reason)
{
    if (agent == NULL)
        return BT_E_INVAL;
    bt_kv_enter(agent);
    struct bt_kv_room *room = bt_kv_room_find(agent, handle);
    if (room != NULL)
        bt_kv_room_fail(agent, room, BT_E_CANCELLED, "aborted: %s",
                        reason != NULL && reason[0] != '\0' ? reason : "no reason given");
    bt_kv_leave(agent);
    return room != NULL ? 0 : BT_E_INVAL;
}

int bt_kv_room_error(bt_kv_agent_t *agent, bt_kv_room_t handle, char *text, size_t size)
{
    int rc = 0;

    if (size > 0)
        text[0] = '\0';
    if (agent == NULL)
        return BT_E_INVAL;
    bt_kv_enter(agent);
    const struct bt_kv_room *room = bt_kv_room_find(agent, handle);
    if (room != NULL) {
        rc = room->rc;
        if (size > 0)
            bt_str_copy(text, size, room->reason);
    }
    bt_kv_leave(agent);
    return rc;
}

int bt_kv_room_release(bt_kv_agent_t *agent, bt_kv_room_t handle)
{
    int is_free = 1;

    if (agent == NULL)
        return BT_E_INVAL;
    bt_kv_enter(agent);
    struct bt_kv_room *room = bt_kv_room_find(agent, handle);
    if (room != NULL) {
        bt_kv_room_fail(agent, room, BT_E_CANCELLED, "released before it had ended");
        is_free = room->noisy_ends == 0;
        if (is_free)
            bt_kv_room_free(agent, room);
    }
    bt_kv_leave(agent);
    return is_free;
}
