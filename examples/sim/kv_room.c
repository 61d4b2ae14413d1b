/* kv_room.c - rooms of kv.h.
 *
 *   live --(every rank has ended, or one has failed)--> ended --on_end--> leaving --(every rank released)--> gone
 *
 * The wake-up that finds rooms ended first takes them all aside, then tells: what a callback does to other rooms then harms no walk. With several ranks
 * a room is what its worst rank is: one that fails aborts the others.
 */
#include "base/err.h"
#include "kv.h"
#include "world.h"

#include <stdio.h>
#include <stdlib.h>

#define RELEASE_MS 8
#define RETRY_MS 8

/* ---- the end of a room ---- */

static void free_room(sim_kv_room_t *room)
{
    bt_timer_stop(&room->pace);
    bt_list_remove(&room->link);
    if (room->flipped != NULL)
        *room->flipped = (char) (*room->flipped ^ 1);
    sim_blocks_release(&room->kv->worker->blocks, room->ids, room->blocks);
    free(room->ids);
    free(room);
}

/* True: the room is gone. */
static bool release(sim_kv_room_t *room)
{
    bool is_free = true;

    for (unsigned r = 0; r < room->kv->rank_count; r++) {
        if (room->handles[r] != 0 &&
            bt_kv_room_release(room->kv->ranks[r].agent, room->handles[r]) == 1)
            room->handles[r] = 0;
        is_free &= room->handles[r] == 0;
    }
    if (is_free)
        free_room(room);
    return is_free;
}

void sim_kv_rooms_release(bt_timer_t *timer)
{
    sim_kv_t *kv = bt_container_of(timer, sim_kv_t, release);
    bt_list_t *it, *tmp;

    bt_list_each (&kv->leaving, it, tmp)
        release(bt_container_of(it, sim_kv_room_t, link));
    if (!bt_list_empty(&kv->leaving))
        bt_timer_start(&kv->release, RELEASE_MS);
}

static void leave(sim_kv_room_t *room)
{
    sim_kv_t *kv = room->kv;

    bt_timer_stop(&room->pace);
    bt_list_remove(&room->link);
    bt_list_push(&kv->leaving, &room->link);
    if (!release(room) && !bt_timer_active(&kv->release))
        bt_timer_start(&kv->release, RELEASE_MS);
}

static void abort_ranks(sim_kv_room_t *room, const char *reason)
{
    for (unsigned r = 0; r < room->kv->rank_count; r++)
        if (room->handles[r] != 0)
            bt_kv_abort(room->kv->ranks[r].agent, room->handles[r], reason);
}

/* The state of the worst rank; *rank_p is one in it. */
static enum bt_kv_state state_of(const sim_kv_room_t *room, unsigned *rank_p)
{
    enum bt_kv_state state = BT_KV_SUCCESS;

    *rank_p = 0;
    for (unsigned r = 0; r < room->kv->rank_count; r++) {
        enum bt_kv_state one = bt_kv_poll(room->kv->ranks[r].agent, room->handles[r]);
        if (one >= state)
            continue;
        state = one;
        *rank_p = r;
    }
    return state;
}

static void note_end(sim_kv_room_t *room, enum bt_kv_state state, unsigned rank)
{
    sim_kv_t *kv = room->kv;

    room->is_failed = state == BT_KV_FAILED;
    for (unsigned r = 0; r < kv->rank_count; r++) {
        bt_kv_room_stats_t stats = {0};
        bt_kv_room_stats(kv->ranks[r].agent, room->handles[r], &stats);
        kv->counters.bytes += stats.bytes;
        if (r == 0)
            room->stats = stats;
    }
    if (!room->is_failed) {
        kv->counters.succeeded++;
        return;
    }
    kv->counters.failed++;
    bt_kv_room_error(kv->ranks[rank].agent, room->handles[rank], room->reason,
                     sizeof(room->reason));
    snprintf(kv->last_failure, sizeof(kv->last_failure), "%s", room->reason);
    abort_ranks(room, room->reason);
}

