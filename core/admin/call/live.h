/* live.h - asks every request loop for facts that only it may read, by mail.
 *
 * Owner: the control loop; the gather frees itself when it has told and every mail is back.
 * Life:  start -> callback exactly once (all answered, or the deadline) unless cancelled before.
 * Flow:  one mail per loop; each is filled there and returns. A loop that is late is left out, and said so.
 * Cost:  one mail per loop; beside it what is asked: a line of text for each of at most `limit` live requests (nobody walks over the others), a
 *        look into a ring of records, or into a table of rooms.
 */
#ifndef BT_ADMIN_CALL_LIVE_H
#define BT_ADMIN_CALL_LIVE_H

#include "dispatch/dispatcher.h"

#define BT_LIVE_DEADLINE_MS 1000
#define BT_GATHER_ID_MAX 128 /* request ids are not longer */

/* What goes into rows; the rest of the facts comes in any case. */
enum bt_gather_what {
    BT_GATHER_COUNTS,   /* nothing */
    BT_GATHER_REQUESTS, /* bt_dispatcher_describe: the oldest, up to `limit` on each loop */
    BT_GATHER_RECORD,   /* the record of the request `id` that has ended, or nothing */
    BT_GATHER_RECENT,   /* bt_record_ring_recent, up to `limit` */
    BT_GATHER_ROOM      /* bt_dispatcher_describe_room of `room`, or nothing */
};

typedef struct bt_gather_ask {
    enum bt_gather_what what;
    bt_str_t id; /* copied */
    uint64_t room;
    unsigned limit;
} bt_gather_ask_t;

typedef struct bt_loop_facts {
    bool answered;     /* in time; nothing else may be read otherwise */
    unsigned loop;     /* index */
    uint64_t delay_us; /* how long the mail waited for its loop */
    unsigned requests, rooms, background;
    unsigned upstream_idle, upstream_active; /* connections to workers */
    bt_text_t rows;                          /* as asked */
    uint64_t
        hub_room; /* with a room in rows: the hub's name for it; 0 = it is not gateway-managed */
} bt_loop_facts_t;

typedef struct bt_gather bt_gather_t;
/* facts are borrowed for the callback. */
typedef void (*bt_gather_cb)(void *user, const bt_loop_facts_t *facts, unsigned count);

/* 0, BT_E_NOMEM, BT_E_LIMIT (an id longer than BT_GATHER_ID_MAX). */
int bt_gather_start(bt_gather_t **gather_p, bt_loop_t *control, bt_dispatch_shared_t *shared,
                    const bt_gather_ask_t *ask, uint64_t deadline_ms, bt_gather_cb cb, void *user);
/* A loop's share of limit, one at least. */
unsigned bt_gather_share(const bt_dispatch_shared_t *shared, unsigned limit);
/* No callback after it; only before the callback has run. */
void bt_gather_cancel(bt_gather_t *gather);

/* {"requests":[...],"total":n,"late_loops":[...]}; total: all that are live on the loops that have answered. */
void bt_live_requests(bt_text_t *out, const bt_loop_facts_t *facts, unsigned count);

#endif
