/* A job asks for every part of every pool which text should serve now (gateway_policy_choose.c). If anything is new, a round
 * carries it through the loops (gateway_policy_loops.c).
 *
 * A text is young until it has served for prove_ms. Enough errors in that time (counted by the generation that brought it) put
 * the last good text back, as a new generation; the bad one stays `rejected` until somebody changes it. */
#include "gateway_policy.h"

#include "base/err.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>

#define PROVE_MS 10000
#define PROVE_CHECK_MS 50
#define ERROR_LIMIT 10

/* ---- pools ---- */

static void free_part(bt_pool_part_t *part)
{
    bt_policy_source_t **const all[] = {&part->source, &part->good, &part->rejected, &part->next};

    for (unsigned i = 0; i < sizeof all / sizeof all[0]; i++)
        bt_policy_set(all[i], NULL);
    free(part->asked);
    *part = (bt_pool_part_t){0};
}

static void free_pools(bt_policy_pool_t *pools, unsigned count)
{
    for (unsigned i = 0; pools != NULL && i < count; i++) {
        for (unsigned s = 0; s < BT_SLOT_COUNT; s++)
            free_part(&pools[i].parts[s]);
        free(pools[i].name);
    }
    free(pools);
}

static const char *asked_of(const bt_pool_spec_t *spec, enum bt_policy_slot slot)
{
    const char *both = spec->policy != NULL ? spec->policy : "least_load";

    if (slot == BT_SLOT_BOTH)
        return both;
    if (spec->prefill_policy == NULL && spec->decode_policy == NULL)
        return NULL;
    if (slot == BT_SLOT_PREFILL)
        return spec->prefill_policy != NULL ? spec->prefill_policy : both;
    return spec->decode_policy != NULL ? spec->decode_policy : both;
}

static bt_policy_pool_t *find_pool(bt_gateway_policy_t *gp, const char *name)
{
    for (unsigned i = 0; i < gp->pool_count; i++)
        if (strcmp(gp->pools[i].name, name) == 0)
            return &gp->pools[i];
    return NULL;
}

static bool is_same_list(const bt_gateway_policy_t *gp, const bt_policy_pool_t *pools,
                         unsigned count)
{
    bool is_same = gp->pool_count == count;

    for (unsigned i = 0; is_same && i < count; i++)
        is_same = strcmp(gp->pools[i].name, pools[i].name) == 0;
    return is_same;
}

/* What pools of the same name serve now moves on to the new list. 1: it is another list than before. */
static int take_config(bt_gateway_policy_t *gp, const bt_config_t *c)
{
    bt_policy_pool_t *pools = calloc(c->pool_count, sizeof *pools);
    bool ok = pools != NULL;

    for (unsigned i = 0; ok && i < c->pool_count; i++) {
        ok = (pools[i].name = bt_str_dup(bt_str(c->pools[i].spec.name))) != NULL;
        for (unsigned s = 0; ok && s < BT_SLOT_COUNT; s++) {
            const char *asked = asked_of(&c->pools[i].spec, (enum bt_policy_slot) s);
            pools[i].parts[s].asked = asked != NULL ? bt_str_dup(bt_str(asked)) : NULL;
            ok = asked == NULL || pools[i].parts[s].asked != NULL;
        }
    }
    if (!ok) {
        free_pools(pools, c->pool_count);
        return BT_E_NOMEM;
    }
    const bool is_same = is_same_list(gp, pools, c->pool_count);
    for (unsigned i = 0; i < c->pool_count; i++) {
        bt_policy_pool_t *old = find_pool(gp, pools[i].name);
        for (unsigned s = 0; old != NULL && s < BT_SLOT_COUNT; s++) {
            char *asked = pools[i].parts[s].asked;
            free(old->parts[s].asked);
            pools[i].parts[s] = old->parts[s];
            pools[i].parts[s].asked = asked;
            old->parts[s] = (bt_pool_part_t){0};
        }
    }
    free_pools(gp->pools, gp->pool_count);
    gp->pools = pools;
    gp->pool_count = c->pool_count;
    return is_same ? 0 : 1;
}

