/* admin.h - the operator's listener: metrics, workers, live requests.
 *
 * Owner: the control loop; bt_admin_worker_paths is the one function that request loops call.
 * Life:  new -> listen -> drain -> close(done). Close only when no request loop can call bt_admin_worker_paths any more,
 *        and end the control loop last: mail returns to it.
 * Flow:  server -> routes -> registry, or mail to the request loops (live.h) and their facts back.
 * Cost:  none on the request path; a scrape costs one mail per loop and one pass over workers and counters.
 */
#ifndef BT_ADMIN_ADMIN_H
#define BT_ADMIN_ADMIN_H

#include "dispatch/dispatcher.h"
#include "fleet/fleet.h"
#include "reload/reload.h"
#include "transfer/transfer.h"

#define BT_ADMIN_BODY_MAX ((size_t) 1 << 20)

typedef struct bt_admin bt_admin_t;

typedef struct bt_admin_config {
    bt_registry_t *registry;
    bt_dispatch_shared_t *shared; /* its dispatchers are set before the first request comes */
    const char
        *api_key; /* asked of everything but /metrics and /health; NULL = nothing asked; borrowed */
    const char *listener; /* the name or address it is bound to; may be NULL; borrowed */
    const char *const *
        allowed_hosts; /* names that Host may be without a key; NULL-terminated, or NULL; borrowed */
    bool
        metrics_only; /* bound beyond loopback without a key: all but /metrics and /health is 403 */
    const char *version; /* NULL = the build's */
    /* Completes a worker that is added by what its pool says about workers that say nothing (connector, engine, bootstrap
     * port, lease). pool NULL = the first one. < 0: err holds one line. May be NULL. */
    int (*complete)(void *user, const char *pool, bt_worker_spec_t *spec, char *err,
                    size_t err_size);
    void *complete_user;
    bt_reload_t *reload;           /* NULL = policies cannot be changed here; outlives us */
    struct bt_rollout *rollout;    /* NULL = this gateway is alone; outlives us */
    const bt_transfer_t *transfer; /* the hub of KV transfer; NULL = there is none; outlives us */
    const bt_store_t *store;       /* NULL = none; outlives us */
    bt_fleet_t *fleet;             /* the other replicas; NULL = there are none; outlives us */
    bt_budget_t
        *budget; /* how many connections the operator may have; NULL = any number; outlives us */
} bt_admin_config_t;

int bt_admin_new(bt_admin_t **admin_p, bt_loop_t *control, const bt_admin_config_t *config);
/* Takes a listening socket (bt_listener_bind). */
int bt_admin_listen(bt_admin_t *admin, int fd);
/* Takes an accepted socket; its connection must be counted in control->connections already, as listeners do. */
void bt_admin_accept(bt_admin_t *admin, int fd);
/* For shared->worker_paths, with the admin as user: answers the peers' worker paths of the client port. */
void bt_admin_worker_paths(void *user, bt_exchange_t *x);
/* Frees itself; done (may be NULL) runs when everything is closed. */
void bt_admin_close(bt_admin_t *admin, void (*done)(void *arg), void *arg);

#endif
