/* policy.h - which policy text every pool is served by, and how another one takes its place while requests run.
 *
 * Owner: the control loop. Loops hear of it by mail only.
 * Life:  open (generation 1, before the threads run) -> start (watches) -> jobs, one at a time -> stop -> free.
 * Flow:  a change (file, SIGHUP, admin) -> job: read the rules on a thread, then texts -> try them on a thread -> BEGIN, PREPARE to all loops ->
 *        all could: COMMIT the number, else ABORT -> errors soon after: the last good text comes back as a generation of its own.
 * Cost:  nothing per request; VMs are made on threads, so a loop stands still for the swap only.
 */
#ifndef BT_GATEWAY_POLICY_H
#define BT_GATEWAY_POLICY_H

#include "admin/policies.h"
#include "dispatch/policy_build.h"
#include "gateway/gateway.h"

#include <pthread.h>

#define BT_POLICY_ERROR_BYTES 640

/* What a part can be served by: a text and its parameters. Control loop only, but for the thread that tries it. */
typedef struct bt_policy_pick {
    unsigned refs;
    bt_policy_source_t *source; /* reference */
    bt_value_t *params;         /* own copy; NULL = defaults */
    char name[96], version[96]; /* as it calls itself; "" until it was tried */
} bt_policy_pick_t;

/* One policy of one pool. Picks are references. */
typedef struct bt_pool_part {
    char *asked;                 /* what the configuration names; NULL = this part is not used */
    bt_value_t *asked_params;    /* own copy */
    char *place;                 /* of them: "baton.lua: pools[1].params" */
    bool is_new_ask;             /* asks for something else than what serves was asked by */
    bt_policy_pick_t *pick;      /* serves */
    bt_policy_pick_t *good;      /* has stood its window */
    bt_policy_pick_t *rejected;  /* refused or taken back: not tried again until it changes */
    bt_policy_pick_t *next;      /* of the running job */
    bool roll_back;              /* the next job puts `good` back */
    bool fallen_back;            /* what is asked for is not there; something else serves */
    uint64_t born, committed_ms; /* of pick */
    char error[BT_POLICY_ERROR_BYTES]; /* why what is wanted does not serve; "" = it does */
    /* of the running job: what came of finding and trying */
    bool is_tried, is_test_only; /* the latter: it loads, but fails its self-test */
    int rc;
    char why[BT_POLICY_ERROR_BYTES];
} bt_pool_part_t;

typedef struct bt_policy_pool {
    char *name;
    bool is_shadow;
    bt_pool_part_t parts[BT_SLOT_COUNT];
} bt_policy_pool_t;

/* All that a generation is made of: pools, then the variants of the rules. What serves is one; a job makes another. */
typedef struct bt_policy_stage {
    bt_policy_pool_t *pools;
    unsigned pool_count, first_variant;
    bt_rules_t *rules; /* reference, NULL = none */
} bt_policy_stage_t;

enum bt_policy_job_kind {
    BT_JOB_SCAN,
    BT_JOB_CONFIG,
    BT_JOB_PUT,
    BT_JOB_DELETE,
    BT_JOB_ROLLBACK,
    BT_JOB_SET_TRY, /* ends before the loops hear of it */
    BT_JOB_SET
};

/* What all replicas of the fleet serve: one committed set. Immutable once it is in a job. Control loop only. */
typedef struct bt_policy_set {
    unsigned refs;
    uint64_t number; /* 0 = none */
    bt_policy_source_t **sources;
    unsigned count;
    char *rules; /* own text, NULL = none */
    size_t rules_size;
    bt_rules_t *parsed; /* from it; NULL = not parsed yet */
} bt_policy_set_t;
#define BT_POLICY_FLEET_RULES "fleet/rules.lua"

/* Once, maybe before bt_gateway_policy_set returns; not when the gateway ends. */
typedef void (*bt_policy_over_cb)(void *user, bt_policy_set_t *set, bool is_try, int rc,
                                  const char *err);

typedef struct bt_policy_job {
    bt_list_t link;
    enum bt_policy_job_kind kind;
    const char *why;          /* for the log */
    bt_policy_source_t *text; /* PUT */
    char name[96]; /* PUT, DELETE; of PUT's text, as it calls itself: declared, version */
    char declared[96], version[96];
    struct bt_config *config; /* CONFIG: own; NULL once it is applied */
    bt_policies_done_cb done; /* NULL = nobody waits */
    void *arg;
    bt_policy_set_t *set; /* FLEET, FLEET_TRY: reference */
    bt_policy_over_cb over;
    void *user;
    unsigned refused; /* texts that were not taken */
    bool keep_rules;  /* the new ones were refused */
} bt_policy_job_t;

/* The rules that a job asks for, read and checked (but for the pools that they name). */
typedef struct bt_policy_reading {
    const char *place;          /* borrowed: of the configuration, or the fleet's */
    const bt_policy_set_t *set; /* borrowed; NULL = it is a file */
    bt_rules_t *rules;          /* reference */
    int rc;
    char why[BT_POLICY_ERROR_BYTES];
} bt_policy_reading_t;

