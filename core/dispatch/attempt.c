/* attempt.c - one execution of one plan: joining two legs into one answer or one failure.
 *
 *   single:     leg ------------------------------> answer
 *   handoff:    prefill -> (reply checked, lease clock) -> decode -> answer
 *   bootstrap:  prefill and decode at once ---------> decode's answer; prefill's body is only looked into
 *
 * First failure wins: end_failed() is the one way to fail. It stops the other leg, tells engines to abort by the rid we
 * own, gives rooms back and says whom the failure is to be blamed on. Blame is by leg and by cause:
 *   - the transport of a leg broke, or it answered 5xx: its own worker, unless
 *   - decode says "KV transfer failed" (bootstrap): nobody's until prefill's fate is known or 100 ms passed, then the pair's;
 *   - decode answers 5xx to a hand-off, or two legs that wait for each other are silent: could be either's. It is held
 *     against a worker only when it fails so with two different partners in a row (suspect_partner);
 *   - 4xx, 429, 503, a pooled connection that died without a word: nobody's.
 */
#include "base/log.h"
#include "base/rand.h"
#include "dispatch/request.h"

#include <stdio.h>

#define BLAME_WAIT_MS 100
#define LEASE_MARGIN_MS 5000
#define PREFILL_DRAIN_MS 10000

static bt_leg_t *prefill_leg(bt_attempt_t *a)
{
    return &a->legs[0];
}

static bt_leg_t *answer_leg(bt_attempt_t *a)
{
    return &a->legs[1];
}

static void close_rooms(bt_attempt_t *a)
{
    bt_rooms_t *rooms = &a->task->request->d->rooms;

    for (unsigned i = 0; i < a->room_count; i++)
        bt_rooms_close(rooms, a->rooms[i]);
    a->room_count = 0;
}

/* ---- failing ---- */

static void stop_leg(bt_leg_t *leg)
{
    const bool was_running = bt_leg_running(leg);

    bt_leg_cancel(leg);
    if (was_running)
        bt_errand_abort(leg);
}

static void forget_learned(bt_worker_t *w)
{
    pthread_mutex_lock(&w->lock);
    w->learned.known = false;
    pthread_mutex_unlock(&w->lock);
}

static void note_end(bt_attempt_t *a)
{
    a->ended = true;
    a->end_us = bt_clock_us();
}

static void end_failed(bt_attempt_t *a, const bt_failure_t *f, bt_worker_t *const *guilty,
                       unsigned guilty_count)
{
    if (a->ended)
        return;
    note_end(a);
    bt_timer_stop(&a->blame_wait);
    a->fail_rc = f->rc;
    a->fail_leg = f->leg;
    a->fail_status = f->status;
    for (unsigned i = 0; i < 2; i++) {
        bt_leg_t *leg = &a->legs[i];
        if (leg->worker == NULL)
            continue;
        for (unsigned g = 0; g < guilty_count; g++)
            a->guilty[i] |= leg->worker == guilty[g];
        if (a->guilty[i])
            bt_leg_settle(leg, BT_BLAME_GUILTY);
        if (leg->state == BT_LEG_RUNNING)
            stop_leg(leg);
        else if (leg->state == BT_LEG_FAILED && a->kind == BT_PLAN_BOOTSTRAP)
            bt_errand_abort(leg); /* its engine may still wait for the other one */
        bt_leg_settle(leg, leg->state == BT_LEG_DONE ? BT_BLAME_OK : BT_BLAME_INNOCENT);
    }
    if (a->dialect != NULL && a->dialect->learns && (f->status == 0 || f->status >= 500))
        forget_learned(a->pair.prefill); /* it may have restarted with another engine id */
    if (f->rc != BT_E_HANDOFF)           /* wrong parameters could free somebody else's blocks */
        bt_errand_release(a);
    close_rooms(a);
    bt_task_attempt_failed(a->task, a, f, guilty, guilty_count);
}

