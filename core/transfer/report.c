/* What becomes of a room: from what its agents tell, from the loss of one, from a deadline.
 *
 * Receivers decide what is true of the bytes: the first one there means that no other sender is possible, all of them there means that it is done even if a sender
 * is lost before it could say so.
 *
 * Blame. A side is at fault when its agent is lost, or has been silent while the other side says that it is lost. What a side says of its own failure is no proof: the
 * library hands reasons on to the peer, and either may be heard first. So a failure that is told aborts both sides at once, but its event waits for up to
 * BT_TRANSFER_BLAME_MS: when a process dies, its peer's complaint and its own hang-up come close together.
 */
#include "transfer_impl.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#define IN_FLIGHT_MAX ((uint64_t) 1 << 50) /* a room's; figures are the agents' own */

/* ---- sides ---- */
/* The state of the one that is least far. */
static enum bt_kv_state side_state(const bt_transfer_side_t *side)
{
    enum bt_kv_state least = BT_KV_SUCCESS;

    for (unsigned i = 0; i < side->count; i++) {
        const bt_transfer_participant_t *participant = &side->participants[i];
        enum bt_kv_state state = participant->has_told ? (enum bt_kv_state) participant->told.state
                                                       : BT_KV_BOOTSTRAPPING;
        if (state < least)
            least = state;
    }
    return side->count > 0 ? least : BT_KV_BOOTSTRAPPING;
}

static bool is_delivered(const bt_transfer_room_t *room)
{
    return room->receiver.count > 0 && side_state(&room->receiver) == BT_KV_SUCCESS;
}

static bool has_failed(const bt_transfer_side_t *side)
{
    return side->count > 0 && side_state(side) == BT_KV_FAILED;
}

static bool has_bytes(const bt_transfer_side_t *side)
{
    for (unsigned i = 0; i < side->count; i++)
        if (side->participants[i].told.bytes > 0 ||
            side->participants[i].told.state >= BT_KV_TRANSFERRING)
            return true;
    return false;
}

static bool has_orphan(const bt_transfer_side_t *side)
{
    for (unsigned i = 0; i < side->count; i++)
        if (side->participants[i].is_orphan)
            return true;
    return false;
}

static bool are_over(const bt_transfer_side_t *side)
{
    for (unsigned i = 0; i < side->count; i++)
        if (!side->participants[i].is_lost &&
            !bt_transfer_participant_has_ended(&side->participants[i]))
            return false;
    return true;
}

static int told_rc(const bt_transfer_side_t *side)
{
    for (unsigned i = 0; i < side->count; i++)
        if (side->participants[i].told.rc < 0)
            return side->participants[i].told.rc;
    return BT_E_KV_TRANSFER;
}

/* ---- blame ---- */

static bool says_peer_lost(int rc)
{
    return rc == BT_E_CONNECT || rc == BT_E_RESET || rc == BT_E_STALL;
}

static bool is_silent(const bt_transfer_room_t *room, const bt_transfer_side_t *side)
{
    uint64_t ms = 5 * (uint64_t) room->t->config.heartbeat_ms / 2;

    for (unsigned i = 0; i < side->count; i++)
        if (side->participants[i].agent != NULL &&
            bt_transfer_agent_is_silent(side->participants[i].agent, ms))
            return true;
    return false;
}

static void blame(bt_transfer_room_t *room, enum bt_transfer_fault fault)
{
    room->is_prefill_fault |= fault == BT_TRANSFER_FAULT_PREFILL;
    room->is_decode_fault |= fault == BT_TRANSFER_FAULT_DECODE;
}

/* A second witness: the accused has said nothing to us either. */
static enum bt_transfer_fault witness(const bt_transfer_room_t *room)
{
    bool by_receiver = has_failed(&room->receiver) || has_orphan(&room->receiver);
    bool by_sender = has_failed(&room->sender);

    if (by_receiver && says_peer_lost(told_rc(&room->receiver)) && is_silent(room, &room->sender))
        return BT_TRANSFER_FAULT_PREFILL;
    if (by_sender && says_peer_lost(told_rc(&room->sender)) && is_silent(room, &room->receiver))
        return BT_TRANSFER_FAULT_DECODE;
    return BT_TRANSFER_FAULT_UNKNOWN;
}

/* ---- failing ---- */

/* Its reason has been set. */
static void fail(bt_transfer_room_t *room, int rc, enum bt_transfer_fault fault)
{
    room->rc = rc;
    bt_transfer_room_set_phase(room, BT_TRANSFER_PHASE_FAILED);
    if (fault == BT_TRANSFER_FAULT_UNKNOWN)
        fault = witness(room);
    blame(room, fault);
    if (fault != BT_TRANSFER_FAULT_UNKNOWN || room->is_closed || room->is_prefill_fault ||
        room->is_decode_fault) {
        bt_transfer_room_end(room);
        return;
    }
    bt_transfer_room_abort(room, &room->sender);
    bt_transfer_room_abort(room, &room->receiver);
    bt_transfer_room_wait(room, BT_TRANSFER_WAIT_BLAME, BT_TRANSFER_BLAME_MS);
}

