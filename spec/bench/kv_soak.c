/* kv_soak.c - many rooms between two agents, a tenth of which come to grief.
 *
 * Usage: kv_soak [--backend mem|shm|tcp] [--rooms N] [--depth N] [--seed N] [--crc] [--private] [--restarts N]
 *
 * Each room moves 1 to 16 scattered pages in one to three chunks. One in ten fails: aborted by either side at a random moment, released without an abort, never
 * opened by the other side, or sent with a wrong total. What arrives is compared with what was sent. When the receiver's release says 1 its pages are
 * poisoned; they must still be so when they are used again, so that a byte written after the release is found. --restarts closes an agent, in turns, in the midst of
 * it, so often. Exit 1: a byte wrong, a room stuck for 60 s, a success that should have failed, a room left open. Figures go to stdout.
 */
#include "transport/baton_kv.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/rand.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PAGES 8192u
#define BUFFERS 2u
#define PAGE_BYTES 256u
#define ROOM_PAGES 16u
#define POISON 0xa5
#define STUCK_MS 60000u

enum grief {
    NONE,
    SENDER_ABORTS,
    RECEIVER_ABORTS,
    SENDER_LEAVES, /* releases without a word */
    RECEIVER_LEAVES,
    WRONG_TOTAL,
    NO_SENDER, /* the receiver waits for nobody, and gives up */
    NO_RECEIVER,
    GRIEFS
};

typedef struct side {
    bt_kv_agent_t *agent;
    bt_kv_config_t config;
    char *p;
    bt_kv_region_t region;
    bt_kv_layout_t layout;
} side_t;

typedef struct room {
    bt_kv_room_t recv, send; /* 0: not open, or released */
    uint64_t id, began_ms;
    enum grief grief;
    unsigned patience; /* steps until grief comes */
    uint32_t to[ROOM_PAGES], from[ROOM_PAGES], count, sent;
    bool is_struck, is_over, is_recv_open, is_send_open, is_cut;
} room_t;

static struct {
    uint64_t rooms, seed;
    uint32_t depth, backends, restarts;
    bool crc, is_private;
    const char *name;
} options = {20000, 1, 64, BT_KV_MEM, 0, false, false, "mem"};

static side_t from_side, to_side;
static uint32_t free_pages[PAGES];
static uint64_t free_at, free_count;
static uint64_t next_id, finished, good, failed, cut, bytes_checked, pages_checked;

