/* For every part of every pool: what the fleet's set has under that name, or the admin put, else the file, else the shipped policy. A text that is new,
 * or whose parameters are, is tried (reload/validate.c) and then judged: one that fails changes nothing but the part's
 * `error`, unless it is what this very job is about (a PUT, another configuration, other rules): then the job is refused. */
#include "reload/dev.h"
#include "reload/reload_impl.h"

#include "base/err.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>

bt_reload_put_t *bt_reload_put_find(bt_reload_t *reload, const char *name)
{
    bt_list_t *it, *tmp;

    bt_list_each (&reload->texts, it, tmp) {
        bt_reload_put_t *text = bt_container_of(it, bt_reload_put_t, link);
        if (strcmp(text->source->name, name) == 0)
            return text;
    }
    return NULL;
}

void bt_reload_put_drop(bt_reload_put_t *text)
{
    bt_list_remove(&text->link);
    bt_policy_source_unref(text->source);
    free(text);
}

int bt_reload_put_keep(bt_reload_t *reload, bt_policy_source_t *source)
{
    bt_reload_put_t *text = bt_reload_put_find(reload, source->name);

    if (text == NULL) {
        text = calloc(1, sizeof *text);
        if (text == NULL)
            return BT_E_NOMEM;
        bt_list_push(&reload->texts, &text->link);
    }
    bt_policy_source_unref(text->source);
    text->source = bt_policy_source_ref(source);
    return 0;
}

/* What this replica's admin put, in this job or before. Borrowed. */
static bt_policy_source_t *local_text(bt_reload_t *reload, const char *asked)
{
    const bt_reload_job_t *job = reload->job;
    bt_list_t *it, *tmp;

    if (job != NULL && job->kind == BT_JOB_PUT && bt_policy_is_named(asked, job->name))
        return job->text;
    bt_list_each (&reload->texts, it, tmp) {
        bt_reload_put_t *text = bt_container_of(it, bt_reload_put_t, link);
        bool is_leaving =
            job != NULL && job->kind == BT_JOB_DELETE && strcmp(job->name, text->source->name) == 0;
        if (!is_leaving && bt_policy_is_named(asked, text->source->name))
            return text->source;
    }
    return NULL;
}

/* What goes before files. Borrowed. */
static bt_policy_source_t *put_text(bt_reload_t *reload, const char *asked)
{
    bt_policy_source_t *local = local_text(reload, asked),
                       *sets = bt_policy_set_find(bt_reload_set_of(reload), asked);

    return sets != NULL && (local == NULL || !reload->is_pinned) ? sets : local;
}

static int find(bt_reload_t *reload, const char *asked, bt_policy_source_t **source_p, char *err,
                size_t err_size)
{
    bt_policy_source_t *put = put_text(reload, asked);

    if (put != NULL) {
        *source_p = bt_policy_source_ref(put);
        return 0;
    }
    return bt_policy_source_open(source_p, asked, reload->config.first->policy_dir, err, err_size);
}

/* ---- choosing ---- */

static void stay(bt_reload_part_t *part)
{
    bt_reload_selection_set(&part->next, bt_reload_selection_ref(part->selection));
}

/* The text that serves keeps its object: loops see by the pointer that nothing has changed. */
static int make_selection(bt_reload_selection_t **selection_p, const bt_reload_part_t *part,
                          bt_policy_source_t *source)
{
    if (part->selection != NULL && bt_policy_source_same(source, part->selection->source))
        source = part->selection->source;
    return bt_reload_selection_new(selection_p, source, part->asked_params);
}

static int choose(bt_reload_t *reload, const bt_reload_pool_t *pool, bt_reload_part_t *part)
{
    bt_policy_source_t *source;
    bt_reload_selection_t *selection;
    int rc;

    if (part->roll_back) {
        bt_reload_selection_set(&part->next, bt_reload_selection_ref(part->before));
        return 0;
    }
    stay(part);
    part->rc = find(reload, part->asked, &source, part->why, sizeof part->why);
    if (part->rc < 0)
        return 0;
    rc = make_selection(&selection, part, source);
    bt_policy_source_unref(source);
    if (rc < 0)
        return rc;
    if (bt_reload_selection_same(selection, part->selection)) {
        if (part->error[0] != '\0')
            bt_log_info("policy", "pool %s: %s is what serves again", pool->name,
                        selection->source->path);
        part->error[0] = '\0';
        part->fallen_back = false;
    } else if (!bt_reload_selection_same(selection, part->rejected)) {
        part->is_tried = true;
        bt_reload_selection_set(&part->next, bt_reload_selection_ref(selection));
    }
    bt_reload_selection_set(&selection, NULL);
    return 0;
}

