/* listener.c - accepting, spreading, shedding.
 *
 * Not uv_listen: since libuv 1.45 it accepts one connection a wake-up, and a listener that shares its port needs
 * SO_REUSEPORT set before bind, which 1.44 cannot do. A uv_poll on our own descriptor is less code than the detour.
 *
 * The kernel spreads connections over the loops by a hash: fine for many short ones, uneven for few long streams. So a
 * loop that holds clearly more than its share passes the socket on. The counter of the receiving loop is raised by the
 * giver, before the mail is read, or a burst accepted in one turn would all go to the same loop.
 *
 * Port taken. With SO_REUSEPORT the kernel lets a second program of the same user bind and takes half the traffic
 * away without a word. So each bind is first tried without it; if that fails only because another listener of this very
 * process is there (own_fds), it is our next loop and all is well.
 */
#include "loop/listener.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "loop/network.h"
#include "loop/resolve.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define BACKLOG 4096
#define ACCEPT_TURN 64U     /* sockets accepted in one turn */
#define ACCEPT_DRAIN 65536U /* and at the end: more than any backlog */
#define RETRY_MS 100        /* rest after an accept error that would repeat at once */
#define OWN_MAX 1024        /* listeners of this process that are remembered */

struct bt_listener {
    uv_poll_t poll;
    bt_loop_t *loop;
    const bt_loop_group_t *group;
    bt_accept_cb on_accept;
    void *user;
    bt_full_cb on_full; /* may be NULL */
    void *full_user;
    bt_timer_t retry; /* after an error that accept() would only repeat */
    int fd;
    int spare_fd;       /* given up for a moment to accept, and shed, when descriptors run out */
    uint64_t logged_ms; /* last log line about it */
    unsigned shed;      /* connections shed since then */
    bool closing;
};

/* A socket on its way to another loop. */
struct handover {
    bt_mail_t envelope;
    int fd;
    bt_accept_cb on_accept;
    void *user;
};

/* ---- bind ---- */

static pthread_mutex_t own_lock = PTHREAD_MUTEX_INITIALIZER;
/* A closed one is no longer listening, and is overwritten: nobody need unregister. */
static int own_fds[OWN_MAX];
static unsigned own_count;

static bool is_bound_to(int fd, const struct sockaddr_storage *addr)
{
    struct sockaddr_storage bound;
    socklen_t len = sizeof(bound);

    return getsockname(fd, (struct sockaddr *) &bound, &len) == 0 &&
           bt_network_is_endpoint((struct sockaddr *) &bound, (const struct sockaddr *) addr);
}

static bool is_listening(int fd)
{
    int value = 0;
    socklen_t len = sizeof(value);

    return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &value, &len) == 0 && value != 0;
}

static bool is_own(const struct sockaddr_storage *addr)
{
    bool found = false;

    pthread_mutex_lock(&own_lock);
    for (unsigned i = 0; i < own_count && !found; i++)
        found = is_listening(own_fds[i]) && is_bound_to(own_fds[i], addr);
    pthread_mutex_unlock(&own_lock);
    return found;
}

static void remember_own(int fd)
{
    pthread_mutex_lock(&own_lock);
    unsigned i = 0;
    while (i < own_count && own_fds[i] != fd && is_listening(own_fds[i]))
        i++;
    if (i < OWN_MAX)
        own_fds[i] = fd;
    if (i == own_count && i < OWN_MAX)
        own_count++;
    pthread_mutex_unlock(&own_lock);
}

static unsigned port_of(const struct sockaddr_storage *addr)
{
    return addr->ss_family == AF_INET6 ? ntohs(((const struct sockaddr_in6 *) addr)->sin6_port)
                                       : ntohs(((const struct sockaddr_in *) addr)->sin_port);
}

/* A bound socket, or a negative code. */
static int bind_socket(const struct sockaddr_storage *addr, bool reuse_port)
{
    const struct sockaddr *to = (const struct sockaddr *) addr;
    int on = 1;
    int fd = socket(addr->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return uv_translate_sys_error(errno);
    /* Without it, connections of our predecessor in TIME_WAIT would hold the port. */
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 ||
        (reuse_port && setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on)) < 0) ||
        bind(fd, to, bt_network_length(to)) < 0) {
        int rc = uv_translate_sys_error(errno);
        close(fd);
        return rc;
    }
    return fd;
}