__attribute__((noreturn, format(printf, 1, 2))) static void die(const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    fprintf(stderr, "kv_soak: ");
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

static char *page_at(const side_t *side, uint32_t buffer, uint32_t page)
{
    return side->p + ((size_t) buffer * PAGES + page) * PAGE_BYTES;
}

/* ---- agents ---- */
static void open_agent(side_t *side, const char *name)
{
    char err[256];
    size_t size = (size_t) BUFFERS * PAGES * PAGE_BYTES;
    bt_kv_buffer_t buffers[BUFFERS];
    void *p = side->p;

    side->config = (bt_kv_config_t){.name = name,
                                    .backends = options.backends,
                                    .max_rooms = options.depth * 2,
                                    .crc = options.crc};
    if (bt_kv_agent_open(&side->agent, &side->config, err, sizeof(err)) != 0)
        die("%s: %s", name, err);
    int rc;
    if (options.is_private) {
        p = p != NULL ? p : calloc(1, size);
        rc = bt_kv_region_add(side->agent, p, size, &side->region);
    } else {
        rc = bt_kv_pool_alloc(side->agent, size, &p, &side->region);
    }
    side->p = p;
    for (uint32_t i = 0; i < BUFFERS; i++)
        buffers[i] = (bt_kv_buffer_t){side->region, (uint64_t) i * PAGES * PAGE_BYTES, PAGE_BYTES,
                                      PAGE_BYTES};
    if (rc != 0 || bt_kv_layout_add(side->agent, buffers, BUFFERS, PAGES, &side->layout) != 0)
        die("%s: no memory", name);
}

/* Bytes that depend on the place, so that a page in the wrong place is a wrong page. */
static void fill_source(void)
{
    for (uint32_t b = 0; b < BUFFERS; b++)
        for (uint32_t page = 0; page < PAGES; page++)
            for (uint32_t i = 0; i < PAGE_BYTES; i += 8) {
                uint64_t x =
                    (((uint64_t) b << 32 | page) * 1000003 + i) * UINT64_C(0x9e3779b97f4a7c15);
                memcpy(page_at(&from_side, b, page) + i, &x, 8);
            }
}

static void poison(uint32_t page)
{
    for (uint32_t b = 0; b < BUFFERS; b++)
        memset(page_at(&to_side, b, page), POISON, PAGE_BYTES);
    free_pages[(free_at + free_count++) % PAGES] = page;
}

static uint32_t take_page(void)
{
    static const char *what = "page %u was written after its release";
    uint32_t page = free_pages[free_at++ % PAGES];

    free_count--;
    for (uint32_t b = 0; b < BUFFERS; b++) {
        const char *p = page_at(&to_side, b, page);
        for (uint32_t i = 0; i < PAGE_BYTES; i++)
            if ((unsigned char) p[i] != POISON)
                die(what, page);
    }
    return page;
}

/* ---- a room ---- */
static void begin(room_t *room)
{
    *room = (room_t){.id = ++next_id,
                     .began_ms = bt_clock_ms(),
                     .count = 1 + (uint32_t) bt_rand_below(ROOM_PAGES)};
    if (bt_rand_below(7) == 0) { /* about three in ten of them come too late to do harm */
        room->grief = (enum grief)(1 + bt_rand_below(GRIEFS - 1));
        room->patience = (unsigned) bt_rand_below(8);
    }
    uint32_t run = (uint32_t) bt_rand_below(PAGES);
    for (uint32_t i = 0; i < room->count; i++) {
        room->to[i] = take_page();
        run = bt_rand_below(3) != 0 ? (run + 1) % PAGES : (uint32_t) bt_rand_below(PAGES);
        room->from[i] = run;
    }
    room->is_recv_open = room->grief == NO_RECEIVER;
    room->is_send_open = room->grief == NO_SENDER;
}

static void open_recv(room_t *room)
{
    bt_kv_source_t source = {.host = "127.0.0.1", .port = bt_kv_agent_port(from_side.agent)};
    bt_kv_recv_t spec = {.room = room->id,
                         .layout = to_side.layout,
                         .pages = room->to,
                         .page_count = room->count,
                         .sources = &source,
                         .source_count = 1};
    int rc = bt_kv_recv_open(to_side.agent, &spec, &room->recv);

    if (rc != 0)
        die("recv_open: %s", bt_kv_error_text(rc));
    room->is_recv_open = true;
}

static void open_send(room_t *room)
{
    bt_kv_send_spec_t spec = {.room = room->id, .layout = from_side.layout};
    int rc = bt_kv_send_open(from_side.agent, &spec, &room->send);

    if (rc != 0)
        die("send_open: %s", bt_kv_error_text(rc));
    room->is_send_open = true;
}

static void send_more(room_t *room)
{
    uint32_t left = room->count - room->sent;
    uint32_t n = bt_rand_below(2) == 0 ? left : 1 + (uint32_t) bt_rand_below(left);
    bt_kv_chunk_t chunk = {
        .first = room->sent, .pages = room->from + room->sent, .page_count = n, .last = n == left};

    if (room->grief == WRONG_TOTAL && chunk.last) {
        chunk.page_count--;
        room->is_struck = true;
    }
    int rc = bt_kv_send(from_side.agent, room->send, &chunk);
    if (rc == BT_E_AGAIN)
        return;
    if (rc != 0 && rc != BT_E_CANCELLED)
        die("send: %s", bt_kv_error_text(rc));
    room->sent += n;
}

static void strike(room_t *room)
{
    room->is_struck = true;
    switch (room->grief) {
    case SENDER_ABORTS:
    case NO_RECEIVER:
        bt_kv_abort(from_side.agent, room->send, "soak");
        break;
    case RECEIVER_ABORTS:
    case NO_SENDER:
        bt_kv_abort(to_side.agent, room->recv, "soak");
        break;
    case SENDER_LEAVES:
        if (room->send != 0 && bt_kv_room_release(from_side.agent, room->send) == 1)
            room->send = 0;
        break;
    case RECEIVER_LEAVES:
        if (room->recv != 0 && bt_kv_room_release(to_side.agent, room->recv) == 1)
            room->recv = 0;
        break;
    default:
        break;
    }
}

static void check_pages(const room_t *room)
{
    for (uint32_t b = 0; b < BUFFERS; b++)
        for (uint32_t i = 0; i < room->count; i++)
            if (memcmp(page_at(&to_side, b, room->to[i]), page_at(&from_side, b, room->from[i]),
                       PAGE_BYTES) != 0)
                die("room %" PRIu64 " succeeded with a wrong page %u", room->id, i);
    pages_checked += room->count;
    bytes_checked += (uint64_t) room->count * BUFFERS * PAGE_BYTES;
}

static bool is_over(const side_t *side, bt_kv_room_t room)
{
    enum bt_kv_state state = bt_kv_poll(side->agent, room);
    return room == 0 || state == BT_KV_FAILED || state == BT_KV_SUCCESS;
}

/* Both sides have ended: what they say must fit the story. */
static void judge(room_t *room)
{
    bool is_recv_good = room->recv != 0 && bt_kv_poll(to_side.agent, room->recv) == BT_KV_SUCCESS;
    bool is_send_good = room->send != 0 && bt_kv_poll(from_side.agent, room->send) == BT_KV_SUCCESS;
    char text[256];

    room->is_over = true;
    if (is_recv_good)
        check_pages(room);
    if (is_recv_good && (room->grief == WRONG_TOTAL || room->grief == NO_SENDER))
        die("room %" PRIu64 " succeeded although it could not", room->id);
    if (is_send_good && !is_recv_good && room->grief != RECEIVER_LEAVES && !room->is_cut)
        die("room %" PRIu64 ": the sender succeeded, the receiver did not", room->id);
    if (room->grief == NONE && !room->is_cut && !(is_recv_good && is_send_good)) {
        bt_kv_room_error(to_side.agent, room->recv, text, sizeof(text));
        die("room %" PRIu64 " failed without a cause: %s", room->id, text);
    }
    good += is_recv_good && is_send_good;
    failed += !is_recv_good || !is_send_good;
    cut += room->is_cut;
}

/* A receiver that gave up before its link was up has told nobody. In a cluster the gateway aborts the other side; here we do. */
static void help_orphan(room_t *room)
{
    if ((room->is_struck || room->is_cut) && is_over(&to_side, room->recv) &&
        bt_clock_ms() - room->began_ms > 1000 &&
        bt_kv_poll(from_side.agent, room->send) == BT_KV_BOOTSTRAPPING)
        bt_kv_abort(from_side.agent, room->send, "its receiver never came");
}

/* True: the room is gone and its pages are free again. */
static bool step(room_t *room)
{
    bool is_recv_first = bt_rand_below(2) == 0;

    if (bt_clock_ms() - room->began_ms > STUCK_MS)
        die("room %" PRIu64 " is stuck: receiver %d, sender %d, grief %d", room->id,
            (int) bt_kv_poll(to_side.agent, room->recv),
            (int) bt_kv_poll(from_side.agent, room->send), (int) room->grief);
    if (!room->is_over) {
        if (!room->is_recv_open && is_recv_first)
            open_recv(room);
        else if (!room->is_send_open && (!is_recv_first || room->is_recv_open))
            open_send(room);
        else if (room->is_send_open && room->send != 0 && room->sent < room->count)
            send_more(room);
        if (room->is_recv_open && room->is_send_open && room->grief != NONE &&
            room->grief != WRONG_TOTAL && !room->is_struck && room->patience-- == 0)
            strike(room);
        help_orphan(room);
        if (!room->is_recv_open || !room->is_send_open || !is_over(&to_side, room->recv) ||
            !is_over(&from_side, room->send))
            return false;
        judge(room);
    }
    if (room->recv != 0 && bt_kv_room_release(to_side.agent, room->recv) == 1)
        room->recv = 0;
    if (room->send != 0 && bt_kv_room_release(from_side.agent, room->send) == 1)
        room->send = 0;
    if (room->recv != 0 || room->send != 0)
        return false;
    for (uint32_t i = 0; i < room->count; i++)
        poison(room->to[i]);
    finished++;
    return true;
}

/* An agent goes in the midst of it; its rooms are gone with it, the other's fail and are released. */
static void restart(room_t *rooms, bool is_receiver)
{
    side_t *side = is_receiver ? &to_side : &from_side;
    char *keep = NULL;

    bt_kv_agent_close(side->agent);
    if (options.is_private)
        keep = side->p;
    side->p = keep;
    open_agent(side, is_receiver ? "decode" : "prefill");
    if (!is_receiver)
        fill_source();
    for (uint32_t i = 0; i < options.depth; i++) {
        room_t *room = &rooms[i];
        room->is_cut = true;
        room->is_struck = true;
        room->is_recv_open = room->is_send_open = true;
        room->sent = room->count;
        *(is_receiver ? &room->recv : &room->send) = 0;
        /* A sender whose receiver never announced cannot know. */
        if (is_receiver && bt_kv_poll(from_side.agent, room->send) == BT_KV_BOOTSTRAPPING)
            bt_kv_abort(from_side.agent, room->send, "soak");
    }
    if (!is_receiver)
        return;
    /* New memory, all of it poisoned; pages of rooms in flight stay taken. */
    for (uint32_t page = 0; page < PAGES; page++)
        for (uint32_t b = 0; b < BUFFERS; b++)
            memset(page_at(&to_side, b, page), POISON, PAGE_BYTES);
}

static uint64_t resident_kb(void)
{
    FILE *f = fopen("/proc/self/statm", "re");
    unsigned long size = 0, resident = 0;

    if (f != NULL && fscanf(f, "%lu %lu", &size, &resident) != 2)
        resident = 0;
    if (f != NULL)
        fclose(f);
    return (uint64_t) resident * (uint64_t) sysconf(_SC_PAGESIZE) / 1024;
}

static void read_options(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--crc") == 0) {
            options.crc = true;
            continue;
        }
        if (strcmp(argv[i], "--private") == 0) {
            options.is_private = true;
            continue;
        }
        if (strcmp(argv[i], "--rooms") == 0)
            options.rooms = strtoull(value, NULL, 10);
        else if (strcmp(argv[i], "--depth") == 0)
            options.depth = (uint32_t) strtoul(value, NULL, 10);
        else if (strcmp(argv[i], "--seed") == 0)
            options.seed = strtoull(value, NULL, 10);
        else if (strcmp(argv[i], "--restarts") == 0)
            options.restarts = (uint32_t) strtoul(value, NULL, 10);
        else if (strcmp(argv[i], "--backend") == 0)
            options.name = value;
        else
            die("unknown option %s", argv[i]);
        i++;
    }
    options.backends = strcmp(options.name, "mem") == 0   ? BT_KV_MEM
                       : strcmp(options.name, "shm") == 0 ? BT_KV_SHM
                       : strcmp(options.name, "tcp") == 0 ? BT_KV_TCP
                                                          : 0;
    if (options.backends == 0 || options.depth == 0 || options.depth * ROOM_PAGES > PAGES / 2)
        die("--backend is mem, shm or tcp; --depth is 1 to %u", PAGES / 2 / ROOM_PAGES);
}