static bool tries(const bt_reload_table_t *table, const bt_policy_source_t *source)
{
    for (unsigned i = 0; i < table->pool_count; i++)
        for (unsigned s = 0; s < BT_SLOT_COUNT; s++) {
            const bt_reload_part_t *part = &table->pools[i].parts[s];
            if (part->is_tried && part->next->source == source)
                return true;
        }
    return false;
}

/* Whoever puts a text means it, also one that was taken back before. */
static void forgive(const bt_reload_t *reload, bt_reload_part_t *part)
{
    const bt_reload_job_t *job = reload->job;

    if (job != NULL && job->kind == BT_JOB_PUT && bt_policy_is_named(part->asked, job->name))
        bt_reload_selection_set(&part->rejected, NULL);
    if (bt_reload_job_is_set(job)) {
        const bt_policy_source_t *text = bt_policy_set_find(job->set, part->asked);
        if (text != NULL && !bt_policy_set_same(reload->set, text))
            bt_reload_selection_set(&part->rejected, NULL);
    }
}

void bt_reload_puts_drop(bt_reload_t *reload)
{
    for (unsigned i = 0; i < reload->validation.put_count; i++)
        bt_reload_selection_set(&reload->validation.puts[i], NULL);
    free(reload->validation.puts);
    reload->validation.puts = NULL;
    reload->validation.put_count = 0;
    reload->validation.put_rc = 0;
}

static int add_put(bt_reload_t *reload, bt_policy_source_t *source)
{
    bt_reload_validation_t *t = &reload->validation;
    bt_reload_selection_t **puts =
        realloc(t->puts, (t->put_count + 1) * sizeof(bt_reload_selection_t *));
    int rc;

    if (puts == NULL)
        return BT_E_NOMEM;
    t->puts = puts;
    puts[t->put_count] = NULL;
    rc = bt_reload_selection_new(&puts[t->put_count], source, NULL);
    t->put_count += rc == 0;
    return rc;
}

/* What is wrong with a text is said even when no pool uses it. */
static int choose_puts(bt_reload_t *reload)
{
    const bt_reload_job_t *job = reload->job;
    int rc = 0;

    if (job != NULL && job->kind == BT_JOB_PUT && !tries(&reload->next, job->text))
        rc = add_put(reload, job->text);
    if (!bt_reload_job_is_set(job))
        return rc;
    for (unsigned i = 0; i < job->set->count && rc == 0; i++) {
        bt_policy_source_t *source = job->set->sources[i];
        if (!tries(&reload->next, source) && !bt_policy_set_same(reload->set, source))
            rc = add_put(reload, source);
    }
    return rc;
}

int bt_reload_select(bt_reload_t *reload)
{
    int rc = 0;

    bt_reload_puts_drop(reload);
    for (unsigned i = 0; i < reload->next.pool_count && rc == 0; i++)
        for (unsigned s = 0; s < BT_SLOT_COUNT && rc == 0; s++) {
            bt_reload_part_t *part = &reload->next.pools[i].parts[s];
            if (part->asked == NULL)
                continue;
            forgive(reload, part);
            rc = choose(reload, &reload->next.pools[i], part);
        }
    return rc == 0 ? choose_puts(reload) : rc;
}

/* ---- judging ---- */