/* 0 when nobody but this process uses the address. */
static int probe_address(const struct sockaddr_storage *addr)
{
    int fd = bind_socket(addr, false);

    if (fd >= 0) {
        close(fd);
        return 0;
    }
    return fd == UV_EADDRINUSE && is_own(addr) ? 0 : fd;
}

static int lookup(const char *host, unsigned port, struct sockaddr_storage *addr_p)
{
    struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *list;

    if (port > 65535)
        return BT_E_INVAL;
    if (bt_resolve_numeric(host, port, addr_p) == 0)
        return 0;
    if (getaddrinfo(host, NULL, &hints, &list) != 0)
        return BT_E_RESOLVE;
    /* IPv4 where there is one: a peer told "localhost" may mean 127.0.0.1. */
    const struct addrinfo *best = list;
    while (best != NULL && best->ai_family != AF_INET)
        best = best->ai_next;
    if (best == NULL)
        best = list;
    memset(addr_p, 0, sizeof(*addr_p));
    memcpy(addr_p, best->ai_addr, best->ai_addrlen);
    freeaddrinfo(list);
    bt_network_set_port(addr_p, port);
    return 0;
}

int bt_listener_bind(const char *host, unsigned port, bool reuse_port, unsigned *port_p)
{
    struct sockaddr_storage addr;
    socklen_t len = sizeof(addr);
    int rc = lookup(host, port, &addr);

    if (rc == 0 && reuse_port && port != 0)
        rc = probe_address(&addr);
    if (rc < 0)
        return rc;
    int fd = bind_socket(&addr, reuse_port);
    if (fd < 0)
        return fd;
    if (listen(fd, BACKLOG) < 0 || getsockname(fd, (struct sockaddr *) &addr, &len) < 0) {
        rc = uv_translate_sys_error(errno);
        close(fd);
        return rc;
    }
    if (reuse_port)
        remember_own(fd);
    if (port_p != NULL)
        *port_p = port_of(&addr);
    return fd;
}

/* ---- spreading ---- */

static unsigned load_of(bt_loop_t *loop)
{
    return atomic_load_explicit(&loop->connections, memory_order_relaxed);
}

/* The loop that shall have the next socket: this one, unless it holds more than 1.25 * mean + 8. */
static bt_loop_t *choose_loop(const bt_listener_t *l)
{
    bt_loop_t *least = l->loop;
    uint64_t own = load_of(l->loop), total = 0, lowest = own;

    if (l->group == NULL)
        return l->loop;
    for (unsigned i = 0; i < l->group->count; i++) {
        uint64_t load = load_of(l->group->loops[i]);
        total += load;
        if (load < lowest) {
            lowest = load;
            least = l->group->loops[i];
        }
    }
    /* own > 1.25 * total / count + 8, without fractions */
    return 4 * l->group->count * own > 5 * total + 32 * (uint64_t) l->group->count ? least
                                                                                   : l->loop;
}

static void on_handover(bt_loop_t *loop, bt_mail_t *envelope)
{
    struct handover mail = *bt_container_of(envelope, struct handover, envelope);

    free(bt_container_of(envelope, struct handover, envelope));
    mail.on_accept(loop, mail.fd, mail.user);
}

static void assign(bt_listener_t *l, int fd)
{
    bt_loop_t *target = choose_loop(l);
    struct handover *mail = target != l->loop ? malloc(sizeof(*mail)) : NULL;

    if (mail == NULL)
        target = l->loop;
    atomic_fetch_add_explicit(&target->connections, 1, memory_order_relaxed);
    if (mail == NULL) {
        l->on_accept(target, fd, l->user);
        return;
    }
    mail->fd = fd;
    mail->on_accept = l->on_accept;
    mail->user = l->user;
    bt_loop_post(target, &mail->envelope, on_handover);
}

/* ---- accepting ---- */

static void log_shed(bt_listener_t *l)
{
    uint64_t now_ms = bt_clock_ms();

    l->shed++;
    if (l->logged_ms != 0 && now_ms - l->logged_ms < 1000)
        return;
    bt_log_error("listener", "out of file descriptors, %u connection(s) closed unserved", l->shed);
    l->logged_ms = now_ms;
    l->shed = 0;
}