/* ---- a generation ---- */

static int make_bundle(bt_gateway_policy_t *gp, bt_policy_bundle_t **bundle_p)
{
    const uint64_t number = gp->number + 1;
    bt_policy_bundle_t *b;
    int rc = bt_bundle_new(&b, number, gp->pool_count);

    for (unsigned i = 0; rc == 0 && i < gp->pool_count; i++) {
        rc = bt_bundle_name(b, i, gp->pools[i].name);
        for (unsigned s = 0; s < BT_SLOT_COUNT; s++) {
            const bt_pool_part_t *part = &gp->pools[i].parts[s];
            bt_bundle_put(b, i, (enum bt_policy_slot) s, part->next,
                          part->next == part->source ? part->born : number);
        }
        if (rc < 0)
            bt_bundle_unref(b);
    }
    if (rc == 0) {
        gp->number = number;
        *bundle_p = b;
    }
    return rc;
}

/* ---- after a round ---- */

static void take_next(bt_gateway_policy_t *gp, const bt_policy_pool_t *pool, bt_pool_part_t *part)
{
    const bool was_dir = part->source != NULL && part->source->kind == BT_SOURCE_DIR;

    part->error[0] = '\0';
    part->fallen_back = false;
    if (part->roll_back) {
        bt_policy_set(&part->rejected, part->source);
        part->source = NULL;
    }
    bt_policy_set(&part->source, part->next);
    part->next = NULL;
    part->born = gp->number;
    part->committed_ms = bt_clock_ms();
    memcpy(part->name, part->next_name, sizeof part->name);
    memcpy(part->version, part->next_version, sizeof part->version);
    if (part->good == NULL || part->source == NULL)
        bt_policy_set(&part->good, bt_policy_source_ref(part->source));
    if (was_dir && part->source != NULL && part->source->kind == BT_SOURCE_SHIPPED) {
        gp->fallbacks++;
        bt_log_warn("policy", "pool %s: the file of policy %s is gone: the shipped one serves",
                    pool->name, part->source->name);
    }
}

/* The text that says why is lost on the way back: it is written again. */
static void note_rollback(bt_gateway_policy_t *gp, const bt_policy_pool_t *pool,
                          bt_pool_part_t *part, uint64_t bad)
{
    char last[320] = "";
    unsigned errors = bt_policy_errors_count(&gp->g->gate.policy_errors, bad, last, sizeof last);

    part->roll_back = false;
    gp->rollbacks++;
    snprintf(part->error, sizeof part->error,
             "generation %llu was taken back after %u errors, the last one: %s",
             (unsigned long long) bad, errors, last);
    bt_log_error("policy", "pool %s: %s; %s@%s serves again", pool->name, part->error, part->name,
                 part->version);
}

static void take_all(bt_gateway_policy_t *gp, const char *why)
{
    const bt_policy_round_t *round = &gp->round;

    for (unsigned i = 0; i < gp->pool_count; i++)
        for (unsigned s = 0; s < BT_SLOT_COUNT; s++) {
            bt_pool_part_t *part = &gp->pools[i].parts[s];
            const bool was_bad = part->roll_back;
            const uint64_t before = part->born;
            if (part->next == part->source) {
                bt_policy_set(&part->next, NULL);
                continue;
            }
            if (was_bad) /* its name was known when it served first */
                (void) bt_policy_try(part->next, false, part->next_name, part->next_version,
                                     part->error, sizeof part->error);
            take_next(gp, &gp->pools[i], part);
            if (was_bad)
                note_rollback(gp, &gp->pools[i], part, before);
            else if (part->source != NULL)
                bt_log_info("policy", "pool %s: generation %llu, %s %s@%s from %s (%s)",
                            gp->pools[i].name, (unsigned long long) gp->number,
                            bt_policy_slot_name((enum bt_policy_slot) s), part->name, part->version,
                            part->source->path, why);
        }
    gp->serving = gp->number;
    gp->results[BT_RELOAD_OK]++;
    bt_log_info("policy",
                "generation %llu serves: %.1f ms to prepare, %llu us to swap, a loop stood still "
                "for at most %llu us",
                (unsigned long long) gp->number,
                (double) (round->commit_us - round->start_us) / 1000.0,
                (unsigned long long) gp->last_swap_us, (unsigned long long) round->stall_us);
}

