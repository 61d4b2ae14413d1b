/* listener.h - a listening socket of one loop, and the spreading of accepted sockets over the loops.
 *
 * Owner: one loop; each loop has its own SO_REUSEPORT socket on the same address.
 * Life:  bind (any thread, at start-up: a port taken is found here) -> start -> drain/close.
 * Flow:  accept4 until EAGAIN; a loop with more than 1.25 * mean + 8 connections hands the socket to the least loaded
 *        loop by mailbox. Drain accepts until EAGAIN and then closes, so no SYN that was answered is lost.
 *        EMFILE: somebody may free a descriptor (bt_listener_on_full); where nobody can, a spare one is used to accept and
 *        shed one connection, logged once a second.
 * Cost:  one atomic read per loop and accepted socket.
 */
#ifndef BT_LOOP_LISTENER_H
#define BT_LOOP_LISTENER_H

#include "loop/loop.h"

#include <sys/socket.h>

typedef struct bt_listener bt_listener_t;

/* The loops among which accepted sockets are spread. Immutable after start-up. */
typedef struct bt_loop_group {
    bt_loop_t **loops;
    unsigned count;
} bt_loop_group_t;

/* Runs on the loop that shall own the connection. Takes fd. */
typedef void (*bt_accept_cb)(bt_loop_t *loop, int fd, void *user);

/* host: numeric address or name; port 0 = any. Returns a listening fd or a negative code (UV_EADDRINUSE: taken). *port_p gets the
 * bound port. reuse_port is set for all but exclusive sockets; with it, an address already in use by another
 * program is still an error (checked by a first exclusive bind). */
int bt_listener_bind(const char *host, unsigned port, bool reuse_port, unsigned *port_p);
/* Takes fd. group may be NULL (no spreading). on_accept(user) runs on the chosen loop. */
int bt_listener_start(bt_listener_t **listener_p, bt_loop_t *loop, int fd,
                      const bt_loop_group_t *group, bt_accept_cb on_accept, void *user);
/* Asked when no descriptor is left for a connection that waits. 0: there is one now; BT_E_AGAIN: soon; else: none. */
typedef int (*bt_full_cb)(bt_loop_t *loop, void *user);
void bt_listener_on_full(bt_listener_t *listener, bt_full_cb on_full, void *user);
/* The other end's address as text, without its port; "" when there is none. */
void bt_listener_peer(int fd, char *out, socklen_t size);
/* Accepts what is waiting, then closes. Frees itself. */
void bt_listener_close(bt_listener_t *listener);

#endif
