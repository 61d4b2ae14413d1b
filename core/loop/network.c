/* Networks are compared as IPv6: 10.0.0.0/8 is ::ffff:10.0.0.0/104. So one comparison does for both
 * families, and for IPv4 behind a dual-stack socket. */
#include "loop/network.h"

#include "base/err.h"
#include "base/str.h"
#include "loop/resolve.h"

#include <netinet/in.h>

#define BITS 128U
#define MAPPED_BITS 96U

/* False: of no family that has addresses. */
static bool to_ipv6(const struct sockaddr_storage *addr, uint8_t out[16])
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

    if (addr->ss_family == AF_INET6) {
        memcpy(out, &((const struct sockaddr_in6 *) (const void *) addr)->sin6_addr, 16);
        return true;
    }
    if (addr->ss_family != AF_INET)
        return false;
    memcpy(out, mapped, sizeof(mapped));
    memcpy(out + 12, &((const struct sockaddr_in *) (const void *) addr)->sin_addr, 4);
    return true;
}

int bt_network_parse(bt_network_t *network_p, const char *text)
{
    struct sockaddr_storage addr;
    const char *slash = strchr(text, '/');
    size_t n = slash != NULL ? (size_t) (slash - text) : strlen(text);
    bt_network_t network;
    uint64_t bits;
    char host[80];

    if (n >= sizeof(host))
        return BT_E_INVAL;
    memcpy(host, text, n);
    host[n] = '\0';
    if (bt_resolve_numeric(host, 0, &addr) < 0 || !to_ipv6(&addr, network.address))
        return BT_E_INVAL;
    const unsigned before = addr.ss_family == AF_INET ? MAPPED_BITS : 0;
    bits = BITS - before;
    if (slash != NULL && (bt_str_u64(bt_str(slash + 1), &bits) < 0 || bits > BITS - before))
        return BT_E_INVAL;
    network.bits = before + (unsigned) bits;
    *network_p = network;
    return 0;
}

int bt_network_host(bt_network_t *network_p, const struct sockaddr_storage *addr)
{
    bt_network_t network = {.bits = BITS};

    if (!to_ipv6(addr, network.address))
        return BT_E_INVAL;
    *network_p = network;
    return 0;
}

static bool begins_alike(const uint8_t a[16], const uint8_t b[16], unsigned bits)
{
    const unsigned whole = bits / 8, rest = bits % 8;

    if (memcmp(a, b, whole) != 0)
        return false;
    return rest == 0 || (uint8_t) (a[whole] ^ b[whole]) >> (8 - rest) == 0;
}

bool bt_network_has(const bt_network_t *network, const struct sockaddr_storage *addr)
{
    uint8_t address[16];

    return to_ipv6(addr, address) && begins_alike(network->address, address, network->bits);
}

bool bt_network_same(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
    bt_network_t one = {.bits = BITS};

    return to_ipv6(a, one.address) && bt_network_has(&one, b);
}

bool bt_network_is_loopback(const struct sockaddr_storage *addr)
{
    static const bt_network_t v4 = {{[10] = 0xff, [11] = 0xff, [12] = 127}, MAPPED_BITS + 8},
                              v6 = {{[15] = 1}, BITS};

    return bt_network_has(&v4, addr) || bt_network_has(&v6, addr);
}

bool bt_network_is_endpoint(const struct sockaddr *a, const struct sockaddr *b)
{
    if (a->sa_family != b->sa_family)
        return false;
    if (a->sa_family == AF_INET) {
        const struct sockaddr_in *x = (const void *) a, *y = (const void *) b;
        return x->sin_port == y->sin_port && x->sin_addr.s_addr == y->sin_addr.s_addr;
    }
    const struct sockaddr_in6 *x = (const void *) a, *y = (const void *) b;
    return x->sin6_port == y->sin6_port && x->sin6_scope_id == y->sin6_scope_id &&
           memcmp(&x->sin6_addr, &y->sin6_addr, sizeof(x->sin6_addr)) == 0;
}

socklen_t bt_network_length(const struct sockaddr *addr)
{
    return addr->sa_family == AF_INET    ? sizeof(struct sockaddr_in)
           : addr->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6)
                                         : 0;
}

void bt_network_set_port(struct sockaddr_storage *addr, unsigned port)
{
    if (addr->ss_family == AF_INET6)
        ((struct sockaddr_in6 *) addr)->sin6_port = htons((uint16_t) port);
    else
        ((struct sockaddr_in *) addr)->sin_port = htons((uint16_t) port);
}
