/* One non-blocking TCP connection a gateway, in the agent's epoll: made, looked at and written in turns, never in an engine's call. An engine's call only appends
 * to a buffer and asks for a turn.
 *
 *     IDLE --dial_us--> CONNECTING --> HELLO --WELCOME--> UP
 *       ^                   |            |                 |
 *       +---- back-off -----+-- REFUSE, rubbish, silence --+
 *
 * A gateway that reads slowly: from OUT_FULL bytes on, rooms wait in `retell` and are told in their latest state when there is room again, so the buffer is
 * bounded and nothing that matters is lost. One that takes no byte for dead_ms is hung up on.
 */
#include "transport/gateway/gateway_conn.h"

#include "base/log.h"
#include "base/rand.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define READS_MAX 16 /* per event */
#define OUT_MAX ((size_t) 1 << 20)
#define OUT_FULL (OUT_MAX / 2)
#define BACK_OFF_MIN_MS 100u
#define BACK_OFF_MAX_MS 5000u
#define RETRY_MAX_MS 300000u
#define CHECK_MIN_MS 10u
#define CHECK_MAX_MS 60000u
#define DEAD_MAX_MS 600000u

static uint64_t us(uint32_t ms)
{
    return (uint64_t) ms * 1000;
}

static int watch(bt_kv_gateway_conn_t *conn, int op, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = conn};

    return epoll_ctl(conn->agent->epoll_fd, op, conn->fd, &event);
}

/* ---- the end of a connection ---- */
static void hang_up(bt_kv_gateway_conn_t *conn)
{
    if (conn->fd >= 0) {
        epoll_ctl(conn->agent->epoll_fd, EPOLL_CTL_DEL, conn->fd, NULL);
        close(conn->fd);
    }
    conn->fd = -1;
    conn->state = BT_KV_GATEWAY_CONN_IDLE;
    conn->in.n = conn->out.n = conn->out_at = 0;
    conn->wants_out = conn->is_overrun = false;
    conn->auth = (bt_kv_auth_t){0};
}

/* Three quarters to five quarters of the back-off, so that the agents of a fleet do not all dial a new gateway at once. */
static uint32_t next_back_off(bt_kv_gateway_conn_t *conn, bool was_good)
{
    if (was_good || conn->back_off_ms == 0)
        conn->back_off_ms = BACK_OFF_MIN_MS;
    uint32_t ms = conn->back_off_ms;
    conn->back_off_ms = ms * 2 < BACK_OFF_MAX_MS ? ms * 2 : BACK_OFF_MAX_MS;
    return ms * 3 / 4 + (uint32_t) bt_rand_below(ms / 2);
}

__attribute__((format(printf, 2, 3))) static void lose(bt_kv_gateway_conn_t *conn, const char *fmt,
                                                       ...)
{
    bt_kv_agent_t *agent = conn->agent;
    bool was_up = conn->state == BT_KV_GATEWAY_CONN_UP;
    bool was_good = was_up && agent->now_us - conn->since_us >= us(BACK_OFF_MAX_MS);
    va_list args;

    va_start(args, fmt);
    vsnprintf(conn->why, sizeof(conn->why), fmt, args);
    va_end(args);
    hang_up(conn);
    conn->since_us = agent->now_us;
    conn->dial_us = agent->now_us + us(next_back_off(conn, was_good));
    if (was_up || !conn->is_warned)
        bt_log_warn("kv", "%s: no gateway at %s:%u: %s", agent->config.name, conn->host, conn->port,
                    conn->why);
    conn->is_warned = true;
    bt_kv_gateways_want_turn(agent);
}

/* ---- saying ---- */
bool bt_kv_gateway_conn_is_full(const bt_kv_gateway_conn_t *conn)
{
    return conn->out.n - conn->out_at > OUT_FULL;
}

static void put_sealed(bt_kv_gateway_conn_t *conn, const uint8_t *bytes, size_t n)
{
    uint8_t seal[BT_KV_SEAL_BYTES];

    bt_kv_put(&conn->out, bytes, n);
    if (!conn->auth.out.is_on)
        return;
    bt_kv_seal_put(&conn->auth.out, bytes, n, seal);
    bt_kv_put(&conn->out, seal, sizeof(seal));
}

