/* The fleet's set as jobs of this gateway. It goes before files, shipped policies, and what the admin of this gateway has put
 * under the same name; while this gateway is pinned, what was put goes first.
 *
 * A set is validated by a job that stops before the loops hear of it, and taken by one that goes all the way: what the vote said is found
 * out once more, because files and configuration of this gateway may have changed since. */
#include "reload/reload_impl.h"

#include "base/err.h"

#include <stdio.h>

bool bt_reload_job_is_set(const bt_reload_job_t *job)
{
    return job != NULL && (job->kind == BT_JOB_SET || job->kind == BT_JOB_SET_TRY);
}

bool bt_reload_job_is_try(const bt_reload_job_t *job)
{
    return job->kind == BT_JOB_SET_TRY || job->is_dry_run;
}

bt_policy_set_t *bt_reload_set_of(const bt_reload_t *reload)
{
    return bt_reload_job_is_set(reload->job) ? reload->job->set : reload->set;
}

/* ---- jobs ---- */

int bt_reload_set(bt_reload_t *reload, bt_policy_set_t *set, bool is_try, bt_reload_over_cb over,
                  void *user)
{
    bt_reload_job_t *job;
    int rc = reload->is_closing
                 ? BT_E_CANCELLED
                 : bt_reload_job_add(reload, is_try ? BT_JOB_SET_TRY : BT_JOB_SET, "fleet", &job);

    if (rc < 0)
        return rc;
    job->set = bt_policy_set_ref(set);
    job->over = over;
    job->user = user;
    bt_reload_jobs_run(reload);
    return 0;
}

void bt_reload_trouble(const bt_reload_t *reload, char *out, size_t size)
{
    out[0] = '\0';
    for (unsigned i = 0; i < reload->now.pool_count; i++)
        for (unsigned s = 0; s < BT_SLOT_COUNT; s++) {
            const bt_reload_part_t *part = &reload->now.pools[i].parts[s];
            if (part->asked == NULL || part->error[0] == '\0' ||
                bt_policy_set_find(reload->set, part->asked) == NULL)
                continue;
            snprintf(out, size, "pool %s: %s", reload->now.pools[i].name, part->error);
            return;
        }
}

const bt_policy_set_t *bt_reload_set_serving(const bt_reload_t *reload)
{
    return reload->set;
}

void bt_reload_set_pinned(bt_reload_t *reload, bool is_pinned)
{
    reload->is_pinned = is_pinned;
}
