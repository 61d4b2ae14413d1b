/* A script is a row of steps: a byte that chooses, then what the step asks for (step()). A step without bit 5 also lets the agent take turns; bit 7 says
 * which of the peer's two connections speaks. A script that ends early goes on with zeros.
 */
#include "kv_peer_script.h"

#include "base/clock.h"
#include "base/err.h"
#include "transport/agent/agent.h"
#include "transport/control/link.h"
#include "transport/wire/frame.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "kv_peer_script: %s (line %d)\n", #cond, __LINE__);                    \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* ---- an agent, and an honest one beside it ---- */
#define PAGES 16u
#define PAGE_BYTES 64u
#define BUFFERS 2u
#define POOL_BYTES ((size_t) 4096)
#define ROOMS 8

typedef struct side {
    bt_kv_agent_t *agent;
    uint8_t *p;
    bt_kv_region_t region;
    bt_kv_layout_t layout;
} side_t;

typedef struct raw {
    int fd;
    bool is_receiver; /* the peer is: it dialled */
    bt_kv_bytes_t out;
} raw_t;

typedef struct script {
    const uint8_t *p;
    size_t n;
    side_t victim, honest;
    raw_t raws[2];
    int listener;
    uint16_t port;
    bt_kv_room_t rooms[ROOMS];
    unsigned room_at;
} script_t;

static unsigned byte(script_t *s)
{
    if (s->n == 0)
        return 0;
    s->n--;
    return *s->p++;
}

static bt_str_t bytes(script_t *s, size_t n)
{
    n = n < s->n ? n : s->n;
    bt_str_t text = {(const char *) s->p, n};
    s->p += n;
    s->n -= n;
    return text;
}

/* Mostly small, at times at an edge. */
static uint64_t number(script_t *s)
{
    unsigned b = byte(s);

    switch (b >> 5) {
    case 7:
        return UINT64_MAX - (b & 31);
    case 6:
        return UINT32_MAX - (b & 31);
    case 5:
        return (uint64_t) 1 << (b & 31);
    default:
        return b;
    }
}

static void open_side(side_t *side, const char *name)
{
    bt_kv_config_t config = {.name = name,
                             .progress = BT_KV_PROGRESS_CALLER,
                             .backends = BT_KV_MEM,
                             .heartbeat_ms = 60000,
                             .dead_ms = 600000,
                             .release_ms = 20,
                             .max_rooms = 64,
                             .lane_depth = 4};
    bt_kv_buffer_t buffers[BUFFERS];
    char err[256];
    void *p;

    CHECK(bt_kv_agent_open(&side->agent, &config, err, sizeof(err)) == 0);
    CHECK(bt_kv_pool_alloc(side->agent, POOL_BYTES, &p, &side->region) == 0);
    side->p = p;
    for (uint32_t i = 0; i < BUFFERS; i++)
        buffers[i] = (bt_kv_buffer_t){side->region, i * PAGES * PAGE_BYTES, PAGE_BYTES, PAGE_BYTES};
    CHECK(bt_kv_layout_add(side->agent, buffers, BUFFERS, PAGES, &side->layout) == 0);
}

/* Until nothing was done a few times in a row (a turn looks at its sockets at most once in 20 us). */
static void turn(script_t *s)
{
    unsigned idle = 0;

    for (unsigned i = 0; i < 200 && idle < 3; i++)
        idle = bt_kv_progress(s->victim.agent, 0) > 0 ? 0 : idle + 1;
}

/* ---- the peer ---- */
static void flush_raw(raw_t *raw)
{
    if (raw->fd >= 0 && raw->out.n > 0)
        (void) !send(raw->fd, raw->out.p, raw->out.n, MSG_NOSIGNAL | MSG_DONTWAIT);
    raw->out.n = 0;
}

