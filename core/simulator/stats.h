/* stats.h - what a run comes to, and whether one is better than another.
 *
 * Owner: the caller.
 * Life:  pure functions over outcomes.
 * Flow:  percentiles by nearest rank over requests that were served; goodput counts requests that meet both objectives, and whoever was not
 *        served does not (DistServe's attainment has all that came in its denominator).
 * Cost:  a sort a percentile list.
 */
#ifndef BT_SIMULATOR_STATS_H
#define BT_SIMULATOR_STATS_H

#include "simulator/sim.h"

typedef struct bt_sim_slo {
    double ttft_ms, tpot_ms;
} bt_sim_slo_t;

typedef struct bt_sim_spread {
    double mean, p50, p90, p99;
} bt_sim_spread_t;

typedef struct bt_sim_summary {
    unsigned requests, served, good;
    unsigned failed, retried; /* retried: and served, by a later attempt */
    bt_sim_spread_t ttft_ms, tpot_ms, total_ms;
    double goodput, attainment; /* requests a second that meet both; their share, 0 to 1 */
    double output_tokens_s;     /* of all that were served */
    double hit_ratio,
        hit_ceiling; /* cached prompt tokens by all; by one cache that never forgets */
    double
        load_spread; /* standard deviation of the engines' busy time by its mean, of one role, the worse one */
    double busy;                    /* share of the time, of all engines */
    double gpu_s;                   /* of all engines to the last answer, busy or not */
    double gpu_s_per_good;          /* -1: none was good */
    double cost;                    /* of them; 0 = not known */
    uint64_t wasted_prefill_tokens; /* computed for requests that missed an objective */
} bt_sim_summary_t;

/* ceiling: in tokens, of one cache without end. */
int bt_sim_summarise(const bt_sim_outcome_t *out, const bt_sim_trace_t *trace,
                     const bt_sim_model_t *model, uint64_t ceiling, const bt_sim_slo_t *slo,
                     bt_sim_summary_t *summary_p); /* BT_E_NOMEM */

/* How long after a failure requests were served as well as in the minute before it: until the first ten seconds, of those that came in
 * them, with at least 95 % of the share of good ones. 0 = it has hurt nobody; -1 = not until the end, or none came before. */
double bt_sim_recovery_s(const bt_sim_outcome_t *out, unsigned count, const bt_sim_slo_t *slo,
                         double failed_s);

/* Of b less a, over the same requests: the mean difference and its 95 % interval by a bootstrap over blocks of neighbours (requests that come
 * one after the other meet the same queues, so they are drawn together). */
typedef struct bt_sim_difference {
    double mean, low, high;
} bt_sim_difference_t;
enum bt_sim_measure { BT_SIM_TTFT, BT_SIM_TPOT, BT_SIM_TOTAL, BT_SIM_GOOD, BT_SIM_CACHED };
#define BT_SIM_BOOTSTRAPS 1000
int bt_sim_compare(const bt_sim_outcome_t *a, const bt_sim_outcome_t *b,
                   const bt_sim_trace_t *trace, const bt_sim_slo_t *slo,
                   enum bt_sim_measure measure, bt_sim_difference_t *difference_p);
bool bt_sim_is_good(const bt_sim_result_t *result, const bt_sim_slo_t *slo);

#endif
