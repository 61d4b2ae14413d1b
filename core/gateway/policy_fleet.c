/* What all replicas serve (rollout/rollout.h) as texts of this gateway. It goes before files, shipped policies, and what the
 * admin of this replica has put under the same name; while the replica is pinned, that goes first.
 *
 * A set is tried by a job that stops before the loops hear of it, and taken by one that goes all the way: what the vote said is found
 * out once more, because files and configuration of this replica may have changed since. */
#include "gateway/policy.h"

#include "base/err.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- sets ---- */

int bt_policy_set_new(bt_policy_set_t **set_p, uint64_t number)
{
    bt_policy_set_t *set = calloc(1, sizeof *set);

    if (set == NULL)
        return BT_E_NOMEM;
    set->refs = 1;
    set->number = number;
    *set_p = set;
    return 0;
}

bt_policy_set_t *bt_policy_set_ref(bt_policy_set_t *set)
{
    if (set != NULL)
        set->refs++;
    return set;
}

void bt_policy_set_unref(bt_policy_set_t *set)
{
    if (set == NULL || --set->refs > 0)
        return;
    for (unsigned i = 0; i < set->count; i++)
        bt_policy_source_unref(set->sources[i]);
    free(set->sources);
    bt_rules_unref(set->parsed);
    free(set->rules);
    free(set);
}

int bt_policy_set_add(bt_policy_set_t *set, const char *name, bt_str_t text)
{
    bt_policy_source_t **sources, *source;
    char path[128];
    int rc;

    sources = realloc(set->sources, (set->count + 1) * sizeof(bt_policy_source_t *));
    if (sources == NULL)
        return BT_E_NOMEM;
    set->sources = sources;
    snprintf(path, sizeof path, "fleet/%s.lua", name);
    rc = bt_policy_source_new(&source, BT_SOURCE_FLEET, name, path, text);
    if (rc == 0)
        sources[set->count++] = source;
    return rc;
}

bt_policy_source_t *bt_policy_set_find(const bt_policy_set_t *set, const char *asked)
{
    for (unsigned i = 0; set != NULL && i < set->count; i++)
        if (bt_policy_is_named(asked, set->sources[i]->name))
            return set->sources[i];
    return NULL;
}

bool bt_policy_set_has(const bt_policy_set_t *set, const bt_policy_source_t *source)
{
    for (unsigned i = 0; set != NULL && i < set->count; i++)
        if (set->sources[i] == source)
            return true;
    return false;
}

bool bt_policy_set_same(const bt_policy_set_t *set, const bt_policy_source_t *source)
{
    for (unsigned i = 0; set != NULL && i < set->count; i++)
        if (bt_policy_source_same(set->sources[i], source))
            return true;
    return false;
}

bool bt_policy_job_is_set(const bt_policy_job_t *job)
{
    return job != NULL && (job->kind == BT_JOB_SET || job->kind == BT_JOB_SET_TRY);
}

bt_policy_set_t *bt_policy_set_of(const bt_gateway_policy_t *gp)
{
    return bt_policy_job_is_set(gp->job) ? gp->job->set : gp->set;
}

/* ---- jobs ---- */

int bt_gateway_policy_set(bt_gateway_policy_t *gp, bt_policy_set_t *set, bool is_try,
                          bt_policy_over_cb over, void *user)
{
    bt_policy_job_t *job;
    int rc = gp->is_closing
                 ? BT_E_CANCELLED
                 : bt_policy_job_add(gp, is_try ? BT_JOB_SET_TRY : BT_JOB_SET, "fleet", &job);

    if (rc < 0)
        return rc;
    job->set = bt_policy_set_ref(set);
    job->over = over;
    job->user = user;
    bt_policy_jobs_run(gp);
    return 0;
}

/* ---- for people ---- */

void bt_gateway_policy_trouble(const bt_gateway_policy_t *gp, char *out, size_t size)
{
    out[0] = '\0';
    for (unsigned i = 0; i < gp->now.pool_count; i++)
        for (unsigned s = 0; s < BT_SLOT_COUNT; s++) {
            const bt_pool_part_t *part = &gp->now.pools[i].parts[s];
            if (part->asked == NULL || part->error[0] == '\0' ||
                bt_policy_set_find(gp->set, part->asked) == NULL)
                continue;
            snprintf(out, size, "pool %s: %s", gp->now.pools[i].name, part->error);
            return;
        }
}

void bt_policy_set_describe(const bt_gateway_policy_t *gp, bt_text_t *out)
{
    const bt_policy_set_t *set = gp->set;

    if (set == NULL || set->number == 0) {
        bt_text_puts(out, "null");
        return;
    }
    bt_text_printf(out, "{\"set\":%llu,\"pinned\":%s,\"rules\":%s,\"policies\":[",
                   (unsigned long long) set->number, gp->is_pinned ? "true" : "false",
                   set->rules != NULL ? "true" : "false");
    for (unsigned i = 0; i < set->count; i++) {
        bt_text_puts(out, i > 0 ? "," : "");
        bt_text_json_str(out, bt_str(set->sources[i]->name));
    }
    bt_text_puts(out, "]}");
}

/* Why this text serves and not another of the same name. */
void bt_policy_part_reason(const bt_gateway_policy_t *gp, const bt_pool_part_t *part, char *out,
                           size_t size)
{
    const enum bt_source_kind kind = part->pick->source->kind;
    const bool is_both = bt_policy_set_find(gp->set, part->asked) != NULL;

    if (part->fallen_back)
        snprintf(out, size, "what is asked for is gone; its last text serves on from memory");
    else if (kind == BT_SOURCE_FLEET)
        snprintf(out, size,
                 "of set %llu of the fleet; it goes before files and shipped policies of its name "
                 "until it is withdrawn (DELETE /admin/fleet/policies/%s)",
                 (unsigned long long) gp->set->number, part->pick->source->name);
    else if (kind == BT_SOURCE_ADMIN && is_both)
        snprintf(out, size, "put by this replica's admin, which goes first while it is pinned");
    else if (kind == BT_SOURCE_ADMIN)
        snprintf(out, size,
                 "put by this replica's admin; it goes before files until DELETE "
                 "/admin/policies/%s",
                 part->pick->source->name);
    else if (kind == BT_SOURCE_SHIPPED)
        snprintf(out, size, "shipped with baton; no file of this name in --policy-dir");
    else
        snprintf(out, size, "a file; the fleet's set does not name it");
}
