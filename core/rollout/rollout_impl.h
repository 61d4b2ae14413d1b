/* rollout_impl.h - what the files of a rollout share. Private to core/rollout.
 *
 * Owner: the control loop.
 * Life:  as the rollout; every part has one operation under way at most.
 * Flow:  rollout/rollout.c follows the table; _push.c, _base.c and _vote.c propose and decide; _keep.c remembers pins and puts back
 *        what is lost; _note.c records which sets are being tried; _tell.c reads and writes what lies in the store.
 * Cost:  see rollout/rollout.h.
 */
#ifndef BT_ROLLOUT_ROLLOUT_IMPL_H
#define BT_ROLLOUT_ROLLOUT_IMPL_H

#include "rollout/rollout.h"

typedef struct bt_rollout_ask {
    bt_store_op_t op;
    bt_rollout_t *r;
    void (*done)(bt_rollout_t *r, const bt_store_reply_t *reply);
    bool is_out;
    char key[48];
} bt_rollout_ask_t;

enum bt_rollout_state { BT_ROLLOUT_PROPOSED, BT_ROLLOUT_COMMITTED, BT_ROLLOUT_ABORTED };

/* Of the table `policy`. */
typedef struct bt_rollout_row {
    uint64_t number, previous, copy_of, at_ms;
    enum bt_rollout_state state;
    char hash[BT_ROLLOUT_HASH_BYTES];
    char by[BT_ROLLOUT_BY_MAX + 1], replica[BT_ROLLOUT_REPLICA_MAX + 1];
    char why[BT_ROLLOUT_WHY_MAX]; /* ABORTED */
} bt_rollout_row_t;

enum bt_rollout_vote { BT_ROLLOUT_NO_VOTE, BT_ROLLOUT_YES, BT_ROLLOUT_NO };

/* Of the table `policy_votes`. */
typedef struct bt_rollout_peer {
    char name[BT_ROLLOUT_REPLICA_MAX + 1];
    uint64_t number, voted_on;
    enum bt_rollout_vote vote;
    uint64_t missing; /* texts that it needs, and the store does not have; 0 = none */
    bool is_pinned;
    char why[BT_ROLLOUT_WHY_MAX];     /* of the vote */
    char trouble[BT_ROLLOUT_WHY_MAX]; /* of what serves */
} bt_rollout_peer_t;

/* The proposal that this replica has to vote on. */
typedef struct bt_rollout_look {
    uint64_t number, since_ms;
    bt_rollout_set_t *set; /* NULL: not read yet */
    bool is_trying, is_over;
    enum bt_rollout_vote vote;
    char why[BT_ROLLOUT_WHY_MAX];
} bt_rollout_look_t;

/* A set whose trial has started and not finished (rollout/note.c). */
#define BT_ROLLOUT_NOTES_MAX 8
typedef struct bt_rollout_note {
    uint64_t number, since; /* version of the list in which it was added */
    bool is_old;            /* left by an earlier process, which was killed */
} bt_rollout_note_t;

typedef struct bt_rollout_notes {
    bt_rollout_note_t items[BT_ROLLOUT_NOTES_MAX];
    unsigned count;
    bool is_known;                     /* the store's row has been read */
    uint64_t version, sending, stored; /* of the list: current, being written, in the store */
    bt_rollout_ask_t ask;
} bt_rollout_notes_t;

/* One proposal on its way, at the replica that was asked. */
enum bt_rollout_step {
    BT_PUSH_LEASE,
    BT_PUSH_BASE,
    BT_PUSH_SETTLE,
    BT_PUSH_SETTLED,
    BT_PUSH_TEXTS,
    BT_PUSH_CLAIM,
    BT_PUSH_PROPOSE,
    BT_PUSH_VOTE,
    BT_PUSH_CONFIRM,
    BT_PUSH_DECIDE,
    BT_PUSH_DECIDED,
    BT_PUSH_TELL,
    BT_PUSH_SPREAD
};

struct bt_rollout_push {
    bt_rollout_t *r;
    bt_rollout_item_t *items; /* own, with their texts */
    unsigned count;
    char by[BT_ROLLOUT_BY_MAX + 1];
    bt_rollout_done_cb done; /* NULL: nobody waits any more */
    void *arg;
    enum bt_rollout_step step;
    uint64_t deadline_ms;
    bt_rollout_ask_t ask, lease;
    uint64_t base_number;   /* committed when we began */
    bt_rollout_set_t *base; /* its texts, or NULL */
    bt_rollout_set_t *back; /* texts of what is brought back, or NULL */
    uint64_t wanted;        /* number that TEXTS reads */
    bt_rollout_set_t *set;  /* the proposal */
    uint64_t number;        /* tried for it */
    unsigned claims;
    uint64_t peers_read; /* votes count from this reading on */
    uint64_t rows_read;  /* likewise the table */
    bool is_commit;
    char why[BT_ROLLOUT_WHY_MAX]; /* abort */
    unsigned status;              /* of the answer, when it is an abort */
};

