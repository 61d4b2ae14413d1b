/* Folders are watched, not files: an editor replaces the file under its name, a ConfigMap swaps a link beside it, and a watch on
 * the file would hold on to what is gone. Where a name is a link, the folder of what it points to is watched too. Any event at
 * all only means "look again": the texts themselves say whether something has changed.
 *
 * A folder that is not there (yet, or for the moment of a swap) is looked for every second. */
#include "reload/reload_impl.h"

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
    bt_reload_t *reload;
    char *folder;
    dev_t device;
    ino_t inode;
    bool is_wanted;
} watch_t;

/* ---- events ---- */

static void on_event(uv_fs_event_t *handle, const char *name, int events, int status)
{
    watch_t *w = bt_container_of(handle, watch_t, handle);
    bt_reload_t *reload = w->reload;
    const uint64_t now_ms = bt_clock_ms();

    (void) name;
    (void) events;
    (void) status;
    if (!bt_timer_active(&reload->debounce))
        reload->first_event_ms = now_ms;
    if (now_ms - reload->first_event_ms < DEBOUNCE_MAX_MS)
        bt_timer_start(&reload->debounce, DEBOUNCE_MS);
}

static void scan(bt_reload_t *reload)
{
    if (reload->is_closing || !reload->is_serving)
        return;
    if (bt_reload_job_add(reload, BT_JOB_SCAN, "file", NULL) == 0)
        bt_reload_jobs_run(reload);
}

static void on_debounce(bt_timer_t *timer)
{
    scan(bt_container_of(timer, bt_reload_t, debounce));
}

static void on_rewatch(bt_timer_t *timer)
{
    scan(bt_container_of(timer, bt_reload_t, rewatch));
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

static bool is_watched(bt_reload_t *reload, const char *folder, const struct stat *st)
{
    bt_list_t *it, *tmp;

    bt_list_each (&reload->watches, it, tmp) {
        watch_t *w = bt_container_of(it, watch_t, link);
        if (strcmp(w->folder, folder) == 0 && w->device == st->st_dev && w->inode == st->st_ino)
            return w->is_wanted = true;
    }
    return false;
}

static int open_watch(bt_reload_t *reload, const char *folder, const struct stat *st)
{
    watch_t *w = calloc(1, sizeof *w);
    int rc = BT_E_NOMEM;

    if (w == NULL || (w->folder = bt_str_dup(bt_str(folder))) == NULL ||
        uv_fs_event_init(&reload->config.control->uv, &w->handle) < 0) {
        free(w);
        return rc;
    }
    w->reload = reload;
    w->device = st->st_dev;
    w->inode = st->st_ino;
    w->is_wanted = true;
    bt_list_push(&reload->watches, &w->link);
    rc = uv_fs_event_start(&w->handle, on_event, folder, 0);
    if (rc < 0)
        close_watch(w);
    return rc;
}

static void want(bt_reload_t *reload, const char *folder)
{
    struct stat st;
    int rc = stat(folder, &st) == 0 ? 0 : UV_ENOENT;

    if (rc == 0 && is_watched(reload, folder, &st))
        return;
    if (rc == 0)
        rc = open_watch(reload, folder, &st);
    if (rc < 0) {
        if (rc != UV_ENOENT && !reload->has_warned)
            bt_log_warn("policy", "folder %s cannot be watched, it is looked at every second: %s",
                        folder, rc == BT_E_NOMEM ? bt_err_text(rc) : uv_strerror(rc));
        reload->has_warned |= rc != UV_ENOENT;
        bt_timer_start(&reload->rewatch, REWATCH_MS);
    }
}

static void want_folder_of(bt_reload_t *reload, const char *path)
{
    const char *slash = strrchr(path, '/');
    char folder[PATH_MAX];

    if (slash == NULL)
        snprintf(folder, sizeof folder, ".");
    else
        snprintf(folder, sizeof folder, "%.*s", slash == path ? 1 : (int) (slash - path), path);
    want(reload, folder);
}

static void want_file(bt_reload_t *reload, const char *path)
{
    char real[PATH_MAX];

    want_folder_of(reload, path);
    if (realpath(path, real) != NULL)
        want_folder_of(reload, real);
}

static void want_part(bt_reload_t *reload, const bt_reload_part_t *part)
{
    const char *dir = reload->config.first->policy_dir;
    char path[PATH_MAX];

    if (part->asked == NULL)
        return;
    if (bt_policy_is_path(part->asked)) {
        want_file(reload, part->asked);
        return;
    }
    if (dir == NULL)
        return;
    snprintf(path, sizeof path, "%s/%s.lua", dir, part->asked);
    want_file(reload, path);
}

void bt_reload_watch_refresh(bt_reload_t *reload)
{
    bt_list_t *it, *tmp;

    bt_timer_stop(&reload->rewatch);
    bt_list_each (&reload->watches, it, tmp)
        bt_container_of(it, watch_t, link)->is_wanted = false;
    for (unsigned i = 0; i < reload->now.pool_count; i++)
        for (unsigned s = 0; s < BT_SLOT_COUNT; s++)
            want_part(reload, &reload->now.pools[i].parts[s]);
    if ((*reload->config.current)->rules_file != NULL)
        want_file(reload, (*reload->config.current)->rules_file);
    bt_list_each (&reload->watches, it, tmp)
        if (!bt_container_of(it, watch_t, link)->is_wanted)
            close_watch(bt_container_of(it, watch_t, link));
}

/* ---- life ---- */

void bt_reload_watch_init(bt_reload_t *reload)
{
    bt_list_init(&reload->watches);
    bt_timer_init(reload->config.control, &reload->debounce, on_debounce);
    bt_timer_init(reload->config.control, &reload->rewatch, on_rewatch);
}

void bt_reload_watch_stop(bt_reload_t *reload)
{
    bt_timer_stop(&reload->debounce);
    bt_timer_stop(&reload->rewatch);
    while (!bt_list_empty(&reload->watches))
        close_watch(bt_container_of(reload->watches.next, watch_t, link));
}
