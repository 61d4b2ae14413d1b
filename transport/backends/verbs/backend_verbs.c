/* The table of the verbs back end, and what an agent has of it. The sender pushes: RDMA writes into regions whose keys the receiver's agent has
 * announced. Where to look:
 *
 *     verbs_rail    a port of a device            verbs_job    batches -> shares -> messages
 *     verbs_conn    a queue pair                  verbs_write  runs -> messages
 *     verbs_path    how pairs meet and part       verbs_inbox  what arrives -> notes
 *     verbs_mem     regions and keys
 *
 * The hardware cannot ask bt_kv_destination: a peer may write anywhere in the regions whose keys it has. Hence a failed room's pages are free again
 * only when the peer has said that nothing of it is under way (DRAIN, DRAINED), or when this side's queue pairs to it are gone.
 */
#include "base/clock.h"
#include "base/log.h"
#include "transport/backends/verbs/verbs_conn.h"
#include "transport/backends/verbs/verbs_job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#define MAGIC 0x31564b42u /* "BKV1" on a little-endian machine: another order is refused by it */
#define LOOK_MS 100       /* how often a busy agent asks for events of ports */
#define ASK_MS 100
#define JOBS_KEPT 1024

bt_verbs_tuning_t bt_verbs_tuning = {
    .modes = BT_VERBS_IMM | BT_VERBS_SEND,
    .slice_bytes = 64 << 10,
    .send_depth = 256,
    .signal_every = 32,
    .pause_ms = 30000,
    .drain_ms = 2000,
    .message_max = (uint64_t) 1 << 30,
};

static const struct {
    const char *name;
    uint32_t bit;
} modes[] = {{"imm", BT_VERBS_IMM}, {"send", BT_VERBS_SEND}, {"control", BT_VERBS_CONTROL}};

static const bt_kv_backend_ops_t ops;

/* ---- open ---- */
static void close_verbs(bt_kv_backend_t *backend)
{
    bt_verbs_t *verbs = bt_verbs_of(backend);

    BT_ASSERT(bt_list_empty(&verbs->paths));
    for (unsigned i = 0; i < verbs->rail_count; i++) {
        bt_kv_unwatch(verbs->base.agent, verbs->rails[i].channel->fd);
        bt_kv_unwatch(verbs->base.agent, verbs->rails[i].context->async_fd);
        bt_verbs_rail_close(&verbs->rails[i]);
    }
    bt_slab_fini(&verbs->jobs);
    free(verbs);
}

static int choose_modes(uint32_t *modes_p, char *err, size_t err_size)
{
    const char *wanted = getenv("BATON_KV_RDMA_COMPLETION");

    *modes_p = bt_verbs_tuning.modes;
    if (wanted == NULL || *wanted == '\0')
        return 0;
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++)
        if (strcmp(wanted, modes[i].name) == 0) {
            *modes_p = modes[i].bit;
            return 0;
        }
    snprintf(err, err_size, "BATON_KV_RDMA_COMPLETION is \"%s\"; it must be imm, send or control",
             wanted);
    return BT_E_INVAL;
}

static int add_rail(bt_verbs_t *verbs, struct ibv_device *device, uint8_t port, int gid_index,
                    char *err, size_t err_size)
{
    bt_verbs_rail_t *rail = &verbs->rails[verbs->rail_count];
    bt_kv_agent_t *agent = verbs->base.agent;

    if (verbs->rail_count == BT_VERBS_RAILS_MAX)
        return 0;
    int rc = bt_verbs_rail_open(rail, device, port, gid_index, err, err_size);
    if (rc != 0)
        return rc;
    rail->index = verbs->rail_count;
    rc = bt_kv_watch(agent, rail->channel->fd, EPOLLIN);
    if (rc == 0 && (rc = bt_kv_watch(agent, rail->context->async_fd, EPOLLIN)) != 0)
        bt_kv_unwatch(agent, rail->channel->fd);
    if (rc != 0) {
        snprintf(err, err_size, "%s: its events cannot be watched", rail->name);
        bt_verbs_rail_close(rail);
        return rc;
    }
    verbs->rail_count++;
    return 0;
}

