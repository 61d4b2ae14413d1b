/* A job has the rules read on a thread (reload/rules.c), makes a table (reload/table.c), asks for every part of
 * it which text should serve now (reload/select.c), and has what is new tried on a thread (reload/validate.c). If anything
 * is new, a commit carries it through the loops (reload/commit.c); then the table is what serves (reload/serving.c).
 *
 *   READ --> SELECT --nothing to try--> judge --nothing new--> over
 *              +-----> VALIDATE ------> judge --> RESERVE, PREPARE, COMMIT --> over; new rules that cannot serve: SELECT again, with the old ones
 */
#include "reload/reload_impl.h"

#include "base/err.h"
#include "base/flight.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>

const char *bt_reload_step_name(enum bt_reload_step step)
{
    static const char *const names[BT_RELOAD_STEPS] = {
        [BT_RELOAD_IDLE] = "idle",       [BT_RELOAD_READ] = "read",
        [BT_RELOAD_SELECT] = "select",   [BT_RELOAD_VALIDATE] = "validate",
        [BT_RELOAD_RESERVE] = "reserve", [BT_RELOAD_PREPARE] = "prepare",
        [BT_RELOAD_COMMIT] = "commit",   [BT_RELOAD_ABORT] = "abort",
    };

    return names[step];
}

void bt_reload_enter(bt_reload_t *reload, enum bt_reload_step step)
{
    reload->step = step;
    bt_log_debug("policy", "reload (%s): %s", reload->job != NULL ? reload->job->why : "start",
                 bt_reload_step_name(step));
}

/* ---- jobs ---- */

void bt_reload_job_free(bt_reload_job_t *job)
{
    bt_policy_source_unref(job->text);
    bt_policy_set_unref(job->set);
    if (job->config != NULL)
        bt_config_fini(job->config);
    free(job->config);
    free(job);
}

static bool is_waiting(const bt_reload_t *reload, enum bt_reload_job_kind kind)
{
    for (const bt_list_t *it = reload->jobs.next; it != &reload->jobs; it = it->next)
        if (bt_container_of(it, bt_reload_job_t, link)->kind == kind)
            return true;
    return false;
}

int bt_reload_job_add(bt_reload_t *reload, enum bt_reload_job_kind kind, const char *why,
                      bt_reload_job_t **job_p)
{
    bt_reload_job_t *job = NULL;

    if (job_p == NULL && is_waiting(reload, kind))
        return 0; /* one scan sees both changes */
    job = calloc(1, sizeof *job);
    if (job == NULL)
        return BT_E_NOMEM;
    job->kind = kind;
    job->why = why;
    bt_list_push(&reload->jobs, &job->link);
    if (job_p != NULL)
        *job_p = job;
    return 0;
}

static void list_users(bt_reload_t *reload, const char *name, bt_text_t *out)
{
    const char *comma = "";

    bt_text_puts(out, "[");
    for (unsigned i = 0; i < reload->now.pool_count; i++) {
        const bt_reload_pool_t *pool = &reload->now.pools[i];
        bool is_user = false;
        for (unsigned s = 0; s < BT_SLOT_COUNT; s++)
            is_user |=
                pool->parts[s].asked != NULL && bt_policy_is_named(pool->parts[s].asked, name);
        if (!is_user)
            continue;
        bt_text_puts(out, comma);
        bt_text_json_str(out, bt_str(pool->name));
        comma = ",";
    }
    bt_text_puts(out, "]");
}

