/* verbs_api.h - the seam: every call of libibverbs that the verbs back end makes, as a table of pointers.
 *
 * Owner: static tables. The real one is bt_verbs_api_real; specs put a provider of their own in its place.
 * Life:  bt_verbs_api_use before the first agent is opened; an agent keeps the table it was opened with.
 * Flow:  the signatures are libibverbs' own, macros and inline functions made into functions.
 * Cost:  an indirect call.
 */
#ifndef BT_TRANSPORT_VERBS_API_H
#define BT_TRANSPORT_VERBS_API_H

#include <infiniband/verbs.h>
#include <stdbool.h>

typedef struct bt_verbs_api {
    struct ibv_device **(*get_device_list)(int *count_p);
    void (*free_device_list)(struct ibv_device **list);
    const char *(*get_device_name)(struct ibv_device *device);
    struct ibv_context *(*open_device)(struct ibv_device *device);
    int (*close_device)(struct ibv_context *context);
    int (*query_device)(struct ibv_context *context, struct ibv_device_attr *attr);
    int (*query_port)(struct ibv_context *context, uint8_t port, struct ibv_port_attr *attr);
    ssize_t (*query_gid_table)(struct ibv_context *context, struct ibv_gid_entry *entries,
                               size_t max);
    /* Not verbs: is this network interface the inside of an overlay or tunnel? */
    bool (*is_overlay)(uint32_t ifindex);
    int (*get_async_event)(struct ibv_context *context, struct ibv_async_event *event);
    void (*ack_async_event)(struct ibv_async_event *event);

    struct ibv_pd *(*alloc_pd)(struct ibv_context *context);
    int (*dealloc_pd)(struct ibv_pd *pd);
    struct ibv_mr *(*reg_mr)(struct ibv_pd *pd, void *p, size_t size, unsigned access);
    struct ibv_mr *(*reg_dmabuf_mr)(struct ibv_pd *pd, uint64_t offset, size_t size, uint64_t iova,
                                    int fd, int access);
    int (*dereg_mr)(struct ibv_mr *mr);

    struct ibv_comp_channel *(*create_comp_channel)(struct ibv_context *context);
    int (*destroy_comp_channel)(struct ibv_comp_channel *channel);
    int (*get_cq_event)(struct ibv_comp_channel *channel, struct ibv_cq **cq_p, void **context_p);
    void (*ack_cq_events)(struct ibv_cq *cq, unsigned count);
    struct ibv_cq *(*create_cq)(struct ibv_context *context, int cqe, void *cq_context,
                                struct ibv_comp_channel *channel, int vector);
    int (*destroy_cq)(struct ibv_cq *cq);
    int (*req_notify_cq)(struct ibv_cq *cq, int solicited_only);
    int (*poll_cq)(struct ibv_cq *cq, int max, struct ibv_wc *wc);

    struct ibv_srq *(*create_srq)(struct ibv_pd *pd, struct ibv_srq_init_attr *init);
    int (*destroy_srq)(struct ibv_srq *srq);
    int (*post_srq_recv)(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_p);

    struct ibv_qp *(*create_qp)(struct ibv_pd *pd, struct ibv_qp_init_attr *init);
    int (*modify_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
    int (*destroy_qp)(struct ibv_qp *qp);
    int (*post_send)(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_p);
    const char *(*wc_status_str)(enum ibv_wc_status status);
} bt_verbs_api_t;

extern const bt_verbs_api_t bt_verbs_api_real;

const bt_verbs_api_t *bt_verbs_api(void);
void bt_verbs_api_use(const bt_verbs_api_t *api); /* NULL = the real one again */

#endif
