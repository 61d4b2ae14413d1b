/* One non-blocking TCP connection. Reading goes into a buffer that grows to the largest frame and no further; frames are cut out and handed to
 * link_frames.c in place. Writing goes through link->out; when it is sent is agent.c's matter.
 *
 * Losing a link, in order: the rooms on it fail (which begins to drain them), the socket closes; in later turns, when all its ends have drained, the
 * path closes and the ends fall quiet: at once where closing revokes the peer's access (or the peer said that it has drained, or it is dead), else one
 * by one when their release_ms is over.
 */
#include "transport/control/link.h"

#include "base/clock.h"
#include "base/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define READ_BYTES ((size_t) 64 << 10)
#define READS_MAX 16 /* per event */
#define OUT_MAX ((size_t) 64 << 20)
#define LINKS_MAX 4096u
#define STRANGERS_MAX 256u

static bt_kv_link_t *new_link(bt_kv_agent_t *agent, int fd, bool is_initiator)
{
    bt_kv_link_t *link = calloc(1, sizeof(*link));

    if (link == NULL)
        return NULL;
    link->agent = agent;
    link->fd = fd;
    link->is_initiator = is_initiator;
    link->id = ++agent->next_link;
    link->heard_us = link->said_us = link->opened_us = bt_clock_us();
    bt_list_init(&link->dirty);
    bt_list_init(&link->attention);
    bt_list_init(&link->ends);
    bt_list_init(&link->peer_regions);
    bt_list_init(&link->peer_layouts);
    bt_list_init(&link->lane.items);
    link->out.seal = &link->auth.out;
    bt_list_push(&agent->links, &link->link);
    agent->link_count++;
    return link;
}

static int watch(bt_kv_link_t *link, int op, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = link};

    return epoll_ctl(link->agent->epoll_fd, op, link->fd, &event);
}

/* TCP_NODELAY: frames are whole when they are written. BBR, where it is the default, halves the loopback. */
static void tune(int fd, bool is_same_host)
{
    int on = 1;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (is_same_host)
        setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
}

static bool is_loopback(const struct sockaddr_in *address)
{
    return ntohl(address->sin_addr.s_addr) >> 24 == 127;
}

/* Nobody elsewhere can pass for it: the kernel drops what comes from the wire with such a source. */
bool bt_kv_link_is_local(const bt_kv_link_t *link)
{
    struct sockaddr_in here = {0}, there = {0};
    socklen_t n = sizeof(here), m = sizeof(there);

    if (getsockname(link->fd, (struct sockaddr *) &here, &n) != 0 ||
        getpeername(link->fd, (struct sockaddr *) &there, &m) != 0)
        return false;
    return is_loopback(&there) || here.sin_addr.s_addr == there.sin_addr.s_addr;
}

static int dial(bt_kv_agent_t *agent, const struct sockaddr_in *to, const char *host, uint16_t port,
                bt_kv_link_t **link_p)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return BT_E_LIMIT;
    bt_kv_link_t *link = new_link(agent, fd, true);
    if (link == NULL) {
        close(fd);
        return BT_E_NOMEM;
    }
    bt_str_copy(link->host, sizeof(link->host), host);
    link->port = port;
    snprintf(link->peer, sizeof(link->peer), "%s:%u", host, port);
    tune(fd, is_loopback(to));
    int rc = connect(fd, (const struct sockaddr *) to, sizeof(*to));
    if (watch(link, EPOLL_CTL_ADD, EPOLLIN | EPOLLOUT) != 0)
        rc = -1, errno = ENOMEM;
    link->wants_out = true;
    if (rc != 0 && errno != EINPROGRESS)
        bt_kv_link_break(link, BT_E_CONNECT, "cannot connect to %s: %s", link->peer,
                         strerror(errno));
    *link_p = link;
    return 0;
}

