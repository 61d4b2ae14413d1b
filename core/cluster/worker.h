/* worker.h - one inference server: what it is (fixed) and how it is doing (atomics).
 *
 * Owner: the fleet snapshot and every running leg hold references (atomic count).
 * Life:  created by the control loop from a spec; a changed spec makes a new worker; freed with the last reference.
 * Flow:  the fixed part is immutable after bt_worker_new; the live part is written by any loop through atomics.
 * Cost:  live counters sit on cache lines of their own.
 */
#ifndef BT_CLUSTER_WORKER_H
#define BT_CLUSTER_WORKER_H

#include "base/str.h"
#include "cluster/breaker.h"
#include "cluster/capability.h"
#include "cluster/changes.h"
#include "cluster/kv_address.h"
#include "cluster/ledger_totals.h"

#include <stdatomic.h>
#include <sys/socket.h>

#define BT_WORKER_MODELS_MAX 16
#define BT_WORKER_NAME_MAX 63
#define BT_KV_ENDPOINT_MAX 240
#define BT_WORKER_CHILDREN_MAX 8

/* What a worker has said of itself by ZeroMQ (core/transfer). When it says something else, it is another worker. */
typedef struct bt_registered {
    char kv_address[BT_KV_ADDRESS_MAX + 1]; /* "" = it has said nothing */
    int dp_size, tp_size;                   /* 0 = not said */
    enum bt_transfer_mode mode;
    bool is_new; /* nobody else has named this worker: it goes when it falls silent */
} bt_registered_t;
bool bt_registered_same(const bt_registered_t *a, const bt_registered_t *b); /* but is_new */

/* Who may name a worker. It is one worker, whoever names it, and goes when nobody does any more. */
enum bt_source {
    BT_NAMED_CONFIG,     /* the file and the flags */
    BT_NAMED_API,        /* the admin API, here or at another replica */
    BT_NAMED_ENGINE,     /* it has registered itself (bt_registered_t.is_new) */
    BT_NAMED_FILE,       /* --workers-file */
    BT_NAMED_DNS,        /* --workers-dns */
    BT_NAMED_KUBERNETES, /* --workers-kubernetes */
    BT_NAMED_COUNT
};
#define BT_NAMED_BIT(source) (1U << (source))
/* Nobody gives their word by hand. */
#define BT_NAMED_FOUND                                                                             \
    (BT_NAMED_BIT(BT_NAMED_FILE) | BT_NAMED_BIT(BT_NAMED_DNS) | BT_NAMED_BIT(BT_NAMED_KUBERNETES))
const char *bt_source_name(
    enum bt_source source); /* "config", "api", "engine", "file", "dns", "kubernetes" */

/* What the configuration, a flag or the admin API says. Strings are malloc'ed, owned by the spec; NULL = not said. */
typedef struct bt_worker_spec {
    char *url; /* "http[s]://host:port[/prefix]"; "http://host:port@rank" pins a DP rank */
    char *
        name; /* default: "<role>-<host>:<port>" is NOT used: names go to clients, so "p0", "d1", "w2" ... */
    enum bt_role role;
    char *models[BT_WORKER_MODELS_MAX];
    unsigned model_count;  /* 0 = whatever the pool serves */
    enum bt_engine engine; /* UNKNOWN = derived from the connector (sglang) or from probing */
    char *connector;       /* as in the engine's own configuration, any case */
    char *children[BT_WORKER_CHILDREN_MAX]; /* of MultiConnector */
    unsigned child_count;
    char *dispatch_profile;
    int bootstrap_port; /* SGLang bootstrap or NIXL side channel; 0 = unknown, -1 = none */
    int dp_size, tp_size, pp_size; /* 0 = not said (1) */
    int dp_rank;                   /* pinned rank, -1 = none */
    char *engine_id;               /* nixl_push: KV engine id; NULL = learned */
    char *kv_host;                 /* nixl_push: side channel host; NULL = url's host */
    char *kv_address; /* p2p_nccl, moriio: as the engine would register it; NULL = it registers */
    char *
        kv_events; /* "tcp://host:port" where its engine publishes KV events; NULL = not followed */
    char *kv_events_replay; /* likewise, where it says them again */
    char *version;          /* engine version, for pairing */
    char *transfer_group;
    uint64_t lease_ms; /* 0 = default by engine and version */
    char *zone;
    char *labels;  /* "k=v,k=v" */
    char *api_key; /* key sent to this worker; NULL = the gateway's worker key */
    char *tls_ca, *tls_cert,
        *tls_key;               /* of https://; NULL = --worker-tls-*, else the system's CAs */
    char *tls_name;             /* whom its certificate must be for; NULL = the url's host */
    bt_registered_t registered; /* copied, not compared: the configuration does not know it */
} bt_worker_spec_t;