/* All devices: the ones that do not work are passed over. The last reason stays in err. */
static int add_all(bt_verbs_t *verbs, struct ibv_device **list, int count, int gid_index, char *err,
                   size_t err_size)
{
    for (int i = 0; i < count; i++)
        add_rail(verbs, list[i], 1, gid_index, err, err_size);
    return verbs->rail_count > 0 ? 0 : BT_E_INVAL;
}

/* "mlx5_0,mlx5_1:2": each must work. */
static int add_named(bt_verbs_t *verbs, struct ibv_device **list, int count,
                     const bt_kv_config_t *config, char *err, size_t err_size)
{
    for (const char *at = config->rdma_devices; *at != '\0';) {
        size_t n = strcspn(at, ","), name = strcspn(at, ",:");
        uint8_t port = n > name ? (uint8_t) strtoul(at + name + 1, NULL, 10) : 1;
        int rc = BT_E_INVAL, i = 0;

        while (i < count && (strncmp(ibv_get_device_name(list[i]), at, name) != 0 ||
                             ibv_get_device_name(list[i])[name] != '\0'))
            i++;
        if (i == count)
            snprintf(err, err_size,
                     "rdma_devices: there is no device \"%.*s\" (ibv_devices lists them)",
                     (int) name, at);
        else
            rc = add_rail(verbs, list[i], port, config->gid_index, err, err_size);
        if (rc != 0)
            return rc;
        at += n + (at[n] == ',');
    }
    return verbs->rail_count > 0 ? 0 : BT_E_INVAL;
}

static int open_rails(bt_verbs_t *verbs, const bt_kv_config_t *config, char *err, size_t err_size)
{
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);
    int rc = BT_E_INVAL;

    snprintf(err, err_size, "no RDMA device on this machine");
    if (list == NULL)
        return rc;
    if (count > 0)
        rc = config->rdma_devices != NULL && *config->rdma_devices != '\0'
                 ? add_named(verbs, list, count, config, err, err_size)
                 : add_all(verbs, list, count, config->gid_index, err, err_size);
    ibv_free_device_list(list);
    return rc;
}

static int open_verbs(bt_kv_backend_t **backend_p, bt_kv_agent_t *agent,
                      const bt_kv_config_t *config, char *err, size_t err_size)
{
    bt_verbs_t *verbs = calloc(1, sizeof(*verbs));

    if (verbs == NULL)
        return BT_E_NOMEM;
    verbs->base = (bt_kv_backend_t){.ops = &ops, .agent = agent};
    bt_list_init(&verbs->paths);
    bt_list_init(&verbs->active);
    bt_slab_init(&verbs->jobs, sizeof(bt_verbs_job_t), JOBS_KEPT);
    int rc = choose_modes(&verbs->modes, err, err_size);
    if (rc == 0)
        rc = open_rails(verbs, config, err, err_size);
    if (rc != 0) {
        close_verbs(&verbs->base);
        return rc;
    }
    verbs->has_dmabuf = true;
    for (unsigned i = 0; i < verbs->rail_count; i++)
        verbs->has_dmabuf = verbs->has_dmabuf && bt_verbs_mem_probe_dmabuf(&verbs->rails[i]);
    *backend_p = &verbs->base;
    return 0;
}

/* ---- paths ---- */
static size_t offer(bt_kv_backend_t *backend, uint8_t *to, size_t size)
{
    const bt_verbs_t *verbs = bt_verbs_of(backend);
    uint32_t magic = MAGIC;

    if (size < 6)
        return 0;
    memcpy(to, &magic, 4);
    to[4] = (uint8_t) verbs->rail_count;
    to[5] = (uint8_t) verbs->modes;
    return 6;
}

