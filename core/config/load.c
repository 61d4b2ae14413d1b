/* Defaults, life, and the order in which things are told: defaults, file, flags, then finish.c
 * derives the rest. */
#include "config/config_impl.h"

#include "base/err.h"
#include "config/flag.h"
#include "config/passed.h"

#include <limits.h>
#include <stdarg.h>
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

static int init(bt_config_t *c)
{
    *c = (bt_config_t){
        .port = 30000,
        .admin_port = 29000,
        .transfer_port = UINT_MAX,
        .registry_port = UINT_MAX,
        .metaserver_port = UINT_MAX,
        .p2p_nccl_port = UINT_MAX,
        .moriio_port = UINT_MAX,
        .drain_ms = 180000,
        .log_level = BT_LOG_INFO,
        .policy_probation_ms = 10000,
        .policy_rollback_errors = 10,
        .record_sample_ppm = UINT_MAX,
        .trace_sample_ppm = 10000,
        .trace_slow_ms = 10000,
        .record = {.max_bytes = (uint64_t) 256 << 20},
        .dispatch = {.debug_headers = true,
                     .access_log = true,
                     .policy_wait_ms = 1000,
                     .queue_size = UINT_MAX,
                     .queue_timeout_ms = 60000,
                     .queue_max_bytes = 256U << 20,
                     .queue_aging_ms = 30000,
                     .upstream = {.idle_timeout_ms = 4000, .idle_max = 256}},
        .jwt_skew_ms = 60000,
        .jwt_jwks_ttl_ms = 300000,
        .fleet_heartbeat_ms = 100,
        .fleet_expiry_ms = 2000,
        .kv_snapshot_ms = UINT64_MAX,
        .role_check_ms = 10000,
        .dns = {.hold_ms = 15000, .min_ms = 1000, .max_ms = 60000, .absent_max_ms = 5000},
    };
    bt_server_config_defaults(&c->server);
    c->server.has_http2 = true;
    bt_monitor_config_defaults(&c->monitor);
    bt_breaker_config_defaults(&c->breaker);
    bt_advisor_config_defaults(&c->advisor);
    init_pool(&c->defaults);
    int rc = set_text(&c->host, "127.0.0.1");
    rc |= set_text(&c->admin_host, "127.0.0.1");
    rc |= set_text(&c->transfer_host, "127.0.0.1");
    rc |= set_text(&c->registry_host, "127.0.0.1");
    rc |= set_text(&c->metaserver_host, "127.0.0.1");
    rc |= set_text(&c->registration_host, "127.0.0.1");
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

static int compare_keys(const void *a, const void *b)
{
    return strcmp(((const bt_value_t *) a)->key, ((const bt_value_t *) b)->key);
}

/* What the file says stays, but for this one. The members are borrowed: set_params copies. */
int bt_config_add_param(bt_config_pool_t *pool, enum bt_policy_slot slot, bt_value_t param,
                        const char *place)
{
    const bt_value_t *now = pool->params[slot];
    const unsigned count = now != NULL ? now->count : 0;
    bt_value_t table = {.type = BT_VALUE_TABLE};
    int rc;
    table.items = calloc(count + 1, sizeof *table.items);
    if (table.items == NULL)
        return BT_E_NOMEM;
    for (unsigned i = 0; i < count; i++)
        if (strcmp(now->items[i].key, param.key) != 0)
            table.items[table.count++] = now->items[i];
    table.items[table.count++] = param;
    qsort(table.items, table.count, sizeof *table.items, compare_keys);
    rc = bt_config_set_params(pool, slot, &table, place);
    free(table.items);
    return rc;
}

static int copy_params(bt_config_pool_t *pool, const bt_config_pool_t *from)
{
    int rc = 0;
    for (unsigned s = 0; s < BT_SLOT_COUNT && rc == 0; s++)
        rc = bt_config_set_params(pool, (enum bt_policy_slot) s, from->params[s],
                                  from->params_places[s]);
    return rc;
}

void bt_config_workers_fini(bt_config_pool_t *pool)
{
    for (unsigned i = 0; i < pool->worker_count; i++) {
        bt_worker_spec_fini(&pool->workers[i]);
        free(pool->origins[i]);
    }
    free(pool->workers);
    free(pool->origins);
}

static void fini_pool(bt_config_pool_t *pool)
{
    bt_config_workers_fini(pool);
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
    bt_config_found_fini(&c->found);
    bt_config_dns_fini(c);
    fini_pool(&c->defaults);
    bt_key_table_unref(c->client_keys);
    bt_jwks_unref(c->jwks);
    bt_limit_table_unref(c->limits);
    free(c->redis_password);
    free(c->transfer_tokens);
    free(c->file);
    bt_text_fini(&c->warnings);
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

void bt_config_warn(bt_config_t *c, const char *fmt, ...)
{
    char line[BT_CONFIG_ERR_BYTES];
    va_list args;

    va_start(args, fmt);
    const int n = vsnprintf(line, sizeof line - 1, fmt, args);
    va_end(args);
    if (n < 0)
        return;
    strcat(line, "\n");
    if (c->warnings.data == NULL || strstr(c->warnings.data, line) == NULL)
        bt_text_puts(&c->warnings, line);
}

/* Who mends the mistakes sees in the same run what else was found. */
static void append_warnings(const bt_config_t *c, char *err, size_t err_size)
{
    const size_t used = strlen(err), n = c->warnings.len;

    if (n > 0 && used + n + 1 < err_size)
        snprintf(err + used, err_size - used, "\n%.*s", (int) n - 1, c->warnings.data);
}

/* Sockets that are open already are what is listened on, whatever is written. */
static int take_passed(bt_config_t *c)
{
    const bt_passed_t *client = bt_passed(BT_PASSED_CLIENT), *admin = bt_passed(BT_PASSED_ADMIN);
    int rc = 0;

    if (client->count > 0) {
        free(c->host);
        rc = set_text(&c->host, client->host);
        c->port = client->port;
    }
    if (admin->count > 0 && rc == 0) {
        free(c->admin_host);
        rc = set_text(&c->admin_host, admin->host);
        c->admin_port = admin->port;
    }
    return rc;
}

int bt_config_load(bt_config_t *c, int argc, const char *const *argv, char *err, size_t err_size)
{
    const char *file;
    bool is_dev, is_wrong;
    int rc = bt_flags_scan(argc, argv, &file, &is_dev, err, err_size);
    is_wrong = rc == BT_E_CONFIG;
    if (rc == 0 || is_wrong)
        rc = init(c);
    if (rc < 0)
        goto err_text;
    if (file != NULL && !is_wrong)
        rc = bt_config_read_file(c, file, err, err_size);
    if (rc == 0 && is_dev)
        rc = bt_config_imply_dev(c);
    if (rc == 0)
        rc = bt_flags_apply(c, argc, argv, err, err_size);
    if (rc == 0)
        rc = take_passed(c);
    if (rc == 0)
        rc = bt_config_finish(c, err, err_size);
    if (rc == 0)
        return 0;
    if (rc == BT_E_CONFIG)
        append_warnings(c, err, err_size);
    bt_config_fini(c);
err_text:
    if (rc == BT_E_NOMEM)
        snprintf(err, err_size, "%s", bt_err_text(rc));
    return rc;
}
