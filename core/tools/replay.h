/* replay.h - `baton replay`: decisions of the past, taken again by another policy.
 *
 * Owner: the command; the parts are used by tools/replay.c alone.
 * Life:  one fleet and one tally a command; what a record borrows (the line, the fleet's scratch) lives until the next one is read.
 * Flow:  a line of a record file (record/record.h) -> request and candidates as they were -> plan -> tally.
 * Cost:  a few microseconds a record; memory only grows with workers that were never seen before.
 */
#ifndef BT_TOOLS_REPLAY_H
#define BT_TOOLS_REPLAY_H

#include "base/text.h"
#include "generation/generation.h"
#include "script/policy/policy.h"
#include "tools/plot.h"

#define BT_REPLAY_LINE_MAX ((size_t) 1 << 20)
#define BT_REPLAY_HEADERS_MAX 32

int bt_replay(int argc, const char *const *argv); /* after the word; exit status */
void bt_replay_help(bt_text_t *out);

#define BT_REPLAY_FILES_MAX 64

/* ---- the command line (tools/replay_options.c) ---- */

typedef struct bt_replay_policy { /* as a pool of the gateway has them */
    const char *name;             /* NULL = not said */
    const char *const *params;    /* "k=v", in argv */
    unsigned param_count;
} bt_replay_policy_t;

typedef struct bt_replay_options {
    bt_replay_policy_t policies[BT_SLOT_COUNT]; /* [BOTH] is always named */
    const char *dialect_dir, *against;          /* against NULL = what was recorded */
    const char *plot;                           /* a file; NULL = none */
    unsigned show;
    const char *files[BT_REPLAY_FILES_MAX];
    unsigned file_count;
    uint64_t seed;
    bool json, fail_on_difference;
} bt_replay_options_t;

int bt_replay_options(bt_replay_options_t *o, int argc,
                      const char *const *argv); /* 0, or the exit status */
int bt_replay_params(const bt_replay_policy_t *policy,
                     bt_value_t **params_p); /* a table, to be freed */

/* ---- records (tools/replay_record.c) ---- */

typedef struct bt_replay_workers bt_replay_workers_t;

enum bt_replay_decider { BT_REPLAY_POLICY, BT_REPLAY_DEFAULT, BT_REPLAY_NOBODY };

typedef struct bt_replay_pair {
    bt_str_t prefill, decode; /* by name; a single worker is decode; decode empty = none */
    bool lacks_prefill;       /* a trigger's that was left open */
} bt_replay_pair_t;

typedef struct bt_replay_record {
    bt_str_t id;
    bt_replay_pair_t choice, rests; /* rests: a pair that the policy or the default passed over */
    enum bt_replay_decider decider;
    uint64_t seed;       /* of the decision; 0 = not recorded */
    uint64_t clock_us;   /* of the decision, else of the reading; all ages are by it */
    bt_str_t candidates; /* JSON, or empty */
    bool has_candidates;
    bt_str_t reads; /* what the decision read of the process's memory: a JSON list, or empty */
    bool reads_cut; /* and there was more */
    bool is_cut;    /* there were more candidates than the record lists */
    bt_policy_request_t req;
    bt_policy_view_t view;
    bt_head_t head;
    bt_header_t headers[BT_REPLAY_HEADERS_MAX];
} bt_replay_record_t;

