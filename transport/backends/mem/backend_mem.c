/* mem: both agents live in this process, and the receiver copies.
 *
 * A path is a channel that both sides hold: two lists of batches under a lock of its own, which is taken inside the agents' locks and never the other
 * way. The sender appends to `queued`; the receiver's progress copies the first one, slice by slice with its agent's lock let go, checks each destination as
 * any back end does, hands over the note and moves the batch to `over`; the sender's progress collects it from there. Neither agent ever touches
 * the other's lock. Each side has an eventfd for the other to wake it by, written only when it is about to sleep.
 *
 * The dialler makes the channel and tells its number; the other looks it up, joins, and says so.
 */
#include "transport/backends/mem/backend_mem.h"

#include "transport/backends/backend.h"
#include "transport/backends/copy.h"

#include "base/rand.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define SEGMENTS 64

bt_kv_mem_faults_t bt_kv_mem_faults;

typedef struct mem_backend {
    bt_kv_backend_t base;
    bt_list_t paths;
    int wake_fd;
    _Atomic bool is_armed;
    bool was_armed;
} mem_backend_t;

typedef struct channel {
    bt_list_t link; /* the process's, while the dialler waits */
    uint64_t id;
    pthread_mutex_t lock;
    unsigned refs;
    mem_backend_t *sender, *receiver; /* NULL: not there yet, or gone */
    bt_list_t queued, over;
    bool is_begun;   /* some of queued's first one has been moved */
    bool is_copying; /* the receiver holds queued's first one right now */
    bool is_closed;  /* one side has left */
} channel_t;

typedef struct mem_path {
    bt_kv_path_t base;
    bt_list_t link;
    channel_t *channel;
    bool is_receiver;
} mem_path_t;

static struct {
    pthread_mutex_t lock;
    bt_list_t channels;
    uint64_t next_id, cookie;
} process = {.lock = PTHREAD_MUTEX_INITIALIZER, .channels = {&process.channels, &process.channels}};

static mem_backend_t *backend_of(bt_kv_backend_t *base)
{
    return bt_container_of(base, mem_backend_t, base);
}

static mem_path_t *path_of(bt_kv_path_t *base)
{
    return bt_container_of(base, mem_path_t, base);
}

/* ---- waking ---- */
static void wake(mem_backend_t *backend)
{
    uint64_t one = 1;

    if (backend != NULL && atomic_exchange(&backend->is_armed, false) &&
        write(backend->wake_fd, &one, sizeof(one)) < 0)
        return; /* readable already */
}

static bool has_work(mem_backend_t *backend)
{
    bool has = false;

    for (bt_list_t *it = backend->paths.next; it != &backend->paths && !has; it = it->next) {
        mem_path_t *path = bt_container_of(it, mem_path_t, link);
        channel_t *channel = path->channel;
        pthread_mutex_lock(&channel->lock);
        has = path->is_receiver
                  ? !bt_list_empty(&channel->queued) && atomic_load(&bt_kv_mem_faults.hold) == 0
                  : !bt_list_empty(&channel->over);
        pthread_mutex_unlock(&channel->lock);
    }
    return has;
}

static bool arm(bt_kv_backend_t *base)
{
    mem_backend_t *backend = backend_of(base);

    backend->was_armed = true;
    atomic_store(&backend->is_armed, true);
    return has_work(backend);
}

/* ---- back end ---- */
static int open_mem(bt_kv_backend_t **backend_p, bt_kv_agent_t *agent, const bt_kv_config_t *config,
                    char *err, size_t err_size)
{
    mem_backend_t *backend = calloc(1, sizeof(*backend));

    (void) config;
    if (backend == NULL)
        return BT_E_NOMEM;
    backend->base = (bt_kv_backend_t){&bt_kv_mem_ops, agent};
    bt_list_init(&backend->paths);
    (void) bt_kv_copy_init();
    backend->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (backend->wake_fd < 0 || bt_kv_watch(agent, backend->wake_fd, EPOLLIN) != 0) {
        snprintf(err, err_size, "eventfd: %s", strerror(errno));
        if (backend->wake_fd >= 0)
            close(backend->wake_fd);
        free(backend);
        return BT_E_LIMIT;
    }
    pthread_mutex_lock(&process.lock);
    if (process.cookie == 0)
        bt_rand_secure(&process.cookie, sizeof(process.cookie));
    pthread_mutex_unlock(&process.lock);
    *backend_p = &backend->base;
    return 0;
}

