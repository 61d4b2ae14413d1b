/* reload_impl.h - what the files of core/reload share. Private to it.
 *
 * Owner: the control loop; the validation's thread owns what it works on until its mail has returned.
 * Life:  as reload.h.
 * Flow:  reload.c runs a job through rules.c, select.c, validate.c and commit.c, and serving.c has what comes of it; table.c is what serves and what shall.
 * Cost:  control loop only.
 */
#ifndef BT_RELOAD_RELOAD_IMPL_H
#define BT_RELOAD_RELOAD_IMPL_H

#include "generation/builder.h"
#include "reload/reload.h"

#include <pthread.h>

#define BT_POLICY_ERROR_BYTES 640

/* What a part can be served by: a text and its parameters. Control loop only, but for the thread that tries it. */
typedef struct bt_reload_selection {
    unsigned refs;
    bt_policy_source_t *source; /* reference */
    bt_value_t *params;         /* own copy; NULL = defaults */
    char name[96], version[96]; /* as it calls itself; "" until it was tried */
} bt_reload_selection_t;

/* One policy of one pool. Selections are references. */
typedef struct bt_reload_part {
    char *asked;              /* what the configuration names; NULL = this part is not used */
    bt_value_t *asked_params; /* own copy */
    char *place;              /* of them: "baton.lua: pools[1].params" */
    bool is_new_ask;          /* asks for something else than what serves was asked by */
    bt_reload_selection_t *selection;  /* serves */
    bt_reload_selection_t *good;       /* has stood its window */
    bt_reload_selection_t *rejected;   /* refused or taken back: not tried again until it changes */
    bt_reload_selection_t *next;       /* of the running job */
    bt_reload_selection_t *before;     /* served before this one: what a roll-back returns to */
    bool roll_back;                    /* the next job puts `before` back */
    bool fallen_back;                  /* what is asked for is not there; something else serves */
    uint64_t born, committed_ms;       /* of selection */
    char error[BT_POLICY_ERROR_BYTES]; /* why what is wanted does not serve; "" = it does */
    /* of the running job: what came of finding and trying */
    bool is_tried, is_test_only; /* the latter: it loads, but fails its self-test */
    int rc;
    char why[BT_POLICY_ERROR_BYTES];
} bt_reload_part_t;

typedef struct bt_reload_pool {
    char *name;
    bool is_shadow;
    bt_reload_part_t parts[BT_SLOT_COUNT];
} bt_reload_pool_t;

/* All that a generation is made of: pools, then the variants of the rules. What serves is one; a job makes another. */
typedef struct bt_reload_table {
    bt_reload_pool_t *pools;
    unsigned pool_count, first_variant;
    bt_rules_t *rules; /* reference, NULL = none */
} bt_reload_table_t;

enum bt_reload_job_kind {
    BT_JOB_SCAN,
    BT_JOB_CONFIG,
    BT_JOB_PUT,
    BT_JOB_DELETE,
    BT_JOB_ROLLBACK,
    BT_JOB_SET_TRY, /* ends before the loops hear of it */
    BT_JOB_SET
};

typedef struct bt_reload_job {
    bt_list_t link;
    enum bt_reload_job_kind kind;
    const char *why;          /* for the log */
    bt_policy_source_t *text; /* PUT */
    char name[96]; /* PUT, DELETE; of PUT's text, as it calls itself: declared, version */
    char declared[96], version[96];
    struct bt_config *config; /* CONFIG: own; NULL once it is applied */
    bt_reload_done_cb done;   /* NULL = nobody waits */
    void *arg;
    bt_policy_set_t *set; /* SET, SET_TRY: reference */
    bt_reload_over_cb over;
    void *user;
    bool is_dry_run;  /* PUT: ends before the loops hear of it, and is not kept */
    unsigned refused; /* texts that were not taken */
    bool keep_rules;  /* the new ones were refused */
} bt_reload_job_t;

/* The rules that a job asks for, read and checked (but for the pools that they name). */
typedef struct bt_reload_reading {
    const char *place;          /* borrowed: of the configuration, or the fleet's */
    const bt_policy_set_t *set; /* borrowed; NULL = it is a file */
    bt_rules_t *rules;          /* reference */
    int rc;
    char why[BT_POLICY_ERROR_BYTES];
} bt_reload_reading_t;