void bt_kv_gateway_conn_send(bt_kv_gateway_conn_t *conn, const bt_kv_control_t *message)
{
    uint8_t bytes[BT_KV_CONTROL_BYTES];
    ptrdiff_t n = bt_kv_control_encode(message, bytes, sizeof(bytes));

    if (n > 0 && conn->out.n - conn->out_at + (size_t) n <= OUT_MAX)
        put_sealed(conn, bytes, (size_t) n);
    else
        conn->is_overrun = true;
    conn->said_us = conn->agent->now_us;
    bt_kv_gateways_want_turn(conn->agent);
}

/* Where other agents dial this one: a listener on all addresses is known by the one that this connection has. */
static void own_host(const bt_kv_gateway_conn_t *conn, char *host, size_t size)
{
    struct sockaddr_in at = {0};
    socklen_t at_size = sizeof(at);

    bt_str_copy(host, size, conn->agent->config.host);
    if (inet_pton(AF_INET, host, &at.sin_addr) == 1 && at.sin_addr.s_addr == 0 &&
        getsockname(conn->fd, (struct sockaddr *) &at, &at_size) == 0)
        inet_ntop(AF_INET, &at.sin_addr, host, (socklen_t) size);
}

static void send_hello(bt_kv_gateway_conn_t *conn)
{
    bt_kv_agent_t *agent = conn->agent;
    char host[INET_ADDRSTRLEN + 48];
    uint32_t kinds = 0;

    own_host(conn, host, sizeof(host));
    for (unsigned i = 0; i < BT_KV_BACKENDS; i++)
        kinds |= agent->backends[i] != NULL ? 1u << i : 0;
    bt_kv_gateway_conn_send(conn, &(bt_kv_control_t){.type = BT_KV_CONTROL_HELLO,
                                                     .hello = {.version = BT_KV_CONTROL_VERSION,
                                                               .rank = conn->rank,
                                                               .ranks = conn->ranks,
                                                               .kinds = kinds,
                                                               .pid = (uint32_t) getpid(),
                                                               .incarnation = conn->own_incarnation,
                                                               .name = bt_str(agent->config.name),
                                                               .worker = bt_str(conn->worker),
                                                               .host = bt_str(host),
                                                               .port = agent->port}});
}

static void flush(bt_kv_gateway_conn_t *conn)
{
    bt_kv_bytes_t *out = &conn->out;

    if (out->is_broken) {
        out->is_broken = false;
        lose(conn, "out of memory");
        return;
    }
    while (conn->out_at < out->n) {
        ssize_t n = send(conn->fd, out->p + conn->out_at, out->n - conn->out_at,
                         MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0) {
            lose(conn, "connection lost: %s", strerror(errno));
            return;
        }
        conn->out_at += (size_t) n;
        conn->taken_us = conn->agent->now_us;
    }
    bool is_all = conn->out_at == out->n;
    if (is_all) {
        out->n = conn->out_at = 0;
        conn->taken_us = conn->agent->now_us;
    } else if (conn->out_at > OUT_FULL / 2) { /* what is gone makes room at the end */
        memmove(out->p, out->p + conn->out_at, out->n - conn->out_at);
        out->n -= conn->out_at;
        conn->out_at = 0;
    }
    if (conn->wants_out == is_all) {
        conn->wants_out = !is_all;
        watch(conn, EPOLL_CTL_MOD, is_all ? EPOLLIN : EPOLLIN | EPOLLOUT);
    }
}

/* ---- hearing ---- */
static uint32_t clamp(uint32_t ms, uint32_t by_default, uint32_t low, uint32_t high)
{
    ms = ms != 0 ? ms : by_default;
    return ms < low ? low : ms > high ? high : ms;
}

static void got_welcome(bt_kv_gateway_conn_t *conn, const bt_kv_control_t *m)
{
    bt_kv_agent_t *agent = conn->agent;
    uint64_t old = conn->incarnation;

    if (m->welcome.version != BT_KV_CONTROL_VERSION) {
        lose(conn, "it speaks version %u of this protocol, this agent %u: use one build",
             m->welcome.version, BT_KV_CONTROL_VERSION);
        return;
    }
    conn->state = BT_KV_GATEWAY_CONN_UP;
    conn->since_us = conn->taken_us = agent->now_us;
    conn->heartbeat_ms = clamp(m->welcome.heartbeat_ms, 1000, CHECK_MIN_MS, CHECK_MAX_MS);
    conn->dead_ms = clamp(m->welcome.dead_ms, 5000, conn->heartbeat_ms, DEAD_MAX_MS);
    conn->heartbeat_us = agent->now_us + us(conn->heartbeat_ms);
    conn->incarnation = m->welcome.incarnation;
    conn->why[0] = '\0';
    conn->is_warned = false;
    bt_log_info("kv", "%s: registered with the gateway at %s:%u for %s", agent->config.name,
                conn->host, conn->port, conn->worker);
    if (old != 0 && old != conn->incarnation)
        bt_kv_room_commands_forget(conn);
    bt_kv_room_commands_renotify(conn);
}

