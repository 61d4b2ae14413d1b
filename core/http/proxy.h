/* proxy.h - PROXY protocol version 2, received: whose connection it is, said before its first byte.
 *
 * Owner: the loop.
 * Life:  new -> take each accepted socket of a listed proxy -> close.
 * Flow:  the header is read to its last byte and not beyond, so TLS or HTTP begin where they would have begun without it. What is not one, or does
 *        not come in time, is closed: nobody knows whose it is.
 * Cost:  two or three reads a connection; one small struct while it waits.
 */
#ifndef BT_HTTP_PROXY_H
#define BT_HTTP_PROXY_H

#include "loop/loop.h"

#include <sys/socket.h>

#define BT_PROXY_FIXED 16U /* bytes before those whose length they tell */
#define BT_PROXY_MAX 2048U /* header in all; addresses and what proxies add to them */
#define BT_PROXY_WAITING_MAX 1024U

/* What the first n bytes say. Returns the header's length; BT_E_AGAIN: more is needed; BT_E_HTTP: it is none, why_p (static) says why.
 * *addr_p: AF_UNSPEC = the connection is the proxy's own (LOCAL); AF_UNIX = a client's of whom it tells no address, and who is believed no header. */
int bt_proxy_parse(const unsigned char *p, size_t n, struct sockaddr_storage *addr_p,
                   const char **why_p);

/* client NULL: the connection's own address. Takes fd. */
typedef void (*bt_proxy_cb)(void *user, int fd, const struct sockaddr_storage *client);
typedef struct bt_proxy bt_proxy_t;

int bt_proxy_new(bt_proxy_t **proxy_p, bt_loop_t *loop, uint64_t timeout_ms, bt_proxy_cb ready,
                 void *user);
void bt_proxy_take(bt_proxy_t *proxy, int fd); /* takes fd; ready may come within the call */
unsigned bt_proxy_waiting(const bt_proxy_t *proxy);
/* Those that wait are closed. Frees itself, in later turns of the loop. NULL is fine. */
void bt_proxy_close(bt_proxy_t *proxy);

#endif
