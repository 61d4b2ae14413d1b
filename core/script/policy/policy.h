/* policy.h - policies: Lua files that choose workers.
 *
 * Owner: one VM per policy and loop; JIT off for policy code, native functions are C. The watchdog runs as long as there are policies.
 * Life:  one generation of policies; the choice it returns is plain data.
 * Flow:  plan(req, view, ctx) / fallback(req, view, failure, ctx) -> bt_choice; ids are resolved and checked here: unknown
 *        ids, wrong roles and tried workers are refused with BT_E_POLICY, and dispatch uses the default choice instead.
 *        A hook that runs over its budget fails in the same way; a policy that does so often gets a new VM, without its state.
 * Cost:  views hold one userdata row per worker, made once per worker and VM; fields are read from the live atomics, so
 *        nothing is copied per request. View lists are rebuilt only when the fleet's epoch or snapshot changed.
 */
#ifndef BT_SCRIPT_POLICY_H
#define BT_SCRIPT_POLICY_H

#include "script/policy/policy_source.h"
#include "script/value/value.h"
#include "script/view/facts.h"
#include "script/view/hook_op.h"

/* name: an embedded policy ("least_load"), a file in policy_dir, or a path (contains '/' or ends in .lua).
 * err: one line with file:line, or the nearest known name. */
int bt_policy_load(bt_policy_t **policy_p, const char *name, const char *policy_dir, char *err,
                   size_t err_size);
/* From what was read already: the same bytes on every loop. */
int bt_policy_load_source(bt_policy_t **policy_p, const bt_policy_source_t *source, char *err,
                          size_t err_size);
/* Everything that a policy is made of. */
typedef struct bt_policy_spec {
    const char *path; /* stands in messages */
    bt_str_t code;
    const bt_value_t *params; /* a table, NULL = defaults; copied */
    const bt_value_t *old;    /* what the generation before handed over, NULL = none; copied */
    bool
        is_shadow; /* decides without effect: its baton.shared_local, rates and prefix index are its own names */
    bool
        is_dry_run; /* made only to be tested: its baton.shared_local and rates are its own and freed with it, the prefix index it only reads */
    /* Serves what start waits for (policy_run.h) and may block; NULL = start is told that it cannot wait here. Called again,
     * by a thread of its own, whenever the VM is made anew: serve_user lives as long as the policy. What it answers (body) is
     * good until its next call. */
    int (*serve)(void *user, const struct bt_hook_op *hook_op, struct bt_hook_answer *answer_p);
    void *serve_user;
} bt_policy_spec_t;
int bt_policy_make(bt_policy_t **policy_p, const bt_policy_spec_t *spec, char *err,
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
/* After a failed attempt: ctx.failure and ctx.attempt tell it. */
int bt_policy_plan_again(bt_policy_t *policy, enum bt_policy_part part,
                         const bt_policy_request_t *req, const bt_policy_view_t *view,
                         const bt_policy_failure_t *failure, bt_choice_t *choice_p);
/* Right after a plan: how many tokens of the prompt the worker's engine holds by its events. False: the policy has not asked, or nothing is
 * known. */
bool bt_policy_predicted(const bt_policy_t *policy, const bt_worker_t *w, uint64_t *tokens_p);
/* The one of a pair that the plan left open: decode (part DECODE), whose prefill has the prompt now, or prefill, whose decode calls for
 * it. BT_E_AGAIN: the policy has no such hook. */
int bt_policy_plan_late(bt_policy_t *policy, enum bt_policy_part part,
                        const bt_policy_request_t *req, const bt_policy_view_t *view,
                        bt_worker_t *partner, unsigned attempt, bt_choice_t *choice_p);
/* BT_E_AGAIN: the policy has no fallback hook. Of all four: 0 with nobody in choice_p: nil. */
int bt_policy_fallback(bt_policy_t *policy, const bt_policy_request_t *req,
                       const bt_policy_view_t *view, const bt_policy_failure_t *failure,
                       bt_choice_t *choice_p);
/* May an answer that has begun go on at another worker? BT_E_AGAIN: the policy has no such hook. */
int bt_policy_recompute(bt_policy_t *policy, const bt_policy_request_t *req,
                        const bt_policy_failure_t *failure, bool *may_p);
/* How it stands in its pool's line (--queue-size). BT_E_AGAIN: the policy has no such hook. */
int bt_policy_enqueue(bt_policy_t *policy, const bt_policy_request_t *req,
                      bt_policy_queueing_t *queueing_p);
/* BT_E_AGAIN: the policy has no such hook. at_ms is CLOCK_MONOTONIC. */
int bt_policy_observe(bt_policy_t *policy, const bt_policy_event_t *events, unsigned count);
/* Plain data for the next generation, to be freed; NULL when the hook returned nil. BT_E_AGAIN: no such hook. */
int bt_policy_handover(bt_policy_t *policy, bt_value_t **data_p);
bool bt_policy_has_hook(const bt_policy_t *policy, const char *name);
bool bt_policy_has_enqueue(const bt_policy_t *policy);
bool bt_policy_has_entry(const bt_policy_t *policy); /* admit or route */
/* The i-th hook that it has, the i-th parameter that it declares; NULL after the last. */
const char *bt_policy_hook_at(const bt_policy_t *policy, unsigned i);
const char *bt_policy_param_at(const bt_policy_t *policy, unsigned i);
/* JSON Schema of the parameters: malloc'ed, NULL when memory is short. */
char *bt_policy_params_schema(const bt_policy_t *policy);
const bt_policy_stats_t *bt_policy_stats(const bt_policy_t *policy);
/* Last error text of this policy (file:line: message), for logs and /admin. */
const char *bt_policy_error(const bt_policy_t *policy);

/* How a policy is tried. Zeroed: its workers bear nothing, and it plans both. */
typedef struct bt_policy_trial {
    const char *labels, *zone; /* of all workers: "k=v,k=v", a name; NULL = none */
    enum bt_policy_part part;
    bool or_half; /* one that plans a half will do: where it is to serve is not known */
} bt_policy_trial_t;
/* Asks the policy for a plan as it may come to be asked: without workers, with one, with all of them
 * down, with 512. nil is a fine answer where nobody can be chosen; an error, a choice that cannot be, or
 * never a choice is not. 0 with text in err: a warning, it may choose among labelled workers or for
 * another request. For any thread; the fleet is private. */
int bt_policy_self_test(bt_policy_t *policy, const bt_policy_trial_t *trial, char *err,
                        size_t err_size);
/* Does a policy fail with these words because it found nobody of the kind that it chooses from? */
bool bt_policy_is_absence(const char *err);
/* Does it serve pairs, or single workers? One of each role; a policy need not serve both, and nil is no answer here. */
int bt_policy_self_test_kind(bt_policy_t *policy, bool single, char *err, size_t err_size);

#endif
