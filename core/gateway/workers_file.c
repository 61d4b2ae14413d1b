/* The name is asked, not a handle watched: it works where the file is replaced, where a link beside it is swapped (a ConfigMap) and on
 * file systems without events. A file that is gone or cannot be read changes nothing: its workers stay until it says something else. */
#include "gateway/workers_file.h"

#include "base/err.h"
#include "base/log.h"
#include "config/check.h"
#include "loop/offload.h"
#include "script/value/luatable.h"

#include <stdlib.h>

#define POLL_MS 250

typedef struct bt_gateway_workers_file {
    uv_fs_poll_t poll;
    bt_offload_t work;
    bt_gateway_t *gateway;
    const char *path;
    /* the pool thread's while is_reading */
    bt_value_t *root;
    int rc;
    char err[BT_CONFIG_ERR_BYTES];
    bool is_reading, look_again, is_stopped, is_closed;
} workers_file_t;

static void free_when_done(workers_file_t *f)
{
    if (f->is_closed && !f->is_reading)
        free(f);
}

/* ---- reading ---- */

static void read_file(bt_offload_t *work)
{
    workers_file_t *f = bt_container_of(work, workers_file_t, work);

    f->rc = bt_lua_table_load(f->path, &f->root, f->err, sizeof f->err);
}

static void take(workers_file_t *f)
{
    const bt_config_t *c = f->gateway->fleet_config;
    bt_registry_t *registry = f->gateway->registry;
    const uint64_t epoch = bt_registry_current(registry)->epoch;
    bt_config_found_t found = {0};
    int rc = f->rc;

    if (rc == 0)
        rc = bt_config_read_found(c, f->path, f->root, &found, f->err, sizeof f->err);
    if (rc == 0)
        rc = bt_config_apply_found(c, f->path, &found, registry, f->err, sizeof f->err);
    bt_config_found_fini(&found);
    if (rc < 0)
        bt_log_error("gateway", "workers file refused, its workers stay as they were: %s", f->err);
    else if (bt_registry_current(registry)->epoch != epoch)
        bt_log_info("gateway", "workers file taken: epoch %llu of the workers",
                    (unsigned long long) bt_registry_current(registry)->epoch);
}

static void look(workers_file_t *f);

static void on_read(bt_offload_t *work)
{
    workers_file_t *f = bt_container_of(work, workers_file_t, work);

    if (!f->is_stopped && f->gateway->state == BT_GATEWAY_SERVING)
        take(f);
    bt_value_free(f->root);
    f->root = NULL;
    f->is_reading = false;
    if (f->look_again && !f->is_stopped)
        look(f);
    free_when_done(f);
}

static void look(workers_file_t *f)
{
    f->look_again = f->is_reading;
    if (f->is_reading)
        return;
    f->is_reading = true;
    bt_offload_start(&f->work, &f->gateway->control, read_file, on_read);
}

static void on_poll(uv_fs_poll_t *poll, int status, const uv_stat_t *before, const uv_stat_t *now)
{
    workers_file_t *f = bt_container_of(poll, workers_file_t, poll);

    (void) before;
    (void) now;
    if (status < 0)
        bt_log_warn("gateway", "workers file %s: %s; its workers stay as they were", f->path,
                    uv_strerror(status));
    else
        look(f);
}

/* ---- life ---- */

static void on_closed(uv_handle_t *handle)
{
    workers_file_t *f = bt_container_of((uv_fs_poll_t *) handle, workers_file_t, poll);

    f->is_closed = true;
    free_when_done(f);
}

int bt_gateway_workers_file_start(bt_gateway_t *g)
{
    workers_file_t *f;
    int rc;

    if (g->config->workers_file == NULL)
        return 0;
    if ((f = calloc(1, sizeof *f)) == NULL)
        return BT_E_NOMEM;
    f->gateway = g;
    f->path = g->config->workers_file;
    if ((rc = uv_fs_poll_init(&g->control.uv, &f->poll)) < 0) {
        free(f);
        return rc;
    }
    g->workers_file = f;
    rc = uv_fs_poll_start(&f->poll, on_poll, f->path, POLL_MS);
    if (rc == 0)
        look(f); /* it may be another one since it was loaded */
    return rc;
}

void bt_gateway_workers_file_stop(bt_gateway_t *g)
{
    workers_file_t *f = g->workers_file;

    if (f == NULL)
        return;
    g->workers_file = NULL;
    f->is_stopped = true;
    uv_close((uv_handle_t *) &f->poll, on_closed);
}