static void forget_next(bt_gateway_policy_t *gp)
{
    for (unsigned i = 0; i < gp->pool_count; i++)
        for (unsigned s = 0; s < BT_SLOT_COUNT; s++)
            bt_policy_set(&gp->pools[i].parts[s].next, NULL);
}

/* ---- jobs ---- */

void bt_policy_job_free(bt_policy_job_t *job)
{
    bt_policy_source_unref(job->text);
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
    for (unsigned i = 0; i < gp->pool_count; i++) {
        bool is_user = false;
        for (unsigned s = 0; s < BT_SLOT_COUNT; s++)
            is_user |= gp->pools[i].parts[s].asked != NULL &&
                       bt_policy_is_named(gp->pools[i].parts[s].asked, name);
        if (!is_user)
            continue;
        bt_text_puts(out, comma);
        bt_text_json_str(out, bt_str(gp->pools[i].name));
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
}

static void end_job(bt_gateway_policy_t *gp, int rc, bool is_changed, const char *err)
{
    bt_policy_job_t *job = gp->job;

    forget_next(gp);
    if (rc == 0)
        keep_or_drop(gp, job);
    else if (rc != BT_E_POLICY && rc != BT_E_INVAL) {
        gp->results[BT_RELOAD_ABORTED]++;
        bt_log_error("policy", "reload (%s) given up, generation %llu serves on: %s", job->why,
                     (unsigned long long) gp->serving, err);
    }
    gp->results[BT_RELOAD_REFUSED] += job->refused;
    gp->job = NULL;
    answer(gp, job, rc, is_changed, err);
    bt_policy_job_free(job);
    if (!gp->is_closing)
        bt_policy_watch_refresh(gp);
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

/* What is wrong with a text is said even when no pool uses it. */
static int check_put(bt_policy_job_t *job, char *err, size_t err_size)
{
    int rc = bt_policy_try(job->text, true, job->declared, job->version, err, err_size);

    if (rc < 0)
        job->refused = 1;
    return rc;
}

/* Whoever puts a text means it, also one that was taken back before. */
static void forgive(bt_gateway_policy_t *gp, const bt_policy_job_t *job)
{
    for (unsigned i = 0; i < gp->pool_count; i++)
        for (unsigned s = 0; s < BT_SLOT_COUNT; s++) {
            bt_pool_part_t *part = &gp->pools[i].parts[s];
            if (part->asked != NULL && bt_policy_is_named(part->asked, job->name))
                bt_policy_set(&part->rejected, NULL);
        }
}

static void run_job(bt_gateway_policy_t *gp)
{
    bt_policy_job_t *job = gp->job;
    char err[BT_POLICY_ERROR_BYTES] = "";
    bt_policy_bundle_t *bundle;
    int rc = 0;

    if (job->kind == BT_JOB_CONFIG)
        rc = take_config(gp, gp->g->fleet_config);
    else if (job->kind == BT_JOB_PUT && (rc = check_put(job, err, sizeof err)) == 0)
        forgive(gp, job);
    else if (job->kind == BT_JOB_DELETE && bt_policy_text_find(gp, job->name) == NULL) {
        rc = BT_E_INVAL;
        snprintf(err, sizeof err, "nothing was put for policy %s", job->name);
    }
    const bool is_changed = rc >= 0 && (bt_policy_choose_all(gp) || rc > 0);
    if (is_changed)
        rc = make_bundle(gp, &bundle);
    if (rc == BT_E_NOMEM)
        snprintf(err, sizeof err, "%s", bt_err_text(rc));
    if (rc < 0 || !is_changed)
        end_job(gp, rc, false, err);
    else
        bt_policy_round_start(gp, bundle);
}

void bt_policy_jobs_run(bt_gateway_policy_t *gp)
{
    while (gp->job == NULL && !gp->is_closing && !bt_list_empty(&gp->jobs)) {
        bt_policy_job_t *job = bt_container_of(gp->jobs.next, bt_policy_job_t, link);
        bt_list_remove(&job->link);
        gp->job = job;
        run_job(gp);
    }
}

/* ---- young texts ---- */

static bool prove(bt_gateway_policy_t *gp, bt_pool_part_t *part, bool *is_bad_p)
{
    char last[320];

    if (part->source == NULL || part->source == part->good)
        return false;
    if (bt_policy_errors_count(&gp->g->gate.policy_errors, part->born, last, sizeof last) >=
        gp->error_limit)
        *is_bad_p = part->roll_back = true;
    else if (bt_clock_ms() - part->committed_ms >= gp->prove_ms)
        bt_policy_set(&part->good, bt_policy_source_ref(part->source));
    return part->source != part->good;
}

static void on_prove(bt_timer_t *timer)
{
    bt_gateway_policy_t *gp = bt_container_of(timer, bt_gateway_policy_t, prove);
    bool is_young = false, is_bad = false;

    if (gp->job != NULL) { /* it may be about to replace what is looked at */
        bt_timer_start(timer, PROVE_CHECK_MS);
        return;
    }
    for (unsigned i = 0; i < gp->pool_count; i++)
        for (unsigned s = 0; s < BT_SLOT_COUNT; s++)
            is_young |= prove(gp, &gp->pools[i].parts[s], &is_bad);
    if (is_young)
        bt_timer_start(timer, PROVE_CHECK_MS);
    if (is_bad && bt_policy_job_add(gp, BT_JOB_ROLLBACK, "rollback", NULL) == 0)
        bt_policy_jobs_run(gp);
}

/* ---- life ---- */

void bt_gateway_policy_configure(bt_gateway_t *g)
{
    bt_gateway_policy_t *gp = g->policy;

    if (bt_policy_job_add(gp, BT_JOB_CONFIG, "SIGHUP", NULL) == 0)
        bt_policy_jobs_run(gp);
}

/* Texts of the start are trusted: there is nothing to go back to. */
static int first_texts(bt_gateway_policy_t *gp, char *err, size_t err_size)
{
    for (unsigned i = 0; i < gp->pool_count; i++)
        for (unsigned s = 0; s < BT_SLOT_COUNT; s++) {
            bt_pool_part_t *part = &gp->pools[i].parts[s];
            if (part->asked == NULL)
                continue;
            int rc = bt_policy_find(gp, part->asked, &part->next, err, err_size);
            if (rc == 0)
                rc = bt_policy_try(part->next, false, part->next_name, part->next_version, err,
                                   err_size);
            if (rc < 0)
                return rc;
            if (bt_policy_try(part->next, true, part->next_name, part->next_version, part->error,
                              sizeof part->error) < 0)
                bt_log_warn("policy", "pool %s: %s", gp->pools[i].name, part->error);
        }
    return 0;
}

static int first_generation(bt_gateway_policy_t *gp, char *err, size_t err_size)
{
    bt_policy_bundle_t *bundle;
    int rc = take_config(gp, gp->g->config);

    if (rc >= 0)
        rc = first_texts(gp, err, err_size);
    if (rc == 0)
        rc = make_bundle(gp, &bundle);
    if (rc < 0)
        return rc;
    rc = bt_policy_round_first(gp->g, bundle, err, err_size);
    bt_bundle_unref(bundle);
    for (unsigned i = 0; rc == 0 && i < gp->pool_count; i++)
        for (unsigned s = 0; s < BT_SLOT_COUNT; s++)
            if (gp->pools[i].parts[s].next != NULL)
                take_next(gp, &gp->pools[i], &gp->pools[i].parts[s]);
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
    free_pools(gp->pools, gp->pool_count);
    free(gp);
    g->policy = NULL;
}
