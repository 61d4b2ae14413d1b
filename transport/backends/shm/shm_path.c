/* One link's path: how it opens and how it ends.
 *
 *     initiator                                         acceptor
 *     START: connect; cookie by path_tell, HELLO   -->  WAITING: told, and the connection with that cookie: attach
 *     PROBING                                      <--  HELLO
 *            each side reads the peer's word by process_vm_readv; EPERM: GRANT_ASK, GRANTED, again
 *     VERDICT                                     <-->  VERDICT
 *     READY when both are known: REGIONs follow, and then runs
 *
 * The end: a path breaks once (bt_shm_path_break) and is closed by the agent. Either sets is_closed in our area before anything is given back: a receiver
 * that was stopped in the middle of a copy looks at it after the copy, and delivers no note for bytes that may have been written over since.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/rand.h"
#include "transport/backends/shm/shm.h"

#define COPY_WAIT_MS                                                                               \
    1000u /* path_close waits for a slice of copying: microseconds, unless the machine is in trouble */

enum { TOLD_COOKIE = 1, TOLD_BYTES = 17 };

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static int watch(bt_shm_path_t *path, int fd, bt_shm_watch_t *watch)
{
    struct epoll_event event = {.events = EPOLLIN, .data = {.ptr = watch}};
    return epoll_ctl(bt_shm_of(path)->inner, EPOLL_CTL_ADD, fd, &event) == 0 ? 0 : BT_E_NOMEM;
}

/* Explicitly: a forked child may hold a copy of the description, which would keep it in the epoll. */
static void unwatch(bt_shm_path_t *path, int *fd)
{
    if (*fd >= 0)
        (void) epoll_ctl(bt_shm_of(path)->inner, EPOLL_CTL_DEL, *fd, NULL);
    close_fd(fd);
}

static void retire(bt_shm_path_t *path)
{
    path->stage = BT_SHM_BROKEN;
    __atomic_store_n(&path->mine->is_closed, 1, __ATOMIC_SEQ_CST);
    if (path->sock >= 0 && bt_list_empty(&path->unsent))
        (void) bt_shm_send(path, &(bt_shm_msg_t){.type = BT_SHM_BYE}, NULL, 0);
    unwatch(path, &path->sock); /* the peer sees a hang-up */
    bt_shm_unsent_free(path);
    bt_shm_revoke(path);
}

void bt_shm_path_break(bt_shm_path_t *path, int rc, const char *fmt, ...)
{
    if (path->stage == BT_SHM_BROKEN)
        return;
    va_list args;
    va_start(args, fmt);
    vsnprintf(path->why, sizeof(path->why), fmt, args);
    va_end(args);
    path->rc = rc;
    retire(path);
}

bool bt_shm_path_peer_lives(const bt_shm_path_t *path)
{
    struct pollfd p = {.fd = path->pidfd, .events = POLLIN};
    return path->pidfd < 0 || poll(&p, 1, 0) == 0;
}

/* ---- open ---- */
static int path_init(bt_shm_path_t *path, bt_shm_t *shm)
{
    int rc = bt_shm_area_make(&path->mine, &path->area_fd);
    if (rc != 0)
        return rc;
    path->wake_in = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (path->wake_in < 0)
        return BT_E_LIMIT;
    return bt_kv_watch(shm->base.agent, path->wake_in, EPOLLIN | EPOLLET);
}

static void check_offer(bt_shm_path_t *path, const bt_shm_t *shm, size_t size)
{
    const bt_shm_offer_t *offer = &path->offer;
    if (size < sizeof(*offer) || offer->magic != BT_SHM_OFFER_MAGIC)
        bt_shm_path_break(path, BT_E_INVAL, "malformed offer");
    else if (offer->version != BT_SHM_VERSION)
        bt_shm_path_break(path, BT_E_INVAL, "the peer's shm has version %u, ours %u",
                          offer->version, BT_SHM_VERSION);
    else if (memcmp(offer->boot_id, shm->offer.boot_id, sizeof(offer->boot_id)) != 0)
        bt_shm_path_break(path, BT_E_INVAL, "the peer is on another host");
    else if (offer->uid != shm->offer.uid)
        bt_shm_path_break(path, BT_E_INVAL, "the peer is another user (uid %u, ours %u)",
                          offer->uid, shm->offer.uid);
}

static void free_path(bt_shm_path_t *path)
{
    if (path->wake_in >= 0)
        bt_kv_unwatch(path->base.backend->agent, path->wake_in);
    unwatch(path, &path->sock);
    unwatch(path, &path->pidfd);
    bt_shm_unsent_free(path);
    bt_shm_maps_free(&path->maps);
    if (path->theirs != NULL)
        munmap((void *) (uintptr_t) path->theirs, sizeof(bt_shm_area_t));
    if (path->mine != NULL)
        munmap(path->mine, sizeof(bt_shm_area_t));
    close_fd(&path->area_fd);
    close_fd(&path->wake_in);
    close_fd(&path->wake_out);
    free(path);
}

