/* worker.h - the life of the simulated workers.
 *
 * Owner: the world owns its workers.
 * Life:  open (ports bound) -> serving -> die (engine gone, then the listener too) or close. /sim/reset and /sim/restart open it again.
 * Flow:  listener -> server -> the handlers that the opener names (routes.c).
 * Cost:  start-up, death and reset only.
 */
#ifndef SIM_WORKER_H
#define SIM_WORKER_H

#include "world.h"

/* Who answers what arrives at a worker's two ports. */
typedef struct sim_servers {
    const bt_server_ops_t *api, *bootstrap;
} sim_servers_t;

int sim_world_open(sim_world_t *world, bt_loop_t *loop, const sim_options_t *options,
                   const sim_servers_t *servers, char *error, size_t error_size);
/* done runs when every server is closed. */
void sim_world_close(sim_world_t *world, void (*done)(void *arg), void *arg);
void sim_world_fini(sim_world_t *world);

/* The engine behind the worker is gone: running requests end, /health says so, then the listener closes. */
void sim_worker_die(sim_worker_t *worker);
/* No connection is accepted for ms. */
void sim_worker_refuse(sim_worker_t *worker, unsigned ms);
/* As new: jobs cut, KV, counters, faults and records gone, alive again on the same ports. */
void sim_worker_reset(sim_worker_t *worker);
/* As an API server after SIGTERM: no new connection, idle ones close, others after their answer. */
void sim_worker_terminate(sim_worker_t *worker);
/* Another process: what ran is cut, KV and engine id are other ones; on the same ports, or on others. Its record goes on. */
void sim_worker_restart(sim_worker_t *worker, bool is_elsewhere);

#endif
