/* rows.h - the rows of the table `workers`, in which every replica keeps what an operator did to a worker through any of them. Private to core/share.
 *
 * Owner: the control loop.
 * Life:  a row from the first word of it, here or in the table, until the table has it no more; the share frees what is left.
 * Flow:  told here -> put, and the call `workers`: the others look now instead of within a second -> read there -> applied there.
 * Cost:  one read of the table a second; rows are compared with all workers only when either have changed.
 *
 * A field is "<pool> <where the worker listens>" and its kind's suffix; a value {"stamp":..,"pool":..} and its kind's members. Kinds are fields of their own, so
 * that two replicas which do different things to one worker at one moment do not overwrite each other.
 */
#ifndef BT_SHARE_ROWS_H
#define BT_SHARE_ROWS_H

#include "share/share_impl.h"

typedef struct bt_share_row bt_share_row_t;

/* What rows of one kind mean. */
typedef struct bt_share_kind {
    const char *suffix;
    /* The value's members into the row; false: they cannot be read, and nothing has changed. */
    bool (*read)(bt_share_row_t *row, bt_str_t value);
    /* ,"member":... */
    void (*write)(bt_text_t *out, const bt_share_row_t *row);
    bool (*is_lasting)(const bt_share_row_t *row); /* else it runs out after a day */
    /* Somebody took the row out of the table. True: it says something else now, which is to be applied before it is forgotten. */
    bool (*undo)(bt_share_row_t *row);
    void (*apply)(bt_share_t *share, bt_share_row_t *row);
} bt_share_kind_t;

enum bt_share_drain {
    BT_SHARE_AS_IT_IS, /* nobody says anything of it any more */
    BT_SHARE_SERVING,
    BT_SHARE_DRAINING
};

struct bt_share_row {
    bt_list_t link;
    const bt_share_kind_t *kind;
    char *field, *pool, *value; /* value: as it lies in the store */
    uint64_t stamp;             /* the highest wins; 0 = nothing is said yet */
    bool is_stored;             /* the store has had it */
    bool is_seen, must_put;
    /* of workers.c */
    bt_worker_spec_t spec;
    bool is_removed;
    bool is_ours;    /* the worker is in our registry because of this row */
    bool is_refused; /* our registry does not take it; said once */
    /* of drains.c */
    enum bt_share_drain drain;
};

extern const bt_share_kind_t bt_share_kind_worker, bt_share_kind_drain;

/* NULL when there is none; of or_add: when out of memory, or when the field would be too long. */
bt_share_row_t *bt_share_row(bt_share_t *share, const bt_share_kind_t *kind, const char *pool,
                             const bt_worker_t *w);
bt_share_row_t *bt_share_row_or_add(bt_share_t *share, const bt_share_kind_t *kind,
                                    const char *pool, const bt_worker_t *w);
/* What the row now says is an operator's newest word: all replicas follow. */
void bt_share_row_tell(bt_share_t *share, bt_share_row_t *row);
/* The row's worker in our fleet, or NULL; *has_pool_p: is there its pool? */
bt_worker_t *bt_share_row_worker(const bt_share_t *share, const bt_share_row_t *row,
                                 bool *has_pool_p);

/* ---- drains.c, for workers.c ---- */
/* The worker was added anew: it serves, whatever was said before. */
void bt_share_drain_lift(bt_share_t *share, const char *pool, const bt_worker_t *w);
/* The worker was removed: where it still is it stays as it is, and where it comes again it serves. */
void bt_share_drain_end(bt_share_t *share, const char *pool, const bt_worker_t *w);

#endif
