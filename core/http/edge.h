/* edge.h - what a listener believes of a request's head: its Host, and what proxies before it say of the client.
 *
 * Owner: the configuration; servers borrow it.
 * Life:  constant.
 * Flow:  head read -> check -> peer is the client's address, and what others could have forged is out of the head.
 * Cost:  one walk over the headers' first letters; more only behind a listed proxy.
 */
#ifndef BT_HTTP_EDGE_H
#define BT_HTTP_EDGE_H

#include "http/cors.h"
#include "http/message.h"
#include "loop/network.h"

#define BT_EDGE_PROXIES_MAX 64
#define BT_EDGE_HOPS_MAX 32 /* more are no chain of proxies */

/* The one header that a listed proxy sets, whatever it got. Others that say the same are not believed: a proxy that does not know them
 * passes them on as the client wrote them. */
enum bt_edge_header { BT_EDGE_X_FORWARDED_FOR, BT_EDGE_FORWARDED, BT_EDGE_X_REAL_IP };

typedef struct bt_edge {
    const char *const *
        hosts; /* names that Host may be, beside addresses; NULL = any. NULL-terminated; borrowed */
    const char *listener; /* another such name; may be NULL; borrowed */
    bt_network_t proxies[BT_EDGE_PROXIES_MAX];
    unsigned proxy_count;
    enum bt_edge_header header;
    bt_cors_t cors;
    bool proxy_protocol; /* connections of these proxies begin with its header (proxy.h) */
} bt_edge_t;

/* edge NULL: nobody is. */
bool bt_edge_is_proxy(const bt_edge_t *edge, const struct sockaddr_storage *addr);
/* 0, or the status to refuse with, and why (static). proxy: the connection's own address where it is a listed proxy's, else NULL; then peer, of
 * size bytes, gets the client's, to which the head may point from then on. */
unsigned bt_edge_check(const bt_edge_t *edge, const char *proxy, bt_head_t *head, char *peer,
                       size_t size, const char **reason_p);
/* Host without its port is an address, localhost, listener (may be NULL) or one of names (may be NULL). */
bool bt_edge_is_known_host(bt_str_t host, const char *listener, const char *const *names);

#endif
