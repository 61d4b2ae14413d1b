/* policy.h - policies: Lua files that choose workers.
 *
 * Owner: one VM per policy and loop; JIT off for policy code, kernels are C. The watchdog runs as long as there are policies.
 * Life:  loaded at loop start (later: per generation); the choice it returns is plain data.
 * Flow:  plan(req, view, ctx) / fallback(req, view, failure, ctx) -> bt_choice; ids are resolved and checked here: unknown
 *        ids, wrong roles and tried workers are refused with BT_E_POLICY, and dispatch uses the built-in choice instead.
 *        A hook that runs over its budget fails in the same way; a policy that does so often gets a new VM, without its state.
 * Cost:  views hold one userdata row per worker, made once per worker and VM; fields are read from the live atomics, so
 *        nothing is copied per request. View lists are rebuilt only when the fleet's epoch or snapshot changed.
 */
#ifndef BT_SCRIPT_POLICY_H
#define BT_SCRIPT_POLICY_H

#include "base/err.h"
#include "cluster/workers.h"
#include "http/message.h"
#include "script/dialect/dialect.h"
#include "script/value/luatable.h"

#define BT_CHOICE_ALTERNATES_MAX 8

typedef struct bt_pair {
    bt_worker_t *prefill, *decode; /* a single worker sits in decode, prefill NULL */
    int prefill_rank, decode_rank; /* chosen DP ranks; -1 = not chosen */
} bt_pair_t;

typedef struct bt_choice {
    enum bt_plan_kind kind; /* NONE = derive from the pair's dialect */
    bt_pair_t first;
    bt_pair_t alternates[BT_CHOICE_ALTERNATES_MAX];
    unsigned alternate_count;
} bt_choice_t;

/* What a policy may know of a request (rules section 8); lazily read by Lua. */
typedef struct bt_policy_request {
    bt_str_t path, model, session, tenant;
    const bt_head_t *head; /* req.headers[name] (any case) */
    bool stream;
    unsigned n;
    uint64_t prompt_bytes, prompt_tokens;
    uint64_t max_tokens; /* that the client wants at most of one sample; 0 = it did not say */
    bt_str_t klass;      /* what route called it: req.class */
    bt_str_t
        prompt; /* raw JSON value of the prompt (text, ids, messages); NULL = none. Only kernels look at it. */
    struct bt_policy_vars
        *vars; /* ctx.vars (policy_run.h), or NULL: this policy has no admit and no route */
    struct bt_policy_trace *trace; /* where kernels write scores, or NULL: nobody asked */
} bt_policy_request_t;

/* Scores as kernels gave them, for decision records. The last score of a worker in a call is the one that counts. */
typedef struct bt_policy_trace {
    struct bt_policy_score {
        uint64_t worker;
        double score;
    } * scores; /* room for cap; what does not fit is left out */
    unsigned count, cap;
} bt_policy_trace_t;

/* Candidates: usable workers of the pool, in fleet order. Borrowed for the call. */
typedef struct bt_policy_view {
    const bt_worker_set_t *prefill, *decode, *single; /* NULL = none */
    uint64_t
        key; /* changes whenever the sets' members may differ: lets Lua lists be reused; 0 = lists are made anew */
    bt_str_t pool; /* its name: view.pool */
} bt_policy_view_t;

typedef struct bt_policy_failure {
    enum bt_scope scope;
    const char *name; /* bt_err_name */
    const char *leg;  /* "prefill", "decode", "single" */
    unsigned status;
    bt_worker_t *const *tried; /* workers tried so far */
    unsigned tried_count;
} bt_policy_failure_t;

/* Something that happened, for observe(events, ctx); members that are 0, NULL or empty are nil in Lua. */
typedef struct bt_policy_event {
    const char *kind; /* "finished", "failed", "cancelled" */
    uint64_t at_ms;
    uint64_t prefill, decode; /* ids of workers; a single worker is decode */
    bt_str_t model, session, tenant;
    unsigned status;             /* of the answer */
    const char *failure, *scope; /* bt_err_name, bt_scope_name */
    uint64_t prompt_tokens, output_tokens;
    double ttft_ms, total_ms;
    double kept[4]; /* what the request's ctx.vars.kept held */
    unsigned kept_count;
} bt_policy_event_t;

typedef struct bt_policy_stats {
    uint64_t errors;   /* failed calls of any hook */
    uint64_t runaways; /* of these: over their time */
    uint64_t memory;   /* of these: over the VM's memory */
    uint64_t renewals; /* times that the VM was made anew */
} bt_policy_stats_t;

enum bt_policy_part { BT_POLICY_BOTH, BT_POLICY_PREFILL, BT_POLICY_DECODE };

typedef struct bt_policy bt_policy_t;

