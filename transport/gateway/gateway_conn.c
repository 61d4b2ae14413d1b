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
#define BEAT_MIN_MS 10u
#define BEAT_MAX_MS 60000u
#define DEAD_MAX_MS 600000u

static uint64_t us(uint32_t ms)
{
    return (uint64_t) ms * 1000;
}

static void want_turn(bt_kv_agent_t *agent)
{
    agent->steering->is_dirty = true;
    agent->has_work = true;
}

static int watch(bt_kv_gate_t *gate, int op, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = gate};

    return epoll_ctl(gate->agent->epoll_fd, op, gate->fd, &event);
}

/* ---- the end of a connection ---- */
static void hang_up(bt_kv_gate_t *gate)
{
    if (gate->fd >= 0) {
        epoll_ctl(gate->agent->epoll_fd, EPOLL_CTL_DEL, gate->fd, NULL);
        close(gate->fd);
    }
    gate->fd = -1;
    gate->state = BT_KV_GATE_IDLE;
    gate->in.n = gate->out.n = gate->out_at = 0;
    gate->wants_out = gate->is_overrun = false;
}

/* Three quarters to five quarters of the back-off, so that the agents of a fleet do not all dial a new gateway at once. */
static uint32_t next_back_off(bt_kv_gate_t *gate, bool was_good)
{
    if (was_good || gate->back_off_ms == 0)
        gate->back_off_ms = BACK_OFF_MIN_MS;
    uint32_t ms = gate->back_off_ms;
    gate->back_off_ms = ms * 2 < BACK_OFF_MAX_MS ? ms * 2 : BACK_OFF_MAX_MS;
    return ms * 3 / 4 + (uint32_t) bt_rand_below(ms / 2);
}

__attribute__((format(printf, 2, 3))) static void lose(bt_kv_gate_t *gate, const char *fmt, ...)
{
    bt_kv_agent_t *agent = gate->agent;
    bool was_up = gate->state == BT_KV_GATE_UP;
    bool was_good = was_up && agent->now_us - gate->since_us >= us(BACK_OFF_MAX_MS);
    va_list args;

    va_start(args, fmt);
    vsnprintf(gate->why, sizeof(gate->why), fmt, args);
    va_end(args);
    hang_up(gate);
    gate->since_us = agent->now_us;
    gate->dial_us = agent->now_us + us(next_back_off(gate, was_good));
    if (was_up || !gate->is_warned)
        bt_log_warn("kv", "%s: no gateway at %s:%u: %s", agent->config.name, gate->host, gate->port,
                    gate->why);
    gate->is_warned = true;
    want_turn(agent);
}

/* ---- saying ---- */
bool bt_kv_gate_is_full(const bt_kv_gate_t *gate)
{
    return gate->out.n - gate->out_at > OUT_FULL;
}

void bt_kv_gate_say(bt_kv_gate_t *gate, const bt_kv_steer_t *message)
{
    uint8_t bytes[BT_KV_STEER_BYTES];
    ptrdiff_t n = bt_kv_steer_encode(message, bytes, sizeof(bytes));

    if (n > 0 && gate->out.n - gate->out_at + (size_t) n <= OUT_MAX)
        bt_kv_put(&gate->out, bytes, (size_t) n);
    else
        gate->is_overrun = true;
    gate->said_us = gate->agent->now_us;
    want_turn(gate->agent);
}

/* Where other agents dial this one: a listener on all addresses is known by the one that this connection has. */
static void own_host(const bt_kv_gate_t *gate, char *host, size_t size)
{
    struct sockaddr_in at = {0};
    socklen_t at_size = sizeof(at);

    bt_str_copy(host, size, gate->agent->config.host);
    if (inet_pton(AF_INET, host, &at.sin_addr) == 1 && at.sin_addr.s_addr == 0 &&
        getsockname(gate->fd, (struct sockaddr *) &at, &at_size) == 0)
        inet_ntop(AF_INET, &at.sin_addr, host, (socklen_t) size);
}

