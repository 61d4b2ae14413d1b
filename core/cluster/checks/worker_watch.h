/* worker_watch.h - one worker's checks: health, load, name.
 *
 * Owner: the monitor, on the control loop.
 * Life:  new -> stop, which frees it, at the latest when its lookup in flight has ended. Holds a reference to its worker.
 * Flow:  each clock is set anew when its probe has ended; what others have changed of the worker (atomics, without mail) is seen by
 *        bt_worker_watch_look.
 * Cost:  at most one probe of a kind at once, under the limit that all share.
 */
#ifndef BT_CLUSTER_CHECKS_WORKER_WATCH_H
#define BT_CLUSTER_CHECKS_WORKER_WATCH_H

#include "cluster/checks/health.h"
#include "cluster/checks/load.h"
#include "cluster/checks/loss.h"
#include "cluster/checks/monitor_config.h"
#include "cluster/checks/probe.h"
#include "loop/resolve.h"

/* What all of them share. */
typedef struct bt_worker_watches {
    bt_loop_t *loop;
    bt_monitor_config_t config;
    char *path, *api_key;
    bt_probe_limit_t limit;
    bt_loss_book_t losses;
} bt_worker_watches_t;

typedef struct bt_worker_watch {
    bt_list_t link;           /* the monitor's */
    bt_worker_watches_t *all; /* NULL: stopped, waits only for its lookup to end */
    bt_worker_t *worker;
    bt_upstream_t *up, *boot_up;
    unsigned addr_version; /* of the upstreams */
    bt_timer_t health_timer, load_timer, resolve_timer;
    uint64_t health_due_ms, health_began_ms, load_began_ms, taken_down_ms;
    bt_probe_t health, load, routes;
    unsigned routes_in, route; /* health checks until routes are asked for; the one in question */
    bt_health_track_t track;
    bt_loss_track_t loss;
    enum bt_load_source source;
    bool has_tried_loads;
    bool is_resolving;
    bt_resolve_t resolve;
    /* ---- the monitor's own ---- */
    unsigned life; /* of its engine, at the last sweep */
    bool was_usable;
    bool has_left; /* the set; it waits for the worker's last leg */
} bt_worker_watch_t;

bt_worker_watch_t *bt_worker_watch_new(bt_worker_watches_t *all,
                                       bt_worker_t *w); /* NULL: no memory */
void bt_worker_watch_stop(bt_worker_watch_t *watch);
void bt_worker_watch_look(bt_worker_watch_t *watch, uint64_t now_ms);
/* Its health is asked for now, unless it is soon anyway. */
void bt_worker_watch_check(bt_worker_watch_t *watch);

#endif