struct bt_rollout {
    bt_loop_t *loop;
    bt_store_client_t *client;
    const bt_rollout_ops_t *ops;
    void *user;
    char space[64], replica[BT_ROLLOUT_REPLICA_MAX + 1];
    uint64_t interval_ms, expiry_ms, vote_ms, spread_ms;
    bool is_running; /* begun */
    bool has_rows;   /* the store has answered at least once */
    bool has_pins;   /* likewise, about pins */
    void (*on_joined)(void *user);
    void *joined_user;
    bt_timer_t beat;
    bool is_unavailable; /* the last answer was an error */
    char away[BT_ROLLOUT_WHY_MAX];
    uint64_t reported_ms, restored_ms;
    bool must_report;
    /* as read last; highest number first */
    bt_rollout_row_t *rows;
    unsigned row_count;
    bt_rollout_peer_t *peers;
    unsigned peer_count, peer_cap;
    uint64_t rows_read, peers_read; /* times */
    /* what serves */
    bt_rollout_set_t *held;    /* newest committed one that is here; never NULL */
    bt_rollout_set_t *before;  /* the committed one before it, or NULL */
    bt_rollout_set_t *serving; /* never NULL */
    bt_rollout_set_t *taking;  /* under way, or NULL */
    uint64_t take_again_ms, take_wait_ms;
    char trouble[BT_ROLLOUT_WHY_MAX]; /* why held does not serve */
    bool is_pinned, must_tell_pin;
    uint64_t pin_number;
    bt_rollout_set_t *pinned; /* texts of pin_number, or NULL: not read yet */
    bt_rollout_look_t look;
    bt_rollout_notes_t notes;
    bt_rollout_ask_t rows_ask, peers_ask, set_ask, done_ask, pins_ask, pin_ask, restore_ask;
    uint64_t fetching;            /* number that set_ask reads */
    uint64_t missing, missing_ms; /* number whose texts the store does not have; since when */
    struct bt_rollout_push *push; /* NULL: nobody has asked here */
};

/* ---- rollout/keep.c ---- */
void bt_rollout_ask(bt_rollout_t *r, bt_rollout_ask_t *ask, bt_store_op_t op,
                    void (*done)(bt_rollout_t *r, const bt_store_reply_t *reply));
void bt_rollout_send(bt_rollout_t *r, bt_store_op_t op); /* without waiting */
void bt_rollout_put_row(bt_rollout_t *r, const bt_rollout_set_t *set, enum bt_rollout_state state,
                        const char *why);
void bt_rollout_restore(bt_rollout_t *r); /* what is here, as the store does not have it */
void bt_rollout_beat_pins(bt_rollout_t *r);
void bt_rollout_tell_joined(bt_rollout_t *r); /* on_joined, once, when it is so */

/* ---- rollout/note.c ---- */
void bt_rollout_note_sync(bt_rollout_t *r);
/* True once it is stored: only then may the number be tried. */
bool bt_rollout_note_add(bt_rollout_t *r, uint64_t number);
void bt_rollout_note_remove(bt_rollout_t *r, uint64_t number); /* old ones stay */
void bt_rollout_note_prune(bt_rollout_t *r); /* old ones below the committed set */

/* ---- rollout/rollout.c ---- */
void bt_rollout_hold(bt_rollout_t *r,
                     bt_rollout_set_t *set);    /* it is committed; takes a reference */
uint64_t bt_rollout_top(const bt_rollout_t *r); /* highest number known, of any state */
const bt_rollout_row_t *bt_rollout_row(const bt_rollout_t *r, uint64_t number); /* or NULL */

/* ---- rollout/push.c ---- */
void bt_rollout_push_beat(bt_rollout_t *r);  /* the table has been read */
void bt_rollout_push_peers(bt_rollout_t *r); /* the votes have been read */
void bt_rollout_push_free(bt_rollout_t *r);
/* For the steps. They end the push: it is gone afterwards. */
void bt_rollout_push_fail(struct bt_rollout_push *p, unsigned status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void bt_rollout_push_answer(struct bt_rollout_push *p, bool is_changed);
void bt_rollout_push_ask(struct bt_rollout_push *p, bt_store_op_t op,
                         void (*done)(bt_rollout_t *r, const bt_store_reply_t *reply));
/* Writes the decision about a number, if there is none; value NULL: reads it. */
void bt_rollout_push_done(struct bt_rollout_push *p, uint64_t number, const char *value,
                          void (*done)(bt_rollout_t *r, const bt_store_reply_t *reply));
void bt_rollout_push_go_on(bt_rollout_t *r);               /* the next step, if it has not ended */
void bt_rollout_push_need_rows(struct bt_rollout_push *p); /* the table was read before now */
void bt_rollout_push_drop_lease(bt_rollout_t *r);

/* ---- rollout/base.c: BASE, SETTLE, SETTLED, TEXTS ---- */
void bt_rollout_base_run(struct bt_rollout_push *p);

/* ---- rollout/vote.c: from PROPOSE on ---- */
void bt_rollout_vote_run(struct bt_rollout_push *p);
void bt_rollout_vote_count(struct bt_rollout_push *p);

/* ---- rollout/tell.c ---- */
bt_str_t bt_rollout_key(bt_rollout_ask_t *ask, const char *what, uint64_t number);
void bt_rollout_write_row(const bt_rollout_set_t *set, enum bt_rollout_state state, const char *why,
                          bt_text_t *out);
void bt_rollout_read_rows(bt_rollout_t *r, const bt_store_reply_t *reply);
void bt_rollout_write_report(const bt_rollout_t *r, bt_text_t *out);
int bt_rollout_read_peers(bt_rollout_t *r, const bt_store_reply_t *reply);
void bt_rollout_describe_set(const bt_rollout_set_t *set, bt_text_t *out);
void bt_rollout_describe_peers(const bt_rollout_t *r, bt_text_t *out);

#endif
