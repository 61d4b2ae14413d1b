/* fleet.h - what the replicas of a fleet tell each other through the shared store, and what each makes of it.
 *
 * Owner: the control loop; one a process, and only where the store is shared (--redis-url).
 * Life:  new -> set_fleet on every change -> close. Sends a report every interval_ms from new on.
 * Flow:  a heartbeat: own report out and all others' in (one TABLE_SYNC a table), then what has come is put where the request path reads it: atomics of workers, the
 *        prefix index, the registry. Nothing on the request path waits for it.
 * Cost:  a heartbeat is a handful of pipelined commands however many requests there were; others' reports are parsed once a heartbeat.
 *
 * What is told, and how stale it may be (interval = 100 ms, expiry = 2 s):
 *   replicas   who is there: name, incarnation, admin URL, version, policy hash, and what its rooms' numbers begin with. Gone after expiry.
 *   load       each replica's own tokens and requests in flight by worker; the sum of the others is bt_worker_t.others. A dead replica's goes after expiry.
 *   health     what each saw of each worker: a hint to look now, never a verdict (our own probe decides). Breakers that are open elsewhere: ours opens at the first
 *              guilty failure while the hint lasts.
 *   workers    added or removed through any replica's admin API: all follow within two heartbeats. The configuration's own are each replica's own.
 *              Drained or undrained likewise, and that goes for every worker, the configuration's own too. So does another role.
 *   prefixes   which worker was sent which blocks: appended to a log in batches, read by all; feeds the same index that local choices feed.
 *   calls      fleet-wide orders that must reach every replica once: cancel a request by id, forget a session.
 * The store unavailable: everything goes on with what was known last; after expiry others' load counts as nothing. Back again: the next heartbeat tells all anew.
 */
#ifndef BT_FLEET_FLEET_H
#define BT_FLEET_FLEET_H

#include "base/text.h"
#include "cluster/roles/role_switch.h"
#include "cluster/workers.h"
#include "script/shared/prefix_ring.h"
#include "store/store.h"

typedef struct bt_fleet bt_fleet_t;

typedef struct bt_fleet_config { /* strings are copied; store and registry must outlive the share */
    bt_store_t *store;
    const char *space;     /* of this fleet's keys; NULL = "fleet" */
    const char *replica;   /* unique and lasting; NULL = host name and port */
    const char *admin_url; /* how people and `baton fleet` reach this replica; NULL = not told */
    uint64_t interval_ms;  /* 0 = 100 */
    uint64_t expiry_ms;    /* 0 = 2,000 */
    const char *version;   /* of this build; NULL = not told */
    unsigned loops;        /* that mint rooms (cluster/room.h); 0 = not told */
    bt_registry_t *registry;
    struct bt_quotas *quotas; /* told how many replicas there are; NULL = nobody */
    /* Another replica says that the worker is down, and ours says that it is up. May be NULL. On the control loop. */
    void (*on_hint)(void *user, bt_worker_t *w);
    /* A call from another replica (or from this one: it comes back too). On the control loop. */
    void (*on_call)(void *user, bt_str_t name, bt_str_t argument);
    /* What operators have told the fleet of its workers was read, and holds here: once. NULL is fine. */
    void (*on_first_read)(void *user);
    /* Another role was ordered for the worker; as bt_role_switches_begin. NULL = roles stay. */
    int (*begin_role)(void *user, bt_worker_t *w, const bt_role_switch_ask_t *ask, char *err,
                      size_t err_size);
    void *user; /* of all */
} bt_fleet_config_t;

int bt_fleet_new(bt_fleet_t **fleet_p, bt_loop_t *control, const bt_fleet_config_t *config,
                 char *err, size_t err_size);
void bt_fleet_set_workers(bt_fleet_t *fleet, bt_workers_t *workers);
/* What a request loop's policies put into the prefix index comes by this ring; borrowed until close has begun. */
int bt_fleet_add_ring(bt_fleet_t *fleet, bt_prefix_ring_t *ring);
/* Takes this replica's report back where the store answers in time, then frees; done runs. */
void bt_fleet_close(bt_fleet_t *fleet, void (*done)(void *user), void *user);

/* Tells all replicas, once each; at least those that are there now. 0, BT_E_STORE_UNAVAILABLE, BT_E_LIMIT (longer than 4 KiB). */
int bt_fleet_call(bt_fleet_t *fleet, const char *name, bt_str_t argument);
/* An operator's change, already made here: others follow. The worker is borrowed for the call. NULL = told; else why the others do not hear of it now, one static
 * sentence. */
const char *bt_fleet_worker_added(bt_fleet_t *fleet, const char *pool, const bt_worker_t *w);
const char *bt_fleet_worker_removed(bt_fleet_t *fleet, const char *pool, const bt_worker_t *w);
const char *bt_fleet_worker_drained(bt_fleet_t *fleet, const char *pool, const bt_worker_t *w,
                                    bool draining);
/* Another role, begun here: all replicas switch it, those that come later too. */
const char *bt_fleet_worker_role(bt_fleet_t *fleet, const char *pool, const bt_worker_t *w,
                                 const bt_role_switch_ask_t *ask);
/* What was begun here for an order comes to nothing (bt_role_failed_cb): nobody is to go on with it, unless it is tried again. */
void bt_fleet_role_failed(bt_fleet_t *fleet, const bt_worker_t *w, enum bt_role to,
                          bool is_unclear);
/* Why the others would not hear of an order now, one static sentence; NULL: they would. */
const char *bt_fleet_why_untold(const bt_fleet_t *fleet);
/* How long it may be until all who are there have heard of one. */
#define BT_FLEET_SETTLE_MS 2000
/* The order to drain what listens there, in whatever pool, is taken back; nobody needs to have a worker there. How many there were; *why_p, if any: as above. */
unsigned bt_fleet_undrain_url(bt_fleet_t *fleet, bt_str_t url, const char **why_p);

/* How many replicas answered within expiry, this one included; with the store unavailable: as many as were known last. Any thread. */
unsigned bt_fleet_replicas(const bt_fleet_t *fleet);
/* The other replicas that may have minted the room, by its number alone: [{"name":..., "admin":url or null}], all that fit. How many. */
unsigned bt_fleet_room_owners(const bt_fleet_t *fleet, uint64_t room, bt_text_t *out);
/* {"replica":..., "store":{...}, "replicas":[...], "roles":[{"pool":..., "worker":url without its scheme, "here":is it in our registry?, "role":...}],
 * "drained":[the same, without a role]}; for the admin API. */
void bt_fleet_describe(const bt_fleet_t *fleet, bt_text_t *out);

typedef struct bt_fleet_stats {
    uint64_t heartbeats, heartbeats_failed;
    uint64_t replicas;
    uint64_t prefix_sent, prefix_received, prefix_dropped; /* blocks */
    uint64_t calls_sent, calls_received;
    uint64_t lag_us; /* of the last heartbeat: from sending to applied */
} bt_fleet_stats_t;
void bt_fleet_stats(const bt_fleet_t *fleet, bt_fleet_stats_t *stats_p);

#endif
