/* The format: HAProxy's doc/proxy-protocol.txt, section 2.2. 12 bytes that no HTTP client and no TLS client begins with, version and command, family and
 * transport, the length of the rest; addresses; TLVs.
 *
 * The fixed part is read first, then as many bytes as it promises: no byte behind the header is taken out of the socket, so whoever reads on
 * needs to know nothing of it. Version 1 is a line without a length, and is refused: reading it would take a byte a call, or bytes that are
 * not ours.
 *
 * Strict, because whoever can write one byte of this header is believed to be anybody: TLVs fill the rest exactly, a checksum that is there
 * is right, a datagram is none.
 */
#include "http/proxy.h"

#include "base/err.h"
#include "base/list.h"
#include "base/log.h"
#include "loop/listener.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the header ---- */

static const unsigned char signature[12] = "\r\n\r\n\0\r\nQUIT\n";

#define CRC32C 0x03
#define CRC32C_POLYNOMIAL 0x82f63b78U /* reflected */

static unsigned two_bytes(const unsigned char *p)
{
    return (unsigned) p[0] << 8 | p[1];
}

/* Of the whole header with its own four bytes as zeros. Bit by bit: a connection has one header, of some dozen bytes. */
static uint32_t checksum(const unsigned char *p, size_t n, size_t own)
{
    uint32_t crc = UINT32_MAX;

    for (size_t i = 0; i < n; i++) {
        crc ^= i >= own && i < own + 4 ? 0 : p[i];
        for (unsigned bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ ((crc & 1) != 0 ? CRC32C_POLYNOMIAL : 0);
    }
    return ~crc;
}

static const char *check_tlvs(const unsigned char *p, size_t at, size_t n)
{
    while (at < n) {
        if (n - at < 3)
            return "a TLV is cut off";
        const size_t length = two_bytes(p + at + 1), value = at + 3;
        if (length > n - value)
            return "a TLV is longer than the header";
        if (p[at] == CRC32C) {
            if (length != 4)
                return "its checksum is not of four bytes";
            const uint32_t told = (uint32_t) two_bytes(p + value) << 16 | two_bytes(p + value + 2);
            if (told != checksum(p, n, value))
                return "its checksum is wrong";
        }
        at = value + length;
    }
    return NULL;
}

/* p: behind the fixed part. */
static void read_v4(const unsigned char *p, struct sockaddr_storage *addr_p)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *) (void *) addr_p;

    v4->sin_family = AF_INET;
    memcpy(&v4->sin_addr, p, 4);
    memcpy(&v4->sin_port, p + 8, 2);
}

static void read_v6(const unsigned char *p, struct sockaddr_storage *addr_p)
{
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *) (void *) addr_p;

    v6->sin6_family = AF_INET6;
    memcpy(&v6->sin6_addr, p, 16);
    memcpy(&v6->sin6_port, p + 32, 2);
}

static const char *read_addresses(const unsigned char *p, size_t n, struct sockaddr_storage *addr_p)
{
    static const size_t sizes[] = {0, 12, 36,
                                   216}; /* none, IPv4, IPv6, Unix: two each, with ports */
    const unsigned family = p[13] >> 4, transport = p[13] & 15U;

    if (family >= sizeof(sizes) / sizeof(sizes[0]) || transport > 2)
        return "its family or transport is unknown";
    if (transport == 2)
        return "it is of a datagram";
    if ((family == 0) != (transport == 0))
        return "its family and transport do not go together";
    if (n - BT_PROXY_FIXED < sizes[family])
        return "it is too short for its addresses";
    if (family == 1)
        read_v4(p + BT_PROXY_FIXED, addr_p);
    else if (family == 2)
        read_v6(p + BT_PROXY_FIXED, addr_p);
    else
        addr_p->ss_family = AF_UNIX; /* a client's, who has no address */
    return check_tlvs(p, BT_PROXY_FIXED + sizes[family], n);
}

/* What is wrong with so much of the fixed part; NULL: nothing yet. */
static const char *check_fixed(const unsigned char *p, size_t n)
{
    const size_t seen = n < sizeof(signature) ? n : sizeof(signature);

    if (n >= 6 && memcmp(p, "PROXY ", 6) == 0)
        return "version 1 is not spoken here: send version 2 (HAProxy: send-proxy-v2)";
    if (memcmp(p, signature, seen) != 0)
        return memcmp(p, "PROXY ", n < 6 ? n : 6) == 0 ? NULL : "there is none";
    if (n > 12 && p[12] >> 4 != 2)
        return "its version is unknown";
    if (n > 12 && (p[12] & 15) > 1)
        return "its command is unknown";
    if (n >= BT_PROXY_FIXED && two_bytes(p + 14) > BT_PROXY_MAX - BT_PROXY_FIXED)
        return "it is too long";
    return NULL;
}

int bt_proxy_parse(const unsigned char *p, size_t n, struct sockaddr_storage *addr_p,
                   const char **why_p)
{
    struct sockaddr_storage addr = {.ss_family = AF_UNSPEC};

    if ((*why_p = check_fixed(p, n)) != NULL)
        return BT_E_HTTP;
    if (n < BT_PROXY_FIXED || n < BT_PROXY_FIXED + two_bytes(p + 14))
        return BT_E_AGAIN;
    const size_t length = BT_PROXY_FIXED + two_bytes(p + 14);
    if ((p[12] & 15) == 1 && (*why_p = read_addresses(p, length, &addr)) != NULL)
        return BT_E_HTTP;
    *addr_p = addr; /* LOCAL: a check of the proxy's own, whatever follows */
    return (int) length;
}

