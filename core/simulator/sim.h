/* sim.h - a modelled fleet behind a real policy: requests of a trace come, the policy chooses as in the gateway, engines compute in virtual
 * time.
 *
 * Owner: one process for one run: what native functions remember (prefixes, counters) is the process's. The tool forks for each.
 * Life:  bt_sim_run.
 * Flow:  arrival -> plan over live views -> prefill's queue -> steps -> transfer over both links -> decode's batch -> end. The ledger is
 *        kept as the gateway keeps it, engines' load is sampled every second, observe hears of every end.
 * Cost:  memory O(requests in flight) beside the trace and a result of 24 bytes a request.
 */
#ifndef BT_SIMULATOR_SIM_H
#define BT_SIMULATOR_SIM_H

#include "dispatch/queue/queue_join.h"
#include "script/value/value.h"
#include "simulator/model.h"
#include "simulator/trace.h"

#define BT_SIM_ENGINES_MAX 4096u
#define BT_SIM_SIDE_MAX 2048 /* prefill, or decode */
#define BT_SIM_FAILURES_MAX 64
#define BT_SIM_SECONDS_MAX                                                                         \
    1e7 /* of what happens at a time that is told; a dead engine is looked at every second */

/* An engine whose process ends, or whose host falls silent, and is there again later, empty. */
typedef struct bt_sim_failure {
    unsigned engine;        /* prefills first, then decodes, then hybrids */
    double from_s, until_s; /* INFINITY: for good */
    bool is_silent;         /* connections stay, and are taken, and nothing comes from them */
} bt_sim_failure_t;
/* "p0@60-120,silent:decode@200": into a list with room for BT_SIM_FAILURES_MAX, by time. BT_E_INVAL with one line in err. */
int bt_sim_failures_read(const char *text, unsigned prefills, unsigned decodes, unsigned hybrids,
                         bt_sim_failure_t *list, unsigned *count_p, char *err, size_t err_size);

#define BT_SIM_SWITCHES_MAX 256
typedef struct bt_sim_switch { /* an engine that is to take the other role */
    unsigned engine;
    double at_s;
} bt_sim_switch_t;
/* "p1@60,d0@120": as bt_sim_failures_read. */
int bt_sim_switches_read(const char *text, unsigned prefills, unsigned decodes,
                         bt_sim_switch_t *list, unsigned *count_p, char *err, size_t err_size);

typedef struct bt_sim_queue_setup { /* the line before the pool */
    unsigned places;                /* --max-concurrent-requests; 0 = no limit, and no line */
    unsigned size;
    uint64_t timeout_ms, aging_ms;
} bt_sim_queue_setup_t;

typedef struct bt_sim_setup {
    const char *policy;       /* a name or a file */
    const bt_value_t *params; /* NULL = defaults */
    const bt_sim_model_t *model;
    const bt_sim_trace_t *trace;
    unsigned prefills, decodes; /* pairs; or, both 0, */
    unsigned hybrids;
    unsigned
        concurrency; /* so many requests at once, whatever the trace's times say; 0 = by its times */
    bool preempts;   /* answers are admitted without room for what they will add */
    bool is_exact;   /* prefixes are what engines tell, else what they were sent */
    double event_delay_s;             /* of what they tell */
    const bt_sim_failure_t *failures; /* by time */
    unsigned failure_count;
    const bt_sim_switch_t *switches;
    unsigned switch_count;
    bool follows_advice; /* switches roles by itself, as --role-switch-auto */
    bt_sim_queue_setup_t queue;
    double lease_s; /* for which a prefill keeps KV that nobody fetches */
    uint64_t seed;
} bt_sim_setup_t;

typedef struct bt_sim_result { /* of one request */
    float came_s;
    float ttft_ms, tpot_ms, total_ms; /* tpot: 0 for an answer of one token */
    uint32_t cached;                  /* of its prompt's tokens */
    uint8_t attempts;
    uint8_t is_served; /* else nobody was chosen, or it fits into no engine; or */
    uint8_t is_failed; /* whoever was chosen failed, or nobody was left */
} bt_sim_result_t;

typedef struct bt_sim_failure_result {
    char name[16];
    double from_s, until_s;
    double known_s, usable_s; /* the gateway knows that it is down; that it is back; -1 = never */
    unsigned lost;            /* legs that were on it, or had their KV there */
    unsigned refused;         /* legs that were sent to it before the gateway knew */
    unsigned retried, failed; /* attempts after that; requests that it has ended */
} bt_sim_failure_result_t;

typedef struct bt_sim_engine_result {
    char name[16];
    float busy_s;
    uint64_t prompt_tokens, cached_tokens, forgotten_blocks;
    uint64_t preempted, recomputed_tokens;
} bt_sim_engine_result_t;

typedef struct bt_sim_switch_result {
    char name[16];
    bool is_to_prefill;
    double asked_s, done_s; /* done: -1 = never: it was the last of its role, or not idle in time */
} bt_sim_switch_result_t;

typedef struct bt_sim_class_result { /* of those that came to the line, by what enqueue said */
    unsigned at_once, ends[BT_QUEUE_ENDS];
    double waited_s, most_s; /* of those called: in sum, and the longest */
    unsigned predicted;      /* of those called, had a prediction; */
    double error_s;          /* these were off by so much in sum */
} bt_sim_class_result_t;

typedef struct bt_sim_outcome { /* of a run; filled in place, so that it can lie in shared memory */
    int rc;
    char err[768];
    char label[96]; /* the policy's name and version */
    double virtual_s, wall_s;
    double plan_us; /* a plan, on average */
    uint64_t policy_errors;
    uint64_t unserved_waits; /* of hooks, for a host or the store, that got an error */
    unsigned engine_count;
    bt_sim_engine_result_t engines[BT_SIM_ENGINES_MAX];
    unsigned failure_count;
    bt_sim_failure_result_t failures[BT_SIM_FAILURES_MAX];
    bt_sim_class_result_t classes[BT_FAIR_CLASSES];
    unsigned switch_count;
    bt_sim_switch_result_t switches[BT_SIM_SWITCHES_MAX];
    bt_sim_result_t results[]; /* of the trace's requests, in order */
} bt_sim_outcome_t;
#define BT_SIM_OUTCOME_BYTES(count) (sizeof(bt_sim_outcome_t) + (count) * sizeof(bt_sim_result_t))

/* 0, or an error with one line in out->err. */
int bt_sim_run(const bt_sim_setup_t *setup, bt_sim_outcome_t *out);

#endif