void bt_worker_spec_init(bt_worker_spec_t *spec);
void bt_worker_spec_fini(bt_worker_spec_t *spec);
int bt_worker_spec_copy(bt_worker_spec_t *to, const bt_worker_spec_t *from);
bool bt_worker_spec_same(const bt_worker_spec_t *a,
                         const bt_worker_spec_t *b); /* names are not compared */

enum bt_health { BT_HEALTH_UNKNOWN, BT_HEALTH_UP, BT_HEALTH_DOWN, BT_HEALTH_DRAIN };
const char *bt_health_name(enum bt_health h);

/* Load sample that the engine itself reported. */
typedef struct bt_load_sample {
    _Atomic uint64_t at_ms; /* 0 = never */
    _Atomic int64_t running, waiting;
    _Atomic int64_t blocked;       /* of waiting: for want of room there; -1 = not told */
    _Atomic uint32_t kv_used_ppm;  /* parts per million of KV cache in use */
    _Atomic int64_t total_tokens;  /* SGLang num_total_tokens; -1 unknown */
    _Atomic int64_t started_since; /* legs we started since the sample */
} bt_load_sample_t;

/* Routes that vLLM has only when it was started with --enable-scale-out (0.30 and later). */
enum { BT_OPTIONAL_TOKENS = 1, BT_OPTIONAL_RENDER = 2 };

#define BT_ENGINE_ID_MAX 128
typedef struct bt_engine_id {
    char text[BT_ENGINE_ID_MAX];
} bt_engine_id_t;

/* Partners that a decode has been warmed with (warm.h). */
#define BT_WARM_PARTNERS 64
typedef struct bt_worker_warm {
    _Atomic unsigned life;      /* one more whenever its engine may be another process */
    _Atomic unsigned last_life; /* in which it was last in a warm pair, plus one; 0 = never */
    unsigned running;           /* warm-ups that it is in; of the loop that warms */
    _Atomic uint64_t partners[BT_WARM_PARTNERS];
} bt_worker_warm_t;

/* Where a change of its role stands (role_switch.h). UNKNOWN: its engine may have either. */
enum bt_switch { BT_SWITCH_NONE, BT_SWITCH_DRAINING, BT_SWITCH_ASKING, BT_SWITCH_UNKNOWN };

