/* rig.h - a hub on a loop that the test turns, a registry of workers before it, and fake agents that speak control.h over loopback. */
#ifndef SPEC_UNIT_TRANSFER_RIG_H
#define SPEC_UNIT_TRANSFER_RIG_H

#include "cluster/help.h"
#include "loop/util.h"

#include "loop/listener.h"
#include "transfer/transfer.h"
#include "transport/wire/auth.h"
#include "transport/wire/control.h"

#include <stdio.h>

#define EVENTS_MAX 64

typedef struct rig {
    bt_loop_t loop;
    bt_transfer_t *t;
    bt_registry_t *registry;
    unsigned port;
    const char *token; /* what fakes prove; NULL: nothing */
    bt_transfer_event_t events[EVENTS_MAX];
    unsigned event_count, event_at; /* come; looked at */
    unsigned gone_count;            /* agents whose process is gone */
    char gone[128];                 /* the last one's worker, and why */
    bool is_closed;
} rig_t;

static inline void rig_publish(void *user, bt_workers_t *workers)
{
    rig_t *rig = user;

    if (rig->t != NULL)
        bt_transfer_set_workers(rig->t, workers);
}

static inline void rig_on_gone(void *user, bt_worker_t *worker, const char *why)
{
    rig_t *rig = user;

    rig->gone_count++;
    snprintf(rig->gone, sizeof rig->gone, "%s: %s", worker->name, why);
}

static inline void rig_open(rig_t *rig, const bt_transfer_config_t *config)
{
    bt_transfer_config_t ours = config != NULL ? *config : (bt_transfer_config_t){0};
    const bt_worker_spec_t *none[1] = {NULL};
    unsigned count = 0;
    bt_pool_spec_t pool;
    char err[256] = "";

    alarm(50); /* a condition that never comes true */
    memset(rig, 0, sizeof *rig);
    rig->token = ours.token;
    ours.on_gone = rig_on_gone;
    ours.user = rig;
    bt_log_set(BT_LOG_ERROR, false, 2);
    assert_int_equal(bt_loop_init(&rig->loop, BT_LOOP_CONTROL), 0);
    assert_int_equal(bt_registry_new(&rig->registry, NULL, rig_publish, rig), 0);
    bt_pool_spec_init(&pool);
    pool.name = text("default");
    assert_int_equal(bt_registry_apply(rig->registry, &pool, 1, none, &count, err, sizeof err), 0);
    bt_pool_spec_fini(&pool);
    assert_int_equal(bt_transfer_new(&rig->t, &rig->loop, &ours), 0);
    int fd = bt_listener_bind("127.0.0.1", 0, false, &rig->port);
    assert_true(fd >= 0);
    assert_int_equal(bt_transfer_listen(rig->t, fd), 0);
}

static inline void rig_on_closed(void *user)
{
    ((rig_t *) user)->is_closed = true;
}

static inline void rig_close_hub(rig_t *rig)
{
    bt_transfer_t *t = rig->t;

    rig->t = NULL;
    bt_transfer_free(t, rig_on_closed, rig);
    TURN_UNTIL(&rig->loop, rig->is_closed);
}

static inline void rig_close(rig_t *rig)
{
    if (rig->t != NULL)
        rig_close_hub(rig);
    bt_registry_free(rig->registry);
    assert_int_equal(atomic_load(&rig->loop.connections), 0);
    bt_loop_fini(&rig->loop);
    assert_int_equal(bt_soft_count(), 0);
    alarm(0);
}

/* ---- workers ---- */
static inline bt_worker_t *rig_worker(const rig_t *rig, const char *name)
{
    return bt_workers_find(bt_registry_current(rig->registry), bt_str(name));
}

static inline bt_worker_t *rig_add(rig_t *rig, enum bt_role role, const char *name, const char *url)
{
    bt_worker_spec_t spec;
    char err[256] = "";

    make_spec(&spec, role, url, "NixlConnector");
    spec.name = text(name);
    if (bt_registry_add(rig->registry, NULL, &spec, err, sizeof err) != 0)
        fail_msg("%s", err);
    bt_worker_spec_fini(&spec);
    return rig_worker(rig, name);
}

static inline bool has_agents(const rig_t *rig, const char *name)
{
    return atomic_load(&rig_worker(rig, name)->has_agents);
}

static inline bt_transfer_stats_t rig_stats(const rig_t *rig)
{
    bt_transfer_stats_t stats;

    bt_transfer_stats(rig->t, &stats);
    return stats;
}

