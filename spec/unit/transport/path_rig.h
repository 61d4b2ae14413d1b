/* path_rig.h - back ends without an agent: what backend.h's callbacks do for a spec.
 *
 * Owner: the spec; a rig stands for an agent, a rig_link for a control connection (a socketpair, so the two ends may be threads or processes).
 * Life:  rig_open -> rig_pool / rig_private -> rig_link (both ends) -> RIG_UNTIL(ready) -> rig_post ... -> rig_unlink -> rig_close.
 * Flow:  rig_turn reads the links and calls progress; rig_sleep arms and waits. Regions are announced to the peer by key.
 * Cost:  tests only. path_rig.c defines the bt_kv_* callbacks, so no agent may be linked in.
 */
#ifndef BT_SPEC_PATH_RIG_H
#define BT_SPEC_PATH_RIG_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "transport/backends/backend.h"
#include "unit.h"

#define RIG_LINKS 4
#define RIG_MEMS 8
#define RIG_NOTES 4096
#define RIG_DEADLINE_MS 30000u

struct bt_kv_link {
    struct bt_kv_agent *rig;
    int fd; /* -1: no link */
    bool is_initiator, is_ready, has_failed;
    bool is_cut; /* by the spec: bt_kv_path_send fails */
    int rc;
    char why[200];
    bt_kv_path_t *path;
    uint64_t refused_tag;          /* bt_kv_destination says no to it; UINT64_MAX: to all */
    bt_kv_region_t refused_region; /* and for this one */
    uint64_t notes[RIG_NOTES];     /* the first 8 bytes of each */
    uint32_t note_count;
    uint32_t said; /* rig_say of the other end: the last number */
};

struct bt_kv_agent {
    pthread_mutex_t lock;
    int epoll;
    const bt_kv_backend_ops_t *ops;
    bt_kv_backend_t *backend;
    bt_kv_link_t links[RIG_LINKS];
    bt_kv_mem_t mems[RIG_MEMS]; /* id = index + 1; p NULL: free */
    uint64_t wakes;             /* epoll_wait that returned with an event */
};
typedef struct bt_kv_agent rig_t;

/* Called with the lock let go: when a back end has let it go, and before it has it again. */
typedef struct rig_hooks {
    void (*in_copy)(void), (*after_copy)(void);
    uint8_t bind; /* what a proved token makes of what is told: not 0, another thing */
} rig_hooks_t;
extern rig_hooks_t rig_hooks;
typedef struct bt_kv_link rig_link_t;

typedef struct rig_batch {
    bt_kv_batch_t batch; /* first */
    int over, rc;        /* times, the last code */
} rig_batch_t;