static void path_close(bt_kv_path_t *base)
{
    bt_verbs_path_t *path = bt_verbs_path_of(base);
    bt_list_t *it, *tmp;

    for (unsigned i = 0; i < path->pair_count; i++)
        bt_verbs_conn_unmake(&path->conns[i]);
    bt_verbs_job_cancel_all(path);
    bt_list_each (&path->drains, it, tmp)
        free(bt_container_of(it, bt_verbs_drain_t, link));
    bt_list_each (&path->asked, it, tmp)
        free(bt_container_of(it, bt_verbs_drain_t, link));
    bt_list_remove(&path->link);
    free(path->regions);
    free(path);
}

static bt_verbs_path_t *new_path(bt_verbs_t *verbs, bt_kv_link_t *link, unsigned peer_rails)
{
    bt_verbs_path_t *path = calloc(1, sizeof(*path));
    unsigned pairs = peer_rails > verbs->rail_count ? peer_rails : verbs->rail_count;

    if (path == NULL)
        return NULL;
    path->base = (bt_kv_path_t){.backend = &verbs->base, .link = link};
    path->verbs = verbs;
    path->peer_rails = peer_rails;
    bt_list_init(&path->waiting);
    bt_list_init(&path->started);
    bt_list_init(&path->orphans);
    bt_list_init(&path->drains);
    bt_list_init(&path->asked);
    bt_list_push(&verbs->paths, &path->link);
    for (unsigned i = 0; i < pairs; i++)
        bt_verbs_conn_init(&path->conns[i], path, i, &verbs->rails[i % verbs->rail_count],
                           i % peer_rails);
    path->pair_count = pairs;
    return path;
}

static int path_open(bt_kv_path_t **path_p, bt_kv_backend_t *backend, bt_kv_link_t *link,
                     const uint8_t *from, size_t size, bool is_initiator)
{
    bt_verbs_t *verbs = bt_verbs_of(backend);
    uint32_t magic;

    if (size != 6)
        return BT_E_INVAL;
    memcpy(&magic, from, 4);
    uint32_t common = from[5] & verbs->modes;
    if (magic != MAGIC || from[4] == 0 || from[4] > BT_VERBS_RAILS_MAX || common == 0)
        return BT_E_INVAL;
    bt_verbs_path_t *path = new_path(verbs, link, from[4]);
    if (path == NULL)
        return BT_E_NOMEM;
    path->is_initiator = is_initiator;
    path->mode = (enum bt_verbs_mode)(common & -common);
    int rc = bt_verbs_path_start(path);
    if (rc != 0) {
        path_close(&path->base);
        return rc;
    }
    *path_p = &path->base;
    return 0;
}

/* ---- drain ---- */
/* Asked again now and then: that the question cannot be sent is how a lost link shows here. */
static bt_verbs_drain_t *request_peer(bt_verbs_path_t *path, uint64_t tag)
{
    bt_verbs_drain_t *drain = bt_verbs_drain_find(&path->drains, tag);
    uint64_t now_ms = bt_clock_ms();

    if (drain != NULL && (drain->is_answered || now_ms - drain->asked_ms < ASK_MS))
        return drain;
    if (drain == NULL) {
        drain = calloc(1, sizeof(*drain));
        if (drain == NULL)
            return NULL;
        drain->tag = tag;
        bt_list_push(&path->drains, &drain->link);
    }
    drain->asked_ms = now_ms;
    if (bt_verbs_path_send_tag(path, BT_VERBS_DRAIN, tag) != 0)
        bt_verbs_path_fail(path, "the link is gone");
    return drain;
}

static bool drain(bt_kv_path_t *base, uint64_t tag)
{
    bt_verbs_path_t *path = bt_verbs_path_of(base);

    if (path->is_failed) { /* its queue pairs are of no more use; without them nothing moves */
        if (!path->failure_told)
            return false;
        for (unsigned i = 0; i < path->pair_count; i++)
            bt_verbs_conn_unmake(&path->conns[i]);
        bt_verbs_job_cancel_all(path);
        return true;
    }
    if (!bt_verbs_job_drain(path, tag))
        return false;
    bt_verbs_drain_t *asked = request_peer(path, tag);
    if (asked == NULL || !asked->is_answered)
        return false;
    bt_list_remove(&asked->link);
    free(asked);
    return true;
}

