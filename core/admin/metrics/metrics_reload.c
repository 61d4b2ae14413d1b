/* How policies and rules are served, and how their reloads went. */
#include "admin/metrics/metrics.h"

static void write_pools(bt_prom_t *p, const bt_reload_t *reload, bool errors)
{
    bt_reload_pool_stats_t s;

    for (unsigned i = 0; bt_reload_pool_stats(reload, i, &s); i++) {
        const bt_label_t label = {"pool", bt_str(s.name)};
        bt_prom_count(p, &label, 1, errors ? s.errors : s.generation);
    }
}

static void write_results(bt_prom_t *p, const bt_reload_stats_t *s)
{
    static const char *const names[BT_RELOAD_RESULTS] = {"ok", "refused", "aborted"};

    bt_prom_family(p, "baton_policy_reloads_total", "counter",
                   "Reloads of policies, by how they ended");
    for (unsigned i = 0; i < BT_RELOAD_RESULTS; i++) {
        const bt_label_t label = {"result", bt_str(names[i])};
        bt_prom_count(p, &label, 1, s->results[i]);
    }
    bt_prom_one(p, "baton_policy_rollbacks_total", "counter",
                "Policies taken back because they failed soon after they came", s->rollbacks);
    bt_prom_one(p, "baton_policy_fallbacks_total", "counter",
                "Policies that were gone, so that other code serves", s->fallbacks);
}

static void write_times(bt_prom_t *p, const bt_reload_stats_t *s)
{
    bt_prom_one_micro(p, "baton_policy_commit_seconds", "gauge",
                      "The last reload: from the first loop's commit to the last one's answer",
                      s->last_commit_us);
    bt_prom_one_micro(p, "baton_policy_stall_seconds_max", "gauge",
                      "Longest that one loop stood still for a reload", s->max_stall_us);
    bt_prom_one_micro(p, "baton_policy_stall_cpu_seconds_max", "gauge",
                      "Longest that one loop worked for a reload; what is missing to the stall it "
                      "waited for a core",
                      s->max_work_us);
}

void bt_metrics_reload(bt_prom_t *p, const bt_reload_t *reload)
{
    bt_reload_stats_t s;

    bt_reload_stats(reload, &s);
    bt_prom_family(p, "baton_policy_generation", "gauge",
                   "Generation that brought the pool's newest policy");
    write_pools(p, reload, false);
    bt_prom_family(p, "baton_policy_not_as_asked", "gauge",
                   "Policies of the pool that are not what is asked for: see GET /policies");
    write_pools(p, reload, true);
    bt_prom_one(p, "baton_rules_not_as_in_file", "gauge",
                "1: the rules file cannot be used as it is now: see GET /rules", s.has_rules_error);
    write_results(p, &s);
    write_times(p, &s);
}