static void close_mem(bt_kv_backend_t *base)
{
    mem_backend_t *backend = backend_of(base);

    bt_kv_unwatch(base->agent, backend->wake_fd);
    close(backend->wake_fd);
    free(backend);
}

static size_t offer(bt_kv_backend_t *base, uint8_t *to, size_t size)
{
    (void) base;
    if (size < sizeof(process.cookie))
        return 0;
    memcpy(to, &process.cookie, sizeof(process.cookie));
    return sizeof(process.cookie);
}

/* ---- channels ---- */
static void channel_unref(channel_t *channel)
{
    pthread_mutex_lock(&process.lock);
    bool is_last = --channel->refs == 0;
    if (is_last)
        bt_list_remove(&channel->link);
    pthread_mutex_unlock(&process.lock);
    if (!is_last)
        return;
    pthread_mutex_destroy(&channel->lock);
    free(channel);
}

static channel_t *new_channel(mem_backend_t *receiver)
{
    channel_t *channel = calloc(1, sizeof(*channel));

    if (channel == NULL)
        return NULL;
    pthread_mutex_init(&channel->lock, NULL);
    bt_list_init(&channel->queued);
    bt_list_init(&channel->over);
    channel->receiver = receiver;
    channel->refs = 1;
    pthread_mutex_lock(&process.lock);
    channel->id = ++process.next_id;
    bt_list_push(&process.channels, &channel->link);
    pthread_mutex_unlock(&process.lock);
    return channel;
}

static channel_t *join_channel(uint64_t id, mem_backend_t *sender)
{
    channel_t *found = NULL;

    pthread_mutex_lock(&process.lock);
    for (bt_list_t *it = process.channels.next; it != &process.channels; it = it->next)
        if (bt_container_of(it, channel_t, link)->id == id)
            found = bt_container_of(it, channel_t, link);
    if (found != NULL) {
        bt_list_remove(&found->link); /* nobody joins twice */
        found->refs++;
    }
    pthread_mutex_unlock(&process.lock);
    if (found == NULL)
        return NULL;
    pthread_mutex_lock(&found->lock);
    found->sender = sender;
    pthread_mutex_unlock(&found->lock);
    return found;
}

/* ---- paths ---- */
static int path_open(bt_kv_path_t **path_p, bt_kv_backend_t *base, bt_kv_link_t *link,
                     const uint8_t *bytes, size_t size, bool is_initiator)
{
    mem_backend_t *backend = backend_of(base);

    if (size != sizeof(process.cookie) || memcmp(bytes, &process.cookie, size) != 0)
        return BT_E_INVAL; /* another process */
    if (atomic_load(&bt_kv_mem_faults.deny) != 0)
        return BT_E_LIMIT;
    mem_path_t *path = calloc(1, sizeof(*path));
    if (path == NULL)
        return BT_E_NOMEM;
    path->base = (bt_kv_path_t){.backend = base, .link = link};
    path->is_receiver = is_initiator;
    bt_list_init(&path->link);
    *path_p = &path->base;
    if (!is_initiator)
        return 0; /* told gives us the channel */
    path->channel = new_channel(backend);
    if (path->channel == NULL) {
        free(path);
        return BT_E_NOMEM;
    }
    bt_list_push(&backend->paths, &path->link);
    return bt_kv_path_send(&path->base, (const uint8_t *) &path->channel->id,
                           sizeof(path->channel->id));
}

static int received(bt_kv_path_t *base, const uint8_t *message, size_t size)
{
    mem_path_t *path = path_of(base);
    mem_backend_t *backend = backend_of(base->backend);
    uint64_t id;

    if (size != sizeof(id))
        return BT_E_INVAL;
    memcpy(&id, message, sizeof(id));
    if (path->is_receiver) {
        if (id != path->channel->id)
            return BT_E_INVAL;
        bt_kv_path_ready(base);
        return 0;
    }
    if (path->channel != NULL)
        return BT_E_INVAL;
    path->channel = join_channel(id, backend);
    if (path->channel == NULL)
        return BT_E_INVAL;
    bt_list_push(&backend->paths, &path->link);
    bt_kv_path_send(base, message, size);
    bt_kv_path_ready(base);
    return 0;
}

/* Batches leave the channel under its lock and are ended without it. */
static void end_all(bt_list_t *list, bool is_done)
{
    while (!bt_list_empty(list)) {
        bt_kv_batch_t *batch = bt_container_of(list->next, bt_kv_batch_t, link);
        bt_list_remove(&batch->link);
        bt_kv_batch_over(batch, is_done && batch->done == batch->bytes ? 0 : BT_E_CANCELLED);
    }
}