static void say_hello(bt_kv_gate_t *gate)
{
    bt_kv_agent_t *agent = gate->agent;
    char host[INET_ADDRSTRLEN + 48];
    uint32_t kinds = 0;

    own_host(gate, host, sizeof(host));
    for (unsigned i = 0; i < BT_KV_BACKENDS; i++)
        kinds |= agent->backends[i] != NULL ? 1u << i : 0;
    bt_kv_gate_say(gate, &(bt_kv_steer_t){.type = BT_KV_STEER_HELLO,
                                          .hello = {.version = BT_KV_STEER_VERSION,
                                                    .rank = gate->rank,
                                                    .ranks = gate->ranks,
                                                    .kinds = kinds,
                                                    .pid = (uint32_t) getpid(),
                                                    .incarnation = gate->own_incarnation,
                                                    .name = bt_str(agent->config.name),
                                                    .worker = bt_str(gate->worker),
                                                    .host = bt_str(host),
                                                    .port = agent->port,
                                                    .token = bt_str(gate->token)}});
}

static void flush(bt_kv_gate_t *gate)
{
    bt_kv_bytes_t *out = &gate->out;

    if (out->is_broken) {
        out->is_broken = false;
        lose(gate, "out of memory");
        return;
    }
    while (gate->out_at < out->n) {
        ssize_t n = send(gate->fd, out->p + gate->out_at, out->n - gate->out_at,
                         MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0) {
            lose(gate, "connection lost: %s", strerror(errno));
            return;
        }
        gate->out_at += (size_t) n;
        gate->taken_us = gate->agent->now_us;
    }
    bool is_all = gate->out_at == out->n;
    if (is_all) {
        out->n = gate->out_at = 0;
        gate->taken_us = gate->agent->now_us;
    } else if (gate->out_at > OUT_FULL / 2) { /* what is gone makes room at the end */
        memmove(out->p, out->p + gate->out_at, out->n - gate->out_at);
        out->n -= gate->out_at;
        gate->out_at = 0;
    }
    if (gate->wants_out == is_all) {
        gate->wants_out = !is_all;
        watch(gate, EPOLL_CTL_MOD, is_all ? EPOLLIN : EPOLLIN | EPOLLOUT);
    }
}

/* ---- hearing ---- */
static uint32_t clamp(uint32_t ms, uint32_t by_default, uint32_t low, uint32_t high)
{
    ms = ms != 0 ? ms : by_default;
    return ms < low ? low : ms > high ? high : ms;
}

static void got_welcome(bt_kv_gate_t *gate, const bt_kv_steer_t *m)
{
    bt_kv_agent_t *agent = gate->agent;
    uint64_t old = gate->incarnation;

    if (m->welcome.version != BT_KV_STEER_VERSION) {
        lose(gate, "it speaks version %u of this protocol, this agent %u: use one build",
             m->welcome.version, BT_KV_STEER_VERSION);
        return;
    }
    gate->state = BT_KV_GATE_UP;
    gate->since_us = gate->taken_us = agent->now_us;
    gate->heartbeat_ms = clamp(m->welcome.heartbeat_ms, 1000, BEAT_MIN_MS, BEAT_MAX_MS);
    gate->dead_ms = clamp(m->welcome.dead_ms, 5000, gate->heartbeat_ms, DEAD_MAX_MS);
    gate->heartbeat_us = agent->now_us + us(gate->heartbeat_ms);
    gate->incarnation = m->welcome.incarnation;
    gate->why[0] = '\0';
    gate->is_warned = false;
    bt_log_info("kv", "%s: registered with the gateway at %s:%u for %s", agent->config.name,
                gate->host, gate->port, gate->worker);
    if (old != 0 && old != gate->incarnation)
        bt_kv_directives_forget(gate);
    bt_kv_directives_retell(gate);
}

static void got_refuse(bt_kv_gate_t *gate, const bt_kv_steer_t *m)
{
    uint32_t retry_ms = m->refuse.retry_ms;
    char reason[BT_KV_STEER_TEXT_MAX + 1];

    snprintf(reason, sizeof(reason), "%.*s", BT_STR_ARG(m->refuse.reason));
    bt_str_tame(reason, strlen(reason));
    lose(gate, "refused: %s", reason);
    if (retry_ms != 0)
        gate->dial_us = gate->agent->now_us + us(clamp(retry_ms, 0, BACK_OFF_MIN_MS, RETRY_MAX_MS));
}