int bt_kv_link_to(bt_kv_agent_t *agent, const char *host, uint16_t port, bt_kv_link_t **link_p)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};

    for (bt_list_t *it = agent->links.next; it != &agent->links; it = it->next) {
        bt_kv_link_t *link = bt_container_of(it, bt_kv_link_t, link);
        if (link->is_initiator && bt_kv_link_is_live(link) && link->port == port &&
            strcmp(link->host, host) == 0) {
            *link_p = link;
            return 0;
        }
    }
    if (port == 0 || strlen(host) >= sizeof((*link_p)->host) ||
        inet_pton(AF_INET, host, &to.sin_addr) != 1)
        return BT_E_INVAL;
    return agent->link_count >= LINKS_MAX ? BT_E_LIMIT : dial(agent, &to, host, port, link_p);
}

static bool is_stranger(const bt_kv_link_t *link)
{
    return !link->is_initiator && link->state == BT_KV_LINK_HELLO;
}

void bt_kv_link_set_state(bt_kv_link_t *link, enum bt_kv_link_state state)
{
    link->agent->stranger_count -= is_stranger(link);
    link->state = state;
    link->agent->stranger_count += is_stranger(link);
}

/* Those that say nothing must not take the places of peers, or all descriptors of the engine's process: the oldest makes way, since a peer says hello at once. */
static void make_way(bt_kv_agent_t *agent)
{
    if (agent->stranger_count < STRANGERS_MAX)
        return;
    for (bt_list_t *it = agent->links.next; it != &agent->links; it = it->next) {
        bt_kv_link_t *link = bt_container_of(it, bt_kv_link_t, link);
        if (!is_stranger(link) || link->broken_rc != 0)
            continue;
        bt_kv_link_break(link, BT_E_LIMIT, "too many connections that have not said hello");
        return;
    }
}

void bt_kv_link_accept(bt_kv_agent_t *agent)
{
    for (int i = 0; i < 64; i++) {
        struct sockaddr_in from = {0};
        socklen_t size = sizeof(from);
        int fd = accept4(agent->listen_fd, (struct sockaddr *) &from, &size,
                         SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0)
            return;
        bt_kv_link_t *link = agent->link_count < LINKS_MAX ? new_link(agent, fd, false) : NULL;
        if (link == NULL) {
            close(fd);
            continue;
        }
        inet_ntop(AF_INET, &from.sin_addr, link->host, sizeof(link->host));
        link->port = ntohs(from.sin_port);
        snprintf(link->peer, sizeof(link->peer), "%s:%u", link->host, link->port);
        make_way(agent);
        bt_kv_link_set_state(link, BT_KV_LINK_HELLO);
        bt_kv_link_begin_auth(link);
        tune(fd, is_loopback(&from));
        if (watch(link, EPOLL_CTL_ADD, EPOLLIN) != 0)
            bt_kv_link_break(link, BT_E_NOMEM, "epoll: %s", strerror(errno));
    }
}

/* ---- bytes ---- */
void bt_kv_link_send(bt_kv_link_t *link)
{
    if (link->out.is_broken || link->out.n - link->out_at > OUT_MAX)
        bt_kv_link_break(link, BT_E_LIMIT, "%s does not read what it is told", link->peer);
    if (bt_list_empty(&link->dirty))
        bt_list_push(&link->agent->dirty, &link->dirty);
}

void bt_kv_link_flush(bt_kv_link_t *link)
{
    bt_list_remove(&link->dirty);
    if (link->fd < 0 || link->state == BT_KV_LINK_CONNECTING)
        return;
    while (link->out_at < link->out.n) {
        ssize_t n = send(link->fd, link->out.p + link->out_at, link->out.n - link->out_at,
                         MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0) {
            bt_kv_link_break(link, BT_E_RESET, "lost %s: %s", link->peer, strerror(errno));
            return;
        }
        link->out_at += (size_t) n;
        link->said_us = link->agent->now_us;
    }
    bool is_all = link->out_at == link->out.n;
    if (is_all)
        link->out.n = link->out_at = 0;
    if (link->wants_out == is_all) {
        link->wants_out = !is_all;
        watch(link, EPOLL_CTL_MOD, is_all ? EPOLLIN : EPOLLIN | EPOLLOUT);
    }
}

