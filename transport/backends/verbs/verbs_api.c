/* The real table. Most lines only give a macro or an inline function an address. */
#include "transport/backends/verbs/verbs_api.h"

#include <net/if.h>
#include <stdio.h>
#include <string.h>

static int query_port(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr)
{
    memset(attr, 0, sizeof(*attr));
    return ibv_query_port(context, port, attr);
}

static ssize_t query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries,
                               size_t max)
{
    return ibv_query_gid_table(context, entries, max, 0);
}

static struct ibv_mr *reg_mr(struct ibv_pd *pd, void *p, size_t size, unsigned access)
{
    return ibv_reg_mr(pd, p, size, access);
}

static int req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
    return ibv_req_notify_cq(cq, solicited_only);
}

static int poll_cq(struct ibv_cq *cq, int max, struct ibv_wc *wc)
{
    return ibv_poll_cq(cq, max, wc);
}

static int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_p)
{
    return ibv_post_srq_recv(srq, wr, bad_p);
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_p)
{
    return ibv_post_send(qp, wr, bad_p);
}

/* The kernel names the kind of virtual Ethernet devices in their uevent; point-to-point tunnels have a hardware type of their own. */
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
    in = fopen(path, "re");
    if (in == NULL)
        return found;
    fclose(in);
    return true;
}

const bt_verbs_api_t bt_verbs_api_real = {
    .get_device_list = ibv_get_device_list,
    .free_device_list = ibv_free_device_list,
    .get_device_name = ibv_get_device_name,
    .open_device = ibv_open_device,
    .close_device = ibv_close_device,
    .query_device = ibv_query_device,
    .query_port = query_port,
    .query_gid_table = query_gid_table,
    .is_overlay = is_overlay,
    .get_async_event = ibv_get_async_event,
    .ack_async_event = ibv_ack_async_event,
    .alloc_pd = ibv_alloc_pd,
    .dealloc_pd = ibv_dealloc_pd,
    .reg_mr = reg_mr,
    .reg_dmabuf_mr = ibv_reg_dmabuf_mr,
    .dereg_mr = ibv_dereg_mr,
    .create_comp_channel = ibv_create_comp_channel,
    .destroy_comp_channel = ibv_destroy_comp_channel,
    .get_cq_event = ibv_get_cq_event,
    .ack_cq_events = ibv_ack_cq_events,
    .create_cq = ibv_create_cq,
    .destroy_cq = ibv_destroy_cq,
    .req_notify_cq = req_notify_cq,
    .poll_cq = poll_cq,
    .create_srq = ibv_create_srq,
    .destroy_srq = ibv_destroy_srq,
    .post_srq_recv = post_srq_recv,
    .create_qp = ibv_create_qp,
    .modify_qp = ibv_modify_qp,
    .destroy_qp = ibv_destroy_qp,
    .post_send = post_send,
    .wc_status_str = ibv_wc_status_str,
};

static const bt_verbs_api_t *api_now = &bt_verbs_api_real;

const bt_verbs_api_t *bt_verbs_api(void)
{
    return api_now;
}

void bt_verbs_api_use(const bt_verbs_api_t *api)
{
    api_now = api != NULL ? api : &bt_verbs_api_real;
}