int bt_shm_path_open(bt_kv_path_t **path_p, bt_kv_backend_t *backend, bt_kv_link_t *link,
                     const uint8_t *offer, size_t size, bool is_initiator)
{
    bt_shm_t *shm = (bt_shm_t *) (void *) backend;
    bt_shm_path_t *path = calloc(1, sizeof(*path));

    if (path == NULL)
        return BT_E_NOMEM;
    path->base = (bt_kv_path_t){.backend = backend, .link = link};
    path->is_initiator = is_initiator;
    path->sock = path->pidfd = path->area_fd = path->wake_in = path->wake_out = -1;
    path->sock_watch = (bt_shm_watch_t){BT_SHM_W_SOCKET, path};
    path->pid_watch = (bt_shm_watch_t){BT_SHM_W_PIDFD, path};
    path->deadline_ms = bt_clock_ms() + BT_SHM_HANDSHAKE_MS;
    bt_list_init(&path->unsent);
    bt_list_init(&path->tx.sending);
    bt_list_init(&path->tx.flying);
    bt_list_init(&path->link);
    bt_rand_secure(&path->probe_word, sizeof(path->probe_word));
    int rc = path_init(path, shm);
    if (rc != 0) {
        free_path(path);
        return rc;
    }
    bt_list_push(&shm->paths, &path->link);
    memcpy(&path->offer, offer, size < sizeof(path->offer) ? size : sizeof(path->offer));
    check_offer(path, shm, size);
    *path_p = &path->base;
    return 0;
}

static int send_hello(bt_shm_path_t *path)
{
    bt_shm_msg_t msg = {
        .type = BT_SHM_HELLO, .a = (uint64_t) (uintptr_t) &path->probe_word, .b = path->probe_word};
    int fds[2] = {path->area_fd, path->wake_in};
    memcpy(msg.cookie, path->cookie, sizeof(msg.cookie));
    return bt_shm_send(path, &msg, fds, 2);
}

void bt_shm_path_attach(bt_shm_path_t *path, int sock)
{
    path->sock = sock;
    path->stage = BT_SHM_PROBING;
    if (!bt_shm_is_own_user(sock, &path->pid)) {
        bt_shm_path_break(path, BT_E_INVAL, "the peer's socket belongs to another user");
        return;
    }
    path->pidfd = bt_shm_pidfd(sock, path->pid);
    if (watch(path, sock, &path->sock_watch) != 0 ||
        (path->pidfd >= 0 && watch(path, path->pidfd, &path->pid_watch) != 0)) {
        bt_shm_path_break(path, BT_E_LIMIT, "its sockets cannot be watched: %s", strerror(errno));
        return;
    }
    if (!path->is_initiator)
        bt_shm_path_read(path);
}

static void start(bt_shm_path_t *path)
{
    path->stage = BT_SHM_WAITING;
    if (!path->is_initiator) {
        bt_shm_guests_match(bt_shm_of(path), path);
        return;
    }
    int sock = bt_shm_connect(&path->offer);
    if (sock < 0) {
        bt_shm_path_break(path, BT_E_CONNECT,
                          "the peer's socket cannot be reached (%s): another network namespace?",
                          strerror(errno));
        return;
    }
    uint8_t told[TOLD_BYTES] = {TOLD_COOKIE};
    bt_rand_secure(path->cookie, sizeof(path->cookie));
    memcpy(told + 1, path->cookie, sizeof(path->cookie));
    bt_kv_path_bind(&path->base, path->cookie, sizeof(path->cookie));
    path->has_cookie = true;
    bt_shm_path_attach(path, sock);
    if (path->stage == BT_SHM_BROKEN)
        return;
    int rc = bt_kv_path_send(&path->base, told, sizeof(told));
    if (rc == 0)
        rc = send_hello(path);
    if (rc != 0)
        bt_shm_path_break(path, rc, "the peer could not be greeted");
}

int bt_shm_path_received(bt_kv_path_t *base, const uint8_t *message, size_t size)
{
    bt_shm_path_t *path = bt_shm_path_of(base);

    if (path->stage == BT_SHM_BROKEN)
        return 0; /* progress says so */
    if (size != TOLD_BYTES || message[0] != TOLD_COOKIE || path->is_initiator || path->has_cookie)
        return BT_E_INVAL;
    memcpy(path->cookie, message + 1, sizeof(path->cookie));
    bt_kv_path_bind(base, path->cookie, sizeof(path->cookie));
    path->has_cookie = true;
    path->held++;
    bt_shm_guests_match(bt_shm_of(path), path);
    bt_shm_path_let_go(path);
    return 0;
}

