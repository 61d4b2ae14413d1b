/* A job has the rules read on a thread (gateway/policy_rules.c, _try.c), makes a stage (gateway/policy_stage.c), asks for every part of
 * it which text should serve now (gateway/policy_choose.c), and has what is new tried on a thread (gateway/policy_try.c). If anything
 * is new, a round carries it through the loops (gateway/policy_loops.c); then the stage is what serves.
 *
 *   rules --> stage --nothing to try--> judge --nothing new--> over
 *               +------> trial -------> judge --> round --> over; new rules that cannot serve: stage again, with the old ones
 *
 * A text is young until it has served for prove_ms. Enough errors in that time (counted by the generation that brought it) put
 * the last good text back, as a new generation; the bad one stays `rejected` until somebody changes it. */
#include "gateway/policy.h"

#include "base/err.h"
#include "base/log.h"
#include "gateway/dev.h"
#include "gateway/rollout.h"

#include <stdio.h>
#include <stdlib.h>

#define PROVE_MS 10000
#define PROVE_CHECK_MS 50
#define ERROR_LIMIT 10

/* ---- a generation ---- */

static int fill_bundle(const bt_gateway_policy_t *gp, bt_policy_bundle_t *b)
{
    const bt_policy_stage_t *stage = &gp->next;
    int rc = 0;

    b->rules = bt_rules_ref(stage->rules);
    b->first_variant = stage->first_variant;
    for (unsigned i = 0; i < stage->pool_count && rc == 0; i++) {
        rc = bt_bundle_name(b, i, stage->pools[i].name);
        for (unsigned s = 0; s < BT_SLOT_COUNT && rc == 0; s++) {
            const bt_pool_part_t *part = &stage->pools[i].parts[s];
            b->pools[i].parts[s].is_shadow = stage->pools[i].is_shadow;
            if (part->next != NULL)
                rc = bt_bundle_put(b, i, (enum bt_policy_slot) s, part->next->source,
                                   part->next->params,
                                   part->next == part->pick ? part->born : b->number);
        }
    }
    return rc;
}

static int make_bundle(bt_gateway_policy_t *gp, bt_policy_bundle_t **bundle_p)
{
    const uint64_t number = gp->number + 1;
    bt_policy_bundle_t *b;
    int rc = bt_bundle_new(&b, number, gp->next.pool_count);

    if (rc == 0 && (rc = fill_bundle(gp, b)) < 0)
        bt_bundle_unref(b);
    if (rc == 0) {
        gp->number = number;
        *bundle_p = b;
    }
    return rc;
}

/* ---- after a round ---- */

static void take_next(bt_gateway_policy_t *gp, const bt_policy_pool_t *pool, bt_pool_part_t *part)
{
    const bool was_dir = part->pick != NULL && part->pick->source->kind == BT_SOURCE_DIR;

    if (part->next != NULL && !part->is_test_only)
        part->error[0] = '\0';
    part->fallen_back = false;
    if (part->roll_back)
        bt_policy_pick_set(&part->rejected, bt_policy_pick_ref(part->pick));
    bt_policy_pick_set(&part->pick, part->next);
    part->next = NULL;
    part->born = gp->number;
    part->committed_ms = bt_clock_ms();
    if (part->good == NULL || part->pick == NULL)
        bt_policy_pick_set(&part->good, bt_policy_pick_ref(part->pick));
    if (was_dir && part->pick != NULL && part->pick->source->kind == BT_SOURCE_SHIPPED) {
        gp->fallbacks++;
        bt_log_warn("policy", "pool %s: the file of policy %s is gone: the shipped one serves",
                    pool->name, part->pick->source->name);
    }
}

/* The text that says why is lost on the way back: it is written again. */
static void note_rollback(bt_gateway_policy_t *gp, const bt_policy_pool_t *pool,
                          bt_pool_part_t *part, uint64_t bad)
{
    char last[320] = "";
    unsigned errors = bt_policy_errors_count(&gp->g->shared.policy_errors, bad, last, sizeof last);

    part->roll_back = false;
    gp->rollbacks++;
    snprintf(part->error, sizeof part->error,
             "generation %llu was taken back after %u errors, the last one: %s",
             (unsigned long long) bad, errors, last);
    bt_log_error("policy", "pool %s: %s; %s@%s serves again", pool->name, part->error,
                 part->pick->name, part->pick->version);
}