/* Bytes of a frame that has been dealt with, 0: it is not all there. < 0: the link is broken by it. */
static ptrdiff_t take_frame(bt_kv_link_t *link, const uint8_t *p, size_t n)
{
    bt_kv_frame_t frame;
    uint32_t max = link->state == BT_KV_LINK_UP ? BT_KV_FRAME_MAX : BT_KV_HELLO_MAX;
    size_t seal = link->auth.is_done ? BT_KV_SEAL_BYTES : 0;
    ptrdiff_t size = bt_kv_frame_next(p, n, max, &frame);

    if (size < 0)
        bt_kv_link_refuse(link, "a frame that is too long, or no frame at all");
    if (size <= 0 || n - (size_t) size < seal)
        return size < 0 ? size : 0;
    if (seal > 0 && !bt_kv_seal_is_good(&link->auth.in, p, (size_t) size)) {
        bt_kv_link_refuse(link, "a frame that somebody else has made or changed");
        return BT_E_INVAL;
    }
    return bt_kv_link_got(link, &frame) ? size + (ptrdiff_t) seal : BT_E_INVAL;
}

/* All whole frames; what is left moves to the front. */
static void cut_frames(bt_kv_link_t *link)
{
    size_t at = 0;
    ptrdiff_t n = 1;

    while (link->broken_rc == 0 && n > 0) {
        const uint8_t *p = link->in.p + at;
        size_t left = link->in.n - at;
        n = bt_kv_auth_is_open(&link->auth) ? bt_kv_link_take_auth(link, p, left)
                                            : take_frame(link, p, left);
        at += n > 0 ? (size_t) n : 0;
    }
    if (at > 0) {
        memmove(link->in.p, link->in.p + at, link->in.n - at);
        link->in.n -= at;
    }
}

