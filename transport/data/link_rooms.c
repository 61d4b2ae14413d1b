/* What the rooms on a link make of its news: frames about rooms, its becoming usable, its loss.
 *
 * Two things are not mistakes of a peer, because they cross on their way: an ABORT for a room that
 * is gone here (answered at once) and its acknowledgement (ignored).
 */
#include "transport/control/link.h"
#include "transport/data/end.h"

#include <stdio.h>

/* ---- frames ---- */
static void acknowledge(bt_kv_link_t *link, uint64_t tag)
{
    bt_kv_put_room(&link->out, BT_KV_ABORT_ACK, tag, 0, BT_STR_NULL);
    bt_kv_link_send(link);
}

/* This side's end of a tag, or NULL: gone, or another link's (*is_foreign_p). */
static bt_kv_end_t *end_of(bt_kv_link_t *link, uint64_t tag, bool *is_foreign_p)
{
    if (!link->is_initiator)
        return bt_kv_end_by_tag(link->agent, link, tag);
    struct bt_kv_room *room = bt_kv_room_find(link->agent, tag);
    if (room == NULL)
        return NULL;
    for (bt_list_t *it = room->ends.next; it != &room->ends; it = it->next) {
        bt_kv_end_t *end = bt_container_of(it, bt_kv_end_t, on_room);
        bool is_past = end->is_dropped && bt_kv_end_is_past(end);
        if (end->link == link && !end->is_sender && end->is_announced && !is_past)
            return end;
    }
    *is_foreign_p = true;
    return NULL;
}

static void got_abort(bt_kv_link_t *link, bt_kv_end_t *end, const bt_kv_frame_t *frame)
{
    bt_kv_agent_t *agent = link->agent;
    int rc = frame->room.rc < 0 ? frame->room.rc : BT_E_KV_TRANSFER;
    char reason[BT_KV_REASON_MAX];

    snprintf(reason, sizeof(reason), "%.80s: %.*s", link->peer, BT_STR_ARG(frame->room.reason));
    if (end == NULL || end->is_drained || end->is_quiet) {
        if (end == NULL || !end->is_ack_sent)
            acknowledge(link, frame->room.tag);
        if (end != NULL)
            end->is_ack_sent = true;
    } else if (end->room == NULL) {
        acknowledge(link, frame->room.tag);
        bt_kv_sender_left(agent, end, rc, reason);
    } else {
        end->is_abort_got = true;
        if (!end->is_dropped && !bt_kv_gateways_orphans(agent, end, rc, reason))
            bt_kv_room_fail(agent, end->room, rc, "%s", reason);
    }
}

static const char *got_done(bt_kv_link_t *link, bt_kv_end_t *end)
{
    if (link->is_initiator || end == NULL || end->room == NULL || end->is_done)
        return "a DONE that nobody waits for";
    end->is_done = true;
    if (end->room->state == BT_KV_FAILED) {
        bt_kv_end_acked(link->agent, end);
        return NULL;
    }
    if (!end->is_last_posted)
        return "DONE before it had everything";
    bt_kv_sender_check(link->agent, end->room);
    return NULL;
}

static const char *got_room(bt_kv_link_t *link, const bt_kv_frame_t *frame)
{
    bool is_foreign = false;
    bt_kv_end_t *end = end_of(link, frame->room.tag, &is_foreign);

    if (is_foreign)
        return "the tag of another link's room";
    if (frame->type == BT_KV_DONE)
        return got_done(link, end);
    if (frame->type == BT_KV_ABORT) {
        got_abort(link, end, frame);
        return NULL;
    }
    if (end == NULL)
        return NULL;
    if (end->room == NULL || (!bt_kv_room_is_over(end->room) && !end->is_dropped))
        return "the acknowledgement of an abort that was not";
    if (end->room->state == BT_KV_FAILED || end->is_dropped)
        bt_kv_end_acked(link->agent, end);
    return NULL;
}

