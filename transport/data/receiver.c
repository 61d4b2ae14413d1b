/* A receiver's room trusts nobody with its pages: a destination is given out only inside what it announced, to the link it announced it to, while it is
 * live. And it trusts no count: besides the number of page-buffers, each source's notes are summed up as mix(page) * mix(buffer) over all that they brought.
 * The sum does not depend on their order, and only the announced pages, each once for each buffer, give the right one.
 */
#include "transport/agent/coalesce.h"
#include "transport/agent/pages.h"
#include "transport/control/link.h"
#include "transport/data/end.h"
#include "transport/wire/crc32c.h"

#include <inttypes.h>
#include <stdlib.h>

/* ---- what has come ---- */
static uint64_t mix(uint64_t x)
{
    x = (x + 1) * UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

static uint64_t mix_range(uint64_t first, uint64_t end)
{
    uint64_t sum = 0;

    for (uint64_t i = first; i < end; i++)
        sum += mix(i);
    return sum;
}

#define BUFFERS_FROM (UINT64_C(1) << 32)

static uint64_t mix_block(uint32_t first, uint32_t pages, uint32_t buffer, uint32_t buffers)
{
    return mix_range(first, (uint64_t) first + pages) *
           mix_range(BUFFERS_FROM + buffer, BUFFERS_FROM + buffer + buffers);
}

/* ---- opening ---- */
/* Pages by number, for look-ups; no page may be there twice. */
static int sort_pages(struct bt_kv_room *room)
{
    uint32_t n = room->page_count - room->prefix_pages;

    room->sorted_count = n;
    room->next_page = room->prefix_pages;
    if (n == 0)
        return 0;
    memcpy(room->sorted, room->pages + room->prefix_pages, n * sizeof(*room->sorted));
    return bt_kv_pages_sort(room->sorted, room->sorted + n, n) ? 0 : BT_E_INVAL;
}

static int take_pages(struct bt_kv_room *room, const bt_kv_recv_t *recv)
{
    uint32_t n = recv->page_count;

    if (room->pages_room < n) {
        uint32_t *pages = realloc(room->pages, n * sizeof(*pages));
        if (pages != NULL)
            room->pages = pages;
        uint32_t *sorted =
            pages != NULL ? realloc(room->sorted, (size_t) n * 2 * sizeof(*sorted)) : NULL;
        if (sorted == NULL)
            return BT_E_NOMEM;
        room->sorted = sorted;
        room->pages_room = n;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (recv->pages[i] >= room->layout->pages)
            return BT_E_INVAL;
        room->pages[i] = recv->pages[i];
    }
    room->page_count = n;
    room->prefix_pages = recv->prefix_pages;
    return sort_pages(room);
}

static int add_source(bt_kv_agent_t *agent, struct bt_kv_room *room, const bt_kv_source_t *source)
{
    bt_kv_link_t *link;
    uint64_t count = room->layout->count, pages = room->page_count - room->prefix_pages;
    bt_kv_cut_t cut = bt_kv_cut_dst(&source->slice), from = bt_kv_cut_src(&source->slice);

    if (source->host == NULL || !bt_kv_cut_fits(&cut, room->layout) ||
        (from.rows > 0 && (uint64_t) from.offset + from.bytes > from.row))
        return BT_E_INVAL;
    int rc = bt_kv_link_to(agent, source->host, source->port, &link);
    if (rc != 0)
        return rc;
    for (bt_list_t *it = room->ends.next; it != &room->ends; it = it->next) {
        const bt_kv_end_t *other = bt_container_of(it, bt_kv_end_t, on_room);
        if (other->link == link && !other->is_dropped)
            return BT_E_INVAL; /* the same source twice */
        if (other->link == link && !bt_kv_end_is_past(other))
            return BT_E_AGAIN;
    }
    bt_kv_end_t *end = bt_kv_end_new(agent, link, room->handle, false);
    if (end == NULL)
        return BT_E_NOMEM;
    end->slice = source->slice;
    end->units_wanted = pages * count;
    end->sum_wanted = room->sum_wanted;
    bt_kv_end_attach(end, room);
    return 0;
}

static int check_recv(bt_kv_agent_t *agent, const bt_kv_recv_t *recv)
{
    uint32_t real = 0;

    if (bt_kv_layout_find(agent, recv->layout) == NULL)
        return BT_E_INVAL;
    for (uint32_t i = 0; i < recv->source_count; i++)
        real += !recv->sources[i].dummy;
    if (real == 0 && !agent->is_fake && (recv->source_count > 0 || agent->gateways == NULL))
        return BT_E_INVAL;
    for (uint32_t i = 0; i < recv->piece_count; i++)
        if (bt_kv_piece_check(agent, &recv->pieces[i]) != 0)
            return BT_E_INVAL;
    return 0;
}

static int fill_room(bt_kv_agent_t *agent, struct bt_kv_room *room, const bt_kv_recv_t *recv)
{
    room->id = room->source_room = recv->room;
    room->wants_source = recv->source_count == 0 && !agent->is_fake;
    room->layout = bt_kv_layout_find(agent, recv->layout);
    room->layout->refs++;
    room->piece_count = recv->piece_count;
    for (uint32_t i = 0; i < recv->piece_count; i++) {
        room->pieces[i] = recv->pieces[i];
        if (recv->pieces[i].bytes > 0)
            bt_kv_mem_find(agent, recv->pieces[i].region)->refs++;
    }
    int rc = take_pages(room, recv);
    room->sum_wanted = mix_block(room->prefix_pages, room->page_count - room->prefix_pages, 0,
                                 room->layout->count);
    for (uint32_t i = 0; rc == 0 && !agent->is_fake && i < recv->source_count; i++)
        if (!recv->sources[i].dummy)
            rc = add_source(agent, room, &recv->sources[i]);
    return rc;
}

static void announce_when_usable(bt_kv_agent_t *agent, bt_kv_end_t *end)
{
    if (end->link->is_usable)
        bt_kv_receiver_announce(agent, end);
    else
        agent->has_work = true; /* a broken one is looked at in the next turn */
}

static void start(bt_kv_agent_t *agent, struct bt_kv_room *room)
{
    bt_list_push(&agent->starting, &room->timer);
    for (enum bt_kv_state s = BT_KV_WAITING_FOR_INPUT; agent->is_fake && s <= BT_KV_SUCCESS; s++)
        bt_kv_room_advance(agent, room, s);
    if (agent->gateways != NULL)
        bt_kv_gateways_opened(agent, room);
    for (bt_list_t *it = room->ends.next; it != &room->ends; it = it->next)
        announce_when_usable(agent, bt_container_of(it, bt_kv_end_t, on_room));
}

int bt_kv_receiver_attach(bt_kv_agent_t *agent, struct bt_kv_room *room,
                          const bt_kv_source_t *source)
{
    return add_source(agent, room, source);
}

void bt_kv_receiver_attached(bt_kv_agent_t *agent, struct bt_kv_room *room)
{
    for (bt_list_t *it = room->ends.next; it != &room->ends; it = it->next) {
        bt_kv_end_t *end = bt_container_of(it, bt_kv_end_t, on_room);
        if (!end->is_dropped)
            announce_when_usable(agent, end);
    }
}

void bt_kv_receiver_drop(bt_kv_agent_t *agent, bt_kv_end_t *end, int rc, const char *reason)
{
    struct bt_kv_room *room = end->room;

    end->is_dropped = true;
    room->end_count--;
    if (end->is_announced)
        room->announced_ends--;
    bt_kv_end_abort(agent, end, rc, reason);
}

int bt_kv_recv_open(bt_kv_agent_t *agent, const bt_kv_recv_t *recv, bt_kv_room_t *room_p)
{
    struct bt_kv_room *room;

    if (agent == NULL || recv == NULL || room_p == NULL || recv->room == 0 ||
        recv->page_count > BT_KV_PAGES_MAX || (recv->page_count > 0 && recv->pages == NULL) ||
        recv->prefix_pages > recv->page_count || recv->piece_count > BT_KV_PIECES_MAX ||
        (recv->source_count > 0 && recv->sources == NULL) || recv->source_count > 4096)
        return BT_E_INVAL;
    bt_kv_enter(agent);
    int rc = check_recv(agent, recv);
    if (rc == 0)
        rc = bt_kv_room_new(agent, &room);
    if (rc == 0) {
        rc = fill_room(agent, room, recv);
        if (rc == 0) {
            *room_p = room->handle;
            start(agent, room);
        } else {
            bt_kv_room_free(agent, room);
        }
    }
    bt_kv_leave(agent);
    return rc;
}

void bt_kv_receiver_announce(bt_kv_agent_t *agent, bt_kv_end_t *end)
{
    struct bt_kv_room *room = end->room;

    if (end->is_announced || end->is_over || bt_kv_room_is_over(room))
        return;
    bt_kv_announce_t frame = {.tag = end->tag,
                              .room = room->source_room,
                              .layout = room->layout->id,
                              .prefix_pages = room->prefix_pages,
                              .page_count = room->page_count,
                              .slice = end->slice,
                              .piece_count = room->piece_count};
    memcpy(frame.pieces, room->pieces, sizeof(frame.pieces));
    bt_kv_put_announce(&end->link->out, &frame, room->pages);
    bt_kv_link_send(end->link);
    end->is_announced = true;
    room->stats.backend = 1u << end->link->path_index;
    if (++room->announced_ends < room->end_count)
        return;
    bt_kv_room_advance(agent, room, BT_KV_WAITING_FOR_INPUT);
    if (room->has_moved)
        bt_kv_room_advance(agent, room, BT_KV_TRANSFERRING);
}

/* ---- destinations ---- */
static bt_kv_end_t *end_on(const struct bt_kv_room *room, const bt_kv_link_t *link)
{
    for (bt_list_t *it = room->ends.next; it != &room->ends; it = it->next) {
        bt_kv_end_t *end = bt_container_of(it, bt_kv_end_t, on_room);
        if (end->link == link && end->is_announced && !end->is_dropped)
            return end;
    }
    return NULL;
}

/* A sender that this room had once. */
static bool has_dropped(const struct bt_kv_room *room, const bt_kv_link_t *link)
{
    for (bt_list_t *it = room->ends.next; it != &room->ends; it = it->next) {
        const bt_kv_end_t *end = bt_container_of(it, bt_kv_end_t, on_room);
        if (end->link == link && end->is_dropped)
            return true;
    }
    return false;
}

static void moved(bt_kv_agent_t *agent, struct bt_kv_room *room)
{
    room->has_moved = true;
    if (room->state == BT_KV_WAITING_FOR_INPUT)
        bt_kv_room_advance(agent, room, BT_KV_TRANSFERRING);
    bt_kv_room_touch(agent, room);
}

static bool is_in_buffer(const struct bt_kv_layout *layout, uint32_t i, bt_kv_region_t region,
                         uint64_t offset)
{
    const bt_kv_buffer_t *b = &layout->buffers[i];

    return b->region == region && offset >= b->offset &&
           (offset - b->offset) / b->stride < layout->pages &&
           (offset - b->offset) % b->stride < b->bytes;
}

/* The buffer that an offset lies in; most often the one found last, or the next. */
static const bt_kv_buffer_t *buffer_at(struct bt_kv_room *room, bt_kv_region_t region,
                                       uint64_t offset)
{
    const struct bt_kv_layout *layout = room->layout;
    uint32_t last = room->last_buffer, n = layout->count;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = last + i < n ? last + i : last + i - n;
        if (!is_in_buffer(layout, at, region, offset))
            continue;
        room->last_buffer = at;
        return &layout->buffers[at];
    }
    return NULL;
}