/* Finding out on a thread whether texts serve: rules are code that may run long, start may wait, and a self-test takes its time. */
typedef struct bt_policy_trial {
    bt_mail_t envelope;
    bt_loop_t *control;
    pthread_t thread;
    bool is_running;
    bool is_reading; /* the job's first step: only the rules */
    bt_policy_reading_t reading;
    _Atomic bool is_cancelled;
    bool is_forgiving; /* the start: a failed self-test is no more than a warning */
    /* PUT's text, or those of the fleet's set, that no part is tried with */
    bt_policy_pick_t **puts;
    unsigned put_count;
    int put_rc; /* of the first that fails */
    char put_why[BT_POLICY_ERROR_BYTES];
} bt_policy_trial_t;

/* One generation on its way through the loops. */
typedef struct bt_policy_round {
    bool is_running;
    bt_policy_bundle_t *bundle;
    unsigned waiting; /* mail under way */
    int rc;
    char err[BT_POLICY_ERROR_BYTES];
    uint64_t start_us, commit_us, stall_us, work_us, deadline_ms;
    bt_timer_t retry;
} bt_policy_round_t;

typedef struct bt_policy_text { /* put by the admin: goes before files */
    bt_list_t link;
    bt_policy_source_t *source;
} bt_policy_text_t;

enum bt_reload_result { BT_RELOAD_OK, BT_RELOAD_REFUSED, BT_RELOAD_ABORTED, BT_RELOAD_RESULTS };

typedef struct bt_gateway_policy {
    bt_gateway_t *g;
    bool is_closing;
    bt_policy_stage_t now, next; /* what serves; of the running job */
    bt_list_t texts, jobs;
    bt_policy_set_t *set; /* what serves of the fleet's; NULL = nothing ever did */
    bool is_pinned;       /* to it: what was put here goes first */
    bt_policy_job_t *job; /* running, or NULL */
    bt_policy_trial_t trial;
    char rules_error[BT_POLICY_ERROR_BYTES]; /* why the file's rules do not serve; "" = they do */
    bt_policy_round_t round;
    uint64_t number; /* of the last generation made; the serving one once its round is over */
    uint64_t serving;
    bt_timer_t prove;  /* runs while a text is young */
    uint64_t prove_ms; /* how long that is */
    unsigned error_limit;
    /* files */
    bt_list_t watches;
    bt_timer_t debounce, rewatch;
    uint64_t first_event_ms;
    bool has_warned; /* of a folder that cannot be watched */
    /* metrics */
    uint64_t results[BT_RELOAD_RESULTS], rollbacks, fallbacks;
    uint64_t last_swap_us, max_stall_us, max_work_us;
} bt_gateway_policy_t;

/* Generation 1 on all dispatchers, from g->config. err: one line. */
int bt_gateway_policy_open(bt_gateway_t *g, char *err, size_t err_size);
void bt_gateway_policy_start(bt_gateway_t *g);
void bt_gateway_policy_stop(
    bt_gateway_t *g); /* no more jobs; handles close in the loop's next turns */
void bt_gateway_policy_free(bt_gateway_t *g); /* after the control loop has ended */
/* Takes wanted, which was read and checked but for its policies: they are tried, and then all of it is applied together
 * (bt_gateway_apply_config), or nothing is. */
void bt_gateway_policy_configure(bt_gateway_t *g, bt_config_t *wanted);
extern const bt_policies_ops_t bt_gateway_policy_admin; /* user: bt_gateway_policy_t */
/* Tries the set aside, or has it serve. BT_E_*: nothing was begun, over does not come. */
int bt_gateway_policy_set(bt_gateway_policy_t *gp, bt_policy_set_t *set, bool is_try,
                          bt_policy_over_cb over, void *user);
/* Why a policy that the set names is not what serves; "" = all is as it should be. */
void bt_gateway_policy_trouble(const bt_gateway_policy_t *gp, char *out, size_t size);
int bt_policy_set_new(bt_policy_set_t **set_p, uint64_t number);
int bt_policy_set_add(bt_policy_set_t *set, const char *name, bt_str_t text);
bt_policy_set_t *bt_policy_set_ref(bt_policy_set_t *set); /* NULL is fine */
void bt_policy_set_unref(bt_policy_set_t *set);           /* likewise */

/* ---- between the files ---- */
/* gateway/policy.c */
/* job_p NULL: nobody waits for this one, and one that waits already is enough. */
int bt_policy_job_add(bt_gateway_policy_t *gp, enum bt_policy_job_kind kind, const char *why,
                      bt_policy_job_t **job_p);
