/* policy_run.h - hooks that may wait: start, admit, route and tick.
 *
 * Owner: the run is its caller's memory (a request's, a dispatcher's). Policy, req, view and vars must live until it is over.
 * Life:  init -> bt_policy_admit / _route / _tick -> [run->want is served -> bt_policy_resume] ... -> over; bt_policy_run_drop
 *        gives it up at any moment, and is owed after every start that did not return an error.
 * Flow:  such a hook is a coroutine: baton.sleep, baton.http and baton.shared write what they want into run->want and yield. Nothing here
 *        waits: generation/wait.h serves wants on a loop, or blocks for start on a thread of its own.
 * Cost:  a coroutine a call, nothing for policies that have no such hook. Every step has the hook's CPU budget.
 */
#ifndef BT_SCRIPT_POLICY_RUN_H
#define BT_SCRIPT_POLICY_RUN_H

#include "script/policy/policy.h"
#include "store/store.h"

#define BT_WANT_HEADERS_MAX 16

enum bt_want_kind { BT_WANT_NONE, BT_WANT_SLEEP, BT_WANT_HTTP, BT_WANT_STORE };
#define BT_POLICY_KEPT_MAX 4

/* What a hook waits for. Spans are strings of its VM: good until the policy is called again (which may renew the VM), so
 * who serves a want copies what it needs at once. */
typedef struct bt_want {
    enum bt_want_kind kind;
    uint64_t ms; /* SLEEP: how long; HTTP: its own deadline */
    /* HTTP: a call to an allowed host, "http" only */
    bt_str_t method, host, target, body;
    unsigned port;
    bt_header_t headers[BT_WANT_HEADERS_MAX];
    unsigned header_count;
    struct { /* STORE: an operation, less its space; who takes a lease is for the server to say */
        enum bt_store_what what;
        bt_str_t key, field, value;
        int64_t amount, limit;
        uint64_t ttl_ms, window_ms, window;
        bool if_absent;
    } store;
} bt_want_t;

/* What came of it. rc < 0: nothing did, the hook gets nil and the error's text. */
typedef struct bt_want_answer {
    int rc;
    unsigned status;
    const bt_head_t *head; /* NULL = no headers */
    bt_str_t body;
    const bt_store_reply_t *
        store; /* of STORE, where rc is 0; of WINDOW_TAKE: number = granted or not, left_ms = until the next window */
    const char *why; /* rc < 0: what to tell the hook; NULL = the code's own text */
} bt_want_answer_t;

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
    char reason[256]; /* for the client */
} bt_policy_admission_t;

/* What route said; "" = it did not. */
typedef struct bt_policy_direction {
    char pool[64], klass[64], key[192];
} bt_policy_direction_t;

typedef struct bt_policy_run {
    bt_policy_t *policy; /* NULL = none under way */
    const bt_policy_request_t *req;
    const bt_policy_view_t *view; /* tick */
    bt_want_t want;
    bt_policy_admission_t admission;
    bt_policy_direction_t direction;
    /* private */
    int hook;
    uint64_t epoch, tick_ms;
    int co_ref;
    unsigned store_ops; /* asked for so far */
} bt_policy_run_t;

/* 0: over, what it answered is in run. 1: run->want is to be served. BT_E_AGAIN: no such hook. BT_E_POLICY: it failed, see
 * bt_policy_error. req->vars must be set for admit and route. */
int bt_policy_admit(bt_policy_t *policy, bt_policy_run_t *run, const bt_policy_request_t *req);
int bt_policy_route(bt_policy_t *policy, bt_policy_run_t *run, const bt_policy_request_t *req);
int bt_policy_tick(bt_policy_t *policy, bt_policy_run_t *run, uint64_t now_ms,
                   const bt_policy_view_t *view);
/* The same answers. After a VM was renewed meanwhile: BT_E_POLICY. */
int bt_policy_resume(bt_policy_run_t *run, const bt_want_answer_t *answer);
void bt_policy_run_drop(bt_policy_run_t *run); /* zeroed or over: nothing */
/* Before the policy is let go of. Zeroed: nothing. */
void bt_policy_vars_drop(bt_policy_vars_t *vars);
/* ctx.vars.kept, a list of up to BT_POLICY_KEPT_MAX numbers, which observe gets back as event.kept. How many. */
unsigned bt_policy_vars_kept(const bt_policy_vars_t *vars, double *kept_p);

/* What hooks that cannot wait want of the store goes to send, which copies what it needs; nothing comes back. On the policy's loop,
 * before its first hook there; NULL = it is forgotten. */
void bt_policy_set_sender(bt_policy_t *policy, void (*send)(void *user, const bt_want_t *want),
                          void *user);

/* Hosts that baton.http may call: "host:port", NULL-terminated, process-wide, set before policies are made and borrowed for
 * good. NULL = none, every call is refused. */
void bt_policy_allow_hosts(const char *const *hosts);

#endif