static void move_all(bt_list_t *from, bt_list_t *to)
{
    while (!bt_list_empty(from)) {
        bt_list_t *first = from->next;
        bt_list_remove(first);
        bt_list_push(to, first);
    }
}

static void path_close(bt_kv_path_t *base)
{
    mem_path_t *path = path_of(base);
    channel_t *channel = path->channel;
    bt_list_t queued, over;

    bt_list_init(&queued);
    bt_list_init(&over);
    bt_list_remove(&path->link);
    if (channel != NULL) {
        pthread_mutex_lock(&channel->lock);
        while (
            channel
                ->is_copying) { /* a slice at most; the copier needs no lock of this agent to end it */
            pthread_mutex_unlock(&channel->lock);
            sched_yield();
            pthread_mutex_lock(&channel->lock);
        }
        channel->is_closed = true;
        mem_backend_t *other = path->is_receiver ? channel->sender : channel->receiver;
        if (path->is_receiver) {
            channel->receiver = NULL;
        } else {
            channel->sender = NULL;
            move_all(&channel->queued, &queued);
            move_all(&channel->over, &over);
        }
        wake(other);
        pthread_mutex_unlock(&channel->lock);
        channel_unref(channel);
    }
    end_all(&over, true);
    end_all(&queued, false);
    free(path);
}

/* ---- sender ---- */
static int post(bt_kv_path_t *base, bt_kv_batch_t *batch)
{
    channel_t *channel = path_of(base)->channel;

    if (atomic_load(&bt_kv_mem_faults.again) > 0) {
        atomic_fetch_sub(&bt_kv_mem_faults.again, 1);
        return BT_E_AGAIN;
    }
    pthread_mutex_lock(&channel->lock);
    bool is_closed = channel->is_closed;
    if (!is_closed) {
        bt_list_push(&channel->queued, &batch->link);
        wake(channel->receiver);
    }
    pthread_mutex_unlock(&channel->lock);
    return is_closed ? BT_E_RESET : 0;
}

static int collect(mem_path_t *path)
{
    channel_t *channel = path->channel;
    bt_list_t over;
    int done = 0;

    bt_list_init(&over);
    pthread_mutex_lock(&channel->lock);
    move_all(&channel->over, &over);
    bool is_closed = channel->is_closed;
    pthread_mutex_unlock(&channel->lock);
    for (bt_list_t *it = over.next; it != &over; it = it->next)
        done++;
    end_all(&over, true);
    if (is_closed)
        bt_kv_path_failed(&path->base, BT_E_RESET, "the other side has left");
    return done;
}

/* ---- receiver ---- */
/* The next row's piece of the batch; false at its end or where the room has nothing open any more. */
static bool next_segment(mem_path_t *path, bt_kv_batch_t *batch, size_t most, bt_kv_copy_piece_t *s)
{
    const bt_kv_run_t *run = &batch->runs[batch->next_run];
    uint64_t row = batch->posted, at = batch->next_byte;
    size_t left = run->bytes - (size_t) at;

    *s = (bt_kv_copy_piece_t){.bytes = (uint32_t) (left < most ? left : most), .rows = 1};
    s->src = run->src->p + run->src_offset + row * run->src_stride + at;
    s->dst = bt_kv_destination(&path->base, batch->tag, run->dst,
                               run->dst_offset + row * run->dst_stride + at, s->bytes);
    if (s->dst == NULL)
        return false;
    batch->done += s->bytes;
    batch->next_byte += s->bytes;
    if (batch->next_byte < run->bytes)
        return true;
    batch->next_byte = 0;
    if (++batch->posted < run->rows)
        return true;
    batch->posted = 0;
    batch->next_run++;
    return true;
}

/* The batch has been copied, or is refused. */
static void finish(mem_path_t *path, bt_kv_batch_t *batch)
{
    channel_t *channel = path->channel;

    if (batch->done == batch->bytes && batch->note_bytes > 0)
        bt_kv_got_note(&path->base, batch->note, batch->note_bytes);
    pthread_mutex_lock(&channel->lock);
    channel->is_begun = false;
    bt_list_remove(&batch->link);
    bt_list_push(&channel->over, &batch->link);
    wake(channel->sender);
    pthread_mutex_unlock(&channel->lock);
}

static void flip(const bt_kv_copy_piece_t *last)
{
    if (atomic_load(&bt_kv_mem_faults.flip) > 0 && last->bytes > 0) {
        atomic_fetch_sub(&bt_kv_mem_faults.flip, 1);
        last->dst[last->bytes / 2] ^= 1;
    }
}

