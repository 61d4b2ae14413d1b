/* A shared receive queue keeps the cost of a peer small: notices are rare (one or two a batch) and short, and the sender's hardware waits
 * (rnr_retry 7 = for ever, at the 0.64 ms of min_rnr_timer 12) when the slots are used up; a peer that never empties them is the heartbeat's case. */
#include "transport/backends/verbs/verbs_rail.h"

#include "base/err.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SGE_MAX 16
#define SEND_MAX 256
#define MESSAGE_MAX ((uint64_t) 1 << 30)

static bool is_null_gid(const union ibv_gid *gid)
{
    return gid->global.subnet_prefix == 0 && gid->global.interface_id == 0;
}

/* 0 = IPv4 in IPv6, 1 = global IPv6, 2 = link-local. */
static int address_rank(const union ibv_gid *gid)
{
    static const uint8_t mapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

    if (memcmp(gid->raw, mapped, sizeof(mapped)) == 0)
        return 0;
    return gid->raw[0] == 0xfe && (gid->raw[1] & 0xc0) == 0x80 ? 2 : 1;
}

/* A virtual Ethernet device says its kind in its uevent; tun and tap have a file of their own. */
static bool is_overlay(uint32_t ifindex)
{
    static const char *const kinds[] = {"vxlan", "geneve", "gretap", "ip6gretap", "erspan", NULL};
    char name[IF_NAMESIZE], path[96], line[64];
    bool found = false;

    if (if_indextoname(ifindex, name) == NULL)
        return false;
    snprintf(path, sizeof(path), "/sys/class/net/%s/uevent", name);
    FILE *in = fopen(path, "re");
    while (in != NULL && fgets(line, sizeof(line), in) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        for (const char *const *kind = kinds; *kind != NULL; kind++)
            found = found || (strncmp(line, "DEVTYPE=", 8) == 0 && strcmp(line + 8, *kind) == 0);
    }
    if (in != NULL)
        fclose(in);
    snprintf(path, sizeof(path), "/sys/class/net/%s/tun_flags", name);
    return found || access(path, F_OK) == 0;
}

/* The lower, the better; negative: not to be used. */
static int gid_rank(const struct ibv_gid_entry *entry, bool is_ethernet,
                    bt_verbs_overlay_cb is_overlay_if)
{
    if (is_null_gid(&entry->gid))
        return -1;
    if (!is_ethernet)
        return entry->gid_type == IBV_GID_TYPE_IB ? (int) entry->gid_index : -1;
    if (entry->ndev_ifindex == 0 || is_overlay_if(entry->ndev_ifindex))
        return -1;
    if (entry->gid_type == IBV_GID_TYPE_ROCE_V2)
        return address_rank(&entry->gid);
    return entry->gid_type == IBV_GID_TYPE_ROCE_V1 ? 3 + address_rank(&entry->gid) : -1;
}

int bt_verbs_choose_gid(const struct ibv_gid_entry *entries, size_t count, uint8_t port,
                        bool is_ethernet, int forced, bt_verbs_overlay_cb is_overlay_if)
{
    int best = -1, best_rank = 0;

    for (size_t i = 0; i < count; i++) {
        if (entries[i].port_num != port)
            continue;
        if (forced > 0) {
            if (entries[i].gid_index == (uint32_t) forced && !is_null_gid(&entries[i].gid))
                return (int) i;
            continue;
        }
        int rank = gid_rank(&entries[i], is_ethernet, is_overlay_if);
        if (rank >= 0 && (best < 0 || rank < best_rank)) {
            best = (int) i;
            best_rank = rank;
        }
    }
    return best;
}

static int read_port(bt_verbs_rail_t *rail, int gid_index, char *err, size_t err_size)
{
    struct ibv_gid_entry gids[BT_VERBS_GIDS_MAX];
    struct ibv_device_attr device;
    struct ibv_port_attr port;

    if (ibv_query_device(rail->context, &device) != 0 ||
        ibv_query_port(rail->context, rail->port, &port) != 0) {
        snprintf(err, err_size, "%s: cannot be queried", rail->name);
        return BT_E_INVAL;
    }
    if (port.state != IBV_PORT_ACTIVE) {
        snprintf(err, err_size, "%s: port %u is not active", rail->name, rail->port);
        return BT_E_INVAL;
    }
    rail->is_ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET;
    ssize_t count = ibv_query_gid_table(rail->context, gids, BT_VERBS_GIDS_MAX, 0);
    int chosen = bt_verbs_choose_gid(gids, count > 0 ? (size_t) count : 0, rail->port,
                                     rail->is_ethernet, gid_index, is_overlay);
    if (chosen < 0) {
        snprintf(err, err_size, "%s: port %u has no usable address (GID)%s", rail->name, rail->port,
                 gid_index > 0 ? " at the index that is asked for (gid_index)" : "");
        return BT_E_INVAL;
    }
    rail->gid = gids[chosen].gid;
    rail->gid_index = (uint8_t) gids[chosen].gid_index;
    rail->lid = port.lid;
    rail->mtu = port.active_mtu;
    rail->message_max = port.max_msg_sz < MESSAGE_MAX ? port.max_msg_sz : MESSAGE_MAX;
    rail->sge_max = device.max_sge < SGE_MAX ? (unsigned) device.max_sge : SGE_MAX;
    rail->send_max = device.max_qp_wr < SEND_MAX ? (unsigned) device.max_qp_wr : SEND_MAX;
    rail->reads_max = (uint8_t) (device.max_qp_rd_atom < 16 ? device.max_qp_rd_atom : 16);
    return 0;
}

