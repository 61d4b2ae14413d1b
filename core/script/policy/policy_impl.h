/* policy_impl.h - what the files behind policy.h share. Private to core/script.
 *
 * Owner: one bt_policy_t, one loop.
 * Life:  as the policy; `call` only while a hook runs.
 * Flow:  policy.c loads, hooks.c calls, policy_run.c those that may wait, renew.c counts what went wrong; view.c makes rows, roster.c lists, request_view.c req, kernels*.c the `baton` table (kernels.h),
 *        policy_choice.c reads the answer.
 * Cost:  see policy.h.
 */
#ifndef BT_SCRIPT_POLICY_IMPL_H
#define BT_SCRIPT_POLICY_IMPL_H

#include "script/policy/policy.h"
#include "script/policy/policy_run.h"
#include "script/value/params.h"
#include "script/vm/vm.h"

#include <pthread.h>

#define BT_SHADOW_PREFIX_BYTES 12
#define BT_POLICY_VIEWS 8 /* views whose Lua lists are kept */
#define BT_POLICY_CLASSES                                                                          \
    64 /* kinds of workers whose pairing is remembered; more work too, slower */

enum bt_policy_list { BT_LIST_PREFILL, BT_LIST_DECODE, BT_LIST_SINGLE, BT_LIST_COUNT };

/* Every userdata of a policy VM begins with one of these words; no other userdata exists there. */
enum bt_policy_magic {
    BT_MAGIC_ROW = 0x52f0a11e,
    BT_MAGIC_ROSTER = 0x115700b1,
    BT_MAGIC_OTHER = 0x0d0e0f10
};

typedef struct bt_row {
    enum bt_policy_magic magic;
    unsigned klass;             /* BT_POLICY_CLASSES = not remembered */
    unsigned at[BT_LIST_COUNT]; /* where it stood when a list was last made: a hint */
    bool has_tables;            /* its environment holds labels, kinds, dialects */
    bt_worker_t *worker;        /* referenced */
} bt_row_t;

struct bt_view_slot {
    bool used;
    uint64_t key;
    unsigned counts[BT_LIST_COUNT];
    int refs[BT_LIST_COUNT];
    int pool_ref;
};

/* Code of a policy, by when it runs. */
enum bt_policy_hook {
    BT_HOOK_LOAD,
    BT_HOOK_START,
    BT_HOOK_ADMIT,
    BT_HOOK_ROUTE,
    BT_HOOK_PLAN,
    BT_HOOK_FALLBACK,
    BT_HOOK_OBSERVE,
    BT_HOOK_TICK,
    BT_HOOK_HANDOVER,
    BT_HOOK_COUNT
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
    char *path, *text; /* the source */
    size_t text_n;
    bt_params_t params;
    char shadow
        [BT_SHADOW_PREFIX_BYTES]; /* before each name that it shares with others; "" = no shadow */
    bool is_dry_run;
    struct bt_shared_local *counters; /* the process's; a dry run's own */
    struct bt_rates *rates;           /* likewise; NULL in a dry run that has used none */
    int (*serve)(void *user, const bt_want_t *want, bt_want_answer_t *answer_p);
    void *serve_user;
    void (*send)(void *user, const bt_want_t *want); /* NULL = nowhere */
    void *send_user;
    bt_text_t cached; /* what baton.shared.cached works on */
    struct {          /* what json_encode works on; an error may leave it to its next call */
        bt_value_t *tree;
        bt_text_t text;
    } json;
    struct bt_renewal renewal;
    bt_policy_stats_t stats;
    uint64_t epoch; /* names the VM: no two of the process have the same */
    struct {
        bool running;
        bool testing; /* self-test: nil is a fine answer of plan */
        uint64_t
            serial; /* another one for every call of a hook: what kernels remember of a request ends with it */
        enum bt_policy_hook hook;
        uint64_t now_ms, tick_ms;
        enum bt_policy_part part;
        const bt_policy_request_t *req;
        const bt_policy_view_t *view;
        const bt_policy_failure_t *failure; /* NULL but in fallback */
        const bt_policy_event_t *events;
        unsigned event_count;
        const bt_value_t *old;
        unsigned store_ops;             /* that a pure hook has sent */
        bt_policy_run_t *run;           /* the coroutine that runs; NULL in pure hooks */
        const bt_want_answer_t *answer; /* NULL = it begins */
        bt_value_t *data;               /* handover's answer */
        bt_choice_t choice;
    } call;
    /* ---- belongs to the VM, from here to the end ---- */
    int hook_refs[BT_HOOK_COUNT]; /* LUA_NOREF = no such hook */
    int enter_ref, step_ref, refresh_ref, ctx_ref, params_ref, req_ref, headers_ref, view_ref;
    int rows_ref, row_meta_ref, pairs_with_ref, kept_ref;
    struct bt_kernels *kernels; /* owned by the VM */
    bt_vm_fields_t row_fields, req_fields, view_fields, plan_fields;
    struct bt_view_slot views[BT_POLICY_VIEWS], *slot;
    unsigned next_view;
    char *classes[BT_POLICY_CLASSES];
    unsigned class_count;
    signed char fits[BT_POLICY_CLASSES]
                    [BT_POLICY_CLASSES]; /* [prefill][decode]: 0 not known, 1 yes, -1 no */
};

static inline bt_policy_t *bt_policy_of(lua_State *L)
{
    return bt_vm_of(L)->owner;
}

/* ---- policy.c ---- */
extern const char *const bt_policy_members[]; /* of a policy's table, NULL-terminated */

