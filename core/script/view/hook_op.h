/* hook_op.h - what a hook that waits asks for, what comes of it, and the hook itself while it waits.
 *
 * Owner: the run is its caller's memory (a request's, a dispatcher's).
 * Life:  policy_run.h.
 * Flow:  native functions fill in run->hook_op and yield; generation/wait.h serves it; the answer resumes the hook.
 * Cost:  spans point into the VM, nothing is copied here.
 */
#ifndef BT_SCRIPT_HOOK_OP_H
#define BT_SCRIPT_HOOK_OP_H

#include "script/view/facts.h"
#include "store/store.h"

#define BT_HOOK_OP_HEADERS_MAX 16

enum bt_hook_op_kind { BT_HOOK_OP_NONE, BT_HOOK_OP_SLEEP, BT_HOOK_OP_HTTP, BT_HOOK_OP_STORE };
#define BT_POLICY_KEPT_MAX 4

/* What a hook waits for. Spans are strings of its VM: good until the policy is called again (which may renew the VM), so
 * who serves an operation copies what it needs at once. */
typedef struct bt_hook_op {
    enum bt_hook_op_kind kind;
    uint64_t ms; /* SLEEP: how long; HTTP: its own deadline */
    /* HTTP: a call to an allowed host, "http" only */
    bt_str_t method, host, target, body;
    unsigned port;
    bt_header_t headers[BT_HOOK_OP_HEADERS_MAX];
    unsigned header_count;
    struct { /* STORE: an operation, less its space; who takes a lease is for the server to say */
        enum bt_store_what what;
        bt_str_t key, field, value;
        int64_t amount, limit;
        uint64_t ttl_ms, window_ms, window;
        bool if_absent;
    } store;
} bt_hook_op_t;

/* What came of it. rc < 0: nothing did, the hook gets nil and the error's text. */
typedef struct bt_hook_answer {
    int rc;
    unsigned status;
    const bt_head_t *head; /* NULL = no headers */
    bt_str_t body;
    const bt_store_reply_t *
        store; /* of STORE, where rc is 0; of WINDOW_TAKE: number = granted or not, left_ms = until the next window */
    const char *why; /* rc < 0: what to tell the hook; NULL = the code's own text */
} bt_hook_answer_t;

/* Members of one request that its hooks share: ctx.vars, a table of the VM. Zeroed = none yet. */
typedef struct bt_policy_vars {
    bt_policy_t
        *policy; /* whose VM; a new VM (renew.c) has another epoch, and then they are lost */
    uint64_t epoch;
    int ref;
} bt_policy_vars_t;

typedef struct bt_policy_admission {
    unsigned status; /* 0 = admitted, else 400-599 */
    unsigned retry_after_s;
    char reason[256];        /* for the client */
    struct bt_value *limits; /* of whom it lets in: factors by a limit's name; owned; NULL = none */
} bt_policy_admission_t;

/* What route said; "" = it did not. */
typedef struct bt_policy_direction {
    char pool[64], klass[64], key[192];
} bt_policy_direction_t;

typedef struct bt_policy_run {
    bt_policy_t *policy; /* NULL = none under way */
    const bt_policy_request_t *req;
    const bt_policy_view_t *view; /* tick */
    bt_hook_op_t hook_op;
    bt_policy_admission_t admission;
    bt_policy_direction_t direction;
    /* private */
    int hook;
    uint64_t epoch, tick_ms;
    int co_ref;
    unsigned store_ops; /* asked for so far */
} bt_policy_run_t;

#endif
