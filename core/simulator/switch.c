/* switch.c - engines that take the other role, when it is asked for or when the gateway's own advice stays (cluster/advice.h).
 *
 * As cluster/roles has it: the worker gets no new requests, and when nothing of it is left its engine changes, which takes SWITCH_S and costs its
 * cache; then a worker by the other role takes its place. A decode that prefills are under way for serves these yet: an engine can do both. What
 * comes to it while it changes is finished first, as an engine refuses that is not idle.
 * Who is not idle in time serves on as before. By itself the gateway switches one worker at a time, of the role that has had too many at three
 * looks a window apart, and never the last of a role. */
#include "simulator/sim_impl.h"

#include "base/err.h"
#include "cluster/changes.h"
#include "cluster/roles/advisor.h"
#include "cluster/roles/role_auto.h"

#include <stdio.h>
#include <stdlib.h>

#define TICK_S 0.05 /* between two looks at whether it is idle */
#define SWITCH_S 1.0
#define TIMEOUT_S (BT_ROLE_SWITCH_TIMEOUT_MS / 1000.0)
#define WINDOW_MS 60000
#define LOOK_S 0.2 /* the advisor's */
#define LOOKS_A_WINDOW 300

/* ---- which ---- */

int bt_sim_switches_read(const char *text, unsigned prefills, unsigned decodes,
                         bt_sim_switch_t *list, unsigned *count_p, char *err, size_t err_size)
{
    unsigned n = 0;

    for (const char *at = text; *at != '\0'; at += *at == ',') {
        char role, *end;
        unsigned number;
        int used = 0;
        if (sscanf(at, "%c%u@%n", &role, &number, &used) < 2 || used == 0 ||
            !((role == 'p' && number < prefills) || (role == 'd' && number < decodes))) {
            snprintf(err, err_size,
                     "--switch: %.60s: expected a prefill or decode engine and "
                     "seconds: p1@60 makes the second prefill engine a decode engine",
                     at);
            return BT_E_INVAL;
        }
        const double at_s = strtod(at + used, &end);
        if (end == at + used || (*end != ',' && *end != '\0') ||
            !(at_s >= 0 && at_s <= BT_SIM_SECONDS_MAX) || n == BT_SIM_SWITCHES_MAX) {
            snprintf(err, err_size,
                     "--switch: %.60s: expected seconds up to 1e7, and at most %d switches", at,
                     BT_SIM_SWITCHES_MAX);
            return BT_E_INVAL;
        }
        list[n++] = (bt_sim_switch_t){role == 'p' ? number : prefills + number, at_s};
        at = end;
    }
    *count_p = n;
    return 0;
}

/* ---- one engine ---- */

static bool is_idle(const bt_sim_run_t *r, unsigned engine)
{
    for (const bt_list_t *it = r->flights.next; it != &r->flights; it = it->next)
        if (bt_sim_is_on(bt_container_of(it, bt_sim_flight_t, link), engine))
            return false;
    return true;
}

static unsigned usable_of(bt_sim_run_t *r, enum bt_role role)
{
    unsigned n = 0;

    for (unsigned i = 0; i < r->count; i++)
        n += r->workers[i]->spec.role == role && bt_worker_usable(r->workers[i], bt_sim_now_ms(r));
    return n;
}

static void set_switching(bt_worker_t *w, enum bt_switch state)
{
    atomic_store(&w->switching, (int) state);
    bt_worker_note_service(w);
    bt_workers_changed();
}

void bt_sim_switch(bt_sim_run_t *r, unsigned engine)
{
    bt_worker_t *w = r->workers[engine];
    bt_sim_watch_t *watch = &r->watches[engine];

    if (watch->switching > 0 || r->out->switch_count == BT_SIM_SWITCHES_MAX)
        return;
    bt_sim_switch_result_t *out = &r->out->switches[r->out->switch_count++];
    *out = (bt_sim_switch_result_t){.asked_s = r->now_s, .done_s = -1};
    snprintf(out->name, sizeof out->name, "%s", w->name);
    out->is_to_prefill = w->spec.role == BT_ROLE_DECODE;
    if (!bt_sim_works(r, engine) || usable_of(r, w->spec.role) < 2) /* the last of its role */
        return;
    watch->switching = r->out->switch_count;
    set_switching(w, BT_SWITCH_DRAINING);
    bt_sim_events_push(&r->events, r->now_s + TICK_S, BT_SIM_DRAIN, engine, NULL);
}

/* It serves on in its old role. */
static void give_up(bt_sim_run_t *r, unsigned engine)
{
    r->watches[engine].switching = 0;
    set_switching(r->workers[engine], BT_SWITCH_NONE);
}