/* Finding out on a thread whether texts serve: rules are code that may run long, start may wait, and a self-test takes its time. */
typedef struct bt_reload_validation {
    bt_mail_t envelope;
    bt_loop_t *control;
    pthread_t thread;
    bool is_running;
    bool is_reading; /* the job's first step: only the rules */
    bt_reload_reading_t reading;
    _Atomic bool is_cancelled;
    /* PUT's text, or those of the fleet's set, that no part is tried with */
    bt_reload_selection_t **puts;
    unsigned put_count;
    int put_rc; /* of the first that fails */
    char put_why[BT_POLICY_ERROR_BYTES];
} bt_reload_validation_t;

/* One generation on its way through the loops. */
typedef struct bt_reload_commit {
    bool is_running;
    bt_policy_bundle_t *bundle;
    unsigned waiting; /* mail under way */
    int rc;
    char err[BT_POLICY_ERROR_BYTES];
    uint64_t start_us, commit_us, stall_us, work_us, deadline_ms;
    bt_timer_t retry;
} bt_reload_commit_t;

typedef struct bt_reload_put { /* put by the admin: goes before files */
    bt_list_t link;
    bt_policy_source_t *source;
} bt_reload_put_t;

struct bt_reload {
    bt_reload_config_t config;
    bool is_serving; /* between start and freeze */
    bool is_closing;
    enum bt_reload_step step;    /* of the running job */
    bt_reload_table_t now, next; /* what serves; of the running job */
    bt_list_t texts, jobs;
    bt_policy_set_t *set; /* what serves of the fleet's; NULL = nothing ever did */
    bool is_pinned;       /* to it: what was put here goes first */
    bt_reload_job_t *job; /* running, or NULL */
    bt_reload_validation_t validation;
    char rules_error[BT_POLICY_ERROR_BYTES]; /* why the file's rules do not serve; "" = they do */
    bt_reload_commit_t commit;
    uint64_t number; /* of the last generation made; the serving one once its commit is over */
    uint64_t serving;
    bt_timer_t probation;  /* runs while a text is on probation */
    uint64_t probation_ms; /* how long that is */
    unsigned error_limit;
    /* files */
    bt_list_t watches;
    bt_timer_t debounce, rewatch;
    uint64_t first_event_ms;
    bool has_warned; /* of a folder that cannot be watched */
    bt_reload_stats_t stats;
};

/* ---- between the files ---- */
/* reload/reload.c */
void bt_reload_enter(bt_reload_t *reload, enum bt_reload_step step);
/* job_p NULL: nobody waits for this one, and one that waits already is enough. */
int bt_reload_job_add(bt_reload_t *reload, enum bt_reload_job_kind kind, const char *why,
                      bt_reload_job_t **job_p);
void bt_reload_job_free(bt_reload_job_t *job);
void bt_reload_jobs_run(bt_reload_t *reload);  /* the next one, when none runs */
void bt_reload_job_begin(bt_reload_t *reload); /* reload->job */
void bt_reload_commit_over(bt_reload_t *reload, int rc, const char *err);
void bt_reload_validation_over(bt_reload_t *reload);
void bt_reload_commit_sent(bt_reload_t *reload); /* the mail is on its way */
/* reload/serving.c */
/* Of the next table, with the next generation's number. */
int bt_reload_bundle_make(bt_reload_t *reload, bt_policy_bundle_t **bundle_p);
/* The next table is what serves. why: for the log; NULL = it is not told. */
void bt_reload_take_table(bt_reload_t *reload, const char *why);
/* The same, as a generation that all loops have taken. */
void bt_reload_take_generation(bt_reload_t *reload, const char *why);
void bt_reload_probation_init(bt_reload_t *reload);
void bt_reload_probation_start(bt_reload_t *reload); /* looks on while anything is on it */
/* reload/table.c */
int bt_reload_selection_new(bt_reload_selection_t **selection_p, bt_policy_source_t *source,
                            const bt_value_t *params); /* refs source, copies params */
