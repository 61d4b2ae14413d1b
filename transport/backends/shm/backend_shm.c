/* backend_shm.c - agents on one host: the receiver pulls, by memcpy out of pools that both map, or by process_vm_readv.
 *
 * A path is two areas (shm_area.h), one written by each side, and a unix socket (shm_sock.c) that passes descriptors. Who makes an area is the only one to
 * write it, so that neither side can spoil what the other keeps; who reads it trusts nothing in it.
 *
 *     sender  post: runs -> ring                                 shm_send.c
 *     receiver progress: checked, copied, note, batch_done       shm_take.c
 *     sender  progress: batch_over                               shm_send.c
 *
 * The receiver copies, not the sender: it alone can check the destinations against its rooms at the moment of the copy, and a room
 * that fails stops being written as soon as its own side says so. Why a ring of records and not one message a batch: posting 2,000 scattered
 * pages costs 96 KB of sequential stores and no system call.
 *
 * A turn (progress): rings first, since news there is what matters; sockets only after a sleep that brought nothing else, or once a millisecond; then, when there
 * is nothing at all, a piece of a newly mapped pool is faulted in, so that the first copy does not have to.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/rand.h"
#include "transport/backends/shm/shm.h"

#define EVENTS_A_TURN 16

bt_shm_hooks_t bt_shm_hooks;

static bt_shm_t *shm_of(bt_kv_backend_t *base)
{
    return (bt_shm_t *) (void *) base;
}

/* ---- copy ---- */
void bt_shm_copy_begin(bt_shm_path_t *path, uint64_t tag)
{
    bt_shm_t *shm = bt_shm_of(path);
    shm->busy_path = path;
    shm->busy_tag = tag;
    __atomic_store_n(&shm->is_busy, true, __ATOMIC_RELAXED);
    bt_kv_unlock(shm->base.agent);
}

void bt_shm_copy_end(bt_shm_path_t *path)
{
    bt_shm_t *shm = bt_shm_of(path);
    __atomic_store_n(&shm->is_busy, false,
                     __ATOMIC_RELEASE); /* path_close waits for it, with the lock */
    bt_kv_relock(shm->base.agent);
    shm->busy_path = NULL;
}

/* ---- open, close ---- */
static int read_boot_id(uint8_t id[16])
{
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    unsigned count = 0;

    while (file != NULL && count < 16 && fscanf(file, "%2hhx%*[-]", &id[count]) == 1)
        count++;
    if (file != NULL)
        fclose(file);
    return count == 16 ? 0 : BT_E_INVAL;
}

static int open_fds(bt_shm_t *shm, char *err, size_t err_size)
{
    struct epoll_event event = {.events = EPOLLIN, .data = {.ptr = &shm->listener_watch}};

    shm->inner = epoll_create1(EPOLL_CLOEXEC);
    shm->listener = bt_shm_listen(&shm->offer);
    if (shm->inner < 0 || shm->listener < 0 ||
        epoll_ctl(shm->inner, EPOLL_CTL_ADD, shm->listener, &event) != 0) {
        snprintf(err, err_size, "shm: no unix socket: %s", strerror(errno));
        return BT_E_LIMIT;
    }
    return bt_kv_watch(shm->base.agent, shm->inner, EPOLLIN);
}

static void free_all(bt_shm_t *shm)
{
    bt_shm_guests_free(shm);
    if (shm->inner >= 0)
        close(shm->inner);
    if (shm->listener >= 0)
        close(shm->listener);
    free(shm);
}

static int shm_open_backend(bt_kv_backend_t **backend_p, bt_kv_agent_t *agent,
                            const bt_kv_config_t *config, char *err, size_t err_size)
{
    (void) config;
    bt_shm_t *shm = calloc(1, sizeof(*shm));
    if (shm == NULL)
        return BT_E_NOMEM;
    (void) bt_kv_copy_init();
    shm->base = (bt_kv_backend_t){.ops = &bt_kv_shm_ops, .agent = agent};
    shm->listener = shm->inner = -1;
    shm->listener_watch = (bt_shm_watch_t){BT_SHM_W_LISTENER, shm};
    shm->offer = (bt_shm_offer_t){
        .magic = BT_SHM_OFFER_MAGIC, .version = BT_SHM_VERSION, .uid = (uint32_t) geteuid()};
    bt_list_init(&shm->paths);
    bt_list_init(&shm->regions);
    bt_list_init(&shm->guests);
    bt_rand_secure(shm->offer.incarnation, sizeof(shm->offer.incarnation));
    int rc = read_boot_id(shm->offer.boot_id);
    if (rc != 0)
        snprintf(err, err_size,
                 "shm: /proc/sys/kernel/random/boot_id cannot be read: is /proc mounted?");
    else
        rc = open_fds(shm, err, err_size);
    if (rc != 0) {
        free_all(shm);
        return rc;
    }
    *backend_p = &shm->base;
    return 0;
}

