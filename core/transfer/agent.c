/* An agent's connection: bytes to messages, signs of life both ways, and its end.
 *
 *     accepted --HELLO--> registered --FIN, RST, silence, bad bytes--> lost --uv has let go--> freed
 *         '------------------ refused (with a last word) ----------------^
 *
 * An agent is never lost from inside bt_transfer_agent_send, whose caller may be walking over rooms: `broken` is set and the timer ends it in a moment.
 *
 * Silence. When this process was the one that slept (stopped, or a long turn), the timer comes first and the bytes that came meanwhile wait in the socket: so an
 * agent is only silent when nothing waits there. Agents that have heard nothing for dead_ms have hung up meanwhile and dial again. They keep their parts of rooms:
 * they tell them anew, and who does not come back is missed by the other side, or by the room's deadlines.
 */
#include "transfer_impl.h"

#include <inttypes.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#define HELLO_MS 5000
#define UNREAD_MAX ((size_t) 16 << 20) /* bytes that it has not taken */
#define RETRY_MS 5000                  /* how long a refused one stays away */
#define LINGER_MS 500                  /* how long it may take to hear why */

/* ---- saying ---- */

static void break_later(bt_transfer_agent_t *agent, const char *why)
{
    if (agent->broken != NULL)
        return;
    agent->broken = why;
    bt_timer_start(&agent->timer, 0);
}

static void send_bytes(bt_transfer_agent_t *agent, const uint8_t *bytes, size_t n)
{
    agent->said_ms = bt_clock_ms();
    if (bt_stream_write_copy(&agent->stream, (const char *) bytes, n) < 0)
        break_later(agent, "out of memory");
    else if (bt_stream_pending(&agent->stream) > UNREAD_MAX)
        break_later(agent, "it does not read what it is told");
}

void bt_transfer_agent_send(bt_transfer_agent_t *agent, const bt_kv_control_t *message)
{
    bt_transfer_t *t = agent->t;

    if (agent->is_over || agent->broken != NULL)
        return;
    ptrdiff_t n = bt_kv_control_encode(message, t->scratch, sizeof(t->scratch) - BT_KV_SEAL_BYTES);
    if (BT_SOFT(n < 0))
        return;
    if (agent->auth.out.is_on) {
        bt_kv_seal_put(&agent->auth.out, t->scratch, (size_t) n, t->scratch + n);
        n += BT_KV_SEAL_BYTES;
    }
    send_bytes(agent, t->scratch, (size_t) n);
}

static void send_welcome(bt_transfer_agent_t *agent)
{
    const bt_transfer_t *t = agent->t;
    bt_kv_control_t m = {.type = BT_KV_CONTROL_WELCOME};

    m.welcome.version = BT_KV_CONTROL_VERSION;
    m.welcome.heartbeat_ms = t->config.heartbeat_ms;
    m.welcome.dead_ms = t->config.dead_ms;
    m.welcome.incarnation = t->incarnation;
    bt_transfer_agent_send(agent, &m);
}

/* ---- its end ---- */

/* Called with everything that happens; while there are agents that is once a heartbeat at least. */
static void note_turn(bt_transfer_t *t)
{
    uint64_t now_ms = bt_clock_ms();
    uint64_t patience_ms = t->config.dead_ms - t->config.dead_ms / 4;

    if (t->stats.agents > 0 && now_ms - t->turned_ms >= patience_ms)
        t->woke_ms = now_ms;
    t->turned_ms = now_ms;
}

static bool has_just_slept(const bt_transfer_t *t)
{
    return t->woke_ms != 0 && bt_clock_ms() < t->woke_ms + t->config.dead_ms;
}

static void lose_participants(bt_transfer_agent_t *agent, const char *why)
{
    while (!bt_list_empty(&agent->participants)) {
        bt_transfer_participant_t *participant =
            bt_container_of(agent->participants.next, bt_transfer_participant_t, link);
        bt_list_remove(&participant->link);
        agent->participant_count--;
        participant->agent = NULL;
        if (agent->may_return)
            participant->is_lost = true; /* report.c, find_participant: until it tells of it */
        else
            bt_transfer_participant_lost(participant, why);
    }
}

