/* end.h - one side of a room on one link, and how it falls silent.
 *
 * Owner: the room (or the agent, while an announcement waits for its bt_kv_send_open); it is in its link's list until it is quiet.
 * Life:  new -> (announced) -> moving -> over: either done, or aborted -> drained -> acknowledged by the other side = quiet -> free.
 * Flow:  both sides run the same steps. Who fails first sends ABORT; each side drops what waits, drains what moves, then sends ABORT_ACK. An end is
 *        quiet when its own side has drained and the other has acknowledged, or cannot reach us (any more: see link.h; or ever: backend.h, is_pulled).
 * Cost:  O(1) a step; an abort looks through the lane once.
 */
#ifndef BT_TRANSPORT_END_H
#define BT_TRANSPORT_END_H

#include "transport/agent/agent.h"

struct bt_kv_end {
    bt_list_t on_link, on_room, draining, order; /* order: agent's early_order, free_ends */
    bt_map_entry_t by_tag,
        by_room; /* sender's: in agent->ends; in agent->early while room is NULL */
    struct bt_kv_room *room;
    bt_kv_link_t *link; /* NULL: gone */
    uint64_t tag;       /* the receiver's handle: what the room is called on this link */
    bool is_sender, is_announced,
        is_done; /* done: receiver's last note came; sender: its DONE came */
    bool is_over, is_abort_got, is_drained, is_ack_sent, is_ack_got, is_expired, is_quiet;
    bool is_dropped; /* receiver: the room has gone on to another sender (room_command.c) */
    bt_kv_slice_t slice;
    uint32_t page_count, prefix_pages;
    uint64_t units, units_wanted; /* pages * buffers: so far, and all */
    /* sender */
    struct bt_kv_layout *layout; /* the receiver's */
    uint32_t *pages;
    uint32_t pages_room;
    bt_kv_piece_t pieces[BT_KV_PIECES_MAX];
    uint32_t piece_count;
    uint32_t items, parts; /* chunks in the lane; batches with the back end */
    uint64_t arrived_us;
    bool is_last_posted;
    /* receiver */
    uint64_t sum, sum_wanted; /* of what came, whatever the order; see receiver.c */
    bool is_last_got;
};

/* NULL: out of memory. */
bt_kv_end_t *bt_kv_end_new(bt_kv_agent_t *agent, bt_kv_link_t *link, uint64_t tag, bool is_sender);
void bt_kv_end_attach(bt_kv_end_t *end, struct bt_kv_room *room);
void bt_kv_end_free(bt_kv_agent_t *agent, bt_kv_end_t *end);
void bt_kv_end_body_free(bt_kv_end_t *end);
bt_kv_end_t *bt_kv_end_by_tag(const bt_kv_agent_t *agent, const bt_kv_link_t *link, uint64_t tag);
/* The room has failed: the other side hears it, this side begins to drain. */
void bt_kv_end_abort(bt_kv_agent_t *agent, bt_kv_end_t *end, int rc, const char *reason);
/* The other side needs no acknowledgement any more, or has given it. */
void bt_kv_end_set_quiet(bt_kv_agent_t *agent, bt_kv_end_t *end);
void bt_kv_end_acked(bt_kv_agent_t *agent, bt_kv_end_t *end);
/* A dropped end of which nothing more is said on its link, which may carry a later one of the same tag. */
bool bt_kv_end_is_past(const bt_kv_end_t *end);
/* A turn's look at the ends that drain; things done. */
int bt_kv_ends_drain(bt_kv_agent_t *agent);
/* Tells a receiver that has no room here that it has failed, and forgets it. */
void bt_kv_end_refuse(bt_kv_agent_t *agent, bt_kv_end_t *end, int rc, const char *reason);

#endif
