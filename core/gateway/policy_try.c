/* Texts are tried before any loop hears of them: the rules are read; then policies are made with their parameters (start may wait)
 * and asked the questions of the self-test. All of it happens on a thread while the control loop goes on; the thread owns what it
 * works on, the reading or the parts of the stage, until its mail has returned. */
#include "gateway/policy.h"

#include "base/err.h"
#include "base/thread.h"

#include <stdio.h>

static int try_pick(const bt_policy_trial_t *t, bt_policy_pick_t *pick, bool is_shadow,
                    bool *is_test_only_p, char *err, size_t err_size)
{
    const bt_build_spec_t spec = {.source = pick->source,
                                  .params = pick->params,
                                  .is_shadow = is_shadow,
                                  .is_dry_run = true,
                                  .cancelled = &t->is_cancelled};
    bt_built_t *made;
    int rc = bt_built_new(&made, &spec, err, err_size);

    if (rc < 0)
        return rc;
    snprintf(pick->name, sizeof pick->name, "%s", bt_policy_name(bt_built_policy(made)));
    snprintf(pick->version, sizeof pick->version, "%s", bt_policy_version(bt_built_policy(made)));
    rc = bt_policy_self_test(bt_built_policy(made), err, err_size);
    *is_test_only_p = rc < 0;
    bt_built_free(made);
    return rc;
}

static void try_all(bt_gateway_policy_t *gp)
{
    bt_policy_trial_t *t = &gp->trial;
    bool unused;

    for (unsigned i = 0; i < t->put_count && t->put_rc == 0; i++)
        t->put_rc = try_pick(t, t->puts[i], false, &unused, t->put_why, sizeof t->put_why);
    for (unsigned i = 0; i < gp->next.pool_count; i++)
        for (unsigned s = 0; s < BT_SLOT_COUNT; s++) {
            bt_pool_part_t *part = &gp->next.pools[i].parts[s];
            if (part->is_tried)
                part->rc = try_pick(t, part->next, gp->next.pools[i].is_shadow, &part->is_test_only,
                                    part->why, sizeof part->why);
        }
}

static void join(bt_policy_trial_t *t)
{
    if (t->is_running)
        (void) pthread_join(t->thread, NULL);
    t->is_running = false;
}

static void on_return(bt_loop_t *control, bt_mail_t *envelope)
{
    bt_policy_trial_t *t = bt_container_of(envelope, bt_policy_trial_t, envelope);

    (void) control;
    join(t);
    bt_policy_trial_over(bt_container_of(t, bt_gateway_policy_t, trial));
}

static void *run(void *arg)
{
    bt_gateway_policy_t *gp = arg;

    bt_thread_to_background();
    if (gp->trial.is_reading)
        bt_policy_rules_read(&gp->trial.reading);
    else
        try_all(gp);
    bt_loop_post(gp->trial.control, &gp->trial.envelope, on_return);
    return NULL;
}

static int start(bt_gateway_policy_t *gp, bool is_reading)
{
    bt_policy_trial_t *t = &gp->trial;

    t->is_reading = is_reading;
    t->control = &gp->g->control;
    if (pthread_create(&t->thread, NULL, run, gp) != 0)
        return BT_E_NOMEM;
    t->is_running = true;
    return 0;
}

int bt_policy_trial_read(bt_gateway_policy_t *gp)
{
    return start(gp, true);
}

int bt_policy_trial_start(bt_gateway_policy_t *gp)
{
    return start(gp, false);
}

void bt_policy_trial_block(bt_gateway_policy_t *gp)
{
    try_all(gp);
}

void bt_policy_trial_stop(bt_gateway_policy_t *gp)
{
    atomic_store(&gp->trial.is_cancelled, true);
    join(&gp->trial); /* its mail returns all the same */
}