bt_reload_selection_t *bt_reload_selection_ref(bt_reload_selection_t *selection); /* NULL is fine */
void bt_reload_selection_set(bt_reload_selection_t **at,
                             bt_reload_selection_t *selection); /* takes selection */
bool bt_reload_selection_same(const bt_reload_selection_t *a, const bt_reload_selection_t *b);
/* What pools and variants of the same name are served by now comes along. */
int bt_reload_table_make(bt_reload_t *reload, const bt_config_t *c, bt_rules_t *rules,
                         bt_reload_table_t *table);
void bt_reload_table_fini(bt_reload_table_t *table);
bool bt_reload_table_differs(const bt_reload_table_t *a, const bt_reload_table_t *b);
/* reload/fleet.c */
bool bt_reload_job_is_set(const bt_reload_job_t *job);
bool bt_reload_job_is_try(const bt_reload_job_t *job); /* nothing comes of it but an answer */
bt_policy_set_t *bt_reload_set_of(const bt_reload_t *reload); /* the job's, or the serving one */
/* reload/describe.c */
void bt_reload_describe_set(const bt_reload_t *reload, bt_text_t *out);
/* Tells of reload->job, if anybody asks. end NULL: it begins. */
void bt_reload_note(bt_reload_t *reload, const bt_reload_note_t *end);
/* reload/rules.c */
/* Are there rules that have to be read first? Sets validation.reading. */
bool bt_reload_rules_must_read(bt_reload_t *reload, const bt_config_t *c);
/* Reads it, on the validation's thread. */
void bt_reload_rules_read(bt_reload_reading_t *reading);
void bt_reload_rules_drop(bt_reload_t *reload); /* what was read and not taken */
/* After that: the rules that should serve, a reference. BT_E_CONFIG: neither the file's nor the old ones can. */
int bt_reload_rules_find(bt_reload_t *reload, const bt_config_t *c, bt_rules_t **rules_p, char *err,
                         size_t err_size);
void bt_reload_rules_refuse(bt_reload_t *reload, const char *why);
/* What messages about them begin with; "" = there are none. */
const char *bt_reload_rules_path(const bt_reload_t *reload, const bt_config_t *c);
/* reload/select.c */
void bt_reload_puts_drop(bt_reload_t *reload);
bt_reload_put_t *bt_reload_put_find(bt_reload_t *reload, const char *name);
int bt_reload_put_keep(bt_reload_t *reload, bt_policy_source_t *source);
void bt_reload_put_drop(bt_reload_put_t *text);
/* Sets every part's next, and what has to be tried first. */
int bt_reload_select(bt_reload_t *reload);
/* After the validation. BT_E_CONFIG, BT_E_POLICY: the job is refused (err); BT_E_AGAIN: its rules are. */
int bt_reload_judge(bt_reload_t *reload, char *err, size_t err_size);
/* Where and what: for people. */
void bt_reload_explain(const bt_reload_pool_t *pool, enum bt_policy_slot slot, char *out,
                       size_t size);
/* reload/validate.c: both end in bt_reload_validation_over, never within the call */
int bt_reload_validation_read(bt_reload_t *reload); /* validation.reading */
int bt_reload_validation_start(bt_reload_t *reload);
void bt_reload_validation_block(
    bt_reload_t *reload); /* the same, here and now, and nobody is told */
void bt_reload_validation_stop(bt_reload_t *reload);
/* reload/commit.c: takes the bundle; ends in bt_reload_commit_over, never within the call */
void bt_reload_commit_init(bt_reload_t *reload);
int bt_reload_commit_start(bt_reload_t *reload, bt_policy_bundle_t *bundle);
int bt_reload_commit_first(const bt_reload_t *reload, bt_policy_bundle_t *bundle, char *err,
                           size_t err_size); /* before the threads */
/* reload/watch.c */
void bt_reload_watch_init(bt_reload_t *reload);
void bt_reload_watch_refresh(bt_reload_t *reload); /* follows what is asked for now */
void bt_reload_watch_stop(bt_reload_t *reload);

#endif