/* Resets, so that no port stays in TIME_WAIT for a minute. */
static void close_raw(raw_t *raw)
{
    struct linger now = {1, 0};

    if (raw->fd >= 0) {
        setsockopt(raw->fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
        close(raw->fd);
    }
    raw->fd = -1;
}

static void put_hello(script_t *s, raw_t *raw)
{
    uint8_t offer[BT_KV_OFFER_BYTES];
    bt_kv_backend_t *mem = s->victim.agent->backends[1];
    size_t n = mem->ops->offer(mem, offer, sizeof(offer));
    bt_kv_hello_t hello = {.version = BT_KV_VERSION,
                           .name = BT_STR("mallory"),
                           .offers = {{BT_KV_MEM, {(const char *) offer, n}}},
                           .offer_count = 1};

    bt_kv_put_hello(&raw->out, &hello);
}

static void dial(script_t *s, raw_t *raw)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons(bt_kv_agent_port(s->victim.agent))};

    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    close_raw(raw);
    raw->is_receiver = true;
    raw->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(raw->fd >= 0);
    if (connect(raw->fd, (struct sockaddr *) &to, sizeof(to)) != 0) {
        CHECK(errno != ECONNREFUSED); /* the agent listens, whatever was said to it */
        perror("kv_peer_script: connect");
        close_raw(raw); /* out of ports for a moment */
        return;
    }
    put_hello(s, raw);
}

static void listen_raw(script_t *s)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t size = sizeof(at);

    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    s->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    CHECK(s->listener >= 0 && bind(s->listener, (struct sockaddr *) &at, sizeof(at)) == 0);
    CHECK(listen(s->listener, 8) == 0);
    getsockname(s->listener, (struct sockaddr *) &at, &size);
    s->port = ntohs(at.sin_port);
}

/* The agent has dialled, when one of its rooms asked for it. */
static void take(script_t *s, raw_t *raw)
{
    int fd = accept4(s->listener, NULL, NULL, SOCK_CLOEXEC);

    if (fd < 0)
        return;
    close_raw(raw);
    raw->fd = fd;
    raw->is_receiver = false;
    put_hello(s, raw);
}

/* ---- what the peer says ---- */
static uint64_t tag(script_t *s)
{
    unsigned b = byte(s);
    return b < ROOMS ? s->rooms[b] : b;
}

static void say_anything(script_t *s, raw_t *raw)
{
    bt_str_t text = bytes(s, byte(s));
    bt_kv_put(&raw->out, text.p, text.n);
}

static void say_frame(script_t *s, raw_t *raw)
{
    uint8_t head[BT_KV_FRAME_HEAD] = {0};

    head[4] = (uint8_t) byte(s);
    head[5] = (uint8_t) byte(s);
    bt_str_t payload = bytes(s, byte(s));
    head[0] = (uint8_t) payload.n;
    bt_kv_put(&raw->out, head, sizeof(head));
    bt_kv_put(&raw->out, payload.p, payload.n);
}

static void say_region(script_t *s, raw_t *raw)
{
    bt_kv_region_frame_t region = {.id = (bt_kv_region_t) number(s), .size = number(s)};

    region.key_count = byte(s) % 3;
    for (uint32_t i = 0; i < region.key_count; i++)
        region.keys[i] = (bt_kv_blob_t){(uint8_t) byte(s), bytes(s, byte(s) & 31)};
    bt_kv_put_region(&raw->out, &region);
}

static void say_layout(script_t *s, raw_t *raw)
{
    bt_kv_buffer_t buffers[4];
    uint32_t id = (uint32_t) number(s), pages = (uint32_t) number(s), count = byte(s) & 3;

    for (uint32_t i = 0; i < count; i++)
        buffers[i] = (bt_kv_buffer_t){(bt_kv_region_t) number(s), number(s), number(s), number(s)};
    bt_kv_put_layout(&raw->out, id, buffers, count, pages);
}