static void end(bt_transfer_agent_t *agent, const char *why, bool has_last_word)
{
    if (agent->is_registered) {
        agent->t->stats.agents--;
        bt_transfer_rank_group_leave(agent);
    }
    bt_list_remove(&agent->link);
    bt_timer_stop(&agent->timer);
    /* Closing over unread bytes would send RST: a last word that has to be sent again would be lost. */
    if (has_last_word)
        bt_stream_close_after_flush(&agent->stream, LINGER_MS);
    else
        bt_stream_close(&agent->stream);
    lose_participants(agent, why);
}

static void lose(bt_transfer_agent_t *agent, const char *why, bool has_last_word)
{
    agent->is_over = true;
    if (agent->t->is_closing) {
        /* everybody goes: not worth a word each */
    } else if (agent->is_registered) {
        agent->t->stats.agents_lost++;
        bt_log_warn("transfer", "lost agent %s of worker %s, rank %u, %u rooms: %s", agent->name,
                    agent->worker, agent->rank, agent->participant_count, why);
    } else {
        agent->t->stats.agents_refused++;
        bt_log_warn("transfer", "a connection from %s is closed: %s", agent->peer, why);
    }
    end(agent, why, has_last_word);
}

void bt_transfer_agent_lose(bt_transfer_agent_t *agent, const char *why)
{
    if (!agent->is_over)
        lose(agent, why, false);
}

void bt_transfer_agent_refuse(bt_transfer_agent_t *agent, uint32_t retry_ms, const char *why)
{
    bt_kv_control_t m = {.type = BT_KV_CONTROL_REFUSE};

    if (agent->is_over)
        return;
    m.refuse.retry_ms = retry_ms;
    m.refuse.reason = bt_str(why);
    bt_transfer_agent_send(agent, &m);
    lose(agent, why, true);
}

static void on_closed(bt_stream_t *stream)
{
    bt_transfer_agent_t *agent = bt_container_of(stream, bt_transfer_agent_t, stream);
    bt_transfer_t *t = agent->t;

    atomic_fetch_sub_explicit(&t->loop->connections, 1, memory_order_relaxed);
    t->connection_count--;
    free(agent->in);
    free(agent);
    bt_transfer_unref(t);
}

static void hung_up(bt_stream_t *stream, const char *why)
{
    bt_transfer_agent_t *agent = bt_container_of(stream, bt_transfer_agent_t, stream);

    if (agent->is_over)
        return;
    note_turn(agent->t);
    agent->may_return = has_just_slept(agent->t);
    if (!agent->may_return)
        bt_transfer_rank_group_gone(agent, "its transfer agent is gone");
    bt_transfer_agent_lose(agent, why);
}

static void on_eof(bt_stream_t *stream, int rc)
{
    hung_up(stream, rc == 0 ? "it closed its connection" : bt_err_text(rc));
}

static void on_write_error(bt_stream_t *stream, int rc)
{
    hung_up(stream, bt_err_text(rc));
}

/* ---- signs of life ---- */

static bool has_unread(const bt_transfer_agent_t *agent)
{
    uv_os_fd_t fd;

    if (uv_fileno((const uv_handle_t *) &agent->stream.tcp, &fd) < 0)
        return false;
    struct pollfd probe = {.fd = fd, .events = POLLIN};
    return poll(&probe, 1, 0) == 1 && (probe.revents & POLLIN) != 0;
}

bool bt_transfer_agent_is_silent(bt_transfer_agent_t *agent, uint64_t ms)
{
    return bt_clock_ms() >= agent->heard_ms + ms && !has_unread(agent);
}

static void start_timer(bt_transfer_agent_t *agent)
{
    const bt_transfer_config_t *config = &agent->t->config;
    uint64_t now_ms = bt_clock_ms(), ping_ms = agent->said_ms + config->heartbeat_ms,
             dead_ms = agent->heard_ms + config->dead_ms;
    uint64_t due_ms = ping_ms < dead_ms ? ping_ms : dead_ms;

    /* Past already: something waits to be read, which this turn will do. */
    bt_timer_start(&agent->timer, due_ms > now_ms ? due_ms - now_ms : 10);
}

