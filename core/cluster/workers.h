/* workers.h - the set of pools and workers: an immutable snapshot per change, and the registry that makes them.
 *
 * Owner: the registry belongs to the control loop; snapshots are shared by reference count.
 * Life:  a loop holds one snapshot at a time (swapped by mailbox); requests hold the workers they use, not the snapshot.
 * Flow:  registry change -> new snapshot -> publish callback -> every loop swaps.
 * Cost:  a change costs O(workers); reading costs nothing.
 */
#ifndef BT_CLUSTER_WORKERS_H
#define BT_CLUSTER_WORKERS_H

#include "cluster/advice.h"
#include "cluster/retry_budget.h"
#include "cluster/worker.h"
#include "limits/estimate.h"

typedef struct bt_pool_deadlines {
    uint64_t connect_ms, prefill_reply_ms, first_event_ms, stall_ms,
        total_ms; /* 3 s, 300 s, 300 s, 60 s, 1800 s */
    uint64_t
        answer_ms; /* first byte of an answer that is not streamed (it comes when all is done); 0 = total_ms */
    uint64_t callback_ms; /* of a trigger: from asking decode to its call for prefill; 60 s */
    uint64_t
        tokenize_ms; /* an engine's answer to /tokenize, before the plan; 0 = it is not asked */
    uint64_t room_start_ms, room_stall_ms,
        room_repair_ms; /* of gateway-managed rooms (core/transfer): opening to the first byte, no progress, an orphan's wait; 300 s, 60 s, 5 s */
} bt_pool_deadlines_t;

/* Streams whose first token goes out with prefill's reply. */
enum bt_relay_first_token {
    BT_RELAY_FIRST_TOKEN_OFF,
    BT_RELAY_FIRST_TOKEN_COMPLETIONS,
    BT_RELAY_FIRST_TOKEN_ALL
};

typedef struct bt_pool_spec {
    char *name; /* "default" */
    char *models[BT_WORKER_MODELS_MAX];
    unsigned model_count;                 /* 0 = any model */
    char *policy;                         /* name or path; NULL = least_load */
    char *prefill_policy, *decode_policy; /* NULL = policy */
    bt_pool_deadlines_t deadlines;
    unsigned max_fanout;           /* 64 */
    unsigned max_attempts;         /* 3 */
    unsigned max_replays;          /* 3 */
    unsigned retry_budget_percent; /* 0 = no limit */
    unsigned engine_request_limit; /* legs that a worker may have at once; 0 = no limit */
    bool
        refuse_recompute; /* hand-off reply without parameters is a failure instead of a local recompute at decode */
    /* Answers go on at another worker, by their token ids: what vLLM-Ascend's decode gives up (true), what is lost with its decode
     * (false). */
    bool replay_recomputed, replay_lost_decode;
    enum bt_relay_first_token relay_first_token;
    uint64_t ttft_target_ms, itl_target_ms; /* of goodput; 0 = none */
} bt_pool_spec_t;
void bt_pool_spec_init(bt_pool_spec_t *spec);
void bt_pool_spec_fini(bt_pool_spec_t *spec);
int bt_pool_spec_copy(bt_pool_spec_t *to, const bt_pool_spec_t *from);

typedef struct bt_worker_set { /* pointers owned by the snapshot */
    bt_worker_t **items;
    unsigned count;
} bt_worker_set_t;

typedef struct bt_pool_stat { /* shared over snapshots, so it has its own count */
    bt_breaker_group_t *breakers[BT_ROLE_COUNT]; /* by role */
    _Atomic unsigned pairs, warm_pairs;          /* --warm-pairs: that could be, that are warm */
    bt_pool_advice_t advice;                     /* advisor.c's last word */
    int role_wish;            /* role_auto.c: -1 fewer prefill, 1 more, 0 neither */
    unsigned role_wish_looks; /* for so many looks in a row; control loop only */
    _Atomic unsigned refs;
    /* ---- written by every request ---- */
    _Alignas(64) bt_estimate_t estimate; /* of its prompts' tokens */
    bt_retry_budget_t retry_budget;
} bt_pool_stat_t;

typedef struct bt_worker_pool {
    bt_pool_spec_t spec;
    unsigned index;
    bt_worker_set_t prefill, decode, hybrid, encode, all;
    bt_worker_set_t alone; /* who serves without a partner: hybrids first, then decode, prefill */
    bool has_models;       /* some worker serves listed models only */
    bt_pool_stat_t *stat;
} bt_worker_pool_t;

typedef struct bt_workers {
    uint64_t epoch; /* one more with every snapshot */
    bt_worker_pool_t *pools;
    unsigned pool_count;
    unsigned slot_count;                /* upper bound of worker->slot + 1 */
    _Alignas(64) _Atomic unsigned refs; /* written by every request, from all loops */
} bt_workers_t;

bt_workers_t *bt_workers_ref(bt_workers_t *f);
void bt_workers_unref(bt_workers_t *f);
/* Pool that lists the model, else the first pool without a list, else NULL. A request that names no model (empty) goes to the
 * first pool without a list, else to the first pool. */
