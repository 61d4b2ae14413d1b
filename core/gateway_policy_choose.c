/* For every part of every pool: what the admin put under that name, else the file, else the shipped policy. A text that is new is
 * compiled and self-tested here, on the control thread; one that fails changes nothing but the part's `error`. */
#include "gateway_policy.h"

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
    bt_policy_set(&text->source, bt_policy_source_ref(source));
    return 0;
}

/* What the admin put, in this job or before. Borrowed. */
static bt_policy_source_t *put_text(bt_gateway_policy_t *gp, const char *asked)
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

int bt_policy_find(bt_gateway_policy_t *gp, const char *asked, bt_policy_source_t **source_p,
                   char *err, size_t err_size)
{
    bt_policy_source_t *put = put_text(gp, asked);

    if (put != NULL) {
        *source_p = bt_policy_source_ref(put);
        return 0;
    }
    return bt_policy_source_open(source_p, asked, gp->g->config->policy_dir, err, err_size);
}

int bt_policy_try(const bt_policy_source_t *source, bool test, char *name, char *version, char *err,
                  size_t err_size)
{
    bt_policy_t *policy;
    int rc = bt_policy_load_source(&policy, source, err, err_size);

    if (rc < 0)
        return rc;
    snprintf(name, 96, "%s", bt_policy_name(policy));
    snprintf(version, 96, "%s", bt_policy_version(policy));
    if (test)
        rc = bt_policy_self_test(policy, err, err_size);
    bt_policy_free(policy);
    return rc;
}

static void note_missing(bt_gateway_policy_t *gp, const bt_policy_pool_t *pool,
                         bt_pool_part_t *part, const char *why)
{
    if (!part->fallen_back) {
        gp->fallbacks++;
        bt_log_error("policy",
                     "pool %s: %s; its last text (%s, generation %llu) serves on from memory",
                     pool->name, why, part->source->path, (unsigned long long) part->born);
    }
    part->fallen_back = true;
    snprintf(part->error, sizeof part->error, "%s", why);
}

static void note_refused(bt_gateway_policy_t *gp, const bt_policy_pool_t *pool,
                         bt_pool_part_t *part, bt_policy_source_t *source, const char *why)
{
    gp->job->refused++;
    bt_policy_set(&part->rejected, bt_policy_source_ref(source));
    snprintf(part->error, sizeof part->error, "%s", why);
    bt_log_error("policy", "pool %s: refused, %s@%s serves on: %s", pool->name, part->name,
                 part->version, why);
}

static bt_policy_source_t *stay(bt_pool_part_t *part)
{
    return bt_policy_source_ref(part->source);
}

/* A reference to what the part should serve after this job. */
static bt_policy_source_t *choose(bt_gateway_policy_t *gp, const bt_policy_pool_t *pool,
                                  bt_pool_part_t *part)
{
    char err[BT_POLICY_ERROR_BYTES] = "";
    bt_policy_source_t *source;

    if (part->roll_back)
        return bt_policy_source_ref(part->good);
    if (bt_policy_find(gp, part->asked, &source, err, sizeof err) < 0) {
        if (part->source == NULL)
            snprintf(part->error, sizeof part->error, "%s", err);
        else
            note_missing(gp, pool, part, err);
        return stay(part);
    }
    const bool is_same = bt_policy_source_same(source, part->source);
    const bool is_rejected = !is_same && bt_policy_source_same(source, part->rejected);
    if (is_same && part->error[0] != '\0') {
        bt_log_info("policy", "pool %s: %s is what serves again", pool->name, source->path);
        part->error[0] = '\0';
        part->fallen_back = false;
    }
    int rc = is_same || is_rejected ? 0
                                    : bt_policy_try(source, true, part->next_name,
                                                    part->next_version, err, sizeof err);
    if (rc < 0)
        note_refused(gp, pool, part, source, err);
    if (is_same || is_rejected || rc < 0) {
        bt_policy_source_unref(source);
        return stay(part);
    }
    return source;
}

bool bt_policy_choose_all(bt_gateway_policy_t *gp)
{
    bool is_changed = false;

    for (unsigned i = 0; i < gp->pool_count; i++)
        for (unsigned s = 0; s < BT_SLOT_COUNT; s++) {
            bt_pool_part_t *part = &gp->pools[i].parts[s];
            if (part->asked == NULL)
                bt_policy_set(&part->next, NULL);
            else
                bt_policy_set(&part->next, choose(gp, &gp->pools[i], part));
            is_changed |= part->next != part->source;
        }
    return is_changed;
}
