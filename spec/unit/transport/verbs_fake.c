/* Everything lives in small tables; numbers of queue pairs and keys are never used twice, so a stale one is always seen.
 *
 * A message that finds no receive slot waits at the head of its queue, as rnr_retry 7 asks, until one is posted. A failing one completes with
 * its status, moves the queue pair to the error state and flushes what stands behind it.
 */
#include "transport/verbs_fake.h"
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr

#define QUEUE 2048
#define OBJECTS 4096
#define SGES 32

struct fake_wr {
    struct ibv_send_wr wr;
    struct ibv_sge sge[SGES];
    char inlined[256];
    uint64_t index;
};

struct fake_cq {
    struct ibv_cq cq;
    struct ibv_wc wc[QUEUE];
    uint64_t index[QUEUE]; /* of the message: its slot is free when this is polled */
    struct fake_qp *qp[QUEUE];
    unsigned head, count;
    bool is_armed;
};

struct fake_srq {
    struct ibv_srq srq;
    struct ibv_recv_wr wr[QUEUE];
    struct ibv_sge sge[QUEUE];
    unsigned head, count, max;
};

struct fake_qp {
    struct ibv_qp qp;
    struct ibv_qp_init_attr init;
    unsigned device;
    enum ibv_qp_state state;
    uint32_t peer;
    uint8_t rnr_retry;
    struct fake_wr *queue; /* max_send_wr of them */
    uint64_t posted, done, freed;
};

struct fake_mr {
    struct ibv_mr mr;
    uint64_t base;
    int access;
    unsigned device;
};

struct fake_channel {
    struct ibv_comp_channel channel;
    int write_fd;
};

struct fake_context {
    struct ibv_context context;
    int write_fd;
    unsigned device;
};

static struct ibv_device devices[VERBS_FAKE_DEVICES];
static verbs_fake_options_t options[VERBS_FAKE_DEVICES];
static struct fake_context *contexts[VERBS_FAKE_DEVICES][8];
static struct fake_qp *qps[OBJECTS];
static struct fake_mr *mrs[OBJECTS];
static unsigned device_count, objects;
static uint32_t next_number;

static unsigned device_of(const struct ibv_context *context)
{
    return ((const struct fake_context *) (const void *) context)->device;
}

static void put(void **table, void *object)
{
    for (unsigned i = 0; i < OBJECTS; i++)
        if (table[i] == NULL) {
            table[i] = object;
            return;
        }
    fail_msg("too many fake verbs objects");
}

static void drop(void **table, const void *object)
{
    for (unsigned i = 0; i < OBJECTS; i++)
        if (table[i] == object)
            table[i] = NULL;
}

static void *make(size_t size)
{
    objects++;
    return calloc(1, size);
}

static int destroy(void *object)
{
    objects--;
    free(object);
    return 0;
}

/* ---- devices ---- */
struct ibv_device **ibv_get_device_list(int *count_p)
{
    struct ibv_device **list = make((VERBS_FAKE_DEVICES + 1) * sizeof(*list));

    for (unsigned i = 0; i < device_count; i++)
        list[i] = &devices[i];
    *count_p = (int) device_count;
    return list;
}

void ibv_free_device_list(struct ibv_device **list)
{
    destroy(list);
}

const char *ibv_get_device_name(struct ibv_device *device)
{
    return device->name;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited_only);
static int poll_cq(struct ibv_cq *base, int max, struct ibv_wc *wc);
static int post_srq_recv(struct ibv_srq *base, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_p);
static int post_send(struct ibv_qp *base, struct ibv_send_wr *wr, struct ibv_send_wr **bad_p);

struct ibv_context *ibv_open_device(struct ibv_device *device)
{
    struct fake_context *context = make(sizeof(*context));
    unsigned i = 0;
    int fds[2];

    assert_int_equal(pipe2(fds, O_NONBLOCK), 0);
    context->device = (unsigned) (device - devices);
    context->context.async_fd = fds[0];
    context->context.ops = (struct ibv_context_ops){.req_notify_cq = req_notify_cq,
                                                    .poll_cq = poll_cq,
                                                    .post_srq_recv = post_srq_recv,
                                                    .post_send = post_send};
    context->write_fd = fds[1];
    while (contexts[context->device][i] != NULL)
        assert_true(++i < 8);
    contexts[context->device][i] = context;
    return &context->context;
}

