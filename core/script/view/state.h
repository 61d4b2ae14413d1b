/* state.h - a policy: its VM, its hooks, and the call that runs.
 *
 * Owner: one loop.
 * Life:  policy.c makes and frees it; `call` is good only while a hook runs.
 * Flow:  policy/ sets `call`; what Lua reaches through native functions, rows, lists and req is found here.
 * Cost:  see policy.h.
 */
#ifndef BT_SCRIPT_STATE_H
#define BT_SCRIPT_STATE_H

#include "base/log.h"
#include "script/shared/kv_hits.h"
#include "script/shared/now.h"
#include "script/shared/prefix_hash.h"
#include "script/shared/prefix_index.h"
#include "script/value/params.h"
#include "script/view/hook.h"
#include "script/view/hook_op.h"
#include "script/vm/vm.h"

#include <pthread.h>

#define BT_SHADOW_PREFIX_BYTES 12
#define BT_POLICY_VIEWS 8 /* views whose Lua lists are kept */
#define BT_POLICY_CLASSES                                                                          \
    64 /* kinds of workers whose pairing is remembered; more work too, slower */

/* Every userdata of a policy VM begins with one of these words; no other userdata exists there. */
enum bt_policy_magic {
    BT_MAGIC_ROW = 0x52f0a11e,
    BT_MAGIC_LIST = 0x115700b1,
    BT_MAGIC_OTHER = 0x0d0e0f10
};

struct bt_view_slot {
    bool used;
    unsigned asked; /* lists, by bit, that the policy has had in hand */
    uint64_t key;
    unsigned counts[BT_LIST_COUNT];
    int refs[BT_LIST_COUNT];
    int pool_ref;
};

/* What native functions keep in a VM. */
struct bt_native {
    enum bt_policy_magic magic;
    uint64_t list_serial;
    bt_worker_t **workers; /* scratch of bt_rows_get */
    double *values;        /* scratch of a ranking */
    unsigned worker_cap, value_cap;
    int worker_ref, value_ref, wheels_ref;
    unsigned wheel_count;
    struct {
        uint64_t serial; /* of the call it belongs to */
        unsigned block_tokens, count;
        bool is_matched;
        uint64_t found; /* kv_hits.h; 0 = nothing exact is known */
        uint64_t hashes[BT_PREFIX_BLOCKS_MAX];
        bt_prefix_matches_t matches;
    } prefix;
};

/* A VM that went wrong too often is made anew by a thread of its own, and closed by one: neither fits into a loop's turn. */
struct bt_renewal {
    pthread_t thread;
    bool has_thread;
    bool waiting;      /* for `fresh`: no hook runs until then */
    _Atomic bool done; /* the thread has nothing left to do but end */
    struct bt_policy *fresh;
    unsigned failures; /* runaways, and too little memory, in the window that began at window_ms */
    uint64_t window_ms;
};

struct bt_policy {
    /* ---- stays when the VM is made anew ---- */
    bt_vm_t vm;
    char *name, *version;
    char error[512];
    char *path, *code; /* the source */
    size_t code_n;
    bt_params_t params;
    char shadow
        [BT_SHADOW_PREFIX_BYTES]; /* before each name that it shares with others; "" = no shadow */
    bool is_dry_run;
    struct bt_shared_local *counters; /* the process's; a dry run's own */
    struct bt_rates *rates;           /* likewise; NULL in a dry run that has used none */
    int (*serve)(void *user, const bt_hook_op_t *hook_op, bt_hook_answer_t *answer_p);
    void *serve_user;
    void (*send)(void *user, const bt_hook_op_t *hook_op); /* NULL = nowhere */
    void *send_user;
    bt_text_t cached;            /* what baton.shared.cached works on */
    struct bt_log_site log_site; /* of baton.log */
    struct { /* what json_encode and a plan's hints work on; an error may leave it to the next */
        bt_value_t *tree;
        bt_text_t text;
    } json;
    struct bt_renewal renewal;
    bt_policy_stats_t stats;
    /* For the self-test: what it asked for that a made-up worker, a made-up request has not. */
    bool asked_labels, asked_client;
    uint64_t epoch; /* names the VM: no two of the process have the same */
    struct {
        bool running;
        bool testing; /* self-test */
        uint64_t
            serial; /* another one for every call of a hook: what native functions remember of a request ends with it */
        enum bt_policy_hook hook;
        uint64_t now_ms, tick_ms;
        enum bt_policy_part part;
        const bt_policy_request_t *req;
        const bt_policy_view_t *view;
        const bt_policy_failure_t *failure; /* NULL but in fallback, and in plan asked again */
        unsigned attempt;                   /* the number of the one that is planned: 1, 2, ... */
        bt_worker_t *
            partner; /* the pair's prefill that has the prompt in plan_decode, its decode that calls in plan_prefill; else not set */
        const bt_policy_event_t *events;
        unsigned event_count;
        const bt_value_t *old;
        unsigned store_ops;             /* that a pure hook has sent */
        bt_policy_run_t *run;           /* the coroutine that runs; NULL in pure hooks */
        const bt_hook_answer_t *answer; /* NULL = it begins */
        bt_value_t *data;               /* handover's answer */
        bt_choice_t choice;
        bool may_recompute;            /* recompute's answer */
        bt_policy_queueing_t queueing; /* enqueue's */
    } call;
    /* ---- belongs to the VM, from here to the end ---- */
    int hook_refs[BT_HOOK_COUNT]; /* LUA_NOREF = no such hook */
    int enter_ref, step_ref, refresh_ref, ctx_ref, params_ref, req_ref, headers_ref, view_ref;
    int identity_ref, scopes_ref, claims_ref; /* views of req.identity */
    int rows_ref, row_meta_ref, pairs_with_ref, kept_ref;
    struct bt_native *native; /* owned by the VM */
    bt_vm_fields_t row_fields, req_fields, identity_fields, view_fields, plan_fields;
    struct bt_view_slot views[BT_POLICY_VIEWS], *slot;
    unsigned next_view;
    bool has_failure; /* ctx.failure is there */
    char *classes[BT_POLICY_CLASSES];
    unsigned class_count;
    signed char fits[BT_POLICY_CLASSES]
                    [BT_POLICY_CLASSES]; /* [prefill][decode]: 0 not known, 1 yes, -1 no */
};

/* The time as the running call sees it: a recorded decision's own, which stands still, else real_us. */
static inline uint64_t bt_policy_now_or(const bt_policy_t *policy, uint64_t real_us)
{
    const bt_policy_request_t *req = policy->call.running ? policy->call.req : NULL;

    return req != NULL && req->trace != NULL && req->trace->now_us != 0 ? req->trace->now_us
                                                                        : bt_now_or(real_us);
}

static inline uint64_t bt_policy_now_us(const bt_policy_t *policy)
{
    return bt_policy_now_or(policy, bt_clock_us());
}

static inline bt_policy_t *bt_policy_of(lua_State *L)
{
    return bt_vm_of(L)->owner;
}

#endif
