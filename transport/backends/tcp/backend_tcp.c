/* backend_tcp.c - agents anywhere: pages over TCP connections of their own, apart from the control connection.
 *
 *     sender  post -> blocks -> sendmsg from the pages          tcp_send.c
 *     receiver recvmsg into the pages -> note, ACK              tcp_take.c
 *     sender  ACK -> batch_over                                 tcp_send.c
 *
 * All sockets hang in an edge-triggered epoll of our own, which the agent's sleep watches: an edge sets may_read or may_write of a connection, EAGAIN (or a short
 * count) clears it, so a turn calls the kernel only for connections that have something, and a sleeping agent has none of these flags left to act upon.
 *
 * A turn: events (unless there is work without them), then each path in turn: its opening and end, then for each connection one write (acknowledgements of the last turn, then blocks) and one read. It
 * ends early when it has moved enough; the next one begins with the next path.
 */
#include "transport/backends/tcp/tcp.h"

#include "base/clock.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define EVENTS_A_TURN 64
#define TURN_BYTES (2 * BT_TCP_SLICE_BYTES)
#define BLIND_TURNS 8u

static bt_tcp_t *tcp_of(bt_kv_backend_t *base)
{
    return (bt_tcp_t *) (void *) base;
}

/* ---- open, close ---- */
static void free_all(bt_tcp_t *tcp)
{
    bt_list_t *it, *tmp;

    bt_list_each (&tcp->guests, it, tmp)
        bt_tcp_conn_close(bt_container_of(it, bt_tcp_conn_t, link));
    bt_tcp_conns_reap(tcp);
    if (tcp->listener >= 0)
        close(tcp->listener);
    if (tcp->wake_fd >= 0)
        close(tcp->wake_fd);
    if (tcp->inner >= 0)
        close(tcp->inner);
    free(tcp->discard);
    free(tcp);
}

static int open_fds(bt_tcp_t *tcp, char *err, size_t err_size)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &tcp->wake_fd};

    tcp->inner = epoll_create1(EPOLL_CLOEXEC);
    tcp->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    tcp->discard = malloc(BT_TCP_SLICE_BYTES);
    if (tcp->inner >= 0 && tcp->wake_fd >= 0 && tcp->discard != NULL &&
        epoll_ctl(tcp->inner, EPOLL_CTL_ADD, tcp->wake_fd, &event) == 0)
        return 0;
    snprintf(err, err_size, "tcp: %s", strerror(errno));
    return BT_E_LIMIT;
}

static int tcp_open(bt_kv_backend_t **backend_p, bt_kv_agent_t *agent, const bt_kv_config_t *config,
                    char *err, size_t err_size)
{
    bt_tcp_t *tcp = calloc(1, sizeof(*tcp));

    if (tcp == NULL)
        return BT_E_NOMEM;
    tcp->base = (bt_kv_backend_t){.ops = &bt_kv_tcp_ops, .agent = agent};
    tcp->listener = tcp->inner = tcp->wake_fd = -1;
    tcp->streams = config->tcp_streams == 0 ? 1 : config->tcp_streams;
    if (tcp->streams > BT_TCP_STREAMS_MAX)
        tcp->streams = BT_TCP_STREAMS_MAX;
    bt_list_init(&tcp->paths);
    bt_list_init(&tcp->guests);
    bt_list_init(&tcp->dead);
    int rc = open_fds(tcp, err, err_size);
    if (rc == 0)
        rc = bt_tcp_listen(tcp, config->host != NULL ? config->host : "127.0.0.1", err, err_size);
    if (rc == 0)
        rc = bt_kv_watch(agent, tcp->inner, EPOLLIN);
    if (rc != 0) {
        free_all(tcp);
        return rc;
    }
    *backend_p = &tcp->base;
    return 0;
}

static void tcp_close(bt_kv_backend_t *base)
{
    bt_kv_unwatch(base->agent, tcp_of(base)->inner);
    free_all(tcp_of(base));
}

static size_t tcp_offer(bt_kv_backend_t *base, uint8_t *to, size_t size)
{
    return size < BT_TCP_OFFER_BYTES ? 0 : bt_tcp_offer_put(&tcp_of(base)->offer, to);
}

/* ---- turns ---- */
static void conn_event(bt_tcp_conn_t *conn, uint32_t events)
{
    switch (conn->state) {
    case BT_TCP_GUEST:
        bt_tcp_guest_read(conn);
        break;
    case BT_TCP_CONNECTING:
        bt_tcp_connected(conn);
        break;
    case BT_TCP_GREETING:
    case BT_TCP_OPEN:
        conn->may_read |= (events & ~(uint32_t) EPOLLOUT) != 0;
        conn->may_write |= (events & EPOLLOUT) != 0;
        break;
    case BT_TCP_DEAD:
        break;
    }
}

