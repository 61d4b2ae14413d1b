/* The store, what the replicas tell each other through it, and the limits that they share. */
#include "admin/metrics/metrics.h"

#define N(array) ((unsigned) (sizeof(array) / sizeof((array)[0])))

static void write_state(bt_prom_t *p, const bt_store_t *store)
{
    static const char *const words[] = {"up", "starting", "degraded", "unavailable"};
    char why[8];
    const unsigned now = (unsigned) bt_store_health(store, why, sizeof(why));

    bt_prom_family(p, "baton_store_state", "gauge", "1 at what the store is from here");
    for (unsigned i = 0; i < N(words); i++) {
        const bt_label_t label = {"state", bt_str(words[i])};
        bt_prom_count(p, &label, 1, i == now);
    }
}

static void write_store(bt_prom_t *p, const bt_store_t *store)
{
    bt_store_stats_t s;

    bt_store_stats(store, &s);
    const bt_prom_row_t rows[] = {
        {"baton_store_shared", "gauge", "1 when other gateways may see this store",
         bt_store_is_shared(store)},
        {"baton_store_ops_total", "counter", "Operations asked of the store", s.ops},
        {"baton_store_errors_total", "counter",
         "Operations that the store refused, or could not be asked", s.errors},
        {"baton_store_timeouts_total", "counter", "Operations that were not answered in time",
         s.timeouts},
        {"baton_store_round_trips_total", "counter",
         "Writes to the store, however many operations each carried", s.round_trips},
        {"baton_store_connects_total", "counter", "Connections to the store that came up",
         s.connects},
        {"baton_store_connect_failures_total", "counter", "Connections to the store that did not",
         s.connect_failures}};
    write_state(p, store);
    bt_prom_rows(p, rows, N(rows));
    bt_prom_one_micro(p, "baton_store_rtt_seconds", "gauge",
                      "Moving average of the time to an answer", s.rtt_us_ema);
}

static void write_share(bt_prom_t *p, const bt_fleet_t *fleet)
{
    bt_fleet_stats_t s;

    bt_fleet_stats(fleet, &s);
    const bt_prom_row_t rows[] = {
        {"baton_fleet_replicas", "gauge",
         "Gateways of this fleet, this one included; the store unavailable: as many as were known "
         "last",
         s.replicas},
        {"baton_fleet_heartbeats_total", "counter", "Times that all was told and heard",
         s.heartbeats},
        {"baton_fleet_heartbeats_failed_total", "counter",
         "Times that the store did not answer all of it", s.heartbeats_failed},
        {"baton_fleet_prefix_sent_total", "counter", "Prompt blocks told to other gateways",
         s.prefix_sent},
        {"baton_fleet_prefix_received_total", "counter", "Prompt blocks heard of from others",
         s.prefix_received},
        {"baton_fleet_prefix_dropped_total", "counter",
         "Prompt blocks that were not told: the store was unavailable, or there were too many",
         s.prefix_dropped},
        {"baton_fleet_calls_sent_total", "counter", "Orders given to all gateways", s.calls_sent},
        {"baton_fleet_calls_received_total", "counter", "Orders heard, one's own too",
         s.calls_received}};
    bt_prom_rows(p, rows, N(rows));
    bt_prom_one_micro(p, "baton_fleet_lag_seconds", "gauge",
                      "From sending to applied, of the last time that all was told", s.lag_us);
}

/* Also where nobody shares them: policies take from limits of one gateway in the same way. */
static void write_quotas(bt_prom_t *p, const bt_quotas_t *quotas)
{
    bt_quota_stats_t s;

    bt_quota_stats(quotas, &s);
    const bt_prom_row_t rows[] = {
        {"baton_quota_live", "gauge", "Limits that policies take from, in their windows of now",
         s.live},
        {"baton_quota_granted_total", "counter", "Takes from a limit that were granted", s.granted},
        {"baton_quota_denied_total", "counter",
         "Takes from a limit that were not: nothing was left", s.denied},
        {"baton_quota_unavailable_total", "counter",
         "Takes that this gateway's part of a limit decided, because the store did not answer",
         s.away},
        {"baton_quota_leases_total", "counter",
         "Chunks of a limit asked of the store, or given back to it", s.leases}};
    bt_prom_rows(p, rows, N(rows));
}

void bt_metrics_identities(bt_prom_t *p, bt_identities_t *all)
{
    bt_identities_facts_t f;

    bt_identities_look(all, &f);
    const bt_prom_row_t rows[] = {
        {"baton_client_keys", "gauge", "Client keys that count: neither revoked nor replaced",
         f.keys},
        {"baton_client_keys_left_out", "gauge", "Rows of the store that are no keys", f.left_out}};
    bt_prom_rows(p, rows, N(rows));
    if (f.store_heard_ms == 0)
        return;
    const uint64_t now_ms = bt_clock_ms();
    bt_prom_one_micro(p, "baton_client_keys_age_seconds", "gauge",
                      "Since the store has last told the client keys, or that they are the same",
                      now_ms > f.store_heard_ms ? (now_ms - f.store_heard_ms) * 1000 : 0);
}

void bt_metrics_fleet(bt_prom_t *p, const bt_store_t *store, const bt_fleet_t *fleet,
                      const bt_quotas_t *quotas)
{
    write_store(p, store);
    if (fleet != NULL)
        write_share(p, fleet);
    if (quotas != NULL)
        write_quotas(p, quotas);
}
