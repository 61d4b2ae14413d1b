/* The life of a room, from the mail that opens it to its last event. report.c decides what becomes of it, here it is done.
 *
 *     opening --> waiting --> moving --> done
 *        |           |           '-----> failed
 *        +-----------+--> orphaned --repair--> opening (another sender)
 *                            '---> failed
 *
 * A room has a participant for each agent of both sides. Who has ended or is lost is told nothing more. When the room has ended its participants leave their agents, its names
 * leave the table, and the struct stays among the last ones for people to look at.
 */
#include "transfer_impl.h"

#include <stdlib.h>

/* ---- telling agents ---- */

void bt_transfer_send_abort(bt_transfer_agent_t *agent, uint64_t name, const char *reason)
{
    bt_kv_control_t m = {.type = BT_KV_CONTROL_ABORT};

    m.abort.room = name;
    m.abort.reason = bt_str(reason);
    bt_transfer_agent_send(agent, &m);
}

bool bt_transfer_participant_has_ended(const bt_transfer_participant_t *participant)
{
    return participant->has_told &&
           (participant->told.state == BT_KV_SUCCESS || participant->told.state == BT_KV_FAILED);
}

void bt_transfer_room_abort(bt_transfer_room_t *room, bt_transfer_side_t *side)
{
    uint64_t name = side == &room->sender ? room->source_room : room->id;

    for (unsigned i = 0; i < side->count; i++) {
        bt_transfer_participant_t *participant = &side->participants[i];
        if (participant->agent == NULL || participant->is_aborted ||
            bt_transfer_participant_has_ended(participant))
            continue;
        participant->is_aborted = true;
        bt_transfer_send_abort(participant->agent, name, room->reason);
    }
}

/* ---- telling the loop that opened it ---- */

static uint64_t time_of(const bt_transfer_participant_t *participant)
{
    return participant->told.wait_us + participant->told.transfer_us;
}

uint64_t bt_transfer_side_bytes(const bt_transfer_side_t *side)
{
    uint64_t bytes = 0;

    for (unsigned i = 0; i < side->count; i++)
        bytes += side->participants[i].told.bytes;
    return bytes;
}

/* Counted on both workers; 0 before the room lets go of one. */
void bt_transfer_room_set_in_flight(bt_transfer_room_t *room, uint64_t bytes)
{
    const int64_t more = (int64_t) (bytes - room->in_flight);

    room->in_flight = bytes;
    if (more == 0)
        return;
    atomic_fetch_add_explicit(&room->prefill->transfer_bytes, more, memory_order_relaxed);
    atomic_fetch_add_explicit(&room->decode->transfer_bytes, more, memory_order_relaxed);
}

static const bt_transfer_participant_t *slowest(const bt_transfer_side_t *side)
{
    const bt_transfer_participant_t *participant = NULL;

    for (unsigned i = 0; i < side->count; i++)
        if (participant == NULL || time_of(&side->participants[i]) > time_of(participant))
            participant = &side->participants[i];
    return participant;
}

static void fill_event(const bt_transfer_room_t *room, enum bt_transfer_what what,
                       bt_transfer_event_t *event)
{
    const bt_transfer_participant_t *participant = slowest(&room->receiver);

    *event = (bt_transfer_event_t){.what = what,
                                   .room = room->id,
                                   .source_room = room->source_room,
                                   .bytes = bt_transfer_side_bytes(&room->receiver)};
    if (participant != NULL) {
        event->wait_us = participant->told.wait_us;
        event->transfer_us = participant->told.transfer_us;
    }
    if (what != BT_TRANSFER_FAILED && what != BT_TRANSFER_ORPHANED)
        return;
    event->rc = room->rc;
    event->is_prefill_fault = room->is_prefill_fault;
    event->is_decode_fault = room->is_decode_fault;
    bt_str_copy(event->reason, sizeof(event->reason), room->reason);
}

void bt_transfer_room_notify(bt_transfer_room_t *room, enum bt_transfer_what what)
{
    bool is_last = what == BT_TRANSFER_DONE || what == BT_TRANSFER_FAILED;
    bt_transfer_mail_t *mail = is_last ? room->last : NULL;

    if (room->is_closed)
        return;
    if (is_last)
        room->last = NULL;
    else
        mail = calloc(1, sizeof(*mail));
    /* Without memory MOVING is only late news, and an orphan that nobody repairs fails in time. */
    if (mail == NULL)
        return;
    fill_event(room, what, &mail->event);
    bt_transfer_mail_return(mail, room->loop, room->on_event, room->user);
}

/* ---- phases ---- */

void bt_transfer_room_set_phase(bt_transfer_room_t *room, enum bt_transfer_phase phase)
{
    bt_transfer_stats_t *stats = &room->t->stats;

    if (room->phase == phase)
        return;
    stats->rooms_by_phase[room->phase]--;
    stats->rooms_by_phase[phase]++;
    room->phase = phase;
    room->phase_us = bt_clock_us();
}

void bt_transfer_room_wait(bt_transfer_room_t *room, enum bt_transfer_wait wait, uint64_t ms)
{
    room->wait = wait;
    bt_timer_start(&room->timer, ms);
}

/* ---- its end ---- */