/* Senders go through the prompt in its order, buffer by buffer: what is asked for is most often what comes next there. */
static bool are_next(struct bt_kv_room *room, uint32_t first, uint32_t last)
{
    uint32_t at = room->next_page, n = last - first;

    if (at == room->page_count || room->pages[at] != first)
        at = room->prefix_pages;
    if (n >= room->page_count - at)
        return false;
    for (uint32_t i = 0; i <= n; i++)
        if (room->pages[at + i] != first + i)
            return false;
    room->next_page = at + n + 1;
    return true;
}

/* Are pages first..last all announced? They are distinct and sorted, so that two look-ups tell. */
static bool has_pages(const struct bt_kv_room *room, uint32_t first, uint32_t last)
{
    uint32_t low = 0, high = room->sorted_count;

    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (room->sorted[middle] < first)
            low = middle + 1;
        else
            high = middle;
    }
    return low < room->sorted_count && room->sorted[low] == first &&
           last - first < room->sorted_count - low && room->sorted[low + last - first] == last;
}

/* Bytes from offset on that lie in announced pages of one buffer, without a gap; 0 = none. */
static uint64_t open_bytes(struct bt_kv_room *room, bt_kv_region_t region, uint64_t offset,
                           uint64_t bytes)
{
    const bt_kv_buffer_t *b = buffer_at(room, region, offset);

    if (b == NULL)
        return 0;
    uint64_t page = (offset - b->offset) / b->stride, in = (offset - b->offset) % b->stride;
    uint64_t last = page, reach = b->bytes - in;
    if (bytes > reach && b->stride == b->bytes) {
        last = page + (in + bytes - 1) / b->stride;
        if (last >= room->layout->pages)
            last = room->layout->pages - 1;
        reach = (last - page + 1) * b->stride - in;
    }
    if (!are_next(room, (uint32_t) page, (uint32_t) last) &&
        !has_pages(room, (uint32_t) page, (uint32_t) last))
        return 0;
    return bytes < reach ? bytes : reach;
}