static void answer(bt_reload_t *reload, bt_reload_job_t *job, int rc, bool is_changed,
                   const char *err)
{
    bt_text_t text;

    if (job->done == NULL)
        return;
    if (rc < 0) {
        job->done(job->arg,
                  rc == BT_E_POLICY || rc == BT_E_CONFIG ? 400
                  : rc == BT_E_INVAL                     ? 404
                                                         : 503,
                  bt_str(err));
        return;
    }
    bt_text_init(&text);
    bt_text_puts(&text, "{\"policy\":");
    bt_text_json_str(&text, bt_str(job->name));
    if (job->kind == BT_JOB_PUT) {
        bt_text_puts(&text, ",\"name\":");
        bt_text_json_str(&text, bt_str(job->declared));
        bt_text_puts(&text, ",\"version\":");
        bt_text_json_str(&text, bt_str(job->version));
    }
    bt_text_printf(&text, ",\"generation\":%llu,\"changed\":%s,\"pools\":",
                   (unsigned long long) reload->serving, is_changed ? "true" : "false");
    list_users(reload, job->name, &text);
    bt_text_puts(&text, job->is_dry_run ? ",\"dry_run\":true}\n" : "}\n");
    job->done(job->arg, 200, bt_text_str(&text));
    bt_text_fini(&text);
}

static void keep_or_drop(bt_reload_t *reload, bt_reload_job_t *job)
{
    bt_reload_put_t *text;

    if (job->is_dry_run)
        return;
    if (job->kind == BT_JOB_PUT && bt_reload_put_keep(reload, job->text) < 0)
        bt_log_error("policy",
                     "out of memory: what was put for %s serves until the next reload only",
                     job->name);
    if (job->kind == BT_JOB_DELETE && (text = bt_reload_put_find(reload, job->name)) != NULL)
        bt_reload_put_drop(text);
    if (job->kind == BT_JOB_SET) {
        bt_policy_set_unref(reload->set);
        reload->set = bt_policy_set_ref(job->set);
    }
}

/* Workers and settings of a reload, at the moment in which its policies serve, or cannot for now. */
static void apply_config(bt_reload_t *reload)
{
    bt_config_t *config = reload->job->config;

    reload->job->config = NULL;
    if (config != NULL)
        reload->config.apply(reload->config.user, config);
}

static void log_failure(bt_reload_t *reload, int rc, const char *err)
{
    const bt_reload_job_t *job = reload->job;

    if (!bt_reload_job_is_try(job))
        bt_flight_note(BT_FLIGHT_RELOAD, 0, "refused or given up, generation %llu serves on",
                       (unsigned long long) reload->serving);
    if (job->kind == BT_JOB_CONFIG && (rc == BT_E_POLICY || rc == BT_E_CONFIG)) {
        bt_log_error("gateway", "reload refused, everything stays as it was: %s", err);
    } else if (job->kind != BT_JOB_PUT && job->kind != BT_JOB_DELETE &&
               job->kind != BT_JOB_SET_TRY) {
        reload->stats.results[BT_RELOAD_ABORTED]++;
        bt_log_error("policy", "reload (%s) given up, generation %llu serves on: %s", job->why,
                     (unsigned long long) reload->serving, err);
    } else if (rc != BT_E_POLICY && rc != BT_E_INVAL && rc != BT_E_CONFIG) {
        reload->stats.results[BT_RELOAD_ABORTED]++;
    }
}

static void end_job(bt_reload_t *reload, int rc, bool is_changed, const char *err)
{
    bt_reload_job_t *job = reload->job;

    bt_reload_table_fini(&reload->next);
    bt_reload_puts_drop(reload);
    bt_reload_rules_drop(reload);
    if (rc == 0)
        keep_or_drop(reload, job);
    else
        log_failure(reload, rc, err);
    if (!reload->is_closing && rc != BT_E_POLICY && rc != BT_E_CONFIG)
        apply_config(reload); /* requests that hold old generations do not hold up the workers */
    if (!job->is_dry_run)
        reload->stats.results[BT_RELOAD_REFUSED] += job->refused;
    bt_reload_note(reload, &(bt_reload_note_t){.is_changed = is_changed, .rc = rc, .err = err});
    reload->job = NULL;
    reload->step = BT_RELOAD_IDLE;
    answer(reload, job, rc, is_changed, err);
    if (job->over != NULL && !reload->is_closing)
        job->over(job->user, job->set, job->kind == BT_JOB_SET_TRY, rc, err);
    if (job->kind == BT_JOB_CONFIG)
        reload->config.configured(reload->config.user);
    bt_reload_job_free(job);
    if (!reload->is_closing)
        bt_reload_watch_refresh(reload);
}

