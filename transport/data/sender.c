/* A sender's room waits for its receivers' announcements, which may come before the room does: those wait in `early`, at most max_rooms of them, for
 * bootstrap_ms. A room that fails before all receivers have come leaves a tombstone that tells the late ones, one each: without it a decode would wait for
 * a prefill that has given up. A receiver that gives up before the room is opened leaves one, too.
 *
 * Chunks that come before WaitingForInput wait in the room; then they go to the lanes of all receivers, one item each.
 */
#include "transport/control/link.h"
#include "transport/data/end.h"
#include "transport/data/lane.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define RECEIVERS_MAX 4096u

/* ---- jobs ---- */
static bt_kv_job_t *new_job(bt_kv_agent_t *agent, const bt_kv_chunk_t *chunk)
{
    bt_kv_job_t *job;

    if (bt_list_empty(&agent->free_jobs)) {
        job = calloc(1, sizeof(*job));
        if (job == NULL)
            return NULL;
    } else {
        job = bt_container_of(agent->free_jobs.next, bt_kv_job_t, link);
        bt_list_remove(&job->link);
    }
    bt_list_init(&job->link);
    job->refs = 1;
    if (job->pages_room < chunk->page_count) {
        uint32_t *pages = realloc(job->pages, chunk->page_count * sizeof(*pages));
        if (pages == NULL) {
            bt_kv_job_unref(agent, job);
            return NULL;
        }
        job->pages = pages;
        job->pages_room = chunk->page_count;
    }
    job->chunk = *chunk;
    job->chunk.pages = job->pages;
    if (chunk->page_count > 0)
        memcpy(job->pages, chunk->pages, chunk->page_count * sizeof(*job->pages));
    return job;
}

void bt_kv_job_unref(bt_kv_agent_t *agent, bt_kv_job_t *job)
{
    if (--job->refs > 0)
        return;
    bt_list_remove(&job->link);
    bt_list_push_front(&agent->free_jobs, &job->link);
}

/* ---- receivers ---- */
/* What is wrong between the two layouts; false: nothing. */
static bool find_mismatch(const struct bt_kv_layout *ours, const bt_kv_end_t *end, char *why,
                          size_t size)
{
    const struct bt_kv_layout *theirs = end->layout;
    bt_kv_cut_t cut = bt_kv_cut_src(&end->slice);

    if (ours->count != theirs->count) {
        snprintf(why, size,
                 "different numbers of buffers, %u at the sender and %u at the receiver: both need "
                 "the same model and pipeline-parallel size",
                 ours->count, theirs->count);
        return true;
    }
    if (!bt_kv_cut_fits(&cut, ours)) {
        snprintf(why, size,
                 "the slice asks for %u rows of %u bytes, the sender's pages have %" PRIu64
                 " bytes: both need the same heads and block size",
                 cut.rows, cut.row, ours->buffers[0].bytes);
        return true;
    }
    for (uint32_t i = 0; cut.rows == 0 && i < ours->count; i++)
        if (ours->buffers[i].bytes != theirs->buffers[i].bytes) {
            snprintf(why, size,
                     "pages of different sizes, %" PRIu64 " bytes at the sender and %" PRIu64
                     " at the receiver (buffer %u), and no slice: both need the same block size, "
                     "dtype and tensor-parallel size",
                     ours->buffers[i].bytes, theirs->buffers[i].bytes, i);
            return true;
        }
    return false;
}

static void enqueue(bt_kv_agent_t *agent, struct bt_kv_room *room, bt_kv_job_t *job)
{
    const bt_kv_chunk_t *chunk = &job->chunk;
    bt_list_t *it, *tmp;

    bt_list_each (&room->ends, it, tmp) {
        bt_kv_end_t *end = bt_container_of(it, bt_kv_end_t, on_room);
        if (chunk->page_count > 0 && chunk->first + chunk->page_count > end->page_count) {
            bt_kv_room_fail(agent, room, BT_E_INVAL,
                            "a chunk reaches to page %u, %s announced %u pages",
                            chunk->first + chunk->page_count, end->link->peer, end->page_count);
            return;
        }
        if (bt_kv_lane_add(agent, end, job) != 0) {
            bt_kv_room_fail(agent, room, BT_E_NOMEM, "out of memory");
            return;
        }
    }
    bt_kv_room_advance(agent, room, BT_KV_TRANSFERRING);
    bt_kv_room_touch(agent, room);
}