/* ---- fake agents ---- */
typedef struct fake {
    rig_t *rig;
    int fd;
    uint8_t in[1 << 17];
    size_t n, used; /* bytes there; of messages looked at */
    bool is_over;   /* FIN or RST has come */
    bt_kv_auth_t auth;
} fake_t;

/* from: an address of this host, host order. */
static inline void fake_dial_from(fake_t *f, rig_t *rig, in_addr_t from)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t) rig->port)},
                       here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(from)};

    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    f->rig = rig;
    f->n = f->used = 0;
    f->is_over = false;
    f->auth = (bt_kv_auth_t){0};
    f->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(f->fd, (struct sockaddr *) &here, sizeof here), 0);
    assert_int_equal(connect(f->fd, (struct sockaddr *) &to, sizeof to), 0);
}

static inline void fake_dial(fake_t *f, rig_t *rig)
{
    fake_dial_from(f, rig, INADDR_LOOPBACK);
}

static inline void fake_hang_up(fake_t *f)
{
    if (f->fd >= 0)
        close(f->fd);
    f->fd = -1;
}

static inline void fake_send(fake_t *f, const void *p, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t sent = send(f->fd, (const char *) p + at, n - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0)
            at += (size_t) sent;
        else if (errno == EAGAIN)
            turn_once(&f->rig->loop);
        else
            return; /* it was hung up on, which the test looks for */
    }
}

static inline void fake_say(fake_t *f, const bt_kv_control_t *m)
{
    uint8_t bytes[8192 + BT_KV_SEAL_BYTES];
    ptrdiff_t n = bt_kv_control_encode(m, bytes, 8192);

    assert_true(n > 0);
    if (f->auth.is_done) {
        bt_kv_seal_put(&f->auth.out, bytes, (size_t) n, bytes + n);
        n += BT_KV_SEAL_BYTES;
    }
    fake_send(f, bytes, (size_t) n);
}

static inline bt_kv_control_t hello_of(const char *worker, uint32_t rank, uint32_t ranks,
                                       uint64_t incarnation)
{
    return (bt_kv_control_t){.type = BT_KV_CONTROL_HELLO,
                             .hello = {.version = BT_KV_CONTROL_VERSION,
                                       .rank = rank,
                                       .ranks = ranks,
                                       .kinds = BT_KV_SHM | BT_KV_TCP,
                                       .pid = 4711,
                                       .incarnation = incarnation,
                                       .name = BT_STR("agent"),
                                       .worker = bt_str(worker),
                                       .host = BT_STR("127.0.0.1"),
                                       .port = (uint16_t) (9000 + rank)}};
}

static inline void fake_recv(fake_t *f)
{
    memmove(f->in, f->in + f->used, f->n - f->used);
    f->n -= f->used;
    f->used = 0;
    ssize_t n = f->is_over ? -1 : recv(f->fd, f->in + f->n, sizeof f->in - f->n, MSG_DONTWAIT);
    if (n > 0)
        f->n += (size_t) n;
    else if (n == 0 || errno != EAGAIN)
        f->is_over = true;
}

/* A message is there, with its seal. */
static inline ptrdiff_t fake_cut(fake_t *f, bt_kv_control_t *m)
{
    size_t seal = f->auth.is_done ? BT_KV_SEAL_BYTES : 0;
    ptrdiff_t size = bt_kv_control_next(f->in + f->used, f->n - f->used, m);

    assert_true(size >= 0);
    return size > 0 && f->n - f->used >= (size_t) size + seal ? size : 0;
}

/* One more message has come; false while there is none. */
static inline bool fake_next(fake_t *f, bt_kv_control_t *m)
{
    const char *why;
    ptrdiff_t size = fake_cut(f, m);

    if (size == 0) {
        fake_recv(f);
        size = fake_cut(f, m);
    }
    if (size == 0)
        return false;
    if (f->auth.is_done) {
        assert_true(bt_kv_seal_is_good(&f->auth.in, f->in + f->used, (size_t) size));
        f->used += BT_KV_SEAL_BYTES;
    }
    assert_int_equal(bt_kv_control_decode(m, &why), 0);
    f->used += (size_t) size;
    return true;
}

/* Proves these tokens (NULL: nothing to prove), or is refused, which is the next message. */
static inline void fake_prove(fake_t *f, const char *tokens)
{
    uint8_t out[BT_KV_AUTH_OUT];
    const char *why;
    ptrdiff_t used = 1;
    size_t n = tokens != NULL ? bt_kv_auth_init(&f->auth, BT_KV_AUTH_GATEWAY, true, out) : 0;

    while (n > 0) {
        fake_send(f, out, n);
        n = 0;
        if (f->auth.is_done)
            return;
        TURN_UNTIL(&f->rig->loop, (used = bt_kv_auth_take(&f->auth, tokens, f->in + f->used,
                                                          f->n - f->used, out, &n, &why)) != 0 ||
                                      f->is_over || (fake_recv(f), false));
        f->used += used > 0 ? (size_t) used : 0;
    }
}