int ibv_close_device(struct ibv_context *base)
{
    struct fake_context *context = (struct fake_context *) (void *) base;

    for (unsigned i = 0; i < 8; i++)
        if (contexts[context->device][i] == context)
            contexts[context->device][i] = NULL;
    close(base->async_fd);
    close(context->write_fd);
    return destroy(context);
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
    memset(attr, 0, sizeof(*attr));
    attr->max_qp_wr = options[device_of(context)].send_max;
    attr->max_sge = options[device_of(context)].sge_max;
    attr->max_qp_rd_atom = 16;
    return 0;
}

int ibv_query_port(struct ibv_context *context, uint8_t port, struct _compat_ibv_port_attr *attr_p)
{
    struct ibv_port_attr *attr = (struct ibv_port_attr *) (void *) attr_p;
    const verbs_fake_options_t *k = &options[device_of(context)];

    if (port != 1)
        return EINVAL;
    attr->state = k->is_down ? IBV_PORT_DOWN : IBV_PORT_ACTIVE;
    attr->link_layer = k->link_layer;
    attr->active_mtu = k->mtu;
    attr->max_msg_sz = k->message_max;
    return 0;
}

ssize_t _ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t max,
                             uint32_t flags, size_t entry_size)
{
    const verbs_fake_options_t *k = &options[device_of(context)];

    (void) flags;
    assert_int_equal(entry_size, sizeof(*entries));
    for (unsigned i = 0; i < k->gid_count && i < max; i++)
        entries[i] = k->gids[i];
    return k->gid_count;
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
    return read(context->async_fd, event, sizeof(*event)) == sizeof(*event) ? 0 : -1;
}

void ibv_ack_async_event(struct ibv_async_event *event)
{
    (void) event;
}

/* ---- memory ---- */
struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
    struct ibv_pd *pd = make(sizeof(*pd));

    pd->context = context;
    return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
    return destroy(pd);
}

static struct ibv_mr *add_mr(struct ibv_pd *pd, void *p, size_t size, uint64_t base, int access)
{
    struct fake_mr *mr = make(sizeof(*mr));

    mr->mr = (struct ibv_mr){.context = pd->context, .pd = pd, .addr = p, .length = size};
    mr->mr.lkey = ++next_number;
    mr->mr.rkey = ++next_number;
    mr->base = base;
    mr->access = access;
    mr->device = device_of(pd->context);
    options[mr->device].relaxed += (access & IBV_ACCESS_RELAXED_ORDERING) != 0;
    put((void **) mrs, mr);
    return &mr->mr;
}

struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *p, size_t size, int access)
{
    return add_mr(pd, p, size, (uintptr_t) p, access);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *p, size_t size, uint64_t base,
                                unsigned access)
{
    return add_mr(pd, p, size, base, (int) access);
}

struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t offset, size_t size, uint64_t iova,
                                 int fd, int access)
{
    (void) offset;
    if (fd < 0 || !options[device_of(pd->context)].has_dmabuf) {
        errno = options[device_of(pd->context)].has_dmabuf ? EBADF : EOPNOTSUPP;
        return NULL;
    }
    return add_mr(pd, NULL, size, iova, access);
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
    drop((void **) mrs, mr);
    return destroy(mr);
}

/* The bytes at this address if this key covers them. */
static char *reach(struct ibv_pd *pd, unsigned device, bool is_remote, uint32_t key, uint64_t at,
                   uint64_t size)
{
    for (unsigned i = 0; i < OBJECTS; i++) {
        const struct fake_mr *mr = mrs[i];
        if (mr == NULL || mr->device != device || mr->mr.pd != pd ||
            (is_remote ? mr->mr.rkey : mr->mr.lkey) != key)
            continue;
        if (is_remote && (mr->access & IBV_ACCESS_REMOTE_WRITE) == 0)
            return NULL;
        if (at < mr->base || size > mr->mr.length || at - mr->base > mr->mr.length - size)
            return NULL;
        return (char *) mr->mr.addr + (at - mr->base);
    }
    return NULL;
}

