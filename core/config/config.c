/* Defaults, life, and the order in which things are told: defaults, file, flags, then finish.c derives the rest. */
#include "config/config.h"

#include "base/err.h"
#include "config/file.h"
#include "config/flag.h"
#include "config/flags.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

static void init_pool(bt_config_pool_t *pool)
{
    *pool = (bt_config_pool_t){0};
    bt_pool_spec_init(&pool->spec);
}

static int set_text(char **to, const char *text)
{
    *to = bt_str_dup(bt_str(text));
    return *to != NULL ? 0 : BT_E_NOMEM;
}

int bt_config_init(bt_config_t *c)
{
    *c = (bt_config_t){
        .port = 30000,
        .admin_port = 29000,
        .transfer_port = UINT_MAX,
        .registry_port = UINT_MAX,
        .drain_ms = 180000,
        .log_level = BT_LOG_INFO,
        .access_log = true,
        .record_sample_ppm = UINT_MAX,
        .record_max_bytes = (uint64_t) 256 << 20,
        .debug_headers = true,
        .policy_wait_ms = 1000,
        .fleet_heartbeat_ms = 100,
        .fleet_expiry_ms = 2000,
        .upstream = {.idle_timeout_ms = 4000, .idle_max = 256},
    };
    bt_server_config_defaults(&c->server);
    bt_monitor_config_defaults(&c->monitor);
    bt_breaker_config_defaults(&c->breaker);
    init_pool(&c->defaults);
    int rc = set_text(&c->host, "127.0.0.1");
    rc |= set_text(&c->admin_host, "127.0.0.1");
    rc |= set_text(&c->transfer_host, "127.0.0.1");
    rc |= set_text(&c->registry_host, "127.0.0.1");
    rc |= set_text(&c->health_path, "/health");
    if (rc == 0)
        return 0;
    bt_config_fini(c);
    return BT_E_NOMEM;
}

int bt_config_set_params(bt_config_pool_t *pool, enum bt_policy_slot slot, const bt_value_t *params,
                         const char *place)
{
    bt_value_t *copy = bt_value_copy(params);
    char *place_copy = place != NULL ? bt_str_dup(bt_str(place)) : NULL;
    const bool is_short = (params != NULL && copy == NULL) || (place != NULL && place_copy == NULL);
    if (is_short) {
        bt_value_free(copy);
        free(place_copy);
        return BT_E_NOMEM;
    }
    bt_value_free(pool->params[slot]);
    free(pool->params_places[slot]);
    pool->params[slot] = copy;
    pool->params_places[slot] = place_copy;
    return 0;
}

static int copy_params(bt_config_pool_t *pool, const bt_config_pool_t *from)
{
    int rc = 0;
    for (unsigned s = 0; s < BT_SLOT_COUNT && rc == 0; s++)
        rc = bt_config_set_params(pool, (enum bt_policy_slot) s, from->params[s],
                                  from->params_places[s]);
    return rc;
}

static void fini_pool(bt_config_pool_t *pool)
{
    for (unsigned i = 0; i < pool->worker_count; i++) {
        bt_worker_spec_fini(&pool->workers[i]);
        free(pool->origins[i]);
    }
    free(pool->workers);
    free(pool->origins);
    free(pool->connector);
    for (unsigned s = 0; s < BT_SLOT_COUNT; s++)
        bt_config_set_params(pool, (enum bt_policy_slot) s, NULL, NULL);
    bt_pool_spec_fini(&pool->spec);
}

void bt_config_fini(bt_config_t *c)
{
    for (unsigned i = 0; i < bt_flag_count; i++)
        if (bt_flags[i].kind == BT_FLAG_SETTING)
            bt_option_clear(&bt_flags[i].option, c);
    for (unsigned i = 0; i < c->pool_count; i++)
        fini_pool(&c->pools[i]);
    free(c->pools);
    fini_pool(&c->defaults);
    bt_keys_free(c->client_keys);
    free(c->redis_password);
    free(c->file);
    *c = (bt_config_t){0};
}

int bt_config_add_pool(bt_config_t *c, bt_config_pool_t **pool_p)
{
    bt_config_pool_t *pools = realloc(c->pools, (c->pool_count + 1) * sizeof *pools);
    if (pools == NULL)
        return BT_E_NOMEM;
    c->pools = pools;
    bt_config_pool_t *pool = &pools[c->pool_count];
    init_pool(pool);
    int rc = bt_pool_spec_copy(&pool->spec, &c->defaults.spec);
    if (rc < 0)
        return rc;
    if (copy_params(pool, &c->defaults) < 0 ||
        (c->defaults.connector != NULL && set_text(&pool->connector, c->defaults.connector) < 0)) {
        fini_pool(pool);
        return BT_E_NOMEM;
    }
    pool->engine = c->defaults.engine;
    pool->lease_ms = c->defaults.lease_ms;
    c->pool_count++;
    *pool_p = pool;
    return 0;
}

static int grow_workers(bt_config_pool_t *pool)
{
    unsigned cap = pool->worker_cap == 0 ? 8 : pool->worker_cap * 2;
    bt_worker_spec_t *workers = realloc(pool->workers, cap * sizeof *workers);
    if (workers == NULL)
        return BT_E_NOMEM;
    pool->workers = workers;
    char **origins = realloc(pool->origins, cap * sizeof *origins);
    if (origins == NULL)
        return BT_E_NOMEM;
    pool->origins = origins;
    pool->worker_cap = cap;
    return 0;
}

int bt_config_add_worker(bt_config_pool_t *pool, const char *origin, bt_worker_spec_t **spec_p)
{
    char *copy;
    if (pool->worker_count == pool->worker_cap && grow_workers(pool) < 0)
        return BT_E_NOMEM;
    if (set_text(&copy, origin) < 0)
        return BT_E_NOMEM;
    pool->origins[pool->worker_count] = copy;
    *spec_p = &pool->workers[pool->worker_count++];
    bt_worker_spec_init(*spec_p);
    return 0;
}

int bt_config_load(bt_config_t *c, int argc, const char *const *argv, char *err, size_t err_size)
{
    const char *file = NULL;
    int rc = bt_flags_scan(argc, argv, &file, err, err_size);
    if (rc == 0)
        rc = bt_config_init(c);
    if (rc < 0)
        goto err_text;
    if (file != NULL)
        rc = bt_config_read_file(c, file, err, err_size);
    if (rc == 0 && bt_flags_has(argc, argv, "dev"))
        rc = bt_config_imply_dev(c);
    if (rc == 0)
        rc = bt_flags_apply(c, argc, argv, err, err_size);
    if (rc == 0)
        rc = bt_config_finish(c, err, err_size);
    if (rc == 0)
        return 0;
    bt_config_fini(c);
err_text:
    if (rc == BT_E_NOMEM)
        snprintf(err, err_size, "%s", bt_err_text(rc));
    return rc;
}
