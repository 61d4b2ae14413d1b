/* network.h - addresses, and networks: all addresses that begin alike ("10.0.0.0/8").
 *
 * Owner: the caller's storage; no state, no I/O.
 * Life:  of a call.
 * Flow:  text -> bt_network_parse -> bt_network_has(address of a peer).
 * Cost:  sixteen bytes compared.
 */
#ifndef BT_LOOP_NETWORK_H
#define BT_LOOP_NETWORK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

typedef struct bt_network {
    uint8_t address[16]; /* IPv6; of IPv4 the mapped form */
    unsigned bits;       /* so many must be the same */
} bt_network_t;

/* "ADDR" or "ADDR/BITS", numeric, IPv4 or IPv6 (in brackets or without). BT_E_INVAL. */
int bt_network_parse(bt_network_t *network_p, const char *text);
/* The network of one address. BT_E_INVAL: of no family that has addresses. */
int bt_network_host(bt_network_t *network_p, const struct sockaddr_storage *addr);
/* An IPv4 address that came by a socket of IPv6 is the same address. */
bool bt_network_has(const bt_network_t *network, const struct sockaddr_storage *addr);
/* The same host, whatever the ports. */
bool bt_network_same(const struct sockaddr_storage *a, const struct sockaddr_storage *b);
bool bt_network_is_loopback(const struct sockaddr_storage *addr);

/* The same host and port. Not memcmp: padding differs between a resolver's answers. */
bool bt_network_is_endpoint(const struct sockaddr *a, const struct sockaddr *b);
/* For bind(2) and connect(2); 0: of no family that has addresses. */
socklen_t bt_network_length(const struct sockaddr *addr);
void bt_network_set_port(struct sockaddr_storage *addr, unsigned port);

#endif
