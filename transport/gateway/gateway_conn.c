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
#include "transport/gateway/heads.h"

#include "base/clock.h"
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

#define IN_BYTES ((size_t) 128 << 10) /* the longest message, and then some */
#define READS_MAX 16                  /* per event */
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

static void want_turn(bt_kv_agent_t *agent)
{
    agent->gateways->is_dirty = true;
    agent->has_work = true;
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
    want_turn(agent);
}

/* ---- saying ---- */
bool bt_kv_gateway_conn_is_full(const bt_kv_gateway_conn_t *conn)
{
    return conn->out.n - conn->out_at > OUT_FULL;
}

void bt_kv_gateway_conn_send(bt_kv_gateway_conn_t *conn, const bt_kv_control_t *message)
{
    uint8_t bytes[BT_KV_CONTROL_BYTES];
    ptrdiff_t n = bt_kv_control_encode(message, bytes, sizeof(bytes));

    if (n > 0 && conn->out.n - conn->out_at + (size_t) n <= OUT_MAX)
        bt_kv_put(&conn->out, bytes, (size_t) n);
    else
        conn->is_overrun = true;
    conn->said_us = conn->agent->now_us;
    want_turn(conn->agent);
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
                                                               .port = agent->port,
                                                               .token = bt_str(conn->token)}});
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

/* False: the connection is over. */
static bool take_messages(bt_kv_gateway_conn_t *conn)
{
    size_t at = 0;
    ptrdiff_t n = 0;
    const char *why = NULL;
    bt_kv_control_t message;

    while (conn->state != BT_KV_GATEWAY_CONN_IDLE && why == NULL &&
           (n = bt_kv_control_next(conn->in.p + at, conn->in.n - at, &message)) > 0) {
        at += (size_t) n;
        if (bt_kv_control_decode(&message, &why) == 0)
            why = dispatch(conn, &message);
    }
    if (conn->state == BT_KV_GATEWAY_CONN_IDLE)
        return false;
    if (n < 0)
        why = "a message that is too long, or no message at all";
    if (why != NULL) {
        conn->agent->stats.refused_frames++;
        lose(conn, "it sent %s", why);
        return false;
    }
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
    send_hello(conn);
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
    want_turn(conn->agent); /* retelling may go on */
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

/* ---- the API ---- */
static int new_gateways(bt_kv_agent_t *agent)
{
    agent->gateways = calloc(1, sizeof(*agent->gateways));
    if (agent->gateways == NULL)
        return BT_E_NOMEM;
    for (unsigned i = 0; i < BT_KV_GATEWAYS_MAX; i++)
        agent->gateways->conns[i].fd = -1;
    int rc = bt_kv_room_commands_init(agent);
    if (rc == 0)
        return 0;
    free(agent->gateways);
    agent->gateways = NULL;
    return rc;
}

static bool is_text(const char *text, size_t max)
{
    return text != NULL && text[0] != '\0' && strlen(text) <= max;
}

static int add_conn(bt_kv_agent_t *agent, const bt_kv_gateway_t *gateway, uint32_t *gateway_p)
{
    int rc = agent->gateways == NULL ? new_gateways(agent) : 0;
    struct bt_kv_gateways *s = agent->gateways;

    if (rc == 0 && s->conn_count == BT_KV_GATEWAYS_MAX)
        rc = BT_E_LIMIT;
    uint8_t *in = rc == 0 ? malloc(IN_BYTES) : NULL;
    if (in == NULL)
        return rc != 0 ? rc : BT_E_NOMEM;
    bt_kv_gateway_conn_t *conn = &s->conns[s->conn_count++];
    *conn = (bt_kv_gateway_conn_t){.agent = agent,
                                   .port = gateway->port,
                                   .rank = gateway->rank,
                                   .ranks = gateway->ranks != 0 ? gateway->ranks : 1,
                                   .heads = gateway->heads,
                                   .fd = -1,
                                   .in = {in, 0, IN_BYTES, false}};
    if (conn->heads.rows == 0)
        conn->heads.rows = 1;
    bt_str_copy(conn->host, sizeof(conn->host), gateway->host);
    bt_str_copy(conn->worker, sizeof(conn->worker), gateway->worker);
    if (gateway->token != NULL)
        bt_str_copy(conn->token, sizeof(conn->token), gateway->token);
    bt_rand_secure(&conn->own_incarnation, sizeof(conn->own_incarnation));
    snprintf(conn->why, sizeof(conn->why), "not connected yet");
    bt_list_init(&conn->known);
    bt_list_init(&conn->retell);
    want_turn(agent);
    *gateway_p = s->conn_count;
    return 0;
}

int bt_kv_gateway_add(bt_kv_agent_t *agent, const bt_kv_gateway_t *gateway, uint32_t *gateway_p)
{
    struct in_addr address;
    uint32_t number = 0, ranks = gateway != NULL && gateway->ranks != 0 ? gateway->ranks : 1;

    if (agent == NULL || gateway == NULL || agent->is_fake || !is_text(gateway->host, 63) ||
        inet_pton(AF_INET, gateway->host, &address) != 1 || gateway->port == 0 ||
        !is_text(gateway->worker, BT_KV_CONTROL_TEXT_MAX) ||
        (gateway->token != NULL && strlen(gateway->token) > BT_KV_CONTROL_TEXT_MAX) ||
        ranks > BT_KV_CONTROL_PEERS_MAX || gateway->rank >= ranks ||
        (gateway->heads.total != 0 && !bt_kv_heads_fit(gateway->heads.total, ranks)))
        return BT_E_INVAL;
    bt_kv_enter(agent);
    int rc = agent->is_closing ? BT_E_CANCELLED : add_conn(agent, gateway, &number);
    bt_kv_leave(agent);
    if (rc == 0 && gateway_p != NULL)
        *gateway_p = number;
    return rc;
}

int bt_kv_gateway_state(bt_kv_agent_t *agent, uint32_t gateway, char *err, size_t err_size)
{
    int rc = BT_E_INVAL;

    if (err != NULL && err_size > 0)
        err[0] = '\0';
    if (agent == NULL)
        return BT_E_INVAL;
    bt_kv_enter(agent);
    struct bt_kv_gateways *s = agent->gateways;
    if (s != NULL && gateway >= 1 && gateway <= s->conn_count) {
        const bt_kv_gateway_conn_t *conn = &s->conns[gateway - 1];
        rc = conn->state == BT_KV_GATEWAY_CONN_UP;
        if (rc == 0 && err != NULL && err_size > 0)
            bt_str_copy(err, err_size, conn->why);
    }
    bt_kv_leave(agent);
    return rc;
}

/* The last reports go out as far as the socket takes them. What it has said to us is read first: closing over unread bytes would cut ours off. */
static void send_goodbye(bt_kv_gateway_conn_t *conn)
{
    if (conn->state == BT_KV_GATEWAY_CONN_UP) {
        bt_kv_room_commands_pump(conn);
        flush(conn);
    }
    if (conn->state == BT_KV_GATEWAY_CONN_UP) {
        shutdown(conn->fd, SHUT_WR);
        for (int i = 0; i < READS_MAX && recv(conn->fd, conn->in.p, IN_BYTES, MSG_DONTWAIT) > 0;
             i++)
            ;
    }
    hang_up(conn);
    free(conn->in.p);
    free(conn->out.p);
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