/* What is wrong with it, or NULL. */
static const char *dispatch(bt_kv_gate_t *gate, const bt_kv_steer_t *m)
{
    if (gate->state != BT_KV_GATE_UP && m->type != BT_KV_STEER_WELCOME &&
        m->type != BT_KV_STEER_REFUSE)
        return "something before its welcome";
    switch (m->type) {
    case BT_KV_STEER_WELCOME:
        if (gate->state == BT_KV_GATE_UP)
            return "a second welcome";
        got_welcome(gate, m);
        return NULL;
    case BT_KV_STEER_REFUSE:
        got_refuse(gate, m);
        return NULL;
    case BT_KV_STEER_OPEN:
        bt_kv_directive_opened(gate, &m->open);
        return NULL;
    case BT_KV_STEER_SOURCE:
        bt_kv_directive_source(gate, &m->open);
        return NULL;
    case BT_KV_STEER_ABORT:
        bt_kv_directive_abort(gate, m->abort.room, m->abort.reason);
        return NULL;
    case BT_KV_STEER_PING:
        return NULL;
    default:
        return "what only agents say";
    }
}

/* False: the connection is over. */
static bool take_messages(bt_kv_gate_t *gate)
{
    size_t at = 0;
    ptrdiff_t n = 0;
    const char *why = NULL;
    bt_kv_steer_t message;

    while (gate->state != BT_KV_GATE_IDLE && why == NULL &&
           (n = bt_kv_steer_next(gate->in.p + at, gate->in.n - at, &message)) > 0) {
        at += (size_t) n;
        if (bt_kv_steer_decode(&message, &why) == 0)
            why = dispatch(gate, &message);
    }
    if (gate->state == BT_KV_GATE_IDLE)
        return false;
    if (n < 0)
        why = "a message that is too long, or no message at all";
    if (why != NULL) {
        gate->agent->stats.refused_frames++;
        lose(gate, "it sent %s", why);
        return false;
    }
    memmove(gate->in.p, gate->in.p + at, gate->in.n - at);
    gate->in.n -= at;
    return true;
}

static bool read_some(bt_kv_gate_t *gate)
{
    bt_kv_bytes_t *in = &gate->in;
    ssize_t n = recv(gate->fd, in->p + in->n, in->room - in->n, MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n <= 0) {
        lose(gate, "%s", n == 0 ? "it closed the connection" : strerror(errno));
        return false;
    }
    in->n += (size_t) n;
    gate->heard_us = gate->agent->now_us;
    return take_messages(gate);
}

static void connected(bt_kv_gate_t *gate)
{
    int error = 0;
    socklen_t size = sizeof(error);

    getsockopt(gate->fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) {
        lose(gate, "cannot connect: %s", strerror(error));
        return;
    }
    gate->state = BT_KV_GATE_HELLO;
    gate->since_us = gate->taken_us = gate->agent->now_us;
    say_hello(gate);
    flush(gate);
}

void bt_kv_gate_event(bt_kv_gate_t *gate, uint32_t events)
{
    if (gate->state == BT_KV_GATE_CONNECTING) {
        if ((events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) != 0)
            connected(gate);
        return;
    }
    if ((events & EPOLLOUT) != 0 && gate->state != BT_KV_GATE_IDLE)
        flush(gate);
    if ((events & ~(uint32_t) EPOLLOUT) != 0)
        for (int i = 0; i < READS_MAX && gate->state != BT_KV_GATE_IDLE && read_some(gate); i++)
            ;
    want_turn(gate->agent); /* retelling may go on */
}

/* ---- time ---- */
static void dial(bt_kv_gate_t *gate)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(gate->port)};
    int on = 1;

    inet_pton(AF_INET, gate->host, &to.sin_addr);
    gate->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (gate->fd < 0) {
        lose(gate, "no socket: %s", strerror(errno));
        return;
    }
    setsockopt(gate->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    gate->state = BT_KV_GATE_CONNECTING;
    gate->since_us = gate->agent->now_us;
    gate->wants_out = true;
    int rc = connect(gate->fd, (const struct sockaddr *) &to, sizeof(to));
    if (rc != 0 && errno != EINPROGRESS)
        lose(gate, "cannot connect: %s", strerror(errno));
    else if (watch(gate, EPOLL_CTL_ADD, EPOLLIN | EPOLLOUT) != 0)
        lose(gate, "epoll: %s", strerror(errno));
}

