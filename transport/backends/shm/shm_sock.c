/* The unix socket beside a path: passes file descriptors, the few words of the handshake, and regions as they come and go.
 *
 * Its name is abstract and holds the agent's incarnation: nothing to clean up, nothing to squat in a shared directory. SO_PEERCRED's uid must be ours. Who
 * connects is told apart by a cookie, which the initiator also sends over the control connection (told): only a peer that has passed the control connection's
 * handshake knows one. The HELLO that carries it is peeked at and left in the socket for the path, which reads it with its fds.
 *
 * The sender of a region writes the message before the first run that names it. So a receiver that meets an unknown region reads its
 * socket and must find it: no acknowledgement is needed. Where the socket is full, messages wait in `unsent`, and posts wait for them.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "transport/backends/shm/shm.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

struct unsent {
    bt_list_t link;
    bt_shm_msg_t msg;
    int fds[2];
    uint32_t fd_count;
};

struct guest { /* connected, but of which path? */
    bt_list_t link;
    bt_shm_watch_t watch;
    int sock;
    bool is_read;
    uint64_t deadline_ms;
    uint8_t cookie[16];
};

static socklen_t address_of(const bt_shm_offer_t *offer, struct sockaddr_un *to)
{
    static const char name[] = "baton-kv-";
    size_t at = 1 + sizeof(name) - 1;

    memset(to, 0, sizeof(*to));
    to->sun_family = AF_UNIX;
    memcpy(to->sun_path + 1, name, sizeof(name) - 1);
    for (size_t i = 0; i < sizeof(offer->incarnation); i++, at += 2)
        snprintf(to->sun_path + at, 3, "%02x", offer->incarnation[i]);
    return (socklen_t) (offsetof(struct sockaddr_un, sun_path) + at);
}

/* Listening, or connected: a unix socket connects at once or not at all. */
static int open_socket(const bt_shm_offer_t *offer, bool is_listener)
{
    struct sockaddr_un name;
    socklen_t size = address_of(offer, &name);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return fd;
    int rc = (is_listener ? bind : connect)(fd, (struct sockaddr *) &name, size);
    if (rc == 0 && is_listener)
        rc = listen(fd, (int) BT_SHM_GUESTS_MAX);
    if (rc == 0)
        return fd;
    int saved = errno;
    close(fd);
    errno = saved;
    return -1;
}

int bt_shm_listen(const bt_shm_offer_t *offer)
{
    return open_socket(offer, true);
}

int bt_shm_connect(const bt_shm_offer_t *offer)
{
    return open_socket(offer, false);
}

bool bt_shm_is_own_user(int sock, pid_t *pid_p)
{
    struct ucred cred;
    socklen_t size = sizeof(cred);

    if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &cred, &size) != 0)
        return false;
    *pid_p = cred.pid;
    return cred.uid == geteuid();
}

int bt_shm_pidfd(int sock, pid_t pid)
{
    int fd = -1;
    socklen_t size = sizeof(fd);
    if (getsockopt(sock, SOL_SOCKET, SO_PEERPIDFD, &fd, &size) == 0)
        return fd;
    return pid > 0 ? (int) syscall(SYS_pidfd_open, pid, 0) : -1; /* before Linux 6.5 */
}

/* ---- messages ---- */
/* A full socket, or a kernel that is short of memory or of what it counts of descriptors in flight: over soon. */
static bool is_transient(int error)
{
    return error == EAGAIN || error == EINTR || error == ETOOMANYREFS || error == ENOBUFS ||
           error == ENOMEM;
}

static ssize_t send_head(int sock, const struct msghdr *head)
{
    if (bt_shm_hooks.short_sends == 0)
        return sendmsg(sock, head, MSG_DONTWAIT | MSG_NOSIGNAL);
    bt_shm_hooks.short_sends--;
    errno = ENOBUFS;
    return -1;
}

