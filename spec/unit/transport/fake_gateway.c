/* Sockets do not block; a message that does not fit is a failure of the spec. */
#include "fake_gateway.h"

#include "base/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static void fake_listen(fake_t *fake)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(fake->port)};
    socklen_t size = sizeof(at);
    int on = 1, small = 64 << 10;

    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    fake->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    setsockopt(fake->listen_fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    setsockopt(fake->listen_fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    assert_int_equal(bind(fake->listen_fd, (struct sockaddr *) &at, sizeof(at)), 0);
    assert_int_equal(listen(fake->listen_fd, 16), 0);
    assert_int_equal(getsockname(fake->listen_fd, (struct sockaddr *) &at, &size), 0);
    fake->port = ntohs(at.sin_port);
}

void fake_open(fake_t *fake)
{
    *fake = (fake_t){.incarnation = 1, .heartbeat_ms = 30, .dead_ms = 5000, .version = 1};
    for (unsigned i = 0; i < FAKE_CONNS; i++)
        fake->conns[i] = (fake_conn_t){.fd = -1, .in = malloc(FAKE_IN_BYTES)};
    fake_listen(fake);
}

static void drop(fake_conn_t *conn)
{
    if (conn->fd >= 0)
        close(conn->fd);
    *conn = (fake_conn_t){.fd = -1, .in = conn->in};
}

void fake_die(fake_t *fake)
{
    close(fake->listen_fd);
    fake->listen_fd = -1;
    for (unsigned i = 0; i < FAKE_CONNS; i++)
        drop(&fake->conns[i]);
}

void fake_live(fake_t *fake, uint64_t incarnation)
{
    fake->incarnation = incarnation;
    fake_listen(fake);
}

void fake_close(fake_t *fake)
{
    fake_die(fake);
    for (unsigned i = 0; i < FAKE_CONNS; i++)
        free(fake->conns[i].in);
    free(fake->reports);
}

/* ---- saying ---- */
static void say_bytes(fake_t *fake, fake_conn_t *conn, const void *p, size_t n)
{
    const char *at = p;
    uint64_t end_ms = rig_now_ms() + 20000;

    while (n > 0 && conn->fd >= 0) {
        ssize_t done = send(conn->fd, at, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (done > 0) {
            at += done;
            n -= (size_t) done;
        } else if (done < 0 && errno != EAGAIN && errno != EINTR) {
            return; /* the turn finds out */
        } else if (rig_now_ms() > end_ms) {
            fail_msg("an agent does not read");
        } else { /* agents in CALLER mode read in their turns */
            for (unsigned i = 0; i < 4; i++)
                if (fake->sides[i] != NULL)
                    rig_turn(fake->sides[i], NULL);
        }
    }
}

static void say(fake_t *fake, fake_conn_t *conn, const bt_kv_control_t *message)
{
    uint8_t bytes[BT_KV_CONTROL_BYTES];
    ptrdiff_t n = bt_kv_control_encode(message, bytes, sizeof(bytes));

    assert_true(n > 0);
    say_bytes(fake, conn, bytes, (size_t) n);
}

fake_conn_t *fake_find(fake_t *fake, const char *agent)
{
    for (unsigned i = 0; i < FAKE_CONNS; i++)
        if (fake->conns[i].fd >= 0 && fake->conns[i].is_registered &&
            strcmp(fake->conns[i].name, agent) == 0)
            return &fake->conns[i];
    return NULL;
}

void fake_say(fake_t *fake, const char *agent, const bt_kv_control_t *message)
{
    fake_conn_t *conn = fake_find(fake, agent);

    assert_non_null(conn);
    say(fake, conn, message);
}

void fake_say_bytes(fake_t *fake, const char *agent, const void *p, size_t n)
{
    fake_conn_t *conn = fake_find(fake, agent);

    assert_non_null(conn);
    say_bytes(fake, conn, p, n);
}

void fake_open_room(fake_t *fake, uint8_t type, const char *agent, uint8_t side, uint64_t room,
                    uint64_t source_room, uint32_t repair_ms, rig_side_t *const *peers,
                    uint32_t count)
{
    bt_kv_control_t m = {.type = type,
                         .open = {.room = room,
                                  .source_room = source_room,
                                  .side = side,
                                  .expire_ms = 60000,
                                  .repair_ms = repair_ms,
                                  .peer_count = count}};

    for (uint32_t i = 0; i < count; i++)
        m.open.peers[i] =
            (bt_kv_control_peer_t){i, BT_STR("127.0.0.1"), bt_kv_agent_port(peers[i]->agent)};
    fake_say(fake, agent, &m);
}

void fake_abort(fake_t *fake, const char *agent, uint64_t room, const char *reason)
{
    fake_say(fake, agent,
             &(bt_kv_control_t){.type = BT_KV_CONTROL_ABORT, .abort = {room, bt_str(reason)}});
}

/* ---- hearing ---- */
static bt_str_t keep(char *to, size_t size, bt_str_t text)
{
    snprintf(to, size, "%.*s", BT_STR_ARG(text));
    return bt_str(to);
}

static void got_hello(fake_t *fake, fake_conn_t *conn, const bt_kv_control_hello_t *hello)
{
    conn->hello = *hello;
    conn->hello.name = keep(conn->name, sizeof(conn->name), hello->name);
    conn->hello.worker = keep(conn->worker, sizeof(conn->worker), hello->worker);
    conn->hello.host = keep(conn->host, sizeof(conn->host), hello->host);
    if (fake->refusal != NULL) {
        say(fake, conn,
            &(bt_kv_control_t){.type = BT_KV_CONTROL_REFUSE,
                               .refuse = {fake->retry_ms, bt_str(fake->refusal)}});
        fake->refused++;
        return;
    }
    conn->is_registered = true;
    say(fake, conn,
        &(bt_kv_control_t){
            .type = BT_KV_CONTROL_WELCOME,
            .welcome = {fake->version, fake->heartbeat_ms, fake->dead_ms, fake->incarnation}});
}

static void got_report(fake_t *fake, const fake_conn_t *conn, const bt_kv_control_room_t *room)
{
    if (fake->report_count == fake->report_room) {
        fake->report_room = fake->report_room * 2 + 64;
        fake->reports = realloc(fake->reports, fake->report_room * sizeof(*fake->reports));
        assert_non_null(fake->reports);
        for (uint32_t i = 0; i < fake->report_count; i++)
            fake->reports[i].room.reason = bt_str(fake->reports[i].reason);
    }
    fake_report_t *report = &fake->reports[fake->report_count++];
    bt_str_copy(report->agent, sizeof(report->agent), conn->name);
    report->room = *room;
    report->room.reason = keep(report->reason, sizeof(report->reason), room->reason);
}

static void got(fake_t *fake, fake_conn_t *conn, bt_kv_control_t *m)
{
    const char *why = "";

    if (bt_kv_control_decode(m, &why) != 0)
        fail_msg("an agent sent %s (type %u)", why, m->type);
    if (m->type == BT_KV_CONTROL_HELLO)
        got_hello(fake, conn, &m->hello);
    else if (m->type == BT_KV_CONTROL_ROOM)
        got_report(fake, conn, &m->room);
    else if (m->type == BT_KV_CONTROL_PING)
        conn->pings++;
    else
        fail_msg("an agent sent type %u", m->type);
}

static void hear(fake_t *fake, fake_conn_t *conn)
{
    size_t at = 0;
    ptrdiff_t used;
    bt_kv_control_t message;
    ssize_t n = recv(conn->fd, conn->in + conn->n, FAKE_IN_BYTES - conn->n, MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        fake->lost++;
        drop(conn);
        return;
    }
    conn->n += (size_t) n;
    while ((used = bt_kv_control_next(conn->in + at, conn->n - at, &message)) > 0) {
        got(fake, conn, &message);
        at += (size_t) used;
    }
    assert_int_equal(used, 0);
    memmove(conn->in, conn->in + at, conn->n - at);
    conn->n -= at;
}

static void fake_accept(fake_t *fake)
{
    int fd = accept4(fake->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

    if (fd < 0)
        return;
    for (unsigned i = 0; i < FAKE_CONNS; i++)
        if (fake->conns[i].fd < 0) {
            fake->conns[i].fd = fd;
            fake->accepted++;
            return;
        }
    fail_msg("too many agents");
}

static void check_heartbeat(fake_t *fake, fake_conn_t *conn)
{
    uint64_t now_ms = rig_now_ms();

    if (!conn->is_registered || fake->is_mute || now_ms < conn->pinged_ms + fake->heartbeat_ms)
        return;
    conn->pinged_ms = now_ms;
    say(fake, conn, &(bt_kv_control_t){.type = BT_KV_CONTROL_PING});
}

void fake_turn(fake_t *fake)
{
    static const struct timespec moment = {.tv_nsec = 100000};

    for (unsigned i = 0; i < 4; i++)
        if (fake->sides[i] != NULL && fake->sides[i]->agent != NULL &&
            fake->sides[i]->config.progress == BT_KV_PROGRESS_CALLER)
            bt_kv_progress(fake->sides[i]->agent, 0);
    nanosleep(&moment, NULL);
    if (fake->listen_fd >= 0)
        fake_accept(fake);
    for (unsigned i = 0; i < FAKE_CONNS; i++) {
        fake_conn_t *conn = &fake->conns[i];
        if (conn->fd >= 0)
            check_heartbeat(fake, conn);
        if (conn->fd >= 0 && !(fake->is_deaf && conn->is_registered))
            hear(fake, conn);
    }
}

uint32_t fake_join(fake_t *fake, rig_side_t *side, uint32_t rank, uint32_t ranks)
{
    return fake_join_heads(fake, side, rank, ranks, (bt_kv_heads_t){0});
}

uint32_t fake_join_heads(fake_t *fake, rig_side_t *side, uint32_t rank, uint32_t ranks,
                         bt_kv_heads_t heads)
{
    uint32_t number = 0;
    bt_kv_gateway_t gateway = {.host = "127.0.0.1",
                               .port = fake->port,
                               .worker = "http://127.0.0.1:8000",
                               .rank = rank,
                               .ranks = ranks,
                               .heads = heads};

    for (unsigned i = 0; i < 4; i++)
        if (fake->sides[i] == NULL) {
            fake->sides[i] = side;
            break;
        }
    assert_int_equal(bt_kv_gateway_add(side->agent, &gateway, &number), 0);
    FAKE_WAIT(fake, bt_kv_gateway_state(side->agent, number, NULL, 0) == 1);
    return number;
}

/* ---- what was heard ---- */
static bool is_of(const fake_report_t *report, const char *agent, uint64_t room)
{
    return report->room.room == room && strcmp(report->agent, agent) == 0;
}

const fake_report_t *fake_last(const fake_t *fake, const char *agent, uint64_t room)
{
    for (uint32_t i = fake->report_count; i-- > 0;)
        if (is_of(&fake->reports[i], agent, room))
            return &fake->reports[i];
    return NULL;
}

bool fake_is_last(const fake_t *fake, const char *agent, uint64_t room, enum bt_kv_state state)
{
    const fake_report_t *report = fake_last(fake, agent, room);

    return report != NULL && report->room.state == state;
}

uint32_t fake_count(const fake_t *fake, const char *agent, uint64_t room)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < fake->report_count; i++)
        count += is_of(&fake->reports[i], agent, room);
    return count;
}

const char *fake_states(const fake_t *fake, const char *agent, uint64_t room)
{
    static char text[128];
    size_t n = 0;

    for (uint32_t i = 0; i < fake->report_count && n + 2 < sizeof(text); i++) {
        const bt_kv_control_room_t *r = &fake->reports[i].room;
        if (!is_of(&fake->reports[i], agent, room))
            continue;
        char c = (char) ('0' + r->state);
        if (n == 0 || text[n - 1] != c)
            text[n++] = c;
        if (r->is_orphan)
            text[n++] = 'o';
    }
    text[n] = '\0';
    return text;
}