static bool take_ended(sim_kv_room_t *room)
{
    unsigned rank;
    enum bt_kv_state state = state_of(room, &rank);

    if (state != BT_KV_FAILED && state != BT_KV_SUCCESS)
        return false;
    note_end(room, state, rank);
    bt_list_remove(&room->link);
    bt_list_push(&room->kv->ended, &room->link);
    return true;
}

void sim_kv_rooms_look(sim_kv_t *kv)
{
    bt_list_t *it, *tmp;

    bt_list_each (&kv->live, it, tmp)
        take_ended(bt_container_of(it, sim_kv_room_t, link));
    while (!bt_list_empty(&kv->ended)) {
        sim_kv_room_t *room = bt_container_of(kv->ended.next, sim_kv_room_t, link);
        sim_kv_end_cb on_end = room->on_end;
        room->on_end = NULL;
        bt_list_remove(&room->link);
        if (on_end != NULL)
            on_end(room, room->user);
        if (kv->is_closed)
            free_room(room);
        else
            leave(room);
    }
}

void sim_kv_leave(sim_kv_room_t *room)
{
    room->on_end = NULL;
}

void sim_kv_abort(sim_kv_room_t *room, const char *reason)
{
    unsigned rank;

    room->on_end = NULL;
    if (room->is_failed || state_of(room, &rank) == BT_KV_SUCCESS)
        return; /* it is on its way out */
    abort_ranks(room, reason);
    if (take_ended(room)) {
        bt_list_remove(&room->link);
        leave(room);
    }
}

void sim_kv_rooms_close(sim_kv_t *kv)
{
    bt_list_t *const lists[] = {&kv->live, &kv->ended, &kv->leaving};

    for (unsigned i = 0; i < 3; i++)
        while (!bt_list_empty(lists[i]))
            free_room(bt_container_of(lists[i]->next, sim_kv_room_t, link));
}

/* ---- opening ---- */

static sim_kv_room_t *make_room(sim_kv_t *kv, const sim_kv_ask_t *ask, bt_timer_cb pace)
{
    sim_kv_room_t *room = calloc(1, sizeof(*room));

    if (room == NULL)
        return NULL;
    room->ids = malloc((ask->blocks + 1) * sizeof(*room->ids));
    if (room->ids == NULL) {
        free(room);
        return NULL;
    }
    memcpy(room->ids, ask->ids, ask->blocks * sizeof(*room->ids));
    sim_blocks_hold(&kv->worker->blocks, room->ids, ask->blocks);
    room->kv = kv;
    room->number = ask->number;
    room->blocks = room->limit = ask->blocks;
    room->prefix = ask->prefix;
    room->on_end = ask->on_end;
    room->user = ask->user;
    room->aux_bytes = ask->bytes;
    room->aux_kv = ask->kv;
    bt_list_init(&room->link);
    bt_list_push(&kv->live, &room->link);
    bt_timer_init(kv->worker->world->loop, &room->pace, pace);
    return room;
}

/* rc of the rank that could not: the others are let go. */
static int finish_open(sim_kv_room_t *room, int rc, sim_kv_room_t **room_p)
{
    if (rc != 0) {
        room->on_end = NULL;
        abort_ranks(room, "another rank could not open it");
        leave(room);
        return rc;
    }
    room->kv->counters.rooms++;
    *room_p = room;
    return 0;
}

static bt_kv_piece_t aux_piece(const sim_kv_rank_t *rank, const sim_kv_room_t *room)
{
    uint32_t last = room->ids[room->blocks - 1]; /* never another room's: it is always computed */

    return (bt_kv_piece_t){rank->region, sim_pages_aux_offset(&rank->pages, last), SIM_AUX_BYTES};
}

