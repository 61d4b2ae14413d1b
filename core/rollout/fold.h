/* fold.h - what the fleet has decided, from the entries of its log alone: no clock, no store.
 *
 * Owner: whoever reads the log; all who have read the same entries have the same state.
 * Life:  zeroed -> bt_rollout_fold for every entry, in order. Zeroed again where the log was lost.
 * Flow:  propose -> the members' yes -> committed; the first no or expire -> aborted. A proposal
 *        that names another base than what is committed, or comes while one is open, is void: it
 *        has no number and leaves no trace. A dry run is voted on in the same way and then over; it has no number and is in nobody's way:
 *        a proposal ends it, so that a replica of before, which does not know of dry runs, makes the same of the log.
 * Cost:  a pass over the members an entry.
 */
#ifndef BT_ROLLOUT_FOLD_H
#define BT_ROLLOUT_FOLD_H

#include "rollout/set.h"

#define BT_ROLLOUT_WHY_MAX 640
#define BT_ROLLOUT_KEPT 8 /* proposals that are remembered, beyond those that must be */
#define BT_ROLLOUT_ROWS_MAX (BT_ROLLOUT_KEPT + 2)
#define BT_ROLLOUT_MEMBERS_MAX 256
#define BT_ROLLOUT_PROCESS_BYTES 17

enum bt_rollout_kind {
    BT_ROLLOUT_NONE, /* what is not known: a newer version wrote it */
    BT_ROLLOUT_PROPOSE,
    BT_ROLLOUT_BASE, /* this is committed: a log begins, or begins anew */
    /* a member validates it aside; is it the last that is heard, then it has died of it */
    BT_ROLLOUT_TRYING,
    BT_ROLLOUT_YES,
    BT_ROLLOUT_NO,
    BT_ROLLOUT_GONE, /* the replica is not waited for any more */
    BT_ROLLOUT_EXPIRE,
    BT_ROLLOUT_ASK /* a dry run: the members try it and answer, and nothing is committed */
};

typedef struct bt_rollout_entry {
    enum bt_rollout_kind kind;
    bt_rollout_info_t
        info; /* PROPOSE, BASE, ASK: all; else number, uuid, and replica = about whom */
    char process[BT_ROLLOUT_PROCESS_BYTES]; /* TRYING; GONE: it says so itself */
    char why[BT_ROLLOUT_WHY_MAX];           /* NO; EXPIRE: how long it was open */
    bool is_killed;                         /* NO, for a process that died while it tried */
    uint64_t top;                           /* BASE: no number up to it is free */
    bt_str_t members;                       /* PROPOSE, ASK: a JSON array of names; borrowed */
} bt_rollout_entry_t;

enum bt_rollout_state {
    BT_ROLLOUT_PROPOSED,
    BT_ROLLOUT_COMMITTED,
    BT_ROLLOUT_ABORTED,
    BT_ROLLOUT_TRIED /* of a dry run: all would serve it */
};

typedef struct bt_rollout_row {
    bt_rollout_info_t info;
    enum bt_rollout_state state;
    enum bt_rollout_kind end; /* ABORTED: by which kind of entry */
    char why[BT_ROLLOUT_WHY_MAX];
} bt_rollout_row_t;

typedef struct bt_rollout_member {
    char name[BT_ROLLOUT_REPLICA_MAX + 1];
    enum bt_rollout_kind answer; /* NONE, TRYING, YES, NO, GONE */
    char process[BT_ROLLOUT_PROCESS_BYTES];
} bt_rollout_member_t;

typedef struct bt_rollout_log {
    bool is_known;                              /* what is committed has been named */
    bt_rollout_info_t committed;                /* number 0 = nothing */
    uint64_t top;                               /* the highest number in use */
    unsigned since;                             /* entries since what is committed was named last */
    bt_rollout_row_t rows[BT_ROLLOUT_ROWS_MAX]; /* newest first */
    unsigned row_count;
    bt_rollout_row_t dry; /* the newest dry run; its uuid is "" before the first */
    bt_rollout_member_t members[BT_ROLLOUT_MEMBERS_MAX]; /* of the newest proposal or dry run */
    unsigned member_count;
    char proposed[BT_ROLLOUT_UUID_BYTES]; /* which one that is */
    char dropped[BT_ROLLOUT_UUID_BYTES];  /* what this entry has made us forget, "" = nothing */
} bt_rollout_log_t;

void bt_rollout_fold(bt_rollout_log_t *log, const bt_rollout_entry_t *e);
/* The proposal that is open, or else the dry run that is; NULL: neither. */
const bt_rollout_row_t *bt_rollout_open(const bt_rollout_log_t *log);
const bt_rollout_row_t *bt_rollout_row(const bt_rollout_log_t *log, const char *uuid); /* or NULL */
/* Of the newest proposal, or NULL. */
const bt_rollout_member_t *bt_rollout_member(const bt_rollout_log_t *log, const char *name);

/* As JSON. What cannot be read is of kind NONE. */
void bt_rollout_entry_write(const bt_rollout_entry_t *e, bt_text_t *out);
void bt_rollout_entry_read(bt_rollout_entry_t *e, bt_str_t json);

#endif