/* No descriptor is left: the spare one becomes the connection's, which is closed at once, so that the peer learns it
 * now instead of waiting, and the level-triggered poll does not spin. False when that did not work either. */
static bool shed_one(bt_listener_t *l)
{
    if (l->spare_fd < 0)
        return false;
    close(l->spare_fd);
    int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0)
        close(fd);
    l->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (fd >= 0)
        log_shed(l);
    return fd >= 0;
}

static void rest(bt_listener_t *l)
{
    uv_poll_stop(&l->poll);
    bt_timer_start(&l->retry, RETRY_MS);
}

/* True: go on accepting. */
static bool survive_error(bt_listener_t *l, int error)
{
    int rc;

    switch (error) {
    case EAGAIN:
        return false;
    case EMFILE:
    case ENFILE:
        rc = l->on_full != NULL ? l->on_full(l->loop, l->full_user) : BT_E_LIMIT;
        if (rc == 0 || (rc != BT_E_AGAIN && shed_one(l)))
            return true;
        break;
    case ENOBUFS:
    case ENOMEM:
    case EBADF:
    case EINVAL:
    case ENOTSOCK:
        break;
    default: /* of the connection that was to be accepted: accept(2) passes its network errors on */
        return true;
    }
    if (!l->closing)
        rest(l);
    return false;
}

static void accept_some(bt_listener_t *l, unsigned max)
{
    for (unsigned i = 0; i < max; i++) {
        int fd = accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0)
            assign(l, fd);
        else if (!survive_error(l, errno))
            return;
        if (l->fd < 0)
            return; /* closed by the callback */
    }
}

static void on_readable(uv_poll_t *poll, int rc, int events)
{
    bt_listener_t *l = poll->data;

    (void) rc; /* accept() says what is wrong */
    (void) events;
    accept_some(l, ACCEPT_TURN);
}

static void on_retry(bt_timer_t *timer)
{
    bt_listener_t *l = bt_container_of(timer, bt_listener_t, retry);

    if (l->spare_fd < 0)
        l->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    (void) uv_poll_start(&l->poll, UV_READABLE, on_readable);
}

/* ---- life ---- */

static void on_poll_closed(uv_handle_t *handle)
{
    free(handle->data);
}

int bt_listener_start(bt_listener_t **listener_p, bt_loop_t *loop, int fd,
                      const bt_loop_group_t *group, bt_accept_cb on_accept, void *user)
{
    bt_listener_t *l = calloc(1, sizeof(*l));
    int rc = BT_E_NOMEM;

    if (l == NULL)
        goto err_fd;
    l->loop = loop;
    l->group = group;
    l->on_accept = on_accept;
    l->user = user;
    l->fd = fd;
    bt_timer_init(loop, &l->retry, on_retry);
    rc = uv_poll_init(&loop->uv, &l->poll, fd);
    if (rc < 0)
        goto err_listener;
    l->poll.data = l;
    rc = uv_poll_start(&l->poll, UV_READABLE, on_readable);
    if (rc < 0) {
        uv_close((uv_handle_t *) &l->poll, on_poll_closed);
        goto err_fd;
    }
    l->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    *listener_p = l;
    return 0;

err_listener:
    free(l);
err_fd:
    close(fd);
    return rc;
}

void bt_listener_close(bt_listener_t *l)
{
    if (l->closing)
        return;
    l->closing = true;
    accept_some(l, ACCEPT_DRAIN);
    bt_timer_stop(&l->retry);
    uv_close((uv_handle_t *) &l->poll, on_poll_closed);
    close(l->fd);
    l->fd = -1;
    if (l->spare_fd >= 0)
        close(l->spare_fd);
}

void bt_listener_on_full(bt_listener_t *l, bt_full_cb on_full, void *user)
{
    l->on_full = on_full;
    l->full_user = user;
}

void bt_listener_peer(int fd, char *out, socklen_t size)
{
    struct sockaddr_storage addr;
    socklen_t len = sizeof(addr);

    if (getpeername(fd, (struct sockaddr *) &addr, &len) != 0 ||
        uv_ip_name((struct sockaddr *) &addr, out, size) != 0)
        out[0] = '\0';
}
