/* Folders are watched, not files: an editor replaces the file under its name, a ConfigMap swaps a link beside it, and a watch on
 * the file would hold on to what is gone. Where a name is a link, the folder of what it points to is watched too. Any event at
 * all only means "look again": the texts themselves say whether something has changed.
 *
 * A folder that is not there (yet, or for the moment of a swap) is looked for every second. */
#include "gateway/policy.h"

#include "base/err.h"
#include "base/log.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#define DEBOUNCE_MS 50
#define DEBOUNCE_MAX_MS 1000 /* a folder that never rests */
#define REWATCH_MS 1000

typedef struct watch {
    uv_fs_event_t handle;
    bt_list_t link;
    bt_gateway_policy_t *gp;
    char *folder;
    dev_t device;
    ino_t inode;
    bool is_wanted;
} watch_t;

/* ---- events ---- */

static void on_event(uv_fs_event_t *handle, const char *name, int events, int status)
{
    watch_t *w = bt_container_of(handle, watch_t, handle);
    bt_gateway_policy_t *gp = w->gp;
    const uint64_t now_ms = bt_clock_ms();

    (void) name;
    (void) events;
    (void) status;
    if (!bt_timer_active(&gp->debounce))
        gp->first_event_ms = now_ms;
    if (now_ms - gp->first_event_ms < DEBOUNCE_MAX_MS)
        bt_timer_start(&gp->debounce, DEBOUNCE_MS);
}

static void scan(bt_gateway_policy_t *gp)
{
    if (gp->is_closing || gp->g->state != BT_GATEWAY_SERVING)
        return;
    if (bt_policy_job_add(gp, BT_JOB_SCAN, "file", NULL) == 0)
        bt_policy_jobs_run(gp);
}

static void on_debounce(bt_timer_t *timer)
{
    scan(bt_container_of(timer, bt_gateway_policy_t, debounce));
}

static void on_rewatch(bt_timer_t *timer)
{
    scan(bt_container_of(timer, bt_gateway_policy_t, rewatch));
}

/* ---- which folders ---- */

static void on_closed(uv_handle_t *handle)
{
    watch_t *w = bt_container_of((uv_fs_event_t *) handle, watch_t, handle);

    free(w->folder);
    free(w);
}

static void close_watch(watch_t *w)
{
    bt_list_remove(&w->link);
    uv_close((uv_handle_t *) &w->handle, on_closed);
}

static bool is_watched(bt_gateway_policy_t *gp, const char *folder, const struct stat *st)
{
    bt_list_t *it, *tmp;

    bt_list_each (&gp->watches, it, tmp) {
        watch_t *w = bt_container_of(it, watch_t, link);
        if (strcmp(w->folder, folder) == 0 && w->device == st->st_dev && w->inode == st->st_ino)
            return w->is_wanted = true;
    }
    return false;
}

static int open_watch(bt_gateway_policy_t *gp, const char *folder, const struct stat *st)
{
    watch_t *w = calloc(1, sizeof *w);
    int rc = BT_E_NOMEM;

    if (w == NULL || (w->folder = bt_str_dup(bt_str(folder))) == NULL ||
        uv_fs_event_init(&gp->g->control.uv, &w->handle) < 0) {
        free(w);
        return rc;
    }
    w->gp = gp;
    w->device = st->st_dev;
    w->inode = st->st_ino;
    w->is_wanted = true;
    bt_list_push(&gp->watches, &w->link);
    rc = uv_fs_event_start(&w->handle, on_event, folder, 0);
    if (rc < 0)
        close_watch(w);
    return rc;
}

static void want(bt_gateway_policy_t *gp, const char *folder)
{
    struct stat st;
    int rc = stat(folder, &st) == 0 ? 0 : UV_ENOENT;

    if (rc == 0 && is_watched(gp, folder, &st))
        return;
    if (rc == 0)
        rc = open_watch(gp, folder, &st);
    if (rc < 0) {
        if (rc != UV_ENOENT && !gp->has_warned)
            bt_log_warn("policy", "folder %s cannot be watched, it is looked at every second: %s",
                        folder, rc == BT_E_NOMEM ? bt_err_text(rc) : uv_strerror(rc));
        gp->has_warned |= rc != UV_ENOENT;
        bt_timer_start(&gp->rewatch, REWATCH_MS);
    }
}

static void want_folder_of(bt_gateway_policy_t *gp, const char *path)
{
    const char *slash = strrchr(path, '/');
    char folder[PATH_MAX];

    if (slash == NULL)
        snprintf(folder, sizeof folder, ".");
    else
        snprintf(folder, sizeof folder, "%.*s", slash == path ? 1 : (int) (slash - path), path);
    want(gp, folder);
}

static void want_file(bt_gateway_policy_t *gp, const char *path)
{
    char real[PATH_MAX];

    want_folder_of(gp, path);
    if (realpath(path, real) != NULL)
        want_folder_of(gp, real);
}

static void want_part(bt_gateway_policy_t *gp, const bt_pool_part_t *part)
{
    const char *dir = gp->g->config->policy_dir;
    char path[PATH_MAX];

    if (part->asked == NULL)
        return;
    if (bt_policy_is_path(part->asked)) {
        want_file(gp, part->asked);
        return;
    }
    if (dir == NULL)
        return;
    snprintf(path, sizeof path, "%s/%s.lua", dir, part->asked);
    want_file(gp, path);
}

void bt_policy_watch_refresh(bt_gateway_policy_t *gp)
{
    bt_list_t *it, *tmp;

    bt_timer_stop(&gp->rewatch);
    bt_list_each (&gp->watches, it, tmp)
        bt_container_of(it, watch_t, link)->is_wanted = false;
    for (unsigned i = 0; i < gp->now.pool_count; i++)
        for (unsigned s = 0; s < BT_SLOT_COUNT; s++)
            want_part(gp, &gp->now.pools[i].parts[s]);
    if (gp->g->fleet_config->rules_file != NULL)
        want_file(gp, gp->g->fleet_config->rules_file);
    bt_list_each (&gp->watches, it, tmp)
        if (!bt_container_of(it, watch_t, link)->is_wanted)
            close_watch(bt_container_of(it, watch_t, link));
}

/* ---- life ---- */

void bt_policy_watch_init(bt_gateway_policy_t *gp)
{
    bt_list_init(&gp->watches);
    bt_timer_init(&gp->g->control, &gp->debounce, on_debounce);
    bt_timer_init(&gp->g->control, &gp->rewatch, on_rewatch);
}

void bt_policy_watch_stop(bt_gateway_policy_t *gp)
{
    bt_timer_stop(&gp->debounce);
    bt_timer_stop(&gp->rewatch);
    while (!bt_list_empty(&gp->watches))
        close_watch(bt_container_of(gp->watches.next, watch_t, link));
}
