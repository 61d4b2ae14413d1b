/* How many connections there may be, and what became of those for which there was no place. */
#include "admin/metrics/metrics.h"

#define N(array) ((unsigned) (sizeof(array) / sizeof((array)[0])))

static void write_reasons(bt_prom_t *p, const bt_budget_t *b, const uint64_t *values)
{
    for (unsigned i = 0; i < BT_BUDGET_REASONS; i++) {
        const bt_label_t labels[] = {
            {"listener", bt_str(bt_budget_name(b))},
            {"reason", bt_str(bt_budget_reason_name((enum bt_budget_reason) i))}};
        bt_prom_count(p, labels, N(labels), values[i]);
    }
}

static void write_max(bt_prom_t *p, const bt_budget_t *b)
{
    const bt_label_t label = {"listener", bt_str(bt_budget_name(b))};

    bt_prom_count(p, &label, 1, bt_budget_limits(b)->clients);
}

void bt_metrics_budget(bt_prom_t *p, const bt_budget_t *clients, const bt_budget_t *admin)
{
    const bt_budget_t *const all[2] = {clients, admin};
    bt_budget_stats_t stats[2];

    for (unsigned i = 0; i < 2; i++)
        bt_budget_stats(all[i], &stats[i]);
    bt_prom_family(p, "baton_connections_max", "gauge", "Connections that are served at once");
    for (unsigned i = 0; i < 2; i++)
        write_max(p, all[i]);
    bt_prom_family(p, "baton_connections_closed_total", "counter",
                   "Idle connections closed to make place for another one");
    for (unsigned i = 0; i < 2; i++)
        write_reasons(p, all[i], stats[i].closed);
    bt_prom_family(p, "baton_connections_refused_total", "counter",
                   "Connections answered with 503 because no idle one could be closed for them");
    for (unsigned i = 0; i < 2; i++)
        write_reasons(p, all[i], stats[i].refused);
    bt_prom_family(p, "baton_connections_shed_total", "counter",
                   "Connections closed without an answer: too many were being answered with 503");
    for (unsigned i = 0; i < 2; i++)
        write_reasons(p, all[i], stats[i].shed);
    bt_prom_one(p, "baton_worker_connections_closed_total", "counter",
                "Idle connections to workers closed to make place for another connection",
                stats[0].workers_closed);
    bt_prom_one(p, "baton_worker_connections_refused_total", "counter",
                "Connections to workers that were not made because no descriptor was left",
                stats[0].workers_refused);
}
