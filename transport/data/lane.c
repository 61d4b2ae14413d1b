/* A chunk is cut into parts of at most PART_UNITS page-buffers. The cut follows the order in which coalescing looks for runs (coalesce.c), so that it
 * costs at most one merge per part: blocks of whole buffers, or blocks of pages where a page's buffers adjoin.
 *
 * A part leaves its item before it is posted, because a back end may end it, and with it fail the room, from inside post.
 */
#include "transport/data/lane.h"

#include "transport/agent/coalesce.h"
#include "transport/data/end.h"
#include "transport/wire/crc32c.h"

#include <stdlib.h>

#define PART_UNITS 4096u
#define POSTED_MAX 32u

typedef struct item {
    bt_list_t link;
    bt_kv_job_t *job;
    bt_kv_end_t *end;
    uint32_t page_begin, page_end; /* in job's pages; the receiver's prefix is left out */
    uint32_t buffer_end;
    uint32_t page, buffer; /* the next part begins here */
} item_t;

static void *take_free(bt_list_t *list)
{
    bt_list_t *first = list->next;

    if (first == list)
        return NULL;
    bt_list_remove(first);
    return first;
}

int bt_kv_lane_add(bt_kv_agent_t *agent, bt_kv_end_t *end, bt_kv_job_t *job)
{
    const bt_kv_chunk_t *chunk = &job->chunk;
    uint32_t skipped = end->prefix_pages > chunk->first ? end->prefix_pages - chunk->first : 0;

    if (skipped >= chunk->page_count && !chunk->last)
        return 0; /* all of it is there already */
    item_t *item = take_free(&agent->free_items);
    if (item == NULL)
        item = malloc(sizeof(*item));
    if (item == NULL)
        return BT_E_NOMEM;
    *item = (item_t){.job = job, .end = end, .page_end = chunk->page_count};
    item->page = item->page_begin = skipped < chunk->page_count ? skipped : chunk->page_count;
    item->buffer = chunk->buffer_first;
    item->buffer_end = chunk->buffer_first + chunk->buffer_count;
    job->refs++;
    end->items++;
    end->link->lane.item_count++;
    bt_list_push(&end->link->lane.items, &item->link);
    return 0;
}

static void free_item(bt_kv_agent_t *agent, item_t *item)
{
    item->end->items--;
    item->end->link->lane.item_count--;
    bt_kv_job_unref(agent, item->job);
    bt_list_remove(&item->link);
    bt_list_push_front(&agent->free_items, &item->link);
}

static void free_part(bt_kv_agent_t *agent, bt_kv_part_t *part)
{
    bt_list_push_front(&agent->free_parts, &part->link);
}

/* ---- making a part ---- */
static bt_kv_part_t *new_part(bt_kv_agent_t *agent, uint32_t run_room)
{
    bt_kv_part_t *part = take_free(&agent->free_parts);

    if (part == NULL)
        part = calloc(1, sizeof(*part));
    if (part == NULL)
        return NULL;
    bt_list_init(&part->link);
    if (part->run_room >= run_room)
        return part;
    bt_kv_run_t *runs = realloc(part->runs, run_room * sizeof(*runs));
    if (runs == NULL) {
        free_part(agent, part);
        return NULL;
    }
    part->runs = runs;
    part->run_room = run_room;
    return part;
}

/* The block [pages) x [buffers) that comes next; the item's cursor moves behind it. True: it was the last one. */
static bool next_block(item_t *item, bool is_page_major, uint32_t *pages_p, uint32_t *buffers_p)
{
    uint32_t pages = item->page_end - item->page;
    uint32_t buffers = item->buffer_end - item->buffer;
    uint32_t all_pages = item->page_end - item->page_begin;

    if (is_page_major || buffers == 0) {
        uint32_t most = buffers == 0 || buffers > PART_UNITS ? PART_UNITS : PART_UNITS / buffers;
        pages = pages < most ? pages : most;
    } else if (all_pages > PART_UNITS) {
        pages = pages < PART_UNITS ? pages : PART_UNITS;
        buffers = 1;
    } else if (all_pages > 0) {
        uint32_t most = PART_UNITS / all_pages;
        buffers = buffers < most ? buffers : most;
    }
    *pages_p = pages;
    *buffers_p = buffers;
    item->page += pages;
    if (item->page < item->page_end)
        return false;
    item->page = item->page_begin;
    item->buffer += buffers;
    return item->buffer >= item->buffer_end;
}