/* ---- connections that have not said whose they are ---- */

struct bt_proxy {
    bt_loop_t *loop;
    uint64_t timeout_ms;
    bt_proxy_cb ready;
    void *user;
    bt_list_t waiting; /* oldest first */
    unsigned count, closing_handles;
    bool is_closing;
};

typedef struct pending {
    bt_list_t link;
    bt_proxy_t *proxy;
    uv_poll_t poll;
    bt_timer_t deadline;
    int fd;
    size_t n;
    unsigned char bytes[BT_PROXY_MAX];
} pending_t;

static void free_if_done(bt_proxy_t *proxy)
{
    if (proxy->is_closing && proxy->closing_handles == 0)
        free(proxy);
}

static void on_poll_closed(uv_handle_t *handle)
{
    pending_t *c = handle->data;
    bt_proxy_t *proxy = c->proxy;

    free(c);
    proxy->closing_handles--;
    free_if_done(proxy);
}

/* The socket is the caller's now. */
static int let_go(pending_t *c)
{
    bt_list_remove(&c->link);
    c->proxy->count--;
    bt_timer_stop(&c->deadline);
    c->proxy->closing_handles++;
    uv_close((uv_handle_t *) &c->poll, on_poll_closed);
    return c->fd;
}

static void drop_fd(bt_loop_t *loop, int fd)
{
    close(fd);
    atomic_fetch_sub_explicit(&loop->connections, 1, memory_order_relaxed);
}

static void refuse(pending_t *c, const char *why)
{
    char peer[64];

    bt_listener_peer(c->fd, peer, sizeof(peer));
    bt_log_warn("http",
                "a connection of the proxy %s is closed, its PROXY header cannot be used: %s", peer,
                why);
    drop_fd(c->proxy->loop, let_go(c));
}

/* So many bytes may be taken: none behind the header. */
static size_t wanted(const pending_t *c)
{
    return c->n < BT_PROXY_FIXED ? BT_PROXY_FIXED - c->n
                                 : BT_PROXY_FIXED + two_bytes(c->bytes + 14) - c->n;
}

/* False: it has gone on its way, or away. */
static bool read_some(pending_t *c)
{
    struct sockaddr_storage client;
    bt_proxy_t *proxy = c->proxy;
    const char *why;
    const ssize_t got = recv(c->fd, c->bytes + c->n, wanted(c), 0);

    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return errno == EINTR && read_some(c);
    if (got <= 0) {
        refuse(c, c->n == 0 ? "it ended before it" : "it is cut off");
        return false;
    }
    c->n += (size_t) got;
    const int rc = bt_proxy_parse(c->bytes, c->n, &client, &why);
    if (rc == BT_E_AGAIN)
        return true;
    if (rc < 0) {
        refuse(c, why);
        return false;
    }
    const int fd = let_go(c);
    proxy->ready(proxy->user, fd, client.ss_family != AF_UNSPEC ? &client : NULL);
    return false;
}

static void on_readable(uv_poll_t *poll, int rc, int events)
{
    (void) rc; /* recv() says what is wrong */
    (void) events;
    while (read_some(poll->data))
        continue;
}

static void on_deadline(bt_timer_t *timer)
{
    refuse(bt_container_of(timer, pending_t, deadline), "it did not come in time");
}

unsigned bt_proxy_waiting(const bt_proxy_t *proxy)
{
    return proxy->count;
}

void bt_proxy_take(bt_proxy_t *proxy, int fd)
{
    pending_t *c = proxy->is_closing ? NULL : calloc(1, sizeof(*c));

    if (c == NULL || uv_poll_init(&proxy->loop->uv, &c->poll, fd) < 0) {
        free(c);
        drop_fd(proxy->loop, fd);
        return;
    }
    if (proxy->count >= BT_PROXY_WAITING_MAX)
        refuse(bt_container_of(proxy->waiting.next, pending_t, link), "too many others wait");
    c->proxy = proxy;
    c->poll.data = c;
    c->fd = fd;
    bt_list_push(&proxy->waiting, &c->link);
    proxy->count++;
    bt_timer_init(proxy->loop, &c->deadline, on_deadline);
    bt_timer_start(&c->deadline, proxy->timeout_ms);
    if (uv_poll_start(&c->poll, UV_READABLE, on_readable) < 0)
        refuse(c, "it cannot be watched");
}

int bt_proxy_new(bt_proxy_t **proxy_p, bt_loop_t *loop, uint64_t timeout_ms, bt_proxy_cb ready,
                 void *user)
{
    bt_proxy_t *proxy = calloc(1, sizeof(*proxy));

    if (proxy == NULL)
        return BT_E_NOMEM;
    *proxy = (bt_proxy_t){.loop = loop, .timeout_ms = timeout_ms, .ready = ready, .user = user};
    bt_list_init(&proxy->waiting);
    *proxy_p = proxy;
    return 0;
}

void bt_proxy_close(bt_proxy_t *proxy)
{
    if (proxy == NULL || proxy->is_closing)
        return;
    while (!bt_list_empty(&proxy->waiting))
        drop_fd(proxy->loop, let_go(bt_container_of(proxy->waiting.next, pending_t, link)));
    proxy->is_closing = true;
    free_if_done(proxy);
}
