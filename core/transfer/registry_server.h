/* registry_server.h - SGLang's bootstrap registry, served by the gateway: prefills and decodes name its address instead of running one of their own.
 *
 * Owner: the control loop.
 * Life:  new -> set_fleet on every change -> close(done).
 * Flow:  HTTP exchange -> who asks (registry_peers.h) -> transport/registry/registry.h -> answer, in the same turn. What is served is one prefill's, see there.
 * Cost:  O(bytes of the request), and O(workers) where no token is asked.
 */
#ifndef BT_TRANSFER_REGISTRY_SERVER_H
#define BT_TRANSFER_REGISTRY_SERVER_H

#include "cluster/workers.h"
#include "loop/loop.h"
#include "transport/registry/registry.h"

typedef struct bt_registry_server bt_registry_server_t;

typedef struct bt_registry_server_config {
    bt_kv_registry_config_t registry; /* with a token: whoever has it, from wherever */
    const char *const *
        allowed; /* addresses and networks that need none (bt_network_parse), beside this host and the workers' */
    unsigned allowed_count;
} bt_registry_server_config_t;

/* Takes a listening socket (closed on failure too). config NULL = defaults. */
int bt_registry_server_new(bt_registry_server_t **server_p, bt_loop_t *control, int fd,
                           const bt_registry_server_config_t *config);
void bt_registry_server_set_workers(bt_registry_server_t *server, bt_workers_t *workers);
/* Frees itself; done (may be NULL) runs when every connection is closed. */
void bt_registry_server_close(bt_registry_server_t *server, void (*done)(void *user), void *user);

#endif