static const char *got_left(bt_kv_link_t *link, const bt_kv_frame_t *frame)
{
    char reason[BT_KV_REASON_MAX];

    if (link->is_initiator || frame->room.tag == 0)
        return "that a receiver has left, and is none";
    snprintf(reason, sizeof(reason), "%.80s: %.*s", link->peer, BT_STR_ARG(frame->room.reason));
    bt_kv_sender_missed(link->agent, frame->room.tag,
                        frame->room.rc < 0 ? frame->room.rc : BT_E_KV_TRANSFER, reason);
    return NULL;
}

static const char *got_announce(bt_kv_link_t *link, const bt_kv_announce_t *announce)
{
    const char *why = "an announcement to a receiver";

    if (link->is_initiator)
        return why;
    return bt_kv_sender_announced(link->agent, link, announce, &why) < 0 ? why : NULL;
}

const char *bt_kv_rooms_got(bt_kv_link_t *link, const bt_kv_frame_t *frame)
{
    if (frame->type == BT_KV_ANNOUNCE)
        return got_announce(link, &frame->announce);
    return frame->type == BT_KV_LEFT ? got_left(link, frame) : got_room(link, frame);
}

/* ---- the link's life ---- */
void bt_kv_rooms_announce(bt_kv_link_t *link)
{
    bt_list_t *it, *tmp;

    bt_list_each (&link->ends, it, tmp)
        bt_kv_receiver_announce(link->agent, bt_container_of(it, bt_kv_end_t, on_link));
}

bool bt_kv_rooms_are_quiet(const bt_kv_link_t *link)
{
    for (bt_list_t *it = link->ends.next; it != &link->ends; it = it->next)
        if (!bt_container_of(it, bt_kv_end_t, on_link)->is_quiet)
            return false;
    return true;
}

void bt_kv_rooms_lost(bt_kv_link_t *link)
{
    bt_kv_agent_t *agent = link->agent;
    bt_list_t *it, *tmp;

    bt_list_each (&link->ends, it, tmp) {
        bt_kv_end_t *end = bt_container_of(it, bt_kv_end_t, on_link);
        if (end->room == NULL)
            bt_kv_end_free(agent, end);
        else if (!end->is_dropped &&
                 !bt_kv_gateways_orphans(agent, end, link->broken_rc, link->broken_why))
            bt_kv_room_fail(agent, end->room, link->broken_rc, "%s", link->broken_why);
    }
}

static bool all_drained(const bt_kv_link_t *link, bool *is_expired_p)
{
    bool all = true;

    for (bt_list_t *it = link->ends.next; it != &link->ends; it = it->next) {
        const bt_kv_end_t *end = bt_container_of(it, bt_kv_end_t, on_link);
        bool is_drained = end->is_drained || end->is_quiet;
        all &= is_drained;
        *is_expired_p |= end->is_expired && !is_drained;
    }
    return all;
}

/* True: this end's pages are out of everybody's reach. */
static bool is_out_of_reach(const bt_kv_link_t *link, const bt_kv_end_t *end, bool is_revoked)
{
    return end->is_quiet ||
           (end->is_drained && (is_revoked || link->is_peer_drained || end->is_expired));
}

bool bt_kv_rooms_leave(bt_kv_link_t *link)
{
    bt_kv_agent_t *agent = link->agent;
    bool is_forced = false;
    bool is_drained = all_drained(link, &is_forced);
    bt_list_t *it, *tmp;

    if (!is_drained && !is_forced)
        return false;
    const bt_kv_backend_ops_t *ops =
        agent->backends[link->path_index] != NULL ? agent->backends[link->path_index]->ops : NULL;
    bool is_revoked =
        ops == NULL || ops->close_revokes || (link->path != NULL && ops->peer_is_dead(link->path));
    if (is_revoked || is_forced)
        bt_kv_link_close_path(link);
    bt_list_each (&link->ends, it, tmp) {
        bt_kv_end_t *end = bt_container_of(it, bt_kv_end_t, on_link);
        end->is_drained |= link->path == NULL;
        if (!is_out_of_reach(link, end, is_revoked))
            continue;
        bt_kv_end_set_quiet(agent, end);
        bt_list_remove(&end->on_link);
        end->link = NULL;
    }
    return bt_list_empty(&link->ends);
}