/* ---- progress ---- */
static int work(bt_verbs_t *verbs, uint64_t now_ms)
{
    bt_list_t *it, *tmp;
    int count = 0;

    for (unsigned i = 0; i < verbs->rail_count; i++)
        count += bt_verbs_inbox_poll(&verbs->rails[i]);
    bt_list_each (&verbs->active, it, tmp)
        count += bt_verbs_conn_poll(bt_container_of(it, bt_verbs_conn_t, active_link));
    bt_list_each (&verbs->paths, it, tmp)
        count += bt_verbs_path_progress(bt_container_of(it, bt_verbs_path_t, link), now_ms);
    return count;
}

static void check_rails(bt_verbs_t *verbs, uint64_t now_ms)
{
    for (unsigned i = 0; i < verbs->rail_count; i++) {
        if (verbs->is_armed)
            bt_verbs_rail_wakes(&verbs->rails[i]);
        if (bt_verbs_rail_events(&verbs->rails[i]) > 0 && !verbs->rails[i].is_up)
            bt_log_warn("kv", "%s: the port went down", verbs->rails[i].name);
    }
    verbs->looked_ms = now_ms;
}

static int progress(bt_kv_backend_t *backend)
{
    bt_verbs_t *verbs = bt_verbs_of(backend);
    uint64_t now_ms = bt_clock_ms();

    if (verbs->is_armed || now_ms - verbs->looked_ms >= LOOK_MS)
        check_rails(verbs, now_ms);
    verbs->is_armed = false;
    return work(verbs, now_ms);
}

/* First armed, then looked at once more: what comes between the two is seen by one of them. */
static bool arm(bt_kv_backend_t *backend)
{
    bt_verbs_t *verbs = bt_verbs_of(backend);
    bt_list_t *it, *tmp;

    verbs->is_armed = true;
    for (unsigned i = 0; i < verbs->rail_count; i++)
        ibv_req_notify_cq(verbs->rails[i].recv_cq, 0);
    bt_list_each (&verbs->active, it, tmp)
        ibv_req_notify_cq(bt_container_of(it, bt_verbs_conn_t, active_link)->cq, 0);
    return work(verbs, bt_clock_ms()) > 0;
}

static int describe(const bt_kv_path_t *base, char *text, size_t size)
{
    const bt_verbs_path_t *path =
        bt_container_of((bt_kv_path_t *) (uintptr_t) base, bt_verbs_path_t, base);
    int n = snprintf(text, size, "RDMA writes, completion by %s",
                     modes[__builtin_ctz((unsigned) path->mode)].name);

    for (unsigned i = 0; i < path->pair_count && n >= 0; i++) {
        const bt_verbs_conn_t *conn = &path->conns[i];
        size_t used = (size_t) n < size ? (size_t) n : size;
        bool is_live = conn->state == BT_VERBS_LIVE;
        n += snprintf(text + used, size - used, "; %s mtu %d%s%s", conn->rail->name,
                      128 << conn->mtu, is_live ? "" : " paused: ", is_live ? "" : conn->why);
    }
    return n;
}

static const bt_kv_backend_ops_t ops = {
    .kind = BT_KV_VERBS,
    .name = "verbs",
    .rank = 30,
    .open = open_verbs,
    .close = close_verbs,
    .region_add = bt_verbs_mem_add,
    .region_remove = bt_verbs_mem_remove,
    .offer = offer,
    .path_open = path_open,
    .received = bt_verbs_path_received,
    .path_close = path_close,
    .peer_region = bt_verbs_mem_peer,
    .region_key = bt_verbs_mem_key,
    .post = bt_verbs_job_put,
    .drain = drain,
    .progress = progress,
    .arm = arm,
    .describe = describe,
    .close_revokes = true,
};

const bt_kv_backend_ops_t *bt_kv_verbs_ops(void)
{
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);

    if (list == NULL)
        return NULL;
    ibv_free_device_list(list);
    return count > 0 ? &ops : NULL;
}
