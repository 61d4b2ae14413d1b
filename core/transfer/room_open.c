/* How a room begins, how it is let go, and how it gets another sender. Open, repair and close come by mail, so each of them may find the room over already. */
#include "transfer_impl.h"

#include <stdio.h>
#include <stdlib.h>

#define START_MS 300000
#define STALL_MS 60000
#define REPAIR_MS 5000

static uint64_t or_default(uint64_t value, uint64_t otherwise)
{
    return value != 0 ? value : otherwise;
}

static uint32_t clip_ms(uint64_t ms)
{
    return ms < UINT32_MAX ? (uint32_t) ms : UINT32_MAX;
}

/* OPEN or SOURCE to all agents of a side: the others are its peers. */
static void send_open(bt_transfer_room_t *room, uint8_t type, const bt_transfer_side_t *side,
                      const bt_transfer_side_t *others)
{
    bt_kv_control_t m = {.type = type};
    bt_kv_control_open_t *open = &m.open;

    *open = (bt_kv_control_open_t){.room = side == &room->sender ? room->source_room : room->id,
                                   .source_room = room->source_room,
                                   .side = side->participants[0].side,
                                   .expire_ms = clip_ms(room->start_ms),
                                   .repair_ms = clip_ms(room->repair_ms)};
    /* With OPEN both names are the same: a new sender knows the room by its new name only. */
    for (unsigned i = 0; i < others->count; i++) {
        const bt_transfer_agent_t *agent = others->participants[i].agent;
        if (agent != NULL)
            open->peers[open->peer_count++] =
                (bt_kv_control_peer_t){agent->rank, bt_str(agent->host), agent->port};
    }
    for (unsigned i = 0; i < side->count; i++)
        if (side->participants[i].agent != NULL)
            bt_transfer_agent_send(side->participants[i].agent, &m);
}

/* ---- opening ---- */

/* A participant for each agent of the group that is there; the side has room for them. */
static void fill_side(bt_transfer_room_t *room, bt_transfer_side_t *side,
                      bt_transfer_rank_group_t *group, enum bt_kv_side kind)
{
    for (uint32_t i = 0; group != NULL && i < BT_TRANSFER_RANKS; i++) {
        bt_transfer_agent_t *agent = group->agents[i];
        if (agent == NULL)
            continue;
        bt_transfer_participant_t *participant = &side->participants[side->count++];
        *participant = (bt_transfer_participant_t){.room = room,
                                                   .agent = agent,
                                                   .incarnation = agent->incarnation,
                                                   .rank = agent->rank,
                                                   .side = (uint8_t) kind};
        bt_list_push(&agent->participants, &participant->link);
        agent->participant_count++;
    }
}

static unsigned count_of(const bt_transfer_rank_group_t *group)
{
    return group != NULL ? group->count : 0;
}

static void fill_room(bt_transfer_room_t *room, bt_transfer_t *t, bt_transfer_mail_t *mail)
{
    const bt_transfer_room_spec_t *spec = &mail->spec;

    room->t = t;
    room->id = room->source_room = spec->room;
    room->prefill = bt_worker_ref(spec->prefill);
    room->decode = bt_worker_ref(spec->decode);
    bt_str_copy(room->prefill_name, sizeof(room->prefill_name), spec->prefill->name);
    bt_str_copy(room->decode_name, sizeof(room->decode_name), spec->decode->name);
    bt_str_copy(room->request_id, sizeof(room->request_id), spec->request_id);
    room->start_ms = or_default(spec->start_ms, START_MS);
    room->stall_ms = or_default(spec->stall_ms, STALL_MS);
    room->repair_ms = or_default(spec->repair_ms, REPAIR_MS);
    room->loop = spec->loop;
    room->on_event = spec->on_event;
    room->user = spec->user;
    room->last = mail;
    room->opened_us = room->phase_us = bt_clock_us();
    bt_timer_init(t->loop, &room->timer, bt_transfer_room_due);
    room->by_id.room = room->by_source.room = room;
    bt_map_put(&t->names, &room->by_id.entry, room->id);
    bt_list_push(&t->rooms, &room->order);
    t->stats.rooms_open++;
    t->stats.rooms_by_phase[room->phase]++;
}