/* ---- messages ---- */
static void send_or_break(bt_shm_path_t *path, const bt_shm_msg_t *msg, const int *fds, uint32_t n)
{
    int rc = bt_shm_send(path, msg, fds, n);
    if (rc != 0)
        bt_shm_path_break(path, rc, "the peer's socket does not take messages");
}

static void be_ready(bt_shm_path_t *path)
{
    bt_shm_t *shm = bt_shm_of(path);
    bt_list_t *it, *tmp;

    if (path->stage != BT_SHM_PROBING || !path->has_verdict || !path->has_peer_verdict)
        return;
    path->stage = BT_SHM_READY;
    bt_list_each (&shm->regions, it, tmp)
        bt_shm_path_region(path, bt_container_of(it, bt_shm_region_t, link));
    if (path->stage == BT_SHM_READY)
        bt_kv_path_ready(&path->base);
}

void bt_shm_path_region(bt_shm_path_t *path, const bt_shm_region_t *region)
{
    const bt_kv_mem_t *mem = region->mem;
    bt_shm_msg_t msg = {.type = BT_SHM_REGION,
                        .id = mem->id,
                        .a = mem->size,
                        .b = (uint64_t) (uintptr_t) mem->p,
                        .c = region->is_pool};
    send_or_break(path, &msg, &mem->fd, region->is_pool ? 1 : 0);
}

static void probe(bt_shm_path_t *path)
{
    int error = bt_shm_probe(path->pid, path->peer_word_at, path->peer_word);
    bt_shm_msg_t msg = {.type = BT_SHM_GRANT_ASK};

    path->pull_errno = error;
    path->can_pull = error == 0;
    if (error != EPERM || path->has_asked) {
        msg = (bt_shm_msg_t){.type = BT_SHM_VERDICT, .id = error == 0, .a = (uint64_t) error};
        path->has_verdict = true;
    }
    path->has_asked = true;
    send_or_break(path, &msg, NULL, 0);
    be_ready(path);
}

static bool is_eventfd(int fd)
{
    char name[64], target[64];
    snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(name, target, sizeof(target) - 1);
    if (n < 0)
        return true; /* no /proc: it is only ever written 8 bytes to, not blocking */
    target[n] = '\0';
    return strcmp(target, "anon_inode:[eventfd]") == 0;
}

static void got_hello(bt_shm_path_t *path, const bt_shm_msg_t *msg, int fds[2])
{
    const char *why = "";
    bt_shm_view_t view;
    if (path->theirs != NULL || memcmp(msg->cookie, path->cookie, sizeof(msg->cookie)) != 0 ||
        fds[0] < 0 || fds[1] < 0 || !is_eventfd(fds[1])) {
        bt_shm_path_break(path, BT_E_INVAL, "malformed greeting");
        return;
    }
    if (bt_shm_map_fd(fds[0], sizeof(bt_shm_area_t), &view, &why) != 0) {
        bt_shm_path_break(path, BT_E_INVAL, "the peer's ring is refused: %s", why);
        return;
    }
    path->theirs = (const bt_shm_area_t *) (const void *) view.p;
    (void) fcntl(fds[1], F_SETFL,
                 O_NONBLOCK); /* shared with the peer; blocking, it would stop us */
    path->wake_out = fds[1];
    fds[1] = -1;
    path->peer_word_at = msg->a;
    path->peer_word = msg->b;
    if (!path->is_initiator && send_hello(path) != 0)
        bt_shm_path_break(path, BT_E_RESET, "the peer could not be greeted");
    else
        probe(path);
}

static void got_verdict(bt_shm_path_t *path, const bt_shm_msg_t *msg)
{
    path->has_peer_verdict = true;
    path->tx.may_pull = msg->id == 1;
    if (!path->tx.may_pull && (bt_shm_hooks.no_window ||
                               fallocate(path->area_fd, 0, (off_t) offsetof(bt_shm_area_t, window),
                                         (off_t) BT_SHM_WINDOW_BYTES) != 0)) {
        bt_shm_path_break(path, BT_E_NOMEM,
                          "the peer cannot read private memory (%s), and there is no memory for a "
                          "copy window",
                          strerror((int) msg->a));
        return;
    }
    be_ready(path);
}