void bt_transfer_side_leave(bt_transfer_side_t *side)
{
    for (unsigned i = 0; i < side->count; i++) {
        bt_transfer_participant_t *participant = &side->participants[i];
        if (participant->agent == NULL)
            continue;
        bt_list_remove(&participant->link);
        participant->agent->participant_count--;
        participant->agent = NULL;
    }
}

bt_transfer_node_t *bt_transfer_node_find(const bt_transfer_t *t, uint64_t name)
{
    bt_map_entry_t *entry = bt_map_get(&t->names, name);

    return entry != NULL ? bt_container_of(entry, bt_transfer_node_t, entry) : NULL;
}

bt_transfer_room_t *bt_transfer_room_find(const bt_transfer_t *t, uint64_t name)
{
    bt_transfer_node_t *node = bt_transfer_node_find(t, name);

    return node != NULL ? node->room : NULL;
}

/* The oldest tomb makes way: agents that come back do so within seconds. */
void bt_transfer_bury(bt_transfer_room_t *room, const bt_transfer_side_t *side, uint64_t name)
{
    bt_transfer_t *t = room->t;
    bool is_needed = false;

    for (unsigned i = 0; i < side->count; i++)
        is_needed |= side->participants[i].is_lost &&
                     !bt_transfer_participant_has_ended(&side->participants[i]);
    if (t->tombs == NULL && is_needed)
        t->tombs = calloc(BT_TRANSFER_TOMBS, sizeof(*t->tombs));
    if (t->tombs == NULL || !is_needed)
        return;
    bt_transfer_node_t *tomb = &t->tombs[t->tomb_at++ % BT_TRANSFER_TOMBS];
    bt_map_remove(&t->names, &tomb->entry);
    bt_map_put(&t->names, &tomb->entry, name);
}

static void free_room(bt_transfer_room_t *room)
{
    bt_list_remove(&room->order);
    bt_timer_stop(&room->timer);
    bt_worker_unref(room->prefill);
    bt_worker_unref(room->decode);
    free(room->last);
    free(room->spare);
    free(room);
}

static void detach(bt_transfer_room_t *room)
{
    bt_transfer_t *t = room->t;

    bt_timer_stop(&room->timer);
    bt_transfer_room_set_in_flight(room, 0);
    bt_transfer_side_leave(&room->sender);
    bt_transfer_side_leave(&room->receiver);
    bt_map_remove(&t->names, &room->by_id.entry);
    bt_map_remove(&t->names, &room->by_source.entry);
    bt_list_remove(&room->order);
    t->stats.rooms_by_phase[room->phase]--;
    t->stats.rooms_open--;
}

static void keep_for_people(bt_transfer_room_t *room)
{
    bt_transfer_t *t = room->t;

    bt_worker_unref(room->prefill);
    bt_worker_unref(room->decode);
    room->prefill = room->decode = NULL;
    free(room->last);
    room->last = NULL;
    bt_list_push(&t->ended, &room->order);
    if (++t->ended_count <= BT_TRANSFER_KEPT)
        return;
    t->ended_count--;
    free_room(bt_container_of(t->ended.next, bt_transfer_room_t, order));
}

static void count_end(bt_transfer_room_t *room)
{
    bt_transfer_stats_t *stats = &room->t->stats;
    const bt_transfer_participant_t *participant = slowest(&room->receiver);

    stats->bytes += bt_transfer_side_bytes(&room->receiver);
    if (room->phase == BT_TRANSFER_PHASE_DONE) {
        stats->rooms_done++;
        stats->wait_us += participant != NULL ? participant->told.wait_us : 0;
        stats->transfer_us += participant != NULL ? participant->told.transfer_us : 0;
    } else if (room->rc == BT_E_CANCELLED && room->is_closed) {
        stats->rooms_closed++;
    } else {
        stats->rooms_failed++;
    }
}

void bt_transfer_room_end(bt_transfer_room_t *room)
{
    bool is_done = room->phase == BT_TRANSFER_PHASE_DONE;

    room->ended_us = bt_clock_us();
    bt_transfer_room_abort(room, &room->sender);
    bt_transfer_room_abort(room, &room->receiver);
    count_end(room);
    if (!is_done)
        bt_log_debug("transfer", "room %llu of request %s, %s to %s, has failed: %s",
                     (unsigned long long) room->id, room->request_id, room->prefill_name,
                     room->decode_name, room->reason);
    bt_transfer_room_notify(room, is_done ? BT_TRANSFER_DONE : BT_TRANSFER_FAILED);
    detach(room);
    bt_transfer_bury(room, &room->sender, room->source_room);
    bt_transfer_bury(room, &room->receiver, room->id);
    keep_for_people(room);
}

void bt_transfer_room_cancel(bt_transfer_room_t *room, const char *reason)
{
    room->rc = BT_E_CANCELLED;
    bt_str_copy(room->reason, sizeof(room->reason), reason);
    bt_transfer_room_set_phase(room, BT_TRANSFER_PHASE_FAILED);
    bt_transfer_room_end(room);
}

void bt_transfer_rooms_free(bt_transfer_t *t)
{
    while (!bt_list_empty(&t->rooms)) {
        bt_transfer_room_t *room = bt_container_of(t->rooms.next, bt_transfer_room_t, order);
        detach(room);
        free_room(room);
    }
    while (!bt_list_empty(&t->ended))
        free_room(bt_container_of(t->ended.next, bt_transfer_room_t, order));
    t->ended_count = 0;
}
