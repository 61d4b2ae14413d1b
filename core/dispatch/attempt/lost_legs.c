/* lost_legs.c - a worker is lost: what waits on it here ends.
 *
 * The control loop finds out (core/cluster/checks/loss.h) and writes every loop a mail without a word of
 * whom it is about: the worker says that itself. A loop looks at its legs only then, GRACE_MS
 * later, so that what has arrived already is read before. A leg that got a byte since the first
 * evidence, and one that its client holds up, stays. So does an answer whose prefill is lost, unless
 * prefill answered so lately that its KV is hardly there yet: decode would wait for it, some engines
 * for minutes. At most A_TURN legs end in a turn: each may be planned anew, and thousands at once
 * would hold up those that are well. So would a look at 100,000: a turn looks at LOOKED_AT requests.
 */
#include "dispatch/attempt/lost_legs.h"

#include "dispatch/attempt/attempt.h"
#include "dispatch/attempt/encode.h"
#include "dispatch/attempt/leg.h"

#define GRACE_MS 250
#define A_TURN 64
#define LOOKED_AT 4096
#define KV_MOVES_MS 5000

typedef struct search {
    uint64_t now_ms, next_ms; /* next_ms: until the grace of another loss ends; 0 = of none */
} search_t;

static bool is_grace_over(const bt_worker_t *w, search_t *s)
{
    const uint64_t lost_at_ms = bt_worker_lost_at(w);

    if (s->now_ms >= lost_at_ms + GRACE_MS)
        return true;
    const uint64_t left_ms = lost_at_ms + GRACE_MS - s->now_ms;
    if (s->next_ms == 0 || left_ms < s->next_ms)
        s->next_ms = left_ms;
    return false;
}

static bool is_to_end(const bt_leg_t *leg, search_t *s)
{
    return bt_leg_running(leg) && !bt_call_paused(&leg->call) && bt_worker_is_lost(leg->worker) &&
           leg->last_bytes_ms < bt_worker_lost_since(leg->worker) && is_grace_over(leg->worker, s);
}

/* Does decode need anything of a prefill that has answered? */
static bool needs_prefill(const bt_attempt_t *a)
{
    if (a->recompute || a->kv.is_done)
        return false;
    return a->kind != BT_PLAN_HANDOFF || bt_attempt_uses_reply(a) || a->dialect->needs_decode_first;
}

static bool waits_in_vain(const bt_attempt_t *a, search_t *s)
{
    const bt_leg_t *p = &a->legs[0], *d = &a->legs[1];

    return !a->ended && !a->committed && p->worker != NULL && p->state == BT_LEG_DONE &&
           bt_leg_running(d) && bt_worker_is_lost(p->worker) && needs_prefill(a) &&
           bt_worker_lost_since(p->worker) < a->prefill_done_us / 1000 + KV_MOVES_MS &&
           is_grace_over(p->worker, s);
}

static bt_leg_t *find_leg(const bt_request_t *r, search_t *s)
{
    for (unsigned i = 0; r->encode != NULL && i < r->encode->count; i++)
        if (is_to_end(&r->encode->parts[i].leg, s))
            return &r->encode->parts[i].leg;
    for (unsigned i = 0; i < r->task_count; i++)
        for (bt_attempt_t *a = r->tasks[i].attempt; a != NULL; a = a->before) {
            if (waits_in_vain(a, s))
                return &a->legs[0];
            for (unsigned k = 0; k < 2; k++)
                if (is_to_end(&a->legs[k], s))
                    return &a->legs[k];
        }
    return NULL;
}

/* A request that ends so stays in memory until the turn ends. */
static unsigned end_legs(bt_dispatcher_t *d, const bt_request_t *r, search_t *s)
{
    unsigned count = 0;
    bt_leg_t *leg;

    while (count < A_TURN && (leg = find_leg(r, s)) != NULL) {
        count++;
        bt_stats_inc(&d->stats, lost_legs);
        if (leg->role == BT_LEG_ENCODE)
            bt_encode_lost(leg);
        else if (!bt_leg_running(leg))
            bt_attempt_kv_lost(leg->attempt);
        else
            bt_relay_lost(leg);
    }
    return count;
}

/* When the grace of the next loss ends, by all that the walk has seen so far. */
static void note_next(bt_dispatcher_t *d, const search_t *s)
{
    const uint64_t at_ms = s->now_ms + s->next_ms;

    if (s->next_ms != 0 && (d->lost_next_ms == 0 || at_ms < d->lost_next_ms))
        d->lost_next_ms = at_ms;
}

static void end_walk(bt_dispatcher_t *d, uint64_t now_ms)
{
    if (d->is_lost_again)
        bt_timer_start(&d->lost_timer, GRACE_MS);
    else if (d->lost_next_ms != 0)
        bt_timer_start(&d->lost_timer, d->lost_next_ms > now_ms ? d->lost_next_ms - now_ms : 0);
}

static void on_grace_over(bt_timer_t *timer)
{
    bt_dispatcher_t *d = bt_container_of(timer, bt_dispatcher_t, lost_timer);
    search_t s = {.now_ms = bt_clock_event_ms()};
    bt_request_t *r;
    unsigned looked = 0, ended = 0;

    if (d->lost_walk.at == NULL) {
        bt_request_walk_start(d, &d->lost_walk);
        d->lost_next_ms = 0;
        d->is_lost_again = false;
    }
    while (looked++ < LOOKED_AT && ended < A_TURN &&
           (r = bt_request_walk_next(d, &d->lost_walk)) != NULL) {
        const bool was_finished = r->finished;
        const unsigned count = end_legs(d, r, &s);
        if (count == A_TURN && r->finished == was_finished)
            d->lost_walk.at = &r->link; /* it may have more, one of many prompts */
        ended += count;
    }
    note_next(d, &s);
    if (d->lost_walk.at == NULL)
        end_walk(d, s.now_ms);
    else
        bt_timer_start(timer, 0);
}

static void on_mail(bt_loop_t *loop, bt_mail_t *envelope)
{
    bt_dispatcher_t *d = bt_container_of(envelope, bt_dispatcher_t, lost_mail);

    (void) loop;
    atomic_store(&d->is_lost_mailed, false);
    d->is_lost_again = d->lost_walk.at != NULL; /* it has passed some by */
    if (!bt_timer_active(&d->lost_timer))
        bt_timer_start(&d->lost_timer, GRACE_MS);
}

void bt_lost_legs_init(bt_dispatcher_t *d)
{
    bt_timer_init(d->loop, &d->lost_timer, on_grace_over);
}

void bt_lost_legs_fini(bt_dispatcher_t *d)
{
    bt_timer_stop(&d->lost_timer);
}

void bt_lost_legs_post(bt_dispatcher_t *d)
{
    if (!atomic_exchange(&d->is_lost_mailed, true))
        bt_loop_post(d->loop, &d->lost_mail, on_mail);
}