static int set_nonblocking(int fd)
{
    int flags = fcntl(fd, F_GETFL);

    return flags < 0 ? -1 : fcntl(fd, F_SETFL, flags | O_NONBLOCK);
}

static int make_queues(bt_verbs_rail_t *rail)
{
    struct ibv_srq_init_attr init = {.attr = {.max_wr = BT_VERBS_NOTICES, .max_sge = 1}};
    size_t bytes = (size_t) BT_VERBS_NOTICES * BT_VERBS_SLOT_BYTES;

    rail->pd = ibv_alloc_pd(rail->context);
    if (rail->pd == NULL)
        return BT_E_NOMEM;
    rail->channel = ibv_create_comp_channel(rail->context);
    if (rail->channel == NULL || set_nonblocking(rail->channel->fd) != 0 ||
        set_nonblocking(rail->context->async_fd) != 0)
        return BT_E_NOMEM;
    rail->recv_cq = ibv_create_cq(rail->context, BT_VERBS_NOTICES, rail, rail->channel, 0);
    if (rail->recv_cq == NULL)
        return BT_E_NOMEM;
    rail->srq = ibv_create_srq(rail->pd, &init);
    if (rail->srq == NULL || posix_memalign((void **) &rail->slots, 4096, bytes) != 0)
        return BT_E_NOMEM;
    memset(rail->slots, 0, bytes);
    rail->slots_mr = ibv_reg_mr(rail->pd, rail->slots, bytes, IBV_ACCESS_LOCAL_WRITE);
    if (rail->slots_mr == NULL)
        return BT_E_NOMEM;
    for (uint64_t slot = 0; slot < BT_VERBS_NOTICES; slot++)
        if (bt_verbs_rail_refill(rail, &slot, 1) != 0)
            return BT_E_NOMEM;
    return 0;
}

int bt_verbs_rail_open(bt_verbs_rail_t *rail, struct ibv_device *device, uint8_t port,
                       int gid_index, char *err, size_t err_size)
{
    memset(rail, 0, sizeof(*rail));
    rail->port = port;
    rail->is_up = true;
    snprintf(rail->name, sizeof(rail->name), "%s", ibv_get_device_name(device));
    for (unsigned i = 0; i < BT_VERBS_QPN_BUCKETS; i++)
        bt_list_init(&rail->by_qpn[i]);
    rail->context = ibv_open_device(device);
    if (rail->context == NULL) {
        snprintf(err, err_size, "%s: cannot be opened: %s (may this user use /dev/infiniband?)",
                 rail->name, strerror(errno));
        return BT_E_INVAL;
    }
    int rc = read_port(rail, gid_index, err, err_size);
    if (rc == 0 && (rc = make_queues(rail)) != 0)
        snprintf(err, err_size, "%s: no memory for its queues: %s (raise ulimit -l)", rail->name,
                 strerror(errno));
    if (rc != 0)
        bt_verbs_rail_close(rail);
    return rc;
}

void bt_verbs_rail_close(bt_verbs_rail_t *rail)
{
    if (rail->srq != NULL)
        ibv_destroy_srq(rail->srq);
    if (rail->slots_mr != NULL)
        ibv_dereg_mr(rail->slots_mr);
    free(rail->slots);
    if (rail->recv_cq != NULL)
        ibv_destroy_cq(rail->recv_cq);
    if (rail->channel != NULL)
        ibv_destroy_comp_channel(rail->channel);
    if (rail->pd != NULL)
        ibv_dealloc_pd(rail->pd);
    if (rail->context != NULL)
        ibv_close_device(rail->context);
    memset(rail, 0, sizeof(*rail));
}

int bt_verbs_rail_refill(bt_verbs_rail_t *rail, const uint64_t *slots, unsigned count)
{
    struct ibv_recv_wr wr[16], *bad;
    struct ibv_sge sge[16];

    BT_ASSERT(count <= 16);
    if (count == 0)
        return 0;
    for (unsigned i = 0; i < count; i++) {
        sge[i] = (struct ibv_sge){.addr = (uintptr_t) rail->slots + slots[i] * BT_VERBS_SLOT_BYTES,
                                  .length = BT_VERBS_SLOT_BYTES,
                                  .lkey = rail->slots_mr->lkey};
        wr[i] = (struct ibv_recv_wr){.wr_id = slots[i],
                                     .next = i + 1 < count ? &wr[i + 1] : NULL,
                                     .sg_list = &sge[i],
                                     .num_sge = 1};
    }
    return ibv_post_srq_recv(rail->srq, wr, &bad) == 0 ? 0 : BT_E_NOMEM;
}

static void take_event(bt_verbs_rail_t *rail, const struct ibv_async_event *event)
{
    switch (event->event_type) {
    case IBV_EVENT_DEVICE_FATAL:
        rail->is_dead = true;
        break;
    case IBV_EVENT_PORT_ERR:
        if (event->element.port_num == rail->port)
            rail->is_up = false;
        break;
    case IBV_EVENT_PORT_ACTIVE:
        if (event->element.port_num == rail->port)
            rail->is_up = true;
        break;
    default:
        break;
    }
}

int bt_verbs_rail_events(bt_verbs_rail_t *rail)
{
    struct ibv_async_event event;
    int count = 0;

    while (ibv_get_async_event(rail->context, &event) == 0) {
        take_event(rail, &event);
        ibv_ack_async_event(&event);
        count++;
    }
    return count;
}

void bt_verbs_rail_wakes(bt_verbs_rail_t *rail)
{
    struct ibv_cq *cq;
    void *context;

    while (ibv_get_cq_event(rail->channel, &cq, &context) == 0)
        ibv_ack_cq_events(cq, 1);
}