/* What an honest receiver would say before its first announcement. */
static void say_memory(script_t *s, raw_t *raw)
{
    bt_kv_buffer_t buffers[BUFFERS];

    (void) s;
    for (uint32_t i = 0; i < BUFFERS; i++)
        buffers[i] = (bt_kv_buffer_t){1, i * PAGES * PAGE_BYTES, PAGE_BYTES, PAGE_BYTES};
    bt_kv_put_region(&raw->out, &(bt_kv_region_frame_t){.id = 1, .size = POOL_BYTES});
    bt_kv_put_layout(&raw->out, 1, buffers, BUFFERS, PAGES);
}

static void say_announce(script_t *s, raw_t *raw)
{
    unsigned how = byte(s);
    uint32_t pages[8];
    bt_kv_announce_t a = {.tag = tag(s),
                          .room = 700 + (byte(s) & 3),
                          .layout = (how & 1) != 0 ? (bt_kv_layout_t) number(s) : 1,
                          .page_count = how >> 1 & 7};

    if ((how & 16) != 0)
        a.prefix_pages = (uint32_t) number(s);
    if ((how & 32) != 0)
        a.slice = (bt_kv_slice_t){(uint32_t) number(s), (uint32_t) number(s), (uint32_t) number(s),
                                  (uint32_t) number(s), (uint32_t) number(s), (uint32_t) number(s)};
    a.piece_count = how >> 6;
    for (uint32_t i = 0; i < a.piece_count; i++)
        a.pieces[i] = (bt_kv_piece_t){(bt_kv_region_t) number(s), number(s), number(s)};
    for (uint32_t i = 0; i < a.page_count; i++)
        pages[i] = (uint32_t) number(s);
    bt_kv_put_announce(&raw->out, &a, pages);
}

static void say_room(script_t *s, raw_t *raw)
{
    static const enum bt_kv_frame_type types[] = {BT_KV_DONE, BT_KV_ABORT, BT_KV_ABORT_ACK};
    unsigned type = byte(s) % 3;
    uint64_t which = tag(s);
    int rc = (int) (int32_t) number(s);

    bt_kv_put_room(&raw->out, types[type], which, rc, bytes(s, byte(s) & 15));
}

static void say_path(script_t *s, raw_t *raw)
{
    static const enum bt_kv_frame_type types[] = {BT_KV_PATH, BT_KV_PATH_READY, BT_KV_PATH_FAILED};
    unsigned type = byte(s) % 3, kind = byte(s);
    uint8_t channel[8] = {(uint8_t) byte(s)};
    bt_str_t message =
        (kind & 128) != 0 ? bytes(s, byte(s)) : (bt_str_t){(const char *) channel, sizeof(channel)};

    bt_kv_put_blob(&raw->out, types[type],
                   (kind & 64) != 0 ? (enum bt_kv_kind)(kind & 63) : BT_KV_MEM, message);
}

static void say_other(script_t *s, raw_t *raw)
{
    unsigned what = byte(s);

    if (what % 4 == 0)
        bt_kv_put_ping(&raw->out, number(s), number(s));
    else if (what % 4 == 1)
        bt_kv_put_close(&raw->out, (what & 4) != 0, bytes(s, byte(s) & 31));
    else
        bt_kv_put_id(&raw->out, what % 4 == 2 ? BT_KV_REGION_GONE : BT_KV_LAYOUT_GONE,
                     (uint32_t) number(s));
}

/* As the peer's back end would hand it over, on a link of the peer's. */
static void forge_note(script_t *s)
{
    bt_kv_agent_t *agent = s->victim.agent;
    uint8_t encoded[BT_KV_NOTE_BYTES];
    bt_kv_note_t note = {.tag = tag(s),
                         .first = (uint32_t) number(s),
                         .page_count = (uint32_t) number(s),
                         .buffer_first = (uint32_t) number(s),
                         .buffer_count = (uint32_t) number(s),
                         .crc = byte(s),
                         .pieces = (uint8_t) byte(s),
                         .units = number(s),
                         .bytes = number(s)};
    unsigned how = byte(s);

    note.is_last = (how & 1) != 0;
    note.has_crc = (how & 2) != 0;
    size_t n = bt_kv_note_encode(&note, encoded);
    bt_kv_enter(agent);
    for (bt_list_t *it = agent->links.next; it != &agent->links; it = it->next) {
        bt_kv_link_t *link = bt_container_of(it, bt_kv_link_t, link);
        if (link->path == NULL || !link->is_initiator || strstr(link->peer, "mallory") == NULL)
            continue;
        bt_kv_got_note(link->path, encoded, n);
        break;
    }
    bt_kv_leave(agent);
}

