/* registrant.h - an engine that says every 3 s where it is: P2pNcclConnector's and MoRIIOConnector's rank 0.
 *
 * Owner: its worker, while the engine lives.
 * Life:  open -> a heartbeat at once and every 3 s (scaled) -> close.
 * Flow:  a msgpack map, typed here byte by byte, to the gateway's ROUTER.
 * Cost:  a timer and a socket each.
 */
#ifndef SIM_REGISTRANT_H
#define SIM_REGISTRANT_H

#include "world.h"

#define SIM_KV_ADDRESS_MAX 128

/* As the engine calls it in ids: 127.0.0.1:PORT, or host:127.0.0.1,handshake:PORT,notify:PORT. */
void sim_kv_address(const sim_worker_t *worker, char out[SIM_KV_ADDRESS_MAX]);
/* Nothing where --worker register= does not say to whom. */
int sim_registrant_open(sim_worker_t *worker);
void sim_registrant_close(sim_worker_t *worker);

#endif
