/* reload.h - the life of policies: which code every pool is served by, and how other code takes its place while requests run.
 *
 * Owner: the control loop. The event loops hear of it by mail only.
 * Life:  new -> open (generation 1, before the threads run) -> start (watches, takes changes) -> jobs, one at a time -> freeze (the drain) -> stop -> free.
 * Flow:  a change (file, SIGHUP, admin, fleet) -> job -> READ -> SELECT -> VALIDATE -> RESERVE -> PREPARE -> COMMIT -> probation:
 *        errors soon after put the last good code back, as a generation of its own.
 * Cost:  nothing per request; VMs are built on threads, so a loop stands still for the commit only.
 */
#ifndef BT_RELOAD_RELOAD_H
#define BT_RELOAD_RELOAD_H

#include "base/text.h"
#include "config/config.h"
#include "dispatch/dispatcher.h"
#include "reload/policy_set.h"

typedef struct bt_reload bt_reload_t;

/* Where the running job is; GET /policies and the debug log name it. */
enum bt_reload_step {
    BT_RELOAD_IDLE,
    BT_RELOAD_READ,     /* the rules, on a thread */
    BT_RELOAD_SELECT,   /* which code each part should be served by */
    BT_RELOAD_VALIDATE, /* what is new, on a thread: it loads, starts and passes its self-test */
    BT_RELOAD_RESERVE,  /* every loop has room for one generation more */
    BT_RELOAD_PREPARE,  /* threads build every loop's VMs */
    BT_RELOAD_COMMIT,
    BT_RELOAD_ABORT, /* a loop could not: the generation before never stopped serving */
    BT_RELOAD_STEPS
};
const char *bt_reload_step_name(enum bt_reload_step step);

/* An event loop. Its dispatcher is NULL once it has ended. */
typedef struct bt_reload_loop {
    bt_loop_t *loop;
    bt_dispatcher_t *const *dispatcher;
} bt_reload_loop_t;

/* A job that nobody waits for: SIGHUP, a file that changed, a policy that is taken back, the fleet's set, or one whose client has left. Told
 * when it begins, and when it is over; one runs at a time. */
typedef struct bt_reload_note {
    bool is_end;
    const char *why;  /* "SIGHUP", "file", "rollback", "fleet", "admin"; static */
    const char *name; /* of the policy that was put or removed; "" = several */
    bool is_changed;  /* what serves; only at the end, as the next */
    bool is_told;     /* somebody waited, and has been answered */
    int rc;
    const char *err; /* "" = it was done */
} bt_reload_note_t;

/* All of it is borrowed. */
typedef struct bt_reload_config {
    bt_loop_t *control;
    const bt_reload_loop_t *loops;
    unsigned loop_count;
    bt_policy_errors_t *errors;  /* of all loops */
    const bt_config_t *first;    /* of the start */
    bt_config_t *const *current; /* the last one taken */
    /* Workers and settings of a configuration, once its policies serve. Takes wanted. */
    void (*apply)(void *user, bt_config_t *wanted);
    void (*note)(void *user, const bt_reload_note_t *note); /* NULL = nobody asks */
    void (*configured)(void *user); /* bt_reload_configure is over, whatever came of it */
    void *user;
    bt_policy_set_t
        *set; /* the fleet's, for the first generation: takes the reference; NULL = none */
    bool is_pinned;
} bt_reload_config_t;

int bt_reload_new(bt_reload_t **reload_p, const bt_reload_config_t *config);
/* Generation 1 on all dispatchers. err: one line. */
int bt_reload_open(bt_reload_t *reload, char *err, size_t err_size);
void bt_reload_start(bt_reload_t *reload);
void bt_reload_freeze(bt_reload_t *reload); /* no more changes are taken */
/* No more jobs; handles close in the loop's next turns. NULL is fine, twice is fine. */
void bt_reload_stop(bt_reload_t *reload);
void bt_reload_free(bt_reload_t *reload); /* after the control loop has ended; NULL is fine */

/* Takes wanted, which was read and checked but for its policies: they are validated, and then all of it is applied together, or nothing is. */
void bt_reload_configure(bt_reload_t *reload, bt_config_t *wanted);

/* ---- the operator: one gateway ---- */
/* status 200: text is the JSON answer; else a sentence. Called once, maybe before the call returns. */
typedef void (*bt_reload_done_cb)(void *arg, unsigned status, bt_str_t text);
/* is_dry_run: the text is tried as any other, and the answer says what would change; nothing does. */
void bt_reload_put(bt_reload_t *reload, bt_str_t name, bt_str_t code, bool is_dry_run,
                   bt_reload_done_cb done, void *arg);
void bt_reload_remove(bt_reload_t *reload, bt_str_t name, bt_reload_done_cb done, void *arg);
void bt_reload_cancel(bt_reload_t *reload, void *arg); /* done(arg) must not be called any more */
void bt_reload_describe(const bt_reload_t *reload, bt_text_t *out);       /* JSON */
void bt_reload_describe_rules(const bt_reload_t *reload, bt_text_t *out); /* JSON */
/* The text that this name stands for: of what serves, what was put, a file of policy_dir, or a shipped one. False: none. */
bool bt_reload_put_code(const bt_reload_t *reload, bt_str_t name, bt_text_t *out);
/* The same text as long as the same code, parameters and rules serve, and the same texts are put. */
void bt_reload_fingerprint(const bt_reload_t *reload, bt_text_t *out);

enum bt_reload_result { BT_RELOAD_OK, BT_RELOAD_REFUSED, BT_RELOAD_ABORTED, BT_RELOAD_RESULTS };
typedef struct bt_reload_stats {
    uint64_t results[BT_RELOAD_RESULTS], rollbacks, fallbacks;
    uint64_t last_commit_us, max_stall_us, max_work_us;
    bool has_rules_error; /* the rules file cannot be used as it is now */
} bt_reload_stats_t;
void bt_reload_stats(const bt_reload_t *reload, bt_reload_stats_t *stats_p);
/* By pool, then variants of the rules. False: there is no such index. */
typedef struct bt_reload_pool_stats {
    const char *name;
    uint64_t generation; /* that brought its newest code */
    unsigned errors;     /* parts that are not what is asked for */
} bt_reload_pool_stats_t;
bool bt_reload_pool_stats(const bt_reload_t *reload, unsigned index,
                          bt_reload_pool_stats_t *stats_p);

/* ---- the fleet: one set for all its gateways ---- */
/* Once, maybe before bt_reload_set returns; not when the gateway ends. */
typedef void (*bt_reload_over_cb)(void *user, bt_policy_set_t *set, bool is_try, int rc,
                                  const char *err);
/* Validates the set aside, or has it serve. BT_E_*: nothing was begun, over does not come. */
int bt_reload_set(bt_reload_t *reload, bt_policy_set_t *set, bool is_try, bt_reload_over_cb over,
                  void *user);
const bt_policy_set_t *bt_reload_set_serving(const bt_reload_t *reload); /* or NULL; borrowed */
void bt_reload_set_pinned(bt_reload_t *reload, bool is_pinned);
/* Why a policy that the set names is not what serves; "" = all is as it should be. */
void bt_reload_trouble(const bt_reload_t *reload, char *out, size_t size);

#endif
