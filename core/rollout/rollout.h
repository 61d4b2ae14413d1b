/* rollout.h - one set of policies and rules for all replicas of a fleet, by way of a log.
 *
 * Owner: the control loop; one a process, and only where the store is shared.
 * Life:  new -> (join, before the first request) -> heartbeats -> change*, pin* -> leave -> free.
 * Flow:  a change: the set that serves + the change = a set in a cell, proposed in the log -> every
 *        member tries it aside and answers in the log -> what the log says (rollout/fold.h) is so
 *        -> each takes what is committed, whoever comes later too.
 * Cost:  one read of the log a heartbeat, one table written and read a few times a second; texts
 *        are read when they change.
 *
 * In the store (space of the fleet):
 *   policy_log           log: proposals and answers; the last LOG_MAX of them
 *   policy_set:<uuid>    cell: the texts of a set (rollout/set.h)
 *   policy_pin:<replica> cell: the set that it stays with, texts and all
 *   policy_replicas      table: replica -> what it serves; a row ends with its replica (expiry)
 */
#ifndef BT_ROLLOUT_ROLLOUT_H
#define BT_ROLLOUT_ROLLOUT_H

#include "base/text.h"
#include "rollout/fold.h"
#include "store/store.h"

#define BT_ROLLOUT_TABLE "policy_replicas"

typedef struct bt_rollout bt_rollout_t;

typedef struct bt_rollout_ops {
    /* Could this replica serve it? Ends in bt_rollout_tried, maybe before it returns. why of a
     * refusal: one line. */
    void (*try_set)(void *user, bt_rollout_set_t *set);
    /* Serve it. Ends in bt_rollout_taken, likewise. */
    void (*take_set)(void *user, bt_rollout_set_t *set);
    void (*set_pinned)(void *user, bool is_pinned);
    /* What is wrong with what serves here, "" = nothing. */
    void (*trouble)(void *user, char *out, size_t size);
} bt_rollout_ops_t;

typedef struct bt_rollout_config { /* strings are copied */
    bt_store_client_t *client;     /* of loop; outlives the rollout */
    const char *space, *replica;
    uint64_t interval_ms, expiry_ms; /* 0 = 100, 2,000 */
    uint64_t vote_ms, spread_ms;     /* 0 = 10,000 for all votes, 5,000 until all serve it */
    const bt_rollout_ops_t *ops;
    void *user;
    void (*store_do)(bt_store_client_t *client, bt_store_op_t *op); /* NULL = bt_store_do */
} bt_rollout_config_t;

int bt_rollout_new(bt_rollout_t **rollout_p, bt_loop_t *loop, const bt_rollout_config_t *config);
/* Callbacks of changes under way do not come any more. */
void bt_rollout_free(bt_rollout_t *r);
/* Before bt_rollout_free when the process ends in order: nobody waits for its vote, and it has not
 * died of a set. NULL is fine. */
void bt_rollout_leave(bt_rollout_t *r);
/* Has the store said what is committed, and is it here (bt_rollout_held), or is it known that
 * nothing is? */
bool bt_rollout_has_joined(const bt_rollout_t *r);
/* on_joined runs once, when that is so and the log says which set this replica begins with. Until
 * bt_rollout_begin nothing is tried or taken. */
void bt_rollout_join(bt_rollout_t *r, void (*on_joined)(void *user), void *user);
/* What should serve here: the committed set, or the pinned one. Number 0 = none. Borrowed. */
bt_rollout_set_t *bt_rollout_held(const bt_rollout_t *r);
/* Did a trial of it kill this replica? Then it must not be served or tried here. */
bool bt_rollout_is_blocked(const bt_rollout_t *r, const bt_rollout_set_t *set);
/* The replica has started. served: what serves already (of bt_rollout_held); NULL = nothing of the
 * fleet's does. */
void bt_rollout_begin(bt_rollout_t *r, bt_rollout_set_t *served);
void bt_rollout_tried(bt_rollout_t *r, const bt_rollout_set_t *set, int rc, const char *why);
void bt_rollout_taken(bt_rollout_t *r, bt_rollout_set_t *set, int rc, const char *why);

typedef struct bt_rollout_outcome {
    /* 200; 400 (refused by a replica, or nonsense), 404 (nothing to withdraw), 409 (somebody else
     * is at it), 502 (the store became unavailable in the middle: nobody knows yet), 503, 504 (a replica was
     * silent) */
    unsigned status;
    const char *why;             /* of what is not 200 */
    const bt_rollout_set_t *set; /* 200: this is committed */
    bool is_changed;             /* false: it was before */
    bool
        is_dry_run; /* 200: nothing is committed; all members would serve it (of the log: bt_rollout_view) */
} bt_rollout_outcome_t;

typedef struct bt_rollout_change {
    /* Makes what is wanted of a copy of what is committed. 0, or the status of a refusal, and err.
     * NULL: a set is brought back. */
    unsigned (*edit)(void *arg, bt_rollout_set_t *set, char *err, size_t err_size);
    uint64_t back;   /* 0 = the one before */
    bool is_dry_run; /* the members vote, and that is all; not for what is brought back */
    const char *by;  /* copied */
    void (*done)(void *arg, const bt_rollout_outcome_t *outcome); /* once, never within the call */
    void *arg;
} bt_rollout_change_t;

int bt_rollout_change(bt_rollout_t *r,
                      const bt_rollout_change_t *change); /* BT_E_AGAIN: one is under way here */
void bt_rollout_stop_changes(
    bt_rollout_t *r); /* the process ends soon: BT_E_CANCELLED from here on */
/* Nothing with this arg is called any more. What is proposed goes on. */
void bt_rollout_forget(bt_rollout_t *r, void *arg);
/* Stays with what serves here now, whatever the others do, until it is taken back. */
void bt_rollout_pin(bt_rollout_t *r, bool is_pinned);
bool bt_rollout_is_pinned(const bt_rollout_t *r);
uint64_t bt_rollout_number(const bt_rollout_t *r);    /* that serves here; 0 = none */
uint64_t bt_rollout_committed(const bt_rollout_t *r); /* as known last */

/* A row of the table: what a replica tells of itself. */
typedef struct bt_rollout_peer {
    char name[BT_ROLLOUT_REPLICA_MAX + 1];
    uint64_t number;
    bool is_pinned;
    char missing[BT_ROLLOUT_UUID_BYTES]; /* texts that it needs, and the store does not have */
    char trouble[BT_ROLLOUT_WHY_MAX];    /* of what serves */
} bt_rollout_peer_t;

typedef struct bt_rollout_view { /* borrowed, until the loop goes on */
    const char *space, *replica;
    const bt_rollout_set_t *serving;
    const bt_rollout_log_t *log;
    const bt_rollout_peer_t *peers;
    unsigned peer_count;
    const char *trouble, *unavailable; /* of what should serve, of the store; "" = none */
} bt_rollout_view_t;
void bt_rollout_view(const bt_rollout_t *r, bt_rollout_view_t *view_p);

#endif