/* The next "host:port" of a list. */
static int next_source(bt_str_t *list, char *host, size_t host_size, uint16_t *port_p)
{
    const char *comma = list->n > 0 ? memchr(list->p, ',', list->n) : NULL;
    size_t n = comma != NULL ? (size_t) (comma - list->p) : list->n;
    const char *colon = n > 0 ? memchr(list->p, ':', n) : NULL;
    size_t host_n = colon != NULL ? (size_t) (colon - list->p) : 0;
    uint64_t port = 0;

    if (host_n == 0 || host_n >= host_size ||
        bt_str_u64((bt_str_t){colon + 1, n - host_n - 1}, &port) != 0 || port > 65535)
        return BT_E_INVAL;
    memcpy(host, list->p, host_n);
    host[host_n] = '\0';
    *port_p = (uint16_t) port;
    list->p += comma != NULL ? n + 1 : n;
    list->n -= comma != NULL ? n + 1 : n;
    return 0;
}

static int open_receiver(sim_kv_room_t *room, unsigned r, bt_str_t *sources)
{
    sim_kv_rank_t *rank = &room->kv->ranks[r];
    char host[48];
    bt_kv_source_t source = {.host = host};
    bt_kv_recv_t recv = {.room = room->number,
                         .layout = rank->layout,
                         .pages = room->ids,
                         .page_count = room->blocks,
                         .prefix_pages = room->prefix,
                         .sources = &source,
                         .pieces = {aux_piece(rank, room)},
                         .piece_count = 1};

    if (sources->p != NULL) {
        int rc = next_source(sources, host, sizeof(host), &source.port);
        if (rc != 0)
            return rc;
        recv.source_count = 1;
    }
    for (unsigned i = room->prefix; i < room->blocks; i++)
        sim_page_poison(&rank->pages, room->ids[i]);
    sim_aux_poison(&rank->pages, room->ids[room->blocks - 1]);
    return bt_kv_recv_open(rank->agent, &recv, &room->handles[r]);
}

/* ---- sending ---- */

static int send_to(sim_kv_room_t *room, unsigned r, unsigned upto, bool is_last)
{
    sim_kv_rank_t *rank = &room->kv->ranks[r];
    unsigned first = room->sent_by_rank[r];
    bt_kv_chunk_t chunk = {
        .first = first, .pages = room->ids + first, .page_count = upto - first, .last = is_last};

    if (room->last_by_rank[r] || (upto == first && !is_last))
        return 0;
    if (is_last) {
        sim_aux_write(&rank->pages, room->ids[room->blocks - 1], room->aux_bytes, room->aux_kv);
        chunk.pieces[0] = aux_piece(rank, room);
        chunk.piece_count = 1;
    }
    int rc = bt_kv_send(rank->agent, room->handles[r], &chunk);
    if (rc == BT_E_AGAIN)
        return rc;
    /* Any other refusal means that the room is over: its end is told elsewhere. */
    room->sent_by_rank[r] = upto;
    room->last_by_rank[r] = is_last;
    return 0;
}

/* False: a lane is full, come again. */
static bool send_upto(sim_kv_room_t *room, unsigned upto)
{
    bool is_last = upto == room->blocks && room->limit == room->blocks, is_through = true;

    if (upto > room->limit)
        upto = room->limit;
    if (upto < room->sent)
        upto = room->sent;
    for (unsigned r = 0; r < room->kv->rank_count; r++)
        is_through &= send_to(room, r, upto, is_last) == 0;
    if (is_through)
        room->sent = upto;
    return is_through;
}

/* Pages that are computed by now, in whole chunks. */
static unsigned computed_pages(const sim_kv_room_t *room)
{
    unsigned step = room->kv->worker->options.kv_chunk_pages, fresh = room->blocks - room->prefix;
    uint64_t elapsed_us = bt_clock_us() - room->start_us;

    if (elapsed_us >= room->pace_us)
        return room->blocks - 1; /* the last page is the answer's business: send_rest */
    unsigned done = (unsigned) ((double) fresh * (double) elapsed_us / (double) room->pace_us);
    done = room->prefix + done / step * step;
    return done < room->blocks ? done : room->blocks - 1;
}

