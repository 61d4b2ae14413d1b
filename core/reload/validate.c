/* Texts are tried before any loop hears of them: the rules are read; then policies are made with their parameters (start may wait)
 * and asked the questions of the self-test. All of it happens on a thread while the control loop goes on; the thread owns what it
 * works on, the reading or the parts of the table, until its mail has returned. */
#include "reload/reload_impl.h"

#include "base/err.h"
#include "base/log.h"
#include "base/thread.h"

#include <stdio.h>

static int validate_selection(const bt_reload_validation_t *t, bt_reload_selection_t *selection,
                              const bt_policy_trial_t *trial, bool is_shadow, bool *is_test_only_p,
                              char *err, size_t err_size)
{
    const bt_build_spec_t spec = {.source = selection->source,
                                  .params = selection->params,
                                  .is_shadow = is_shadow,
                                  .is_dry_run = true,
                                  .cancelled = &t->is_cancelled};
    bt_built_t *made;
    int rc = bt_built_tried(&made, &spec, trial, is_test_only_p, err, err_size);

    if (rc < 0)
        return rc;
    snprintf(selection->name, sizeof selection->name, "%s", bt_policy_name(bt_built_policy(made)));
    snprintf(selection->version, sizeof selection->version, "%s",
             bt_policy_version(bt_built_policy(made)));
    if (err[0] != '\0')
        bt_log_warn("policy", "%s", err);
    err[0] = '\0';
    bt_built_free(made);
    return 0;
}

static void try_all(bt_reload_t *reload)
{
    bt_reload_validation_t *t = &reload->validation;
    const bt_policy_trial_t somewhere = {.or_half = true};

    for (unsigned i = 0; i < t->put_count && t->put_rc == 0; i++)
        t->put_rc = validate_selection(t, t->puts[i], &somewhere, false, NULL, t->put_why,
                                       sizeof t->put_why);
    for (unsigned i = 0; i < reload->next.pool_count; i++)
        for (unsigned s = 0; s < BT_SLOT_COUNT; s++) {
            bt_reload_part_t *part = &reload->next.pools[i].parts[s];
            const bt_policy_trial_t trial = {.part = (enum bt_policy_part) s};
            if (part->is_tried)
                part->rc =
                    validate_selection(t, part->next, &trial, reload->next.pools[i].is_shadow,
                                       &part->is_test_only, part->why, sizeof part->why);
        }
}

static void join(bt_reload_validation_t *t)
{
    if (t->is_running)
        (void) pthread_join(t->thread, NULL);
    t->is_running = false;
}

static void on_return(bt_loop_t *control, bt_mail_t *envelope)
{
    bt_reload_validation_t *t = bt_container_of(envelope, bt_reload_validation_t, envelope);

    (void) control;
    join(t);
    bt_reload_validation_over(bt_container_of(t, bt_reload_t, validation));
}

static void *run(void *arg)
{
    bt_reload_t *reload = arg;

    bt_thread_to_background();
    if (reload->validation.is_reading)
        bt_reload_rules_read(&reload->validation.reading);
    else
        try_all(reload);
    bt_loop_post(reload->validation.control, &reload->validation.envelope, on_return);
    return NULL;
}

static int start(bt_reload_t *reload, bool is_reading)
{
    bt_reload_validation_t *t = &reload->validation;

    t->is_reading = is_reading;
    t->control = reload->config.control;
    if (pthread_create(&t->thread, NULL, run, reload) != 0)
        return BT_E_NOMEM;
    t->is_running = true;
    return 0;
}

int bt_reload_validation_read(bt_reload_t *reload)
{
    return start(reload, true);
}

int bt_reload_validation_start(bt_reload_t *reload)
{
    return start(reload, false);
}

void bt_reload_validation_block(bt_reload_t *reload)
{
    try_all(reload);
}

void bt_reload_validation_stop(bt_reload_t *reload)
{
    atomic_store(&reload->validation.is_cancelled, true);
    join(&reload->validation); /* its mail returns all the same */
}