static void take_part(bt_gateway_policy_t *gp, const bt_policy_pool_t *pool,
                      enum bt_policy_slot slot, bt_pool_part_t *part, const char *why)
{
    const bool was_bad = part->roll_back;
    const uint64_t before = part->born;

    if (part->next == part->pick) {
        bt_policy_pick_set(&part->next, NULL);
        return;
    }
    take_next(gp, pool, part);
    if (was_bad)
        note_rollback(gp, pool, part, before);
    else if (part->pick != NULL && why != NULL)
        bt_log_info("policy", "pool %s: generation %llu, %s %s@%s from %s (%s)", pool->name,
                    (unsigned long long) gp->number, bt_policy_slot_name(slot), part->pick->name,
                    part->pick->version, part->pick->source->path, why);
    if (!was_bad && part->pick != NULL)
        bt_dev_taken(gp->g, part->pick->source);
}

/* The job's stage is what serves. why: NULL = the start. */
static void take_stage(bt_gateway_policy_t *gp, const char *why)
{
    if (why != NULL && gp->next.rules != gp->now.rules)
        bt_log_info("rules", "generation %llu: %u rules (%s)", (unsigned long long) gp->number,
                    bt_rules_count(gp->next.rules), why);
    if (gp->next.rules != gp->now.rules)
        gp->rules_error[0] = '\0';
    for (unsigned i = 0; i < gp->next.pool_count; i++)
        for (unsigned s = 0; s < BT_SLOT_COUNT; s++)
            take_part(gp, &gp->next.pools[i], (enum bt_policy_slot) s, &gp->next.pools[i].parts[s],
                      why);
    bt_policy_stage_fini(&gp->now);
    gp->now = gp->next;
    gp->next = (bt_policy_stage_t){0};
}

static void take_all(bt_gateway_policy_t *gp, const char *why)
{
    const bt_policy_round_t *round = &gp->round;

    take_stage(gp, why);
    gp->serving = gp->number;
    gp->results[BT_RELOAD_OK]++;
    bt_log_info("policy",
                "generation %llu serves: %.1f ms to prepare, %llu us to commit, a loop stood still "
                "for at most %llu us",
                (unsigned long long) gp->number,
                (double) (round->commit_us - round->start_us) / 1000.0,
                (unsigned long long) gp->last_swap_us, (unsigned long long) round->stall_us);
}

/* ---- jobs ---- */

void bt_policy_job_free(bt_policy_job_t *job)
{
    bt_policy_source_unref(job->text);
    bt_policy_set_unref(job->set);
    if (job->config != NULL)
        bt_config_fini(job->config);
    free(job->config);
    free(job);
}

static bool is_waiting(const bt_gateway_policy_t *gp, enum bt_policy_job_kind kind)
{
    for (const bt_list_t *it = gp->jobs.next; it != &gp->jobs; it = it->next)
        if (bt_container_of(it, bt_policy_job_t, link)->kind == kind)
            return true;
    return false;
}

int bt_policy_job_add(bt_gateway_policy_t *gp, enum bt_policy_job_kind kind, const char *why,
                      bt_policy_job_t **job_p)
{
    bt_policy_job_t *job = NULL;

    if (job_p == NULL && is_waiting(gp, kind))
        return 0; /* one look will see both changes */
    job = calloc(1, sizeof *job);
    if (job == NULL)
        return BT_E_NOMEM;
    job->kind = kind;
    job->why = why;
    bt_list_push(&gp->jobs, &job->link);
    if (job_p != NULL)
        *job_p = job;
    return 0;
}

