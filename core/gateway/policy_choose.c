/* For every part of every pool: what the fleet's set has under that name, or the admin put, else the file, else the shipped policy. A text that is new,
 * or whose parameters are, is tried (gateway/policy_try.c) and then judged: one that fails changes nothing but the part's
 * `error`, unless it is what this very job is about (a PUT, another configuration, other rules): then the job is refused. */
#include "gateway/dev.h"
#include "gateway/policy.h"

#include "base/err.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>

bool bt_policy_is_named(const char *asked, const char *name)
{
    return strcmp(asked, name) == 0 || bt_str_eq(bt_policy_base_name(asked), bt_str(name));
}

bt_policy_text_t *bt_policy_text_find(bt_gateway_policy_t *gp, const char *name)
{
    bt_list_t *it, *tmp;

    bt_list_each (&gp->texts, it, tmp) {
        bt_policy_text_t *text = bt_container_of(it, bt_policy_text_t, link);
        if (strcmp(text->source->name, name) == 0)
            return text;
    }
    return NULL;
}

void bt_policy_text_drop(bt_policy_text_t *text)
{
    bt_list_remove(&text->link);
    bt_policy_source_unref(text->source);
    free(text);
}

int bt_policy_text_keep(bt_gateway_policy_t *gp, bt_policy_source_t *source)
{
    bt_policy_text_t *text = bt_policy_text_find(gp, source->name);

    if (text == NULL) {
        text = calloc(1, sizeof *text);
        if (text == NULL)
            return BT_E_NOMEM;
        bt_list_push(&gp->texts, &text->link);
    }
    bt_policy_source_unref(text->source);
    text->source = bt_policy_source_ref(source);
    return 0;
}

/* What this replica's admin put, in this job or before. Borrowed. */
static bt_policy_source_t *local_text(bt_gateway_policy_t *gp, const char *asked)
{
    const bt_policy_job_t *job = gp->job;
    bt_list_t *it, *tmp;

    if (job != NULL && job->kind == BT_JOB_PUT && bt_policy_is_named(asked, job->name))
        return job->text;
    bt_list_each (&gp->texts, it, tmp) {
        bt_policy_text_t *text = bt_container_of(it, bt_policy_text_t, link);
        bool is_leaving =
            job != NULL && job->kind == BT_JOB_DELETE && strcmp(job->name, text->source->name) == 0;
        if (!is_leaving && bt_policy_is_named(asked, text->source->name))
            return text->source;
    }
    return NULL;
}

/* What goes before files. Borrowed. */
static bt_policy_source_t *put_text(bt_gateway_policy_t *gp, const char *asked)
{
    bt_policy_source_t *local = local_text(gp, asked),
                       *sets = bt_policy_set_find(bt_policy_set_of(gp), asked);

    return sets != NULL && (local == NULL || !gp->is_pinned) ? sets : local;
}

static int find(bt_gateway_policy_t *gp, const char *asked, bt_policy_source_t **source_p,
                char *err, size_t err_size)
{
    bt_policy_source_t *put = put_text(gp, asked);

    if (put != NULL) {
        *source_p = bt_policy_source_ref(put);
        return 0;
    }
    return bt_policy_source_open(source_p, asked, gp->g->config->policy_dir, err, err_size);
}

/* ---- choosing ---- */

static void stay(bt_pool_part_t *part)
{
    bt_policy_pick_set(&part->next, bt_policy_pick_ref(part->pick));
}

/* The text that serves keeps its object: loops see by the pointer that nothing has changed. */
static int make_pick(bt_policy_pick_t **pick_p, const bt_pool_part_t *part,
                     bt_policy_source_t *source)
{
    if (part->pick != NULL && bt_policy_source_same(source, part->pick->source))
        source = part->pick->source;
    return bt_policy_pick_new(pick_p, source, part->asked_params);
}

static int choose(bt_gateway_policy_t *gp, const bt_policy_pool_t *pool, bt_pool_part_t *part)
{
    bt_policy_source_t *source;
    bt_policy_pick_t *pick;
    int rc;

    if (part->roll_back) {
        bt_policy_pick_set(&part->next, bt_policy_pick_ref(part->good));
        return 0;
    }
    stay(part);
    part->rc = find(gp, part->asked, &source, part->why, sizeof part->why);
    if (part->rc < 0)
        return 0;
    rc = make_pick(&pick, part, source);
    bt_policy_source_unref(source);
    if (rc < 0)
        return rc;
    if (bt_policy_pick_same(pick, part->pick)) {
        if (part->error[0] != '\0')
            bt_log_info("policy", "pool %s: %s is what serves again", pool->name,
                        pick->source->path);
        part->error[0] = '\0';
        part->fallen_back = false;
    } else if (!bt_policy_pick_same(pick, part->rejected)) {
        part->is_tried = true;
        bt_policy_pick_set(&part->next, bt_policy_pick_ref(pick));
    }
    bt_policy_pick_set(&pick, NULL);
    return 0;
}

