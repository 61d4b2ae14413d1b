/* The rules file is read again with every look at the files, the rules of the fleet's set once. Both are code that may run long, so they
 * are read on the trial's thread. Rules that cannot serve change nothing: those before stay, and what is wrong is logged once and
 * shown by GET /rules. */
#include "gateway/policy.h"

#include "base/err.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>

static const char **pool_names(const bt_config_t *c)
{
    const char **names = calloc(c->pool_count + 1, sizeof *names);

    for (unsigned i = 0; names != NULL && i < c->pool_count; i++)
        names[i] = c->pools[i].spec.name;
    return names;
}

void bt_policy_rules_refuse(bt_gateway_policy_t *gp, const char *why)
{
    if (strcmp(gp->rules_error, why) == 0)
        return;
    snprintf(gp->rules_error, sizeof gp->rules_error, "%s", why);
    if (gp->number > 0) /* else the start fails, and says so itself */
        bt_log_error("rules", "refused, %s: %s",
                     gp->now.rules != NULL ? "the rules before serve on" : "there are none", why);
}

/* The set whose rules they are, or NULL. */
static bt_policy_set_t *sets(const bt_gateway_policy_t *gp)
{
    bt_policy_set_t *set = bt_policy_set_of(gp);

    return set != NULL && set->rules != NULL ? set : NULL;
}

const char *bt_policy_rules_place(const bt_gateway_policy_t *gp, const bt_config_t *c)
{
    if (sets(gp) != NULL)
        return BT_POLICY_FLEET_RULES;
    return c->rules_file != NULL ? c->rules_file : "";
}

/* ---- reading ---- */

static bool keeps_rules(const bt_gateway_policy_t *gp)
{
    return gp->job != NULL && gp->job->keep_rules;
}

bool bt_policy_rules_must_read(bt_gateway_policy_t *gp, const bt_config_t *c)
{
    const bt_policy_set_t *set = sets(gp);
    const char *place = bt_policy_rules_place(gp, c);

    bt_policy_rules_drop(gp);
    if (place[0] == '\0' || keeps_rules(gp) || (set != NULL && set->parsed != NULL))
        return false;
    gp->trial.reading = (bt_policy_reading_t){.place = place, .set = set};
    return true;
}

void bt_policy_rules_read(bt_policy_reading_t *r)
{
    if (r->set != NULL)
        r->rc = bt_rules_parse(&r->rules, r->place, (bt_str_t){r->set->rules, r->set->rules_size},
                               r->why, sizeof r->why);
    else
        r->rc = bt_rules_load(&r->rules, r->place, r->why, sizeof r->why);
}

void bt_policy_rules_drop(bt_gateway_policy_t *gp)
{
    bt_rules_unref(gp->trial.reading.rules);
    gp->trial.reading = (bt_policy_reading_t){0};
}

/* ---- taking ---- */

/* What was read, if the pools that it names are there. */
static int take_read(bt_gateway_policy_t *gp, const char *const *names, bt_rules_t **rules_p,
                     char *err, size_t err_size)
{
    bt_policy_set_t *set = sets(gp);
    bt_policy_reading_t *r = &gp->trial.reading;
    bt_rules_t *rules;
    int rc = r->rc;

    if (rc < 0) {
        snprintf(err, err_size, "%s", r->why);
        return rc;
    }
    if (set != NULL && set->parsed == NULL)
        set->parsed = bt_rules_ref(r->rules);
    rules = set != NULL ? set->parsed : r->rules;
    rc = bt_rules_check_pools(rules, names, err, err_size);
    if (rc == 0)
        *rules_p = bt_rules_ref(rules);
    return rc;
}

int bt_policy_rules_find(bt_gateway_policy_t *gp, const bt_config_t *c, bt_rules_t **rules_p,
                         char *err, size_t err_size)
{
    const bool keep = keeps_rules(gp);
    const bool is_asked = sets(gp) != NULL && bt_policy_job_is_set(gp->job);
    const char *place = bt_policy_rules_place(gp, c);
    bt_rules_t *found = NULL;
    const char **names;
    int rc = 0;

    *rules_p = NULL;
    if (place[0] == '\0') {
        gp->rules_error[0] = '\0';
        return 0;
    }
    names = pool_names(c);
    if (names == NULL)
        return BT_E_NOMEM;
    if (!keep && (rc = take_read(gp, names, &found, err, err_size)) < 0 && is_asked) {
        free(names);
        return rc; /* they are what this job is about */
    }
    if (rc < 0)
        bt_policy_rules_refuse(gp, err);
    else if (!keep && gp->rules_error[0] != '\0' && bt_rules_same(found, gp->now.rules)) {
        bt_log_info("rules", "%s is what serves again", place);
        gp->rules_error[0] = '\0';
    }
    if (found == NULL || bt_rules_same(found, gp->now.rules)) {
        if (found != NULL || gp->number > 0) /* at the start there is nothing to stay with */
            rc = bt_rules_check_pools(gp->now.rules, names, err, err_size);
        bt_rules_unref(found);
        found = rc == 0 ? bt_rules_ref(gp->now.rules) : NULL;
    }
    free(names);
    *rules_p = found;
    return rc;
}
