/* Sockets: the listener of an agent's data connections, dialling, and guests until they have said whose they are.
 *
 * Nobody is let into a path without its token (128 random bits, told over the control connection): a guest that stays silent, says something else, or names a
 * stream that is there already is closed, and the path does not notice.
 *
 * Buffers: SO_SNDBUF and SO_RCVBUF stay the kernel's to tune between agents on different hosts. On one host both are 1 MiB: with a plain stream,
 * 256 KiB on both sides halved the rate, and beyond 1 MiB the differences were noise.
 * BBR, where it is the default, halves the loopback: same-host connections ask for reno, which every process may use; a refusal is no error.
 */
#include "transport/backends/tcp/tcp.h"

#include "base/clock.h"
#include "base/str.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define BACKLOG 128
#define ACCEPTS_A_TURN 16
#define SAME_HOST_BUFFER (1 << 20)

/* ---- options ---- */
static void set(int fd, int level, int name, int value)
{
    (void) setsockopt(fd, level, name, &value, sizeof(value)); /* each only makes it faster */
}

/* Both ends are this host's when the two addresses are the same one, or in 127/8. */
static void tune(int fd)
{
    struct sockaddr_in here = {0}, there = {0};
    socklen_t n = sizeof(here), m = sizeof(there);

    set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    if (getsockname(fd, (struct sockaddr *) &here, &n) != 0 ||
        getpeername(fd, (struct sockaddr *) &there, &m) != 0)
        return;
    if (ntohl(there.sin_addr.s_addr) >> 24 != 127 && here.sin_addr.s_addr != there.sin_addr.s_addr)
        return;
    (void) setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
    set(fd, SOL_SOCKET, SO_SNDBUF, SAME_HOST_BUFFER);
    set(fd, SOL_SOCKET, SO_RCVBUF, SAME_HOST_BUFFER);
}

/* ---- the listener ---- */
/* 0.0.0.0: every address of this host's, loopback last (a peer elsewhere that tries it is told apart by the token). */
static void list_addresses(bt_tcp_offer_t *offer)
{
    struct ifaddrs *all = NULL;

    if (getifaddrs(&all) != 0)
        return;
    for (const struct ifaddrs *it = all; it != NULL; it = it->ifa_next) {
        if (it->ifa_addr == NULL || it->ifa_addr->sa_family != AF_INET ||
            (it->ifa_flags & IFF_LOOPBACK) != 0 || offer->address_count == BT_TCP_ADDRESSES - 1)
            continue;
        const struct sockaddr_in *in = (const struct sockaddr_in *) (const void *) it->ifa_addr;
        offer->addresses[offer->address_count++] = ntohl(in->sin_addr.s_addr);
    }
    freeifaddrs(all);
    offer->addresses[offer->address_count++] = INADDR_LOOPBACK;
}

int bt_tcp_listen(bt_tcp_t *tcp, const char *host, char *err, size_t err_size)
{
    struct sockaddr_in to = {.sin_family = AF_INET};
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &tcp->listener};
    socklen_t n = sizeof(to);

    if (inet_pton(AF_INET, host, &to.sin_addr) != 1) {
        snprintf(err, err_size, "tcp: host %.60s is not a numeric IPv4 address", host);
        return BT_E_INVAL;
    }
    tcp->listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (tcp->listener < 0 || bind(tcp->listener, (struct sockaddr *) &to, sizeof(to)) != 0 ||
        listen(tcp->listener, BACKLOG) != 0 ||
        getsockname(tcp->listener, (struct sockaddr *) &to, &n) != 0 ||
        epoll_ctl(tcp->inner, EPOLL_CTL_ADD, tcp->listener, &event) != 0) {
        snprintf(err, err_size, "tcp: cannot listen on %.60s: %s", host, strerror(errno));
        return BT_E_LIMIT;
    }
    tcp->offer.port = ntohs(to.sin_port);
    tcp->offer.addresses[0] = ntohl(to.sin_addr.s_addr);
    tcp->offer.address_count = to.sin_addr.s_addr != htonl(INADDR_ANY);
    if (tcp->offer.address_count == 0)
        list_addresses(&tcp->offer);
    return 0;
}