/* Plans over N workers read N of these, from all loops: what requests write lies apart, or each plan would miss N lines. */
typedef struct bt_worker {
    /* ---- fixed ---- */
    bt_worker_spec_t spec;
    unsigned slot;         /* index for per-loop arrays; unique among live workers */
    uint32_t ledger_place; /* of its totals */
    uint64_t since_ms;     /* this incarnation is known since then */
    uint64_t id;           /* never reused in this process; what a policy sees as worker.id */
    char *name;
    char *host; /* of url, without brackets */
    unsigned port;
    char *base_path;           /* "" or "/prefix" */
    uint64_t place_hash;       /* of host, port, path and rank: worker_index.h */
    struct bt_tls_client *tls; /* NULL = plain */
    char *authority;           /* "host:port" for the Host header */
    enum bt_engine engine;
    enum bt_capability capability;
    const char *dialect; /* static name or NULL */
    const char
        *refusal; /* why it may not take part in a pair, or NULL; hybrids need no connector: NULL */
    bt_pair_rules_t pair_rules;
    unsigned dp_size, tp_size, pp_size;
    uint64_t lease_ms;
    void (*on_free)(
        void *user,
        unsigned slot); /* the registry takes its slot back; any thread; NULL = nobody's */
    void *on_free_user;
    char *refusal_text; /* where refusal names something; owned */
    bool
        is_gateway_managed; /* its connector's rooms are opened by the gateway at the worker's own agents */
    bool is_trigger;     /* one of a pair whose decode calls the gateway's metaserver */
    bool asks_bootstrap; /* a prefill whose engine ids its bootstrap server tells (engine_ids.h) */
    const char *kv_address; /* said or registered; NULL = not known */
    bool must_register;     /* its legs need that address, and the configuration does not say it */
    bool serves_alone;      /* hybrids, and who computes a prompt that nothing is said of */
    bt_worker_spec_t *said; /* by its source, where its role was switched since; NULL = spec */
    uint64_t succeeds;      /* id of the object that was the same process before; 0 = none */
    /* ---- live: read by every plan, written rarely ---- */
    _Alignas(64) _Atomic int64_t
        others_tokens[BT_PHASE_COUNT]; /* of the fleet's other gateways (core/fleet) */
    _Atomic int64_t others_requests[BT_PHASE_COUNT];
    _Atomic uint64_t kv_parts; /* of the index of KV blocks (script/shared/kv_hits.h); 0 = none */
    struct bt_kv_trust {       /* kv_trust.h */
        _Atomic bool is_lost;
        _Atomic bool is_told;    /* its usage has told of cached tokens */
        _Atomic unsigned misses; /* in a row */
    } kv_trust;
    _Atomic int health;             /* enum bt_health */
    _Atomic uint64_t lost_at_ms;    /* it was found lost then (loss.h); 0 = it is not */
    _Atomic uint64_t lost_since_ms; /* the first evidence of that */
    _Atomic bool has_ended;         /* a source knows that its process is gone */
    _Atomic unsigned routes_off; /* bits BT_OPTIONAL_...: it has said that it does not serve them */
    _Atomic bool draining;       /* by an operator, or removed */
    _Atomic bool is_succeeded;   /* its process is another object now, which counts instead of it */
    _Atomic int switching;       /* enum bt_switch: no new requests unless NONE */
    enum bt_role switch_to;      /* of the last change; control loop only, as the next */
    char switch_why[160];        /* why it failed; "" = it did not */
    uint64_t kv_epoch;           /* gateway/kv_events.c, control loop only */
    bool is_kv_followed;         /* likewise */
    uint64_t role_asked_ms;      /* role_report.h, control loop only; 0 = not since it came up */
    bool is_role_asked;
    _Atomic unsigned sources;                  /* bits 1 << BT_NAMED_...; the registry's */
    _Atomic uint64_t named_ms[BT_NAMED_COUNT]; /* unix time; 0 = it does not name it */
    _Atomic bool
        has_agents; /* all agents of a gateway-managed worker are registered (core/transfer) */
    /* A prefill whose decode's answer did not begin with its token: dispatch/attempt/first_token.h. */
    _Atomic bool first_token_differs;
    _Atomic bool is_registered; /* and not long ago (core/transfer) */
    uint64_t registered_at_ms;  /* control loop only; 0 = never */
    uint64_t word_at_ms;        /* likewise: what it says has changed then */
    _Atomic uint64_t
        suspect_partner; /* id of the partner of the last pair failure that could be either's; 0 = none */
    _Atomic uint64_t pairs_rest_until_ms; /* none of its pairs rests longer (pair_breaker.h) */
    bt_breaker_t breaker;
    pthread_mutex_t
        lock; /* guards what follows; never on the request path except addr when opening a connection */
    struct sockaddr_storage addr;
    _Atomic bool has_addr;
    _Atomic unsigned addr_version; /* bumped when addr changes */
    _Atomic bool resolve_soon;     /* a connect failed: the monitor looks the name up again */
    _Atomic bool has_learned;      /* `learned` holds; who sees it takes the lock */
    struct bt_learned {            /* nixl_push: what the first hand-off reply taught; under lock */
        char engine_id[128], host[128];
        int port, tp_size, pp_size;
    } learned;
    bt_engine_id_t *engine_ids; /* by data-parallel rank (engine_ids.h); under lock */
    unsigned engine_id_count;
    _Atomic bool has_engine_ids;
    _Atomic unsigned engine_ids_version; /* one more when a known one is gone or another */
    _Atomic bool query_soon;             /* the monitor checks it at once */
    _Atomic uint64_t losses_total;
    struct bt_worker_seen {
        uint64_t legs, tokens, cached;
    } seen; /* of what is counted below, by the advisor; control loop only */
    bt_worker_warm_t warm;
    /* ---- counted: written by every request ---- */
    _Alignas(64) _Atomic unsigned refs;
    _Atomic unsigned rank_turn;
    _Atomic unsigned *rank_legs; /* by rank, of those whose rank we know; NULL where there is one */
    _Atomic unsigned limited_legs; /* of pools with a limit (--engine-request-limit) */
    _Atomic unsigned background_running, background_queued; /* calls of all loops (dispatch) */
    _Atomic uint64_t last_bytes_ms;                         /* some leg got bytes from it */
    _Atomic int64_t ttft_ema_us, tpot_ema_us;               /* 0 = none yet */
    _Atomic int64_t transfer_bytes; /* of KV that open rooms still miss (core/transfer) */
    bt_load_sample_t load;
    _Atomic uint64_t prompt_tokens_total, cached_tokens_total; /* as its prefill replies say */
    _Atomic uint64_t output_tokens_total; /* of answers that its decode legs have made */
    _Atomic uint64_t
        legs_total[4][4]; /* [prefill, decode, single, encode][ok, guilty, innocent, cancelled] */
} bt_worker_t;

