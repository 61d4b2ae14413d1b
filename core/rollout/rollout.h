/* rollout.h - one set of policies and rules for all replicas of a fleet, by way of the shared store.
 *
 * Owner: the control loop; one a process, and only where the store is shared.
 * Life:  new -> (join, before the first request) -> heartbeats -> change*, pin* -> close.
 * Flow:  a change: lease -> the set that serves + the change = a proposal -> every replica tries it aside and votes -> all have:
 *        commit, else abort -> each takes what is committed. A replica that comes later, or comes back, takes it all the same.
 * Cost:  one small table read a heartbeat, one table written and read a few times a second; texts are read when they change.
 *
 * In the store (space of the fleet):
 *   policy           table: number -> who, when, state; the highest number that is committed is what serves
 *   policy_set:<n>   cell: the texts (rollout/set.h)
 *   policy_done:<n>  cell, written once: "commit", or "abort <why>". What it says is so, whatever the table says
 *   policy_votes     table: replica -> what it serves, its vote; a row runs out with its replica (expiry)
 *   policy_pins      table: replica -> the number it stays with
 *   policy_trying    table: replica -> numbers whose trial it has started and not finished. A process that finds numbers of its own
 *                    name does not try them again: it votes no, or starts without the committed set, until a later one is committed
 *   rollout          lease: who proposes now
 */
#ifndef BT_ROLLOUT_ROLLOUT_H
#define BT_ROLLOUT_ROLLOUT_H

#include "base/text.h"
#include "rollout/set.h"
#include "store/store.h"

#define BT_ROLLOUT_WHY_MAX 640
#define BT_ROLLOUT_KEPT 8 /* numbers that the store remembers */
#define BT_ROLLOUT_ROWS_MAX 32
#define BT_ROLLOUT_VOTE_MS UINT64_C(10000) /* for all votes */
#define BT_ROLLOUT_SPREAD_MS                                                                       \
    UINT64_C(5000) /* for all to serve what is committed, until the answer */
#define BT_ROLLOUT_LEASE_MS UINT64_C(3000)

typedef struct bt_rollout bt_rollout_t;

typedef struct bt_rollout_ops {
    /* Could this replica serve it? Ends in bt_rollout_tried, maybe before it returns. why of a refusal: one line. */
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
    uint64_t vote_ms, spread_ms;     /* 0 = as above */
    const bt_rollout_ops_t *ops;
    void *user;
} bt_rollout_config_t;

int bt_rollout_new(bt_rollout_t **rollout_p, bt_loop_t *loop, const bt_rollout_config_t *config);
/* Callbacks of changes under way do not come any more. */
void bt_rollout_free(bt_rollout_t *r);
/* Before bt_rollout_free when the process ends in order: removes its notes (policy_trying). NULL is fine. */
void bt_rollout_leave(bt_rollout_t *r);
/* Has the store said what is committed, and is it here (bt_rollout_held), or is it known that nothing is? */
bool bt_rollout_has_joined(const bt_rollout_t *r);
/* on_joined runs once, when that is so and the note for the set to start with is stored. Until bt_rollout_begin nothing is tried or
 * taken. */
void bt_rollout_join(bt_rollout_t *r, void (*on_joined)(void *user), void *user);
/* What should serve here: the committed set, or the one it is pinned to. Number 0 = none. Borrowed. */
bt_rollout_set_t *bt_rollout_held(const bt_rollout_t *r);
/* Did a trial of it kill this replica? Then it must not be served or tried here. */
bool bt_rollout_is_blocked(const bt_rollout_t *r, uint64_t number);
/* The replica has started. served: what serves already (of bt_rollout_held); NULL = nothing of the fleet's does. */
void bt_rollout_begin(bt_rollout_t *r, bt_rollout_set_t *served);
void bt_rollout_tried(bt_rollout_t *r, const bt_rollout_set_t *set, int rc, const char *why);
void bt_rollout_taken(bt_rollout_t *r, bt_rollout_set_t *set, int rc, const char *why);

enum bt_rollout_edit { BT_ROLLOUT_PUT, BT_ROLLOUT_DROP, BT_ROLLOUT_CLEAR, BT_ROLLOUT_BACK };

typedef struct bt_rollout_item {
    enum bt_rollout_edit edit;
    char name[BT_ROLLOUT_NAME_MAX + 1]; /* PUT, DROP; "" = the rules */
    bt_str_t text;                      /* PUT; copied */
    uint64_t number;                    /* BACK: to this one; 0 = to the one before */
} bt_rollout_item_t;

typedef struct bt_rollout_change {
    const bt_rollout_item_t *items; /* done in order */
    unsigned count;
    const char *by;
} bt_rollout_change_t;

/* status: 200 (text is JSON), 400 (refused by a replica, or nonsense), 409 (somebody else is at it), 503, 504. Once, never within
 * the call. */
typedef void (*bt_rollout_done_cb)(void *arg, unsigned status, bt_str_t text);
int bt_rollout_change(bt_rollout_t *r, const bt_rollout_change_t *change, bt_rollout_done_cb done,
                      void *arg, char *err,
                      size_t err_size);             /* BT_E_AGAIN: one is under way here */
void bt_rollout_forget(bt_rollout_t *r, void *arg); /* done(arg) must not be called; it goes on */
/* Stays with what serves here now, whatever the others do, until it is taken back. */
void bt_rollout_pin(bt_rollout_t *r, bool is_pinned);
bool bt_rollout_is_pinned(const bt_rollout_t *r);
uint64_t bt_rollout_number(const bt_rollout_t *r);    /* that serves here; 0 = none */
uint64_t bt_rollout_committed(const bt_rollout_t *r); /* as known last */
void bt_rollout_describe(const bt_rollout_t *r, bt_text_t *out);

#endif
