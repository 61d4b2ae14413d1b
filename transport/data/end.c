/* Quiet means: nobody on either side reads or writes pages of this room any more. Success makes an end quiet by itself (all bytes have come, the
 * receiver said so). After a failure it takes four facts, which may come in any order:
 *
 *     ABORT sent or got  ->  lane emptied  ->  drain() says true  ->  ABORT_ACK sent        (this side: is_drained)
 *                                                                     ABORT_ACK got         (the other side: is_ack_got)
 *
 * A receiver's DONE counts as its acknowledgement: it has stopped reading. Who does not know a tag any more acknowledges its ABORT at once.
 * A receiver that moves the bytes itself (is_pulled) needs no acknowledgement: a sender that stands still cannot keep its pages. Until it comes, the tag is not
 * used on that link again (is_past).
 */
#include "transport/data/end.h"

#include "transport/control/link.h"

#include <stdlib.h>

static uint64_t tag_key(const bt_kv_link_t *link, uint64_t tag)
{
    return tag ^ (uint64_t) link->id << 40;
}

bt_kv_end_t *bt_kv_end_new(bt_kv_agent_t *agent, bt_kv_link_t *link, uint64_t tag, bool is_sender)
{
    bt_kv_end_t *end;
    uint32_t *pages = NULL, pages_room = 0;

    if (bt_list_empty(&agent->free_ends)) {
        end = malloc(sizeof(*end));
        if (end == NULL)
            return NULL;
    } else {
        end = bt_container_of(agent->free_ends.next, bt_kv_end_t, order);
        bt_list_remove(&end->order);
        pages = end->pages;
        pages_room = end->pages_room;
    }
    *end = (bt_kv_end_t){
        .link = link, .tag = tag, .is_sender = is_sender, .pages = pages, .pages_room = pages_room};
    bt_list_init(&end->on_room);
    bt_list_init(&end->draining);
    bt_list_init(&end->order);
    bt_list_init(&end->by_room.link);
    bt_list_init(&end->by_tag.link);
    bt_list_init(&end->on_link);
    bt_list_push(&link->ends, &end->on_link);
    if (is_sender)
        bt_map_put(&agent->ends, &end->by_tag, tag_key(link, tag));
    return end;
}

void bt_kv_end_attach(bt_kv_end_t *end, struct bt_kv_room *room)
{
    end->room = room;
    bt_list_push(&room->ends, &end->on_room);
    room->end_count++;
    room->noisy_ends++;
}

void bt_kv_end_body_free(bt_kv_end_t *end)
{
    free(end->pages);
    free(end);
}

void bt_kv_end_free(bt_kv_agent_t *agent, bt_kv_end_t *end)
{
    if (end->is_sender)
        bt_map_remove(&agent->ends, &end->by_tag);
    if (!bt_list_empty(&end->by_room.link))
        bt_map_remove(&agent->early, &end->by_room);
    if (end->layout != NULL)
        bt_kv_peer_layout_unref(end->layout);
    bt_list_remove(&end->order);
    bt_list_remove(&end->on_room);
    bt_list_remove(&end->on_link);
    bt_list_remove(&end->draining);
    bt_list_push_front(&agent->free_ends, &end->order);
}

bt_kv_end_t *bt_kv_end_by_tag(const bt_kv_agent_t *agent, const bt_kv_link_t *link, uint64_t tag)
{
    uint64_t key = tag_key(link, tag);
    bt_list_t *bucket = bt_map_bucket(&agent->ends, key);

    for (bt_list_t *it = bucket->next; it != bucket; it = it->next) {
        bt_kv_end_t *end = bt_container_of(it, bt_kv_end_t, by_tag.link);
        if (end->tag == tag && end->link == link)
            return end;
    }
    return NULL;
}

void bt_kv_end_set_quiet(bt_kv_agent_t *agent, bt_kv_end_t *end)
{
    if (end->is_quiet)
        return;
    end->is_quiet = end->is_over = true;
    bt_list_remove(&end->draining);
    if (end->link != NULL && end->link->state == BT_KV_LINK_LOST)
        bt_kv_link_want(end->link);
    if (end->room != NULL && --end->room->noisy_ends == 0 && bt_kv_room_is_over(end->room))
        bt_list_remove(&end->room->timer);
    (void) agent;
}

static bool is_pulled(const bt_kv_agent_t *agent, const bt_kv_end_t *end)
{
    if (end->is_sender || end->link == NULL)
        return false;
    const bt_kv_backend_t *backend = agent->backends[end->link->path_index];
    return backend != NULL && backend->ops->is_pulled;
}

static void check_quiet(bt_kv_agent_t *agent, bt_kv_end_t *end)
{
    if (end->is_drained && (end->is_ack_got || is_pulled(agent, end)))
        bt_kv_end_set_quiet(agent, end);
}

bool bt_kv_end_is_past(const bt_kv_end_t *end)
{
    return end->is_quiet && (end->is_ack_got || !end->is_announced);
}

void bt_kv_end_acked(bt_kv_agent_t *agent, bt_kv_end_t *end)
{
    end->is_ack_got = true;
    check_quiet(agent, end);
}

static void tell(bt_kv_end_t *end, enum bt_kv_frame_type type, int rc, const char *reason)
{
    if (!bt_kv_link_is_live(end->link))
        return;
    bt_kv_put_room(&end->link->out, type, end->tag, rc, bt_str(reason));
    bt_kv_link_send(end->link);
}

void bt_kv_end_abort(bt_kv_agent_t *agent, bt_kv_end_t *end, int rc, const char *reason)
{
    if (end->is_over)
        return;
    end->is_over = true;
    if (end->is_sender)
        bt_kv_lane_drop(agent, end);
    if (!end->is_announced) {
        bt_kv_link_send_left(end->link, end->room->source_room, rc, reason);
        bt_kv_end_set_quiet(agent, end);
        return;
    }
    if (!end->is_abort_got)
        tell(end, BT_KV_ABORT, rc, reason);
    end->is_ack_got |= end->is_sender && end->is_done;
    bt_list_push(&agent->draining, &end->draining);
    agent->has_work = true;
}

static bool is_drained(bt_kv_end_t *end)
{
    bt_kv_path_t *path = end->link != NULL ? end->link->path : NULL;

    if (path != NULL && !path->backend->ops->drain(path, end->tag))
        return false;
    return end->parts == 0;
}

int bt_kv_ends_drain(bt_kv_agent_t *agent)
{
    int done = 0;
    bt_list_t *it, *tmp;

    bt_list_each (&agent->draining, it, tmp) {
        bt_kv_end_t *end = bt_container_of(it, bt_kv_end_t, draining);
        if (!is_drained(end))
            continue;
        bt_list_remove(it);
        end->is_drained = true;
        done++;
        if (!end->is_ack_sent)
            tell(end, BT_KV_ABORT_ACK, 0, "");
        end->is_ack_sent = true;
        check_quiet(agent, end);
        if (end->link != NULL && end->link->state == BT_KV_LINK_LOST)
            bt_kv_link_want(end->link);
    }
    return done;
}

void bt_kv_end_refuse(bt_kv_agent_t *agent, bt_kv_end_t *end, int rc, const char *reason)
{
    tell(end, BT_KV_ABORT, rc, reason);
    tell(end, BT_KV_ABORT_ACK, 0, "");
    bt_kv_end_free(agent, end);
}