void bt_transfer_room_fail(bt_transfer_room_t *room, int rc, enum bt_transfer_fault fault,
                           const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(room->reason, sizeof(room->reason), fmt, args);
    va_end(args);
    fail(room, rc, fault);
}

static void notify_orphan(bt_transfer_room_t *room)
{
    room->t->stats.rooms_orphaned++;
    bt_transfer_room_notify(room, BT_TRANSFER_ORPHANED);
    bt_transfer_room_wait(room, BT_TRANSFER_WAIT_REPAIR, room->repair_ms);
}

/* Its reason has been set. */
static void orphan(bt_transfer_room_t *room, int rc, enum bt_transfer_fault fault)
{
    bool is_told =
        room->phase == BT_TRANSFER_PHASE_ORPHANED && room->wait == BT_TRANSFER_WAIT_REPAIR;

    room->rc = rc;
    if (fault == BT_TRANSFER_FAULT_UNKNOWN)
        fault = witness(room);
    blame(room, fault);
    if (is_told)
        return;
    bool is_new = room->phase != BT_TRANSFER_PHASE_ORPHANED;
    bt_transfer_room_set_phase(room, BT_TRANSFER_PHASE_ORPHANED);
    if (fault != BT_TRANSFER_FAULT_UNKNOWN)
        notify_orphan(room);
    else if (is_new)
        bt_transfer_room_wait(room, BT_TRANSFER_WAIT_BLAME, BT_TRANSFER_BLAME_MS);
}

/* ---- states ---- */

static void finish(bt_transfer_room_t *room)
{
    bt_transfer_room_set_phase(room, BT_TRANSFER_PHASE_DONE);
    snprintf(room->reason, sizeof(room->reason), "the receivers have everything");
    room->rc = 0;
    room->is_prefill_fault = room->is_decode_fault = false;
    bt_transfer_room_end(room);
}

/* True: it has ended, or will when the senders have confirmed. */
static bool find_end(bt_transfer_room_t *room)
{
    if (!is_delivered(room))
        return false;
    if (are_over(&room->sender))
        finish(room);
    else if (room->wait != BT_TRANSFER_WAIT_CONFIRM)
        bt_transfer_room_wait(room, BT_TRANSFER_WAIT_CONFIRM, room->t->config.dead_ms);
    return true;
}

static void begin_moving(bt_transfer_room_t *room)
{
    room->has_moved = true;
    room->is_prefill_fault = room->is_decode_fault = false;
    bt_transfer_room_set_phase(room, BT_TRANSFER_PHASE_MOVING);
    bt_transfer_room_notify(room, BT_TRANSFER_MOVING);
    bt_transfer_room_wait(room, BT_TRANSFER_WAIT_STALL, room->stall_ms);
}

static void check_orphan(bt_transfer_room_t *room)
{
    uint64_t now_us = bt_clock_us();

    if (now_us < room->settle_us && room->phase != BT_TRANSFER_PHASE_ORPHANED)
        bt_transfer_room_wait(room, BT_TRANSFER_WAIT_SETTLE, (room->settle_us - now_us) / 1000 + 1);
    else
        orphan(room, told_rc(&room->receiver), BT_TRANSFER_FAULT_UNKNOWN);
}

static void look(bt_transfer_room_t *room)
{
    if (room->phase == BT_TRANSFER_PHASE_FAILED) { /* and its event waits */
        if (is_delivered(room))
            finish(room);
        return;
    }
    if (has_failed(&room->receiver)) {
        fail(room, told_rc(&room->receiver), BT_TRANSFER_FAULT_UNKNOWN);
        return;
    }
    if (!room->has_moved && has_bytes(&room->receiver))
        begin_moving(room);
    if (find_end(room))
        return;
    if (has_failed(&room->sender) && room->has_moved)
        fail(room, told_rc(&room->sender), BT_TRANSFER_FAULT_UNKNOWN);
    else if (has_failed(&room->sender))
        orphan(room, told_rc(&room->sender), BT_TRANSFER_FAULT_UNKNOWN);
    else if (!room->has_moved && has_orphan(&room->receiver))
        check_orphan(room);
    else if (room->phase == BT_TRANSFER_PHASE_OPENING &&
             side_state(&room->receiver) >= BT_KV_WAITING_FOR_INPUT)
        bt_transfer_room_set_phase(room, BT_TRANSFER_PHASE_WAITING);
}