/* Why a record cannot be read, as one line in err. BT_E_INVAL. */
int bt_replay_bad(char *err, size_t err_size, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* One line without its end. Loads of the workers it names are set as it says. BT_E_INVAL with the reason in err: it is no record. */
int bt_replay_read(bt_replay_workers_t *workers, bt_str_t line, bt_replay_record_t *record_p,
                   char *err, size_t err_size);

/* ---- every worker that some record has named (tools/replay_fleet.c) ---- */

enum bt_replay_fact {
    BT_REPLAY_FACT_NAME,
    BT_REPLAY_FACT_URL,
    BT_REPLAY_FACT_ROLE,
    BT_REPLAY_FACT_ZONE,
    BT_REPLAY_FACT_LABELS,
    BT_REPLAY_FACT_ENGINE,
    BT_REPLAY_FACT_CONNECTOR,
    BT_REPLAY_FACT_VERSION,
    BT_REPLAY_FACT_DIALECT,
    BT_REPLAY_FACT_DP_SIZE, /* numbers from here on */
    BT_REPLAY_FACT_TP_SIZE,
    BT_REPLAY_FACT_PP_SIZE,
    BT_REPLAY_FACT_COUNT
};
enum bt_replay_number {
    BT_REPLAY_PREFILL_TOKENS,
    BT_REPLAY_DECODE_TOKENS,
    BT_REPLAY_REQUESTS,
    BT_REPLAY_TRANSFER_BYTES,
    BT_REPLAY_RUNNING,
    BT_REPLAY_WAITING,
    BT_REPLAY_KV_FREE,
    BT_REPLAY_TTFT,
    BT_REPLAY_TPOT,
    BT_REPLAY_AGE,
    BT_REPLAY_PREFIX_CACHED,
    BT_REPLAY_SCORE,
    BT_REPLAY_NUMBER_COUNT
};

/* One candidate, as it stands in the line. */
typedef struct bt_replay_row {
    uint64_t id;
    bt_str_t facts[BT_REPLAY_FACT_COUNT]; /* raw JSON; empty = absent */
    double numbers[BT_REPLAY_NUMBER_COUNT];
    unsigned has; /* bits by number */
} bt_replay_row_t;

bt_replay_workers_t *bt_replay_workers_new(void); /* NULL: out of memory */
void bt_replay_workers_free(bt_replay_workers_t *workers);
/* The next record: its lists are empty, the texts of the last one are gone. */
void bt_replay_workers_begin(bt_replay_workers_t *workers);
/* A raw JSON string's bytes, without escapes. */
bt_str_t bt_replay_text(bt_replay_workers_t *workers, bt_str_t value);
/* list: 0 prefill, 1 decode, 2 single. BT_E_INVAL: no such worker can be. */
int bt_replay_workers_add(bt_replay_workers_t *workers, int list, const bt_replay_row_t *row,
                          uint64_t now_ms, char *err, size_t err_size);
unsigned bt_replay_workers_count(const bt_replay_workers_t *workers, int list);
/* view->pool is set already. */
void bt_replay_workers_view(const bt_replay_workers_t *workers, bt_policy_view_t *view);
/* The score that this candidate had in the record. */
bool bt_replay_score(const bt_replay_workers_t *workers, bt_str_t name, double *score_p);
/* Tokens that were on this candidate then, of prompts (decode: of prompts and answers). */
double bt_replay_load(const bt_replay_workers_t *workers, bt_str_t name, enum bt_phase phase);

/* ---- what came of it (tools/replay_report.c) ---- */

enum bt_replay_outcome {
    BT_REPLAY_SAME,
    BT_REPLAY_DIFFERENT,
    BT_REPLAY_FAILED,   /* the policy, or the one that it is compared with */
    BT_REPLAY_BY_OTHER, /* the default choice had decided, or nobody: nothing to compare with */
    BT_REPLAY_SKIPPED,  /* no candidates in the record */
    BT_REPLAY_MALFORMED,
    BT_REPLAY_OUTCOMES
};

typedef struct bt_replay_tally bt_replay_tally_t;

/* One side of a comparison: names of the chosen, what was scored. */
typedef struct bt_replay_side {
    bt_str_t prefill,
        decode;         /* one of a pair empty: left open; both: no choice; borrowed for the call */
    bool lacks_prefill; /* a trigger's that was left open */
    bool has_prefill_score, has_decode_score;
    double prefill_score, decode_score;
    const char *error; /* NULL = none */
} bt_replay_side_t;

typedef struct bt_replay_report {
    const char *old_name, *new_name; /* "recorded", "mine@1" */
    bool is_against;                 /* old is a policy too */
    const char *learner; /* one of the two has observe or tick: its name; NULL = none has */
    bool json;
    unsigned show; /* differences to print */
} bt_replay_report_t;

bt_replay_tally_t *bt_replay_tally_new(
    const bt_replay_report_t *report); /* borrows; NULL: out of memory */
void bt_replay_tally_free(bt_replay_tally_t *tally);
/* Prints the first differences, failures and bad lines as they come. */
enum bt_replay_outcome bt_replay_compare(bt_replay_tally_t *tally, const bt_replay_record_t *record,
                                         const bt_replay_side_t *old, const bt_replay_side_t *new);
void bt_replay_skip(bt_replay_tally_t *tally);
void bt_replay_malformed(bt_replay_tally_t *tally, const char *file, uint64_t line,
                         const char *why);
void bt_replay_time(bt_replay_tally_t *tally, uint64_t plan_ns);
uint64_t bt_replay_count(const bt_replay_tally_t *tally, enum bt_replay_outcome outcome);
uint64_t bt_replay_total(const bt_replay_tally_t *tally); /* lines */
void bt_replay_print(bt_replay_tally_t *tally, double seconds);

/* ---- a plot of it (tools/replay_plot.c) ---- */

#define BT_REPLAY_SPANS 64

/* So many compared records in a row. */
typedef struct bt_replay_span {
    uint64_t same;
    double prefill_tokens[2], decode_tokens[2]; /* sums, old and new */
} bt_replay_span_t;

typedef struct bt_replay_plot {
    bt_replay_span_t spans[BT_REPLAY_SPANS];
    uint64_t width, count; /* records of a span; of all */
} bt_replay_plot_t;

void bt_replay_plot_add(bt_replay_plot_t *plot, const bt_replay_workers_t *workers,
                        enum bt_replay_outcome outcome, const bt_replay_side_t *old,
                        const bt_replay_side_t *new);
/* 0, or an exit status. */
int bt_replay_plot_save(const bt_replay_plot_t *plot, const bt_replay_report_t *report,
                        bt_plot_t *out);

#endif
