/* A file that is gone or cannot be read changes nothing: its workers stay until it says something else. */
#include "gateway/workers_file.h"

#include "base/err.h"
#include "base/log.h"
#include "config/check.h"
#include "gateway/watched_file.h"
#include "script/value/luatable.h"

#include <stdlib.h>

typedef struct bt_gateway_workers_file {
    bt_watched_file_t file;
    bt_gateway_t *gateway;
    /* the pool thread's while it reads */
    bt_value_t *root;
    int rc;
    char err[BT_CONFIG_ERR_BYTES];
} workers_file_t;

static workers_file_t *of(bt_watched_file_t *file)
{
    return bt_container_of(file, workers_file_t, file);
}

static void read_file(bt_watched_file_t *file)
{
    workers_file_t *f = of(file);

    f->rc = bt_lua_table_load(file->path, &f->root, f->err, sizeof f->err);
}

static void take(bt_watched_file_t *file)
{
    workers_file_t *f = of(file);
    const bt_config_t *c = f->gateway->fleet_config;
    bt_registry_t *registry = f->gateway->registry;
    const uint64_t epoch = bt_registry_current(registry)->epoch;
    bt_config_found_t found = {0};
    int rc = f->rc;

    if (f->gateway->state != BT_GATEWAY_SERVING)
        return;
    if (rc == 0)
        rc = bt_config_read_found(c, file->path, f->root, &found, f->err, sizeof f->err);
    if (rc == 0)
        rc = bt_config_apply_found(c, file->path, &found, registry, f->err, sizeof f->err);
    bt_config_found_fini(&found);
    if (rc < 0)
        bt_log_error("gateway", "workers file refused, its workers stay as they were: %s", f->err);
    else if (bt_registry_current(registry)->epoch != epoch)
        bt_log_info("gateway", "workers file taken: epoch %llu of the workers",
                    (unsigned long long) bt_registry_current(registry)->epoch);
}

static void drop(bt_watched_file_t *file)
{
    workers_file_t *f = of(file);

    bt_value_free(f->root);
    f->root = NULL;
}

static void on_failed(bt_watched_file_t *file, const char *why)
{
    bt_log_warn("gateway", "workers file %s: %s; its workers stay as they were", file->path, why);
}

static void on_freed(bt_watched_file_t *file)
{
    free(of(file));
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
    f->file = (bt_watched_file_t){.path = g->config->workers_file,
                                  .read = read_file,
                                  .take = take,
                                  .drop = drop,
                                  .failed = on_failed,
                                  .freed = on_freed};
    if ((rc = bt_watched_file_open(&f->file, &g->control)) < 0) {
        free(f);
        return rc;
    }
    g->workers_file = f;
    return 0;
}

void bt_gateway_workers_file_stop(bt_gateway_t *g)
{
    if (g->workers_file != NULL)
        bt_watched_file_close(&g->workers_file->file);
    g->workers_file = NULL;
}