/* ---- what the agent's engine does meanwhile ---- */
static void keep(script_t *s, bt_kv_room_t room)
{
    bt_kv_room_t *place = &s->rooms[s->room_at++ % ROOMS];

    if (*place != 0)
        bt_kv_abort(s->victim.agent, *place, "make way");
    if (*place != 0 && bt_kv_room_release(s->victim.agent, *place) != 1)
        bt_kv_abort(s->victim.agent, room, "no place");
    else
        *place = room;
}

static void open_sender(script_t *s)
{
    unsigned how = byte(s);
    bt_kv_room_t room;
    bt_kv_send_spec_t spec = {.room = 700 + (how & 3),
                              .layout = s->victim.layout,
                              .receivers = 1 + (how >> 2 & 1),
                              .dummy = (how & 128) != 0};

    if (bt_kv_send_open(s->victim.agent, &spec, &room) == 0)
        keep(s, room);
}

static void open_receiver(script_t *s)
{
    unsigned how = byte(s);
    uint32_t pages[4] = {how & 3, 4, 5, 6 + (how >> 2 & 3)};
    bt_kv_source_t source = {.host = "127.0.0.1", .port = s->port};
    bt_kv_room_t room;
    bt_kv_recv_t spec = {.room = 800 + (how >> 4 & 3),
                         .layout = s->victim.layout,
                         .pages = pages,
                         .page_count = 4,
                         .prefix_pages = how >> 6,
                         .sources = &source,
                         .source_count = 1};

    if ((how & 64) != 0) {
        spec.pieces[0] = (bt_kv_piece_t){s->victim.region, POOL_BYTES - 64, 32};
        spec.piece_count = 1;
    }
    if (bt_kv_recv_open(s->victim.agent, &spec, &room) == 0)
        keep(s, room);
}

static void use_room(script_t *s)
{
    unsigned how = byte(s);
    bt_kv_room_t room = s->rooms[how % ROOMS];
    uint32_t pages[4] = {0, 1, 2, how >> 4};
    bt_kv_chunk_t chunk = {.first = how >> 3 & 1,
                           .pages = pages,
                           .page_count = 1 + (how >> 4 & 3),
                           .last = (how & 128) != 0};

    switch (byte(s) & 3) {
    case 0:
        bt_kv_abort(s->victim.agent, room, "the engine says so");
        break;
    case 1:
        if (room != 0 && bt_kv_room_release(s->victim.agent, room) == 1)
            s->rooms[how % ROOMS] = 0;
        break;
    default:
        (void) bt_kv_send(s->victim.agent, room, &chunk);
    }
}

static void step(script_t *s, unsigned op)
{
    static void (*const says[])(script_t *, raw_t *) = {
        say_anything, say_frame, say_region, say_layout, say_memory,   say_announce,
        say_room,     say_path,  say_other,  say_room,   say_announce, say_memory};
    raw_t *raw = &s->raws[op >> 7];

    switch (op & 31) {
    case 12:
        open_sender(s);
        break;
    case 13:
        open_receiver(s);
        break;
    case 14:
    case 15:
        use_room(s);
        break;
    case 16:
        dial(s, &s->raws[0]);
        break;
    case 17:
        take(s, &s->raws[1]);
        break;
    case 18:
    case 19:
        forge_note(s);
        break;
    case 20:
        close_raw(raw);
        break;
    default:
        if ((op & 31) < 12)
            says[op & 31](s, raw);
    }
    if ((op & 32) == 0) {
        flush_raw(&s->raws[0]);
        flush_raw(&s->raws[1]);
        turn(s);
    }
}