static void send_dummy(bt_kv_agent_t *agent, struct bt_kv_room *room, bool is_last)
{
    bt_kv_room_advance(agent, room, BT_KV_TRANSFERRING);
    bt_kv_room_touch(agent, room);
    if (is_last)
        bt_kv_room_advance(agent, room, BT_KV_SUCCESS);
}

static void become_ready(bt_kv_agent_t *agent, struct bt_kv_room *room)
{
    bt_kv_room_advance(agent, room, BT_KV_WAITING_FOR_INPUT);
    while (!bt_list_empty(&room->jobs)) {
        bt_kv_job_t *job = bt_container_of(room->jobs.next, bt_kv_job_t, link);
        bt_list_remove(&job->link);
        room->job_count--;
        if (!bt_kv_room_is_over(room))
            enqueue(agent, room, job);
        bt_kv_job_unref(agent, job);
    }
    /* The next turn pumps: an announcement is no place to call back ends from. */
    for (bt_list_t *it = room->ends.next; it != &room->ends; it = it->next)
        bt_kv_link_want(bt_container_of(it, bt_kv_end_t, on_room)->link);
}

/* Whoever comes is needed no more: what was kept is not sent. */
static void become_dummy(bt_kv_agent_t *agent, struct bt_kv_room *room)
{
    room->is_dummy = true;
    bt_kv_room_advance(agent, room, BT_KV_WAITING_FOR_INPUT);
    while (!bt_list_empty(&room->jobs)) {
        bt_kv_job_t *job = bt_container_of(room->jobs.next, bt_kv_job_t, link);
        bt_list_remove(&job->link);
        room->job_count--;
        send_dummy(agent, room, job->chunk.last);
        bt_kv_job_unref(agent, job);
    }
}

void bt_kv_sender_expect(bt_kv_agent_t *agent, struct bt_kv_room *room, uint32_t receivers)
{
    uint32_t came = room->end_count;

    room->receivers = receivers;
    if (came > receivers)
        bt_kv_room_fail(agent, room, BT_E_INVAL, "%u receivers have come, and %u are to", came,
                        receivers);
    else if (receivers == 0)
        become_dummy(agent, room);
    else if (came == receivers)
        become_ready(agent, room);
}

static void join(bt_kv_agent_t *agent, bt_kv_end_t *end, struct bt_kv_room *room)
{
    char why[200];

    bt_kv_end_attach(end, room);
    if (find_mismatch(room->layout, end, why, sizeof(why))) {
        bt_kv_room_fail(agent, room, BT_E_INVAL, "%s: %s", end->link->peer, why);
        return;
    }
    end->units_wanted = (uint64_t) (end->page_count - end->prefix_pages) * room->layout->count;
    room->stats.backend = 1u << end->link->path_index;
    if (room->end_count == room->receivers)
        become_ready(agent, room);
}

/* ---- announcements ---- */
static const char *check_announce(bt_kv_link_t *link, const bt_kv_announce_t *a,
                                  const struct bt_kv_layout *layout)
{
    bt_kv_cut_t cut = bt_kv_cut_dst(&a->slice);

    if (layout == NULL)
        return "an announcement with an unknown layout";
    if (!bt_kv_cut_fits(&cut, layout))
        return "an announcement with a slice outside its pages";
    for (uint32_t i = 0; i < a->page_count; i++)
        if (bt_kv_get_u32(a->pages + (size_t) i * 4) >= layout->pages)
            return "an announcement with pages outside its layout";
    for (uint32_t i = 0; i < a->piece_count; i++) {
        uint64_t size = bt_kv_link_region_size(link, a->pieces[i].region);
        uint64_t bytes = a->pieces[i].bytes;
        if (bytes > 0 &&
            (bytes > size || a->pieces[i].offset > size - bytes || bytes > UINT32_C(1) << 30))
            return "an announcement with a piece outside its region";
    }
    return NULL;
}

