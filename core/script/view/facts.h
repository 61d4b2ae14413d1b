/* facts.h - what goes into a policy and what comes out of it, as plain data.
 *
 * Owner: the caller; strings and workers are borrowed for the call.
 * Life:  one call of a hook.
 * Flow:  dispatch fills in requests, views, failures and events; a choice comes back, its workers resolved and checked.
 * Cost:  nothing is copied: Lua reads through view.h and request_view.h.
 */
#ifndef BT_SCRIPT_FACTS_H
#define BT_SCRIPT_FACTS_H

#include "base/err.h"
#include "cluster/workers.h"
#include "http/message.h"
#include "identity/identity.h"
#include "script/dialect/dialect.h"

#define BT_CHOICE_ALTERNATES_MAX 8

typedef struct bt_pair {
    bt_worker_t *prefill,
        *decode; /* a single worker sits in decode, prefill NULL; one of a pair NULL: chosen late */
    int prefill_rank, decode_rank; /* chosen DP ranks; -1 = not chosen */
    enum bt_plan_kind kind;        /* NONE = the pair's own */
} bt_pair_t;

/* Can the two serve it so? NONE and SINGLE: always. */
bool bt_pair_has_kind(const bt_pair_t *pair);

/* What a plan tells the engines of the KV that they compute for it. */
typedef struct bt_hints {
    bool has_priority;
    int32_t priority;
    bt_str_t
        kv_actions; /* kv_hints: a JSON list of actions; "" = none. As long as the policy is not called again */
} bt_hints_t;

static inline bool bt_hints_are_empty(const bt_hints_t *hints)
{
    return !hints->has_priority && hints->kv_actions.n == 0;
}

typedef struct bt_choice {
    bt_pair_t first;
    bt_pair_t alternates[BT_CHOICE_ALTERNATES_MAX];
    unsigned alternate_count;
    bt_hints_t hints; /* of all of them */
} bt_choice_t;

/* Who decodes is chosen when prefill has finished. */
static inline bool bt_pair_lacks_decode(const bt_pair_t *pair)
{
    return pair->prefill != NULL && pair->decode == NULL;
}

/* Who prefills is chosen when decode calls for it. */
static inline bool bt_pair_lacks_prefill(const bt_pair_t *pair)
{
    return pair->prefill == NULL && pair->decode != NULL && pair->kind == BT_PLAN_TRIGGER;
}

static inline bool bt_pair_is_single(const bt_pair_t *pair)
{
    return pair->prefill == NULL && !bt_pair_lacks_prefill(pair);
}

static inline bool bt_choice_is_nobody(const bt_choice_t *choice)
{
    return choice->first.prefill == NULL && choice->first.decode == NULL;
}

/* What a policy may know of a request (rules section 8); lazily read by Lua. */
/* Who has counted a prompt's tokens: the client, by sending ids; its engine; nobody. */
enum bt_token_source { BT_TOKENS_ESTIMATE, BT_TOKENS_CLIENT, BT_TOKENS_ENGINE, BT_TOKEN_SOURCES };
const char *bt_token_source_name(enum bt_token_source source);

typedef struct bt_policy_request {
    const char *id; /* for log lines; NULL = none */
    bt_str_t path, model, session, tenant;
    const bt_identity_t *identity; /* NULL = anonymous */
    const bt_head_t *head;         /* req.headers[name] (any case) */
    bool stream;
    unsigned n;
    uint64_t prompt_bytes, prompt_tokens;
    uint64_t max_tokens; /* that the client wants at most of one sample; 0 = it did not say */
    bt_str_t klass;      /* what route called it: req.class */
    bt_str_t
        prompt; /* raw JSON value of the prompt (text, ids, messages); NULL = none. Only native functions look at it. */
    uint64_t
        prompt_number; /* of all that this thread has (prompt_ids.h); 0 = none: calls share nothing of it */
    bt_str_t ids; /* of a prompt that is text: a list as JSON, told by an engine; "" = none */
    enum bt_token_source token_source;
    uint64_t prefix_space; /* prompts of another space share no KV; 0 = none but the model's */
    bt_str_t cache_salt;   /* plain; "" = none */
    bool
        is_apart; /* its KV is kept apart by something that events do not tell: exact hits are not known */
    struct bt_policy_vars
        *vars;       /* ctx.vars (policy_run.h), or NULL: this policy has no admit and no route */
    bool is_counted; /* it was planned before: take, window, prefix_insert count it no more */
    struct bt_policy_trace *trace; /* where native functions write scores, or NULL: nobody asked */
} bt_policy_request_t;