static bool is_guilty(const bt_failure_t *f)
{
    if (f->status != 0)
        return f->status >= 500 && f->status != 503;
    if (f->stale)
        return false;
    switch (f->rc) {
    case BT_E_CONNECT:
    case BT_E_CONNECT_TIMEOUT:
    case BT_E_RESOLVE:
    case BT_E_RESET:
    case BT_E_FIRST_BYTE_TIMEOUT:
    case BT_E_STALL:
    case BT_E_UPSTREAM_HTTP:
    case BT_E_HANDOFF:
        return true;
    default:
        return false; /* ours, or the process's: descriptors, ports, memory */
    }
}

/* Two workers, one failure that could be either's. Fills guilty with those that failed so with another partner before. */
static unsigned triangulate(bt_attempt_t *a, bt_worker_t **guilty)
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

/* Does decode get what prefill has answered? */
static bool uses_reply(const bt_attempt_t *a)
{
    return a->dialect->needs_reply || a->dialect->learns;
}

static bool is_ambiguous(const bt_leg_t *leg, const bt_failure_t *f)
{
    bt_attempt_t *a = leg->attempt;
    const bool engine_error = f->status >= 500 && f->status != 503;

    if (a->kind == BT_PLAN_HANDOFF) /* only where decode depends on prefill being alive */
        return leg->role == BT_LEG_DECODE && uses_reply(a) && !a->recompute &&
               f->rc != BT_E_HANDOFF && (engine_error || f->rc == BT_E_FIRST_BYTE_TIMEOUT);
    if (a->kind == BT_PLAN_BOOTSTRAP) /* silence while the partner is silent too */
        return f->rc == BT_E_FIRST_BYTE_TIMEOUT &&
               bt_leg_running(&a->legs[leg->role == BT_LEG_PREFILL ? 1 : 0]);
    return false;
}

static void fail_with_blame(bt_leg_t *leg, const bt_failure_t *f)
{
    bt_attempt_t *a = leg->attempt;
    bt_worker_t *guilty[2];
    unsigned n = 0;

    if (is_ambiguous(leg, f))
        n = triangulate(a, guilty);
    else if (f->rc == BT_E_HANDOFF) /* prefill's reply was wrong, whichever leg noticed */
        guilty[n++] = a->pair.prefill;
    else if (is_guilty(f))
        guilty[n++] = leg->worker;
    end_failed(a, f, guilty, n);
}

static void on_blame_wait(bt_timer_t *timer)
{
    bt_attempt_t *a = bt_container_of(timer, bt_attempt_t, blame_wait);

    end_failed(a, &a->pending, NULL, 0); /* the pair's */
}

static bool is_kv_failure(const bt_leg_t *leg, const bt_failure_t *f)
{
    return leg->attempt->kind == BT_PLAN_BOOTSTRAP && f->status >= 500 &&
           bt_sniff_kv_transfer(f->body);
}

static bool try_other_decode(bt_attempt_t *a, const bt_failure_t *f);

void bt_attempt_leg_failed(bt_leg_t *leg, const bt_failure_t *f)
{
    bt_attempt_t *a = leg->attempt;

    if (a->ended || (a->committed && leg->role == BT_LEG_PREFILL)) {
        /* The answer is out or on its way: a late failure of prefill changes nothing for the client. */
        bt_leg_settle(leg, f->status == 0 && is_guilty(f) ? BT_BLAME_GUILTY : BT_BLAME_INNOCENT);
        return;
    }
    if (bt_timer_active(&a->blame_wait)) { /* decode failed first; here is prefill's fate */
        bt_failure_t first = a->pending;
        bt_worker_t *guilty[1] = {leg->worker};
        end_failed(a, &first, guilty, is_guilty(f) && !is_kv_failure(leg, f) ? 1 : 0);
        return;
    }
    if (is_kv_failure(leg, f)) {
        if (leg->role == BT_LEG_DECODE && bt_leg_running(prefill_leg(a))) {
            a->pending = *f;
            bt_timer_start(&a->blame_wait, BLAME_WAIT_MS);
            return;
        }
        end_failed(a, f, NULL, 0);
        return;
    }
    if (leg->role == BT_LEG_DECODE && a->kind == BT_PLAN_HANDOFF && try_other_decode(a, f))
        return;
    fail_with_blame(leg, f);
}

