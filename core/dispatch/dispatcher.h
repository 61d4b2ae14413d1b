/* dispatcher.h - one loop's requests: from the client's exchange to workers and back.
 *
 * Owner: one dispatcher per loop; bt_dispatch_shared_t is the little that all of them share.
 * Life:  new (before the loop runs) -> set_fleet on every change -> drain -> free when live_count is 0.
 * Flow:  http/server -> request -> plan (Lua) -> attempt -> legs -> sink -> http/server.
 * Cost:  one arena, one request struct a request; nothing global is locked but an id shard when a client brings its own id.
 */
#ifndef BT_DISPATCH_DISPATCHER_H
#define BT_DISPATCH_DISPATCHER_H

#include "api/client.h"
#include "base/list.h"
#include "base/slab.h"
#include "base/text.h"
#include "cluster/room.h"
#include "cluster/workers.h"
#include "dispatch/observe.h"
#include "dispatch/stats.h"
#include "generation/generation.h"
#include "http/client.h"
#include "http/server.h"
#include "record/record.h"
#include "script/dialect/dialect.h"
#include "script/policy/policy.h"
#include "store/store.h"

typedef struct bt_dispatch_config {
    bool debug_headers; /* x-baton-* answer headers */
    bool disable_retries;
    bool access_log, access_log_json;
    const char *
        worker_api_key; /* "Authorization: Bearer" sent to workers; NULL = the client's goes through */
    const bt_client_keys_t *client_keys; /* NULL = none asked */
    const char *admin_key;               /* opens the peers' worker paths on the client port */
    bool client_worker_api;              /* without an admin key they are open to everybody */
    const char *const *proxy_paths;      /* --proxy-path, NULL-terminated or NULL */
    const char *dialect_dir, *policy_dir;
    uint64_t stream_keepalive_ms; /* 0 = off */
    uint64_t policy_wait_ms;      /* what admit, route and tick may each wait in all */
    unsigned max_concurrent;      /* whole process; 0 = off */
    bt_upstream_config_t upstream;
} bt_dispatch_config_t;

/* What the peers' worker paths on the client port may do; implemented by admin, called on the request's loop.
 * Answers x itself, now or later. */
typedef void (*bt_worker_paths_cb)(void *user, bt_exchange_t *x);

struct bt_id_table;
struct bt_response_owners;

/* Shared by all loops of the process. */
typedef struct bt_dispatch_shared {
    bt_dispatch_config_t config;
    _Atomic unsigned concurrent; /* requests admitted now */
    _Atomic bool draining;
    struct bt_id_table *ids;              /* live request ids that clients chose */
    struct bt_response_owners *responses; /* /v1/responses id -> worker id */
    bt_worker_paths_cb worker_paths;
    void *worker_paths_user;
    struct bt_dispatcher **dispatchers; /* one per loop; set before the loops run, borrowed */
    unsigned dispatcher_count;
    bt_policy_errors_t policy_errors;  /* read by whoever takes a young generation back */
    bt_record_config_t record;         /* set before the loops run; borrowed strings */
    bt_recorder_t *recorder;           /* borrowed; NULL = no file */
    struct bt_transfer *transfer;      /* the hub of gateway-managed rooms; borrowed; NULL = off */
    const bt_unfinished_t *unfinished; /* the limit of memory; borrowed; NULL = there is none */
    const bt_store_t *store; /* /readiness says how it is; borrowed; NULL = nothing to say */
    /* Another replica may have the request with this id. From any loop; NULL = there are none. */
    void (*cancel_elsewhere)(void *user, bt_str_t id, uint64_t owner);
    void *cancel_elsewhere_user;
    const char *
        space; /* of this fleet's keys in the store; borrowed; NULL = no store, nothing is shared */
    const char *replica;      /* who takes leases; borrowed, set with space */
    struct bt_quotas *quotas; /* behind baton.shared.take; borrowed, set with space */
} bt_dispatch_shared_t;

/* May a request keep that many more bytes of what workers say (--max-buffered-bytes)? */
static inline bool bt_dispatch_shared_fits(const bt_dispatch_shared_t *shared, size_t more)
{
    return shared->unfinished == NULL || bt_unfinished_fits(shared->unfinished, more);
}

int bt_dispatch_shared_init(bt_dispatch_shared_t *shared, const bt_dispatch_config_t *config);
void bt_dispatch_shared_fini(bt_dispatch_shared_t *shared);
/* Cancels the requests of this owner (client.h; 0 = anybody's: an operator asks) with this id (ours, or the client's rid) on
 * whichever loop they live; found on none, on whichever replica. Returns before it has happened. */
void bt_dispatch_shared_cancel(bt_dispatch_shared_t *shared, bt_str_t id, uint64_t owner);
void bt_dispatch_shared_cancel_here(bt_dispatch_shared_t *shared, bt_str_t id,
                                    uint64_t owner); /* not elsewhere: another replica asks */
