#include "zmq/publisher.h"

#include "base/err.h"
#include "zmq/libzmq.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <uv.h>
#include <zmq.h>

struct bt_zmq_publisher {
    bt_zmq_publisher_config_t config;
    void *context, *pub, *router;
    uint64_t next;
    struct kept {
        char *p;
        size_t n;
    } * kept; /* payload i at i % config.kept */
};

static int bind_to(void *handle, unsigned port)
{
    const int zero = 0;
    char endpoint[64];

    if (handle == NULL)
        return BT_E_LIMIT;
    (void) zmq_setsockopt(handle, ZMQ_LINGER, &zero, sizeof(zero));
    (void) zmq_setsockopt(handle, ZMQ_SNDHWM, &zero, sizeof(zero));
    snprintf(endpoint, sizeof(endpoint), "tcp://127.0.0.1:%u", port);
    if (zmq_bind(handle, endpoint) == 0)
        return 0;
    return errno == EADDRINUSE ? UV_EADDRINUSE : UV_EADDRNOTAVAIL;
}

int bt_zmq_publisher_new(bt_zmq_publisher_t **publisher_p, const bt_zmq_publisher_config_t *config)
{
    if (bt_libzmq_load() != NULL)
        return BT_E_CONFIG;
    bt_zmq_publisher_t *p = calloc(1, sizeof(*p));
    if (p == NULL)
        return BT_E_NOMEM;
    p->config = *config;
    p->config.kept = config->kept > 0 ? config->kept : 1;
    p->kept = calloc(p->config.kept, sizeof(p->kept[0]));
    p->context = zmq_ctx_new();
    int rc = p->kept != NULL && p->context != NULL ? 0 : BT_E_NOMEM;
    if (rc == 0)
        rc = bind_to(p->pub = zmq_socket(p->context, ZMQ_PUB), config->port);
    if (rc == 0 && config->replay_port != 0)
        rc = bind_to(p->router = zmq_socket(p->context, ZMQ_ROUTER), config->replay_port);
    if (rc == 0)
        *publisher_p = p;
    else
        bt_zmq_publisher_free(p);
    return rc;
}

static void put_number(uint64_t n, char out[8])
{
    for (int i = 0; i < 8; i++)
        out[i] = (char) (n >> (56 - 8 * i));
}

static void send_frames(void *handle, const bt_str_t *frames, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        (void) zmq_send(handle, frames[i].p, frames[i].n,
                        ZMQ_DONTWAIT | (i + 1 < count ? ZMQ_SNDMORE : 0));
}

int bt_zmq_publish(bt_zmq_publisher_t *p, bt_str_t payload, bool is_lost)
{
    struct kept *kept = &p->kept[p->next % p->config.kept];
    char number[8], *copy = malloc(payload.n + 1);

    if (copy == NULL)
        return BT_E_NOMEM;
    memcpy(copy, payload.p, payload.n);
    free(kept->p);
    *kept = (struct kept){copy, payload.n};
    put_number(p->next++, number);
    if (!is_lost)
        send_frames(p->pub, (bt_str_t[]){BT_STR(""), {number, 8}, payload}, 3);
    return 0;
}

static void answer(bt_zmq_publisher_t *p, bt_str_t who, uint64_t from)
{
    const uint64_t oldest = p->next > p->config.kept ? p->next - p->config.kept : 0;
    char number[8];

    for (uint64_t i = from > oldest ? from : oldest; i < p->next; i++) {
        const struct kept *kept = &p->kept[i % p->config.kept];
        const bt_str_t payload = {kept->p, kept->n};
        put_number(i, number);
        if (p->config.is_old)
            send_frames(p->router, (bt_str_t[]){who, BT_STR(""), {number, 8}, payload}, 4);
        else
            send_frames(p->router, (bt_str_t[]){who, BT_STR(""), BT_STR(""), {number, 8}, payload},
                        5);
    }
    put_number(UINT64_MAX, number);
    if (p->config.is_old)
        send_frames(p->router, (bt_str_t[]){who, BT_STR(""), {number, 8}, BT_STR("")}, 4);
    else
        send_frames(p->router, (bt_str_t[]){who, BT_STR(""), BT_STR(""), {number, 8}, BT_STR("")},
                    5);
}

unsigned bt_zmq_publisher_serve(bt_zmq_publisher_t *p)
{
    unsigned char who[256], empty[1], number[8];
    unsigned count = 0;
    int n;

    while (p->router != NULL && (n = zmq_recv(p->router, who, sizeof(who), ZMQ_DONTWAIT)) >= 0) {
        uint64_t from = 0;
        (void) zmq_recv(p->router, empty, sizeof(empty), ZMQ_DONTWAIT);
        if (zmq_recv(p->router, number, sizeof(number), ZMQ_DONTWAIT) != 8)
            continue;
        for (int i = 0; i < 8; i++)
            from = from << 8 | number[i];
        answer(p, (bt_str_t){(const char *) who, (size_t) n}, from);
        count++;
    }
    return count;
}

void bt_zmq_publisher_free(bt_zmq_publisher_t *p)
{
    if (p == NULL)
        return;
    if (p->pub != NULL)
        zmq_close(p->pub);
    if (p->router != NULL)
        zmq_close(p->router);
    while (p->context != NULL && zmq_ctx_term(p->context) < 0 && errno == EINTR)
        ;
    for (unsigned i = 0; p->kept != NULL && i < p->config.kept; i++)
        free(p->kept[i].p);
    free(p->kept);
    free(p);
}