static void got_refuse(bt_kv_gateway_conn_t *conn, const bt_kv_control_t *m)
{
    uint32_t retry_ms = m->refuse.retry_ms;
    char reason[BT_KV_CONTROL_TEXT_MAX + 1];

    snprintf(reason, sizeof(reason), "%.*s", BT_STR_ARG(m->refuse.reason));
    bt_str_tame(reason, strlen(reason));
    lose(conn, "refused: %s", reason);
    if (retry_ms != 0)
        conn->dial_us = conn->agent->now_us + us(clamp(retry_ms, 0, BACK_OFF_MIN_MS, RETRY_MAX_MS));
}

/* What is wrong with it, or NULL. */
static const char *dispatch(bt_kv_gateway_conn_t *conn, const bt_kv_control_t *m)
{
    if (conn->state != BT_KV_GATEWAY_CONN_UP && m->type != BT_KV_CONTROL_WELCOME &&
        m->type != BT_KV_CONTROL_REFUSE)
        return "something before its welcome";
    switch (m->type) {
    case BT_KV_CONTROL_WELCOME:
        if (conn->state == BT_KV_GATEWAY_CONN_UP)
            return "a second welcome";
        got_welcome(conn, m);
        return NULL;
    case BT_KV_CONTROL_REFUSE:
        got_refuse(conn, m);
        return NULL;
    case BT_KV_CONTROL_OPEN:
        bt_kv_room_command_opened(conn, &m->open);
        return NULL;
    case BT_KV_CONTROL_SOURCE:
        bt_kv_room_command_source(conn, &m->open);
        return NULL;
    case BT_KV_CONTROL_ABORT:
        bt_kv_room_command_abort(conn, m->abort.room, m->abort.reason);
        return NULL;
    case BT_KV_CONTROL_PING:
        return NULL;
    default:
        return "what only agents say";
    }
}

/* Of the handshake of wire/auth.h; as take_message. A gateway that has another token, or none, says so by a refusal that nobody has sealed. */
static ptrdiff_t take_auth(bt_kv_gateway_conn_t *conn, const uint8_t *p, size_t n)
{
    uint8_t out[BT_KV_AUTH_OUT];
    size_t out_n;
    const char *why = NULL;
    bt_kv_control_t message;

    if (n >= BT_KV_FRAME_HEAD && p[4] == BT_KV_CONTROL_REFUSE) {
        ptrdiff_t size = bt_kv_control_next(p, n, &message);
        if (size > 0 && bt_kv_control_decode(&message, &why) == 0)
            got_refuse(conn, &message);
        else if (size != 0)
            lose(conn, "it sent no message at all");
        return size;
    }
    ptrdiff_t used = bt_kv_auth_take(&conn->auth, conn->token, p, n, out, &out_n, &why);
    if (used < 0)
        lose(conn, "it has %s", why);
    else
        bt_kv_put(&conn->out, out, out_n);
    if (conn->auth.is_done)
        send_hello(conn);
    if (used > 0)
        flush(conn);
    return used;
}

/* Bytes of a message that has been dealt with, 0: it is not all there. < 0: the connection is over. */
static ptrdiff_t take_message(bt_kv_gateway_conn_t *conn, const uint8_t *p, size_t n)
{
    size_t seal = conn->auth.is_done ? BT_KV_SEAL_BYTES : 0;
    const char *why = NULL;
    bt_kv_control_t message;
    ptrdiff_t size = bt_kv_control_next(p, n, &message);

    if (size == 0 || (size > 0 && n - (size_t) size < seal))
        return 0;
    if (size < 0)
        why = "a message that is too long, or no message at all";
    else if (seal > 0 && !bt_kv_seal_is_good(&conn->auth.in, p, (size_t) size))
        why = "a message that somebody else has made or changed";
    else if (bt_kv_control_decode(&message, &why) == 0)
        why = dispatch(conn, &message);
    if (why == NULL)
        return size + (ptrdiff_t) seal;
    conn->agent->stats.refused_frames++;
    lose(conn, "it sent %s", why);
    return BT_E_INVAL;
}