/* ---- the hand-off ---- */

static bool copy_text(bt_str_t object, const char *name, char *out, size_t size)
{
    bt_json_item_t item;
    long n;

    if (bt_json_get(object, bt_str(name), &item) < 0 || item.type != BT_JSON_STRING)
        return false;
    n = bt_json_unescape(item.value, out, size - 1);
    if (n <= 0)
        return false;
    out[n] = '\0';
    return true;
}

static int64_t member_i64(bt_str_t object, const char *name, int64_t otherwise)
{
    bt_json_item_t item;
    int64_t value;

    if (bt_json_get(object, bt_str(name), &item) < 0 || item.type != BT_JSON_NUMBER ||
        bt_json_i64(item.value, &value) < 0 || value < 0 || value > 65535)
        return otherwise;
    return value;
}

/* nixl_push: what this reply says about where prefill's KV agent lives serves all later requests at once. */
static void learn(bt_leg_t *leg)
{
    struct bt_learned l = {.known = true};
    bt_json_item_t params;

    if (bt_json_get(leg->reply, BT_STR("kv_transfer_params"), &params) < 0 ||
        params.type != BT_JSON_OBJECT)
        return;
    if (!copy_text(params.value, "remote_engine_id", l.engine_id, sizeof(l.engine_id)) ||
        !copy_text(params.value, "remote_host", l.host, sizeof(l.host)))
        return;
    if (strcmp(l.host, "localhost") == 0 || strcmp(l.host, "0.0.0.0") == 0)
        snprintf(l.host, sizeof(l.host), "%s", leg->worker->host);
    l.port = (int) member_i64(params.value, "remote_port", 0);
    l.tp_size = (int) member_i64(params.value, "tp_size", 1);
    l.pp_size = (int) member_i64(params.value, "pp_size", 1);
    if (l.port == 0)
        return;
    pthread_mutex_lock(&leg->worker->lock);
    leg->worker->learned = l;
    pthread_mutex_unlock(&leg->worker->lock);
}

static void start_decode(bt_attempt_t *a)
{
    bt_leg_t *p = prefill_leg(a), *d = answer_leg(a);
    bt_request_t *r = a->task->request;
    bt_failure_t f;

    if (uses_reply(a) && bt_clock_ms() + LEASE_MARGIN_MS >= a->lease_until_ms) {
        f = (bt_failure_t){
            .rc = BT_E_LEASE,
            .leg = BT_LEG_PREFILL,
            .worker = p->worker->name,
            .retryable = true,
            .reason = "prefill's lease on the KV cache ran out before decode could be asked"};
        bt_stats_inc(&r->d->stats, lease_expired);
        end_failed(a, &f, NULL, 0);
        return;
    }
    bt_histogram_note(&r->d->stats.handoff_wait, bt_clock_us() - a->prefill_done_us, 1);
    if (bt_leg_start(d, uses_reply(a) ? p->reply : BT_STR(""), &f) < 0 && !try_other_decode(a, &f))
        fail_with_blame(d, &f);
}

/* What the answer's headers and the access log tell: the workers of the last try. */
static void note_for_headers(bt_attempt_t *a)
{
    bt_request_t *r = a->task->request;

    r->kind = a->kind;
    memset(r->workers, 0, sizeof(r->workers));
    for (unsigned i = 0; i < 2; i++)
        if (a->legs[i].worker != NULL)
            snprintf(r->workers[a->legs[i].role], sizeof(r->workers[0]), "%s",
                     a->legs[i].worker->name);
}