/* ---- connections ---- */
/* Takes the descriptor. */
static bt_tcp_conn_t *new_conn(bt_tcp_t *tcp, int fd, enum bt_tcp_conn_state state)
{
    bt_tcp_conn_t *conn = malloc(sizeof(*conn));
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                                .data.ptr = conn};

    if (conn == NULL || epoll_ctl(tcp->inner, EPOLL_CTL_ADD, fd, &event) != 0) {
        close(fd);
        free(conn);
        return NULL;
    }
    memset(conn, 0, offsetof(bt_tcp_conn_t, plan)); /* not its 60 KiB of buffers */
    bt_list_init(&conn->link);
    conn->tcp = tcp;
    conn->fd = fd;
    conn->state = state;
    conn->deadline_ms = bt_clock_ms() + BT_TCP_HANDSHAKE_MS;
    conn->plan.iov_at = conn->plan.iov_count = 0;
    conn->plan.block_at = conn->plan.block_count = 0;
    conn->plan.bytes = conn->plan.arena_used = 0;
    conn->rx.stage_at = conn->rx.stage_n = 0;
    conn->rx.in_payload = conn->rx.is_held = false;
    conn->ack_count = 0;
    return conn;
}

void bt_tcp_conn_close(bt_tcp_conn_t *conn)
{
    if (conn->state == BT_TCP_GUEST)
        conn->tcp->guest_count--;
    bt_list_remove(&conn->link);
    close(conn->fd);
    conn->state = BT_TCP_DEAD;
    conn->path = NULL;
    bt_list_push(&conn->tcp->dead, &conn->link);
}

void bt_tcp_conns_reap(bt_tcp_t *tcp)
{
    bt_list_t *it, *tmp;

    bt_list_each (&tcp->dead, it, tmp) {
        bt_list_remove(it);
        free(bt_container_of(it, bt_tcp_conn_t, link));
    }
}

/* ---- dialling ---- */
static void dial_one(bt_tcp_path_t *path, uint16_t stream)
{
    bt_tcp_t *tcp = bt_tcp_of(path);
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons(path->offer.port),
                             .sin_addr.s_addr = htonl(path->offer.addresses[path->address_at])};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    /* Watched from the start: what connect does at once is an edge too. */
    bt_tcp_conn_t *conn = fd < 0 ? NULL : new_conn(tcp, fd, BT_TCP_CONNECTING);

    if (conn == NULL) {
        bt_tcp_path_break(path, BT_E_LIMIT, "tcp: no socket: %s", strerror(errno));
        return;
    }
    conn->path = path;
    conn->stream = stream;
    path->conns[stream] = conn;
    if (connect(fd, (struct sockaddr *) &to, sizeof(to)) != 0 && errno != EINPROGRESS)
        path->dial_errno = errno;
}

void bt_tcp_dial(bt_tcp_path_t *path)
{
    path->dial_errno = 0;
    for (uint32_t i = 0; i < path->streams && path->stage == BT_TCP_OPENING; i++)
        dial_one(path, (uint16_t) i);
}

void bt_tcp_connected(bt_tcp_conn_t *conn)
{
    bt_tcp_path_t *path = conn->path;
    bt_tcp_greeting_t greeting = {.stream = conn->stream, .streams = (uint16_t) path->streams};
    uint8_t bytes[BT_TCP_GREETING_BYTES];
    struct sockaddr_in there;
    socklen_t n = sizeof(there), m = sizeof(int);
    int error = 0;

    (void) getsockopt(conn->fd, SOL_SOCKET, SO_ERROR, &error, &m);
    if (error != 0) {
        bt_tcp_path_lost(conn, error);
        return;
    }
    if (getpeername(conn->fd, (struct sockaddr *) &there, &n) != 0)
        return; /* not yet */
    tune(conn->fd);
    conn->state = BT_TCP_GREETING;
    conn->may_write = true;
    memcpy(greeting.token, path->token, sizeof(greeting.token));
    bt_tcp_greeting_put(&greeting, bytes);
    bt_tcp_plan_add(&conn->plan, bytes, sizeof(bytes));
}

