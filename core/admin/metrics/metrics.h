/* metrics.h - the gateway as Prometheus sees it. Private to core/admin.
 *
 * Owner: nobody; reads atomics of other threads and the facts that live.h has gathered.
 * Life:  one text a scrape.
 * Flow:  process, requests, loops, pools, workers; every name begins with baton_, with --metrics-gen-ai some with gen_ai_.
 * Cost:  one pass over the loops' counters and over all workers per family.
 */
#ifndef BT_ADMIN_METRICS_METRICS_H
#define BT_ADMIN_METRICS_METRICS_H

#include "admin/call/audit.h"
#include "admin/call/live.h"
#include "admin/metrics/prom.h"
#include "discovery/dns.h"
#include "fleet/fleet.h"
#include "fleet/quota.h"
#include "reload/reload.h"
#include "transfer/registration.h"
#include "transfer/transfer.h"

/* All that is neither about one worker nor has a function of its own below. */
void bt_metrics_write(bt_prom_t *p, const bt_workers_t *workers, bt_dispatch_shared_t *shared,
                      const bt_loop_facts_t *facts, unsigned fact_count, const char *version);
/* metrics_models.c */
void bt_metrics_models(bt_prom_t *p, const bt_dispatch_shared_t *shared);
/* metrics_models.c, too: its histograms under the names of OpenTelemetry's GenAI conventions */
void bt_metrics_gen_ai(bt_prom_t *p, const bt_dispatch_shared_t *shared);
/* metrics_reload.c */
void bt_metrics_reload(bt_prom_t *p, const bt_reload_t *reload);
/* metrics_fleet.c; fleet and quotas may be NULL */
void bt_metrics_fleet(bt_prom_t *p, const bt_store_t *store, const bt_fleet_t *fleet,
                      const bt_quotas_t *quotas);
/* metrics_fleet.c, too: clients' keys */
void bt_metrics_identities(bt_prom_t *p, bt_identities_t *all);
/* metrics_queue.c */
void bt_metrics_queues(bt_prom_t *p, const bt_dispatch_shared_t *shared);
/* metrics_budget.c */
void bt_metrics_budget(bt_prom_t *p, const bt_budget_t *clients, const bt_budget_t *admin);
/* --audit-log's lines; NULL: nothing */
void bt_metrics_audit(bt_prom_t *p, const bt_audit_t *audit);
/* metrics_dns.c; dns may be NULL */
void bt_metrics_dns(bt_prom_t *p, const bt_dns_t *dns);
/* metrics_transfer.c: KV transfer as its hub counts it, and engines that register */
void bt_metrics_transfer(bt_prom_t *p, const bt_transfer_stats_t *stats);
void bt_metrics_registration(bt_prom_t *p, const bt_registration_t *registration);
/* metrics_http2.c */
void bt_metrics_http2(bt_prom_t *p);
/* metrics_tls.c; each may be NULL */
void bt_metrics_tls(bt_prom_t *p, struct bt_tls_server *clients, struct bt_tls_server *admin);
/* metrics_workers.c: of pools and of all workers together */
void bt_metrics_pools(bt_prom_t *p, const bt_workers_t *workers, uint64_t now_ms);
/* Whose row comes next; zeros: the first. */
typedef struct bt_metrics_place {
    unsigned family, pool, worker;
    bool is_declared; /* the family */
} bt_metrics_place_t;
/* metrics_workers.c: goes on at this place until the text has enough bytes, or after some thousand workers without a value; true: it has all. p is the same
 * one each time, but for its text. */
bool bt_metrics_workers(bt_prom_t *p, const bt_workers_t *workers, uint64_t now_ms,
                        bt_metrics_place_t *at, size_t enough);

#endif