static bool tries(const bt_policy_stage_t *stage, const bt_policy_source_t *source)
{
    for (unsigned i = 0; i < stage->pool_count; i++)
        for (unsigned s = 0; s < BT_SLOT_COUNT; s++) {
            const bt_pool_part_t *part = &stage->pools[i].parts[s];
            if (part->is_tried && part->next->source == source)
                return true;
        }
    return false;
}

/* Whoever puts a text means it, also one that was taken back before. */
static void forgive(const bt_gateway_policy_t *gp, bt_pool_part_t *part)
{
    const bt_policy_job_t *job = gp->job;

    if (job != NULL && job->kind == BT_JOB_PUT && bt_policy_is_named(part->asked, job->name))
        bt_policy_pick_set(&part->rejected, NULL);
    if (bt_policy_job_is_set(job)) {
        const bt_policy_source_t *text = bt_policy_set_find(job->set, part->asked);
        if (text != NULL && !bt_policy_set_same(gp->set, text))
            bt_policy_pick_set(&part->rejected, NULL);
    }
}

void bt_policy_puts_drop(bt_gateway_policy_t *gp)
{
    for (unsigned i = 0; i < gp->trial.put_count; i++)
        bt_policy_pick_set(&gp->trial.puts[i], NULL);
    free(gp->trial.puts);
    gp->trial.puts = NULL;
    gp->trial.put_count = 0;
    gp->trial.put_rc = 0;
}

static int add_put(bt_gateway_policy_t *gp, bt_policy_source_t *source)
{
    bt_policy_trial_t *t = &gp->trial;
    bt_policy_pick_t **puts = realloc(t->puts, (t->put_count + 1) * sizeof(bt_policy_pick_t *));
    int rc;

    if (puts == NULL)
        return BT_E_NOMEM;
    t->puts = puts;
    puts[t->put_count] = NULL;
    rc = bt_policy_pick_new(&puts[t->put_count], source, NULL);
    t->put_count += rc == 0;
    return rc;
}

/* What is wrong with a text is said even when no pool uses it. */
static int choose_puts(bt_gateway_policy_t *gp)
{
    const bt_policy_job_t *job = gp->job;
    int rc = 0;

    if (job != NULL && job->kind == BT_JOB_PUT && !tries(&gp->next, job->text))
        rc = add_put(gp, job->text);
    if (!bt_policy_job_is_set(job))
        return rc;
    for (unsigned i = 0; i < job->set->count && rc == 0; i++) {
        bt_policy_source_t *source = job->set->sources[i];
        if (!tries(&gp->next, source) && !bt_policy_set_same(gp->set, source))
            rc = add_put(gp, source);
    }
    return rc;
}

int bt_policy_choose(bt_gateway_policy_t *gp)
{
    int rc = 0;

    bt_policy_puts_drop(gp);
    for (unsigned i = 0; i < gp->next.pool_count && rc == 0; i++)
        for (unsigned s = 0; s < BT_SLOT_COUNT && rc == 0; s++) {
            bt_pool_part_t *part = &gp->next.pools[i].parts[s];
            if (part->asked == NULL)
                continue;
            forgive(gp, part);
            rc = choose(gp, &gp->next.pools[i], part);
        }
    return rc == 0 ? choose_puts(gp) : rc;
}

/* ---- judging ---- */

void bt_policy_explain(const bt_policy_pool_t *pool, enum bt_policy_slot slot, char *out,
                       size_t size)
{
    const bt_pool_part_t *part = &pool->parts[slot];
    const char *values = part->rc == BT_E_CONFIG ? strstr(part->why, "params.") : NULL;
    const bool is_rule = strncmp(pool->name, "rules:", 6) == 0;

    if (values != NULL && part->place[0] == '-')
        snprintf(out, size, "%s: %s", part->place, values);
    else if (values != NULL && is_rule) /* the place is the target */
        snprintf(out, size, "%s.%s", part->place, values);
    else if (values != NULL && part->place[0] != '\0')
        snprintf(out, size, "%s%s", part->place, values + sizeof "params" - 1);
    else if (is_rule)
        snprintf(out, size, "%s.policy: %s", part->place, part->why);
    else
        snprintf(out, size, "pool %s: %s: %s", pool->name, bt_policy_slot_name(slot), part->why);
}