static bt_kv_end_t *end_from(bt_kv_agent_t *agent, bt_kv_link_t *link, const bt_kv_announce_t *a)
{
    bt_kv_end_t *end = bt_kv_end_new(agent, link, a->tag, true);

    if (end == NULL)
        return NULL;
    if (end->pages_room < a->page_count) {
        uint32_t *pages = realloc(end->pages, a->page_count * sizeof(*pages));
        if (pages == NULL) {
            bt_kv_end_free(agent, end);
            return NULL;
        }
        end->pages = pages;
        end->pages_room = a->page_count;
    }
    for (uint32_t i = 0; i < a->page_count; i++)
        end->pages[i] = bt_kv_get_u32(a->pages + (size_t) i * 4);
    end->layout = bt_kv_link_layout(link, a->layout);
    end->layout->refs++;
    end->is_announced = true;
    end->page_count = a->page_count;
    end->prefix_pages = a->prefix_pages;
    end->slice = a->slice;
    end->piece_count = a->piece_count;
    memcpy(end->pieces, a->pieces, sizeof(end->pieces));
    end->arrived_us = agent->now_us;
    return end;
}

static void add_tomb(bt_kv_agent_t *agent, const bt_kv_tomb_t *like, const char *reason)
{
    bt_kv_tomb_t *tomb = &agent->tombs[agent->tomb_at++ % BT_KV_TOMBS];

    *tomb = *like;
    tomb->until_us = agent->now_us + (uint64_t) agent->config.bootstrap_ms * 1000;
    bt_str_copy(tomb->reason, sizeof(tomb->reason), reason);
}

static bt_kv_tomb_t *find_tomb(bt_kv_agent_t *agent, uint64_t id, bool is_left)
{
    for (uint32_t i = 0; i < agent->tomb_at && i < BT_KV_TOMBS; i++)
        if (agent->tombs[i].id == id && agent->tombs[i].missing > 0 &&
            agent->tombs[i].is_left == is_left && agent->tombs[i].until_us > agent->now_us)
            return &agent->tombs[i];
    return NULL;
}

/* No open room of this id: refused by its tombstone, or kept. */
static void keep_early(bt_kv_agent_t *agent, bt_kv_end_t *end, uint64_t id)
{
    bt_kv_tomb_t *tomb = find_tomb(agent, id, false), *left = find_tomb(agent, id, true);

    if (left != NULL)
        left->missing = 0; /* it, or another, is back */
    if (tomb != NULL) {
        tomb->missing--;
        bt_kv_end_refuse(agent, end, tomb->rc, tomb->reason);
    } else if (agent->is_closing) {
        bt_kv_end_refuse(agent, end, BT_E_CANCELLED, "the agent closes");
    } else if (agent->early.count >= agent->config.max_rooms) {
        bt_kv_end_refuse(agent, end, BT_E_LIMIT,
                         "too many announcements wait for rooms that nobody has opened");
    } else {
        bt_map_put(&agent->early, &end->by_room, id);
        bt_list_push(&agent->early_order, &end->order);
    }
}