static int look(bt_tcp_t *tcp)
{
    struct epoll_event events[EVENTS_A_TURN];
    int n = epoll_wait(tcp->inner, events, EVENTS_A_TURN, 0);
    uint64_t count;

    for (int i = 0; i < n; i++) {
        if (events[i].data.ptr == &tcp->wake_fd)
            (void) !read(tcp->wake_fd, &count, sizeof(count));
        else if (events[i].data.ptr == &tcp->listener)
            bt_tcp_accept(tcp);
        else
            conn_event(events[i].data.ptr, events[i].events);
    }
    return n > 0 ? n : 0;
}

/* A connection that has work knows it: while one has, the kernel is asked for more only now and then. */
static bool is_time_to_poll(bt_tcp_t *tcp)
{
    bool is_busy = false;

    for (bt_list_t *it = tcp->paths.next; it != &tcp->paths && !is_busy; it = it->next)
        is_busy = bt_tcp_path_has_news(bt_container_of(it, bt_tcp_path_t, link));
    tcp->blind_turns = is_busy ? tcp->blind_turns + 1 : 0;
    return tcp->blind_turns % BLIND_TURNS == 0;
}

static int turn(bt_tcp_path_t *path, uint64_t now_ms)
{
    int count = bt_tcp_path_step(path, now_ms);

    for (uint32_t i = 0; i < path->streams && path->stage != BT_TCP_BROKEN; i++) {
        bt_tcp_conn_t *conn = path->conns[i];
        if (conn != NULL && conn->may_write && bt_tcp_has_output(conn))
            count += bt_tcp_write_slice(conn, true);
        conn = path->conns[i]; /* another one, when a new address is tried */
        if (conn != NULL && path->stage != BT_TCP_BROKEN && bt_tcp_can_take(conn))
            count += bt_tcp_take_slice(conn);
    }
    return count;
}

static int tcp_progress(bt_kv_backend_t *base)
{
    bt_tcp_t *tcp = tcp_of(base);
    uint32_t left = 0;
    uint64_t moved = 0;

    if (tcp->in_progress)
        return 0; /* another thread's turn has let the lock go */
    tcp->in_progress = true;
    tcp->is_armed = false;
    bt_tcp_conns_reap(tcp);
    int count = is_time_to_poll(tcp) ? look(tcp) : 0;
    uint64_t now_ms = bt_clock_ms();
    bt_tcp_guests_expire(tcp, now_ms);
    for (bt_list_t *it = tcp->paths.next; it != &tcp->paths; it = it->next)
        left++;
    for (; left > 0 && moved < TURN_BYTES; left--) {
        bt_tcp_path_t *path = bt_container_of(tcp->paths.next, bt_tcp_path_t, link);
        bt_list_remove(&path->link);
        bt_list_push(&tcp->paths, &path->link);
        uint64_t before = path->bytes_in + path->bytes_out;
        count += turn(path, now_ms);
        moved += path->bytes_in + path->bytes_out - before;
    }
    tcp->in_progress = false;
    return count;
}

static bool tcp_arm(bt_kv_backend_t *base)
{
    bt_tcp_t *tcp = tcp_of(base);

    for (bt_list_t *it = tcp->paths.next; it != &tcp->paths; it = it->next)
        if (bt_tcp_path_has_news(bt_container_of(it, bt_tcp_path_t, link)))
            return true;
    tcp->is_armed = true;
    return false;
}

static int tcp_describe(const bt_kv_path_t *base, char *text, size_t size)
{
    const bt_tcp_path_t *path = bt_tcp_path_of(base);
    uint64_t age_us = bt_clock_us() - path->opened_us;
    char congestion[32] = "";
    socklen_t congestion_bytes = sizeof(congestion) - 1;

    if (path->stage == BT_TCP_BROKEN)
        return snprintf(text, size, "tcp, broken: %s", path->why);
    if (path->stage == BT_TCP_OPENING)
        return snprintf(text, size, "tcp, opening: %u of %u connections", path->open,
                        path->streams);
    (void) getsockopt(path->conns[0]->fd, IPPROTO_TCP, TCP_CONGESTION, congestion,
                      &congestion_bytes);
    return snprintf(text, size, "tcp, %u stream%s, %s, %.1f MB/s out, %.1f MB/s in since it opened",
                    path->streams, path->streams == 1 ? "" : "s", congestion,
                    (double) path->bytes_out / (double) (age_us + 1),
                    (double) path->bytes_in / (double) (age_us + 1));
}

const bt_kv_backend_ops_t bt_kv_tcp_ops = {
    .kind = BT_KV_TCP,
    .name = "tcp",
    .rank = 10,
    .open = tcp_open,
    .close = tcp_close,
    .offer = tcp_offer,
    .path_open = bt_tcp_path_open,
    .received = bt_tcp_path_received,
    .path_close = bt_tcp_path_close,
    .post = bt_tcp_post,
    .drain = bt_tcp_drain,
    .progress = tcp_progress,
    .arm = tcp_arm,
    .describe = tcp_describe,
    .close_revokes = true,
};