static void note_missing(bt_gateway_policy_t *gp, const bt_policy_pool_t *pool,
                         bt_pool_part_t *part)
{
    if (!part->fallen_back && part->pick != NULL) {
        gp->fallbacks++;
        bt_log_error(
            "policy", "pool %s: %s; its last text (%s, generation %llu) serves on from memory",
            pool->name, part->why, part->pick->source->path, (unsigned long long) part->born);
    }
    part->fallen_back = part->pick != NULL;
    bt_str_copy(part->error, sizeof part->error, part->why);
}

static void note_refused(bt_gateway_policy_t *gp, const bt_policy_pool_t *pool,
                         bt_pool_part_t *part)
{
    if (gp->job != NULL)
        gp->job->refused++;
    bt_policy_pick_set(&part->rejected, bt_policy_pick_ref(part->next));
    bt_str_copy(part->error, sizeof part->error, part->why);
    if (part->pick != NULL)
        bt_log_error("policy", "pool %s: refused, %s@%s serves on: %s", pool->name,
                     part->pick->name, part->pick->version, part->why);
    bt_dev_refused(gp->g, part->next->source, part->why, true);
}

/* It decides nothing, so it stops nothing: what it should be is not there, and everybody is told. */
static void leave_out(bt_policy_pool_t *pool, bt_pool_part_t *part)
{
    char why[BT_POLICY_ERROR_BYTES];

    bt_policy_explain(pool, BT_SLOT_BOTH, why, sizeof why);
    if (strcmp(part->error, why) != 0)
        bt_log_error("rules", "%s is left out: %s", pool->name, why);
    snprintf(part->error, sizeof part->error, "%s", why);
    bt_policy_pick_set(&part->next, part->is_new_ask ? NULL : bt_policy_pick_ref(part->pick));
}

/* 0: the others go on. */
static int judge(bt_gateway_policy_t *gp, bt_policy_pool_t *pool, unsigned s, char *err,
                 size_t err_size)
{
    const bt_policy_job_t *job = gp->job;
    bt_pool_part_t *part = &pool->parts[s];
    const bool is_variant = pool >= gp->next.pools + gp->next.first_variant;

    if (job != NULL && job->kind == BT_JOB_PUT && part->is_tried &&
        part->next->source == job->text) {
        bt_dev_refused(gp->g, job->text, part->why, false);
        snprintf(err, err_size, "%s", part->why);
        return part->rc;
    }
    if (bt_policy_job_is_set(job) && part->is_tried &&
        bt_policy_set_has(job->set, part->next->source)) {
        snprintf(err, err_size, "%s", part->why);
        return part->rc;
    }
    if (pool->is_shadow) {
        leave_out(pool, part);
        return 0;
    }
    bt_policy_explain(pool, (enum bt_policy_slot) s, err, err_size);
    if (job == NULL &&
        part->is_test_only) { /* the start: somebody wants this one, and nothing else is there */
        bt_str_copy(part->error, sizeof part->error, part->why);
        bt_log_warn("policy", "pool %s: %s", pool->name, part->error);
        bt_dev_refused(gp->g, part->next->source, part->why, true);
        return 0;
    }
    if (is_variant && gp->next.rules != gp->now.rules && (part->is_new_ask || part->pick == NULL))
        return job != NULL && !bt_policy_job_is_set(job) ? BT_E_AGAIN : BT_E_CONFIG;
    if (job == NULL || (job->kind == BT_JOB_CONFIG && part->is_new_ask) || part->pick == NULL)
        return BT_E_CONFIG;
    if (job->kind == BT_JOB_SET_TRY) /* not of the set: the next look says so */
        ;
    else if (part->is_tried)
        note_refused(gp, pool, part);
    else
        note_missing(gp, pool, part);
    stay(part);
    return 0;
}

int bt_policy_judge(bt_gateway_policy_t *gp, char *err, size_t err_size)
{
    const bt_policy_job_t *job = gp->job;
    int rc = 0;

    if (gp->trial.put_count > 0 && gp->trial.put_rc < 0) {
        snprintf(err, err_size, "%s", gp->trial.put_why);
        rc = gp->trial.put_rc;
    }
    for (unsigned i = 0; i < gp->next.pool_count && rc == 0; i++)
        for (unsigned s = 0; s < BT_SLOT_COUNT && rc == 0; s++) {
            if (gp->next.pools[i].parts[s].rc < 0)
                rc = judge(gp, &gp->next.pools[i], s, err, err_size);
        }
    if (rc < 0 && rc != BT_E_AGAIN && job != NULL &&
        (job->kind == BT_JOB_PUT || bt_policy_job_is_set(job)))
        gp->job->refused = 1;
    return rc;
}
