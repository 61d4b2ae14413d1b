/* How it works: what a failed call may have left is garbage; it is collected here, in slices that a loop can bear. Two things
 * say that the VM itself is bad: many failures of that kind in a short time, and memory that stays full. Then a thread makes a new VM of
 * the same source and parameters while dispatch uses its own choice; the next call finds it ready, takes it in, and hands the
 * old VM to a thread that closes it. A full heap of 64 MiB takes a tenth of a second to mark or to free, so neither is ever
 * done on a loop. ctx.state begins anew: start(params, nil), which may wait
 * on that thread. */
#include "script/policy/policy_impl.h"

#include "base/flight.h"
#include "base/log.h"
#include "base/thread.h"

#include <stddef.h>
#include <stdio.h>

#define COLLECT_US 3000
#define FAILURES_MAX 8 /* runaways, and calls that ran out of memory */
#define FAILURES_WINDOW_MS 10000

/* ---- threads ---- */

static void *make_fresh(void *arg)
{
    bt_policy_t *policy = arg;
    const bt_policy_spec_t spec = {.path = policy->path,
                                   .code = {policy->code, policy->code_n},
                                   .params = policy->params.given,
                                   .is_shadow = policy->shadow[0] != '\0',
                                   .is_dry_run = policy->is_dry_run,
                                   .serve = policy->serve,
                                   .serve_user = policy->serve_user};
    char err[512];

    bt_thread_to_background();
    if (bt_policy_make(&policy->renewal.fresh, &spec, err, sizeof(err)) != 0)
        bt_log_warn("policy", "%s: a new VM cannot be made, the old one goes on: %s", policy->name,
                    err);
    atomic_store(&policy->renewal.done, true);
    return NULL;
}

static void *free_old(void *arg)
{
    bt_policy_t *policy = arg;

    bt_thread_to_background();
    bt_policy_free(policy->renewal.fresh);
    policy->renewal.fresh = NULL;
    atomic_store(&policy->renewal.done, true);
    return NULL;
}

static bool start_thread(bt_policy_t *policy, void *(*run)(void *) )
{
    struct bt_renewal *r = &policy->renewal;

    atomic_store(&r->done, false);
    r->has_thread = pthread_create(&r->thread, NULL, run, policy) == 0;
    return r->has_thread;
}

static void end_thread(struct bt_renewal *r)
{
    if (r->has_thread)
        pthread_join(r->thread, NULL);
    r->has_thread = false;
}

/* ---- renewing ---- */

static void begin_renewal(bt_policy_t *policy)
{
    struct bt_renewal *r = &policy->renewal;

    if (r->has_thread && !atomic_load(&r->done))
        return; /* still busy with the last one: the next failure asks again */
    end_thread(r);
    r->failures = 0;
    r->waiting = start_thread(policy, make_fresh);
}

/* Everything in a policy from `hook_refs` on belongs to its VM. */
static void exchange(bt_policy_t *a, bt_policy_t *b)
{
    const size_t from = offsetof(bt_policy_t, hook_refs);
    char *x = (char *) a + from, *y = (char *) b + from;

    bt_vm_swap(&a->vm, &b->vm);
    for (size_t i = 0; i < sizeof(bt_policy_t) - from; i++) {
        char c = x[i];
        x[i] = y[i];
        y[i] = c;
    }
    a->slot = b->slot = NULL; /* pointed into the other one; the next call finds it */
}

static void take_fresh(bt_policy_t *policy)
{
    struct bt_renewal *r = &policy->renewal;

    end_thread(r);
    r->waiting = false;
    if (r->fresh == NULL)
        return;
    exchange(policy, r->fresh);
    policy->epoch =
        bt_policy_next_epoch(); /* what waited in the old VM, and its requests' vars, are gone */
    policy->stats.renewals++;
    bt_log_warn("policy", "%s: the VM was made anew, ctx.state with it", policy->name);
    bt_flight_note(BT_FLIGHT_POLICY, 0, "policy %s: the VM was made anew", policy->name);
    if (!start_thread(policy, free_old)) {
        bt_policy_free(r->fresh); /* no thread to be had: a stall is better than a leak */
        r->fresh = NULL;
    }
}

bool bt_policy_is_ready(bt_policy_t *policy)
{
    struct bt_renewal *r = &policy->renewal;

    if (!r->waiting)
        return true;
    if (!atomic_load(&r->done)) {
        snprintf(policy->error, sizeof(policy->error),
                 "%s: the VM is being made anew after too many failures", policy->path);
        return false;
    }
    take_fresh(policy);
    return true;
}

/* ---- failures ---- */

static bool is_one_too_many(bt_policy_t *policy)
{
    struct bt_renewal *r = &policy->renewal;
    uint64_t now_ms = policy->call.now_ms;

    if (r->failures == 0 || now_ms - r->window_ms > FAILURES_WINDOW_MS) {
        r->window_ms = now_ms;
        r->failures = 0;
    }
    return ++r->failures >= FAILURES_MAX;
}

void bt_policy_failed(bt_policy_t *policy, enum bt_vm_end end)
{
    bool clean;

    policy->stats.errors++;
    if (end == BT_VM_ERROR)
        return;
    clean = bt_vm_collect(&policy->vm, COLLECT_US);
    if (end == BT_VM_NO_TIME) {
        policy->stats.runaways++;
        if (is_one_too_many(policy))
            begin_renewal(policy);
        return;
    }
    policy->stats.memory++;
    if (is_one_too_many(policy) || !clean ||
        policy->vm.heap.used_bytes > policy->vm.heap.cap_bytes / 2)
        begin_renewal(policy);
}

void bt_renewal_end(bt_policy_t *policy)
{
    end_thread(&policy->renewal);
    bt_policy_free(policy->renewal.fresh);
    policy->renewal.fresh = NULL;
}
