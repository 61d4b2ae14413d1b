/* The rules file is read again with every look at the files, the rules of the fleet's set once. Both are code that may run long, so they
 * are read on the validation's thread. Rules that cannot serve change nothing: those before stay, and what is wrong is logged once and
 * shown by GET /rules. */
#include "reload/reload_impl.h"

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

void bt_reload_rules_refuse(bt_reload_t *reload, const char *why)
{
    if (strcmp(reload->rules_error, why) == 0)
        return;
    snprintf(reload->rules_error, sizeof reload->rules_error, "%s", why);
    if (reload->number > 0) /* else the start fails, and says so itself */
        bt_log_error("rules", "refused, %s: %s",
                     reload->now.rules != NULL ? "the rules before serve on" : "there are none",
                     why);
}

/* The set whose rules they are, or NULL. */
static bt_policy_set_t *sets(const bt_reload_t *reload)
{
    bt_policy_set_t *set = bt_reload_set_of(reload);

    return set != NULL && set->rules != NULL ? set : NULL;
}

const char *bt_reload_rules_path(const bt_reload_t *reload, const bt_config_t *c)
{
    if (sets(reload) != NULL)
        return BT_POLICY_SET_RULES;
    return c->rules_file != NULL ? c->rules_file : "";
}

/* ---- reading ---- */

static bool keeps_rules(const bt_reload_t *reload)
{
    return reload->job != NULL && reload->job->keep_rules;
}

bool bt_reload_rules_must_read(bt_reload_t *reload, const bt_config_t *c)
{
    const bt_policy_set_t *set = sets(reload);
    const char *place = bt_reload_rules_path(reload, c);

    bt_reload_rules_drop(reload);
    if (place[0] == '\0' || keeps_rules(reload) || (set != NULL && set->parsed != NULL))
        return false;
    reload->validation.reading = (bt_reload_reading_t){.place = place, .set = set};
    return true;
}

void bt_reload_rules_read(bt_reload_reading_t *r)
{
    if (r->set != NULL)
        r->rc = bt_rules_parse(&r->rules, r->place, (bt_str_t){r->set->rules, r->set->rules_size},
                               r->why, sizeof r->why);
    else
        r->rc = bt_rules_load(&r->rules, r->place, r->why, sizeof r->why);
}

void bt_reload_rules_drop(bt_reload_t *reload)
{
    bt_rules_unref(reload->validation.reading.rules);
    reload->validation.reading = (bt_reload_reading_t){0};
}

/* ---- taking ---- */

/* What was read, if the pools that it names are there. */
static int take_read(bt_reload_t *reload, const char *const *names, bt_rules_t **rules_p, char *err,
                     size_t err_size)
{
    bt_policy_set_t *set = sets(reload);
    bt_reload_reading_t *r = &reload->validation.reading;
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

int bt_reload_rules_find(bt_reload_t *reload, const bt_config_t *c, bt_rules_t **rules_p, char *err,
                         size_t err_size)
{
    const bool keep = keeps_rules(reload);
    const bool is_asked = sets(reload) != NULL && bt_reload_job_is_set(reload->job);
    const char *place = bt_reload_rules_path(reload, c);
    bt_rules_t *found = NULL;
    const char **names;
    int rc = 0;

    *rules_p = NULL;
    if (place[0] == '\0') {
        reload->rules_error[0] = '\0';
        return 0;
    }
    names = pool_names(c);
    if (names == NULL)
        return BT_E_NOMEM;
    if (!keep && (rc = take_read(reload, names, &found, err, err_size)) < 0 && is_asked) {
        free(names);
        return rc; /* they are what this job is about */
    }
    if (rc < 0)
        bt_reload_rules_refuse(reload, err);
    else if (!keep && reload->rules_error[0] != '\0' && bt_rules_same(found, reload->now.rules)) {
        bt_log_info("rules", "%s is what serves again", place);
        reload->rules_error[0] = '\0';
    }
    if (found == NULL || bt_rules_same(found, reload->now.rules)) {
        if (found != NULL || reload->number > 0) /* at the start there is nothing to stay with */
            rc = bt_rules_check_pools(reload->now.rules, names, err, err_size);
        bt_rules_unref(found);
        found = rc == 0 ? bt_rules_ref(reload->now.rules) : NULL;
    }
    free(names);
    *rules_p = found;
    return rc;
}