/* ---- guests ---- */
void bt_tcp_accept(bt_tcp_t *tcp)
{
    for (int i = 0; i < ACCEPTS_A_TURN; i++) {
        int fd = accept4(tcp->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0)
            return;
        if (tcp->guest_count >= BT_TCP_GUESTS_MAX) {
            close(fd);
            continue;
        }
        bt_tcp_conn_t *conn = new_conn(tcp, fd, BT_TCP_GUEST);
        if (conn == NULL)
            continue;
        tune(fd);
        bt_list_push(&tcp->guests, &conn->link);
        tcp->guest_count++;
        bt_tcp_guest_read(conn);
    }
}

/* Every path is compared in full, so that time tells nothing about tokens. */
static bt_tcp_path_t *path_of(bt_tcp_t *tcp, const uint8_t token[BT_TCP_TOKEN_BYTES])
{
    bt_str_t given = {(const char *) token, BT_TCP_TOKEN_BYTES};
    bt_tcp_path_t *found = NULL;

    for (bt_list_t *it = tcp->paths.next; it != &tcp->paths; it = it->next) {
        bt_tcp_path_t *path = bt_container_of(it, bt_tcp_path_t, link);
        bt_str_t own = {(const char *) path->token, BT_TCP_TOKEN_BYTES};
        if (bt_str_is_secret(own, given) && path->is_initiator)
            found = path;
    }
    return found;
}

static bool join(bt_tcp_conn_t *conn, const bt_tcp_greeting_t *greeting)
{
    bt_tcp_path_t *path = path_of(conn->tcp, greeting->token);
    uint8_t welcome[BT_TCP_BLOCK_HEAD_BYTES];

    if (path == NULL || path->stage != BT_TCP_OPENING || greeting->streams == 0 ||
        greeting->streams > BT_TCP_STREAMS_MAX || greeting->stream >= greeting->streams ||
        (path->streams != 0 && path->streams != greeting->streams) ||
        path->conns[greeting->stream] != NULL)
        return false;
    bt_list_remove(&conn->link);
    conn->tcp->guest_count--;
    conn->path = path;
    conn->stream = greeting->stream;
    conn->state = BT_TCP_OPEN;
    conn->may_read = conn->may_write = true;
    conn->rx.stage_at = conn->rx.stage_n = 0;
    path->conns[greeting->stream] = conn;
    path->streams = greeting->streams;
    size_t n = bt_tcp_head_put(&(bt_tcp_head_t){.type = BT_TCP_WELCOME}, welcome);
    bt_tcp_plan_add(&conn->plan, welcome, n);
    bt_tcp_path_opened(path);
    return true;
}

void bt_tcp_guest_read(bt_tcp_conn_t *conn)
{
    bt_tcp_rx_t *rx = &conn->rx;
    bt_tcp_greeting_t greeting;
    ssize_t n =
        recv(conn->fd, rx->stage + rx->stage_n, BT_TCP_GREETING_BYTES - rx->stage_n, MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    rx->stage_n += n > 0 ? (size_t) n : 0;
    if (n > 0 && rx->stage_n < BT_TCP_GREETING_BYTES)
        return; /* a byte that comes later is a new edge */
    if (n <= 0 || bt_tcp_greeting_get(rx->stage, &greeting) != 0 || !join(conn, &greeting))
        bt_tcp_conn_close(conn);
}

void bt_tcp_guests_expire(bt_tcp_t *tcp, uint64_t now_ms)
{
    bt_list_t *it, *tmp;

    bt_list_each (&tcp->guests, it, tmp) {
        bt_tcp_conn_t *conn = bt_container_of(it, bt_tcp_conn_t, link);
        if (now_ms >= conn->deadline_ms)
            bt_tcp_conn_close(conn);
    }
}
