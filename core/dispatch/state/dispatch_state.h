/* dispatch_state.h - one loop's requests and what all loops share: data, and what every station may
 * ask of it. Private to dispatch; outside it, include dispatcher.h.
 *
 * Owner: one dispatcher per loop; bt_dispatch_shared_t is the little that all of them share.
 * Life:  dispatcher.c makes and frees them.
 * Flow:  dispatch_state.h <- request_state.h <- attempt_state.h <- the stations <- request.c
 * Cost:  nothing global is locked but an id shard, when a client brings its own id.
 */
#ifndef BT_DISPATCH_STATE_DISPATCH_STATE_H
#define BT_DISPATCH_STATE_DISPATCH_STATE_H

#include "api/client.h"
#include "base/list.h"
#include "base/slab.h"
#include "base/text.h"
#include "cluster/room.h"
#include "cluster/workers.h"
#include "dispatch/state/model_rows.h"
#include "dispatch/state/stats.h"
#include "generation/generation.h"
#include "generation/wait.h"
#include "http/client.h"
#include "http/server.h"
#include "identity/checker.h"
#include "limits/limits.h"
#include "record/record.h"
#include "script/dialect/dialect.h"
#include "store/store.h"
#include "trace/queue.h"

/* Where a policy fails (an error, too long, workers that cannot serve): the default choice serves,
 * or the request ends. FIRST: serves where it is the request's first plan. */
/* Whose tenant a client is that shows a certificate and no key: its name's, its organization's; or certificates name nobody. */
enum bt_certificate_tenant { BT_TENANT_BY_NAME, BT_TENANT_BY_ORGANIZATION, BT_TENANT_BY_NO_CERT };

enum bt_policy_on_error { BT_ON_ERROR_FIRST, BT_ON_ERROR_DEFAULT, BT_ON_ERROR_END };

typedef struct bt_dispatch_config {
    bool debug_headers; /* x-baton-* answer headers */
    bool disable_retries;
    bool access_log, access_log_json;
    const char *worker_api_key; /* for workers; NULL = the client's key goes through */
    bool asks_identity;         /* clients show keys or tokens, which workers never see */
    bt_identity_t anonymous;    /* who shows none of them; scopes 0: refused */
    enum bt_certificate_tenant certificate_tenant;
    const char *admin_key;          /* opens the peers' worker paths on the client port */
    bool client_worker_api;         /* without an admin key they are open to everybody */
    const char *const *proxy_paths; /* --proxy-path, NULL-terminated or NULL */
    const char *dialect_dir, *policy_dir;
    bool warm_pairs;              /* --warm-pairs */
    uint64_t stream_keepalive_ms; /* 0 = off */
    enum bt_policy_on_error policy_on_error;
    uint64_t policy_wait_ms; /* what admit, route and tick may each wait in all */
    unsigned max_concurrent; /* whole process; with a queue, of each pool; 0 = off */
    unsigned queue_size;     /* of each pool; UINT_MAX = not said: no queue */
    uint64_t queue_timeout_ms;
    uint64_t queue_max_bytes;  /* bodies of those that wait, of each pool; 0 = no limit */
    uint64_t queue_aging_ms;   /* 0 = strict priorities */
    const char *queue_weights; /* tenant_weights.h; NULL = all are 1 */
    bt_upstream_config_t upstream;
} bt_dispatch_config_t;

/* The peers' worker paths on the client port: admin's, called on the request's loop. Answers x, now
 * or later. who: NULL = the admin key, or anyone; borrowed for the call. */
typedef void (*bt_worker_paths_cb)(void *user, bt_exchange_t *x, const bt_identity_t *who);

/* Shared by all loops of the process. */
typedef struct bt_dispatch_shared {
    bt_dispatch_config_t config;
    bt_identities_t *identities; /* set before the loops run; borrowed; NULL = all are anonymous */
    _Atomic bool draining;
    _Atomic bool replaced;    /* draining, because another process serves at our ports */
    struct bt_queues *queues; /* queue.c; NULL = nobody waits */
    struct bt_id_table *ids;  /* live request ids that clients chose */
    struct bt_response_owners *responses; /* /v1/responses id -> worker id */
    bt_worker_paths_cb worker_paths;
    void *worker_paths_user;
    struct bt_dispatcher **dispatchers; /* one per loop; set before the loops run, borrowed */
    unsigned dispatcher_count;
    bt_policy_errors_t policy_errors; /* read by whoever takes a young generation back */
    bt_record_config_t record;        /* set before the loops run; borrowed strings */
    bt_recorder_t *recorder;          /* borrowed; NULL = no file */
    bt_trace_queue_t *traces;         /* likewise; borrowed; NULL = no traces */
    double trace_sample;
    uint64_t trace_slow_us;            /* 0 = none are slow */
    struct bt_transfer *transfer;      /* the hub of gateway-managed rooms; borrowed; NULL = off */
    const char *metaserver_url;        /* as decode reaches it; borrowed; NULL = there is none */
    const bt_unfinished_t *unfinished; /* the limit of memory; borrowed; NULL = there is none */
    const bt_store_t *store; /* /readiness says how it is; borrowed; NULL = nothing to say */
    /* Another replica may have the request with this id. From any loop; NULL = there are none. */
    void (*cancel_elsewhere)(void *user, bt_str_t id, uint64_t owner);
    void *cancel_elsewhere_user;
    const char *space;   /* of this fleet's keys in the store; borrowed; NULL = nothing is shared */
    const char *replica; /* who takes leases; borrowed, set with space */
    struct bt_quotas *quotas; /* behind baton.shared.take and limits; borrowed, set with space */
    bt_limits_t *limits;      /* borrowed; NULL = there are none */
    /* Written by every request, so on a line of its own. */
    _Alignas(64) _Atomic unsigned concurrent; /* admitted now */
} bt_dispatch_shared_t;

