/* attempt_trigger.c - decode first: its engine calls the metaserver when it has room for the prompt, and prefill is asked
 * then, with what the call says.
 *
 *   decode asked -> it calls -> prefill asked -> prefill has ended: all calls that came meanwhile are answered
 *                |           |> the plan has left it open: it is chosen now (attempt_workers.c); nobody: the attempt fails
 *                |           |> the call is wrong: decode's fault
 *                |           `> it cannot be reached, or is lost: another one is asked (replacement.c)
 *                |> no call in callback_ms: decode's fault
 *                `> its answer begins without one: it has computed the prompt itself
 *
 * The URL that decode gets holds the number of the attempt's room, which tells the loop and, there, the attempt. Rooms of a
 * trigger stay open until the request's memory goes: so a call that repeats another one is answered as that was, and one for
 * an attempt that is over is told so. Engines call again when their connection breaks, or for each of several connectors.
 */
#include "dispatch/attempt/attempt.h"
#include "dispatch/attempt/leg.h"
#include "transfer/metaserver.h"

static void on_wait_over(bt_timer_t *timer)
{
    bt_attempt_t *a = bt_container_of(timer, bt_attempt_trigger_t, wait)->attempt;
    bt_leg_t *d = bt_attempt_answer(a);
    const bt_failure_t f = bt_leg_failure(d, BT_E_CALLBACK_TIMEOUT, true);

    bt_attempt_fail_leg(d, &f);
}

void bt_attempt_trigger_begin(bt_attempt_t *a)
{
    bt_leg_t *d = bt_attempt_answer(a);
    bt_request_t *r = a->task->request;
    bt_failure_t f;

    a->trigger = bt_arena_zalloc(&r->arena, sizeof(*a->trigger));
    a->trigger->attempt = a;
    bt_timer_init(r->d->loop, &a->trigger->wait, on_wait_over);
    if (bt_leg_start(d, BT_STR(""), &f) < 0) {
        bt_attempt_fail_leg(d, &f);
        return;
    }
    if (a->pair.prefill != NULL)
        bt_leg_hold(bt_attempt_prefill(a)); /* others are planned before the call comes */
    bt_timer_start(&a->trigger->wait, r->pool->spec.deadlines.callback_ms);
}

/* ---- answers to calls ---- */

static bool is_prefills_failure(const bt_attempt_t *a)
{
    return a->legs[0].state == BT_LEG_FAILED ||
           (a->fail_rc != 0 && a->fail_rc != BT_E_CALLBACK && a->fail_leg == BT_LEG_PREFILL);
}

static void answer(const bt_attempt_t *a, bt_metaserver_call_t *call, const char *why)
{
    if (a->fail_rc == BT_E_CALLBACK)
        bt_metaserver_answer(call, 400, why != NULL ? why : bt_err_text(BT_E_CALLBACK));
    else if (is_prefills_failure(a))
        bt_metaserver_answer(call, 502, why != NULL ? why : "prefill has failed");
    else if (a->fail_rc != 0 || a->legs[0].state != BT_LEG_DONE)
        bt_metaserver_answer(call, 409, "this attempt is over, or needs no prefill any more");
    else
        bt_metaserver_answer(call, 200, NULL);
}

void bt_attempt_trigger_settle(bt_attempt_t *a, const char *why)
{
    if (a->trigger == NULL)
        return;
    if (a->ended)
        bt_timer_stop(&a->trigger->wait);
    while (a->trigger->calls != NULL && !bt_leg_running(bt_attempt_prefill(a))) {
        bt_metaserver_call_t *call = a->trigger->calls;
        a->trigger->calls = call->next;
        answer(a, call, why);
    }
}

void bt_attempt_trigger_commit(bt_attempt_t *a)
{
    if (a->trigger == NULL)
        return;
    bt_timer_stop(&a->trigger->wait);
    if (a->called_us != 0)
        return;
    a->recompute = true;
    bt_leg_settle(bt_attempt_prefill(a), BT_BLAME_INNOCENT);
    bt_stats_inc(&a->task->request->d->stats, recomputes);
}

/* ---- calls ---- */

static void start_prefill(bt_attempt_t *a, bt_str_t said)
{
    bt_request_t *r = a->task->request;
    bt_leg_t *p = bt_attempt_prefill(a);
    bt_failure_t f;

    bt_timer_stop(&a->trigger->wait);
    a->called_us = bt_clock_event_us();
    bt_stats_inc(&r->d->stats, callbacks);
    if (r->warmup == NULL)
        bt_histogram_note(&r->d->stats.callback_wait,
                          a->called_us - bt_attempt_answer(a)->call.start_us, 1);
    if (p->worker == NULL && !bt_attempt_choose_late(a, BT_LEG_PREFILL))
        return;
    a->trigger->said = bt_arena_str(&r->send_arena, said.n != 0 ? said : BT_STR("null"));
    if (bt_leg_start(p, a->trigger->said, &f) < 0 &&
        !bt_replacement_prefill(a, &f, bt_blame_is_guilty(&f)))
        bt_attempt_fail_leg(f.rc == BT_E_CALLBACK ? bt_attempt_answer(a) : p, &f);
}

static void take(bt_attempt_t *a, bt_metaserver_call_t *call)
{
    bt_stats_t *stats = &a->task->request->d->stats;

    call->next = a->trigger->calls;
    a->trigger->calls = call;
    if (a->called_us != 0)
        bt_stats_inc(stats, callbacks_repeated);
    else if (a->ended || a->committed)
        bt_stats_inc(stats, callbacks_late);
    else
        start_prefill(a, call->body);
    bt_attempt_trigger_settle(a, NULL);
}

void bt_attempt_trigger_on_call(bt_loop_t *loop, bt_mail_t *mail)
{
    bt_metaserver_call_t *call = bt_container_of(mail, bt_metaserver_call_t, mail);
    bt_dispatcher_t *d = call->user;
    bt_attempt_t *a = bt_rooms_owner(&d->rooms, call->room);

    (void) loop;
    if (a != NULL && a->trigger != NULL) {
        take(a, call);
        return;
    }
    bt_stats_inc(&d->stats, callbacks_late);
    bt_metaserver_answer(call, 404, "no request with this attempt: it is over, or never was");
}
