/* config.h - what the admin listener works on, and how it may be asked.
 *
 * Owner: the caller; all it points to outlives the listener.
 * Life:  constant.
 * Flow:  admin.h copies it; every handler reads it.
 * Cost:  none.
 */
#ifndef BT_ADMIN_CALL_CONFIG_H
#define BT_ADMIN_CALL_CONFIG_H

#include "cluster/roles/advisor.h"
#include "cluster/roles/role_switch.h"
#include "discovery/dns.h"
#include "discovery/kube.h"
#include "dispatch/dispatcher.h"
#include "fleet/fleet.h"
#include "kvindex/subscriber.h"
#include "reload/reload.h"
#include "transfer/registration.h"
#include "transfer/transfer.h"

#define BT_ADMIN_BODY_MAX ((size_t) 1 << 20)

typedef struct bt_admin_config {
    bt_registry_t *registry;
    bt_role_switches_t *role_switches; /* NULL = roles are fixed; outlives us */
    const bt_advisor_t *advisor;       /* NULL = no advice; outlives us */
    bt_dispatch_shared_t *shared;      /* its dispatchers are set before the first request comes */
    const char
        *api_key; /* asked of everything but /metrics and /health; NULL = nothing asked; borrowed */
    unsigned
        certificate_scopes; /* what a client's verified certificate may do without a key; 0 = it says only who it is */
    const char *listener; /* the name or address it is bound to; may be NULL; borrowed */
    const char *const *
        allowed_hosts; /* names that Host may be without a key; NULL-terminated, or NULL; borrowed */
    bool
        metrics_only; /* bound beyond loopback without a key: all but /metrics and /health is 403 */
    bool gen_ai;      /* --metrics-gen-ai */
    const char *version; /* NULL = the build's */
    const char *sandbox; /* what --sandbox says; NULL = off; borrowed */
    /* Completes a worker that is added by what its pool says about workers that say nothing (connector, engine, bootstrap
     * port, lease). pool NULL = the first one. < 0: err holds one line. May be NULL. */
    int (*complete)(void *user, const char *pool, bt_worker_spec_t *spec, char *err,
                    size_t err_size);
    void *complete_user;
    struct bt_audit *audit;        /* NULL = changes are not written down; outlives us */
    bt_reload_t *reload;           /* NULL = policies cannot be changed here; outlives us */
    struct bt_rollout *rollout;    /* NULL = this gateway is alone; outlives us */
    const bt_transfer_t *transfer; /* the hub of KV transfer; NULL = there is none; outlives us */
    const bt_registration_t *registration; /* NULL = engines do not register; outlives us */
    const bt_store_t *store;               /* NULL = none; outlives us */
    bt_fleet_t *fleet; /* the other replicas; NULL = there are none; outlives us */
    bt_budget_t
        *budget; /* how many connections the operator may have; NULL = any number; outlives us */
    const bt_dns_t *dns; /* workers by DNS; NULL = none; outlives us */
    bt_kv_subscriber_t *const
        *kv;                 /* there, while KV events are followed; outlives us; may be NULL */
    bt_kube_t *const *kubes; /* --workers-kubernetes; outlive us */
    unsigned kube_count;
    struct bt_tls_server *client_tls, *admin_tls; /* NULL = plain; outlive us */
    struct bt_sessions *sessions; /* who has logged in at the page; the listener makes them */
} bt_admin_config_t;

#endif
