/* events.h - what an engine publishes of its KV cache: vLLM's maps, SGLang's arrays, and the same again to who asks.
 *
 * Owner: its worker, while the engine lives.
 * Life:  open -> stored, removed, as blocks become findable and are taken for something else -> close. A new one counts from 0.
 * Flow:  a block -> msgpack, typed here byte by byte -> zmq/publisher.h; every 10 ms questions are answered.
 * Cost:  an event is a batch of its own.
 */
#ifndef SIM_EVENTS_H
#define SIM_EVENTS_H

#include "world.h"

/* Nothing where --worker kv_events= does not say at which port. */
int sim_events_open(sim_worker_t *worker);
void sim_events_close(sim_worker_t *worker);

#endif