static int send_now(int sock, const bt_shm_msg_t *msg, const int *fds, uint32_t fd_count)
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(2 * sizeof(int))];
    } control;
    struct iovec iov = {(void *) (uintptr_t) msg, sizeof(*msg)};
    struct msghdr head = {.msg_iov = &iov, .msg_iovlen = 1};

    if (fd_count > 0) {
        memset(&control, 0, sizeof(control));
        head.msg_control = &control;
        head.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
        control.head.cmsg_level = SOL_SOCKET;
        control.head.cmsg_type = SCM_RIGHTS;
        control.head.cmsg_len = CMSG_LEN(fd_count * sizeof(int));
        memcpy(CMSG_DATA(&control.head), fds, fd_count * sizeof(int));
    }
    if (send_head(sock, &head) == (ssize_t) sizeof(*msg))
        return 0;
    return is_transient(errno) ? BT_E_AGAIN : BT_E_RESET;
}

static void unsent_free(struct unsent *u)
{
    bt_list_remove(&u->link);
    for (uint32_t i = 0; i < u->fd_count; i++)
        close(u->fds[i]);
    free(u);
}

static void watch(bt_shm_path_t *path, uint32_t events)
{
    struct epoll_event event = {.events = events, .data = {.ptr = &path->sock_watch}};
    (void) epoll_ctl(bt_shm_of(path)->inner, EPOLL_CTL_MOD, path->sock, &event);
}

static int keep(bt_shm_path_t *path, const bt_shm_msg_t *msg, const int *fds, uint32_t fd_count)
{
    struct unsent *u = calloc(1, sizeof(*u));
    if (u == NULL)
        return BT_E_NOMEM;
    u->msg = *msg;
    bt_list_push(&path->unsent, &u->link);
    for (; u->fd_count < fd_count; u->fd_count++) {
        int fd = dup(fds[u->fd_count]);
        if (fd < 0) {
            unsent_free(u);
            return BT_E_LIMIT;
        }
        u->fds[u->fd_count] = fd;
    }
    watch(path, EPOLLIN | EPOLLOUT);
    return 0;
}

int bt_shm_send(bt_shm_path_t *path, const bt_shm_msg_t *msg, const int *fds, uint32_t fd_count)
{
    if (path->sock < 0)
        return BT_E_RESET;
    int rc = BT_E_AGAIN;
    if (bt_list_empty(&path->unsent))
        rc = send_now(path->sock, msg, fds, fd_count);
    return rc == BT_E_AGAIN ? keep(path, msg, fds, fd_count) : rc;
}

void bt_shm_flush(bt_shm_path_t *path)
{
    if (bt_list_empty(&path->unsent))
        return;
    while (!bt_list_empty(&path->unsent)) {
        struct unsent *u = bt_container_of(path->unsent.next, struct unsent, link);
        int rc = send_now(path->sock, &u->msg, u->fds, u->fd_count);
        if (rc == BT_E_AGAIN)
            return;
        unsent_free(u);
        if (rc != 0)
            return; /* reading will tell why */
    }
    watch(path, EPOLLIN);
    path->tx.is_blocked = false;
}

void bt_shm_unsent_free(bt_shm_path_t *path)
{
    while (!bt_list_empty(&path->unsent))
        unsent_free(bt_container_of(path->unsent.next, struct unsent, link));
}

static uint32_t take_fds(struct msghdr *head, int fds[2])
{
    uint32_t count = 0;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(head); c != NULL; c = CMSG_NXTHDR(head, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < n; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
            if (count < 2)
                fds[count++] = fd;
            else
                close(fd);
        }
    }
    return count;
}

