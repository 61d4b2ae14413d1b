/* The rules file is read again with every look at the files. One that cannot serve changes nothing: the rules before stay, and
 * what is wrong is logged once and shown by GET /rules. */
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

/* The fleet's rules, or NULL. */
static const bt_policy_fleet_t *fleets(const bt_gateway_policy_t *gp)
{
    const bt_policy_fleet_t *fleet = bt_policy_fleet_of(gp);

    return fleet != NULL && fleet->rules != NULL ? fleet : NULL;
}

const char *bt_policy_rules_place(const bt_gateway_policy_t *gp, const bt_config_t *c)
{
    if (fleets(gp) != NULL)
        return BT_POLICY_FLEET_RULES;
    return c->rules_file != NULL ? c->rules_file : "";
}

static int load(const bt_gateway_policy_t *gp, const char *path, const char *const *names,
                bt_rules_t **rules_p, char *err, size_t err_size)
{
    const bt_policy_fleet_t *fleet = fleets(gp);
    bt_rules_t *rules;
    int rc = fleet != NULL
                 ? bt_rules_parse(&rules, path, (bt_str_t){fleet->rules, fleet->rules_size}, err,
                                  err_size)
                 : bt_rules_load(&rules, path, err, err_size);

    if (rc == 0 && (rc = bt_rules_check_pools(rules, names, err, err_size)) < 0)
        bt_rules_unref(rules);
    if (rc == 0)
        *rules_p = rules;
    return rc;
}

int bt_policy_rules_find(bt_gateway_policy_t *gp, const bt_config_t *c, bt_rules_t **rules_p,
                         char *err, size_t err_size)
{
    const bool keep = gp->job != NULL && gp->job->keep_rules;
    const bool is_asked = fleets(gp) != NULL && bt_policy_job_is_fleet(gp->job);
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
    if (!keep && (rc = load(gp, place, names, &found, err, err_size)) < 0 && is_asked) {
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
