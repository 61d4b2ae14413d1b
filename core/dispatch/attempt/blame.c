/* blame.c - whose fault a leg's failure is. attempt.c's head says by which rules; here is what they look at. */
#include "dispatch/attempt/attempt.h"

#include "api/inspect.h"
#include "base/log.h"
#include "cluster/pair_breaker.h"
#include "cluster/warm.h"

#include <inttypes.h>

bool bt_blame_is_guilty(const bt_failure_t *f)
{
    if (f->status != 0)
        return f->status >= 500 && f->status != 503;
    if (f->stale)
        return false;
    switch (f->rc) {
    case BT_E_CONNECT:
    case BT_E_CONNECT_TIMEOUT:
    case BT_E_TLS:
    case BT_E_RESOLVE:
    case BT_E_RESET:
    case BT_E_FIRST_BYTE_TIMEOUT:
    case BT_E_STALL:
    case BT_E_LOST:
    case BT_E_UPSTREAM_HTTP:
    case BT_E_HANDOFF:
    case BT_E_REDIRECT:
    case BT_E_CALLBACK:
    case BT_E_CALLBACK_TIMEOUT:
        return true;
    default:
        return false; /* ours, or the process's: descriptors, ports, memory */
    }
}

unsigned bt_blame_either(const bt_attempt_t *a, bt_worker_t **guilty)
{
    bt_worker_t *p = a->pair.prefill, *d = a->pair.decode;
    uint64_t p_before = atomic_exchange(&p->suspect_partner, d->id);
    uint64_t d_before = atomic_exchange(&d->suspect_partner, p->id);
    unsigned n = 0;

    if (d_before != 0 && d_before != p->id)
        guilty[n++] = d;
    if (p_before != 0 && p_before != d->id)
        guilty[n++] = p;
    return n;
}

/* Engines say little of a transfer that has failed: any error of decode's before it has all KV may be that. */
bool bt_blame_is_for_hub(const bt_attempt_t *a, const bt_failure_t *f)
{
    return a->kv.room != 0 && !a->kv.is_done && f->status >= 500 && f->status != 503;
}

bool bt_blame_is_kv_failure(const bt_leg_t *leg, const bt_failure_t *f)
{
    return leg->attempt->kind == BT_PLAN_BOOTSTRAP && f->status >= 500 &&
           bt_inspect_kv_transfer(f->body);
}

/* Decode has called, and waits for a prefill that says nothing, and has done so longer than it took to call. */
static bool is_silent_prefills(const bt_leg_t *leg, const bt_failure_t *f)
{
    bt_attempt_t *a = leg->attempt;
    const uint64_t called_us = a->called_us;

    return a->kind == BT_PLAN_TRIGGER && leg->role == BT_LEG_DECODE &&
           f->rc == BT_E_FIRST_BYTE_TIMEOUT && bt_leg_running(bt_attempt_prefill(a)) &&
           bt_clock_event_us() - called_us >= called_us - leg->call.start_us;
}

bool bt_blame_is_ambiguous(const bt_leg_t *leg, const bt_failure_t *f)
{
    const bt_attempt_t *a = leg->attempt;
    const bool engine_error = f->status >= 500 && f->status != 503;

    if (a->kind == BT_PLAN_HANDOFF) /* only where decode depends on prefill being alive */
        return leg->role == BT_LEG_DECODE &&
               (bt_attempt_uses_reply(a) || a->dialect->needs_decode_first) && !a->recompute &&
               f->rc != BT_E_HANDOFF && (engine_error || f->rc == BT_E_FIRST_BYTE_TIMEOUT);
    if (a->kind == BT_PLAN_TRIGGER) /* once decode has called for it */
        return leg->role == BT_LEG_DECODE && a->legs[0].state != BT_LEG_IDLE &&
               (engine_error || f->rc == BT_E_FIRST_BYTE_TIMEOUT);
    if (leg->role == BT_LEG_DECODE && bt_blame_is_for_hub(a, f))
        return true;
    /* Silence while the partner is silent too; or of a decode that waits for what prefill pushes, as
     * prefill's answer does not prove that it has (where rooms join the legs, it does). */
    if (a->kind == BT_PLAN_BOOTSTRAP)
        return f->rc == BT_E_FIRST_BYTE_TIMEOUT &&
               (bt_leg_running(&a->legs[leg->role == BT_LEG_PREFILL ? 1 : 0]) ||
                (leg->role == BT_LEG_DECODE && !a->dialect->needs_room));
    return false;
}

unsigned bt_blame_find(const bt_leg_t *leg, const bt_failure_t *f, bt_worker_t **guilty)
{
    unsigned n = 0;

    if (leg->attempt->task->request->warmup != NULL)
        return 0; /* slow, or wrong for this engine: clients' requests and checks judge it */
    if (is_silent_prefills(leg, f)) {
        guilty[0] = leg->attempt->pair.prefill;
        return 1;
    }
    if (bt_blame_is_ambiguous(leg, f))
        return bt_blame_either(leg->attempt, guilty);
    if (f->rc == BT_E_HANDOFF) /* prefill's reply was wrong, whichever leg noticed */
        guilty[n++] = leg->attempt->pair.prefill;
    else if (bt_blame_is_guilty(f))
        guilty[n++] = leg->worker;
    return n;
}

/* ---- the pair ---- */

static bool is_transfers(const bt_attempt_t *a, const bt_failure_t *f)
{
    const bt_leg_t *leg = &a->legs[f->leg == BT_LEG_PREFILL ? 0 : 1];

    return (f->rc == BT_E_KV_TRANSFER && !f->stale) || bt_blame_is_kv_failure(leg, f) ||
           bt_blame_is_ambiguous(leg, f);
}

/* A warm-up tells of a pair only when it tries one that has rested: it comes before clients do, to slow engines too. */
void bt_blame_pair(bt_attempt_t *a, const bt_failure_t *f)
{
    bt_worker_t *p = a->pair.prefill, *d = a->pair.decode;
    const bt_request_t *r = a->task->request;
    uint64_t rest_ms;

    if (p == NULL || d == NULL || (r->warmup != NULL && !a->pair_probe) || !is_transfers(a, f))
        return;
    rest_ms = bt_pair_breaker_failure(p, d, a->pair_probe, bt_clock_event_ms());
    if (rest_ms == 0)
        return;
    bt_warm_forget(p, d);
    bt_workers_changed();
    BT_REQUEST_LOG(warn, "dispatch", r, NULL,
                   "pair %s, %s rests for %" PRIu64 " ms: transfers between the two keep failing "
                   "(%s), and neither is to blame; requests go to other pairs where there are some",
                   p->name, d->name, rest_ms, bt_err_name(f->rc));
}

void bt_blame_pair_works(const bt_attempt_t *a)
{
    if (a->pair.prefill == NULL || a->recompute ||
        !bt_pair_breaker_success(a->pair.prefill, a->pair.decode))
        return;
    BT_REQUEST_LOG(info, "dispatch", a->task->request, NULL, "pair %s, %s works again",
                   a->pair.prefill->name, a->pair.decode->name);
}