int bt_kv_sender_announced(bt_kv_agent_t *agent, bt_kv_link_t *link, const bt_kv_announce_t *frame,
                           const char **why_p)
{
    char text[80];

    *why_p = check_announce(link, frame, bt_kv_link_layout(link, frame->layout));
    bt_kv_end_t *old = bt_kv_end_by_tag(agent, link, frame->tag);
    if (old != NULL &&
        old->is_quiet) /* the receiver has come back to this agent for another room */
        bt_map_remove(&agent->ends, &old->by_tag);
    else if (*why_p == NULL && old != NULL)
        *why_p = "an announcement twice";
    if (*why_p != NULL)
        return BT_E_INVAL;
    bt_kv_end_t *end = end_from(agent, link, frame);
    if (end == NULL) {
        *why_p = "more than memory holds";
        return BT_E_NOMEM;
    }
    bt_map_entry_t *entry = bt_map_get(&agent->senders, frame->room);
    if (entry == NULL) {
        keep_early(agent, end, frame->room);
        return 0;
    }
    struct bt_kv_room *room = bt_container_of(entry, struct bt_kv_room, by_id);
    if (room->state == BT_KV_FAILED) {
        bt_kv_end_refuse(agent, end, room->rc, room->reason);
    } else if (room->is_dummy || room->end_count >= room->receivers) {
        snprintf(text, sizeof(text),
                 room->is_dummy ? "room %" PRIu64 " is a dummy here"
                                : "room %" PRIu64 " has all its receivers already",
                 room->id);
        bt_kv_end_refuse(agent, end, BT_E_INVAL, text);
    } else {
        join(agent, end, room);
    }
    return 0;
}

void bt_kv_sender_expire(bt_kv_agent_t *agent)
{
    while (!bt_list_empty(&agent->early_order)) {
        bt_kv_end_t *end = bt_container_of(agent->early_order.next, bt_kv_end_t, order);
        if (end->arrived_us + (uint64_t) agent->config.bootstrap_ms * 1000 > agent->now_us)
            return;
        bt_kv_end_refuse(agent, end, BT_E_FIRST_BYTE_TIMEOUT,
                         "the sender has not opened this room in time");
    }
}

/* ---- the room ---- */
void bt_kv_sender_check(bt_kv_agent_t *agent, struct bt_kv_room *room)
{
    if (room->state != BT_KV_TRANSFERRING)
        return;
    for (bt_list_t *it = room->ends.next; it != &room->ends; it = it->next) {
        const bt_kv_end_t *end = bt_container_of(it, bt_kv_end_t, on_room);
        if (!end->is_last_posted || !end->is_done || end->parts > 0 || end->items > 0)
            return;
    }
    bt_kv_room_advance(agent, room, BT_KV_SUCCESS);
}

void bt_kv_sender_failed(bt_kv_agent_t *agent, struct bt_kv_room *room)
{
    if (room->is_dummy || room->end_count >= room->receivers)
        return;
    bool is_known = room->receivers != BT_KV_RECEIVERS_OF_GATEWAY;
    bt_kv_tomb_t tomb = {.id = room->id,
                         .missing = (is_known ? room->receivers : RECEIVERS_MAX) - room->end_count,
                         .rc = room->rc};
    add_tomb(agent, &tomb, room->reason);
}

void bt_kv_sender_left(bt_kv_agent_t *agent, bt_kv_end_t *end, int rc, const char *reason)
{
    bt_kv_tomb_t tomb = {.id = end->by_room.key, .missing = 1, .is_left = true, .rc = rc};

    add_tomb(agent, &tomb, reason);
    bt_kv_end_free(agent, end);
}

void bt_kv_sender_missed(bt_kv_agent_t *agent, uint64_t id, int rc, const char *reason)
{
    bt_map_entry_t *entry = bt_map_get(&agent->senders, id);
    bt_kv_tomb_t tomb = {.id = id, .missing = 1, .is_left = true, .rc = rc};

    if (entry == NULL) {
        add_tomb(agent, &tomb, reason);
        return;
    }
    struct bt_kv_room *room = bt_container_of(entry, struct bt_kv_room, by_id);
    if (!room->is_dummy && room->end_count < room->receivers)
        bt_kv_room_fail(agent, room, rc, "%s", reason);
}

static void join_early(bt_kv_agent_t *agent, struct bt_kv_room *room)
{
    bt_map_entry_t *entry;

    while (room->end_count < room->receivers && !bt_kv_room_is_over(room) &&
           (entry = bt_map_get(&agent->early, room->id)) != NULL) {
        bt_kv_end_t *end = bt_container_of(entry, bt_kv_end_t, by_room);
        bt_map_remove(&agent->early, entry);
        bt_list_remove(&end->order);
        join(agent, end, room);
    }
    bt_kv_tomb_t *left = find_tomb(agent, room->id, true);
    if (left != NULL) {
        left->missing = 0;
        bt_kv_room_fail(agent, room, left->rc, "%s", left->reason);
    }
}