static void got_region(bt_shm_path_t *path, const bt_shm_msg_t *msg, int fd)
{
    bt_shm_map_t map = {.id = msg->id, .size = msg->a, .address = msg->b};
    const char *why = "no descriptor came with it";
    int rc = 0;

    if (msg->c == 1)
        rc = fd < 0 ? BT_E_INVAL : bt_shm_map_fd(fd, (size_t) map.size, &map.view, &why);
    if (rc == BT_E_INVAL) {
        bt_shm_path_break(path, rc, "the peer's pool %u is refused: %s", msg->id, why);
        return;
    }
    if (rc == BT_E_NOMEM && !path->can_pull) {
        bt_shm_path_break(path, rc, "the peer's pool %u cannot be mapped: %s", msg->id, why);
        return;
    }
    bt_shm_of(path)->has_new_pools |= map.view.p != NULL;
    rc = bt_shm_maps_add(&path->maps, &map); /* not mapped: pulled, as private memory is */
    if (rc != 0) {
        bt_shm_unmap(&map.view);
        bt_shm_path_break(path, rc, "the peer's region %u is refused: %s", msg->id,
                          rc == BT_E_INVAL ? "it is known already" : "there are too many");
    }
}

static void got(bt_shm_path_t *path, const bt_shm_msg_t *msg, int fds[2])
{
    bt_shm_msg_t answer = {.type = BT_SHM_GRANTED};

    if (msg->type == BT_SHM_BYE) {
        (void) bt_shm_reap(path); /* what it has finished, it has finished */
        bt_shm_path_break(path, BT_E_RESET, "the peer has closed it");
    } else if (msg->type == BT_SHM_HELLO) {
        got_hello(path, msg, fds);
    } else if (path->theirs == NULL) {
        bt_shm_path_break(path, BT_E_INVAL, "the peer does not begin with a greeting");
    } else if (msg->type == BT_SHM_GRANT_ASK) {
        answer.id = bt_shm_grant(path, path->pid);
        send_or_break(path, &answer, NULL, 0);
    } else if (msg->type == BT_SHM_GRANTED && !path->has_verdict) {
        probe(path);
    } else if (msg->type == BT_SHM_VERDICT && !path->has_peer_verdict) {
        got_verdict(path, msg);
    } else if (msg->type == BT_SHM_REGION) {
        got_region(path, msg, fds[0]);
    } else if (msg->type == BT_SHM_UNREGION) {
        bt_shm_maps_remove(&path->maps, msg->id);
    } else {
        bt_shm_path_break(path, BT_E_INVAL, "unexpected message %u", msg->type);
    }
}

void bt_shm_path_read(bt_shm_path_t *path)
{
    path->held++;
    bt_shm_flush(path);
    while (path->stage != BT_SHM_BROKEN && path->sock >= 0) {
        bt_shm_msg_t msg;
        int fds[2], rc = bt_shm_recv(path->sock, &msg, fds);
        if (rc == 0)
            break;
        if (rc < 0) {
            (void) bt_shm_reap(path);
            bt_shm_path_break(path, rc, "%s",
                              rc == BT_E_INVAL ? "malformed message"
                                               : "the peer's process has ended");
            break;
        }
        got(path, &msg, fds);
        close_fd(&fds[0]);
        close_fd(&fds[1]);
    }
    path->held--; /* whoever called holds it too */
}

int bt_shm_path_step(bt_shm_path_t *path)
{
    if (path->stage == BT_SHM_BROKEN && !path->is_told) {
        path->is_told = true;
        bt_kv_path_failed(&path->base, path->rc, path->why);
        return 1;
    }
    if (path->stage == BT_SHM_START) {
        start(path);
        return 1;
    }
    if ((path->stage == BT_SHM_WAITING || path->stage == BT_SHM_PROBING) &&
        bt_clock_ms() >= path->deadline_ms) {
        bt_shm_path_break(path, BT_E_CONNECT_TIMEOUT, "no answer from the peer within %u ms",
                          BT_SHM_HANDSHAKE_MS);
        return 1;
    }
    return 0;
}

/* ---- close ---- */
static void wait_for_copy(bt_shm_path_t *path)
{
    bt_shm_t *shm = bt_shm_of(path);
    uint64_t deadline_ms = bt_clock_ms() + COPY_WAIT_MS;

    if (shm->busy_path != path)
        return;
    while (__atomic_load_n(&shm->is_busy, __ATOMIC_ACQUIRE)) {
        if (bt_clock_ms() >= deadline_ms) {
            bt_log_error("kv", "shm: a copy does not end; its pages may still be written");
            return;
        }
        sched_yield();
    }
}

void bt_shm_path_close(bt_kv_path_t *base)
{
    bt_shm_path_t *path = bt_shm_path_of(base);

    wait_for_copy(path);
    path->is_closed = true;
    path->is_told = true;
    retire(path);
    path->held++;
    bt_shm_tx_drop(path);
    path->held--;
    bt_list_remove(&path->link);
    if (path->held == 0)
        free_path(path);
}

void bt_shm_path_let_go(bt_shm_path_t *path)
{
    if (--path->held == 0 && path->is_closed)
        free_path(path);
}
