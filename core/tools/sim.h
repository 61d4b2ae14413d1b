/* sim.h - `baton sim`: policies behind a modelled fleet and a trace, before they meet traffic.
 *
 * Owner: the command.
 * Life:  the command's: options -> trace -> a process for each run, as many at once as there are processors -> what came of them.
 * Flow:  core/simulator does the runs; here are words, processes and tables.
 * Cost:  memory of a trace once, and 24 bytes a request and run.
 */
#ifndef BT_TOOLS_SIM_H
#define BT_TOOLS_SIM_H

#include "simulator/ceiling.h"
#include "simulator/stats.h"
#include "tools/plot.h"
#include "tools/print.h"
#include "tools/replay.h"

int bt_sim_tool(int argc, const char *const *argv); /* after the word; exit status */
void bt_sim_tool_help(bt_text_t *out);

#define BT_SIM_POLICIES_MAX 16
#define BT_SIM_RUNS_MAX 256

enum bt_sim_index { BT_SIM_INDEX_EXACT, BT_SIM_INDEX_APPROXIMATE };

typedef struct bt_sim_options {
    bt_replay_policy_t policies[BT_SIM_POLICIES_MAX];
    unsigned policy_count;
    bool advises, is_json, preempts;
    const char *trace, *model, *plot, *fail, *switches;
    enum bt_sim_index prefix_index;
    bt_sim_failure_t failures[BT_SIM_FAILURES_MAX]; /* of fail */
    unsigned failure_count;
    bt_sim_switch_t switch_list[BT_SIM_SWITCHES_MAX]; /* of switches */
    unsigned switch_count;
    bool follows_advice;
    bt_sim_queue_setup_t queue;
    double queue_timeout_s, queue_aging_s;
    unsigned prefills, decodes, engines, concurrency, skip, requests;
    uint64_t seed;
    double event_delay_ms, speed;
    bt_sim_slo_t slo;
} bt_sim_options_t;

int bt_sim_options(bt_sim_options_t *o, int argc, const char *const *argv);

typedef struct bt_sim_row { /* a run that was made */
    bt_sim_setup_t setup;
    const bt_sim_outcome_t *outcome;
    bt_sim_summary_t summary;
} bt_sim_row_t;

/* ---- tools/sim_print.c ---- */
void bt_sim_print(const bt_sim_options_t *o, const bt_sim_model_t *model,
                  const bt_sim_trace_t *trace, const bt_sim_ceilings_t *ceilings,
                  const bt_sim_row_t *rows, unsigned count);
/* The share of requests by TTFT and by TPOT, a line a run. 0 or an exit status. */
int bt_sim_plot(bt_plot_t *plot, const bt_sim_trace_t *trace, const bt_sim_row_t *rows,
                unsigned count);

#endif