static void step_up(bt_kv_gate_t *gate)
{
    bt_kv_agent_t *agent = gate->agent;
    uint64_t now_us = agent->now_us;

    if (now_us > gate->heard_us + us(gate->dead_ms)) {
        lose(gate, "no sign of life for %u ms", gate->dead_ms);
        return;
    }
    if (gate->is_overrun ||
        (gate->out.n > gate->out_at && now_us > gate->taken_us + us(gate->dead_ms))) {
        lose(gate, "it does not read what it is told");
        return;
    }
    if (now_us >= gate->heartbeat_us) {
        bt_kv_directives_beat(gate);
        gate->heartbeat_us = now_us + us(gate->heartbeat_ms);
    }
    if (now_us >= gate->said_us + us(gate->heartbeat_ms))
        bt_kv_gate_say(gate,
                       &(bt_kv_steer_t){.type = BT_KV_STEER_PING,
                                        .ping = {agent->stats.rooms_open, agent->stats.bytes_sent,
                                                 agent->stats.bytes_received}});
    do {
        bt_kv_directives_pump(gate);
        flush(gate);
    } while (gate->state == BT_KV_GATE_UP && !bt_list_empty(&gate->retell) &&
             !bt_kv_gate_is_full(gate));
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Looks at one connection; when it must be looked at again. */
static uint64_t step(bt_kv_gate_t *gate)
{
    bt_kv_agent_t *agent = gate->agent;
    uint64_t patience_us = us(agent->config.dead_ms);

    if (gate->state == BT_KV_GATE_IDLE && agent->now_us >= gate->dial_us && !agent->is_closing)
        dial(gate);
    if ((gate->state == BT_KV_GATE_CONNECTING || gate->state == BT_KV_GATE_HELLO) &&
        agent->now_us >= gate->since_us + patience_us)
        lose(gate, "%s for %u ms", gate->state == BT_KV_GATE_HELLO ? "no welcome" : "no connection",
             agent->config.dead_ms);
    if (gate->state == BT_KV_GATE_UP)
        step_up(gate);
    switch (gate->state) {
    case BT_KV_GATE_IDLE:
        return agent->is_closing ? UINT64_MAX : gate->dial_us;
    case BT_KV_GATE_UP:
        return earlier(earlier(gate->heartbeat_us, gate->said_us + us(gate->heartbeat_ms)),
                       earlier(gate->heard_us, gate->out.n > 0 ? gate->taken_us : UINT64_MAX) +
                           us(gate->dead_ms) + 1);
    default:
        return gate->since_us + patience_us;
    }
}

int bt_kv_steering_turn(bt_kv_agent_t *agent)
{
    struct bt_kv_steering *s = agent->steering;

    bool is_due = s->is_dirty || agent->now_us >= s->due_us;
    if (!is_due && bt_list_empty(&s->pending))
        return 0;
    uint64_t due_us = bt_kv_directives_sweep(agent);
    s->is_dirty = false;
    for (uint32_t i = 0; i < s->gate_count; i++)
        due_us = earlier(due_us, step(&s->gates[i]));
    s->due_us = due_us;
    return is_due;
}

/* ---- the API ---- */
static int new_steering(bt_kv_agent_t *agent)
{
    agent->steering = calloc(1, sizeof(*agent->steering));
    if (agent->steering == NULL)
        return BT_E_NOMEM;
    for (unsigned i = 0; i < BT_KV_GATEWAYS_MAX; i++)
        agent->steering->gates[i].fd = -1;
    int rc = bt_kv_directives_init(agent);
    if (rc == 0)
        return 0;
    free(agent->steering);
    agent->steering = NULL;
    return rc;
}

static bool is_text(const char *text, size_t max)
{
    return text != NULL && text[0] != '\0' && strlen(text) <= max;
}

static int add_gate(bt_kv_agent_t *agent, const bt_kv_gateway_t *gateway, uint32_t *gateway_p)
{
    int rc = agent->steering == NULL ? new_steering(agent) : 0;
    struct bt_kv_steering *s = agent->steering;

    if (rc == 0 && s->gate_count == BT_KV_GATEWAYS_MAX)
        rc = BT_E_LIMIT;
    uint8_t *in = rc == 0 ? malloc(IN_BYTES) : NULL;
    if (in == NULL)
        return rc != 0 ? rc : BT_E_NOMEM;
    bt_kv_gate_t *gate = &s->gates[s->gate_count++];
    *gate = (bt_kv_gate_t){.agent = agent,
                           .port = gateway->port,
                           .rank = gateway->rank,
                           .ranks = gateway->ranks != 0 ? gateway->ranks : 1,
                           .fd = -1,
                           .in = {in, 0, IN_BYTES, false}};
    bt_str_copy(gate->host, sizeof(gate->host), gateway->host);
    bt_str_copy(gate->worker, sizeof(gate->worker), gateway->worker);
    if (gateway->token != NULL)
        bt_str_copy(gate->token, sizeof(gate->token), gateway->token);
    bt_rand_secure(&gate->own_incarnation, sizeof(gate->own_incarnation));
    snprintf(gate->why, sizeof(gate->why), "not connected yet");
    bt_list_init(&gate->known);
    bt_list_init(&gate->retell);
    want_turn(agent);
    *gateway_p = s->gate_count;
    return 0;
}

int bt_kv_gateway_add(bt_kv_agent_t *agent, const bt_kv_gateway_t *gateway, uint32_t *gateway_p)
{
    struct in_addr address;
    uint32_t number = 0;

    if (agent == NULL || gateway == NULL || agent->is_fake || !is_text(gateway->host, 63) ||
        inet_pton(AF_INET, gateway->host, &address) != 1 || gateway->port == 0 ||
        !is_text(gateway->worker, BT_KV_STEER_TEXT_MAX) ||
        (gateway->token != NULL && strlen(gateway->token) > BT_KV_STEER_TEXT_MAX) ||
        gateway->ranks > BT_KV_STEER_PEERS_MAX ||
        gateway->rank >= (gateway->ranks != 0 ? gateway->ranks : 1))
        return BT_E_INVAL;
    bt_kv_enter(agent);
    int rc = agent->is_closing ? BT_E_CANCELLED : add_gate(agent, gateway, &number);
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
    struct bt_kv_steering *s = agent->steering;
    if (s != NULL && gateway >= 1 && gateway <= s->gate_count) {
        const bt_kv_gate_t *gate = &s->gates[gateway - 1];
        rc = gate->state == BT_KV_GATE_UP;
        if (rc == 0 && err != NULL && err_size > 0)
            bt_str_copy(err, err_size, gate->why);
    }
    bt_kv_leave(agent);
    return rc;
}

/* The last reports go out as far as the socket takes them. What it has said to us is read first: closing over unread bytes would cut ours off. */
static void say_goodbye(bt_kv_gate_t *gate)
{
    if (gate->state == BT_KV_GATE_UP) {
        bt_kv_directives_pump(gate);
        flush(gate);
    }
    if (gate->state == BT_KV_GATE_UP) {
        shutdown(gate->fd, SHUT_WR);
        for (int i = 0; i < READS_MAX && recv(gate->fd, gate->in.p, IN_BYTES, MSG_DONTWAIT) > 0;
             i++)
            ;
    }
    hang_up(gate);
    free(gate->in.p);
    free(gate->out.p);
}

void bt_kv_steering_close(bt_kv_agent_t *agent)
{
    struct bt_kv_steering *s = agent->steering;
    bt_list_t *it, *tmp;

    if (s == NULL)
        return;
    for (uint32_t i = 0; i < s->gate_count; i++) {
        say_goodbye(&s->gates[i]);
        bt_list_each (&s->gates[i].known, it, tmp)
            bt_kv_directive_free(agent, bt_container_of(it, bt_kv_directive_t, on_gate));
    }
    free(s->directives.buckets);
    free(s->receivers.buckets);
    free(s);
    agent->steering = NULL;
}