void bt_reload_commit_sent(bt_reload_t *reload)
{
    apply_config(reload); /* its mail follows that of the commit: no pool is without its policies */
}

void bt_reload_commit_over(bt_reload_t *reload, int rc, const char *err)
{
    if (rc == 0)
        bt_reload_take_generation(reload, reload->job->why);
    bt_reload_probation_start(reload);
    end_job(reload, rc, true, err);
    if (rc == BT_E_AGAIN && !reload->is_closing && !bt_timer_active(&reload->debounce))
        bt_timer_start(&reload->debounce, 1000); /* a file that changed must not be forgotten */
    bt_reload_jobs_run(reload);
}

static bool has_tries(const bt_reload_table_t *table)
{
    for (unsigned i = 0; i < table->pool_count; i++)
        for (unsigned s = 0; s < BT_SLOT_COUNT; s++)
            if (table->pools[i].parts[s].is_tried)
                return true;
    return false;
}

static bool is_new(const bt_reload_table_t *table)
{
    for (unsigned i = 0; i < table->pool_count; i++)
        for (unsigned s = 0; s < BT_SLOT_COUNT; s++)
            if (table->pools[i].parts[s].next != table->pools[i].parts[s].selection)
                return true;
    return false;
}

/* Sets next, with all that is new chosen, but not tried. */
static int make_table(bt_reload_t *reload, const bt_config_t *c, char *err, size_t err_size)
{
    bt_rules_t *rules;
    int rc = bt_reload_rules_find(reload, c, &rules, err, err_size);

    if (rc < 0)
        return rc;
    rc = bt_reload_table_make(reload, c, rules, &reload->next);
    bt_rules_unref(rules);
    return rc == 0 ? bt_reload_select(reload) : rc;
}

/* How PUT's text calls itself, for the answer. */
static void name_put(bt_reload_t *reload)
{
    bt_reload_job_t *job = reload->job;
    const bt_reload_selection_t *selection =
        reload->validation.put_count > 0 ? reload->validation.puts[0] : NULL;

    for (unsigned i = 0; i < reload->next.pool_count; i++)
        for (unsigned s = 0; s < BT_SLOT_COUNT; s++) {
            const bt_reload_part_t *part = &reload->next.pools[i].parts[s];
            if (part->is_tried && part->next != NULL && part->next->source == job->text)
                selection = part->next;
        }
    if (selection == NULL)
        return;
    memcpy(job->declared, selection->name, sizeof job->declared);
    memcpy(job->version, selection->version, sizeof job->version);
}

static void finish_job(bt_reload_t *reload)
{
    char err[BT_POLICY_ERROR_BYTES] = "";
    bt_policy_bundle_t *bundle;
    int rc = bt_reload_judge(reload, err, sizeof err);

    if (rc == BT_E_AGAIN) { /* once more with the old rules */
        bt_reload_rules_refuse(reload, err);
        bt_reload_table_fini(&reload->next);
        reload->job->keep_rules = true;
        reload->job->refused++;
        bt_reload_job_begin(reload);
        return;
    }
    if (rc == 0 && reload->job->kind == BT_JOB_PUT)
        name_put(reload);
    const bool is_changed =
        rc == 0 && (is_new(&reload->next) || bt_reload_table_differs(&reload->now, &reload->next));
    if (bt_reload_job_is_try(reload->job)) {
        if (rc < 0 && err[0] == '\0')
            snprintf(err, sizeof err, "%s", bt_err_text(rc));
        end_job(reload, rc, is_changed, err);
        return;
    }
    if (is_changed)
        rc = bt_reload_bundle_make(reload, &bundle);
    if (rc == BT_E_NOMEM)
        snprintf(err, sizeof err, "%s", bt_err_text(rc));
    if (rc == 0 && is_changed) {
        bt_reload_commit_start(reload, bundle);
        return;
    }
    if (rc == 0)
        bt_reload_take_table(
            reload, NULL); /* what serves is the same, but what is known of it may not be */
    end_job(reload, rc, false, err);
}