static void note_swap(bt_attempt_t *a, int rc)
{
    bt_arena_t *arena = &a->task->request->arena;
    struct bt_swapped *s = bt_arena_alloc(arena, sizeof(*s));

    *s = (struct bt_swapped){a->swapped, bt_arena_str(arena, bt_str(a->pair.decode->name)).p, rc};
    a->swapped = s;
}

/* A finished prefill may serve another decode only if the first one got no byte of the request: after that decode may have
 * read or rejected it, and prefill's blocks are free for others. */
static bool try_other_decode(bt_attempt_t *a, const bt_failure_t *f)
{
    bt_leg_t *d = answer_leg(a);
    bt_request_t *r = a->task->request;
    bt_worker_t *other;
    bool probe;

    if (d->call.any_byte_sent || f->status != 0 || !f->retryable || r->expired || r->finished ||
        r->d->gate->config.disable_retries || a->task->attempts >= r->pool->spec.max_attempts)
        return false;
    if (f->rc != BT_E_CONNECT && f->rc != BT_E_CONNECT_TIMEOUT && f->rc != BT_E_RESOLVE)
        return false;
    other = bt_plan_other_decode(a->task, a->pair.prefill);
    if (other == NULL || !bt_breaker_enter(&other->breaker, bt_clock_ms(), &probe))
        return false;
    note_swap(a, f->rc);
    bt_leg_settle(d, BT_BLAME_GUILTY);
    bt_leg_drop(d);
    a->pair.decode = other;
    a->pair.decode_rank = -1;
    a->task->attempts++;
    r->attempts++;
    bt_stats_inc(&r->d->stats, decode_swaps);
    bt_leg_init(d, a, BT_LEG_DECODE, other);
    d->entered = true;
    d->probe = probe;
    note_for_headers(a);
    start_decode(a);
    return true;
}

/* ---- events of legs that go well ---- */

/* Bytes per token as this pool's prompts really have them; a weight of 1/8 a reply. */
static void learn_token_size(bt_leg_t *leg)
{
    bt_request_t *r = leg->attempt->task->request;
    _Atomic uint64_t *milli = r->pool->bytes_per_token_milli;
    uint64_t old = atomic_load_explicit(milli, memory_order_relaxed), now;
    uint64_t tokens;

    if (r->intent.prompt_ids != 0 || r->intent.prompt_bytes == 0 || r->task_count != 1)
        return;
    tokens = bt_leg_reply_tokens(leg);
    if (tokens == 0)
        return;
    now = r->intent.prompt_bytes * 1000 / tokens;
    atomic_store_explicit(milli, old - old / 8 + now / 8, memory_order_relaxed);
}

static void prefill_done(bt_leg_t *leg)
{
    bt_attempt_t *a = leg->attempt;
    bt_request_t *r = a->task->request;

    a->prefill_done_us = bt_clock_us();
    bt_histogram_note(&r->d->stats.prefill, a->prefill_done_us - leg->call.start_us, 1);
    if (!a->ended && (leg->reply_overflow || bt_sniff_aborted(leg->reply))) {
        bt_failure_t f = {.rc = BT_E_UPSTREAM_BODY,
                          .leg = BT_LEG_PREFILL,
                          .worker = leg->worker->name,
                          .status = 0,
                          .reason = leg->reply_overflow
                                        ? "prefill's reply is larger than 4 MiB"
                                        : "prefill answered 200 with an error or abort inside",
                          .retryable = true};
        unsigned status = leg->reply_overflow ? 0 : bt_sniff_json(leg->reply, true);
        if (status != 0) {
            f.status = status;
            f.body = leg->reply;
            f.retryable = status >= 500 || status == 429;
        }
        if (a->committed)
            bt_leg_settle(leg, BT_BLAME_INNOCENT);
        else if (is_kv_failure(leg, &f))
            end_failed(a, &f, NULL, 0);
        else
            fail_with_blame(leg, &f);
        return;
    }
    learn_token_size(leg);
    if (a->dialect->learns)
        learn(leg);
    if (a->kind == BT_PLAN_HANDOFF && !a->ended) {
        bt_ledger_release(
            &leg->prefill_load); /* its breaker hears of it when decode has found the hand-off good */
        start_decode(a);
    } else {
        bt_leg_settle(leg, BT_BLAME_OK);
    }
}