int bt_shm_recv(int sock, bt_shm_msg_t *msg, int fds[2])
{
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(2 * sizeof(int))]; /* more fds than that: the kernel closes them */
    } control;
    struct iovec iov = {msg, sizeof(*msg)};
    struct msghdr head = {.msg_iov = &iov,
                          .msg_iovlen = 1,
                          .msg_control = &control,
                          .msg_controllen = sizeof(control)};

    fds[0] = fds[1] = -1;
    ssize_t n = recvmsg(sock, &head, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    /* It closed with words of ours unread: that is said once, before what it wrote last. */
    if (n < 0 && errno == ECONNRESET)
        n = recvmsg(sock, &head, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : BT_E_RESET;
    take_fds(&head, fds);
    if (n == (ssize_t) sizeof(*msg) && (head.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0)
        return 1;
    for (int i = 0; i < 2; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    return n == 0 ? BT_E_RESET : BT_E_INVAL;
}

/* ---- guests ---- */
static void guest_free(bt_shm_t *shm, struct guest *g)
{
    bt_list_remove(&g->link);
    shm->guest_count--;
    if (g->sock >= 0) {
        (void) epoll_ctl(shm->inner, EPOLL_CTL_DEL, g->sock, NULL);
        close(g->sock);
    }
    free(g);
}

static void welcome(bt_shm_t *shm, int sock)
{
    pid_t pid;
    struct guest *g = NULL;

    if (!bt_shm_is_own_user(sock, &pid)) {
        bt_log_warn("kv", "shm: refused a connection of another user");
        close(sock);
        return;
    }
    if (shm->guest_count < BT_SHM_GUESTS_MAX)
        g = calloc(1, sizeof(*g));
    if (g == NULL) {
        close(sock);
        return;
    }
    g->sock = sock;
    g->watch = (bt_shm_watch_t){BT_SHM_W_GUEST, g};
    g->deadline_ms = bt_clock_ms() + BT_SHM_HANDSHAKE_MS;
    bt_list_push(&shm->guests, &g->link);
    shm->guest_count++;
    struct epoll_event event = {.events = EPOLLIN, .data = {.ptr = &g->watch}};
    if (epoll_ctl(shm->inner, EPOLL_CTL_ADD, sock, &event) != 0)
        guest_free(shm, g);
}

void bt_shm_accept(bt_shm_t *shm)
{
    for (uint32_t i = 0; i < BT_SHM_GUESTS_MAX; i++) {
        int sock = accept4(shm->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (sock < 0)
            return;
        welcome(shm, sock);
    }
}

static bool is_its_cookie(const bt_shm_path_t *path, const struct guest *g)
{
    return bt_str_is_secret((bt_str_t){(const char *) path->cookie, sizeof(path->cookie)},
                            (bt_str_t){(const char *) g->cookie, sizeof(g->cookie)});
}

static bool attach(bt_shm_t *shm, struct guest *g, bt_shm_path_t *path)
{
    if (!g->is_read || path->stage != BT_SHM_WAITING || path->is_initiator || path->sock >= 0 ||
        !path->has_cookie || !is_its_cookie(path, g))
        return false;
    int sock = g->sock;
    (void) epoll_ctl(shm->inner, EPOLL_CTL_DEL, sock, NULL); /* the path adds it as its own */
    g->sock = -1;
    guest_free(shm, g);
    path->held++;
    bt_shm_path_attach(path, sock);
    bt_shm_path_let_go(path);
    return true;
}

void bt_shm_guest_read(bt_shm_t *shm, void *guest)
{
    struct guest *g = guest;
    bt_shm_msg_t msg;
    bt_list_t *it, *tmp;

    ssize_t n = recv(g->sock, &msg, sizeof(msg), MSG_PEEK | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n != (ssize_t) sizeof(msg) || msg.type != BT_SHM_HELLO) {
        guest_free(shm, g);
        return;
    }
    g->is_read = true;
    memcpy(g->cookie, msg.cookie, sizeof(g->cookie));
    /* Watched no more: its HELLO stays readable until its path is told the cookie. */
    (void) epoll_ctl(shm->inner, EPOLL_CTL_DEL, g->sock, NULL);
    bt_list_each (&shm->paths, it, tmp)
        if (attach(shm, g, bt_container_of(it, bt_shm_path_t, link)))
            return;
}

void bt_shm_guests_match(bt_shm_t *shm, bt_shm_path_t *path)
{
    bt_list_t *it, *tmp;
    bt_list_each (&shm->guests, it, tmp)
        if (attach(shm, bt_container_of(it, struct guest, link), path))
            return;
}

void bt_shm_guests_expire(bt_shm_t *shm, uint64_t now_ms)
{
    bt_list_t *it, *tmp;
    bt_list_each (&shm->guests, it, tmp) {
        struct guest *g = bt_container_of(it, struct guest, link);
        if (now_ms >= g->deadline_ms)
            guest_free(shm, g);
    }
}

void bt_shm_guests_free(bt_shm_t *shm)
{
    while (!bt_list_empty(&shm->guests))
        guest_free(shm, bt_container_of(shm->guests.next, struct guest, link));
}
