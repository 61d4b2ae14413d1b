/* callback.h - a decode's call to the metaserver, over HTTP (MooncakeLayerwiseConnector).
 *
 * Owner: the world's list; a call outlives the request that made it, as a thread of the engine's does.
 * Life:  send -> (delay) -> asked, up to three times while the connection breaks -> answered or given up.
 * Flow:  any answer is taken for delivered; its status is kept in the worker's counters.
 * Cost:  a connection a call.
 */
#ifndef SIM_CALLBACK_H
#define SIM_CALLBACK_H

#include "world.h"

/* url as the gateway gave it; body is copied. */
void sim_callback_send(sim_worker_t *worker, bt_str_t url, bt_str_t body, unsigned delay_ms);
void sim_callbacks_clear(sim_world_t *world);

#endif
