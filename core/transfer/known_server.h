/* known_server.h - an HTTP server on the control loop for the engines' hosts: registry_server.c and metaserver.c are on it.
 *
 * Owner: whoever embeds it; the control loop.
 * Life:  open -> set_workers on every change -> close(done), which leaves nothing of it.
 * Flow:  listening socket -> connections -> the owner's ops; who is known is asked of bt_known_server_has.
 * Cost:  its connections'; O(workers) for a peer that is on another host.
 */
#ifndef BT_TRANSFER_KNOWN_SERVER_H
#define BT_TRANSFER_KNOWN_SERVER_H

#include "http/server.h"
#include "loop/listener.h"
#include "transfer/registry_peers.h"

typedef struct bt_known_server {
    bt_registry_peers_t peers;
    bt_server_config_t http;
    bt_server_t *server;
    bt_listener_t *listener;
    void (*done)(void *user);
    void *done_user;
} bt_known_server_t;

typedef struct bt_known_server_config {
    const bt_server_ops_t *ops;
    void *user; /* bt_server_user in them */
    size_t max_body_bytes;
    const char *const *allowed; /* as for bt_registry_peers_init */
    unsigned allowed_count;
} bt_known_server_config_t;

/* Takes a listening socket (closed on failure too). */
int bt_known_server_open(bt_known_server_t *s, bt_loop_t *control, int fd,
                         const bt_known_server_config_t *config);
void bt_known_server_set_workers(bt_known_server_t *s, bt_workers_t *workers);
bool bt_known_server_has(const bt_known_server_t *s, const bt_exchange_t *x);
/* done runs when every connection is closed. */
void bt_known_server_close(bt_known_server_t *s, void (*done)(void *user), void *user);

#endif
