/* routes.h - which request goes where.
 *
 * Owner: nobody; handlers answer the exchange they are given.
 * Life:  static.
 * Flow:  server -> on_request -> inference (job.h), facts about the worker (info.c), /sim (control.c).
 * Cost:  a walk over two dozen paths.
 */
#ifndef SIM_ROUTES_H
#define SIM_ROUTES_H

#include "worker.h"

extern const sim_servers_t sim_servers;

/* info.c: true when the path was one of its own and is answered. */
bool sim_info_serve(sim_worker_t *worker, bt_exchange_t *x);
/* metrics.c */
void sim_metrics_serve(sim_worker_t *worker, bt_exchange_t *x);
/* control.c: paths that begin with /sim/ */
void sim_control_serve(sim_worker_t *worker, bt_exchange_t *x);
/* bootstrap.c */
void sim_bootstrap_serve(sim_worker_t *worker, bt_exchange_t *x);

/* A JSON answer; text is freed. */
void sim_respond_json(bt_exchange_t *x, unsigned status, bt_text_t *text);
void sim_respond_text(bt_exchange_t *x, unsigned status, const char *text);

#endif