static void answer_done(bt_leg_t *leg)
{
    bt_attempt_t *a = leg->attempt;
    bt_leg_t *p = prefill_leg(a);
    bt_request_t *r = a->task->request;

    note_end(a);
    bt_timer_stop(&a->blame_wait);
    bt_leg_settle(leg, BT_BLAME_OK);
    if (a->pair.prefill != NULL) {
        atomic_store_explicit(&a->pair.prefill->suspect_partner, 0, memory_order_relaxed);
        atomic_store_explicit(&a->pair.decode->suspect_partner, 0, memory_order_relaxed);
    }
    if (leg->events > 1)
        bt_worker_note_tpot(leg->worker,
                            (leg->last_body_us - leg->first_body_us) / (leg->events - 1));
    if (p->worker != NULL &&
        bt_leg_running(p)) /* not waited for, but its connection is worth keeping */
        bt_timer_start(&a->blame_wait, PREFILL_DRAIN_MS);
    else if (p->worker != NULL)
        bt_leg_settle(p, p->state == BT_LEG_DONE ? BT_BLAME_OK : BT_BLAME_INNOCENT);
    close_rooms(a);
    bt_task_attempt_done(a->task);
    r->sink->end(a->task);
}

void bt_attempt_cut(bt_attempt_t *a)
{
    bt_timer_stop(&a->blame_wait);
    stop_leg(prefill_leg(a));
}

static void on_attempt_timer(bt_timer_t *timer)
{
    bt_attempt_t *a = bt_container_of(timer, bt_attempt_t, blame_wait);

    if (a->ended)
        bt_attempt_cut(a);
    else
        on_blame_wait(timer);
}

void bt_attempt_leg_done(bt_leg_t *leg)
{
    if (leg->role == BT_LEG_PREFILL)
        prefill_done(leg);
    else
        answer_done(leg);
}

void bt_attempt_leg_commit(bt_leg_t *leg)
{
    bt_attempt_t *a = leg->attempt;
    bt_request_t *r = a->task->request;

    a->committed = true;
    a->task->committed = true;
    r->sink->head(a->task, &leg->call.head, leg->is_sse);
}

void bt_attempt_resume(bt_attempt_t *a)
{
    if (bt_leg_running(answer_leg(a)))
        bt_call_resume(&answer_leg(a)->call);
}

void bt_attempt_cancel(bt_attempt_t *a)
{
    if (a->ended) /* only prefill's drain can be left */
        return;
    note_end(a);
    bt_timer_stop(&a->blame_wait);
    stop_leg(prefill_leg(a));
    stop_leg(answer_leg(a));
    bt_errand_release(a);
    close_rooms(a);
}

/* ---- starting ---- */