/* ---- view.c ---- */
enum bt_row_field {
    BT_ROW_ID,
    BT_ROW_NAME,
    BT_ROW_ROLE,
    BT_ROW_LABELS,
    BT_ROW_ZONE,
    BT_ROW_KINDS,
    BT_ROW_DIALECTS,
    BT_ROW_PREFILL_TOKENS,
    BT_ROW_DECODE_TOKENS,
    BT_ROW_REQUESTS,
    BT_ROW_RUNNING,
    BT_ROW_WAITING,
    BT_ROW_KV_FREE,
    BT_ROW_TTFT_EMA_MS,
    BT_ROW_TPOT_EMA_MS,
    BT_ROW_AGE_MS,
    BT_ROW_PREFIX_BLOCKS,
    BT_ROW_PREFIX_CACHED,
    BT_ROW_PAIRS_WITH
};
extern const char *const bt_row_names[];
void bt_view_open(lua_State *L, bt_policy_t *policy);
/* Makes policy->slot the lists of call.view. Raises. */
void bt_view_refresh(lua_State *L, bt_policy_t *policy);
/* True when policy->slot can be set without Lua. */
bool bt_view_find(bt_policy_t *policy, const bt_policy_view_t *view);
/* The row at idx, or NULL when it is anything else. */
bt_row_t *bt_row_at(lua_State *L, int idx);
bt_row_t *bt_row_check(lua_State *L, int idx); /* raises */
/* Row of the worker with this id that is alive in this VM (not pushed), or NULL. */
bt_row_t *bt_row_by_id(lua_State *L, bt_policy_t *policy, lua_Number id);
/* A number of the worker as policies see it; false = not known, or no number. */
bool bt_worker_number(bt_policy_t *policy, const bt_worker_t *w, enum bt_row_field field,
                      double *value_p);
bool bt_row_is_numeric(enum bt_row_field field);
/* May these two (one prefill, one decode) be a pair? */
bool bt_rows_fit(bt_policy_t *policy, const bt_row_t *a, const bt_row_t *b);

/* ---- request_view.c ---- */
void bt_request_view_open(lua_State *L, bt_policy_t *policy);

/* ---- kernels.c ---- */
void bt_kernels_open(lua_State *L, bt_policy_t *policy); /* sets the global `baton` */

/* ---- json_api.c, want_api.c, shared_api.c: what they add to the table at the top ---- */
void bt_json_api_add(lua_State *L);
void bt_want_api_add(lua_State *L);
void bt_shared_api_add(lua_State *L);
/* May this call wait? False: it was told why not, and two values are pushed. Raises in hooks that never wait. */
bool bt_want_check_waiting(lua_State *L, const char *what);
/* Pushes what a call of baton.shared returns: one value to three. answer->rc is 0. */
int bt_shared_push_answer(lua_State *L, const bt_want_t *want, const bt_want_answer_t *answer);

/* ---- hooks.c ---- */
const char *bt_hook_name(enum bt_policy_hook hook);
unsigned bt_hook_budget_us(enum bt_policy_hook hook);
bool bt_hook_may_wait(enum bt_policy_hook hook);
/* Keeps the hooks of the policy's table at index 1, and opens ctx. Raise. */
void bt_hooks_read(lua_State *L, bt_policy_t *policy);
void bt_hooks_open(lua_State *L, bt_policy_t *policy);
/* Calls the function under `args` values of the stack as this hook, within its budget; nothing is counted. */
enum bt_vm_end bt_hook_run(bt_policy_t *policy, enum bt_policy_hook hook, int args, char *err,
                           size_t err_size);
/* Calls the function `ref` as this hook, with what `call` says; failures are counted. 0 or BT_E_POLICY. */
int bt_hook_call(bt_policy_t *policy, enum bt_policy_hook hook, int ref);
/* ctx.vars becomes that of call.req. Raises. */
void bt_ctx_take_vars(lua_State *L, bt_policy_t *policy);
/* ctx.params and ctx.state; with `old`, which may be NULL. BT_E_POLICY. */
int bt_hooks_start(bt_policy_t *policy, const bt_value_t *old, char *err, size_t err_size);

/* ---- policy_run.c ---- */
void bt_runs_open(lua_State *L, bt_policy_t *policy);
/* Runs start to its end; call.old is set. BT_E_POLICY. */
int bt_run_start(bt_policy_t *policy, char *err, size_t err_size);
uint64_t bt_policy_next_epoch(void);

/* ---- policy_run_read.c ---- */
/* Reads what the hook returned, at the top of the stack, into the run. Raises. */
void bt_run_read(lua_State *L, bt_policy_t *policy, bt_policy_run_t *run);
/* Pushes what resumes the hook: one value to three. */
int bt_run_push_answer(lua_State *L, const bt_want_t *want, const bt_want_answer_t *answer);

/* ---- renew.c ---- */
/* False while the policy has no VM that may be used; puts a new one in its place when it is ready. */
bool bt_policy_is_ready(bt_policy_t *policy);
/* Tidies up after a failed call. */
void bt_policy_failed(bt_policy_t *policy, enum bt_vm_end end);
void bt_renewal_end(bt_policy_t *policy);

/* ---- policy_choice.c ---- */
void bt_choice_open(lua_State *L, bt_policy_t *policy);
/* Reads the hook's answer at idx into call.choice. Raises. */
void bt_choice_read(lua_State *L, bt_policy_t *policy, int idx);

#endif