/* ---- the end: everything comes back, and honest service goes on ---- */
static void turn_both(script_t *s, uint64_t end_ms)
{
    bt_kv_progress(s->victim.agent, 0);
    bt_kv_progress(s->honest.agent, 0);
    CHECK(bt_clock_ms() < end_ms);
}

static void wait_for(script_t *s, side_t *side, bt_kv_room_t room, enum bt_kv_state state)
{
    uint64_t end_ms = bt_clock_ms() + 8000;
    enum bt_kv_state now;

    while ((now = bt_kv_poll(side->agent, room)) != state) {
        CHECK(now != BT_KV_FAILED && now != BT_KV_SUCCESS);
        turn_both(s, end_ms);
    }
}

static void release(script_t *s, side_t *side, bt_kv_room_t room)
{
    uint64_t end_ms = bt_clock_ms() + 8000;

    while (bt_kv_room_release(side->agent, room) != 1)
        turn_both(s, end_ms);
}

static bt_kv_room_t ask_honestly(script_t *s)
{
    static const uint32_t pages[2] = {3, 9};
    bt_kv_source_t source = {.host = "127.0.0.1", .port = bt_kv_agent_port(s->victim.agent)};
    bt_kv_room_t room;
    bt_kv_recv_t spec = {.room = 900,
                         .layout = s->honest.layout,
                         .pages = pages,
                         .page_count = 2,
                         .sources = &source,
                         .source_count = 1};

    CHECK(bt_kv_recv_open(s->honest.agent, &spec, &room) == 0);
    return room;
}

static void check_bytes(const script_t *s)
{
    for (size_t i = 0; i < POOL_BYTES; i++) {
        size_t page = i / PAGE_BYTES % PAGES, buffer = i / PAGE_BYTES / PAGES;
        bool is_wanted = buffer < BUFFERS && (page == 3 || page == 9);
        CHECK(s->honest.p[i] == (is_wanted ? 0x5a : 0));
    }
}

static void serve_honestly(script_t *s, bt_kv_room_t recv)
{
    static const uint32_t pages[2] = {12, 13};
    bt_kv_room_t send;
    bt_kv_send_spec_t spec = {.room = 900, .layout = s->victim.layout};
    bt_kv_chunk_t chunk = {.pages = pages, .page_count = 2, .last = true};

    CHECK(bt_kv_send_open(s->victim.agent, &spec, &send) == 0);
    CHECK(bt_kv_send(s->victim.agent, send, &chunk) == 0);
    wait_for(s, &s->honest, recv, BT_KV_SUCCESS);
    wait_for(s, &s->victim, send, BT_KV_SUCCESS);
    check_bytes(s);
    release(s, &s->honest, recv);
    release(s, &s->victim, send);
}

void kv_peer_script(const uint8_t *p, size_t n)
{
    script_t s = {.p = p, .n = n, .raws = {{.fd = -1}, {.fd = -1}}};

    open_side(&s.victim, "victim");
    open_side(&s.honest, "honest");
    memset(s.victim.p, 0x5a, POOL_BYTES);
    listen_raw(&s);
    bt_kv_room_t recv = ask_honestly(&s);
    dial(&s, &s.raws[0]);
    flush_raw(&s.raws[0]);
    turn(&s);
    for (unsigned i = 0; i < 200 && s.n > 0; i++)
        step(&s, byte(&s));
    close_raw(&s.raws[0]);
    close_raw(&s.raws[1]);
    close(s.listener);
    serve_honestly(&s, recv);
    for (unsigned i = 0; i < ROOMS; i++)
        if (s.rooms[i] != 0)
            release(&s, &s.victim, s.rooms[i]);
    bt_kv_agent_close(s.honest.agent);
    bt_kv_agent_close(s.victim.agent);
    free(s.raws[0].out.p);
    free(s.raws[1].out.p);
}