static uint8_t add_pieces(bt_kv_agent_t *agent, bt_kv_runs_t *runs, const bt_kv_end_t *end,
                          const bt_kv_chunk_t *chunk, uint32_t *crc)
{
    uint8_t mask = 0;

    for (uint32_t i = 0; i < chunk->piece_count && i < end->piece_count; i++) {
        const bt_kv_piece_t *from = &chunk->pieces[i], *to = &end->pieces[i];
        if (from->bytes == 0 || to->bytes == 0)
            continue;
        const bt_kv_mem_t *mem = bt_kv_mem_find(agent, from->region);
        bt_kv_runs_add(runs, mem, from->offset, to->region, to->offset, from->bytes);
        if (end->link->has_crc)
            *crc = bt_kv_crc32c(*crc, mem->p + from->offset, from->bytes);
        mask |= (uint8_t) (1u << i);
    }
    return mask;
}

/* Takes the next part from the lane's first item. */
static bt_kv_part_t *make_part(bt_kv_agent_t *agent, bt_kv_link_t *link)
{
    item_t *item = bt_container_of(link->lane.items.next, item_t, link);
    bt_kv_end_t *end = item->end;
    const bt_kv_chunk_t *chunk = &item->job->chunk;
    struct bt_kv_layout *layout = end->room->layout;
    uint32_t page = item->page, buffer = item->buffer, pages, buffers;
    bt_kv_part_t *part = new_part(agent, PART_UNITS + BT_KV_PIECES_MAX);

    if (part == NULL)
        return NULL;
    bool is_end =
        next_block(item, layout->is_page_major && end->layout->is_page_major, &pages, &buffers);
    bt_kv_side_t src = {layout, item->job->pages + page, bt_kv_cut_src(&end->slice)};
    bt_kv_side_t dst = {end->layout, end->pages + chunk->first + page, bt_kv_cut_dst(&end->slice)};
    bt_kv_runs_t runs = {.at = part->runs, .room = part->run_room};
    bt_kv_note_t note = {.tag = end->tag,
                         .first = chunk->first + page,
                         .page_count = pages,
                         .buffer_first = buffer,
                         .buffer_count = buffers,
                         .is_last = is_end && chunk->last,
                         .has_crc = link->has_crc && !layout->is_opaque};

    bt_kv_coalesce(&runs, &src, &dst, pages, buffer, buffers);
    if (note.has_crc)
        note.crc = bt_kv_part_crc(0, &src, pages, buffer, buffers);
    if (note.is_last)
        note.pieces = add_pieces(agent, &runs, end, chunk, &note.crc);
    part->end = end;
    part->units = (uint64_t) pages * buffers;
    part->is_last = note.is_last;
    end->units += part->units;
    note.units = end->units;
    note.bytes = runs.bytes;
    part->batch = (bt_kv_batch_t){.path = link->path,
                                  .tag = end->tag,
                                  .runs = part->runs,
                                  .run_count = runs.count,
                                  .bytes = runs.bytes};
    bt_list_init(&part->batch.link);
    part->batch.note_bytes = (uint32_t) bt_kv_note_encode(&note, part->batch.note);
    agent->stats.pages += part->units;
    agent->stats.descriptors += runs.count;
    end->room->stats.pages += part->units;
    end->room->stats.descriptors += runs.count;
    if (is_end)
        free_item(agent, item);
    return part;
}

