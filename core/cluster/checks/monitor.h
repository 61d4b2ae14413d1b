/* monitor.h - active health checks, name resolution and the load poller; one loop checks, all read.
 *
 * Owner: the control loop.
 * Life:  start -> set_workers on each change -> stop. A worker that was removed is watched until its
 *        last leg has ended: it may be lost as well as any.
 * Flow:  health every interval: GET <health path>, for SGLang prefills the bootstrap port's /health too; 3 failures = down,
 *        2 successes = up (the very first answer counts at once); refused connect or 503 from a dead engine = down at once;
 *        503 "currently scaling" = drain; a worker that sent bytes in the last interval is alive whatever /health says.
 *        Checks off: every worker is up once its name is resolved; one that a passive signal took down is tried again by
 *        traffic after one interval.
 *        Load every second: vLLM /metrics, SGLang /v1/loads; older than 5 s = unknown to policies.
 * Cost:  bounded number of probes in flight (64), each with its own deadline.
 */
#ifndef BT_CLUSTER_CHECKS_MONITOR_H
#define BT_CLUSTER_CHECKS_MONITOR_H

#include "cluster/checks/loss.h"
#include "cluster/checks/monitor_config.h"
#include "cluster/workers.h"
#include "loop/loop.h"

#define BT_MONITOR_PROBES_MAX 64 /* in flight */

void bt_monitor_config_defaults(bt_monitor_config_t *config);

typedef struct bt_monitor bt_monitor_t;
int bt_monitor_start(bt_monitor_t **monitor_p, bt_loop_t *loop, const bt_monitor_config_t *config);
void bt_monitor_set_workers(bt_monitor_t *m, bt_workers_t *workers); /* takes its own reference */
/* Called on the control loop whenever a worker is found lost (loss.h). */
void bt_monitor_on_lost(bt_monitor_t *m, bt_loss_cb on_lost, void *user);
/* Likewise, within a second, when a worker's engine is, or may be, another process. */
void bt_monitor_on_restarted(bt_monitor_t *m, void (*on_restarted)(void *user, bt_worker_t *w),
                             void *user);
/* A process of the worker is gone (bt_loss_gone). */
void bt_monitor_gone(bt_monitor_t *m, bt_worker_t *w, const char *why);
/* A source knows that whoever was at that place until now has ended: those that have left the set, and have legs, are lost. */
void bt_monitor_place_ended(bt_monitor_t *m, const char *host, unsigned port);
void bt_monitor_stop(bt_monitor_t *m); /* frees itself; its calls are cancelled */
/* Somebody says that the worker is down: it is looked at now instead of when its turn comes. Nothing where checks are off. */
void bt_monitor_check(bt_monitor_t *m, const bt_worker_t *w);

#endif
