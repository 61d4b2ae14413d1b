/* intake.c - what happens to a request before anybody is chosen, as dispatch/intake/intake.c has it: the policy's admit, then its route, which may wait.
 *
 * There is one pool, and nothing outside: time passes for a hook that sleeps, and whatever else it waits for is answered with an error at once,
 * as where a host refuses and no store is reached. A hook that fails or waits too long admits and changes nothing. */
#include "simulator/sim_impl.h"

#include "base/err.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define WAIT_S 1.0 /* a gateway's --policy-wait-ms */
#define ERRORS_MAX                                                                                 \
    8 /* that a hook gets, until it is ended: in a gateway each would have taken its time */

void bt_sim_intake_free(bt_sim_flight_t *f)
{
    if (f->intake == NULL)
        return;
    bt_policy_run_drop(&f->intake->run);
    bt_policy_vars_drop(&f->intake->vars);
    free(f->intake);
}

static int begin(bt_sim_run_t *r, bt_sim_flight_t *f)
{
    bt_sim_intake_t *in = f->intake;

    in->until_s = r->now_s + WAIT_S;
    in->errors = 0;
    in->req = bt_sim_describe(r, f);
    return in->is_routing ? bt_policy_route(r->policy, &in->run, &in->req)
                          : bt_policy_admit(r->policy, &in->run, &in->req);
}

/* 1: it sleeps, and will be woken. */
static int settle(bt_sim_run_t *r, bt_sim_flight_t *f, int rc)
{
    bt_sim_intake_t *in = f->intake;

    while (rc == 1) {
        if (in->is_late || in->errors == ERRORS_MAX)
            return BT_E_TOTAL_TIMEOUT;
        if (in->run.hook_op.kind == BT_HOOK_OP_SLEEP) {
            const double at_s = r->now_s + (double) in->run.hook_op.ms / 1000;
            in->is_late = at_s > in->until_s;
            bt_sim_events_push(&r->events, fmin(at_s, in->until_s), BT_SIM_WAKE, 0, f);
            return 1;
        }
        in->errors++;
        r->out->unserved_waits++;
        const bt_hook_answer_t answer = {
            .rc = in->run.hook_op.kind == BT_HOOK_OP_STORE ? BT_E_STORE_UNAVAILABLE : BT_E_CONNECT};
        rc = bt_policy_resume(&in->run, &answer);
    }
    return rc;
}

static void take_direction(bt_sim_run_t *r, bt_sim_flight_t *f)
{
    const bt_policy_direction_t *to = &f->intake->run.direction;
    char why[128];

    snprintf(f->intake->klass, sizeof f->intake->klass, "%s", to->klass);
    snprintf(f->intake->key, sizeof f->intake->key, "%s", to->key);
    if (to->pool[0] == '\0' || strcmp(to->pool, "sim") == 0)
        return;
    snprintf(why, sizeof why, "route named pool '%s', and here is one, 'sim'", to->pool);
    bt_sim_policy_error(r, why);
}

/* True: the request is rejected. */
static bool end_hook(bt_sim_run_t *r, bt_sim_flight_t *f, int rc)
{
    bt_sim_intake_t *in = f->intake;
    bool is_rejected = false;

    if (rc < 0 && rc != BT_E_AGAIN)
        bt_sim_policy_error(r, rc == BT_E_TOTAL_TIMEOUT
                                   ? "a hook waited longer than a gateway's --policy-wait-ms"
                                   : bt_policy_error(r->policy));
    if (rc == 0 && in->is_routing)
        take_direction(r, f);
    if (rc == 0 && !in->is_routing) {
        is_rejected = in->run.admission.status != 0;
        bt_value_free(in->run.admission.limits);
        in->run.admission.limits = NULL;
    }
    bt_policy_run_drop(&in->run);
    return is_rejected;
}

static enum bt_sim_intake_end go_on(bt_sim_run_t *r, bt_sim_flight_t *f, int rc)
{
    bt_sim_intake_t *in = f->intake;

    for (;;) {
        rc = settle(r, f, rc);
        if (rc == 1)
            return BT_SIM_INTAKE_WAITS;
        if (end_hook(r, f, rc))
            return BT_SIM_INTAKE_REJECTED;
        if (in->is_routing)
            return BT_SIM_INTAKE_DONE;
        in->is_routing = true;
        in->is_late = false;
        rc = begin(r, f);
    }
}

enum bt_sim_intake_end bt_sim_intake_begin(bt_sim_run_t *r, bt_sim_flight_t *f)
{
    if (!bt_policy_has_entry(r->policy))
        return BT_SIM_INTAKE_DONE;
    f->intake = calloc(1, sizeof *f->intake);
    if (f->intake == NULL) {
        r->rc = BT_E_NOMEM;
        return BT_SIM_INTAKE_REJECTED;
    }
    return go_on(r, f, begin(r, f));
}

enum bt_sim_intake_end bt_sim_intake_wake(bt_sim_run_t *r, bt_sim_flight_t *f)
{
    bt_sim_intake_t *in = f->intake;
    const bt_hook_answer_t answer = {.rc = in->is_late ? BT_E_TOTAL_TIMEOUT : 0};

    in->req = bt_sim_describe(r, f); /* its prompt's place is everybody's */
    return go_on(r, f, bt_policy_resume(&in->run, &answer));
}
