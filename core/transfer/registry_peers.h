/* registry_peers.h - who may use SGLang's registry where no token is asked: this host, the hosts of the workers, and those that the operator names.
 *
 * Owner: the registry's server, on the control loop.
 * Life:  init -> set_fleet on every change -> fini.
 * Flow:  a request's peer -> bt_registry_peers_has.
 * Cost:  O(workers) for a peer that is on another host.
 *
 * Engines of SGLang's send no token, so where they are is all there is to go by. A worker's addresses are those that its URL has now (the monitor looks names up
 * again and again); one of several nodes registers from hosts that no URL names: they have to be allowed.
 */
#ifndef BT_TRANSFER_REGISTRY_PEERS_H
#define BT_TRANSFER_REGISTRY_PEERS_H

#include "base/str.h"
#include "cluster/workers.h"
#include "loop/network.h"

typedef struct bt_registry_peers {
    bt_workers_t *workers; /* a reference; NULL before the first */
    bt_network_t *allowed;
    unsigned allowed_count;
} bt_registry_peers_t;

/* allowed: as for bt_network_parse. BT_E_INVAL, BT_E_NOMEM: nothing is kept. */
int bt_registry_peers_init(bt_registry_peers_t *peers, const char *const *allowed, unsigned count);
void bt_registry_peers_fini(bt_registry_peers_t *peers);
void bt_registry_peers_set_workers(bt_registry_peers_t *peers, bt_workers_t *workers);
/* peer: a numeric address. */
bool bt_registry_peers_has(const bt_registry_peers_t *peers, const char *peer);
/* The same, but only if it is one of `allowed`. */
bool bt_registry_peers_is_named(const bt_registry_peers_t *peers, const char *peer);
/* All of them as they are now, for who cannot ask one by one; free(*list_p). BT_E_NOMEM. */
int bt_registry_peers_list(const bt_registry_peers_t *peers, bt_network_t **list_p,
                           unsigned *count_p);

#endif