static bool is_piece(const struct bt_kv_room *room, bt_kv_region_t region, uint64_t offset,
                     uint64_t bytes)
{
    for (uint32_t i = 0; i < room->piece_count; i++) {
        const bt_kv_piece_t *piece = &room->pieces[i];
        if (piece->region == region && offset >= piece->offset && bytes <= piece->bytes &&
            offset - piece->offset <= piece->bytes - bytes)
            return true;
    }
    return false;
}

char *bt_kv_destination(bt_kv_path_t *path, uint64_t tag, bt_kv_region_t region, uint64_t offset,
                        uint64_t bytes)
{
    bt_kv_agent_t *agent = path->link->agent;
    struct bt_kv_room *room = bt_kv_room_find(agent, tag);
    bt_kv_mem_t *mem = bt_kv_mem_find(agent, region);
    uint64_t at = offset, left = bytes;

    if (room == NULL || room->is_sender || bt_kv_room_is_over(room) || mem == NULL ||
        mem->p == NULL || bytes == 0 || offset > mem->size || bytes > mem->size - offset ||
        end_on(room, path->link) == NULL)
        return NULL;
    while (left > 0) {
        uint64_t n = open_bytes(room, region, at, left);
        if (n == 0)
            break;
        at += n;
        left -= n;
    }
    /* A merged run may end in a piece that adjoins the last page. */
    if (left > 0 && !is_piece(room, region, at, left))
        return NULL;
    moved(agent, room);
    return mem->p + offset;
}