static const bt_config_t *config_of(const bt_reload_t *reload)
{
    return reload->job->config != NULL ? reload->job->config : *reload->config.current;
}

/* The rules have been read, or there are none to read. */
static void prepare_job(bt_reload_t *reload)
{
    char err[BT_POLICY_ERROR_BYTES] = "";
    int rc;

    bt_reload_enter(reload, BT_RELOAD_SELECT);
    rc = make_table(reload, config_of(reload), err, sizeof err);

    if (rc == 0 && (has_tries(&reload->next) || reload->validation.put_count > 0)) {
        bt_reload_enter(reload, BT_RELOAD_VALIDATE);
        rc = bt_reload_validation_start(reload);
        if (rc == 0)
            return;
    }
    if (rc == 0) {
        finish_job(reload);
        return;
    }
    if (err[0] == '\0')
        snprintf(err, sizeof err, "%s", bt_err_text(rc));
    end_job(reload, rc, false, err);
}

void bt_reload_validation_over(bt_reload_t *reload)
{
    if (reload->is_closing)
        end_job(reload, BT_E_CANCELLED, false, "the gateway is ending");
    else if (reload->validation.is_reading)
        prepare_job(reload);
    else
        finish_job(reload);
    bt_reload_jobs_run(reload);
}

void bt_reload_job_begin(bt_reload_t *reload)
{
    const bt_reload_job_t *job = reload->job;
    char err[BT_POLICY_ERROR_BYTES] = "";

    bt_reload_enter(reload, BT_RELOAD_READ);
    if (job->kind == BT_JOB_DELETE && bt_reload_put_find(reload, job->name) == NULL) {
        snprintf(err, sizeof err, "nothing was put for policy %s", job->name);
        end_job(reload, BT_E_INVAL, false, err);
        return;
    }
    if (!bt_reload_rules_must_read(reload, config_of(reload)))
        prepare_job(reload);
    else if (bt_reload_validation_read(reload) < 0)
        end_job(reload, BT_E_NOMEM, false, bt_err_text(BT_E_NOMEM));
}

void bt_reload_jobs_run(bt_reload_t *reload)
{
    while (reload->job == NULL && !reload->is_closing && !bt_list_empty(&reload->jobs)) {
        bt_reload_job_t *job = bt_container_of(reload->jobs.next, bt_reload_job_t, link);
        bt_list_remove(&job->link);
        reload->job = job;
        bt_reload_note(reload, NULL);
        bt_reload_job_begin(reload);
    }
}

/* ---- life ---- */

/* One reload waits at most: the newest. */
static bool replace_waiting(bt_reload_t *reload, bt_config_t *wanted)
{
    for (bt_list_t *it = reload->jobs.next; it != &reload->jobs; it = it->next) {
        bt_reload_job_t *job = bt_container_of(it, bt_reload_job_t, link);
        if (job->kind != BT_JOB_CONFIG)
            continue;
        bt_config_fini(job->config);
        free(job->config);
        job->config = wanted;
        return true;
    }
    return false;
}

void bt_reload_configure(bt_reload_t *reload, bt_config_t *wanted)
{
    bt_reload_job_t *job;

    if (replace_waiting(reload, wanted))
        return;
    if (bt_reload_job_add(reload, BT_JOB_CONFIG, "SIGHUP", &job) < 0) {
        bt_config_fini(wanted);
        free(wanted);
        bt_log_error("gateway", "reload refused, everything stays as it was: %s",
                     bt_err_text(BT_E_NOMEM));
        reload->config.configured(reload->config.user);
        return;
    }
    job->config = wanted;
    bt_reload_jobs_run(reload);
}