/* ---- completions ---- */
struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
    struct fake_channel *channel = make(sizeof(*channel));
    int fds[2];

    assert_int_equal(pipe2(fds, O_NONBLOCK), 0);
    channel->channel.context = context;
    channel->channel.fd = fds[0];
    channel->write_fd = fds[1];
    return &channel->channel;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
    close(channel->fd);
    close(((struct fake_channel *) (void *) channel)->write_fd);
    return destroy(channel);
}

int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq_p, void **context_p)
{
    if (read(channel->fd, cq_p, sizeof(struct ibv_cq *)) != sizeof(struct ibv_cq *))
        return -1;
    *context_p = NULL; /* the queue itself may be gone already */
    return 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned count)
{
    (void) cq;
    (void) count;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
                             struct ibv_comp_channel *channel, int vector)
{
    struct fake_cq *cq = make(sizeof(*cq));

    (void) vector;
    assert_in_range(cqe, 1, QUEUE);
    cq->cq.context = context;
    cq->cq.cqe = cqe;
    cq->cq.cq_context = cq_context;
    cq->cq.channel = channel;
    return &cq->cq;
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
    return destroy(cq);
}

static int req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
    (void) solicited_only;
    ((struct fake_cq *) (void *) cq)->is_armed = true;
    return 0;
}

static int poll_cq(struct ibv_cq *base, int max, struct ibv_wc *wc)
{
    struct fake_cq *cq = (struct fake_cq *) (void *) base;
    int count = 0;

    for (; count < max && cq->count > 0; count++) {
        wc[count] = cq->wc[cq->head];
        if (cq->qp[cq->head] != NULL)
            cq->qp[cq->head]->freed = cq->index[cq->head] + 1;
        cq->head = (cq->head + 1) % QUEUE;
        cq->count--;
    }
    return count;
}

static void complete(struct ibv_cq *base, struct ibv_wc wc, struct fake_qp *qp, uint64_t index)
{
    struct fake_cq *cq = (struct fake_cq *) (void *) base;
    unsigned at = (cq->head + cq->count) % QUEUE;

    if (cq->count == (unsigned) base->cqe)
        fail_msg("a completion queue of %d overflows", base->cqe);
    cq->wc[at] = wc;
    cq->qp[at] = qp;
    cq->index[at] = index;
    cq->count++;
    if (!cq->is_armed)
        return;
    cq->is_armed = false;
    assert_int_equal(
        write(((struct fake_channel *) (void *) base->channel)->write_fd, &base, sizeof(base)),
        sizeof(base));
}

/* ---- receive queues ---- */
static void run_all(void);

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *init)
{
    struct fake_srq *srq = make(sizeof(*srq));

    assert_in_range(init->attr.max_wr, 1, QUEUE);
    srq->srq.pd = pd;
    srq->srq.context = pd->context;
    srq->max = init->attr.max_wr;
    return &srq->srq;
}

int ibv_destroy_srq(struct ibv_srq *srq)
{
    return destroy(srq);
}

static int post_srq_recv(struct ibv_srq *base, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_p)
{
    struct fake_srq *srq = (struct fake_srq *) (void *) base;

    for (; wr != NULL; wr = wr->next) {
        if (srq->count == srq->max) {
            *bad_p = wr;
            return ENOMEM;
        }
        unsigned at = (srq->head + srq->count++) % QUEUE;
        srq->wr[at] = *wr;
        srq->sge[at] = wr->sg_list[0];
    }
    run_all();
    return 0;
}

/* ---- queue pairs ---- */
static struct fake_qp *find_qp(uint32_t number)
{
    for (unsigned i = 0; i < OBJECTS; i++)
        if (qps[i] != NULL && qps[i]->qp.qp_num == number)
            return qps[i];
    return NULL;
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
    unsigned device = device_of(pd->context);

