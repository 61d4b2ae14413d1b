/* rollout_impl.h - what the files of a rollout share. Private to core/rollout.
 *
 * Owner: the control loop.
 * Life:  as the rollout; every part has one operation under way at most.
 * Flow:  rollout/rollout.c reads the log and follows it; duty.c adds what this replica owes it;
 *        push.c proposes; cells.c keeps texts and the pin.
 * Cost:  see rollout/rollout.h.
 */
#ifndef BT_ROLLOUT_ROLLOUT_IMPL_H
#define BT_ROLLOUT_ROLLOUT_IMPL_H

#include "rollout/rollout.h"

#define BT_ROLLOUT_LOG_MAX 4096 /* entries; a proposal makes about three a member */
#define BT_ROLLOUT_MARKS_MAX 8

typedef struct bt_rollout_call {
    bt_store_op_t op;
    bt_rollout_t *r;
    void (*done)(bt_rollout_t *r, const bt_store_reply_t *reply);
    bool is_out;
    char key[BT_ROLLOUT_REPLICA_MAX + 16];
} bt_rollout_call_t;

/* The last word of this replica about a set; trying, of another process: that one died of it. */
typedef struct bt_rollout_mark {
    uint64_t number;
    char uuid[BT_ROLLOUT_UUID_BYTES], process[BT_ROLLOUT_PROCESS_BYTES];
    enum bt_rollout_kind kind;
    bool is_killed;
} bt_rollout_mark_t;

/* The open proposal, seen from here. */
typedef struct bt_rollout_trial {
    char uuid[BT_ROLLOUT_UUID_BYTES]; /* "" = none */
    bt_rollout_set_t *set;            /* NULL: not read yet */
    uint64_t since_ms, gone_ms;       /* open; one of its members is missed (0 = none is) */
    bool is_running;
    enum bt_rollout_kind answer; /* NONE, YES, NO */
    char why[BT_ROLLOUT_WHY_MAX];
} bt_rollout_trial_t;

struct bt_rollout_push;

struct bt_rollout {
    bt_loop_t *loop;
    bt_rollout_config_t config; /* its strings are the following */
    char space[64], replica[BT_ROLLOUT_REPLICA_MAX + 1], process[BT_ROLLOUT_PROCESS_BYTES];
    bool is_running, is_ending; /* begun; takes no changes any more */
    void (*on_joined)(void *user);
    void *joined_user;
    bt_timer_t heartbeat;
    bool is_unavailable; /* the last answer was an error */
    char unavailable[BT_ROLLOUT_WHY_MAX];
    /* the log, as read up to `at`, and what this replica has said in it */
    bt_rollout_log_t log;
    char at[48];
    uint64_t reads, fresh; /* times read to the end; that reading shows what was added last */
    uint64_t lost_ms;      /* the store had forgotten it; 0 = never */
    bt_rollout_mark_t marks[BT_ROLLOUT_MARKS_MAX];
    unsigned next_mark;
    bt_rollout_trial_t trial;
    unsigned trials; /* under way, of proposals that have ended too */
    /* the table */
    bt_rollout_peer_t *peers;
    unsigned peer_count;
    uint64_t peers_read, peers_ms, reported_ms; /* times; when */
    bool must_report;
    /* what serves */
    bt_rollout_set_t *held;    /* newest committed one that is here; never NULL */
    bt_rollout_set_t *before;  /* the committed one before it, or NULL */
    bt_rollout_set_t *serving; /* never NULL */
    bt_rollout_set_t *taking;  /* under way, or NULL */
    uint64_t take_again_ms, take_wait_ms;
    char trouble[BT_ROLLOUT_WHY_MAX];    /* why held does not serve */
    char kept[BT_ROLLOUT_UUID_BYTES];    /* whose texts are in the store for good */
    char missing[BT_ROLLOUT_UUID_BYTES]; /* whose texts the store does not have */
    uint64_t kept_ms, missing_ms;
    bt_rollout_set_t *pinned; /* NULL = not pinned */
    bool is_pin_known, must_store_pin;
    bt_rollout_call_t log_call, add_call, table_call, set_call, keep_call, pin_call;
    struct bt_rollout_push *push; /* NULL: nobody has asked here */
};

/* ---- rollout/rollout.c ---- */
void bt_rollout_call(bt_rollout_t *r, bt_rollout_call_t *call, bt_store_op_t op,
                     void (*done)(bt_rollout_t *r, const bt_store_reply_t *reply));
void bt_rollout_read_log(bt_rollout_t *r);
/* How many readings it takes to see what the store does from now on. */
uint64_t bt_rollout_reads_from_now(const bt_rollout_t *r);
bool bt_rollout_is_current(const bt_rollout_t *r); /* what the log says is committed is here */

void bt_rollout_serve(bt_rollout_t *r);    /* what should serve, if it does not */
void bt_rollout_end_join(bt_rollout_t *r); /* if it has joined */
void bt_rollout_set_to(bt_rollout_set_t **at, bt_rollout_set_t *set); /* takes a reference */

/* ---- rollout/cells.c ---- */
/* "<what>:<whose>", in the call's own bytes; and back. */
bt_str_t bt_rollout_key(bt_rollout_call_t *call, const char *what, const char *whose);
const char *bt_rollout_whose(const bt_rollout_call_t *call);
void bt_rollout_keep(bt_rollout_t *r);
void bt_rollout_sync_pin(bt_rollout_t *r);

/* ---- rollout/duty.c ---- */
void bt_rollout_mark(bt_rollout_t *r, const bt_rollout_entry_t *e); /* it is in the log */
bool bt_rollout_is_fatal(const bt_rollout_t *r, const char *uuid);  /* it has killed this replica */
bool bt_rollout_is_trying(const bt_rollout_t *r, const char *uuid); /* so says the log */
void bt_rollout_add(bt_rollout_t *r, bt_rollout_call_t *call, const bt_rollout_entry_t *e,
                    void (*done)(bt_rollout_t *r, const bt_store_reply_t *reply));
/* False: not now; once the log has been read again. */
bool bt_rollout_send_about(bt_rollout_t *r, enum bt_rollout_kind kind,
                           const bt_rollout_info_t *about, const char *who, const char *why);
void bt_rollout_log_fatal(const bt_rollout_t *r); /* for the operator, at the start */
void bt_rollout_send_due(bt_rollout_t *r);

/* ---- rollout/push.c ---- */
void bt_rollout_push_go_on(bt_rollout_t *r); /* the log or the table has been read */
void bt_rollout_push_free(bt_rollout_t *r);

#endif