static void run(room_t *rooms)
{
    uint32_t restarts = 0, busy = options.depth;

    for (uint32_t i = 0; i < options.depth; i++)
        begin(&rooms[i]);
    while (busy > 0) {
        uint64_t before = finished;
        for (uint32_t i = 0; i < options.depth; i++) {
            if (rooms[i].id == 0 || !step(&rooms[i]))
                continue;
            if (next_id < options.rooms) {
                begin(&rooms[i]);
            } else {
                rooms[i].id = 0;
                busy--;
            }
        }
        if (finished == before)
            usleep(20);
        if (restarts < options.restarts &&
            finished >= options.rooms / (options.restarts + 1) * (restarts + 1))
            restart(rooms, restarts++ % 2 == 0);
    }
}

int main(int argc, char **argv)
{
    bt_kv_agent_stats_t from_stats, to_stats;

    read_options(argc, argv);
    bt_rand_seed(options.seed);
    room_t *rooms = calloc(options.depth, sizeof(*rooms));
    if (rooms == NULL)
        die("out of memory");
    open_agent(&from_side, "prefill");
    open_agent(&to_side, "decode");
    fill_source();
    for (uint32_t page = 0; page < PAGES; page++)
        poison(page);
    uint64_t began_us = bt_clock_us(), before_kb = resident_kb();
    run(rooms);
    double seconds = (double) (bt_clock_us() - began_us) / 1e6;
    for (uint32_t i = 0; i < PAGES; i++) /* every page once more */
        poison(take_page());
    bt_kv_agent_stats(from_side.agent, &from_stats);
    bt_kv_agent_stats(to_side.agent, &to_stats);
    if (from_stats.rooms_open + to_stats.rooms_open != 0)
        die("%" PRIu64 " rooms left open", from_stats.rooms_open + to_stats.rooms_open);
    if (from_stats.refused_frames + to_stats.refused_frames != 0)
        die("agents refused each other's frames");
    bt_kv_agent_close(to_side.agent);
    bt_kv_agent_close(from_side.agent);
    printf("backend %s rooms %" PRIu64 " good %" PRIu64 " failed %" PRIu64 " cut %" PRIu64
           " depth %u seconds %.2f rooms_per_s %.0f checked_mb %.1f rss_kb %" PRIu64 " -> %" PRIu64
           "\n",
           options.name, finished, good, failed, cut, options.depth, seconds,
           (double) finished / seconds, (double) bytes_checked / 1e6, before_kb, resident_kb());
    if (options.is_private) {
        free(from_side.p);
        free(to_side.p);
    }
    free(rooms);
    return 0;
}