/* ---- notes ---- */
static const char *check_note(const struct bt_kv_room *room, const bt_kv_end_t *end,
                              const bt_kv_note_t *note)
{
    uint32_t count = room->layout->count;

    if (note->buffer_first > count || note->buffer_count > count - note->buffer_first ||
        note->page_count > room->page_count || note->first > BT_KV_PAGES_MAX)
        return "a note outside the room's pages";
    if (note->page_count > 0 &&
        (note->first < room->prefix_pages || note->first > room->page_count - note->page_count))
        return "a note outside the room's pages";
    if ((note->pieces >> room->piece_count) != 0 || (end->is_last_got && note->is_last))
        return "a note that cannot be";
    return NULL;
}

static bool is_crc_right(bt_kv_agent_t *agent, const struct bt_kv_room *room,
                         const bt_kv_end_t *end, const bt_kv_note_t *note)
{
    bt_kv_side_t side = {room->layout, room->pages + note->first, bt_kv_cut_dst(&end->slice)};

    if (!note->has_crc || room->layout->is_opaque)
        return true;
    uint32_t crc =
        bt_kv_part_crc(0, &side, note->page_count, note->buffer_first, note->buffer_count);
    for (uint32_t i = 0; i < room->piece_count; i++) {
        const bt_kv_piece_t *piece = &room->pieces[i];
        if ((note->pieces >> i & 1) != 0 && piece->bytes > 0)
            crc = bt_kv_crc32c(crc, bt_kv_mem_find(agent, piece->region)->p + piece->offset,
                               piece->bytes);
    }
    return crc == note->crc;
}