/* name: an embedded policy ("least_load"), a file in policy_dir, or a path (contains '/' or ends in .lua).
 * err: one line with file:line, or the nearest known name. */
int bt_policy_load(bt_policy_t **policy_p, const char *name, const char *policy_dir, char *err,
                   size_t err_size);
/* The same from text in memory; path stands in messages. policy_source.h keeps such texts. */
int bt_policy_load_text(bt_policy_t **policy_p, const char *path, bt_str_t text, char *err,
                        size_t err_size);

/* Everything that a policy is made of. */
struct bt_want;
struct bt_want_answer;
typedef struct bt_policy_spec {
    const char *path; /* stands in messages */
    bt_str_t text;
    const bt_value_t *params; /* a table, NULL = defaults; copied */
    const bt_value_t *old;    /* what the generation before handed over, NULL = none; copied */
    bool
        is_shadow; /* decides without effect: its baton.shared_local, rates and prefix index are its own names */
    bool
        is_dry_run; /* made only to be tested: its baton.shared_local and rates are its own and freed with it, the prefix index it only reads */
    /* Serves what start waits for (policy_run.h) and may block; NULL = start is told that it cannot wait here. Called again,
     * by a thread of its own, whenever the VM is made anew: serve_user lives as long as the policy. What it answers (body) is
     * good until its next call. */
    int (*serve)(void *user, const struct bt_want *want, struct bt_want_answer *answer_p);
    void *serve_user;
} bt_policy_spec_t;
int bt_policy_make(bt_policy_t **policy_p, const bt_policy_spec_t *spec, char *err,
                   size_t err_size);
/* bt_policy_load with values for its parameters (a table, NULL = defaults) and what the generation before handed over (NULL = none);
 * both are copied. A value that does not fit: BT_E_CONFIG, "params.weight: 12 is above max 10". */
int bt_policy_load_with(bt_policy_t **policy_p, const char *name, const char *policy_dir,
                        const bt_value_t *params, const bt_value_t *old, char *err,
                        size_t err_size);
void bt_policy_free(bt_policy_t *policy);
const char *bt_policy_name(const bt_policy_t *policy);
const char *bt_policy_version(const bt_policy_t *policy);
/* Makes the lists of a view ahead of the first plan with its key, and tidies up: milliseconds where there are many workers, so
 * on the thread that has made the policy. What fails here the first plan tries again. */
int bt_policy_prewarm(bt_policy_t *policy, const bt_policy_view_t *view);
/* part PREFILL/DECODE: only that side of the answer is required (separately chosen policies); the other may be NULL. */
int bt_policy_plan(bt_policy_t *policy, enum bt_policy_part part, const bt_policy_request_t *req,
                   const bt_policy_view_t *view, bt_choice_t *choice_p);
/* BT_E_AGAIN: the policy has no fallback hook (use the built-in). 0 with first.decode == NULL: give up. */
int bt_policy_fallback(bt_policy_t *policy, const bt_policy_request_t *req,
                       const bt_policy_view_t *view, const bt_policy_failure_t *failure,
                       bt_choice_t *choice_p);
/* BT_E_AGAIN: the policy has no such hook. at_ms is CLOCK_MONOTONIC. */
int bt_policy_observe(bt_policy_t *policy, const bt_policy_event_t *events, unsigned count);
/* Plain data for the next generation, to be freed; NULL when the hook returned nil. BT_E_AGAIN: no such hook. */
int bt_policy_handover(bt_policy_t *policy, bt_value_t **data_p);
bool bt_policy_has_hook(const bt_policy_t *policy, const char *name);
bool bt_policy_has_entry(const bt_policy_t *policy); /* admit or route */
/* The i-th hook that it has, the i-th parameter that it declares; NULL after the last. */
const char *bt_policy_hook_at(const bt_policy_t *policy, unsigned i);
const char *bt_policy_param_at(const bt_policy_t *policy, unsigned i);
/* JSON Schema of the parameters, and text for people: malloc'ed, NULL when memory is short. */
char *bt_policy_params_schema(const bt_policy_t *policy);
char *bt_policy_params_doc(const bt_policy_t *policy);
const bt_policy_stats_t *bt_policy_stats(const bt_policy_t *policy);
/* Last error text of this policy (file:line: message), for logs and /admin. */
const char *bt_policy_error(const bt_policy_t *policy);
/* NULL-terminated list of embedded policy names. */
const char *const *bt_policy_embedded_names(void);

/* Process-wide atomic counters and last-value cells behind baton.shared_local; names up to 127 bytes, at most 4096. */
int64_t bt_shared_local_add(bt_str_t name, int64_t delta); /* returns the new value */
int64_t bt_shared_local_get(bt_str_t name);
void bt_shared_local_set(bt_str_t name, int64_t value);

#endif