/* Is this header set allowed in by --client-api-keys-file? *key_p (may be NULL) gets the key, NULL where none is asked for. */
bool bt_dispatch_shared_authorized(const bt_dispatch_shared_t *shared, const bt_head_t *head,
                                   const bt_client_key_t **key_p);
/* Does the head carry --admin-api-key? False when there is no such key. */
bool bt_dispatch_shared_is_admin(const bt_dispatch_shared_t *shared, const bt_head_t *head);

/* Usable workers of one pool, rebuilt when the epoch moved. */
#define BT_MODEL_SETS 8 /* pools whose workers list models: sets kept by model */
struct bt_candidates {
    uint64_t epoch, changes, recheck_at_ms, key, model_hash;
    unsigned pool;
    bt_worker_set_t prefill, decode, single; /* malloc'ed arrays */
    unsigned caps[3];
};

struct bt_upstream_slot {
    bt_upstream_t *up;
    uint64_t worker_id;
    unsigned addr_version;
};

typedef struct bt_dispatcher {
    bt_loop_t *loop;
    bt_dispatch_shared_t *shared;
    bt_workers_t *workers; /* reference */
    bt_store_client_t
        *store; /* this loop's; borrowed; NULL = nothing is shared: bt_dispatcher_set_store */
    bt_quota_client_t *quotas; /* with store */
    bt_dialects_t *dialects;
    bt_generations_t generations; /* of the policies */
    bt_observer_t observer;
    struct bt_candidates *candidates; /* by pool index, then BT_MODEL_SETS by model */
    unsigned pool_count;
    struct bt_upstream_slot *upstreams; /* by worker slot */
    unsigned upstream_count;
    bt_rooms_t rooms;
    bt_slab_t request_slab, background_slab;
    bt_list_t live;       /* requests */
    bt_list_t draining;   /* answered ones whose prefill leg still runs */
    unsigned live_count;  /* requests whose memory is still needed (draining legs included) */
    bt_list_t background; /* release legs and abort calls under way */
    unsigned background_count;
    bt_stats_t stats;
    bt_record_ring_t *records;
    struct bt_models *models; /* answers of /v1/models; NULL = nobody has asked */
    uint64_t view_keys;       /* source of bt_policy_view_t.key */
} bt_dispatcher_t;

/* Loads dialects. err: one line. */
int bt_dispatcher_new(bt_dispatcher_t **d_p, bt_loop_t *loop, bt_dispatch_shared_t *shared,
                      char *err, size_t err_size);
/* The policies of its pools come by d->generations; a pool that has none is served by the default choice. On failure nothing
 * changes. Takes its own reference. */
int bt_dispatcher_set_workers(bt_dispatcher_t *d, bt_workers_t *workers, char *err,
                              size_t err_size);
/* Before the loop runs, and after shared->space, replica and quotas are set: what hooks ask of the fleet's state goes to this client, which is borrowed until NULL is
 * given, on the loop or after it. */
int bt_dispatcher_set_store(bt_dispatcher_t *d, bt_store_client_t *client);
/* What d->generations has prepared serves from here on. */
void bt_dispatcher_commit(bt_dispatcher_t *d);
/* No live requests and no background calls may be left (see bt_dispatcher_idle), except after bt_dispatcher_cancel_all. */
void bt_dispatcher_free(bt_dispatcher_t *d);
bool bt_dispatcher_idle(const bt_dispatcher_t *d);
void bt_dispatcher_cancel_all(bt_dispatcher_t *d);
/* The server's callbacks; the server's user must be the dispatcher. */
extern const bt_server_ops_t bt_dispatcher_server_ops;

/* own_routes.c: what the gateway answers itself. True = handled. */
bool bt_own_routes_handle(bt_dispatcher_t *d, bt_exchange_t *x, enum bt_route route);

/* Connection pool to a worker on this loop; NULL when it has no address yet. */
bt_upstream_t *bt_dispatcher_upstream(bt_dispatcher_t *d, bt_worker_t *w);

/* What /readiness says, as JSON; true = some pool has a usable topology and we are not draining. fleet may be NULL. */
bool bt_readiness_describe(const bt_workers_t *workers, const bt_dispatch_shared_t *shared,
                           bt_text_t *out);
/* One row of the live list, for the admin API; text is JSON objects joined by commas. Runs on the dispatcher's loop. */
void bt_dispatcher_describe(bt_dispatcher_t *d, bt_text_t *out);
/* Whose room this is, on the dispatcher's loop: two members of an object, "request":{a row of the live list},"attempt":{...}. False: it is not open here, nothing is
 * written. hub_room_p: what the hub calls it when it is gateway-managed (another prefill's number for it finds it too), else 0. */
bool bt_dispatcher_describe_room(bt_dispatcher_t *d, uint64_t room, bt_text_t *out,
                                 uint64_t *hub_room_p);
/* Cancels by request id what this owner has sent (0 = anybody's); true when it was found on this loop. */
bool bt_dispatcher_cancel(bt_dispatcher_t *d, bt_str_t request_id, uint64_t owner);

#endif