void bt_reload_explain(const bt_reload_pool_t *pool, enum bt_policy_slot slot, char *out,
                       size_t size)
{
    const bt_reload_part_t *part = &pool->parts[slot];
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

static void note_missing(bt_reload_t *reload, const bt_reload_pool_t *pool, bt_reload_part_t *part)
{
    if (!part->fallen_back && part->selection != NULL) {
        reload->stats.fallbacks++;
        bt_log_error(
            "policy", "pool %s: %s; its last text (%s, generation %llu) serves on from memory",
            pool->name, part->why, part->selection->source->path, (unsigned long long) part->born);
    }
    part->fallen_back = part->selection != NULL;
    bt_str_copy(part->error, sizeof part->error, part->why);
}

static void note_refused(bt_reload_t *reload, const bt_reload_pool_t *pool, bt_reload_part_t *part)
{
    if (reload->job != NULL)
        reload->job->refused++;
    bt_reload_selection_set(&part->rejected, bt_reload_selection_ref(part->next));
    bt_str_copy(part->error, sizeof part->error, part->why);
    if (part->selection != NULL)
        bt_log_error("policy", "pool %s: refused, %s@%s serves on: %s", pool->name,
                     part->selection->name, part->selection->version, part->why);
    bt_dev_refused(reload->config.first, part->next->source, part->why, true);
}

/* It decides nothing, so it stops nothing: what it should be is not there, and everybody is told. */
static void leave_out(bt_reload_pool_t *pool, bt_reload_part_t *part)
{
    char why[BT_POLICY_ERROR_BYTES];

    bt_reload_explain(pool, BT_SLOT_BOTH, why, sizeof why);
    if (strcmp(part->error, why) != 0)
        bt_log_error("rules", "%s is left out: %s", pool->name, why);
    snprintf(part->error, sizeof part->error, "%s", why);
    bt_reload_selection_set(&part->next,
                            part->is_new_ask ? NULL : bt_reload_selection_ref(part->selection));
}

/* 0: the others go on. */
static int judge(bt_reload_t *reload, bt_reload_pool_t *pool, unsigned s, char *err,
                 size_t err_size)
{
    const bt_reload_job_t *job = reload->job;
    bt_reload_part_t *part = &pool->parts[s];
    const bool is_variant = pool >= reload->next.pools + reload->next.first_variant;

    if (job != NULL && job->kind == BT_JOB_PUT && part->is_tried &&
        part->next->source == job->text) {
        bt_dev_refused(reload->config.first, job->text, part->why, false);
        snprintf(err, err_size, "%s", part->why);
        return part->rc;
    }
    if (bt_reload_job_is_set(job) && part->is_tried &&
        bt_policy_set_has(job->set, part->next->source)) {
        snprintf(err, err_size, "%s", part->why);
        return part->rc;
    }
    if (pool->is_shadow) {
        leave_out(pool, part);
        return 0;
    }
    bt_reload_explain(pool, (enum bt_policy_slot) s, err, err_size);
    if (job == NULL &&
        part->is_test_only) { /* the start: somebody wants this one, and nothing else is there */
        bt_str_copy(part->error, sizeof part->error, part->why);
        bt_log_warn("policy", "pool %s: %s", pool->name, part->error);
        bt_dev_refused(reload->config.first, part->next->source, part->why, true);
        return 0;
    }
    if (is_variant && reload->next.rules != reload->now.rules &&
        (part->is_new_ask || part->selection == NULL))
        return job != NULL && !bt_reload_job_is_set(job) ? BT_E_AGAIN : BT_E_CONFIG;
    if (job == NULL || (job->kind == BT_JOB_CONFIG && part->is_new_ask) || part->selection == NULL)
        return BT_E_CONFIG;
    if (bt_reload_job_is_try(job)) /* not what is tried: the next look says so */
        ;
    else if (part->is_tried)
        note_refused(reload, pool, part);
    else
        note_missing(reload, pool, part);
    stay(part);
    return 0;
}

int bt_reload_judge(bt_reload_t *reload, char *err, size_t err_size)
{
    const bt_reload_job_t *job = reload->job;
    int rc = 0;

    if (reload->validation.put_count > 0 && reload->validation.put_rc < 0) {
        snprintf(err, err_size, "%s", reload->validation.put_why);
        rc = reload->validation.put_rc;
    }
    for (unsigned i = 0; i < reload->next.pool_count && rc == 0; i++)
        for (unsigned s = 0; s < BT_SLOT_COUNT && rc == 0; s++) {
            if (reload->next.pools[i].parts[s].rc < 0)
                rc = judge(reload, &reload->next.pools[i], s, err, err_size);
        }
    if (rc < 0 && rc != BT_E_AGAIN && job != NULL &&
        (job->kind == BT_JOB_PUT || bt_reload_job_is_set(job)))
        reload->job->refused = 1;
    return rc;
}