void bt_policy_job_free(bt_policy_job_t *job);
void bt_policy_jobs_run(bt_gateway_policy_t *gp);  /* the next one, when none runs */
void bt_policy_job_begin(bt_gateway_policy_t *gp); /* gp->job */
void bt_policy_round_over(bt_gateway_policy_t *gp, int rc, const char *err);
void bt_policy_trial_over(bt_gateway_policy_t *gp);
void bt_policy_round_commits(bt_gateway_policy_t *gp); /* the mail is on its way */
/* gateway/policy_stage.c */
int bt_policy_pick_new(bt_policy_pick_t **pick_p, bt_policy_source_t *source,
                       const bt_value_t *params);             /* refs source, copies params */
bt_policy_pick_t *bt_policy_pick_ref(bt_policy_pick_t *pick); /* NULL is fine */
void bt_policy_pick_set(bt_policy_pick_t **at, bt_policy_pick_t *pick); /* takes pick */
bool bt_policy_pick_same(const bt_policy_pick_t *a, const bt_policy_pick_t *b);
/* What pools and variants of the same name are served by now comes along. */
int bt_policy_stage_make(bt_gateway_policy_t *gp, const bt_config_t *c, bt_rules_t *rules,
                         bt_policy_stage_t *stage);
void bt_policy_stage_fini(bt_policy_stage_t *stage);
bool bt_policy_stage_differs(const bt_policy_stage_t *a, const bt_policy_stage_t *b);
/* gateway/policy_fleet.c; fleet may be NULL */
bool bt_policy_job_is_set(const bt_policy_job_t *job);
bt_policy_set_t *bt_policy_set_of(const bt_gateway_policy_t *gp); /* the job's, or ours */
bt_policy_source_t *bt_policy_set_find(const bt_policy_set_t *set, const char *asked);
bool bt_policy_set_has(const bt_policy_set_t *set, const bt_policy_source_t *source);
bool bt_policy_set_same(const bt_policy_set_t *set,
                        const bt_policy_source_t *source); /* place and bytes */
void bt_policy_set_describe(const bt_gateway_policy_t *gp, bt_text_t *out);
void bt_policy_part_reason(const bt_gateway_policy_t *gp, const bt_pool_part_t *part, char *out,
                           size_t size);
/* gateway/policy_rules.c */
/* Are there rules that have to be read first? Sets trial.reading. */
bool bt_policy_rules_must_read(bt_gateway_policy_t *gp, const bt_config_t *c);
/* Reads it, on the trial's thread. */
void bt_policy_rules_read(bt_policy_reading_t *reading);
void bt_policy_rules_drop(bt_gateway_policy_t *gp); /* what was read and not taken */
/* After that: the rules that should serve, a reference. BT_E_CONFIG: neither the file's nor the old ones can. */
int bt_policy_rules_find(bt_gateway_policy_t *gp, const bt_config_t *c, bt_rules_t **rules_p,
                         char *err, size_t err_size);
void bt_policy_rules_refuse(bt_gateway_policy_t *gp, const char *why);
/* What messages about them begin with; "" = there are none. */
const char *bt_policy_rules_place(const bt_gateway_policy_t *gp, const bt_config_t *c);
/* gateway/policy_choose.c */
void bt_policy_puts_drop(bt_gateway_policy_t *gp);
bool bt_policy_is_named(const char *asked,
                        const char *name); /* does a PUT of `name` mean what is asked for here? */
bt_policy_text_t *bt_policy_text_find(bt_gateway_policy_t *gp, const char *name);
int bt_policy_text_keep(bt_gateway_policy_t *gp, bt_policy_source_t *source);
void bt_policy_text_drop(bt_policy_text_t *text);
/* Sets every part's next, and what has to be tried first. */
int bt_policy_choose(bt_gateway_policy_t *gp);
/* After the trial. BT_E_CONFIG, BT_E_POLICY: the job is refused (err); BT_E_AGAIN: its rules are. */
int bt_policy_judge(bt_gateway_policy_t *gp, char *err, size_t err_size);
/* Where and what: for people. */
void bt_policy_explain(const bt_policy_pool_t *pool, enum bt_policy_slot slot, char *out,
                       size_t size);
/* gateway/policy_try.c: both end in bt_policy_trial_over, never within the call */
int bt_policy_trial_read(bt_gateway_policy_t *gp); /* trial.reading */
int bt_policy_trial_start(bt_gateway_policy_t *gp);
void bt_policy_trial_block(
    bt_gateway_policy_t *gp); /* the same, here and now, and nobody is told */
void bt_policy_trial_stop(bt_gateway_policy_t *gp);
/* gateway/policy_loops.c: takes the bundle; ends in bt_policy_round_over, never within the call */
void bt_policy_round_init(bt_gateway_policy_t *gp);
int bt_policy_round_start(bt_gateway_policy_t *gp, bt_policy_bundle_t *bundle);
int bt_policy_round_first(bt_gateway_t *g, bt_policy_bundle_t *bundle, char *err,
                          size_t err_size); /* before the threads */
/* gateway/policy_watch.c */
void bt_policy_watch_init(bt_gateway_policy_t *gp);
void bt_policy_watch_refresh(bt_gateway_policy_t *gp); /* follows what is asked for now */
void bt_policy_watch_stop(bt_gateway_policy_t *gp);

#endif