static int open_room(bt_kv_agent_t *agent, const bt_kv_send_spec_t *spec, bool is_dummy,
                     struct bt_kv_room **room_p)
{
    struct bt_kv_layout *layout = bt_kv_layout_find(agent, spec->layout);

    if ((layout == NULL && !is_dummy) || bt_map_get(&agent->senders, spec->room) != NULL)
        return BT_E_INVAL;
    int rc = bt_kv_room_new(agent, room_p);
    if (rc != 0)
        return rc;
    struct bt_kv_room *room = *room_p;
    bt_kv_tomb_t *tomb = find_tomb(agent, spec->room, false);
    if (tomb != NULL)
        tomb->missing = 0; /* the id is in use again */
    room->id = spec->room;
    room->is_sender = true;
    room->is_dummy = is_dummy;
    room->receivers = spec->receivers != 0 ? spec->receivers : 1;
    room->layout = layout;
    if (layout != NULL)
        layout->refs++;
    bt_map_put(&agent->senders, &room->by_id, room->id);
    bt_list_push(&agent->starting, &room->timer);
    return 0;
}

int bt_kv_send_open(bt_kv_agent_t *agent, const bt_kv_send_spec_t *spec, bt_kv_room_t *room_p)
{
    struct bt_kv_room *room;

    if (agent == NULL || spec == NULL || room_p == NULL || spec->room == 0 ||
        (spec->receivers > RECEIVERS_MAX && spec->receivers != BT_KV_RECEIVERS_OF_GATEWAY))
        return BT_E_INVAL;
    bt_kv_enter(agent);
    bool has_nobody = spec->receivers == BT_KV_RECEIVERS_OF_GATEWAY && agent->gateways == NULL;
    int rc = has_nobody && !agent->is_fake
                 ? BT_E_INVAL
                 : open_room(agent, spec, spec->dummy || agent->is_fake, &room);
    if (rc == 0) {
        *room_p = room->handle;
        if (agent->gateways != NULL)
            bt_kv_gateways_opened(agent, room);
        if (room->is_dummy)
            bt_kv_room_advance(agent, room, BT_KV_WAITING_FOR_INPUT);
        else
            join_early(agent, room);
    }
    bt_kv_leave(agent);
    return rc;
}

int bt_kv_send_wanted(bt_kv_agent_t *agent, bt_kv_room_t handle, uint32_t *page_count_p,
                      uint32_t *prefix_pages_p)
{
    uint32_t pages = 0, prefix = UINT32_MAX;

    if (agent == NULL)
        return BT_E_INVAL;
    bt_kv_enter(agent);
    const struct bt_kv_room *room = bt_kv_room_find(agent, handle);
    int rc = room == NULL || !room->is_sender     ? BT_E_INVAL
             : room->state == BT_KV_BOOTSTRAPPING ? BT_E_AGAIN
             : room->state == BT_KV_FAILED        ? BT_E_CANCELLED
                                                  : 0;
    for (bt_list_t *it = rc == 0 ? room->ends.next : NULL; rc == 0 && it != &room->ends;
         it = it->next) {
        const bt_kv_end_t *end = bt_container_of(it, bt_kv_end_t, on_room);
        pages = end->page_count > pages ? end->page_count : pages;
        prefix = end->prefix_pages < prefix ? end->prefix_pages : prefix;
    }
    bt_kv_leave(agent);
    if (rc == 0) {
        *page_count_p = pages;
        *prefix_pages_p = prefix != UINT32_MAX ? prefix : 0;
    }
    return rc;
}

