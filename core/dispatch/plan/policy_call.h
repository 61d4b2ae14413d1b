/* policy_call.h - what a request asks of its policies, and what goes wrong with them. Private to
 * dispatch.
 *
 * Owner: the generation that the request pins.
 * Life:  until the first byte.
 * Flow:  request -> the VM of its pool or rule -> a choice.
 * Cost:  one call into Lua a plan.
 */
#ifndef BT_DISPATCH_PLAN_POLICY_CALL_H
#define BT_DISPATCH_PLAN_POLICY_CALL_H

#include "dispatch/state/attempt_state.h"

/* A hook that may wait: admit, route, tick. Zeroed: none. */
typedef struct bt_hook_run {
    bt_policy_run_t run;
    bt_dispatcher_t *d;
    /* It has waited, and is over. */
    void (*on_end)(struct bt_hook_run *hook, int rc);
    /* Before it goes on after a wait; false ends it, BT_E_CANCELLED. May be NULL. */
    bool (*on_resume)(struct bt_hook_run *hook);
    bt_wait_t *wait; /* what it waits for now, or NULL */
    uint64_t until_ms;
    bool is_late; /* its deadline is over, and it has been told */
} bt_hook_run_t;

/* admit and route of one request, and ctx.vars, which plan and fallback see too. */
struct bt_intake {
    const struct bt_pool_policies *policies; /* of the pinned generation */
    bt_request_t *request;
    bt_policy_t *gates[BT_SLOT_COUNT]; /* those that have admit or route */
    unsigned gate_count, at;           /* at: whose hook runs */
    bool is_admit;                     /* which */
    bool is_directed;                  /* a route has named this pool: no other is asked */
    bt_hook_run_t hook;
    bt_policy_vars_t vars[BT_SLOT_COUNT]; /* by gate */
    bt_policy_request_t req;
    uint64_t since_us;
};

const struct bt_pool_policies *bt_policy_call_policies(
    bt_request_t *r); /* NULL = none for its pool */
void bt_policy_call_rules(bt_request_t *r);
bt_policy_request_t bt_policy_call_describe(bt_request_t *r); /* borrows from r */
/* 0: the policy's answer, not checked, or nobody (its nil). BT_E_AGAIN: there is none to ask. Else
 * it failed, and that is told. failure: NULL for the first plan. Policies that plan a half each are
 * both asked, or the one whose half is not kept. */
int bt_policy_call_plan(bt_request_t *r, const bt_policy_failure_t *failure,
                        const bt_policy_view_t *view, bt_choice_t *choice_p);
/* Decode (part DECODE) for `partner`, which has the prompt, or prefill for the one that calls for it. */
int bt_policy_call_plan_late(bt_request_t *r, enum bt_policy_part part,
                             const bt_policy_view_t *view, bt_worker_t *partner, unsigned attempt,
                             bt_choice_t *choice_p);
/* Its plan of encoders only. What it counts by request it counts when the pair is planned. */
int bt_policy_call_plan_encoder(bt_request_t *r, const bt_policy_failure_t *failure,
                                const bt_policy_view_t *view, bt_choice_t *choice_p);
/* How it stands in line; word_p is written with 0 only. BT_E_AGAIN: nobody says. */
int bt_policy_call_enqueue(bt_request_t *r, bt_policy_queueing_t *word_p);
int bt_policy_call_fallback(bt_request_t *r, const bt_policy_failure_t *failure,
                            const bt_policy_view_t *view, bt_choice_t *choice_p);
/* May its answer go on elsewhere? So it may where nobody is asked, or the hook fails. */
bool bt_policy_call_recompute(bt_request_t *r, const bt_policy_failure_t *failure);
void bt_policy_call_shadow(bt_request_t *r, const bt_policy_view_t *view, const bt_choice_t *taken);
void bt_policy_call_error(bt_request_t *r, const struct bt_pool_policies *p,
                          const bt_policy_t *policy, const char *text);
/* Its plan cannot be; text: a constant, what it did. */
void bt_policy_call_invalid(bt_request_t *r, const char *text);
void bt_policy_call_end_intake(bt_request_t *r); /* gives up what waits, and ctx.vars */
void bt_policy_call_end(bt_request_t *r);        /* the same, and lets go of the generation */

/* ---- hooks that may wait: at most --policy-wait-ms in all ---- */
void bt_hook_run_begin(bt_hook_run_t *hook);
/* rc: what a start or step of hook->run came to. 1: it waits, on_end comes. Else it is over:
 * BT_E_TOTAL_TIMEOUT when it wanted to wait after it had been told that it is late. */
int bt_hook_run_settle(bt_hook_run_t *hook, int rc);
void bt_hook_run_end(bt_hook_run_t *hook); /* gives up what waits */

#endif
