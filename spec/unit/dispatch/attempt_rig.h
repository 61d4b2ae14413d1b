/* attempt_rig.h - a dispatcher between a client, engines played by hand over loopback, and a hub that is not there: the spec is the
 * hub, so every order in which its mail and the legs' ends can arrive is one that it chooses. For one program.
 */
#ifndef SPEC_DISPATCH_ATTEMPT_RIG_H
#define SPEC_DISPATCH_ATTEMPT_RIG_H

#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "dispatch/attempt.h"
#include "loop/util.h"
#include "transfer/transfer.h"

#include <arpa/inet.h>
#include <stdio.h>

/* ---- the hub ---- */

#define CALLS_MAX 16

static struct hub {
    bt_transfer_room_spec_t opened[CALLS_MAX];
    char opened_for[CALLS_MAX][2][32];
    unsigned open_count;
    struct {
        uint64_t room, source_room;
        char prefill[32];
    } repaired[CALLS_MAX];
    unsigned repair_count;
    struct {
        uint64_t room;
        bool is_abort;
        char reason[200];
    } closed[CALLS_MAX];
    unsigned close_count;
    int rc; /* of open and repair */
} hub;

int bt_transfer_room_open(bt_transfer_t *t, const bt_transfer_room_spec_t *spec)
{
    assert_ptr_equal(t, &hub);
    if (hub.rc < 0)
        return hub.rc;
    assert_true(hub.open_count < CALLS_MAX);
    hub.opened[hub.open_count] = *spec;
    snprintf(hub.opened_for[hub.open_count][0], 32, "%s", spec->prefill->name);
    snprintf(hub.opened_for[hub.open_count][1], 32, "%s", spec->decode->name);
    hub.open_count++;
    return 0;
}

int bt_transfer_repair(bt_transfer_t *t, uint64_t room, uint64_t source_room, bt_worker_t *prefill)
{
    assert_ptr_equal(t, &hub);
    if (hub.rc < 0)
        return hub.rc;
    assert_true(hub.repair_count < CALLS_MAX);
    hub.repaired[hub.repair_count].room = room;
    hub.repaired[hub.repair_count].source_room = source_room;
    snprintf(hub.repaired[hub.repair_count++].prefill, 32, "%s", prefill->name);
    return 0;
}

void bt_transfer_room_close(bt_transfer_t *t, uint64_t room, bool is_abort, const char *reason)
{
    assert_ptr_equal(t, &hub);
    assert_true(hub.close_count < CALLS_MAX);
    hub.closed[hub.close_count].room = room;
    hub.closed[hub.close_count].is_abort = is_abort;
    snprintf(hub.closed[hub.close_count++].reason, 200, "%s", reason);
}

enum { NOBODY, PREFILL_FAULT, DECODE_FAULT };

/* As mail about the i-th room that was opened. source_room 0: as opened. */
static inline void tell(unsigned i, enum bt_transfer_what what, uint64_t source_room, int fault)
{
    const bt_transfer_room_spec_t *spec = &hub.opened[i];
    bt_transfer_event_t e = {
        .what = what,
        .room = spec->room,
        .source_room = source_room != 0 ? source_room : spec->room,
        .rc = BT_E_KV_TRANSFER,
        .is_prefill_fault = fault == PREFILL_FAULT,
        .is_decode_fault = fault == DECODE_FAULT,
        .bytes = 65536,
        .wait_us = 30000,
        .transfer_us = 1200,
        .reason = "as the spec says",
    };

    spec->on_event(spec->user, &e);
}

/* ---- engines ---- */

struct engine {
    bt_worker_t *worker;
    int listener, conn;
    unsigned requests;
    bool is_eof;
    size_t len;
    char got[8192]; /* the last request */
};

enum { P0, P1, P2, D0, D1, ENGINES };
static const char *const names[ENGINES] = {"p0", "p1", "p2", "d0", "d1"};
static struct engine engines[ENGINES];

static struct rig {
    bt_loop_t loop;
    bt_dispatch_shared_t shared;
    bt_registry_t *registry;
    bt_dispatcher_t *d;
    bt_server_t *server;
    int client;
    char answer[16384];
    size_t answer_len;
    bool is_closed;
} rig;

static inline void hang_up(struct engine *e)
{
    if (e->conn >= 0)
        close(e->conn);
    e->conn = -1;
}

