/* raw_peer.h - a peer that a spec writes by hand: a socket that speaks just enough of the agents' protocol. */
#ifndef SPEC_TRANSPORT_RAW_PEER_H
#define SPEC_TRANSPORT_RAW_PEER_H

#include "suite.h"

#include "transport/agent/agent.h"
#include "transport/wire/frame.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

typedef struct raw {
    int fd;
    bt_kv_bytes_t out;
    uint8_t in[65536];
    size_t n, at;
    bt_kv_auth_t auth;
} raw_t;

/* host: NULL = loopback. */
static inline struct sockaddr_in raw_address(const char *host, uint16_t port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};

    assert_int_equal(inet_pton(AF_INET, host != NULL ? host : "127.0.0.1", &address.sin_addr), 1);
    return address;
}

static inline void raw_dial(raw_t *raw, const char *host, uint16_t port)
{
    struct sockaddr_in address = raw_address(host, port);

    memset(raw, 0, sizeof(*raw));
    raw->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(raw->fd, (struct sockaddr *) &address, sizeof(address)), 0);
}

static inline int raw_listen(const char *host, uint16_t *port_p)
{
    struct sockaddr_in address = raw_address(host, 0);
    socklen_t size = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_int_equal(bind(fd, (struct sockaddr *) &address, sizeof(address)), 0);
    assert_int_equal(listen(fd, 8), 0);
    getsockname(fd, (struct sockaddr *) &address, &size);
    *port_p = ntohs(address.sin_port);
    return fd;
}

static inline void raw_close(raw_t *raw)
{
    close(raw->fd);
    free(raw->out.p);
}

static inline void raw_flush(raw_t *raw)
{
    /* The agent may have closed already; what it then says is looked at by raw_read. */
    (void) !send(raw->fd, raw->out.p, raw->out.n, MSG_NOSIGNAL);
    raw->out.n = 0;
}

/* False: the connection is closed. */
static inline bool raw_recv(raw_t *raw)
{
    struct pollfd fd = {.fd = raw->fd, .events = POLLIN};

    assert_int_equal(poll(&fd, 1, 20000), 1);
    ssize_t n = recv(raw->fd, raw->in + raw->n, sizeof(raw->in) - raw->n, 0);
    raw->n += n > 0 ? (size_t) n : 0;
    return n > 0;
}

/* The next frame, decoded; type 0: the connection is closed. */
static inline bt_kv_frame_t raw_read(raw_t *raw)
{
    bt_kv_frame_t frame = {0};
    const char *why;
    size_t seal = raw->auth.is_done ? BT_KV_SEAL_BYTES : 0;

    for (;;) {
        ptrdiff_t used =
            bt_kv_frame_next(raw->in + raw->at, raw->n - raw->at, BT_KV_FRAME_MAX, &frame);
        assert_true(used >= 0);
        if (used > 0 && raw->n - raw->at - (size_t) used >= seal) {
            if (seal > 0)
                assert_true(bt_kv_seal_is_good(&raw->auth.in, raw->in + raw->at, (size_t) used));
            raw->at += (size_t) used + seal;
            assert_int_equal(bt_kv_frame_decode(&frame, &why), 0);
            return frame;
        }
        if (!raw_recv(raw))
            return (bt_kv_frame_t){0};
    }
}

/* Proves these tokens, as who has dialled or as who was. False: it has been refused, which is the next frame. */
static inline bool raw_prove(raw_t *raw, const char *tokens, bool is_dialler)
{
    uint8_t out[BT_KV_AUTH_OUT];
    const char *why;
    size_t n = bt_kv_auth_init(&raw->auth, BT_KV_AUTH_PEERS, is_dialler, out);

    raw->out.seal = &raw->auth.out;
    for (;;) {
        (void) !send(raw->fd, out, n, MSG_NOSIGNAL);
        if (raw->auth.is_done)
            return true;
        ptrdiff_t used;
        while ((used = bt_kv_auth_take(&raw->auth, tokens, raw->in + raw->at, raw->n - raw->at, out,
                                       &n, &why)) == 0)
            if (!raw_recv(raw))
                return false;
        if (used < 0)
            return false;
        raw->at += (size_t) used;
    }
}

static inline bt_kv_frame_t raw_read_type(raw_t *raw, uint8_t type)
{
    bt_kv_frame_t frame;

    do
        frame = raw_read(raw);
    while (frame.type != type && frame.type != 0);
    assert_int_equal(frame.type, type);
    return frame;
}

static inline void raw_accept_only(raw_t *raw, int listener)
{
    memset(raw, 0, sizeof(*raw));
    raw->fd = accept(listener, NULL, NULL);
    assert_true(raw->fd >= 0);
}

/* An agent has dialled, and its hello is read. */
static inline void raw_accept(raw_t *raw, int listener)
{
    raw_accept_only(raw, listener);
    assert_int_equal(raw_read(raw).type, BT_KV_HELLO);
}

/* It offers what the agent itself has in memory. */
static inline void raw_hello_bytes(raw_t *raw, bt_kv_agent_t *agent)
{
    uint8_t offer[64];
    bt_kv_backend_t *mem = agent->backends[1];
    size_t n = mem != NULL ? mem->ops->offer(mem, offer, sizeof(offer)) : 0;
    bt_kv_hello_t hello = {.version = BT_KV_VERSION,
                           .name = BT_STR("mallory"),
                           .offers = {{BT_KV_MEM, {(const char *) offer, n}}},
                           .offer_count = n > 0};

    bt_kv_put_hello(&raw->out, &hello);
}

static inline void raw_hello(raw_t *raw, bt_kv_agent_t *agent)
{
    raw_hello_bytes(raw, agent);
    raw_flush(raw);
}

static inline void raw_expect(bt_str_t reason, const char *why)
{
    if (bt_str_find(reason, bt_str(why)) < 0)
        fail_msg("\"%s\" is not in \"%.*s\"", why, BT_STR_ARG(reason));
}

/* Ends with the reason that the agent gives for closing. */
static inline void raw_read_refusal(raw_t *raw, const char *why)
{
    raw_expect(raw_read_type(raw, BT_KV_CLOSE).close.reason, why);
    assert_int_equal(raw_read(raw).type, 0);
}

#endif