/* ---- sending ---- */
static int check_chunk(bt_kv_agent_t *agent, const struct bt_kv_room *room, bt_kv_chunk_t *chunk)
{
    uint32_t buffers = room->layout != NULL ? room->layout->count : 0;

    if (room->has_last || (chunk->page_count == 0 && !chunk->last) ||
        (chunk->page_count > 0 && chunk->pages == NULL) || chunk->page_count > BT_KV_PAGES_MAX ||
        chunk->first > BT_KV_PAGES_MAX - chunk->page_count ||
        chunk->piece_count > BT_KV_PIECES_MAX || (chunk->piece_count > 0 && !chunk->last))
        return BT_E_INVAL;
    if (room->is_dummy)
        return 0;
    if (chunk->buffer_first > buffers || chunk->buffer_count > buffers - chunk->buffer_first)
        return BT_E_INVAL;
    if (chunk->buffer_count == 0)
        chunk->buffer_count = buffers - chunk->buffer_first;
    if (chunk->buffer_count == 0 && chunk->page_count > 0)
        return BT_E_INVAL;
    for (uint32_t i = 0; i < chunk->page_count; i++)
        if (chunk->pages[i] >= room->layout->pages)
            return BT_E_INVAL;
    for (uint32_t i = 0; i < chunk->piece_count; i++)
        if (bt_kv_piece_check(agent, &chunk->pieces[i]) != 0)
            return BT_E_INVAL;
    return 0;
}

static bool is_full(const bt_kv_agent_t *agent, const struct bt_kv_room *room)
{
    if (room->state == BT_KV_BOOTSTRAPPING)
        return room->job_count >= agent->config.lane_depth;
    for (bt_list_t *it = room->ends.next; it != &room->ends; it = it->next) {
        const bt_kv_end_t *end = bt_container_of(it, bt_kv_end_t, on_room);
        if (end->link->lane.item_count >= agent->config.lane_depth)
            return true;
    }
    return false;
}

static void pump_all(bt_kv_agent_t *agent, bt_kv_room_t handle)
{
    struct bt_kv_room *room = bt_kv_room_find(agent, handle);

    for (bt_list_t *it = room->ends.next; it != &room->ends; it = it->next) {
        bt_kv_end_t *end = bt_container_of(it, bt_kv_end_t, on_room);
        if (end->link != NULL)
            bt_kv_lane_pump(agent, end->link);
    }
}

static int send_chunk(bt_kv_agent_t *agent, struct bt_kv_room *room, bt_kv_chunk_t *chunk)
{
    int rc = check_chunk(agent, room, chunk);

    if (rc != 0)
        return rc;
    if (room->is_dummy) {
        room->has_last = chunk->last;
        send_dummy(agent, room, chunk->last);
        return 0;
    }
    if (is_full(agent, room))
        return BT_E_AGAIN;
    bt_kv_job_t *job = new_job(agent, chunk);
    if (job == NULL)
        return BT_E_NOMEM;
    room->has_last = chunk->last;
    room->piece_count = chunk->piece_count;
    for (uint32_t i = 0; i < chunk->piece_count; i++) { /* their regions stay as long as the room */
        room->pieces[i] = chunk->pieces[i];
        if (chunk->pieces[i].bytes > 0)
            bt_kv_mem_find(agent, chunk->pieces[i].region)->refs++;
    }
    agent->stats.chunks++;
    if (room->state == BT_KV_BOOTSTRAPPING) {
        bt_list_push(&room->jobs, &job->link);
        room->job_count++;
        return 0;
    }
    enqueue(agent, room, job);
    bt_kv_job_unref(agent, job);
    pump_all(agent, room->handle);
    return 0;
}

int bt_kv_send(bt_kv_agent_t *agent, bt_kv_room_t handle, const bt_kv_chunk_t *chunk)
{
    int rc = BT_E_INVAL;

    if (agent == NULL || chunk == NULL)
        return BT_E_INVAL;
    bt_kv_chunk_t copy = *chunk;
    bt_kv_enter(agent);
    struct bt_kv_room *room = bt_kv_room_find(agent, handle);
    if (room != NULL && room->is_sender && room->state == BT_KV_FAILED)
        rc = BT_E_CANCELLED;
    else if (room != NULL && room->is_sender && room->state != BT_KV_SUCCESS)
        rc = send_chunk(agent, room, &copy);
    bt_kv_leave(agent);
    return rc;
}