/* True when a whole request is here. */
static inline bool has_request(struct engine *e)
{
    const char *length, *end;
    ssize_t n;

    if (e->conn < 0) {
        e->conn = accept4(e->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        e->len = 0;
        e->is_eof = false;
    }
    if (e->conn < 0)
        return false;
    n = read(e->conn, e->got + e->len, sizeof(e->got) - 1 - e->len);
    if (n > 0)
        e->len += (size_t) n;
    e->got[e->len] = '\0';
    end = strstr(e->got, "\r\n\r\n");
    length = strstr(e->got, "Content-Length: ");
    if (end == NULL || length == NULL || strlen(end + 4) < strtoul(length + 16, NULL, 10))
        return false;
    e->requests++;
    return true;
}

static inline bool has_hung_up(struct engine *e)
{
    char byte;
    ssize_t n = e->conn >= 0 ? read(e->conn, &byte, 1) : -1;

    return n == 0 || (n < 0 && errno == ECONNRESET);
}

static inline bool has_caller(const struct engine *e)
{
    struct pollfd one = {.fd = e->listener, .events = POLLIN};

    return poll(&one, 1, 0) == 1;
}

static inline void take(int which)
{
    TURN_UNTIL(&rig.loop, has_request(&engines[which]));
}

static uint64_t room_in(int which)
{
    const char *at = strstr(engines[which].got, "\"baton_room\":");

    assert_non_null(at);
    return strtoull(at + strlen("\"baton_room\":"), NULL, 10);
}

static inline void answer(int which, unsigned status, const char *body)
{
    char text[1024];
    int n =
        snprintf(text, sizeof(text),
                 "HTTP/1.1 %u X\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                 status, strlen(body), body);

    assert_int_equal(write(engines[which].conn, text, (size_t) n), n);
    engines[which].len = 0;
}

static inline void reset(int which)
{
    close_with_reset(engines[which].conn);
    engines[which].conn = -1;
}

/* ---- the client ---- */

static inline bool has_answer(void)
{
    const char *end, *length;
    ssize_t n =
        read(rig.client, rig.answer + rig.answer_len, sizeof(rig.answer) - 1 - rig.answer_len);

    if (n > 0)
        rig.answer_len += (size_t) n;
    rig.answer[rig.answer_len] = '\0';
    end = strstr(rig.answer, "\r\n\r\n");
    length = strstr(rig.answer, "Content-Length: ");
    return end != NULL && length != NULL && strlen(end + 4) >= strtoul(length + 16, NULL, 10);
}

static inline void ask(void)
{
    static const char body[] = "{\"model\":\"m\",\"prompt\":\"x\"}";
    char text[512];
    int n = snprintf(text, sizeof(text),
                     "POST /v1/completions HTTP/1.1\r\nHost: h\r\nX-Request-Id: req-1\r\n"
                     "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                     sizeof(body) - 1, body);

    assert_int_equal(write(rig.client, text, (size_t) n), n);
}

/* The answer's head and body hold it. */
static inline void answered(const char *what)
{
    TURN_UNTIL(&rig.loop, has_answer());
    if (strstr(rig.answer, what) == NULL)
        fail_msg("no \"%s\" in %s", what, rig.answer);
}

/* The text that two engines were asked by, and the room between them. */
static inline void begin(int prefill, int decode)
{
    ask();
    take(prefill);
    take(decode);
    assert_int_equal(hub.open_count, 1);
    assert_string_equal(hub.opened_for[0][0], names[prefill]);
    assert_string_equal(hub.opened_for[0][1], names[decode]);
    assert_int_equal(room_in(prefill), hub.opened[0].room);
    assert_int_equal(room_in(decode), hub.opened[0].room);
}

/* A part of the last record's line. */
static inline void recorded(const char *what)
{
    bt_text_t line;

    TURN_UNTIL(&rig.loop, bt_dispatcher_idle(rig.d));
    bt_text_init(&line);
    assert_true(bt_record_ring_find(rig.d->records, BT_STR("req-1"), &line));
    if (strstr(line.data, what) == NULL)
        fail_msg("no %s in %s", what, line.data);
    bt_text_fini(&line);
}

/* Of the one request that lives. */
static inline bt_attempt_t *live_attempt(void)
{
    assert_false(bt_list_empty(&rig.d->live));
    return bt_container_of(rig.d->live.next, bt_request_t, link)->tasks[0].attempt;
}

static uint64_t blamed(int which)
{
    const enum bt_leg_role role = which < D0 ? BT_LEG_PREFILL : BT_LEG_DECODE;

    return atomic_load(&engines[which].worker->legs_total[role][BT_BLAME_GUILTY]);
}

/* ---- fixture ---- */

static inline void add_engine(int which, const char *url)
{
    bt_worker_spec_t spec;
    char err[256] = "";

    bt_worker_spec_init(&spec);
    spec.role = which < D0 ? BT_ROLE_PREFILL : BT_ROLE_DECODE;
    spec.url = bt_str_dup(bt_str(url));
    spec.name = bt_str_dup(bt_str(names[which]));
    spec.connector = bt_str_dup(BT_STR("BatonConnector"));
    if (bt_registry_add(rig.registry, NULL, &spec, err, sizeof(err)) < 0)
        fail_msg("%s", err);
    bt_worker_spec_fini(&spec);
}

static inline void open_engine(int which)
{
    struct engine *e = &engines[which];
    struct sockaddr_storage addr;
    char url[64];

    *e = (struct engine){.conn = -1};
    e->listener = raw_listen(AF_INET, &addr);
    assert_true(e->listener >= 0);
    fcntl(e->listener, F_SETFL, O_NONBLOCK);
    snprintf(url, sizeof(url), "http://127.0.0.1:%u",
             ntohs(((struct sockaddr_in *) &addr)->sin_port));
    add_engine(which, url);
}

/* The least loaded are p0 and d0, then p1 and d1. */
static inline void make_usable(int which)
{
    bt_worker_t *w = bt_workers_find(bt_registry_current(rig.registry), bt_str(names[which]));

    engines[which].worker = w;
    atomic_store(&w->has_agents, true);
    bt_worker_set_health(w, BT_HEALTH_UP, "spec");
    atomic_store(&w->tokens[which < D0 ? BT_PHASE_PREFILL : BT_PHASE_DECODE], 1000 * which);
}

static inline void open_dispatcher(void)
{
    static const bt_dispatch_config_t config = {.debug_headers = true};
    char err[256] = "";

    assert_int_equal(bt_dispatch_shared_init(&rig.shared, &config), 0);
    rig.shared.transfer = (struct bt_transfer *) &hub;
    if (bt_dispatcher_new(&rig.d, &rig.loop, &rig.shared, err, sizeof(err)) < 0 ||
        bt_dispatcher_set_workers(rig.d, bt_registry_current(rig.registry), err, sizeof(err)) < 0)
        fail_msg("%s", err);
    rig.shared.dispatchers = &rig.d;
    rig.shared.dispatcher_count = 1;
}

static inline void open_client(void)
{
    static bt_server_config_t config;
    int ours;

    bt_server_config_defaults(&config);
    assert_int_equal(
        bt_server_new(&rig.server, &rig.loop, &bt_dispatcher_server_ops, &config, rig.d), 0);
    tcp_pair(&ours, &rig.client);
    fcntl(rig.client, F_SETFL, O_NONBLOCK);
    fcntl(ours, F_SETFL, O_NONBLOCK);
    atomic_fetch_add(&rig.loop.connections, 1);
    bt_server_accept(rig.server, ours);
}

static inline int setup(void **state)
{
    const bt_worker_spec_t *workers[1] = {NULL};
    unsigned counts[1] = {0};
    bt_pool_spec_t pool;
    char err[256] = "";

    (void) state;
    bt_log_set(BT_LOG_ERROR, false, 2);
    hub = (struct hub){.rc = 0};
    rig = (struct rig){.client = -1};
    assert_int_equal(bt_loop_init(&rig.loop, 0), 0);
    bt_pool_spec_init(&pool);
    pool.name = bt_str_dup(BT_STR("default"));
    pool.deadlines.room_start_ms = 20000;
    pool.deadlines.room_stall_ms = 3000;
    pool.deadlines.room_repair_ms = 700;
    assert_int_equal(bt_registry_new(&rig.registry, NULL, NULL, NULL), 0);
    assert_int_equal(bt_registry_apply(rig.registry, &pool, 1, workers, counts, err, sizeof(err)),
                     0);
    bt_pool_spec_fini(&pool);
    for (int i = 0; i < ENGINES; i++)
        open_engine(i);
    for (int i = 0; i < ENGINES; i++)
        make_usable(i);
    open_dispatcher();
    open_client();
    return 0;
}

static inline void on_closed(void *arg)
{
    *(bool *) arg = true;
}

static inline void nothing_is_held(void)
{
    assert_int_equal(rig.d->rooms.live, 0);
    assert_int_equal(hub.close_count, hub.open_count); /* each once */
    for (unsigned i = 0; i < hub.close_count; i++)
        assert_int_equal(hub.closed[i].room, hub.opened[i].room);
    for (int i = 0; i < ENGINES; i++)
        for (int phase = 0; phase < BT_PHASE_COUNT; phase++) {
            const bool own = phase == (i < D0 ? BT_PHASE_PREFILL : BT_PHASE_DECODE);
            assert_int_equal(atomic_load(&engines[i].worker->tokens[phase]), own ? 1000 * i : 0);
            assert_int_equal(atomic_load(&engines[i].worker->requests[phase]), 0);
        }
}

static inline int teardown(void **state)
{
    (void) state;
    if (rig.client >= 0)
        close(rig.client);
    bt_server_close(rig.server, on_closed, &rig.is_closed);
    TURN_UNTIL(&rig.loop, rig.is_closed);
    bt_dispatcher_cancel_all(rig.d);
    TURN_UNTIL(&rig.loop, bt_dispatcher_idle(rig.d));
    nothing_is_held();
    bt_dispatcher_free(rig.d);
    bt_dispatch_shared_fini(&rig.shared);
    bt_registry_free(rig.registry);
    for (int i = 0; i < ENGINES; i++) {
        hang_up(&engines[i]);
        close(engines[i].listener);
    }
    bt_loop_fini(&rig.loop);
    bt_buf_thread_fini();
    bt_arena_thread_fini();
    assert_int_equal(bt_mem_bytes(BT_MEM_BUFFERS), 0);
    assert_int_equal(bt_soft_count(), 0);
    return 0;
}

#define REPLY "{\"id\":\"cmpl-1\",\"choices\":[{\"text\":\"hello\"}]}"

#endif