    if (options[device].no_qp || init->cap.max_inline_data > options[device].inline_max ||
        init->cap.max_send_wr > (unsigned) options[device].send_max) {
        errno = EINVAL;
        return NULL;
    }
    struct fake_qp *qp = make(sizeof(*qp));
    qp->qp.pd = pd;
    qp->qp.context = pd->context;
    qp->qp.qp_num = ++next_number;
    qp->init = *init;
    qp->device = device;
    qp->state = IBV_QPS_RESET;
    qp->queue = calloc(init->cap.max_send_wr, sizeof(struct fake_wr));
    put((void **) qps, qp);
    return &qp->qp;
}

static struct fake_wr *slot(struct fake_qp *qp, uint64_t index)
{
    return &qp->queue[index % qp->init.cap.max_send_wr];
}

static void finish(struct fake_qp *qp, enum ibv_wc_status status)
{
    const struct fake_wr *wr = slot(qp, qp->done);
    struct ibv_wc wc = {.wr_id = wr->wr.wr_id, .status = status, .qp_num = qp->qp.qp_num};

    qp->done++;
    if (status != IBV_WC_SUCCESS || (wr->wr.send_flags & IBV_SEND_SIGNALED) != 0)
        complete(qp->init.send_cq, wc, qp, wr->index);
}

static void to_error(struct fake_qp *qp)
{
    qp->state = IBV_QPS_ERR;
    while (qp->done < qp->posted)
        finish(qp, IBV_WC_WR_FLUSH_ERR);
}

int ibv_modify_qp(struct ibv_qp *base, struct ibv_qp_attr *attr, int mask)
{
    struct fake_qp *qp = (struct fake_qp *) (void *) base;
    enum ibv_qp_state to = attr->qp_state;

    assert_true((mask & IBV_QP_STATE) != 0);
    if (to == IBV_QPS_ERR) {
        to_error(qp);
        return 0;
    }
    if ((to == IBV_QPS_INIT && qp->state != IBV_QPS_RESET) ||
        (to == IBV_QPS_RTR && qp->state != IBV_QPS_INIT) ||
        (to == IBV_QPS_RTS && qp->state != IBV_QPS_RTR))
        return EINVAL;
    if (to == IBV_QPS_RTR) {
        if ((mask & IBV_QP_AV) == 0 || attr->ah_attr.grh.dgid.raw[15] == 0xee)
            return ENETUNREACH; /* an address that the specs call unreachable */
        qp->peer = attr->dest_qp_num;
    }
    if (to == IBV_QPS_RTS)
        qp->rnr_retry = attr->rnr_retry;
    qp->state = to;
    return 0;
}

int ibv_destroy_qp(struct ibv_qp *base)
{
    struct fake_qp *qp = (struct fake_qp *) (void *) base;
    struct fake_cq *cq = (struct fake_cq *) (void *) qp->init.send_cq;

    for (unsigned i = 0; i < QUEUE; i++)
        if (cq->qp[i] == qp)
            cq->qp[i] = NULL;
    drop((void **) qps, qp);
    free(qp->queue);
    return destroy(qp);
}

/* Copies what the message gathers to `to`; false: a local key does not cover it. */
static bool gather(struct fake_qp *qp, const struct fake_wr *wr, char *to)
{
    if ((wr->wr.send_flags & IBV_SEND_INLINE) != 0) {
        memcpy(to, wr->inlined, wr->sge[0].length);
        return true;
    }
    for (int i = 0; i < wr->wr.num_sge; i++) {
        const char *from = reach(qp->qp.pd, qp->device, false, wr->sge[i].lkey, wr->sge[i].addr,
                                 wr->sge[i].length);
        if (from == NULL)
            return false;
        memcpy(to, from, wr->sge[i].length);
        to += wr->sge[i].length;
    }
    return true;
}

static enum ibv_wc_status take_slot(struct fake_qp *peer, const struct fake_wr *wr, uint64_t bytes,
                                    const char *data)
{
    struct fake_srq *srq = (struct fake_srq *) (void *) peer->init.srq;
    const struct ibv_recv_wr *recv = &srq->wr[srq->head];
    const struct ibv_sge *sge = &srq->sge[srq->head];
    bool is_notice = wr->wr.opcode == IBV_WR_SEND;
    struct ibv_wc wc = {.wr_id = recv->wr_id,
                        .qp_num = peer->qp.qp_num,
                        .byte_len = (uint32_t) bytes,
                        .opcode = is_notice ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM,
                        .wc_flags = is_notice ? 0 : IBV_WC_WITH_IMM,
                        .imm_data = wr->wr.imm_data};

    if (is_notice) {
        char *to = reach(peer->qp.pd, peer->device, false, sge->lkey, sge->addr, sge->length);
        if (to == NULL || bytes > sge->length)
            return IBV_WC_REM_INV_REQ_ERR;
        memcpy(to, data, bytes);
    }
    srq->head = (srq->head + 1) % QUEUE;
    srq->count--;
    complete(peer->init.recv_cq, wc, NULL, 0);
    return IBV_WC_SUCCESS;
}