/* The next message that is no PING, which must be of this type; valid until the next one is asked for. */
static inline bt_kv_control_t fake_hear(fake_t *f, enum bt_kv_control_type type)
{
    bt_kv_control_t m = {0};

    for (;;) {
        TURN_UNTIL(&f->rig->loop, fake_next(f, &m) || f->is_over);
        if (m.type == 0)
            fail_msg("hung up on while waiting for a message of type %d", type);
        if (m.type != BT_KV_CONTROL_PING || type == BT_KV_CONTROL_PING)
            break;
        m.type = 0;
    }
    if (m.type != type)
        fail_msg("a message of type %d instead of %d", m.type, type);
    return m;
}

static inline void fake_hear_end(fake_t *f)
{
    bt_kv_control_t m;

    TURN_UNTIL(&f->rig->loop, !fake_next(f, &m) && f->is_over);
}

/* One HELLO, from this address: how long it shall stay away, and why; 0: it is welcome. */
static inline uint32_t fake_try(fake_t *f, rig_t *rig, in_addr_t from, const bt_kv_control_t *hello,
                                char why[BT_KV_CONTROL_TEXT_MAX + 1])
{
    bt_kv_control_t m = {0};

    fake_dial_from(f, rig, from);
    fake_prove(f, rig->token);
    fake_say(f, hello);
    TURN_UNTIL(&rig->loop, fake_next(f, &m) || f->is_over);
    if (m.type == BT_KV_CONTROL_WELCOME)
        return 0;
    assert_int_equal(m.type, BT_KV_CONTROL_REFUSE);
    assert_true(m.refuse.retry_ms > 0);
    snprintf(why, BT_KV_CONTROL_TEXT_MAX + 1, "%.*s", BT_STR_ARG(m.refuse.reason));
    uint32_t retry_ms = m.refuse.retry_ms;
    fake_hear_end(f);
    close(f->fd);
    f->fd = -1;
    return retry_ms;
}

static inline void fake_join_as(fake_t *f, rig_t *rig, const bt_kv_control_t *hello)
{
    fake_dial(f, rig);
    fake_prove(f, rig->token);
    fake_say(f, hello);
    bt_kv_control_t m = fake_hear(f, BT_KV_CONTROL_WELCOME);
    assert_int_equal(m.welcome.version, BT_KV_CONTROL_VERSION);
}

static inline void fake_join(fake_t *f, rig_t *rig, const char *worker, uint32_t rank,
                             uint32_t ranks, uint64_t incarnation)
{
    bt_kv_control_t hello = hello_of(worker, rank, ranks, incarnation);

    fake_join_as(f, rig, &hello);
}

static inline bt_kv_control_t room_of(uint64_t room, enum bt_kv_side side, enum bt_kv_state state,
                                      uint64_t bytes)
{
    return (bt_kv_control_t){.type = BT_KV_CONTROL_ROOM,
                             .room = {.room = room,
                                      .side = (uint8_t) side,
                                      .state = (uint8_t) state,
                                      .kind = BT_KV_TCP,
                                      .bytes = bytes,
                                      .pages = bytes / 1024,
                                      .pages_wanted = 4,
                                      .wait_us = 1000,
                                      .transfer_us = 2000}};
}

static inline void fake_tell(fake_t *f, uint64_t room, enum bt_kv_side side, enum bt_kv_state state,
                             uint64_t bytes)
{
    bt_kv_control_t m = room_of(room, side, state, bytes);

    fake_say(f, &m);
}

static inline void fake_tell_failed(fake_t *f, uint64_t room, enum bt_kv_side side, int rc,
                                    const char *reason)
{
    bt_kv_control_t m = room_of(room, side, BT_KV_FAILED, 0);

    m.room.rc = rc;
    m.room.reason = bt_str(reason);
    fake_say(f, &m);
}

static inline void fake_tell_orphan(fake_t *f, uint64_t room)
{
    bt_kv_control_t m = room_of(room, BT_KV_SIDE_RECEIVER, BT_KV_WAITING_FOR_INPUT, 0);

    m.room.is_orphan = true;
    m.room.rc = BT_E_RESET;
    m.room.reason = BT_STR("lost agent p0");
    fake_say(f, &m);
}