/* May a request keep that many more bytes of what workers say (--max-buffered-bytes)? */
static inline bool bt_dispatch_shared_fits(const bt_dispatch_shared_t *shared, size_t more)
{
    return shared->unfinished == NULL || bt_unfinished_fits(shared->unfinished, more);
}

/* What x->user points to: whoever answers an exchange later hears of its client through this. */
struct bt_handler {
    void (*gone)(struct bt_handler *h);
    void (*drain)(struct bt_handler *h); /* may be NULL */
};

struct bt_upstream_slot {
    bt_upstream_t *up;
    uint64_t worker_id;
    unsigned addr_version;
    unsigned background_running; /* of this loop, at the worker; background_call.c */
    struct background_call *background_first, *background_last; /* those that wait */
};

/* A walk over a loop's requests that takes several turns: however many there are, no turn looks at more than its walker asks for. */
struct bt_request;
typedef struct bt_request_walk {
    bt_list_t link; /* in d->walks while it is under way */
    bt_list_t *at;  /* who is next; NULL = it is not under way */
} bt_request_walk_t;

typedef struct bt_dispatcher {
    bt_loop_t *loop;
    bt_dispatch_shared_t *shared;
    bt_workers_t *workers;     /* reference */
    bt_store_client_t *store;  /* this loop's; borrowed; NULL = nothing is shared */
    bt_quota_client_t *quotas; /* with store */
    bt_limits_view_t limits;   /* those in force */
    bt_checker_t *checker;     /* NULL = all are anonymous */
    bt_dialects_t *dialects;
    bt_generations_t generations; /* of the policies */
    struct bt_observer *observer;
    bool has_observe;                 /* some policy in force has the hook */
    struct bt_candidates *candidates; /* by pool index, then BT_MODEL_SETS by model */
    unsigned pool_count;
    struct bt_upstream_slot *upstreams; /* by worker slot; upstreams.c */
    unsigned upstream_count;
    bt_rooms_t rooms;
    bt_slab_t request_slab, background_slab;
    bt_list_t live;      /* requests, the oldest first */
    unsigned live_count; /* of them */
    bt_list_t
        draining; /* those whose client has its answer: a leg may run, or the turn has not ended */
    bt_list_t walks;           /* over them that are under way */
    unsigned background_count; /* calls that no request waits for, under way */
    bt_stats_t stats;
    bt_model_stats_t model_stats;
    bt_record_ring_t *records;
    struct bt_models *models; /* answers of /v1/models; NULL = nobody has asked */
    bt_mail_t lost_mail;      /* lost_legs.c */
    bt_timer_t lost_timer;
    bt_request_walk_t lost_walk;
    uint64_t lost_next_ms;          /* when the grace of another loss ends; 0 = of none */
    bool is_lost_again;             /* one more was found meanwhile */
    _Atomic bool is_lost_mailed;    /* on its way */
    struct bt_tokenizer *tokenizer; /* tokenize.c; NULL = no engine was asked for ids */
    struct bt_warmups *warmups;     /* of the loop that warms pairs; NULL = not this one */
    uint64_t view_keys;             /* source of bt_policy_view_t.key */
} bt_dispatcher_t;

static inline bt_wait_ctx_t bt_dispatcher_wait_ctx(const bt_dispatcher_t *d)
{
    return (bt_wait_ctx_t){.loop = d->loop,
                           .budget = d->shared->config.upstream.budget,
                           .store = d->store,
                           .quotas = d->quotas,
                           .space = d->shared->space,
                           .replica = d->shared->replica};
}

/* ---- dispatcher.c ---- */
/* The live ones from the oldest on, then those that are draining. Who comes meanwhile is seen, too. */
void bt_request_walk_start(bt_dispatcher_t *d, bt_request_walk_t *walk);
struct bt_request *bt_request_walk_next(bt_dispatcher_t *d,
                                        bt_request_walk_t *walk); /* NULL: over */
/* Out of its list, for another one or for good. */
void bt_request_unlink(bt_dispatcher_t *d, bt_list_t *link);

/* ---- upstreams.c ---- */
/* Connection pool to a worker on this loop; NULL when it has no address yet. */
bt_upstream_t *bt_dispatcher_upstream(bt_dispatcher_t *d, bt_worker_t *w);

/* ---- ids.c: live request ids that clients chose ---- */
struct bt_id_table *bt_ids_new(void);
void bt_ids_free(struct bt_id_table *t);
bool bt_ids_add(struct bt_id_table *t, bt_str_t id);
void bt_ids_remove(struct bt_id_table *t, bt_str_t id);
bool bt_ids_has(struct bt_id_table *t, bt_str_t id);
/* Could the live request of another client send this id on a retry (-a2) or for a child (-1)? */
bool bt_ids_derives(struct bt_id_table *t, bt_str_t id);

#endif