/* No room could be made of it. */
static void send_back(bt_transfer_mail_t *mail, int rc, const char *why)
{
    const bt_transfer_room_spec_t spec = mail->spec;

    mail->t->stats.rooms_failed++;
    mail->event = (bt_transfer_event_t){
        .what = BT_TRANSFER_FAILED, .room = spec.room, .source_room = spec.room, .rc = rc};
    bt_str_copy(mail->event.reason, sizeof(mail->event.reason), why);
    bt_transfer_mail_return(mail, spec.loop, spec.on_event, spec.user);
}

/* Names the side that cannot take part. */
static void fail_lacking(bt_transfer_room_t *room, const char *prefill_why, const char *decode_why)
{
    bool lacks_prefill = prefill_why[0] != '\0', lacks_decode = decode_why[0] != '\0';

    room->is_prefill_fault = lacks_prefill;
    bt_transfer_room_fail(
        room, BT_E_NO_WORKER, lacks_decode ? BT_TRANSFER_FAULT_DECODE : BT_TRANSFER_FAULT_PREFILL,
        "%s%s%s", prefill_why, lacks_prefill && lacks_decode ? "; " : "", decode_why);
}

void bt_transfer_on_room_open(bt_transfer_t *t, bt_transfer_mail_t *mail)
{
    const bt_transfer_room_spec_t *spec = &mail->spec;
    bt_transfer_rank_group_t *prefill = bt_transfer_rank_group_of(t, spec->prefill),
                             *decode = bt_transfer_rank_group_of(t, spec->decode);
    char prefill_why[160] = "", decode_why[160] = "";

    if (spec->room == 0 || bt_transfer_room_find(t, spec->room) != NULL) {
        send_back(mail, BT_E_INVAL, "a room of this id is open already");
        return;
    }
    unsigned count = count_of(prefill) + count_of(decode);
    bt_transfer_room_t *room = calloc(1, sizeof(*room) + count * sizeof(room->participants[0]));
    if (room == NULL) {
        send_back(mail, BT_E_NOMEM, bt_err_text(BT_E_NOMEM));
        return;
    }
    bool has_prefill =
        bt_transfer_rank_group_is_whole(prefill, spec->prefill, prefill_why, sizeof(prefill_why));
    bool has_decode =
        bt_transfer_rank_group_is_whole(decode, spec->decode, decode_why, sizeof(decode_why));
    fill_room(room, t, mail);
    room->sender.participants = room->participants;
    room->receiver.participants = room->participants + count_of(prefill);
    fill_side(room, &room->sender, prefill, BT_KV_SIDE_SENDER);
    fill_side(room, &room->receiver, decode, BT_KV_SIDE_RECEIVER);
    if (!has_prefill || !has_decode) {
        fail_lacking(room, prefill_why, decode_why);
        return;
    }
    send_open(room, BT_KV_CONTROL_OPEN, &room->sender, &room->receiver);
    send_open(room, BT_KV_CONTROL_OPEN, &room->receiver, &room->sender);
    bt_transfer_room_wait(room, BT_TRANSFER_WAIT_START, room->start_ms);
}

/* ---- closing ---- */

void bt_transfer_on_room_close(bt_transfer_t *t, bt_transfer_mail_t *mail)
{
    bt_transfer_room_t *room = bt_transfer_room_find(t, mail->room);

    if (room == NULL || room->id != mail->room)
        return;
    room->is_closed = true;
    if (room->phase == BT_TRANSFER_PHASE_FAILED)
        bt_transfer_room_end(room);
    else if (mail->is_abort)
        bt_transfer_room_cancel(room, mail->reason);
    else if (!room->has_moved) /* decode's last reports may still be under way */
        bt_transfer_room_wait(room, BT_TRANSFER_WAIT_START, bt_transfer_start_ms(room));
}

/* ---- another sender ---- */