void bt_sim_switch_drain(bt_sim_run_t *r, unsigned engine)
{
    const bt_sim_watch_t *watch = &r->watches[engine];
    const double until_s = r->out->switches[watch->switching - 1].asked_s + TIMEOUT_S;

    if (!bt_sim_works(r, engine) || (!is_idle(r, engine) && r->now_s >= until_s)) {
        give_up(r, engine);
        return;
    }
    if (!is_idle(r, engine)) {
        bt_sim_events_push(&r->events, r->now_s + TICK_S, BT_SIM_DRAIN, engine, NULL);
        return;
    }
    set_switching(r->workers[engine], BT_SWITCH_ASKING);
    bt_sim_events_push(&r->events, r->now_s + SWITCH_S, BT_SIM_SWITCHED, engine, NULL);
}

void bt_sim_switched(bt_sim_run_t *r, unsigned engine)
{
    bt_sim_watch_t *watch = &r->watches[engine];

    if (!bt_sim_works(r, engine)) {
        give_up(r, engine);
        return;
    }
    if (!is_idle(r, engine)) { /* a prefill that was under way has been done since */
        set_switching(r->workers[engine], BT_SWITCH_DRAINING);
        bt_sim_switch_drain(r, engine);
        return;
    }
    bt_sim_events_forget(&r->events, BT_SIM_LEASE, engine, NULL);
    bt_sim_engine_reset(&r->engines[engine]);
    if (r->setup->is_exact)
        bt_sim_feed_restart(&r->feed, engine);
    r->rc = bt_sim_fleet_switch(r, engine);
    r->out->switches[watch->switching - 1].done_s = r->now_s;
    watch->switching = 0;
}

/* ---- by advice ---- */

/* The one that has least to finish. */
static unsigned idlest(bt_sim_run_t *r, enum bt_role role)
{
    const enum bt_phase phase = role == BT_ROLE_PREFILL ? BT_PHASE_PREFILL : BT_PHASE_DECODE;
    unsigned best = r->count;

    for (unsigned i = 0; i < r->count; i++)
        if (r->workers[i]->spec.role == role && bt_worker_usable(r->workers[i], bt_sim_now_ms(r)) &&
            (best == r->count || bt_worker_requests(r->workers[i], phase) <
                                     bt_worker_requests(r->workers[best], phase)))
            best = i;
    return best;
}

static int wish_of(const bt_sim_run_t *r)
{
    bt_advice_input_t in;
    bt_advice_t advice;

    for (unsigned i = 0; i < r->count; i++)
        if (r->watches[i].switching > 0)
            return 0;
    if (!bt_advisor_input(r->advisor, bt_sim_pool(r), &in))
        return 0;
    bt_advice_make(&in, &advice);
    if (advice.confidence <= BT_CONFIDENCE_LOW || advice.prefill == in.prefill.workers)
        return 0;
    return advice.prefill > in.prefill.workers ? 1 : -1;
}

static void follow(bt_sim_run_t *r)
{
    const int wish = wish_of(r);

    r->wish_looks = wish == r->wish ? r->wish_looks + 1 : 1;
    r->wish = wish;
    if (wish == 0 || r->wish_looks < BT_ROLE_AUTO_LOOKS)
        return;
    r->wish_looks = 0;
    const unsigned engine = idlest(r, wish > 0 ? BT_ROLE_DECODE : BT_ROLE_PREFILL);
    if (engine < r->count)
        bt_sim_switch(r, engine);
}

void bt_sim_advise(bt_sim_run_t *r)
{
    bt_advisor_look(r->advisor, bt_sim_now_ms(r));
    r->advisor_looks++;
    if (r->setup->follows_advice && r->advisor_looks % LOOKS_A_WINDOW == 0)
        follow(r);
    if (r->in_flight > 0 || r->next_request < r->setup->trace->count)
        bt_sim_events_push(&r->events, r->now_s + LOOK_S, BT_SIM_ADVISE, 0, NULL);
}

int bt_sim_switches_init(bt_sim_run_t *r)
{
    const bt_advisor_config_t config = {.window_ms = WINDOW_MS};

    for (unsigned i = 0; i < r->setup->switch_count; i++)
        bt_sim_events_push(&r->events, r->setup->switches[i].at_s, BT_SIM_SWITCH,
                           r->setup->switches[i].engine, NULL);
    if (!r->setup->follows_advice && !bt_policy_has_hook(r->policy, "tick"))
        return r->events.rc;
    bt_sim_events_push(&r->events, 0, BT_SIM_ADVISE, 0, NULL);
    return bt_advisor_new(&r->advisor, NULL, r->registry, &config);
}