/* Copies spec; derives capability. BT_E_CONFIG with a one-line reason in err when the url is unusable. */
int bt_worker_new(bt_worker_t **worker_p, const bt_worker_spec_t *spec, uint64_t id, unsigned slot,
                  const bt_breaker_config_t *breaker, char *err, size_t err_size);
uint64_t bt_worker_place_hash(const char *host, unsigned port, const char *base_path, int dp_rank);
/* Whom its certificate must be for. */
const char *bt_worker_tls_name(const bt_worker_t *w);
bt_worker_t *bt_worker_ref(bt_worker_t *w);
void bt_worker_unref(bt_worker_t *w); /* NULL is fine; from any thread */

/* health UP, not draining, breaker allows, and (prefill, decode) a connector that is not refused and, where it is gateway-managed, all
 * its agents here, or, where its bootstrap server tells them, its engine ids known. */
bool bt_worker_usable(const bt_worker_t *w, uint64_t now_ms);
/* Only its breaker keeps requests from it, and one of them is under way to find out whether it must. */
bool bt_worker_is_probed(const bt_worker_t *w);
/* One word why it is not usable ("down", "starting", "draining", "switching_role", "role_unknown", "scaling", "breaker_open", "unknown_connector",
 * "no_agent", "no_metaserver", "no_engine_id", "not_registered"), or NULL. */
const char *bt_worker_why_not(const bt_worker_t *w, uint64_t now_ms);
/* Would be usable if only its connector were not refused and its agents were here. */
bool bt_worker_is_healthy(const bt_worker_t *w, uint64_t now_ms);
bool bt_worker_serves_model(const bt_worker_t *w, bt_str_t model); /* true when it lists none */
/* Copies the address; false when there is none yet (name not resolved). */
bool bt_worker_get_addr(bt_worker_t *w, struct sockaddr_storage *addr_p);
void bt_worker_set_addr(bt_worker_t *w, const struct sockaddr_storage *addr);
/* Is there another gateway whose load may be told? Set by core/fleet. Then values of the ledger are a moment old, all gateways see
 * the same least loaded worker, and near-equals must be chosen among by chance. */