#define BT_POLICY_READS_BYTES 4096 /* of a decision's notes */

/* Scores as native functions gave them, for decision records. The last score of a worker in a call is the one that counts.
 * And what the same decision can be made of again: its chance and its clock; 0 = the process's. */
typedef struct bt_policy_trace {
    uint64_t seed, now_us;
    struct bt_policy_score {
        uint64_t worker;
        double score;
    } * scores; /* room for cap; what does not fit is left out */
    unsigned count, cap;
    /* What native functions answered from the process's memory (native_reads.c): JSON, members of a list. */
    char *reads; /* room for reads_cap; NULL = not noted */
    unsigned reads_len, reads_cap, read_count;
    bool reads_cut;          /* there was more */
    bt_json_cursor_t *notes; /* of the same decision: answers of then; NULL = of now */
} bt_policy_trace_t;

/* Its lists. SINGLE: who can serve the request alone; HYBRID is part of it. */
enum bt_policy_list {
    BT_LIST_PREFILL,
    BT_LIST_DECODE,
    BT_LIST_HYBRID,
    BT_LIST_SINGLE,
    BT_LIST_COUNT
};
const char *bt_policy_list_name(enum bt_policy_list list);

/* Candidates: usable workers of the pool, in fleet order. Borrowed for the call. */
typedef struct bt_policy_view {
    const bt_worker_set_t *sets[BT_LIST_COUNT]; /* NULL = none */
    uint64_t
        key; /* changes whenever the sets' members may differ: lets Lua lists be reused; 0 = lists are made anew */
    bt_str_t pool;                  /* its name: view.pool */
    const bt_pool_advice_t *advice; /* of the pool, for tick; NULL = none */
} bt_policy_view_t;

typedef struct bt_policy_failure {
    enum bt_scope scope;
    const char *name; /* bt_err_name */
    const char *leg;  /* "prefill", "decode", "single" */
    unsigned status;
    bt_worker_t *const *tried; /* workers tried so far */
    unsigned tried_count;
    unsigned attempt; /* the number of the one that is planned: 2, 3, ... */
    /* What one of the pair has done stays good, if the next plan names it too; NULL = nothing. */
    const bt_worker_t *kept_prefill, *kept_decode;
    uint64_t made,
        left; /* recompute: tokens that the client has, and that it may still get; left 0 = no limit */
    unsigned replays; /* recompute: of this answer, so far */
} bt_policy_failure_t;

/* Something that happened, for observe(events, ctx); members that are 0, NULL or empty are nil in Lua. */
typedef struct bt_policy_event {
    const char *kind; /* "finished", "failed", "cancelled" */
    uint64_t at_ms;
    uint64_t prefill, decode; /* ids of workers; a single worker is decode */
    bt_str_t model, session, tenant;
    unsigned status;                                      /* of the answer */
    const char *failure, *scope;                          /* bt_err_name, bt_scope_name */
    uint64_t prompt_tokens, cached_tokens, output_tokens; /* cached: in prefill's own cache */
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

/* What enqueue returned: what it did not say is 0 or empty. */
typedef struct bt_policy_queueing {
    char klass[8]; /* "high", "normal", "low" */
    char key[65];
    uint64_t cost; /* tokens */
    unsigned weight;
    uint64_t timeout_ms;
} bt_policy_queueing_t;
#define BT_QUEUEING_COST_MAX 1000000000
#define BT_QUEUEING_WEIGHT_MAX 1000
#define BT_QUEUEING_TIMEOUT_MS_MAX 86400000

enum bt_policy_part { BT_POLICY_BOTH, BT_POLICY_PREFILL, BT_POLICY_DECODE };

typedef struct bt_policy bt_policy_t;

#endif