static void list_users(bt_gateway_policy_t *gp, const char *name, bt_text_t *out)
{
    const char *comma = "";

    bt_text_puts(out, "[");
    for (unsigned i = 0; i < gp->now.pool_count; i++) {
        const bt_policy_pool_t *pool = &gp->now.pools[i];
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

static void answer(bt_gateway_policy_t *gp, bt_policy_job_t *job, int rc, bool is_changed,
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
                   (unsigned long long) gp->serving, is_changed ? "true" : "false");
    list_users(gp, job->name, &text);
    bt_text_puts(&text, "}\n");
    job->done(job->arg, 200, bt_text_str(&text));
    bt_text_fini(&text);
}

static void keep_or_drop(bt_gateway_policy_t *gp, bt_policy_job_t *job)
{
    bt_policy_text_t *text;

    if (job->kind == BT_JOB_PUT && bt_policy_text_keep(gp, job->text) < 0)
        bt_log_error("policy",
                     "out of memory: what was put for %s serves until the next reload only",
                     job->name);
    if (job->kind == BT_JOB_DELETE && (text = bt_policy_text_find(gp, job->name)) != NULL)
        bt_policy_text_drop(text);
    if (job->kind == BT_JOB_SET) {
        bt_policy_set_unref(gp->set);
        gp->set = bt_policy_set_ref(job->set);
    }
}

/* Workers and settings of a reload, at the moment in which its policies serve, or cannot for now. */
static void apply_config(bt_gateway_policy_t *gp)
{
    bt_config_t *config = gp->job->config;

    gp->job->config = NULL;
    if (config != NULL)
        bt_gateway_apply_config(gp->g, config);
}

static void log_failure(bt_gateway_policy_t *gp, int rc, const char *err)
{
    const bt_policy_job_t *job = gp->job;

    if (job->kind == BT_JOB_CONFIG && (rc == BT_E_POLICY || rc == BT_E_CONFIG)) {
        bt_log_error("gateway", "reload refused, everything stays as it was: %s", err);
    } else if (job->kind != BT_JOB_PUT && job->kind != BT_JOB_DELETE &&
               job->kind != BT_JOB_SET_TRY) {
        gp->results[BT_RELOAD_ABORTED]++;
        bt_log_error("policy", "reload (%s) given up, generation %llu serves on: %s", job->why,
                     (unsigned long long) gp->serving, err);
    } else if (rc != BT_E_POLICY && rc != BT_E_INVAL && rc != BT_E_CONFIG) {
        gp->results[BT_RELOAD_ABORTED]++;
    }
}

static void end_job(bt_gateway_policy_t *gp, int rc, bool is_changed, const char *err)
{
    bt_policy_job_t *job = gp->job;

    bt_policy_stage_fini(&gp->next);
    bt_policy_puts_drop(gp);
    bt_policy_rules_drop(gp);
    if (rc == 0)
        keep_or_drop(gp, job);
    else
        log_failure(gp, rc, err);
    if (!gp->is_closing && rc != BT_E_POLICY && rc != BT_E_CONFIG)
        apply_config(gp); /* requests that hold old generations do not hold up the workers */
    gp->results[BT_RELOAD_REFUSED] += job->refused;
    gp->job = NULL;
    answer(gp, job, rc, is_changed, err);
    if (job->over != NULL && !gp->is_closing)
        job->over(job->user, job->set, job->kind == BT_JOB_SET_TRY, rc, err);
    bt_policy_job_free(job);
    if (!gp->is_closing)
        bt_policy_watch_refresh(gp);
}

void bt_policy_round_commits(bt_gateway_policy_t *gp)
{
    apply_config(gp); /* its mail follows that of the commit: no pool is without its policies */
}

void bt_policy_round_over(bt_gateway_policy_t *gp, int rc, const char *err)
{
    if (rc == 0)
        take_all(gp, gp->job->why);
    if (!gp->is_closing && !bt_timer_active(&gp->prove))
        bt_timer_start(&gp->prove, PROVE_CHECK_MS);
    end_job(gp, rc, true, err);
    if (rc == BT_E_AGAIN && !gp->is_closing && !bt_timer_active(&gp->debounce))
        bt_timer_start(&gp->debounce, 1000); /* a file that changed must not be forgotten */
    bt_policy_jobs_run(gp);
}

static bool has_tries(const bt_policy_stage_t *stage)
{
    for (unsigned i = 0; i < stage->pool_count; i++)
        for (unsigned s = 0; s < BT_SLOT_COUNT; s++)
            if (stage->pools[i].parts[s].is_tried)
                return true;
    return false;
}

static bool is_new(const bt_policy_stage_t *stage)
{
    for (unsigned i = 0; i < stage->pool_count; i++)
        for (unsigned s = 0; s < BT_SLOT_COUNT; s++)
            if (stage->pools[i].parts[s].next != stage->pools[i].parts[s].pick)
                return true;
    return false;
}

/* Sets gp->next, with all that is new chosen, but not tried. */
static int make_stage(bt_gateway_policy_t *gp, const bt_config_t *c, char *err, size_t err_size)
{
    bt_rules_t *rules;
    int rc = bt_policy_rules_find(gp, c, &rules, err, err_size);

    if (rc < 0)
        return rc;
    rc = bt_policy_stage_make(gp, c, rules, &gp->next);
    bt_rules_unref(rules);
    return rc == 0 ? bt_policy_choose(gp) : rc;
}

/* How PUT's text calls itself, for the answer. */
static void name_put(bt_gateway_policy_t *gp)
{
    bt_policy_job_t *job = gp->job;
    const bt_policy_pick_t *pick = gp->trial.put_count > 0 ? gp->trial.puts[0] : NULL;

    for (unsigned i = 0; i < gp->next.pool_count; i++)
        for (unsigned s = 0; s < BT_SLOT_COUNT; s++) {
            const bt_pool_part_t *part = &gp->next.pools[i].parts[s];
            if (part->is_tried && part->next != NULL && part->next->source == job->text)
                pick = part->next;
        }
    if (pick == NULL)
        return;
    memcpy(job->declared, pick->name, sizeof job->declared);
    memcpy(job->version, pick->version, sizeof job->version);
}

static void finish_job(bt_gateway_policy_t *gp)
{
    char err[BT_POLICY_ERROR_BYTES] = "";
    bt_policy_bundle_t *bundle;
    int rc = bt_policy_judge(gp, err, sizeof err);

    if (rc == BT_E_AGAIN) { /* once more with the old rules */
        bt_policy_rules_refuse(gp, err);
        bt_policy_stage_fini(&gp->next);
        gp->job->keep_rules = true;
        gp->job->refused++;
        bt_policy_job_begin(gp);
        return;
    }
    if (rc == 0 && gp->job->kind == BT_JOB_PUT)
        name_put(gp);
    if (gp->job->kind == BT_JOB_SET_TRY) {
        if (rc < 0 && err[0] == '\0')
            snprintf(err, sizeof err, "%s", bt_err_text(rc));
        end_job(gp, rc, false, err);
        return;
    }
    const bool is_changed =
        rc == 0 && (is_new(&gp->next) || bt_policy_stage_differs(&gp->now, &gp->next));
    if (is_changed)
        rc = make_bundle(gp, &bundle);
    if (rc == BT_E_NOMEM)
        snprintf(err, sizeof err, "%s", bt_err_text(rc));
    if (rc == 0 && is_changed) {
        bt_policy_round_start(gp, bundle);
        return;
    }
    if (rc == 0)
        take_stage(gp, NULL); /* what serves is the same, but what is known of it may not be */
    end_job(gp, rc, false, err);
}

static const bt_config_t *config_of(const bt_gateway_policy_t *gp)
{
    return gp->job->config != NULL ? gp->job->config : gp->g->fleet_config;
}

/* The rules have been read, or there are none to read. */
static void stage_job(bt_gateway_policy_t *gp)
{
    char err[BT_POLICY_ERROR_BYTES] = "";
    int rc = make_stage(gp, config_of(gp), err, sizeof err);

    if (rc == 0 && (has_tries(&gp->next) || gp->trial.put_count > 0)) {
        rc = bt_policy_trial_start(gp);
        if (rc == 0)
            return;
    }
    if (rc == 0) {
        finish_job(gp);
        return;
    }
    if (err[0] == '\0')
        snprintf(err, sizeof err, "%s", bt_err_text(rc));
    end_job(gp, rc, false, err);
}

void bt_policy_trial_over(bt_gateway_policy_t *gp)
{
    if (gp->is_closing)
        end_job(gp, BT_E_CANCELLED, false, "the gateway is ending");
    else if (gp->trial.is_reading)
        stage_job(gp);
    else
        finish_job(gp);
    bt_policy_jobs_run(gp);
}

void bt_policy_job_begin(bt_gateway_policy_t *gp)
{
    const bt_policy_job_t *job = gp->job;
    char err[BT_POLICY_ERROR_BYTES] = "";

    if (job->kind == BT_JOB_DELETE && bt_policy_text_find(gp, job->name) == NULL) {
        snprintf(err, sizeof err, "nothing was put for policy %s", job->name);
        end_job(gp, BT_E_INVAL, false, err);
        return;
    }
    if (!bt_policy_rules_must_read(gp, config_of(gp)))
        stage_job(gp);
    else if (bt_policy_trial_read(gp) < 0)
        end_job(gp, BT_E_NOMEM, false, bt_err_text(BT_E_NOMEM));
}

void bt_policy_jobs_run(bt_gateway_policy_t *gp)
{
    while (gp->job == NULL && !gp->is_closing && !bt_list_empty(&gp->jobs)) {
        bt_policy_job_t *job = bt_container_of(gp->jobs.next, bt_policy_job_t, link);
        bt_list_remove(&job->link);
        gp->job = job;
        bt_policy_job_begin(gp);
    }
}

/* ---- young texts ---- */

static bool prove(bt_gateway_policy_t *gp, bt_pool_part_t *part, bool is_shadow, bool *is_bad_p)
{
    char last[320];

    if (part->pick == NULL || part->pick == part->good)
        return false;
    if (!is_shadow && bt_policy_errors_count(&gp->g->shared.policy_errors, part->born, last,
                                             sizeof last) >= gp->error_limit)
        *is_bad_p = part->roll_back = true;
    else if (bt_clock_ms() - part->committed_ms >= gp->prove_ms)
        bt_policy_pick_set(&part->good, bt_policy_pick_ref(part->pick));
    return part->pick != part->good;
}

static void on_prove(bt_timer_t *timer)
{
    bt_gateway_policy_t *gp = bt_container_of(timer, bt_gateway_policy_t, prove);
    bool is_young = false, is_bad = false;

    if (gp->job != NULL) { /* it may be about to replace what is looked at */
        bt_timer_start(timer, PROVE_CHECK_MS);
        return;
    }
    for (unsigned i = 0; i < gp->now.pool_count; i++)
        for (unsigned s = 0; s < BT_SLOT_COUNT; s++)
            is_young |= prove(gp, &gp->now.pools[i].parts[s], gp->now.pools[i].is_shadow, &is_bad);
    if (is_young)
        bt_timer_start(timer, PROVE_CHECK_MS);
    if (is_bad && bt_policy_job_add(gp, BT_JOB_ROLLBACK, "rollback", NULL) == 0)
        bt_policy_jobs_run(gp);
}

/* ---- life ---- */

/* One reload waits at most: the newest. */
static bool replace_waiting(bt_gateway_policy_t *gp, bt_config_t *wanted)
{
    for (bt_list_t *it = gp->jobs.next; it != &gp->jobs; it = it->next) {
        bt_policy_job_t *job = bt_container_of(it, bt_policy_job_t, link);
        if (job->kind != BT_JOB_CONFIG)
            continue;
        bt_config_fini(job->config);
        free(job->config);
        job->config = wanted;
        return true;
    }
    return false;
}

void bt_gateway_policy_configure(bt_gateway_t *g, bt_config_t *wanted)
{
    bt_gateway_policy_t *gp = g->policy;
    bt_policy_job_t *job;

    if (replace_waiting(gp, wanted))
        return;
    if (bt_policy_job_add(gp, BT_JOB_CONFIG, "SIGHUP", &job) < 0) {
        bt_config_fini(wanted);
        free(wanted);
        bt_log_error("gateway", "reload refused, everything stays as it was: %s",
                     bt_err_text(BT_E_NOMEM));
        return;
    }
    job->config = wanted;
    bt_policy_jobs_run(gp);
}

/* Texts of the start are trusted: there is nothing to go back to. */
static int first_stage(bt_gateway_policy_t *gp, char *err, size_t err_size)
{
    int rc;

    if (bt_policy_rules_must_read(gp, gp->g->config))
        bt_policy_rules_read(&gp->trial.reading);
    rc = make_stage(gp, gp->g->config, err, err_size);
    bt_policy_rules_drop(gp);
    if (rc == 0) {
        bt_policy_trial_block(gp);
        rc = bt_policy_judge(gp, err, err_size);
    }
    return rc;
}

static int first_generation(bt_gateway_policy_t *gp, char *err, size_t err_size)
{
    bt_policy_bundle_t *bundle;
    int rc = first_stage(gp, err, err_size);

    if (rc < 0 && gp->set != NULL) { /* the others can; here it will be tried again and again */
        bt_log_error("fleet", "set %llu does not serve here, this replica begins without it: %s",
                     (unsigned long long) gp->set->number, err);
        bt_policy_stage_fini(&gp->next);
        bt_policy_set_unref(gp->set);
        gp->set = NULL;
        err[0] = '\0';
        rc = first_stage(gp, err, err_size);
    }
    if (rc == 0)
        rc = make_bundle(gp, &bundle);
    if (rc < 0)
        return rc;
    rc = bt_policy_round_first(gp->g, bundle, err, err_size);
    bt_bundle_unref(bundle);
    if (rc == 0)
        take_stage(gp, NULL);
    gp->serving = gp->number;
    return rc;
}

int bt_gateway_policy_open(bt_gateway_t *g, char *err, size_t err_size)
{
    bt_gateway_policy_t *gp = calloc(1, sizeof *gp);

    if (gp == NULL)
        return BT_E_NOMEM;
    g->policy = gp;
    gp->g = g;
    gp->set = bt_gateway_rollout_first(g, &gp->is_pinned);
    gp->prove_ms = PROVE_MS;
    gp->error_limit = ERROR_LIMIT;
    bt_list_init(&gp->texts);
    bt_list_init(&gp->jobs);
    bt_timer_init(&g->control, &gp->prove, on_prove);
    bt_policy_round_init(gp);
    bt_policy_watch_init(gp);
    return first_generation(gp, err, err_size);
}

void bt_gateway_policy_start(bt_gateway_t *g)
{
    bt_policy_watch_refresh(g->policy);
}

void bt_gateway_policy_stop(bt_gateway_t *g)
{
    bt_gateway_policy_t *gp = g->policy;

    if (gp == NULL || gp->is_closing)
        return;
    gp->is_closing = true;
    bt_timer_stop(&gp->prove);
    bt_timer_stop(&gp->round.retry);
    bt_policy_watch_stop(gp);
    bt_policy_trial_stop(gp);
}

void bt_gateway_policy_free(bt_gateway_t *g)
{
    bt_gateway_policy_t *gp = g->policy;

    if (gp == NULL)
        return;
    bt_bundle_unref(gp->round.bundle);
    if (gp->job != NULL)
        bt_policy_job_free(gp->job);
    while (!bt_list_empty(&gp->jobs)) {
        bt_policy_job_t *job = bt_container_of(gp->jobs.next, bt_policy_job_t, link);
        bt_list_remove(&job->link);
        bt_policy_job_free(job);
    }
    while (!bt_list_empty(&gp->texts))
        bt_policy_text_drop(bt_container_of(gp->texts.next, bt_policy_text_t, link));
    bt_policy_puts_drop(gp);
    bt_policy_rules_drop(gp);
    bt_policy_set_unref(gp->set);
    bt_policy_stage_fini(&gp->next);
    bt_policy_stage_fini(&gp->now);
    free(gp);
    g->policy = NULL;
}