static enum ibv_wc_status carry_out(struct fake_qp *qp, struct fake_qp *peer,
                                    const struct fake_wr *wr)
{
    uint64_t bytes = 0;

    for (int i = 0; i < wr->wr.num_sge; i++)
        bytes += wr->sge[i].length;
    if (bytes > options[qp->device].message_max)
        return IBV_WC_LOC_LEN_ERR;
    char *data = malloc(bytes + 1);
    enum ibv_wc_status status = gather(qp, wr, data) ? IBV_WC_SUCCESS : IBV_WC_LOC_PROT_ERR;
    if (status == IBV_WC_SUCCESS && wr->wr.opcode != IBV_WR_SEND && bytes > 0) {
        char *to = reach(peer->qp.pd, peer->device, true, wr->wr.wr.rdma.rkey,
                         wr->wr.wr.rdma.remote_addr, bytes);
        if (to == NULL)
            status = IBV_WC_REM_ACCESS_ERR;
        else
            memcpy(to, data, bytes);
    }
    if (status == IBV_WC_SUCCESS && wr->wr.opcode != IBV_WR_RDMA_WRITE)
        status = take_slot(peer, wr, bytes, data);
    options[qp->device].bytes += bytes;
    free(data);
    return status;
}

/* True: the message at the head is over, one way or the other. */
static bool run_one(struct fake_qp *qp)
{
    const struct fake_wr *wr = slot(qp, qp->done);
    verbs_fake_options_t *k = &options[qp->device];
    struct fake_qp *peer = find_qp(qp->peer);
    enum ibv_wc_status status = IBV_WC_RETRY_EXC_ERR;

    if (k->fail_after > 0 && --k->fail_after == 0) {
        if (k->fail_delivers)
            carry_out(qp, peer, wr);
        status = k->fail_status;
    } else if (peer != NULL && (peer->state == IBV_QPS_RTS || peer->state == IBV_QPS_RTR) &&
               peer->peer == qp->qp.qp_num) {
        struct fake_srq *srq = (struct fake_srq *) (void *) peer->init.srq;
        if (wr->wr.opcode != IBV_WR_RDMA_WRITE &&
            (srq->count == 0 || options[peer->device].starves)) {
            assert_int_equal(qp->rnr_retry, 7);
            k->waits++;
            return false;
        }
        status = carry_out(qp, peer, wr);
        if (status == IBV_WC_REM_ACCESS_ERR || status == IBV_WC_REM_INV_REQ_ERR)
            to_error(peer);
    }
    finish(qp, status);
    if (status != IBV_WC_SUCCESS)
        to_error(qp);
    return true;
}

static void run_qp(struct fake_qp *qp)
{
    while (qp->state == IBV_QPS_RTS && qp->done < qp->posted && !options[qp->device].holds &&
           run_one(qp))
        ;
}

static void run_all(void)
{
    for (unsigned i = 0; i < OBJECTS; i++)
        if (qps[i] != NULL)
            run_qp(qps[i]);
}