/* False: the connection is over. */
static bool take_messages(bt_kv_gateway_conn_t *conn)
{
    size_t at = 0;
    ptrdiff_t n = 1;

    while (conn->state != BT_KV_GATEWAY_CONN_IDLE && n > 0) {
        const uint8_t *p = conn->in.p + at;
        size_t left = conn->in.n - at;
        n = bt_kv_auth_is_open(&conn->auth) ? take_auth(conn, p, left)
                                            : take_message(conn, p, left);
        at += n > 0 ? (size_t) n : 0;
    }
    if (conn->state == BT_KV_GATEWAY_CONN_IDLE)
        return false;
    memmove(conn->in.p, conn->in.p + at, conn->in.n - at);
    conn->in.n -= at;
    return true;
}

static bool read_some(bt_kv_gateway_conn_t *conn)
{
    bt_kv_bytes_t *in = &conn->in;
    ssize_t n = recv(conn->fd, in->p + in->n, in->room - in->n, MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n <= 0) {
        lose(conn, "%s", n == 0 ? "it closed the connection" : strerror(errno));
        return false;
    }
    in->n += (size_t) n;
    conn->heard_us = conn->agent->now_us;
    return take_messages(conn);
}

static void connected(bt_kv_gateway_conn_t *conn)
{
    int error = 0;
    socklen_t size = sizeof(error);

    getsockopt(conn->fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) {
        lose(conn, "cannot connect: %s", strerror(error));
        return;
    }
    conn->state = BT_KV_GATEWAY_CONN_HELLO;
    conn->since_us = conn->taken_us = conn->agent->now_us;
    if (conn->token != NULL) {
        uint8_t out[BT_KV_AUTH_OUT];
        bt_kv_put(&conn->out, out, bt_kv_auth_init(&conn->auth, BT_KV_AUTH_GATEWAY, true, out));
    } else {
        send_hello(conn);
    }
    flush(conn);
}

void bt_kv_gateway_conn_event(bt_kv_gateway_conn_t *conn, uint32_t events)
{
    if (conn->state == BT_KV_GATEWAY_CONN_CONNECTING) {
        if ((events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) != 0)
            connected(conn);
        return;
    }
    if ((events & EPOLLOUT) != 0 && conn->state != BT_KV_GATEWAY_CONN_IDLE)
        flush(conn);
    if ((events & ~(uint32_t) EPOLLOUT) != 0)
        for (int i = 0; i < READS_MAX && conn->state != BT_KV_GATEWAY_CONN_IDLE && read_some(conn);
             i++)
            ;
    bt_kv_gateways_want_turn(conn->agent); /* retelling may go on */
}

/* ---- time ---- */
static void dial(bt_kv_gateway_conn_t *conn)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(conn->port)};
    int on = 1;

    inet_pton(AF_INET, conn->host, &to.sin_addr);
    conn->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (conn->fd < 0) {
        lose(conn, "no socket: %s", strerror(errno));
        return;
    }
    setsockopt(conn->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    conn->state = BT_KV_GATEWAY_CONN_CONNECTING;
    conn->since_us = conn->agent->now_us;
    conn->wants_out = true;
    int rc = connect(conn->fd, (const struct sockaddr *) &to, sizeof(to));
    if (rc != 0 && errno != EINPROGRESS)
        lose(conn, "cannot connect: %s", strerror(errno));
    else if (watch(conn, EPOLL_CTL_ADD, EPOLLIN | EPOLLOUT) != 0)
        lose(conn, "epoll: %s", strerror(errno));
}