/* ---- posting ---- */
/* False: no more now. */
static bool post(bt_kv_agent_t *agent, bt_kv_link_t *link, bt_kv_part_t *part)
{
    bt_kv_end_t *end = part->end;
    struct bt_kv_room *room = end->room;

    link->lane.posted++;
    end->parts++;
    end->is_last_posted |= part->is_last;
    int rc = link->path->backend->ops->post(link->path, &part->batch);
    if (rc == 0)
        return true; /* part and room may be history by now */
    link->lane.posted--;
    end->parts--;
    end->is_last_posted &= !part->is_last;
    if (rc == BT_E_AGAIN) {
        link->lane.stuck = part;
        if (link->lane.posted == 0)
            bt_kv_link_want(link); /* no end of a batch will come to remind us */
        return false;
    }
    free_part(agent, part);
    bt_kv_room_fail(agent, room, rc, "could not post to %s: %s", link->peer, bt_err_text(rc));
    return true;
}

void bt_kv_lane_pump(bt_kv_agent_t *agent, bt_kv_link_t *link)
{
    bt_kv_lane_t *lane = &link->lane;

    while (link->is_usable && bt_kv_link_is_live(link) && lane->posted < POSTED_MAX) {
        bt_kv_part_t *part = lane->stuck;
        lane->stuck = NULL;
        if (part == NULL && bt_list_empty(&lane->items))
            return;
        if (part == NULL)
            part = make_part(agent, link);
        if (part == NULL) {
            bt_kv_link_break(link, BT_E_NOMEM, "out of memory");
            return;
        }
        if (!post(agent, link, part))
            return;
    }
}

void bt_kv_batch_over(bt_kv_batch_t *batch, int rc)
{
    bt_kv_part_t *part = bt_container_of(batch, bt_kv_part_t, batch);
    bt_kv_end_t *end = part->end;
    bt_kv_link_t *link = end->link;
    bt_kv_agent_t *agent = link->agent;
    struct bt_kv_room *room = end->room;

    link->lane.posted--;
    end->parts--;
    if (!bt_list_empty(&link->lane.items) || link->lane.stuck != NULL)
        bt_kv_link_want(link);
    if (rc == 0) {
        link->bytes_sent += batch->bytes;
        agent->stats.bytes_sent += batch->bytes;
        room->stats.bytes += batch->bytes;
        bt_kv_room_touch(agent, room);
    }
    free_part(agent, part);
    if (bt_kv_room_is_over(room))
        return;
    if (rc == 0)
        bt_kv_sender_check(agent, room);
    else if (
        rc !=
        BT_E_CANCELLED) /* a cancelled one of a live room: the path closes, and its link says why */
        bt_kv_room_fail(agent, room, rc, "moving data to %s failed: %s", link->peer,
                        bt_err_text(rc));
}

void bt_kv_lane_drop(bt_kv_agent_t *agent, bt_kv_end_t *end)
{
    bt_list_t *it, *tmp;

    if (end->link == NULL)
        return;
    bt_kv_lane_t *lane = &end->link->lane;
    if (lane->stuck != NULL && lane->stuck->end == end) {
        free_part(agent, lane->stuck);
        lane->stuck = NULL;
    }
    if (end->items == 0)
        return;
    bt_list_each (&lane->items, it, tmp) {
        item_t *item = bt_container_of(it, item_t, link);
        if (item->end == end)
            free_item(agent, item);
    }
}

void bt_kv_lane_fini(bt_kv_agent_t *agent)
{
    bt_list_t *it;

    while ((it = take_free(&agent->free_parts)) != NULL) {
        bt_kv_part_t *part = bt_container_of(it, bt_kv_part_t, link);
        free(part->runs);
        free(part);
    }
    while ((it = take_free(&agent->free_items)) != NULL)
        free(bt_container_of(it, item_t, link));
}
