/* kv_gateway_fuzz.c - any gateway against an agent: the input is a script of what the gateway says (well-formed and not), how its connection comes and goes, and
 * what the engine does meanwhile. The agent is both sides of its rooms, so that pages move, senders are replaced and rooms are released under all of it.
 *
 * Whatever happens: no assertion, no leak, no call that fails because of the gateway, and every room can be released in the end.
 */
#include "base/err.h"
#include "base/log.h"
#include "transport/wire/control.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "kv_gateway_fuzz: %s (line %d)\n", #cond, __LINE__);                   \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

#define ROOMS 16u
#define PAGES 8u
#define PAGE_BYTES 64u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

typedef struct script {
    const uint8_t *p;
    size_t n;
    bt_kv_agent_t *agent;
    bt_kv_layout_t layout;
    int listen_fd, fd;
    bt_kv_room_t rooms[ROOMS];
    uint32_t room_count;
} script_t;

static unsigned next(script_t *s)
{
    if (s->n == 0)
        return 0;
    s->n--;
    return *s->p++;
}

static void turns(script_t *s, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        bt_kv_progress(s->agent, 0);
}

static void say_bytes(const script_t *s, const void *p, size_t n)
{
    if (s->fd >= 0 && send(s->fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        return; /* full, or gone: the script goes on */
}

static void say(const script_t *s, const bt_kv_control_t *message)
{
    static uint8_t bytes[BT_KV_CONTROL_BYTES];
    ptrdiff_t n = bt_kv_control_encode(message, bytes, sizeof(bytes));

    CHECK(n > 0);
    say_bytes(s, bytes, (size_t) n);
}

/* ---- the gateway ---- */
static void hang_up(script_t *s)
{
    if (s->fd >= 0)
        close(s->fd);
    s->fd = -1;
}

static void take_agent(script_t *s)
{
    if (s->fd < 0)
        s->fd = accept4(s->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    turns(s, 1);
    say(s, &(bt_kv_control_t){.type = BT_KV_CONTROL_WELCOME,
                              .welcome = {BT_KV_CONTROL_VERSION, 10, 1000, 1 + next(s) % 2}});
}

static void send_open(script_t *s, uint8_t type)
{
    unsigned how = next(s), time = next(s);
    bt_kv_control_t m = {.type = type,
                         .open = {.room = 1 + how % 4,
                                  .source_room = 1 + (how >> 2) % 4,
                                  .side = (uint8_t) (1 + (how >> 4) % 2),
                                  .expire_ms = time % 4,
                                  .repair_ms = time / 4 % 4 * 20,
                                  .peer_count = (how >> 5) % 3}};

    for (uint32_t i = 0; i < m.open.peer_count; i++)
        m.open.peers[i] =
            (bt_kv_control_peer_t){i, (how >> 7) != 0 ? BT_STR("not.a.host") : BT_STR("127.0.0.1"),
                                   time >> 7 != 0 ? 1 : bt_kv_agent_port(s->agent)};
    say(s, &m);
}

static void say_rubbish(script_t *s)
{
    size_t n = next(s);

    n = n < s->n ? n : s->n;
    say_bytes(s, s->p, n);
    s->p += n;
    s->n -= n;
}

/* ---- the engine ---- */
static void keep(script_t *s, int rc, bt_kv_room_t room)
{
    CHECK(rc == 0 || rc == BT_E_INVAL || rc == BT_E_LIMIT); /* INVAL: a sender's id twice */
    if (rc == 0)
        s->rooms[s->room_count++] = room;
}

static void open_sender(script_t *s)
{
    bt_kv_send_spec_t spec = {.room = 1 + next(s) % 4, .layout = s->layout};
    bt_kv_room_t room = 0;

    if (s->room_count < ROOMS)
        keep(s, bt_kv_send_open(s->agent, &spec, &room), room);
}

static void open_receiver(script_t *s)
{
    static const uint32_t pages[] = {4, 6, 7};
    unsigned how = next(s);
    bt_kv_source_t source = {.host = "127.0.0.1", .port = bt_kv_agent_port(s->agent)};
    bt_kv_recv_t recv = {.room = 1 + how % 4,
                         .layout = s->layout,
                         .pages = pages,
                         .page_count = 3,
                         .sources = &source,
                         .source_count = how >> 2 & 1};
    bt_kv_room_t room = 0;

    if (s->room_count == ROOMS)
        return;
    int rc = bt_kv_recv_open(s->agent, &recv, &room);
    CHECK(rc == 0);
    keep(s, rc, room);
}

static void send_chunk(script_t *s)
{
    static const uint32_t pages[] = {0, 1, 2};
    unsigned how = next(s);
    bt_kv_chunk_t chunk = {.first = how >> 6 != 0 ? 2 : 0,
                           .pages = pages,
                           .page_count = how >> 6 != 0 ? 1 : 3,
                           .last = how >> 6 != 1};

    if (s->room_count > 0)
        bt_kv_send(s->agent, s->rooms[how % 64 % s->room_count], &chunk);
}

static void end_room(script_t *s)
{
    unsigned how = next(s);
    uint32_t i;

    if (s->room_count == 0)
        return;
    i = how % 64 % s->room_count;
    if (how >> 6 == 0)
        bt_kv_abort(s->agent, s->rooms[i], "the client left");
    else if (bt_kv_room_release(s->agent, s->rooms[i]) == 1)
        s->rooms[i] = s->rooms[--s->room_count];
}

static void step(script_t *s)
{
    switch (next(s) % 11) {
    case 0:
        open_sender(s);
        break;
    case 1:
        open_receiver(s);
        break;
    case 2:
        send_chunk(s);
        break;
    case 3:
        end_room(s);
        break;
    case 4:
        send_open(s, BT_KV_CONTROL_OPEN);
        break;
    case 5:
        send_open(s, BT_KV_CONTROL_SOURCE);
        break;
    case 6:
        say(s, &(bt_kv_control_t){.type = BT_KV_CONTROL_ABORT,
                                  .abort = {1 + next(s) % 4, BT_STR("why")}});
        break;
    case 7:
        say_rubbish(s);
        break;
    case 8:
        hang_up(s);
        break;
    case 9:
        take_agent(s);
        break;
    default:
        turns(s, 1 + next(s) % 8);
    }
    turns(s, 1);
}

/* ---- a run ---- */
static void open_gateway(script_t *s)
{
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t size = sizeof(at);

    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    s->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    CHECK(s->listen_fd >= 0 && bind(s->listen_fd, (struct sockaddr *) &at, sizeof(at)) == 0);
    CHECK(listen(s->listen_fd, 4) == 0);
    CHECK(getsockname(s->listen_fd, (struct sockaddr *) &at, &size) == 0);
    bt_kv_gateway_t gateway = {.host = "127.0.0.1", .port = ntohs(at.sin_port), .worker = "w"};
    CHECK(bt_kv_gateway_add(s->agent, &gateway, NULL) == 0);
}

static void open_agent(script_t *s)
{
    bt_kv_config_t config = {.name = "both",
                             .progress = BT_KV_PROGRESS_CALLER,
                             .backends = BT_KV_TCP,
                             .release_ms = 50,
                             .max_rooms = 64};
    bt_kv_buffer_t buffer = {.stride = PAGE_BYTES, .bytes = PAGE_BYTES};
    void *p;
    char err[256];

    CHECK(bt_kv_agent_open(&s->agent, &config, err, sizeof(err)) == 0);
    CHECK(bt_kv_pool_alloc(s->agent, PAGES * PAGE_BYTES, &p, &buffer.region) == 0);
    CHECK(bt_kv_layout_add(s->agent, &buffer, 1, PAGES, &s->layout) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    script_t s = {.p = data, .n = size, .fd = -1};

    bt_log_level_now = BT_LOG_ERROR;
    open_agent(&s);
    open_gateway(&s);
    turns(&s, 2);
    take_agent(&s);
    turns(&s, 2);
    for (int i = 0; i < 200 && s.n > 0; i++)
        step(&s);
    for (int i = 0; s.room_count > 0; i++) { /* release_ms bounds it */
        CHECK(i < 100000);
        for (uint32_t r = s.room_count; r-- > 0;)
            if (bt_kv_room_release(s.agent, s.rooms[r]) == 1)
                s.rooms[r] = s.rooms[--s.room_count];
        bt_kv_progress(s.agent, 1);
    }
    bt_kv_agent_close(s.agent);
    hang_up(&s);
    close(s.listen_fd);
    return 0;
}