static void shm_close_backend(bt_kv_backend_t *base)
{
    bt_shm_t *shm = shm_of(base);
    bt_kv_unwatch(base->agent, shm->inner);
    while (!bt_list_empty(&shm->regions)) {
        bt_shm_region_t *region = bt_container_of(shm->regions.next, bt_shm_region_t, link);
        bt_list_remove(&region->link);
        free(region);
    }
    free_all(shm);
}

static size_t shm_offer(bt_kv_backend_t *base, uint8_t *to, size_t size)
{
    if (size < sizeof(bt_shm_offer_t))
        return 0;
    memcpy(to, &shm_of(base)->offer, sizeof(bt_shm_offer_t));
    return sizeof(bt_shm_offer_t);
}

/* ---- regions: they travel by the path's own socket, in order with the runs ---- */
static int shm_region_add(bt_kv_backend_t *base, bt_kv_mem_t *mem)
{
    bt_shm_t *shm = shm_of(base);
    bt_list_t *it, *tmp;

    if (mem->fd >= 0 && !mem->is_pool)
        return BT_E_INVAL; /* a device's memory: nothing here can read it */
    bt_shm_region_t *region = calloc(1, sizeof(*region));
    if (region == NULL)
        return BT_E_NOMEM;
    region->mem = mem;
    region->is_pool = mem->is_pool && mem->fd >= 0 && bt_shm_seal(mem->fd);
    bt_list_push(&shm->regions, &region->link);
    mem->keys[bt_kv_backend_index(BT_KV_SHM)] = region;
    bt_list_each (&shm->paths, it, tmp) {
        bt_shm_path_t *path = bt_container_of(it, bt_shm_path_t, link);
        if (path->stage == BT_SHM_READY)
            bt_shm_path_region(path, region);
    }
    return 0;
}

static void shm_region_remove(bt_kv_backend_t *base, bt_kv_mem_t *mem)
{
    bt_shm_t *shm = shm_of(base);
    bt_shm_region_t *region = mem->keys[bt_kv_backend_index(BT_KV_SHM)];
    bt_shm_msg_t msg = {.type = BT_SHM_UNREGION, .id = mem->id};
    bt_list_t *it, *tmp;

    if (region == NULL)
        return;
    bt_list_each (&shm->paths, it, tmp) {
        bt_shm_path_t *path = bt_container_of(it, bt_shm_path_t, link);
        if (path->stage == BT_SHM_READY)
            (void) bt_shm_send(path, &msg, NULL, 0);
    }
    bt_list_remove(&region->link);
    free(region);
    mem->keys[bt_kv_backend_index(BT_KV_SHM)] = NULL;
}

/* ---- turns ---- */
static bool shm_drain(bt_kv_path_t *base, uint64_t tag)
{
    bt_shm_path_t *path = bt_shm_path_of(base);
    bt_shm_t *shm = bt_shm_of(path);

    if (path->rx.in_batch && path->rx.batch.tag == tag && path->rx.status == BT_SHM_DONE)
        path->rx.status = BT_SHM_REFUSED; /* the rest of it is skipped */
    path->held++;
    bool is_still = bt_shm_tx_drain(path, tag);
    is_still = is_still && !(shm->busy_path == path && shm->busy_tag == tag);
    bt_shm_path_let_go(path);
    return is_still;
}

/* One path's turn. The path may be closed meanwhile, and others opened or closed. */
static int turn(bt_shm_path_t *path, size_t *budget)
{
    int count = bt_shm_path_step(path);

    bt_shm_kick_owed(path);
    if (path->stage == BT_SHM_READY) {
        count += bt_shm_rx_step(path, budget);
        count += bt_shm_reap(path);
        count += bt_shm_pump(path);
        count += bt_shm_window(path);
    }
    return count;
}

/* All paths, the first one last next time. The list may change under us, so each turn begins at its head. */
static int turns(bt_shm_t *shm)
{
    bt_list_t *it, *tmp;
    size_t budget = BT_KV_SLICE_BYTES;
    uint32_t left = 0;
    int count = 0;

    bt_list_each (&shm->paths, it, tmp)
        left++;
    shm->opening = 0;
    for (; left > 0 && budget > 0 && !bt_list_empty(&shm->paths); left--) {
        bt_shm_path_t *path = bt_container_of(shm->paths.next, bt_shm_path_t, link);
        bt_list_remove(&path->link);
        bt_list_push(&shm->paths, &path->link);
        path->held++;
        count += turn(path, &budget);
        shm->opening += path->stage < BT_SHM_READY;
        bt_shm_path_let_go(path);
    }
    return count;
}

