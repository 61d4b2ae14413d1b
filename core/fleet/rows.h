/* rows.h - the rows of the table `workers`, in which every replica keeps what an operator did to a worker through any of them. Private to core/fleet.
 *
 * Owner: the control loop.
 * Life:  a row from the first word of it, here or in the table, until the table has it no more; the share frees what is left.
 * Flow:  told here -> put, and the call `workers`: the others look now instead of within a second -> read there -> applied there.
 * Cost:  one read of the table a second, where a row that has not changed is found and compared; rows are matched with workers only when either have changed. Both
 *        stand in sorted arrays: 5,000 rows that name nobody and 1,000 workers, 2 ms a change (517 ms when each was looked for among all), 8 ms a read (74).
 *
 * A field is "<pool> <where the worker listens>" and its kind's suffix; a value {"stamp":..,"pool":..} and its kind's members. Kinds are fields of their own, so
 * that two replicas which do different things to one worker at one moment do not overwrite each other; of what both say the higher stamp counts (drains.c).
 */
#ifndef BT_FLEET_ROWS_H
#define BT_FLEET_ROWS_H

#include "cluster/url.h"
#include "fleet/fleet_impl.h"

typedef struct bt_fleet_row bt_fleet_row_t;

/* What rows of one kind mean. */
typedef struct bt_fleet_kind {
    const char *suffix;
    /* The value's members into the row; false: they cannot be read, and nothing has changed. */
    bool (*read)(bt_fleet_row_t *row, bt_str_t value);
    /* ,"member":... */
    void (*write)(bt_text_t *out, const bt_fleet_row_t *row);
    bool (*is_lasting)(const bt_fleet_row_t *row); /* else it runs out after a day */
    /* Somebody took the row out of the table. True: it says something else now, which is to be applied before it is forgotten. */
    bool (*undo)(bt_fleet_row_t *row);
    /* True: the registry has published another fleet for it. */
    bool (*apply)(bt_fleet_t *fleet, bt_fleet_row_t *row);
} bt_fleet_kind_t;

/* What an operator is told of a worker that cannot be. */
#define BT_FLEET_TOO_LONG "its pool and url are too long to be told"

enum bt_fleet_drain {
    BT_FLEET_AS_IT_IS, /* nobody says anything of it any more */
    BT_FLEET_SERVING,
    BT_FLEET_DRAINING
};

struct bt_fleet_row {
    const bt_fleet_kind_t *kind;
    char *field, *pool, *value; /* value: as it lies in the store */
    uint64_t stamp;             /* the highest wins; 0 = nothing is said yet */
    bool is_stored;             /* the store has had it */
    bool is_seen, must_put;
    bool is_unread; /* the store has something that cannot be read; said once */
    /* of workers.c */
    bt_worker_spec_t spec;
    bool is_removed;
    bool is_ours;    /* the worker is in our registry because of this row */
    bool is_refused; /* our registry does not take it; said once */
    /* of drains.c */
    enum bt_fleet_drain drain;
    /* of roles.c, as is_ours and is_refused */
    int role; /* enum bt_role, or BT_FLEET_ROLE_AS_SAID */
    uint64_t timeout_ms;
    uint64_t again_ms; /* not before */
};

#define BT_FLEET_ROLE_AS_SAID (-1) /* by those who name the worker */

extern const bt_fleet_kind_t bt_fleet_kind_worker, bt_fleet_kind_drain, bt_fleet_kind_role;

/* ---- row.c ---- */
bt_fleet_row_t *bt_fleet_row_find(const bt_fleet_t *fleet, bt_str_t field); /* or NULL */
/* One that is not there yet. NULL when out of memory. */
bt_fleet_row_t *bt_fleet_row_add(bt_fleet_t *fleet, const bt_fleet_kind_t *kind, bt_str_t field,
                                 const char *pool);
void bt_fleet_row_forget(bt_fleet_t *fleet, bt_fleet_row_t *row);
void bt_fleet_row_free(bt_fleet_row_t *row); /* stands in no array */
/* NULL when out of memory, or when the field would be too long: said. */
bt_fleet_row_t *bt_fleet_row_or_add(bt_fleet_t *fleet, const bt_fleet_kind_t *kind,
                                    const char *pool, const bt_worker_t *w);
/* The row of another kind about the same place, or NULL. */
bt_fleet_row_t *bt_fleet_row_beside(const bt_fleet_t *fleet, const bt_fleet_row_t *row,
                                    const bt_fleet_kind_t *kind);
/* "<pool> <place>", without the suffix. */
bt_str_t bt_fleet_row_field(const bt_fleet_row_t *row);
/* The row's worker in our fleet, or NULL. */
bt_worker_t *bt_fleet_row_worker(const bt_fleet_t *fleet, const bt_fleet_row_t *row);

/* ---- rows.c ---- */
/* What the row now says is an operator's newest word: all replicas follow. NULL, or why the others do not hear of it now. */
const char *bt_fleet_row_send(bt_fleet_t *fleet, bt_fleet_row_t *row);
/* What the row now says is what others say as well: no call. */
void bt_fleet_row_put(bt_fleet_t *fleet, bt_fleet_row_t *row);
/* An add or a removal ends what was ordered of the place before. */
bool bt_fleet_row_is_outdated(const bt_fleet_t *fleet, const bt_fleet_row_t *row,
                              const bt_fleet_row_t **worker_row_p);

/* ---- fields.c ---- */
/* False: too long. */
bool bt_fleet_field(const char *pool, const bt_url_t *at, const char *suffix,
                    char field[BT_FLEET_NAMED_MAX + 1]);
bt_url_t bt_fleet_url(const bt_worker_t *w); /* borrowed */
/* The workers of share->fleet by field, anew; its places are. BT_E_NOMEM: none. */
int bt_worker_fields_build(bt_fleet_t *fleet);
void bt_worker_fields_fini(bt_fleet_t *fleet);
bt_worker_t *bt_worker_field(const bt_fleet_t *fleet, bt_str_t field);
/* {"pool":..,"worker":url without its scheme,"here":is it in our registry?, without the end brace. */
void bt_fleet_row_describe(const bt_fleet_t *fleet, const bt_fleet_row_t *row, bt_text_t *out);

/* ---- drains.c, for workers.c ---- */
/* The worker's row says something newer than its drain's: added anew it serves; removed it stays as it is where it still is. */
void bt_fleet_drain_outdate(bt_fleet_t *fleet, const bt_fleet_row_t *worker_row);
/* ---- roles.c, likewise: its role is what the add says ---- */
void bt_fleet_role_outdate(bt_fleet_t *fleet, const bt_fleet_row_t *worker_row);

#endif
