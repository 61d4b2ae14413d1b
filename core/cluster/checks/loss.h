/* loss.h - is a worker gone, with all that waits on it? The monitor tells what its checks showed.
 *
 * Owner: the control loop; the fact itself is in the worker, for all loops.
 * Life:  a track per watched worker, in the book of the monitor.
 * Flow:  at once: a dead engine's answer to a check, or the word of core/transfer that a process of
 *        its agents is gone. By silence: `failures` failed checks running and no byte on any leg
 *        since the first of them. A refused connection proves nothing: a graceful stop closes its
 *        listener first. Nor does a dead engine's answer to a request, which may repeat words of
 *        its client: it has the worker checked at once. Withheld, counted and logged: when more
 *        than half of a role (of four or more) fell silent within one interval, or our own loop
 *        stalled.
 * Cost:  O(1) a check; O(workers) a loss.
 */
#ifndef BT_CLUSTER_CHECKS_LOSS_H
#define BT_CLUSTER_CHECKS_LOSS_H

#include "base/list.h"
#include "cluster/checks/health.h"

#define BT_LOSS_HEARTBEAT_MS 1000 /* bt_loss_heartbeat is called this often */
#define BT_LOSS_STALL_MS 1000     /* a heartbeat later than that by this much: we stood still */

/* A worker has been lost: the worker says which. */
typedef void (*bt_loss_cb)(void *user);

typedef struct bt_loss_book {
    const bt_health_rules_t *rules;
    bt_list_t tracks;
    uint64_t heartbeat_ms; /* the last one; 0 = there was none */
    bt_loss_cb on_lost;
    void *user;
} bt_loss_book_t;

typedef struct bt_loss_track {
    bt_list_t link;
    bt_worker_t *worker; /* borrowed */
    bool has_answered;   /* it was well once: before, there is nothing to lose */
    bool is_withheld;    /* this silence is counted as withheld */
    unsigned silent;     /* failed checks running */
    uint64_t since_ms;   /* the first of them was sent; no byte came after */
} bt_loss_track_t;

void bt_loss_init(bt_loss_book_t *book, const bt_health_rules_t *rules);
void bt_loss_watch(bt_loss_book_t *book, bt_loss_track_t *track, bt_worker_t *worker);
void bt_loss_unwatch(bt_loss_track_t *track);
/* What a check that was sent at began_ms has shown. May mark the worker lost, and down. */
void bt_loss_note(bt_loss_book_t *book, bt_loss_track_t *track, enum bt_verdict verdict,
                  uint64_t began_ms, uint64_t now_ms);
/* A process of the worker is gone, whatever its checks say. Only a worker that has legs is lost by
 * it: one that was stopped as it should be has none left. */
void bt_loss_gone(bt_loss_book_t *book, bt_worker_t *w, const char *why, uint64_t now_ms);
/* Its process has ended, as a source of workers says; it is none of the set any more. Nobody is to blame. */
void bt_loss_ended(bt_loss_book_t *book, bt_worker_t *w, uint64_t now_ms);
/* Our own sign of life. */
void bt_loss_heartbeat(bt_loss_book_t *book, uint64_t now_ms);

/* Losses that were not declared, for metrics. */
enum bt_loss_withheld { BT_LOSS_WITHHELD_ROLE, BT_LOSS_WITHHELD_STALL, BT_LOSS_WITHHELD_COUNT };
uint64_t bt_loss_withheld(enum bt_loss_withheld why);

#endif