static int mint_rooms(bt_attempt_t *a)
{
    bt_request_t *r = a->task->request;
    unsigned count = a->task->prompt_count != 0 ? a->task->prompt_count : 1;
    unsigned dp = a->pair.prefill->dp_size;
    const int fixed =
        a->pair.prefill_rank >= 0 ? a->pair.prefill_rank : a->pair.prefill->spec.dp_rank;

    a->rooms = bt_arena_alloc(&r->arena, count * sizeof(*a->rooms));
    for (; a->room_count < count; a->room_count++) {
        unsigned rank = fixed >= 0 ? (unsigned) fixed : (unsigned) bt_rand_below(dp);
        int rc = bt_rooms_open(&r->d->rooms, dp, dp > 1 ? rank % dp : 0, &a->rooms[a->room_count]);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static void write_id(bt_attempt_t *a, const char *base)
{
    if (a->number > 1)
        snprintf(a->id, sizeof(a->id), "%s%s-a%u", base, a->task->suffix, a->number);
    else
        snprintf(a->id, sizeof(a->id), "%s%s", base, a->task->suffix);
}

static void make_ids(bt_attempt_t *a)
{
    const bt_request_t *r = a->task->request;
    char fresh[BT_REQUEST_ID_MAX + 1];

    write_id(a, r->id);
    if (r->id_registered && strcmp(a->id, r->id) != 0 &&
        bt_ids_has(r->d->gate->ids, bt_str(a->id))) {
        bt_rand_uuid(fresh); /* another client's own id reads so */
        write_id(a, fresh);
    }
    snprintf(a->rid, sizeof(a->rid), "%016llx%016llx", (unsigned long long) bt_rand_u64(),
             (unsigned long long) bt_rand_u64());
}

/* Does this request's probe of the worker run already? Its other children then go with it: sent away, they would fail the
 * request, and a fleet that is asked for nothing but lists would never see a probe end. */
static bool rides_along(const bt_leg_t *leg)
{
    const bt_request_t *r = leg->attempt->task->request;

    for (unsigned i = 0; i < r->task_count; i++) {
        const bt_attempt_t *a = r->tasks[i].attempt;
        for (unsigned k = 0; a != NULL && k < 2; k++)
            if (a->legs[k].worker == leg->worker && a->legs[k].probe && !a->legs[k].settled)
                return true;
    }
    return false;
}

static bool enter(bt_leg_t *leg)
{
    leg->entered =
        bt_breaker_enter(&leg->worker->breaker, bt_clock_ms(), &leg->probe) || rides_along(leg);
    return leg->entered;
}

static void run(bt_attempt_t *a)
{
    bt_leg_t *p = prefill_leg(a), *d = answer_leg(a);
    bt_failure_t f;

    if (a->kind != BT_PLAN_SINGLE && bt_leg_start(p, BT_STR(""), &f) < 0) {
        fail_with_blame(p, &f);
        return;
    }
    if (a->kind == BT_PLAN_HANDOFF)
        return;
    if (bt_leg_start(d, BT_STR(""), &f) < 0) {
        /* nixl_push before anything is known about this prefill: its own reply will carry the parameters. */
        if (a->kind == BT_PLAN_BOOTSTRAP && a->dialect->learns && f.rc == BT_E_DIALECT) {
            a->kind = BT_PLAN_HANDOFF;
            note_for_headers(a);
            return;
        }
        fail_with_blame(d, &f);
    }
}

int bt_attempt_start(bt_task_t *task, const bt_pair_t *pair)
{
    bt_request_t *r = task->request;
    bt_attempt_t *a = bt_arena_zalloc(&r->arena, sizeof(*a));
    int rc = 0;

    a->task = task;
    a->number = task->attempts + 1;
    a->start_us = bt_clock_us();
    a->pair = *pair;
    a->kind = bt_plan_kind_of(r->d, pair, &a->dialect);
    bt_timer_init(r->d->loop, &a->blame_wait, on_attempt_timer);
    if (pair->prefill != NULL)
        bt_leg_init(&a->legs[0], a, BT_LEG_PREFILL, pair->prefill);
    bt_leg_init(&a->legs[1], a, pair->prefill != NULL ? BT_LEG_DECODE : BT_LEG_SINGLE,
                pair->decode);
    if ((pair->prefill != NULL && !enter(&a->legs[0])) || !enter(&a->legs[1]))
        rc = BT_E_AGAIN; /* somebody else's probe is under way */
    if (rc == 0 && a->dialect != NULL && a->dialect->needs_room)
        rc = mint_rooms(a);
    if (rc < 0) {
        close_rooms(a);
        bt_leg_drop(&a->legs[0]);
        bt_leg_drop(&a->legs[1]);
        return rc;
    }
    make_ids(a);
    a->before = task->attempt;
    task->attempt = a;
    task->attempts++;
    r->attempts++;
    bt_stats_inc(&r->d->stats, attempts);
    if (task->attempts > 1)
        bt_stats_inc(&r->d->stats, retries);
    note_for_headers(a);
    run(a);
    return 0;
}