/* ---- reports ---- */

static bool is_its_participant(const bt_transfer_participant_t *participant,
                               const bt_transfer_agent_t *agent)
{
    if (participant->agent == agent)
        return true;
    return participant->agent == NULL && participant->is_lost &&
           participant->incarnation == agent->incarnation && participant->rank == agent->rank;
}

/* The agent's participant; one that was lost and has come back sits down again. */
static bt_transfer_participant_t *find_participant(bt_transfer_room_t *room,
                                                   bt_transfer_agent_t *agent,
                                                   const bt_kv_control_room_t *told)
{
    bool is_sender = told->side == BT_KV_SIDE_SENDER;
    bt_transfer_side_t *side = is_sender ? &room->sender : &room->receiver;

    if (told->room != (is_sender ? room->source_room : room->id))
        return NULL;
    for (unsigned i = 0; i < side->count; i++) {
        bt_transfer_participant_t *participant = &side->participants[i];
        if (!is_its_participant(participant, agent))
            continue;
        if (participant->agent == NULL) {
            participant->agent = agent;
            participant->is_lost = false;
            bt_list_push(&agent->participants, &participant->link);
            agent->participant_count++;
        }
        return participant;
    }
    return NULL;
}

static void keep_reason(bt_transfer_room_t *room, const bt_transfer_participant_t *participant,
                        bt_str_t reason)
{
    bool is_sender = participant->side == BT_KV_SIDE_SENDER;

    if (room->phase == BT_TRANSFER_PHASE_FAILED)
        return; /* the first one counts */
    snprintf(room->reason, sizeof(room->reason), "%s %s says: %.*s",
             is_sender ? "prefill" : "decode", is_sender ? room->prefill_name : room->decode_name,
             BT_STR_ARG(reason));
    bt_str_tame(room->reason, strlen(room->reason));
}

static void note_rate(bt_transfer_room_t *room)
{
    uint64_t now_us = bt_clock_us(), bytes = bt_transfer_side_bytes(&room->receiver);

    if (room->rate_us == 0) {
        room->rate_us = now_us;
        room->rate_bytes = bytes;
    } else if (now_us - room->rate_us >= 50000) {
        room->rate = (uint64_t) ((double) (bytes - room->rate_bytes) * 1e6 /
                                 (double) (now_us - room->rate_us));
        room->rate_us = now_us;
        room->rate_bytes = bytes;
    }
}

static void note_progress(bt_transfer_room_t *room)
{
    uint64_t progress =
        bt_transfer_side_bytes(&room->sender) + bt_transfer_side_bytes(&room->receiver);

    if (progress == room->progress)
        return;
    room->progress = progress;
    note_rate(room);
    if (room->wait == BT_TRANSFER_WAIT_STALL)
        bt_transfer_room_wait(room, BT_TRANSFER_WAIT_STALL, room->stall_ms);
}

/* Receivers tell how many pages they want and have, not their size: that is what the agent's pages
 * had last, in this room or another. */
static void note_in_flight(bt_transfer_room_t *room)
{
    uint64_t left = 0;

    for (unsigned i = 0; i < room->receiver.count; i++) {
        const bt_transfer_participant_t *participant = &room->receiver.participants[i];
        const bt_kv_control_room_t *told = &participant->told;
        bt_transfer_agent_t *agent = participant->agent;

        if (agent == NULL || told->pages_wanted == 0 || told->pages > told->pages_wanted)
            continue;
        if (told->pages > 0)
            agent->page_bytes = told->bytes / told->pages;
        left += (told->pages_wanted - told->pages) * agent->page_bytes;
    }
    bt_transfer_room_set_in_flight(room, left < IN_FLIGHT_MAX ? left : IN_FLIGHT_MAX);
}

/* States and figures only go forward, whatever order they are told in (an agent that comes back tells everything anew). */
static void take(bt_transfer_participant_t *participant, const bt_kv_control_room_t *told)
{
    bool goes_on = !participant->has_told || told->state == BT_KV_FAILED ||
                   told->state > participant->told.state;
    uint8_t state = goes_on ? told->state : participant->told.state;
    uint64_t bytes = told->bytes > participant->told.bytes ? told->bytes : participant->told.bytes;

    participant->told = *told;
    participant->told.state = state;
    participant->told.bytes = bytes;
    participant->told.reason = BT_STR_NULL;
    participant->has_told = true;
    participant->is_orphan = told->is_orphan;
}