const bt_worker_pool_t *bt_workers_route(const bt_workers_t *f, bt_str_t model);
/* Borrowed from the snapshot. A url matches by host, port, path and rank, however it is spelled. */
bt_worker_t *bt_workers_find(const bt_workers_t *f, bt_str_t name_or_url);
/* The pool in which it stands; NULL: it is none of these. */
const bt_worker_pool_t *bt_workers_pool_of(const bt_workers_t *f, const bt_worker_t *w);

/* May P and D work as a pair? NULL = yes, else one static sentence (no common dialect, tp ratio, versions, group, model). */
const char *bt_workers_pair_refusal(const bt_worker_t *p, const bt_worker_t *d);

/* What the roles present allow right now. */
enum bt_topology { BT_TOPOLOGY_NONE, BT_TOPOLOGY_PAIR, BT_TOPOLOGY_SINGLE, BT_TOPOLOGY_DEGRADED };
/* A snapshot of these workers: copies specs, takes references. counts[i] workers of pool i, in order. For the registry. */
int bt_workers_new(bt_workers_t **workers_p, const bt_pool_spec_t *pools,
                   bt_pool_stat_t *const *stats, unsigned pool_count,
                   bt_worker_t *const *const *workers, const unsigned *counts);
bt_pool_stat_t *bt_pool_stat_new(void);
void bt_pool_stat_unref(bt_pool_stat_t *stat); /* NULL is fine */

/* Looks at usable workers only. A pair that is refused is never papered over: while a decode worker is healthy, prefill
 * workers do not serve alone. why (size >= 256) gets the reasons when NONE. */
enum bt_topology bt_workers_topology(const bt_worker_pool_t *pool, uint64_t now_ms, char *why,
                                     size_t why_size);

/* ---- registry (control loop) ---- */
typedef struct bt_registry bt_registry_t;
typedef void (*bt_registry_publish_cb)(
    void *user, bt_workers_t *workers); /* takes a reference of its own if it keeps it */
int bt_registry_new(bt_registry_t **registry_p, const bt_breaker_config_t *breaker,
                    bt_registry_publish_cb publish, void *user);
void bt_registry_free(bt_registry_t *r);
/* Replaces the pools and all that the configuration names (start, SIGHUP): unchanged workers keep their object, their load and their
 * health; those that nobody names any more drain (gone from the snapshot, legs finish). What others name stays where its pool does; what
 * both name is as the configuration says. BT_E_CONFIG with a line in err; nothing is changed then. */
int bt_registry_apply(bt_registry_t *r, const bt_pool_spec_t *pools, unsigned pool_count,
                      const bt_worker_spec_t *const *workers, const unsigned *worker_counts,
                      char *err, size_t err_size);
/* The word of the API, or of an engine (registered.is_new). Where neither the configuration nor the API names the place yet, the worker
 * there becomes what is said now. */
int bt_registry_add(bt_registry_t *r, const char *pool, const bt_worker_spec_t *spec, char *err,
                    size_t err_size);
typedef struct bt_found { /* a worker that a source has found; borrowed for the call */
    const char *pool;     /* NULL = the first */
    bt_worker_spec_t spec;
} bt_found_t;
/* All that this source names from now on, in one change: who it no longer names goes, unless others name it; who is named by others too
 * stays as they say. Publishes only what changes the set. Errors as apply. */
int bt_registry_set_found(bt_registry_t *r, enum bt_source source, const bt_found_t *found,
                          unsigned count, char *err, size_t err_size);
#define BT_FOUND_WHY_BYTES 256
typedef struct bt_found_change {
    bt_found_t found;
    bool is_gone;   /* this source names it no longer; of found only pool, url and dp_rank count */
    bool has_ended; /* the process that was there: who is there now, if anybody, is another */
    int rc;         /* set: 0, or why it was refused; then the place stays as it was */
    char why[BT_FOUND_WHY_BYTES];
} bt_found_change_t;
/* Some of what this source names has changed: like set_found with the rest as it was, one publication for all. A change that is refused does
 * not keep the others. BT_E_NOMEM: some may not have been taken. Costs O(workers) a call, so whoever has many gives them together, and
 * not too many: a new worker costs about 5 us. */
int bt_registry_change_found(bt_registry_t *r, enum bt_source source, bt_found_change_t *changes,
                             unsigned count);
/* What a worker of the set says of itself. Where that is new a worker with the same name takes its place, and the old one's legs
 * finish. now_p (borrowed): who it is from now on. */
int bt_registry_take_word(bt_registry_t *r, bt_worker_t *w, const bt_registered_t *said,
                          bt_worker_t **now_p, char *err, size_t err_size);
/* A worker by this spec takes the place and the name of w, whose legs finish. BT_E_INVAL: w is not in the set. */
int bt_registry_replace(bt_registry_t *r, const bt_worker_t *w, const bt_worker_spec_t *spec,
                        char *err, size_t err_size);
/* A source takes its word back, in every pool. BT_E_INVAL when the worker is unknown. */
int bt_registry_unname(bt_registry_t *r, bt_str_t name_or_url, enum bt_source source);
/* An operator wants it away: the API's word goes; where that is not given the configuration's, else the engine's own. */
int bt_registry_remove(bt_registry_t *r, bt_str_t name_or_url);
int bt_registry_drain(bt_registry_t *r, bt_str_t name_or_url, bool draining);
bt_workers_t *bt_registry_current(bt_registry_t *r); /* borrowed */

#endif