/* ---- rigs, memory ---- */
static inline void rig_send(rig_link_t *link, char type, const void *p, size_t size)
{
    uint8_t all[1 + BT_KV_OFFER_BYTES];
    assert_true(size < sizeof(all));
    all[0] = (uint8_t) type;
    memcpy(all + 1, p, size);
    (void) !send(link->fd, all, size + 1, MSG_NOSIGNAL);
}
static inline void rig_open_config(rig_t *rig, const bt_kv_backend_ops_t *ops,
                                   const bt_kv_config_t *config)
{
    char err[200] = "";
    memset(rig, 0, sizeof(*rig));
    pthread_mutex_init(&rig->lock, NULL);
    rig->epoll = epoll_create1(EPOLL_CLOEXEC);
    rig->ops = ops;
    for (int i = 0; i < RIG_LINKS; i++)
        rig->links[i] = (rig_link_t){.rig = rig, .fd = -1};
    if (ops->open(&rig->backend, rig, config, err, sizeof(err)) != 0)
        fail_msg("%s", err);
}
static inline void rig_open(rig_t *rig, const bt_kv_backend_ops_t *ops)
{
    static const bt_kv_config_t config = {.name = "rig"};
    rig_open_config(rig, ops, &config);
}
static inline bt_kv_mem_t *rig_add(rig_t *rig, void *p, size_t size, int fd)
{
    uint32_t i = 0;
    while (rig->mems[i].p != NULL)
        i++;
    assert_in_range(i, 0, RIG_MEMS - 1);
    rig->mems[i] = (bt_kv_mem_t){.id = i + 1, .p = p, .size = size, .fd = fd, .is_pool = fd >= 0};
    if (rig->ops->region_add != NULL)
        assert_int_equal(rig->ops->region_add(rig->backend, &rig->mems[i]), 0);
    return &rig->mems[i];
}
static inline bt_kv_mem_t *rig_pool(rig_t *rig, size_t size)
{
    int fd = memfd_create("rig-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t) size), 0);
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(p != MAP_FAILED);
    (void) madvise(p, size, MADV_HUGEPAGE);
    return rig_add(rig, p, size, fd);
}
static inline bt_kv_mem_t *rig_private(rig_t *rig, size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    return rig_add(rig, p, size, -1);
}
static inline void rig_remove(rig_t *rig, bt_kv_mem_t *mem)
{
    if (rig->ops->region_remove != NULL)
        rig->ops->region_remove(rig->backend, mem);
    munmap(mem->p, mem->size);
    if (mem->fd >= 0)
        close(mem->fd);
    *mem = (bt_kv_mem_t){0};
}

/* ---- links ---- */
static inline void rig_sockets(int fds[2])
{
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
}
static inline rig_link_t *rig_link(rig_t *rig, int fd, bool is_initiator)
{
    uint8_t offer[BT_KV_OFFER_BYTES];
    rig_link_t *link = rig->links;
    while (link->fd >= 0)
        link++;
    *link = (rig_link_t){.rig = rig, .fd = fd, .is_initiator = is_initiator};
    assert_int_equal(bt_kv_watch(rig, fd, EPOLLIN), 0);
    rig_send(link, 'O', offer, rig->ops->offer(rig->backend, offer, sizeof(offer)));
    return link;
}
/* A number for the other end's spec. */
static inline void rig_say(rig_link_t *link, uint32_t number)
{
    rig_send(link, 'X', &number, sizeof(number));
}
static inline void rig_announce(rig_link_t *link)
{
    uint8_t text[16 + 256];
    for (int i = 0; i < RIG_MEMS; i++) {
        const bt_kv_mem_t *mem = &link->rig->mems[i];
        if (mem->p == NULL)
            continue;
        memcpy(text, &mem->id, 4);
        memcpy(text + 8, &(uint64_t){mem->size}, 8);
        size_t n = link->rig->ops->region_key != NULL
                       ? link->rig->ops->region_key(link->rig->backend, mem, text + 16, 256)
                       : 0;
        rig_send(link, 'R', text, 16 + n);
    }
}
static inline void rig_got(rig_link_t *link, const uint8_t *p, size_t size)
{
    const bt_kv_backend_ops_t *ops = link->rig->ops;
    uint32_t id;
    uint64_t bytes;
    if (p[0] == 'O' && link->path == NULL) {
        assert_int_equal(ops->path_open(&link->path, link->rig->backend, link, p + 1, size - 1,
                                        link->is_initiator),
                         0);
        rig_announce(link);
    } else if (p[0] == 'T' && link->path != NULL) {
        if (ops->received(link->path, p + 1, size - 1) < 0)
            link->has_failed = true;
    } else if (p[0] == 'R' && link->path != NULL) {
        memcpy(&id, p + 1, 4);
        memcpy(&bytes, p + 9, 8);
        if (ops->peer_region != NULL)
            assert_int_equal(ops->peer_region(link->path, id, bytes, p + 17, size - 17), 0);
    } else if (p[0] == 'X') {
        memcpy(&link->said, p + 1, 4);
    }
}
static inline void rig_unlink(rig_link_t *link)
{
    rig_t *rig = link->rig;
    pthread_mutex_lock(&rig->lock);
    bt_kv_path_t *path = link->path;
    link->path = NULL;
    if (path != NULL)
        rig->ops->path_close(path);
    bt_kv_unwatch(rig, link->fd);
    close(link->fd);
    link->fd = -1;
    pthread_mutex_unlock(&rig->lock);
}
static inline void rig_close(rig_t *rig)
{
    for (int i = 0; i < RIG_LINKS; i++)
        if (rig->links[i].fd >= 0)
            rig_unlink(&rig->links[i]);
    for (int i = 0; i < RIG_MEMS; i++)
        if (rig->mems[i].p != NULL)
            rig_remove(rig, &rig->mems[i]);
    rig->ops->close(rig->backend);
    close(rig->epoll);
    pthread_mutex_destroy(&rig->lock);
}

/* ---- turns ---- */
static inline int rig_turn(rig_t *rig)
{
    uint8_t text[1 + BT_KV_OFFER_BYTES];
    int count = 0;
    pthread_mutex_lock(&rig->lock);
    for (int i = 0; i < RIG_LINKS; i++) {
        ssize_t n = 0;
        while (rig->links[i].fd >= 0 &&
               (n = recv(rig->links[i].fd, text, sizeof(text), MSG_DONTWAIT)) > 0) {
            rig_got(&rig->links[i], text, (size_t) n);
            count++;
        }
    }
    count += rig->ops->progress(rig->backend);
    pthread_mutex_unlock(&rig->lock);
    return count;
}
/* Arms and waits. Returns at once when arm finds something. */
static inline void rig_sleep(rig_t *rig, int timeout_ms)
{
    struct epoll_event event;
    pthread_mutex_lock(&rig->lock);
    bool is_news = rig->ops->arm(rig->backend);
    pthread_mutex_unlock(&rig->lock);
    if (!is_news && epoll_wait(rig->epoll, &event, 1, timeout_ms) > 0)
        rig->wakes++;
}
static inline void rig_pass(rig_t *a, rig_t *b, uint64_t deadline_ms, const char *what)
{
    int count = rig_turn(a);
    if (b != NULL)
        count += rig_turn(b);
    if (count == 0 && b == NULL)
        rig_sleep(a, 50);
    if (bt_clock_ms() > deadline_ms) {
        char text[300] = "";
        for (int i = 0; i < RIG_LINKS; i++)
            if (a->links[i].path != NULL)
                a->ops->describe(a->links[i].path, text, sizeof(text));
        fail_msg("never: %s (%s)", what, text);
    }
}
/* b NULL: the other end has a process or thread of its own. */
#define RIG_UNTIL(a, b, condition)                                                                 \
    for (uint64_t rig_end_ = bt_clock_ms() + RIG_DEADLINE_MS; !(condition);)                       \
    rig_pass((a), (b), rig_end_, #condition)

static inline int rig_post(rig_link_t *link, rig_batch_t *b, uint64_t tag, const bt_kv_run_t *runs,
                           uint32_t run_count, uint64_t note)
{
    *b = (rig_batch_t){.batch = {.path = link->path,
                                 .tag = tag,
                                 .runs = runs,
                                 .run_count = run_count,
                                 .note_bytes = note == 0 ? 0 : sizeof(note)}};
    for (uint32_t i = 0; i < run_count; i++)
        b->batch.bytes += (uint64_t) runs[i].bytes * runs[i].rows;
    memcpy(b->batch.note, &note, sizeof(note));
    bt_list_init(&b->batch.link);
    pthread_mutex_lock(&link->rig->lock);
    int rc = link->rig->ops->post(link->path, &b->batch);
    pthread_mutex_unlock(&link->rig->lock);
    return rc;
}
static inline bool rig_drain(rig_link_t *link, uint64_t tag)
{
    pthread_mutex_lock(&link->rig->lock);
    bool is_done = link->rig->ops->drain(link->path, tag);
    pthread_mutex_unlock(&link->rig->lock);
    return is_done;
}

#endif