static void finish(bt_kv_agent_t *agent, struct bt_kv_room *room)
{
    for (uint32_t i = 0; i < room->piece_count; i++)
        if (room->pieces[i].bytes > 0 && (room->got_pieces >> i & 1) == 0) {
            bt_kv_room_fail(agent, room, BT_E_KV_TRANSFER, "piece %u was not sent", i);
            return;
        }
    for (bt_list_t *it = room->ends.next; it != &room->ends; it = it->next) {
        bt_kv_end_t *end = bt_container_of(it, bt_kv_end_t, on_room);
        if (end->is_dropped)
            continue;
        bt_kv_put_room(&end->link->out, BT_KV_DONE, end->tag, 0, BT_STR_NULL);
        bt_kv_link_send(end->link);
    }
    bt_kv_room_advance(agent, room, BT_KV_SUCCESS);
}

static void check_end(bt_kv_agent_t *agent, struct bt_kv_room *room, bt_kv_end_t *end,
                      const bt_kv_note_t *note)
{
    if (note->is_last && note->units != end->units_wanted) {
        bt_kv_room_fail(agent, room, BT_E_KV_TRANSFER,
                        "%s says that it sent %" PRIu64 " pages in all, %" PRIu64
                        " were announced (times %u buffers)",
                        end->link->peer, note->units / room->layout->count,
                        end->units_wanted / room->layout->count, room->layout->count);
        return;
    }
    if (end->units > end->units_wanted ||
        (end->units == end->units_wanted && end->is_last_got && end->sum != end->sum_wanted)) {
        bt_kv_room_fail(agent, room, BT_E_KV_TRANSFER,
                        "%s sent some pages twice and others not at all", end->link->peer);
        return;
    }
    if (!end->is_last_got || end->units < end->units_wanted)
        return;
    end->is_done = true;
    if (++room->complete_ends == room->end_count)
        finish(agent, room);
}

static void take_note(bt_kv_agent_t *agent, struct bt_kv_room *room, bt_kv_end_t *end,
                      const bt_kv_note_t *note)
{
    uint64_t units = (uint64_t) note->page_count * note->buffer_count;

    moved(agent, room);
    agent->stats.bytes_received += note->bytes;
    end->link->bytes_received += note->bytes;
    end->link->notes++;
    room->stats.bytes += note->bytes;
    room->stats.pages += units;
    end->units += units;
    end->sum += mix_block(note->first, note->page_count, note->buffer_first, note->buffer_count);
    end->is_last_got |= note->is_last;
    room->got_pieces |= note->pieces;
    if (!is_crc_right(agent, room, end, note)) {
        agent->stats.crc_errors++;
        bt_kv_room_fail(agent, room, BT_E_KV_TRANSFER,
                        "CRC error in pages %u to %u from %s: what arrived is not what was sent",
                        note->first, note->first + note->page_count, end->link->peer);
        return;
    }
    check_end(agent, room, end, note);
}

void bt_kv_got_note(bt_kv_path_t *path, const uint8_t *bytes, size_t size)
{
    bt_kv_link_t *link = path->link;
    bt_kv_agent_t *agent = link->agent;
    bt_kv_note_t note;

    if (!bt_kv_link_is_live(link))
        return;
    if (bt_kv_note_decode(bytes, size, &note) != 0) {
        bt_kv_link_refuse(link, "a malformed note");
        return;
    }
    struct bt_kv_room *room = bt_kv_room_find(agent, note.tag);
    if (room == NULL || bt_kv_room_is_over(room))
        return; /* late: sent before the sender knew */
    bt_kv_end_t *end = room->is_sender ? NULL : end_on(room, link);
    if (end == NULL && has_dropped(room, link))
        return; /* late, too */
    const char *why = end == NULL    ? "a note with the tag of another link's room"
                      : end->is_done ? "a note after its last"
                                     : check_note(room, end, &note);
    if (why != NULL)
        bt_kv_link_refuse(link, why);
    else
        take_note(agent, room, end, &note);
}
