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

int bt_policy_fleet_new(bt_policy_fleet_t **fleet_p, uint64_t number)
{
    bt_policy_fleet_t *fleet = calloc(1, sizeof *fleet);

    if (fleet == NULL)
        return BT_E_NOMEM;
    fleet->refs = 1;
    fleet->number = number;
    *fleet_p = fleet;
    return 0;
}

bt_policy_fleet_t *bt_policy_fleet_ref(bt_policy_fleet_t *fleet)
{
    if (fleet != NULL)
        fleet->refs++;
    return fleet;
}

void bt_policy_fleet_unref(bt_policy_fleet_t *fleet)
{
    if (fleet == NULL || --fleet->refs > 0)
        return;
    for (unsigned i = 0; i < fleet->count; i++)
        bt_policy_source_unref(fleet->sources[i]);
    free(fleet->sources);
    bt_rules_unref(fleet->parsed);
    free(fleet->rules);
    free(fleet);
}

int bt_policy_fleet_add(bt_policy_fleet_t *fleet, const char *name, bt_str_t text)
{
    bt_policy_source_t **sources, *source;
    char path[128];
    int rc;

    sources = realloc(fleet->sources, (fleet->count + 1) * sizeof(bt_policy_source_t *));
    if (sources == NULL)
        return BT_E_NOMEM;
    fleet->sources = sources;
    snprintf(path, sizeof path, "fleet/%s.lua", name);
    rc = bt_policy_source_new(&source, BT_SOURCE_FLEET, name, path, text);
    if (rc == 0)
        sources[fleet->count++] = source;
    return rc;
}

bt_policy_source_t *bt_policy_fleet_find(const bt_policy_fleet_t *fleet, const char *asked)
{
    for (unsigned i = 0; fleet != NULL && i < fleet->count; i++)
        if (bt_policy_is_named(asked, fleet->sources[i]->name))
            return fleet->sources[i];
    return NULL;
}

bool bt_policy_fleet_has(const bt_policy_fleet_t *fleet, const bt_policy_source_t *source)
{
    for (unsigned i = 0; fleet != NULL && i < fleet->count; i++)
        if (fleet->sources[i] == source)
            return true;
    return false;
}

bool bt_policy_fleet_same(const bt_policy_fleet_t *fleet, const bt_policy_source_t *source)
{
    for (unsigned i = 0; fleet != NULL && i < fleet->count; i++)
        if (bt_policy_source_same(fleet->sources[i], source))
            return true;
    return false;
}

bool bt_policy_job_is_fleet(const bt_policy_job_t *job)
{
    return job != NULL && (job->kind == BT_JOB_FLEET || job->kind == BT_JOB_FLEET_TRY);
}

bt_policy_fleet_t *bt_policy_fleet_of(const bt_gateway_policy_t *gp)
{
    return bt_policy_job_is_fleet(gp->job) ? gp->job->fleet : gp->fleet;
}

/* ---- jobs ---- */

int bt_gateway_policy_fleet(bt_gateway_policy_t *gp, bt_policy_fleet_t *fleet, bool is_try,
                            bt_policy_over_cb over, void *user)
{
    bt_policy_job_t *job;
    int rc = gp->is_closing
                 ? BT_E_CANCELLED
                 : bt_policy_job_add(gp, is_try ? BT_JOB_FLEET_TRY : BT_JOB_FLEET, "fleet", &job);

    if (rc < 0)
        return rc;
    job->fleet = bt_policy_fleet_ref(fleet);
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
                bt_policy_fleet_find(gp->fleet, part->asked) == NULL)
                continue;
            snprintf(out, size, "pool %s: %s", gp->now.pools[i].name, part->error);
            return;
        }
}

void bt_policy_fleet_describe(const bt_gateway_policy_t *gp, bt_text_t *out)
{
    const bt_policy_fleet_t *fleet = gp->fleet;

    if (fleet == NULL || fleet->number == 0) {
        bt_text_puts(out, "null");
        return;
    }
    bt_text_printf(out, "{\"set\":%llu,\"pinned\":%s,\"rules\":%s,\"policies\":[",
                   (unsigned long long) fleet->number, gp->is_pinned ? "true" : "false",
                   fleet->rules != NULL ? "true" : "false");
    for (unsigned i = 0; i < fleet->count; i++) {
        bt_text_puts(out, i > 0 ? "," : "");
        bt_text_json_str(out, bt_str(fleet->sources[i]->name));
    }
    bt_text_puts(out, "]}");
}

/* Why this text serves and not another of the same name. */
void bt_policy_part_reason(const bt_gateway_policy_t *gp, const bt_pool_part_t *part, char *out,
                           size_t size)
{
    const enum bt_source_kind kind = part->pick->source->kind;
    const bool is_both = bt_policy_fleet_find(gp->fleet, part->asked) != NULL;

    if (part->fallen_back)
        snprintf(out, size, "what is asked for is gone; its last text serves on from memory");
    else if (kind == BT_SOURCE_FLEET)
        snprintf(out, size,
                 "of set %llu of the fleet; it goes before files and shipped policies of its name "
                 "until it is withdrawn (DELETE /admin/fleet/policies/%s)",
                 (unsigned long long) gp->fleet->number, part->pick->source->name);
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
