/* gateway_policy.h - which policy text every pool is served by, and how another one takes its place while requests run.
 *
 * Owner: the control loop. Loops hear of it by letters only.
 * Life:  open (generation 1, before the threads run) -> start (watches) -> jobs, one at a time -> stop -> free.
 * Flow:  a change (file, SIGHUP, admin) -> job: read the texts once, compile and self-test aside -> PREPARE to all loops ->
 *        all could: COMMIT the number, else ABORT -> errors soon after: the last good text comes back as a generation of its own.
 * Cost:  nothing per request; a loop stands still for one Lua state at a time.
 */
#ifndef BT_GATEWAY_POLICY_H
#define BT_GATEWAY_POLICY_H

#include "admin/policies.h"
#include "gateway.h"

#define BT_POLICY_ERROR_BYTES 640

/* One policy of one pool. Sources are references. */
typedef struct bt_pool_part {
    char *asked;                  /* what the configuration names; NULL = this part is not used */
    bt_policy_source_t *source;   /* serves */
    bt_policy_source_t *good;     /* has stood its window */
    bt_policy_source_t *rejected; /* refused or taken back: not tried again until it changes */
    bt_policy_source_t *next;     /* of the running job */
    bool roll_back;               /* the next job puts `good` back */
    bool fallen_back;             /* what is asked for is not there; something else serves */
    uint64_t born, committed_ms;  /* of source */
    char name[96], version[96], next_name[96], next_version[96];
    char error[BT_POLICY_ERROR_BYTES]; /* why what is wanted does not serve; "" = it does */
} bt_pool_part_t;

typedef struct bt_policy_pool {
    char *name;
    bt_pool_part_t parts[BT_SLOT_COUNT];
} bt_policy_pool_t;

enum bt_policy_job_kind { BT_JOB_SCAN, BT_JOB_CONFIG, BT_JOB_PUT, BT_JOB_DELETE, BT_JOB_ROLLBACK };

typedef struct bt_policy_job {
    bt_list_t link;
    enum bt_policy_job_kind kind;
    const char *why;          /* for the log */
    bt_policy_source_t *text; /* PUT */
    char name[96]; /* PUT, DELETE; of PUT's text, as it calls itself: declared, version */
    char declared[96], version[96];
    bt_policies_done_cb done; /* NULL = nobody waits */
    void *arg;
    unsigned refused; /* texts that were not taken */
} bt_policy_job_t;

/* One generation on its way through the loops. */
typedef struct bt_policy_round {
    bool is_running;
    bt_policy_bundle_t *bundle;
    unsigned waiting; /* letters under way */
    int rc;
    char err[BT_POLICY_ERROR_BYTES];
    uint64_t start_us, commit_us, stall_us, deadline_ms;
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
    bt_policy_pool_t *pools;
    unsigned pool_count;
    bt_list_t texts, jobs;
    bt_policy_job_t *job; /* running, or NULL */
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
    uint64_t last_swap_us, max_stall_us;
} bt_gateway_policy_t;

/* Generation 1 on all dispatchers, from g->config. err: one line. */
int bt_gateway_policy_open(bt_gateway_t *g, char *err, size_t err_size);
void bt_gateway_policy_start(bt_gateway_t *g);
void bt_gateway_policy_stop(
    bt_gateway_t *g); /* no more jobs; handles close in the loop's next turns */
void bt_gateway_policy_free(bt_gateway_t *g); /* after the control loop has ended */
/* g->fleet_config has changed. */
void bt_gateway_policy_configure(bt_gateway_t *g);
extern const bt_policies_ops_t bt_gateway_policy_admin; /* user: bt_gateway_policy_t */

/* ---- between the files ---- */
/* gateway_policy.c */
/* job_p NULL: nobody waits for this one, and one that waits already is enough. */
int bt_policy_job_add(bt_gateway_policy_t *gp, enum bt_policy_job_kind kind, const char *why,
                      bt_policy_job_t **job_p);
void bt_policy_job_free(bt_policy_job_t *job);
void bt_policy_jobs_run(bt_gateway_policy_t *gp); /* the next one, when none runs */
void bt_policy_round_over(bt_gateway_policy_t *gp, int rc, const char *err);
/* gateway_policy_choose.c */
static inline void bt_policy_set(bt_policy_source_t **at,
                                 bt_policy_source_t *source) /* takes source */
{
    bt_policy_source_unref(*at);
    *at = source;
}
bool bt_policy_is_named(const char *asked,
                        const char *name); /* does a PUT of `name` mean what is asked for here? */
bt_policy_text_t *bt_policy_text_find(bt_gateway_policy_t *gp, const char *name);
int bt_policy_text_keep(bt_gateway_policy_t *gp, bt_policy_source_t *source);
void bt_policy_text_drop(bt_policy_text_t *text);
int bt_policy_find(bt_gateway_policy_t *gp, const char *asked, bt_policy_source_t **source_p,
                   char *err, size_t err_size);
/* Compiles and, with test, asks it a few questions. name and version: 96 bytes each. */
int bt_policy_try(const bt_policy_source_t *source, bool test, char *name, char *version, char *err,
                  size_t err_size);
bool bt_policy_choose_all(
    bt_gateway_policy_t *gp); /* sets every part's next; true: something is new */
/* gateway_policy_loops.c: takes the bundle; ends in bt_policy_round_over, never within the call */
void bt_policy_round_init(bt_gateway_policy_t *gp);
int bt_policy_round_start(bt_gateway_policy_t *gp, bt_policy_bundle_t *bundle);
int bt_policy_round_first(bt_gateway_t *g, bt_policy_bundle_t *bundle, char *err,
                          size_t err_size); /* before the threads */
/* gateway_policy_watch.c */
void bt_policy_watch_init(bt_gateway_policy_t *gp);
void bt_policy_watch_refresh(bt_gateway_policy_t *gp); /* follows what is asked for now */
void bt_policy_watch_stop(bt_gateway_policy_t *gp);

#endif
