/* registry_server.h - SGLang's bootstrap registry, served by the gateway: prefills and decodes name its address instead of running one of their own.
 *
 * Owner: the control loop.
 * Life:  new -> close(done).
 * Flow:  HTTP exchange -> transport/registry.h -> answer, in the same turn. What is served is one prefill's, see there.
 * Cost:  O(bytes of the request).
 */
#ifndef BT_TRANSFER_REGISTRY_SERVER_H
#define BT_TRANSFER_REGISTRY_SERVER_H

#include "loop/loop.h"
#include "registry.h"

typedef struct bt_registry_server bt_registry_server_t;

/* Takes a listening socket (closed on failure too). config: as for bt_kv_registry_new; NULL = defaults. */
int bt_registry_server_new(bt_registry_server_t **server_p, bt_loop_t *control, int fd,
                           const bt_kv_registry_config_t *config);
void bt_registry_server_stats(const bt_registry_server_t *server, bt_kv_registry_stats_t *stats_p);
/* Frees itself; done (may be NULL) runs when every connection is closed. */
void bt_registry_server_close(bt_registry_server_t *server, void (*done)(void *user), void *user);

#endif