/* The first batch of the channel, marked as being copied; NULL: nothing to do. */
static bt_kv_batch_t *begin(channel_t *channel)
{
    bt_kv_batch_t *batch = NULL;

    pthread_mutex_lock(&channel->lock);
    bool is_held = channel->is_begun && atomic_load(&bt_kv_mem_faults.hold) != 0;
    if (!bt_list_empty(&channel->queued) && !is_held) {
        batch = bt_container_of(channel->queued.next, bt_kv_batch_t, link);
        channel->is_copying = channel->is_begun = true;
    }
    pthread_mutex_unlock(&channel->lock);
    return batch;
}

static void end_copy(channel_t *channel)
{
    pthread_mutex_lock(&channel->lock);
    channel->is_copying = false;
    pthread_mutex_unlock(&channel->lock);
}

/* A slice of the first batch. */
static int pull(mem_path_t *path)
{
    channel_t *channel = path->channel;
    bt_kv_batch_t *batch = begin(channel);
    bt_kv_copy_piece_t pieces[SEGMENTS];
    size_t left = BT_KV_SLICE_BYTES, bytes = 0;
    unsigned count = 0;
    bool is_open = true;

    if (batch == NULL)
        return 0;
    if (atomic_load(&bt_kv_mem_faults.hold) != 0 && batch->bytes > 1)
        left = batch->bytes / 2 < left ? (size_t) batch->bytes / 2 : left;
    while (left > bytes && count < SEGMENTS && batch->next_run < batch->run_count && is_open) {
        is_open = next_segment(path, batch, left - bytes, &pieces[count]);
        if (is_open)
            bytes += pieces[count++].bytes;
    }
    bool is_all = batch->next_run == batch->run_count;
    bt_kv_agent_t *agent = path->base.backend->agent;
    if (count > 0) {
        bt_kv_unlock(agent);
        bt_kv_copy(pieces, count, bytes);
        if (is_all)
            flip(&pieces[count - 1]);
        bt_kv_relock(agent);
    }
    if (is_all || !is_open)
        finish(path, batch);
    end_copy(channel);
    return 1;
}

static int progress(bt_kv_backend_t *base)
{
    mem_backend_t *backend = backend_of(base);
    uint64_t count;
    int done = 0;
    bt_list_t *it, *tmp;

    if (backend->was_armed) {
        backend->was_armed = false;
        atomic_store(&backend->is_armed, false);
        if (read(backend->wake_fd, &count, sizeof(count)) > 0)
            done++;
    }
    bt_list_each (&backend->paths, it, tmp) {
        mem_path_t *path = bt_container_of(it, mem_path_t, link);
        done += path->is_receiver ? pull(path) : collect(path);
    }
    return done;
}

/* ---- the end ---- */
static bool drain(bt_kv_path_t *base, uint64_t tag)
{
    mem_path_t *path = path_of(base);
    channel_t *channel = path->channel;
    bt_list_t cancelled, *it, *tmp;
    bool is_quiet = path->is_receiver || atomic_load(&bt_kv_mem_faults.busy) == 0;

    if (channel == NULL)
        return true;
    bt_list_init(&cancelled);
    pthread_mutex_lock(&channel->lock);
    bool is_held = atomic_load(&bt_kv_mem_faults.hold) != 0 && channel->receiver != NULL;
    bt_list_each (&channel->queued, it, tmp) {
        bt_kv_batch_t *batch = bt_container_of(it, bt_kv_batch_t, link);
        if (batch->tag != tag)
            continue;
        bool is_first = it == channel->queued.next && channel->is_begun;
        if (is_first && (is_held || channel->is_copying)) {
            is_quiet = false;
        } else if (!path->is_receiver) {
            channel->is_begun = is_first ? false : channel->is_begun;
            bt_list_remove(it);
            bt_list_push(&cancelled, it);
        }
    }
    pthread_mutex_unlock(&channel->lock);
    end_all(&cancelled, false);
    return is_quiet;
}

static int describe(const bt_kv_path_t *path, char *text, size_t size)
{
    (void) path;
    return snprintf(text, size, "same process, copied by the receiver");
}

const bt_kv_backend_ops_t bt_kv_mem_ops = {
    .kind = BT_KV_MEM,
    .name = "mem",
    .rank = 1000,
    .open = open_mem,
    .close = close_mem,
    .offer = offer,
    .path_open = path_open,
    .received = received,
    .path_close = path_close,
    .post = post,
    .drain = drain,
    .progress = progress,
    .arm = arm,
    .describe = describe,
    .close_revokes = true,
};
