/* A worker has about 4 KiB of series, so a large fleet's take many turns; its families must not be torn apart, so what goes on is a place in
 * the table of families and in the set of workers.
 */
#include "admin/scrape.h"

#include "admin/metrics/metrics.h"
#include "admin/policies/rollout_json.h"
#include "admin/status/advice.h"
#include "admin/status/discovery.h"
#include "admin/status/kv.h"
#include "admin/status/limits.h"

#include <stdlib.h>

typedef struct scrape {
    bt_rows_t rows;
    const bt_admin_config_t *config;
    bt_workers_t *workers;
    bt_prom_t prom;
    bt_metrics_place_t place;
} scrape_t;

static void write_transfer(const bt_admin_config_t *config, bt_prom_t *p)
{
    bt_transfer_stats_t stats;

    if (config->transfer == NULL)
        return;
    bt_transfer_stats(config->transfer, &stats);
    bt_metrics_transfer(p, &stats);
}

static void write_rest(const bt_admin_config_t *config, bt_prom_t *p)
{
    if (config->gen_ai)
        bt_metrics_gen_ai(p, config->shared);
    bt_metrics_advice(p, config->advisor, bt_registry_current(config->registry));
    write_transfer(config, p);
    if (config->registration != NULL)
        bt_metrics_registration(p, config->registration);
    bt_metrics_audit(p, config->audit);
    bt_metrics_dns(p, config->dns);
    bt_metrics_kv(p, config);
    bt_metrics_kubernetes(p, config->kubes, config->kube_count);
    if (config->budget != NULL)
        bt_metrics_budget(p, config->shared->config.upstream.budget, config->budget);
    bt_metrics_tls(p, config->client_tls, config->admin_tls);
    bt_metrics_http2(p);
    if (config->store != NULL)
        bt_metrics_fleet(p, config->store, config->fleet, config->shared->quotas);
    if (config->shared->identities != NULL)
        bt_metrics_identities(p, config->shared->identities);
    bt_metrics_limits(p, config->shared->limits);
    if (config->reload != NULL)
        bt_metrics_reload(p, config->reload);
    if (config->rollout != NULL)
        bt_rollout_metrics(config->rollout, p);
    bt_prom_end(p);
}

static bool write_piece(bt_rows_t *rows, bt_text_t *out)
{
    scrape_t *s = bt_container_of(rows, scrape_t, rows);

    s->prom.out = out;
    if (!bt_metrics_workers(&s->prom, s->workers, bt_clock_ms(), &s->place,
                            out->len + BT_PIECE_BYTES))
        return false;
    write_rest(s->config, &s->prom);
    return true;
}

static void free_scrape(bt_rows_t *rows)
{
    scrape_t *s = bt_container_of(rows, scrape_t, rows);

    bt_workers_unref(s->workers);
    free(s);
}

bt_rows_t *bt_scrape_new(const bt_admin_config_t *config, const bt_loop_facts_t *facts,
                         unsigned count, bool is_open, bt_text_t *first)
{
    scrape_t *s = calloc(1, sizeof *s);

    if (s == NULL)
        return NULL;
    s->rows = (bt_rows_t){.write = write_piece, .free = free_scrape};
    s->config = config;
    s->workers = bt_workers_ref(bt_registry_current(config->registry));
    s->prom = (bt_prom_t){.out = first, .is_open = is_open};
    bt_metrics_write(&s->prom, s->workers, config->shared, facts, count, config->version);
    return &s->rows;
}