extern _Atomic bool bt_worker_has_others;
static inline bool bt_worker_is_shared(void)
{
    return atomic_load_explicit(&bt_worker_has_others, memory_order_relaxed);
}
/* Has this gateway one, for the decodes of triggers? Set before the first worker is looked at. */
extern _Atomic bool bt_worker_has_metaserver;
/* Ledgers that differ by less than an eighth of what others have on a worker, on average, count as equal. */
#define BT_WORKER_NEAR 8
/* What is on it by all that is known: our own ledger, exact, and what other gateways have told, a moment old. */
static inline bt_ledger_total_t *bt_worker_total(const bt_worker_t *w, enum bt_phase phase)
{
    return bt_ledger_total_at(phase, w->ledger_place);
}
static inline int64_t bt_worker_tokens(const bt_worker_t *w, enum bt_phase phase)
{
    return bt_ledger_tokens(phase, w->ledger_place);
}
static inline int64_t bt_worker_requests(const bt_worker_t *w, enum bt_phase phase)
{
    return bt_ledger_requests(phase, w->ledger_place);
}
/* What other gateways have told, anew; and what is our own of it. On the control loop. */
void bt_worker_set_others(bt_worker_t *w, enum bt_phase phase, int64_t tokens, int64_t requests);
static inline int64_t bt_worker_own_tokens(const bt_worker_t *w, enum bt_phase phase)
{
    return bt_worker_tokens(w, phase) -
           atomic_load_explicit(&w->others_tokens[phase], memory_order_relaxed);
}
static inline int64_t bt_worker_own_requests(const bt_worker_t *w, enum bt_phase phase)
{
    return bt_worker_requests(w, phase) -
           atomic_load_explicit(&w->others_requests[phase], memory_order_relaxed);
}
/* Does a request of this gateway run on it? */
static inline bool bt_worker_has_legs(const bt_worker_t *w)
{
    return bt_worker_own_requests(w, BT_PHASE_PREFILL) > 0 ||
           bt_worker_own_requests(w, BT_PHASE_DECODE) > 0;
}
/* Kinds (capability.h) that it can serve now as one of a pair; 0 for a hybrid. A prefill of nixl_push has bootstrap only when it is
 * known where its agent is: said by the configuration, or learned from a hand-off. */
unsigned bt_worker_kinds(bt_worker_t *w);
/* One leg more, where it has fewer than `limit`. Each taken place is given back once. */
bool bt_worker_take_place(bt_worker_t *w, unsigned limit);
void bt_worker_give_place_back(bt_worker_t *w);
static inline bool bt_worker_is_full(const bt_worker_t *w, unsigned limit)
{
    return atomic_load_explicit(&w->limited_legs, memory_order_relaxed) >= limit;
}
/* Of a worker with dp_size > 1. The next rank, in turn; and one for a leg, given back once: `wanted`, or
 * where that is -1 the one with the fewest, in turn among equals. */
unsigned bt_worker_next_rank(bt_worker_t *w);
int bt_worker_take_rank(bt_worker_t *w, int wanted);
void bt_worker_give_rank_back(bt_worker_t *w, int rank);
/* Exponential moving average with weight 1/8. */
void bt_worker_note_ttft(bt_worker_t *w, uint64_t us);
void bt_worker_note_tpot(bt_worker_t *w, uint64_t us);
static inline void bt_worker_note_bytes(bt_worker_t *w, uint64_t now_ms)
{
    atomic_store_explicit(&w->last_bytes_ms, now_ms, memory_order_relaxed);
}
/* Lost: what waits on it is to end. When that was found; 0 = it is not lost. Lasts until it is
 * anything but down. */
static inline uint64_t bt_worker_lost_at(const bt_worker_t *w)
{
    return atomic_load_explicit(&w->lost_at_ms, memory_order_acquire);
}
static inline bool bt_worker_is_lost(const bt_worker_t *w)
{
    return bt_worker_lost_at(w) != 0;
}
static inline uint64_t bt_worker_lost_since(const bt_worker_t *w)
{
    return atomic_load_explicit(&w->lost_since_ms, memory_order_relaxed);
}
void bt_worker_set_lost(bt_worker_t *w, uint64_t since_ms, uint64_t now_ms);
/* Its engine is, or may be, another process: what it had set up with partners, and what it has said of its KV agent, is gone. */
static inline void bt_worker_restarted(bt_worker_t *w)
{
    atomic_store_explicit(&w->has_learned, false, memory_order_release);
    atomic_fetch_add_explicit(&w->warm.life, 1, memory_order_release);
    bt_workers_changed();
}
/* To be called when it was set draining or switching, was put into a pool, or has registered what it must, or no longer has: whether
 * its breaker counts has changed. */
void bt_worker_note_service(bt_worker_t *w);
void bt_worker_set_health(bt_worker_t *w, enum bt_health h,
                          const char *why); /* logs the change; bumps the fleet epoch */
#endif