static void step_up(bt_kv_gateway_conn_t *conn)
{
    bt_kv_agent_t *agent = conn->agent;
    uint64_t now_us = agent->now_us;

    if (now_us > conn->heard_us + us(conn->dead_ms)) {
        lose(conn, "no sign of life for %u ms", conn->dead_ms);
        return;
    }
    if (conn->is_overrun ||
        (conn->out.n > conn->out_at && now_us > conn->taken_us + us(conn->dead_ms))) {
        lose(conn, "it does not read what it is told");
        return;
    }
    if (now_us >= conn->heartbeat_us) {
        bt_kv_room_commands_heartbeat(conn);
        conn->heartbeat_us = now_us + us(conn->heartbeat_ms);
    }
    if (now_us >= conn->said_us + us(conn->heartbeat_ms))
        bt_kv_gateway_conn_send(
            conn, &(bt_kv_control_t){.type = BT_KV_CONTROL_PING,
                                     .ping = {agent->stats.rooms_open, agent->stats.bytes_sent,
                                              agent->stats.bytes_received}});
    do {
        bt_kv_room_commands_pump(conn);
        flush(conn);
    } while (conn->state == BT_KV_GATEWAY_CONN_UP && !bt_list_empty(&conn->retell) &&
             !bt_kv_gateway_conn_is_full(conn));
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Looks at one connection; when it must be looked at again. */
static uint64_t step(bt_kv_gateway_conn_t *conn)
{
    bt_kv_agent_t *agent = conn->agent;
    uint64_t patience_us = us(agent->config.dead_ms);

    if (conn->state == BT_KV_GATEWAY_CONN_IDLE && agent->now_us >= conn->dial_us &&
        !agent->is_closing)
        dial(conn);
    if ((conn->state == BT_KV_GATEWAY_CONN_CONNECTING || conn->state == BT_KV_GATEWAY_CONN_HELLO) &&
        agent->now_us >= conn->since_us + patience_us)
        lose(conn, "%s for %u ms",
             conn->state == BT_KV_GATEWAY_CONN_HELLO ? "no welcome" : "no connection",
             agent->config.dead_ms);
    if (conn->state == BT_KV_GATEWAY_CONN_UP)
        step_up(conn);
    switch (conn->state) {
    case BT_KV_GATEWAY_CONN_IDLE:
        return agent->is_closing ? UINT64_MAX : conn->dial_us;
    case BT_KV_GATEWAY_CONN_UP:
        return earlier(earlier(conn->heartbeat_us, conn->said_us + us(conn->heartbeat_ms)),
                       earlier(conn->heard_us, conn->out.n > 0 ? conn->taken_us : UINT64_MAX) +
                           us(conn->dead_ms) + 1);
    default:
        return conn->since_us + patience_us;
    }
}

int bt_kv_gateways_turn(bt_kv_agent_t *agent)
{
    struct bt_kv_gateways *s = agent->gateways;

    bool is_due = s->is_dirty || agent->now_us >= s->due_us;
    if (!is_due && bt_list_empty(&s->pending))
        return 0;
    uint64_t due_us = bt_kv_room_commands_sweep(agent);
    s->is_dirty = false;
    for (uint32_t i = 0; i < s->conn_count; i++)
        due_us = earlier(due_us, step(&s->conns[i]));
    s->due_us = due_us;
    return is_due;
}

/* ---- closing ---- */
/* The last reports go out as far as the socket takes them. What it has said to us is read first: closing over unread bytes would cut ours off. */
static void send_goodbye(bt_kv_gateway_conn_t *conn)
{
    if (conn->state == BT_KV_GATEWAY_CONN_UP) {
        bt_kv_room_commands_pump(conn);
        flush(conn);
    }
    if (conn->state == BT_KV_GATEWAY_CONN_UP) {
        shutdown(conn->fd, SHUT_WR);
        for (int i = 0;
             i < READS_MAX && recv(conn->fd, conn->in.p, conn->in.room, MSG_DONTWAIT) > 0; i++)
            ;
    }
    hang_up(conn);
    free(conn->in.p);
    free(conn->out.p);
    free(conn->token);
}

void bt_kv_gateways_close(bt_kv_agent_t *agent)
{
    struct bt_kv_gateways *s = agent->gateways;
    bt_list_t *it, *tmp;

    if (s == NULL)
        return;
    for (uint32_t i = 0; i < s->conn_count; i++) {
        send_goodbye(&s->conns[i]);
        bt_list_each (&s->conns[i].known, it, tmp)
            bt_kv_room_command_free(agent, bt_container_of(it, bt_kv_room_command_t, on_conn));
    }
    free(s->commands.buckets);
    free(s->receivers.buckets);
    free(s);
    agent->gateways = NULL;
}