static void abort_new(bt_transfer_rank_group_t *group, uint64_t source_room, const char *why)
{
    for (uint32_t i = 0; group != NULL && i < BT_TRANSFER_RANKS; i++)
        if (group->agents[i] != NULL)
            bt_transfer_send_abort(group->agents[i], source_room, why);
}

/* NULL, or why it can't be. */
static const char *replace_sender(bt_transfer_room_t *room, bt_transfer_rank_group_t *group,
                                  uint64_t source_room, bt_worker_t *prefill)
{
    bt_transfer_t *t = room->t;
    bt_transfer_participant_t *participants;

    if (source_room == 0 || bt_transfer_room_find(t, source_room) != NULL)
        return "the new room's id is in use already";
    if ((participants = calloc(group->count, sizeof(*participants))) == NULL)
        return "out of memory";
    snprintf(room->reason, sizeof(room->reason), "another prefill has taken its place");
    bt_transfer_room_abort(room, &room->sender);
    bt_transfer_side_leave(&room->sender);
    if (room->source_room != room->id) /* under that name the room itself is found */
        bt_transfer_bury(room, &room->sender, room->source_room);
    free(room->spare);
    room->spare = participants;
    room->sender = (bt_transfer_side_t){.participants = participants};
    fill_side(room, &room->sender, group, BT_KV_SIDE_SENDER);
    bt_map_remove(&t->names, &room->by_source.entry);
    room->source_room = source_room;
    bt_map_put(&t->names, &room->by_source.entry, source_room);
    bt_transfer_room_set_in_flight(room, 0);
    bt_worker_unref(room->prefill);
    room->prefill = bt_worker_ref(prefill);
    bt_str_copy(room->prefill_name, sizeof(room->prefill_name), prefill->name);
    return NULL;
}

static void start_again(bt_transfer_room_t *room)
{
    room->rc = 0;
    room->reason[0] = '\0';
    room->is_prefill_fault = room->is_decode_fault = false;
    room->repairs++;
    room->t->stats.rooms_repaired++;
    for (unsigned i = 0; i < room->receiver.count; i++)
        room->receiver.participants[i].is_orphan = false;
    room->settle_us = bt_clock_us() + BT_TRANSFER_SETTLE_MS * 1000;
    bt_transfer_room_set_phase(room, BT_TRANSFER_PHASE_OPENING);
    bt_transfer_room_wait(room, BT_TRANSFER_WAIT_START, room->start_ms);
}

static bool has_absent(const bt_transfer_side_t *side)
{
    for (unsigned i = 0; i < side->count; i++)
        if (side->participants[i].agent == NULL)
            return true;
    return false;
}

void bt_transfer_room_repair(bt_transfer_t *t, bt_transfer_mail_t *mail)
{
    bt_transfer_room_t *room = bt_transfer_room_find(t, mail->room);
    bt_transfer_rank_group_t *group = bt_transfer_rank_group_of(t, mail->prefill);
    enum bt_transfer_fault fault = BT_TRANSFER_FAULT_NONE;
    char lack[160];
    const char *why = NULL;

    if (room == NULL || room->id != mail->room || room->phase == BT_TRANSFER_PHASE_FAILED) {
        abort_new(group, mail->source_room, "the room that it was for is over");
        return;
    }
    if (room->has_moved) {
        why = "too late for another prefill: bytes have come already";
    } else if (has_absent(&room->receiver)) {
        why = "an agent of decode is not connected, and would not hear of another prefill";
    } else if (!bt_transfer_rank_group_is_whole(group, mail->prefill, lack, sizeof(lack))) {
        why = lack;
        fault = BT_TRANSFER_FAULT_PREFILL;
    } else {
        why = replace_sender(room, group, mail->source_room, mail->prefill);
    }
    if (why != NULL) {
        abort_new(group, mail->source_room, why);
        bt_transfer_room_fail(room, BT_E_KV_TRANSFER, fault, "%s", why);
        return;
    }
    start_again(room);
    send_open(room, BT_KV_CONTROL_OPEN, &room->sender, &room->receiver);
    send_open(room, BT_KV_CONTROL_SOURCE, &room->receiver, &room->sender);
}