/* What it has said so far has been read: a report of a room that nobody knows changes nothing, but the figures of a PING are seen. */
static inline void fake_sync(fake_t *f)
{
    static uint64_t next = 1000;
    bt_text_t text;
    char mark[64];
    bool is_there = false;

    fake_say(f, &(bt_kv_control_t){.type = BT_KV_CONTROL_PING, .ping = {0, ++next, 0}});
    snprintf(mark, sizeof mark, "\"bytes_sent\":%llu,", (unsigned long long) next);
    while (!is_there) {
        turn_once(&f->rig->loop);
        bt_text_init(&text);
        bt_transfer_describe(f->rig->t, 0, &text);
        is_there = strstr(text.data, mark) != NULL;
        bt_text_fini(&text);
    }
}

/* ---- rooms ---- */
static inline void rig_on_event(void *user, const bt_transfer_event_t *event)
{
    rig_t *rig = user;

    assert_true(rig->event_count < EVENTS_MAX);
    rig->events[rig->event_count++] = *event;
}

static inline bt_transfer_room_spec_t spec_of(rig_t *rig, uint64_t room)
{
    return (bt_transfer_room_spec_t){.room = room,
                                     .prefill = rig_worker(rig, "p0"),
                                     .decode = rig_worker(rig, "d0"),
                                     .request_id = "request-1",
                                     .loop = &rig->loop,
                                     .on_event = rig_on_event,
                                     .user = rig};
}

static inline const bt_transfer_event_t *rig_event(rig_t *rig, enum bt_transfer_what what)
{
    TURN_UNTIL(&rig->loop, rig->event_at < rig->event_count);
    const bt_transfer_event_t *event = &rig->events[rig->event_at++];
    if (event->what != what)
        fail_msg("event %d instead of %d: %s", event->what, what, event->reason);
    return event;
}

static inline void no_event(rig_t *rig)
{
    turn(&rig->loop, 3);
    if (rig->event_at < rig->event_count)
        fail_msg("event %d: %s", rig->events[rig->event_at].what,
                 rig->events[rig->event_at].reason);
}

static inline void assert_in(const char *whole, const char *part)
{
    if (strstr(whole, part) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", part, whole);
}

/* ---- a pair: one agent a side ---- */
typedef struct pair {
    rig_t rig;
    fake_t p, d;
} pair_t;

static inline void pair_open(pair_t *x, const bt_transfer_config_t *config)
{
    rig_open(&x->rig, config);
    (void) rig_add(&x->rig, BT_ROLE_PREFILL, "p0", "http://127.0.0.1:8001");
    (void) rig_add(&x->rig, BT_ROLE_DECODE, "d0", "http://127.0.0.1:8002");
    fake_join(&x->p, &x->rig, "p0", 0, 1, 11);
    fake_join(&x->d, &x->rig, "d0", 0, 1, 12);
    TURN_UNTIL(&x->rig.loop, has_agents(&x->rig, "p0") && has_agents(&x->rig, "d0"));
}

static inline void pair_close(pair_t *x)
{
    fake_hang_up(&x->p);
    fake_hang_up(&x->d);
    rig_close(&x->rig);
}

static inline void pair_room_of(pair_t *x, const bt_transfer_room_spec_t *spec)
{
    assert_int_equal(bt_transfer_room_open(x->rig.t, spec), 0);
    bt_kv_control_t m = fake_hear(&x->p, BT_KV_CONTROL_OPEN);
    assert_int_equal(m.open.room, spec->room);
    assert_int_equal(m.open.side, BT_KV_SIDE_SENDER);
    m = fake_hear(&x->d, BT_KV_CONTROL_OPEN);
    assert_int_equal(m.open.room, spec->room);
    assert_int_equal(m.open.side, BT_KV_SIDE_RECEIVER);
}

static inline void pair_room(pair_t *x, uint64_t room)
{
    bt_transfer_room_spec_t spec = spec_of(&x->rig, room);

    pair_room_of(x, &spec);
}

/* Both engines have opened it. */
static inline void pair_wait_room(pair_t *x, uint64_t room)
{
    fake_tell(&x->p, room, BT_KV_SIDE_SENDER, BT_KV_WAITING_FOR_INPUT, 0);
    fake_tell(&x->d, room, BT_KV_SIDE_RECEIVER, BT_KV_WAITING_FOR_INPUT, 0);
}

static inline void pair_move_room(pair_t *x, uint64_t room)
{
    pair_wait_room(x, room);
    fake_tell(&x->d, room, BT_KV_SIDE_RECEIVER, BT_KV_TRANSFERRING, 1024);
    assert_int_equal(rig_event(&x->rig, BT_TRANSFER_MOVING)->room, room);
}

#endif