static int check_fds(bt_shm_t *shm)
{
    struct epoll_event event;
    int count = 0;

    /* One at a time: a handler may free what a later event of the same call would name. */
    while (count < EVENTS_A_TURN && epoll_wait(shm->inner, &event, 1, 0) == 1) {
        bt_shm_watch_t *watch = event.data.ptr;
        bt_shm_path_t *path = watch->owner;
        count++;
        switch (watch->kind) {
        case BT_SHM_W_LISTENER:
            bt_shm_accept(shm);
            break;
        case BT_SHM_W_GUEST:
            bt_shm_guest_read(shm, watch->owner);
            break;
        case BT_SHM_W_SOCKET:
            path->held++;
            bt_shm_path_read(path);
            bt_shm_path_let_go(path);
            break;
        case BT_SHM_W_PIDFD:
            path->held++;
            (void) bt_shm_reap(path);
            bt_shm_path_break(path, BT_E_RESET, "the peer's process has ended");
            (void) epoll_ctl(shm->inner, EPOLL_CTL_DEL, path->pidfd, NULL);
            bt_shm_path_let_go(path);
            break;
        }
    }
    return count;
}

/* The next piece of a peer's pool that no copy has touched yet. */
static int populate(bt_shm_t *shm)
{
    bt_list_t *it, *tmp;
    bt_list_each (&shm->paths, it, tmp) {
        bt_shm_path_t *path = bt_container_of(it, bt_shm_path_t, link);
        size_t bytes = 0;
        const char *p = bt_shm_maps_populate_next(&path->maps, &bytes);
        if (p == NULL)
            continue;
        path->held++;
        bt_shm_copy_begin(path, UINT64_MAX);
        bt_shm_populate(p, bytes);
        bt_shm_copy_end(path);
        bt_shm_path_let_go(path);
        return 1;
    }
    shm->has_new_pools = false;
    return 0;
}

static bool is_time_to_poll(bt_shm_t *shm)
{
    if (shm->has_slept || shm->has_new_pools || shm->opening > 0)
        return true;
    if (++shm->idle_turns % 64 != 0)
        return false;
    return bt_clock_us() >= shm->look_us;
}

static int shm_progress(bt_kv_backend_t *base)
{
    bt_shm_t *shm = shm_of(base);

    if (shm->busy_path != NULL)
        return 0; /* another thread's turn has let the lock go */
    if (shm->is_armed) {
        bt_shm_disarm(shm);
        shm->has_slept = true;
    }
    int count = turns(shm);
    if (count > 0 && bt_clock_us() < shm->look_us)
        return count;
    if (count == 0 && !is_time_to_poll(shm))
        return 0;
    shm->has_slept = false;
    shm->look_us = bt_clock_us() + BT_SHM_LOOK_US;
    bt_shm_guests_expire(shm, shm->look_us / 1000);
    count += check_fds(shm);
    return count > 0 ? count : populate(shm);
}

static bool shm_peer_is_dead(const bt_kv_path_t *base)
{
    return !bt_shm_path_peer_lives(bt_shm_path_of(base));
}

static int shm_describe(const bt_kv_path_t *base, char *text, size_t size)
{
    const bt_shm_path_t *path = bt_shm_path_of(base);
    uint32_t mapped = 0;

    if (path->stage == BT_SHM_BROKEN)
        return snprintf(text, size, "shm, broken: %s", path->why);
    if (path->stage != BT_SHM_READY)
        return snprintf(text, size, "shm, opening");
    for (uint32_t i = 0; i < path->maps.count; i++)
        mapped += path->maps.all[i].view.p != NULL;
    return snprintf(
        text, size,
        "shm, pid %d: %u of the peer's %u regions mapped; its private memory %s%s; ours %s",
        (int) path->pid, mapped, path->maps.count,
        path->can_pull ? "by process_vm_readv" : "through a copy window: ",
        path->can_pull ? "" : strerror(path->pull_errno),
        path->tx.may_pull ? "by process_vm_readv" : "through a copy window");
}

/* close_revokes is not set: a stopped peer may read our pages after the close, though it will deliver nothing of it (is_closed). It never writes ours (is_pulled). */
const bt_kv_backend_ops_t bt_kv_shm_ops = {
    .kind = BT_KV_SHM,
    .name = "shm",
    .rank = 40,
    .open = shm_open_backend,
    .close = shm_close_backend,
    .region_add = shm_region_add,
    .region_remove = shm_region_remove,
    .offer = shm_offer,
    .path_open = bt_shm_path_open,
    .received = bt_shm_path_received,
    .path_close = bt_shm_path_close,
    .post = bt_shm_post,
    .drain = shm_drain,
    .progress = shm_progress,
    .arm = bt_shm_arm,
    .peer_is_dead = shm_peer_is_dead,
    .describe = shm_describe,
    .is_pulled = true,
};
