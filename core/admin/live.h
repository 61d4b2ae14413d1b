/* live.h - asks every request loop for facts that only it may read, by letter.
 *
 * Owner: the control loop; the gather frees itself when it has told and every letter is back.
 * Life:  start -> callback exactly once (all answered, or the deadline) unless cancelled before.
 * Flow:  one letter a loop; each is filled there and comes home. A loop that is late is left out, and said so.
 * Cost:  one letter a loop; with rows, one line of text a live request.
 */
#ifndef BT_ADMIN_LIVE_H
#define BT_ADMIN_LIVE_H

#include "dispatch/dispatcher.h"

#define BT_LIVE_DEADLINE_MS 1000
#define BT_GATHER_ID_MAX 128 /* request ids are not longer */

typedef struct bt_loop_facts {
    bool answered;     /* in time; nothing else may be read otherwise */
    unsigned loop;     /* index */
    uint64_t delay_us; /* how long the letter waited for its loop */
    unsigned requests, rooms, errands;
    unsigned upstream_idle, upstream_active; /* connections to workers */
    bt_text_t rows; /* bt_dispatcher_describe, or the record, when asked for */
} bt_loop_facts_t;

typedef struct bt_gather bt_gather_t;
/* facts are borrowed for the callback. */
typedef void (*bt_gather_cb)(void *user, const bt_loop_facts_t *facts, unsigned count);

int bt_gather_start(bt_gather_t **gather_p, bt_loop_t *control, bt_gate_t *gate, bool with_rows,
                    uint64_t deadline_ms, bt_gather_cb cb, void *user);
/* The same, but rows is the loop's record of the request with this id, or empty. Copies the id; BT_E_LIMIT when it is longer. */
int bt_gather_record(bt_gather_t **gather_p, bt_loop_t *control, bt_gate_t *gate, bt_str_t id,
                     uint64_t deadline_ms, bt_gather_cb cb, void *user);
/* No callback after it; only before the callback has run. */
void bt_gather_cancel(bt_gather_t *gather);

/* {"requests":[...],"total":n,"late_loops":[...]} */
void bt_live_requests(bt_text_t *out, const bt_loop_facts_t *facts, unsigned count);

#endif