void bt_transfer_report(bt_transfer_agent_t *agent, const bt_kv_control_room_t *told)
{
    bool is_last = told->state == BT_KV_SUCCESS || told->state == BT_KV_FAILED;
    bt_transfer_node_t *node = bt_transfer_node_find(agent->t, told->room);
    bt_transfer_room_t *room = node != NULL ? node->room : NULL;
    bt_transfer_participant_t *participant =
        room != NULL ? find_participant(room, agent, told) : NULL;

    if (participant == NULL) {
        /* A name that we do not know is of a gateway before us, and none of our business. */
        if (node != NULL && !is_last)
            bt_transfer_send_abort(agent, told->room, "the gateway has given this room up");
        return;
    }
    if (bt_transfer_participant_has_ended(participant))
        return;
    take(participant, told);
    if (told->state == BT_KV_FAILED || told->is_orphan)
        keep_reason(room, participant, told->reason);
    note_progress(room);
    note_in_flight(room);
    look(room);
}

/* ---- losses ---- */

void bt_transfer_participant_lost(bt_transfer_participant_t *participant, const char *why)
{
    bt_transfer_room_t *room = participant->room;
    bool is_sender = participant->side == BT_KV_SIDE_SENDER;
    enum bt_transfer_fault fault = is_sender ? BT_TRANSFER_FAULT_PREFILL : BT_TRANSFER_FAULT_DECODE;

    participant->is_lost = true;
    if (room->phase == BT_TRANSFER_PHASE_FAILED) {
        blame(room, fault);
        bt_transfer_room_end(room);
        return;
    }
    if (participant->has_told && participant->told.state == BT_KV_SUCCESS) {
        look(room); /* its part is done */
        return;
    }
    snprintf(room->reason, sizeof(room->reason), "lost the agent of %s %s, rank %u: %s",
             is_sender ? "prefill" : "decode", is_sender ? room->prefill_name : room->decode_name,
             participant->rank, why);
    if (is_sender && is_delivered(room))
        (void) find_end(room);
    else if (is_sender && !room->has_moved)
        orphan(room, BT_E_RESET, fault);
    else
        fail(room, BT_E_RESET, fault);
}

/* ---- deadlines ---- */

static const char *state_name(const bt_transfer_side_t *side)
{
    static const char *const names[] = {"Failed", "Bootstrapping", "WaitingForInput",
                                        "Transferring", "Success"};

    for (unsigned i = 0; i < side->count; i++)
        if (!side->participants[i].has_told)
            return "not opened by its engine";
    return names[side_state(side)];
}

static void fail_repair(bt_transfer_room_t *room)
{
    char first[160];

    bt_str_copy(first, sizeof(first), room->reason);
    bt_transfer_room_fail(room, room->rc, BT_TRANSFER_FAULT_NONE,
                          "%s; no other prefill took its place within %" PRIu64 " ms", first,
                          room->repair_ms);
}

uint64_t bt_transfer_start_ms(const bt_transfer_room_t *room)
{
    uint64_t ms = room->t->config.dead_ms;

    return room->is_closed && ms < room->start_ms ? ms : room->start_ms;
}

static void fail_start(bt_transfer_room_t *room)
{
    if (room->is_closed) {
        bt_transfer_room_cancel(room, "decode has answered without it");
        return;
    }
    bt_transfer_room_fail(room, BT_E_FIRST_BYTE_TIMEOUT, BT_TRANSFER_FAULT_NONE,
                          "no byte within %" PRIu64 " ms: prefill %s is %s, decode %s is %s",
                          room->start_ms, room->prefill_name, state_name(&room->sender),
                          room->decode_name, state_name(&room->receiver));
}

void bt_transfer_room_due(bt_timer_t *timer)
{
    bt_transfer_room_t *room = bt_container_of(timer, bt_transfer_room_t, timer);

    switch (room->wait) {
    case BT_TRANSFER_WAIT_START:
        fail_start(room);
        break;
    case BT_TRANSFER_WAIT_STALL:
        bt_transfer_room_fail(room, BT_E_STALL, BT_TRANSFER_FAULT_NONE,
                              "no progress for %" PRIu64 " ms after %" PRIu64 " bytes",
                              room->stall_ms, bt_transfer_side_bytes(&room->receiver));
        break;
    case BT_TRANSFER_WAIT_REPAIR:
        fail_repair(room);
        break;
    case BT_TRANSFER_WAIT_CONFIRM:
        finish(room);
        break;
    case BT_TRANSFER_WAIT_BLAME:
        if (room->phase == BT_TRANSFER_PHASE_FAILED)
            bt_transfer_room_end(room);
        else
            notify_orphan(room);
        break;
    case BT_TRANSFER_WAIT_SETTLE:
        room->settle_us = 0;
        bt_transfer_room_wait(room, BT_TRANSFER_WAIT_START, bt_transfer_start_ms(room));
        look(room);
        break;
    }
}