static bool read_some(bt_kv_link_t *link)
{
    bt_kv_bytes_t *in = &link->in;

    if (in->room - in->n < READ_BYTES) {
        size_t room = in->room * 2 > in->n + READ_BYTES ? in->room * 2 : in->n + READ_BYTES;
        uint8_t *p = realloc(in->p, room);
        if (p == NULL) {
            bt_kv_link_break(link, BT_E_NOMEM, "out of memory");
            return false;
        }
        in->p = p;
        in->room = room;
    }
    ssize_t n = recv(link->fd, in->p + in->n, in->room - in->n, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (n <= 0) {
        bt_kv_link_break(link, BT_E_RESET, "lost %s: %s", link->peer,
                         n == 0 ? "it closed the connection" : strerror(errno));
        return false;
    }
    bool is_all = (size_t) n < in->room - in->n; /* no need to ask for more */
    in->n += (size_t) n;
    link->heard_us = link->agent->now_us;
    link->missed = 0;
    cut_frames(link);
    return !is_all && link->broken_rc == 0;
}

static void connected(bt_kv_link_t *link)
{
    int error = 0;
    socklen_t size = sizeof(error);

    getsockopt(link->fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) {
        bt_kv_link_break(link, BT_E_CONNECT, "cannot connect to %s: %s", link->peer,
                         strerror(error));
        return;
    }
    bt_kv_link_set_state(link, BT_KV_LINK_HELLO);
    if (link->agent->config.token != NULL)
        bt_kv_link_begin_auth(link);
    else if (bt_kv_link_may_talk(link))
        bt_kv_link_hello(link);
}

void bt_kv_link_event(bt_kv_link_t *link, uint32_t events)
{
    if (!bt_kv_link_is_live(link))
        return;
    if (link->state == BT_KV_LINK_CONNECTING) {
        if ((events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) != 0)
            connected(link);
        return;
    }
    if ((events & EPOLLOUT) != 0)
        bt_kv_link_flush(link);
    if ((events & ~(uint32_t) EPOLLOUT) != 0)
        for (int i = 0; i < READS_MAX && read_some(link); i++)
            ;
}

/* ---- the end ---- */
void bt_kv_link_want(bt_kv_link_t *link)
{
    link->agent->has_work = true;
    if (bt_list_empty(&link->attention))
        bt_list_push(&link->agent->attention, &link->attention);
}

void bt_kv_link_break(bt_kv_link_t *link, int rc, const char *fmt, ...)
{
    va_list args;

    if (link->broken_rc != 0 || link->state == BT_KV_LINK_LOST)
        return;
    va_start(args, fmt);
    vsnprintf(link->broken_why, sizeof(link->broken_why), fmt, args);
    va_end(args);
    link->broken_rc = rc;
    bt_kv_link_want(link);
}

void bt_kv_link_refuse(bt_kv_link_t *link, const char *what)
{
    link->agent->stats.refused_frames++;
    bt_kv_link_break(link, BT_E_KV_TRANSFER, "%s sent %s", link->peer, what);
}

static void lose(bt_kv_link_t *link)
{
    bt_kv_agent_t *agent = link->agent;
    bool was_up = link->state == BT_KV_LINK_UP;

    if (link->state != BT_KV_LINK_CONNECTING) {
        bt_kv_put_close(&link->out, bt_kv_rooms_are_quiet(link), bt_str(link->broken_why));
        bt_kv_link_flush(link);
    }
    bt_kv_link_set_state(link, BT_KV_LINK_LOST);
    epoll_ctl(agent->epoll_fd, EPOLL_CTL_DEL, link->fd, NULL);
    close(link->fd);
    link->fd = -1;
    bt_list_remove(&link->dirty);
    if (was_up && !agent->is_closing) {
        agent->stats.links_lost++;
        bt_log_info("kv", "%s: link to %s is over: %s", agent->config.name, link->peer,
                    link->broken_why);
    }
    bt_kv_rooms_lost(link);
}

static int step_lost(bt_kv_link_t *link)
{
    if (!bt_kv_rooms_leave(link))
        return 0;
    bt_kv_link_close_path(link);
    bt_kv_link_free(link);
    return 1;
}

/* May free the link. */
int bt_kv_link_step(bt_kv_link_t *link)
{
    if (link->broken_rc != 0 && link->state != BT_KV_LINK_LOST)
        lose(link);
    if (link->state == BT_KV_LINK_LOST)
        return step_lost(link);
    if (link->is_path_failed)
        bt_kv_link_next_path(link, true, link->path_why);
    bt_kv_link_check_usable(link);
    bt_kv_lane_pump(link->agent, link);
    return 1;
}

static void check_heartbeat(bt_kv_link_t *link, uint64_t now_us)
{
    const bt_kv_config_t *config = &link->agent->config;
    uint64_t silent_us = now_us > link->heard_us ? now_us - link->heard_us : 0;

    if (silent_us > (uint64_t) config->dead_ms * 1000) {
        bt_kv_link_break(link, BT_E_STALL, "no sign of life from %s for %u ms", link->peer,
                         config->dead_ms);
        return;
    }
    /* Whoever says a byte now and then is alive, and nobody as long as it has not said who it is. */
    if (link->state == BT_KV_LINK_HELLO &&
        now_us - link->opened_us > (uint64_t) config->dead_ms * 1000) {
        bt_kv_link_break(link, BT_E_STALL, "no hello of %s within %u ms", link->peer,
                         config->dead_ms);
        return;
    }
    if (silent_us / 1000 / config->heartbeat_ms > link->missed + 1) {
        link->missed++;
        link->agent->stats.heartbeats_missed++;
    }
    if (link->state == BT_KV_LINK_UP &&
        now_us - link->said_us >= (uint64_t) config->heartbeat_ms * 1000) {
        bt_kv_put_ping(&link->out, link->bytes_sent + link->bytes_received, link->notes);
        link->said_us = now_us;
        bt_kv_link_send(link);
    }
}

void bt_kv_links_heartbeat(bt_kv_agent_t *agent)
{
    for (bt_list_t *it = agent->links.next; it != &agent->links; it = it->next) {
        bt_kv_link_t *link = bt_container_of(it, bt_kv_link_t, link);
        if (bt_kv_link_is_live(link))
            check_heartbeat(link, agent->now_us);
        else
            bt_kv_link_want(link); /* its peer may have died, or its time be up */
    }
}

void bt_kv_link_free(bt_kv_link_t *link)
{
    bt_list_remove(&link->link);
    bt_list_remove(&link->dirty);
    bt_list_remove(&link->attention);
    if (link->fd >= 0)
        close(link->fd);
    link->agent->link_count--;
    bt_kv_link_forget(link);
    free(link->in.p);
    free(link->out.p);
    free(link->later.p);
    free(link);
}