static void on_pace(bt_timer_t *timer)
{
    sim_kv_room_t *room = bt_container_of(timer, sim_kv_room_t, pace);
    unsigned step = room->kv->worker->options.kv_chunk_pages, fresh = room->blocks - room->prefix;
    unsigned upto = room->pace_us == 0 ? room->blocks : computed_pages(room);

    if (!send_upto(room, upto))
        bt_timer_start(timer, RETRY_MS);
    else if (upto + 1 < room->blocks)
        bt_timer_start(timer, room->pace_us * step / fresh / 1000 + 1);
}

void sim_kv_send_paced(sim_kv_room_t *room, uint64_t ms)
{
    room->start_us = bt_clock_us();
    room->pace_us = ms * 1000;
    if (ms > 0)
        on_pace(&room->pace);
}

void sim_kv_send_rest(sim_kv_room_t *room)
{
    bt_timer_stop(&room->pace);
    room->pace_us = 0;
    on_pace(&room->pace);
}

void sim_kv_stall(sim_kv_room_t *room, unsigned pages)
{
    if (pages < room->blocks)
        room->limit = pages;
    else
        room->limit = room->blocks - 1;
}

void sim_kv_corrupt(sim_kv_room_t *room, unsigned page)
{
    const sim_pages_t *pages = &room->kv->ranks[0].pages;
    uint32_t id = room->ids[page < room->blocks ? page : room->blocks - 1];

    /* The middle of a page of the last buffer: no head is touched. */
    room->flipped =
        pages->base + sim_pages_offset(pages, pages->buffers - 1, id) + pages->page_bytes - 5;
    *room->flipped = (char) (*room->flipped ^ 1);
}

/* ---- what others ask for ---- */

int sim_kv_send_open(sim_kv_t *kv, const sim_kv_ask_t *ask, sim_kv_room_t **room_p)
{
    sim_kv_room_t *room = make_room(kv, ask, on_pace);
    int rc = room != NULL ? 0 : BT_E_NOMEM;

    if (room == NULL)
        return rc;
    room->is_sender = true;
    for (unsigned r = 0; r < kv->rank_count && rc == 0; r++) {
        bt_kv_send_spec_t spec = {.room = ask->number, .layout = kv->ranks[r].layout};
        rc = bt_kv_send_open(kv->ranks[r].agent, &spec, &room->handles[r]);
    }
    return finish_open(room, rc, room_p);
}

int sim_kv_recv_open(sim_kv_t *kv, const sim_kv_ask_t *ask, sim_kv_room_t **room_p)
{
    sim_kv_room_t *room = make_room(kv, ask, on_pace);
    bt_str_t sources = ask->source;
    int rc = room != NULL ? 0 : BT_E_NOMEM;

    if (room == NULL)
        return rc;
    for (unsigned r = 0; r < kv->rank_count && rc == 0; r++)
        rc = open_receiver(room, r, &sources);
    return finish_open(room, rc, room_p);
}

uint64_t sim_kv_aux(const sim_kv_room_t *room, uint64_t bytes, uint64_t kv)
{
    uint64_t wrong = 0;

    for (unsigned r = 0; r < room->kv->rank_count; r++)
        wrong |= sim_aux_read(&room->kv->ranks[r].pages, room->ids[room->blocks - 1], bytes, kv);
    return wrong;
}

/* A request that is over has left its room: on_end is gone, the blocks are still there. */
unsigned sim_kv_held(const sim_kv_t *kv, unsigned *rooms_p)
{
    const bt_list_t *const lists[] = {&kv->live, &kv->leaving};
    unsigned blocks = 0;

    *rooms_p = 0;
    for (unsigned i = 0; i < 2; i++)
        for (const bt_list_t *it = lists[i]->next; it != lists[i]; it = it->next) {
            const sim_kv_room_t *room =
                bt_container_of((bt_list_t *) (uintptr_t) it, sim_kv_room_t, link);
            if (!room->is_sender || room->on_end != NULL)
                continue;
            blocks += room->blocks;
            ++*rooms_p;
        }
    return blocks;
}