static int take_wr(struct fake_qp *qp, const struct ibv_send_wr *wr)
{
    verbs_fake_options_t *k = &options[qp->device];

    if (qp->state == IBV_QPS_RESET || qp->state == IBV_QPS_INIT || qp->state == IBV_QPS_RTR ||
        wr->num_sge > (int) qp->init.cap.max_send_sge)
        return EINVAL;
    if (qp->posted - qp->freed >= qp->init.cap.max_send_wr)
        return ENOMEM;
    struct fake_wr *to = slot(qp, qp->posted);
    to->wr = *wr;
    to->index = qp->posted++;
    for (int i = 0; i < wr->num_sge; i++)
        to->sge[i] = wr->sg_list[i];
    if ((wr->send_flags & IBV_SEND_INLINE) != 0) {
        assert_true(wr->num_sge == 1 && wr->sg_list[0].length <= k->inline_max);
        memcpy(to->inlined, (const void *) (uintptr_t) wr->sg_list[0].addr, wr->sg_list[0].length);
    }
    k->messages++;
    k->signalled += (wr->send_flags & IBV_SEND_SIGNALED) != 0;
    k->notices += wr->opcode == IBV_WR_SEND;
    k->immediates += wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
    if ((unsigned) wr->num_sge > k->sges_most)
        k->sges_most = (unsigned) wr->num_sge;
    return 0;
}

static int post_send(struct ibv_qp *base, struct ibv_send_wr *wr, struct ibv_send_wr **bad_p)
{
    struct fake_qp *qp = (struct fake_qp *) (void *) base;

    options[qp->device].posts++;
    for (; wr != NULL; wr = wr->next) {
        int rc = take_wr(qp, wr);
        if (rc != 0) {
            *bad_p = wr;
            return rc;
        }
    }
    if (qp->state == IBV_QPS_ERR)
        to_error(qp);
    run_qp(qp);
    return 0;
}

/* ---- the spec's side ---- */
verbs_fake_options_t *verbs_fake_options(unsigned device)
{
    return &options[device];
}

void verbs_fake_open(unsigned count)
{
    assert_in_range(count, 0, VERBS_FAKE_DEVICES);
    device_count = count;
    objects = 0;
    memset(options, 0, sizeof(options));
    memset(qps, 0, sizeof(qps)); /* a spec that failed left its objects */
    memset(mrs, 0, sizeof(mrs));
    memset(contexts, 0, sizeof(contexts));
    for (unsigned i = 0; i < VERBS_FAKE_DEVICES; i++) {
        verbs_fake_options_t *k = &options[i];
        snprintf(devices[i].name, sizeof(devices[i].name), "fake%u", i);
        k->link_layer = IBV_LINK_LAYER_ETHERNET;
        k->mtu = IBV_MTU_4096;
        k->message_max = 8 << 20;
        k->sge_max = 8;
        k->send_max = 1024;
        k->inline_max = 128;
        k->gid_count = 1;
        k->gids[0] =
            (struct ibv_gid_entry){.port_num = 1,
                                   .gid_type = IBV_GID_TYPE_ROCE_V2,
                                   .ndev_ifindex = 1000000 + i /* no interface of this machine */};
        k->gids[0].gid.raw[10] = k->gids[0].gid.raw[11] = 0xff;
        k->gids[0].gid.raw[15] = (uint8_t) (1 + i);
    }
}

unsigned verbs_fake_close(void)
{
    unsigned left = objects;

    device_count = 0;
    return left;
}

unsigned verbs_fake_step(unsigned device, unsigned n)
{
    unsigned did = 0;

    for (unsigned i = 0; i < OBJECTS && did < n; i++)
        while (did < n && qps[i] != NULL && qps[i]->device == device &&
               qps[i]->state == IBV_QPS_RTS && qps[i]->done < qps[i]->posted && run_one(qps[i]))
            did++;
    return did;
}

static void say(unsigned device, enum ibv_event_type type)
{
    struct ibv_async_event event = {.event_type = type};

    event.element.port_num = 1;
    for (unsigned i = 0; i < 8; i++)
        if (contexts[device][i] != NULL)
            assert_int_equal(write(contexts[device][i]->write_fd, &event, sizeof(event)),
                             sizeof(event));
}

void verbs_fake_port(unsigned device, bool is_up)
{
    options[device].is_down = !is_up;
    say(device, is_up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR);
}

void verbs_fake_fatal(unsigned device)
{
    say(device, IBV_EVENT_DEVICE_FATAL);
}

unsigned verbs_fake_count(unsigned device, enum ibv_qp_state state)
{
    unsigned count = 0;

    for (unsigned i = 0; i < OBJECTS; i++)
        count += qps[i] != NULL && qps[i]->device == device && qps[i]->state == state;
    return count;
}