static void on_timer(bt_timer_t *timer)
{
    bt_transfer_agent_t *agent = bt_container_of(timer, bt_transfer_agent_t, timer);
    const bt_transfer_config_t *config = &agent->t->config;
    char why[64];

    note_turn(agent->t);
    if (agent->broken != NULL) {
        bt_transfer_agent_lose(agent, agent->broken);
    } else if (!agent->is_registered) {
        bt_transfer_agent_lose(agent, bt_kv_auth_is_open(&agent->auth)
                                          ? "no proof of the token within 5 s"
                                          : "no hello within 5 s");
    } else if (bt_transfer_agent_is_silent(agent, config->dead_ms)) {
        snprintf(why, sizeof(why), "no sign of life for %u ms", config->dead_ms);
        bt_transfer_agent_lose(agent, why);
    } else {
        if (bt_clock_ms() >= agent->said_ms + config->heartbeat_ms)
            bt_transfer_agent_send(agent, &(bt_kv_control_t){.type = BT_KV_CONTROL_PING});
        if (agent->broken == NULL)
            start_timer(agent);
    }
}

/* ---- hearing ---- */

static void on_hello(bt_transfer_agent_t *agent, const bt_kv_control_hello_t *hello)
{
    bt_transfer_t *t = agent->t;
    const char *why = bt_transfer_hello_read(agent, hello);
    uint32_t retry_ms = RETRY_MS;

    if (why == NULL)
        why = bt_transfer_rank_group_refuses(agent, &retry_ms);
    if (why == NULL && t->stats.agents >= t->config.max_agents)
        why = "this gateway has as many agents as it takes";
    if (why != NULL) {
        bt_transfer_agent_refuse(agent, retry_ms, why);
        return;
    }
    agent->is_registered = true;
    agent->since_ms = bt_clock_ms();
    t->stats.agents++;
    send_welcome(agent);
    bt_transfer_rank_group_join(agent);
    if (!agent->is_over && agent->broken == NULL)
        start_timer(agent);
}

/* NULL, or what is wrong with it. */
static const char *handle(bt_transfer_agent_t *agent, bt_kv_control_t *m)
{
    const char *why = NULL;

    if (!agent->is_registered && m->type == BT_KV_AUTH_GREET) {
        bt_transfer_agent_refuse(agent, RETRY_MS,
                                 "it has a token, and this gateway has none: give both the same "
                                 "--transfer-token");
        return NULL;
    }
    int rc = bt_kv_control_decode(m, &why);
    if (rc < 0)
        return why;
    if (!agent->is_registered) {
        if (rc > 0 || m->type != BT_KV_CONTROL_HELLO)
            return "its first message is no hello";
        on_hello(agent, &m->hello);
        return NULL;
    }
    if (rc > 0)
        return NULL;
    if (m->type == BT_KV_CONTROL_ROOM) {
        bt_transfer_report(agent, &m->room);
    } else if (m->type == BT_KV_CONTROL_PING) {
        agent->bytes_sent = m->ping.bytes_sent;
        agent->bytes_received = m->ping.bytes_received;
    } else {
        return "it sent a message that agents do not send";
    }
    return NULL;
}

/* Bytes used, 0 for more; what is wrong is told, for its operator, and is the agent's end. */
static ptrdiff_t take_auth(bt_transfer_agent_t *agent, const uint8_t *p, size_t n)
{
    uint8_t out[BT_KV_AUTH_OUT];
    size_t out_n;
    const char *what = NULL;
    char why[BT_TRANSFER_REASON];
    ptrdiff_t used =
        bt_kv_auth_take(&agent->auth, agent->t->config.token, p, n, out, &out_n, &what);

    if (used < 0) {
        snprintf(why, sizeof(why), "it has %s, the gateway's --transfer-token", what);
        bt_transfer_agent_refuse(agent, RETRY_MS, why);
    } else if (out_n > 0) {
        send_bytes(agent, out, out_n);
    }
    return used;
}

/* The same of a message, from the token's proof on with its seal. */
static ptrdiff_t take_message(bt_transfer_agent_t *agent, const uint8_t *p, size_t n)
{
    size_t seal = agent->auth.is_done ? BT_KV_SEAL_BYTES : 0;
    bt_kv_control_t m;
    ptrdiff_t size = bt_kv_control_next(p, n, &m);
    const char *why;

    if (size == 0 || (size > 0 && n - (size_t) size < seal))
        return 0;
    if (size < 0)
        why = "it sent bytes that are no message";
    else if (seal > 0 && !bt_kv_seal_is_good(&agent->auth.in, p, (size_t) size))
        why = "a message that somebody else has made or changed";
    else
        why = handle(agent, &m);
    if (why != NULL)
        bt_transfer_agent_lose(agent, why);
    return size + (ptrdiff_t) seal;
}