/* Texts of the start are trusted: there is nothing to go back to. */
static int first_table(bt_reload_t *reload, char *err, size_t err_size)
{
    int rc;

    if (bt_reload_rules_must_read(reload, reload->config.first))
        bt_reload_rules_read(&reload->validation.reading);
    rc = make_table(reload, reload->config.first, err, err_size);
    bt_reload_rules_drop(reload);
    if (rc == 0) {
        bt_reload_validation_block(reload);
        rc = bt_reload_judge(reload, err, err_size);
    }
    return rc;
}

static int first_generation(bt_reload_t *reload, char *err, size_t err_size)
{
    bt_policy_bundle_t *bundle;
    int rc = first_table(reload, err, err_size);

    if (rc < 0 && reload->set != NULL) { /* the others can; here it will be tried again and again */
        bt_log_error("fleet", "set %llu does not serve here, this replica begins without it: %s",
                     (unsigned long long) reload->set->number, err);
        bt_reload_table_fini(&reload->next);
        bt_policy_set_unref(reload->set);
        reload->set = NULL;
        err[0] = '\0';
        rc = first_table(reload, err, err_size);
    }
    if (rc == 0)
        rc = bt_reload_bundle_make(reload, &bundle);
    if (rc < 0)
        return rc;
    rc = bt_reload_commit_first(reload, bundle, err, err_size);
    bt_bundle_unref(bundle);
    if (rc == 0)
        bt_reload_take_table(reload, NULL);
    reload->serving = reload->number;
    return rc;
}

int bt_reload_new(bt_reload_t **reload_p, const bt_reload_config_t *config)
{
    bt_reload_t *reload = calloc(1, sizeof(*reload));

    if (reload == NULL)
        return BT_E_NOMEM;
    reload->config = *config;
    reload->set = config->set;
    reload->is_pinned = config->is_pinned;
    reload->probation_ms = config->first->policy_probation_ms;
    reload->error_limit = config->first->policy_rollback_errors;
    bt_list_init(&reload->texts);
    bt_list_init(&reload->jobs);
    bt_reload_probation_init(reload);
    bt_reload_commit_init(reload);
    bt_reload_watch_init(reload);
    *reload_p = reload;
    return 0;
}

int bt_reload_open(bt_reload_t *reload, char *err, size_t err_size)
{
    return first_generation(reload, err, err_size);
}

void bt_reload_start(bt_reload_t *reload)
{
    reload->is_serving = true;
    bt_reload_watch_refresh(reload);
}

void bt_reload_freeze(bt_reload_t *reload)
{
    reload->is_serving = false;
}

void bt_reload_stop(bt_reload_t *reload)
{
    if (reload == NULL || reload->is_closing)
        return;
    reload->is_closing = true;
    bt_timer_stop(&reload->probation);
    bt_timer_stop(&reload->commit.retry);
    bt_reload_watch_stop(reload);
    bt_reload_validation_stop(reload);
}

void bt_reload_free(bt_reload_t *reload)
{
    if (reload == NULL)
        return;
    bt_bundle_unref(reload->commit.bundle);
    if (reload->job != NULL)
        bt_reload_job_free(reload->job);
    while (!bt_list_empty(&reload->jobs)) {
        bt_reload_job_t *job = bt_container_of(reload->jobs.next, bt_reload_job_t, link);
        bt_list_remove(&job->link);
        bt_reload_job_free(job);
    }
    while (!bt_list_empty(&reload->texts))
        bt_reload_put_drop(bt_container_of(reload->texts.next, bt_reload_put_t, link));
    bt_reload_puts_drop(reload);
    bt_reload_rules_drop(reload);
    bt_policy_set_unref(reload->set);
    bt_reload_table_fini(&reload->next);
    bt_reload_table_fini(&reload->now);
    free(reload);
}