/* Bytes of whole messages at p; the rest is the beginning of one. */
static size_t take_messages(bt_transfer_agent_t *agent, const uint8_t *p, size_t n)
{
    size_t at = 0;
    ptrdiff_t used = 1;

    while (used > 0 && !agent->is_over && agent->broken == NULL) {
        used = bt_kv_auth_is_open(&agent->auth) ? take_auth(agent, p + at, n - at)
                                                : take_message(agent, p + at, n - at);
        at += used > 0 ? (size_t) used : 0;
    }
    return at;
}

static bool keep(bt_transfer_agent_t *agent, const uint8_t *p, size_t n)
{
    if (agent->in_len + n > agent->in_cap) {
        size_t cap = agent->in_len + n < 1024 ? 1024 : 2 * (agent->in_len + n);
        uint8_t *in = realloc(agent->in, cap);
        if (in == NULL)
            return false;
        agent->in = in;
        agent->in_cap = cap;
    }
    memcpy(agent->in + agent->in_len, p, n);
    agent->in_len += n;
    return true;
}

static void on_read(bt_stream_t *stream, bt_buf_t *buf, char *p, size_t n)
{
    bt_transfer_agent_t *agent = bt_container_of(stream, bt_transfer_agent_t, stream);
    const uint8_t *bytes = (const uint8_t *) p;
    size_t at;

    (void) buf;
    if (agent->is_over)
        return;
    note_turn(agent->t);
    agent->heard_ms = bt_clock_ms();
    if (agent->in_len == 0) {
        at = take_messages(agent, bytes, n);
        if (!agent->is_over && at < n && !keep(agent, bytes + at, n - at))
            bt_transfer_agent_lose(agent, "out of memory");
        return;
    }
    if (!keep(agent, bytes, n)) {
        bt_transfer_agent_lose(agent, "out of memory");
        return;
    }
    at = take_messages(agent, agent->in, agent->in_len);
    memmove(agent->in, agent->in + at, agent->in_len - at);
    agent->in_len -= at;
}

/* ---- its beginning ---- */

static const bt_stream_ops_t stream_ops = {
    .on_read = on_read, .on_eof = on_eof, .on_write_error = on_write_error, .on_closed = on_closed};

/* IPv4 behind a dual-stack socket is written as IPv4. */
static void read_peer(int fd, char *out, socklen_t size)
{
    bt_listener_peer(fd, out, size);
    if (strncmp(out, "::ffff:", 7) == 0 && strchr(out, '.') != NULL)
        memmove(out, out + 7, strlen(out + 7) + 1);
}

void bt_transfer_agent_accept(bt_transfer_t *t, int fd)
{
    bt_transfer_agent_t *agent = calloc(1, sizeof(*agent));

    if (agent == NULL || bt_stream_init(&agent->stream, t->loop, &stream_ops) < 0) {
        free(agent);
        close(fd);
        atomic_fetch_sub_explicit(&t->loop->connections, 1, memory_order_relaxed);
        return;
    }
    agent->t = t;
    atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
    t->connection_count++;
    if (t->config.token != NULL)
        (void) bt_kv_auth_init(&agent->auth, BT_KV_AUTH_GATEWAY, false, NULL);
    bt_list_init(&agent->link);
    bt_list_init(&agent->participants);
    bt_list_push(&t->agents, &agent->link);
    bt_timer_init(t->loop, &agent->timer, on_timer);
    read_peer(fd, agent->peer, sizeof(agent->peer));
    agent->heard_ms = agent->said_ms = bt_clock_ms();
    int rc = bt_stream_open(&agent->stream, fd);
    if (rc == 0)
        rc = bt_stream_read_start(&agent->stream);
    if (rc < 0)
        bt_transfer_agent_lose(agent, bt_err_text(rc));
    else
        bt_timer_start(&agent->timer, HELLO_MS);
}
