/* fleet.h - the store and what replicas share through it, in the running process.
 *
 * Owner: the control loop; each event loop has a store client and a ring of its own.
 * Life:  open (the store, before the loops) -> loop_open per loop -> start (the share, where the store is shared) -> publish on every change -> close when
 *        no loop has a request any more -> loop_close per loop -> free.
 * Flow:  --redis-url -> store; loops' clients -> dispatchers; policies' prefix inserts -> rings -> the share; the admin API's changes -> the share.
 * Cost:  nothing per request here.
 */
#ifndef BT_GATEWAY_FLEET_H
#define BT_GATEWAY_FLEET_H

#include "gateway/process.h"

/* The configuration's limits are in force from here on; what has been counted stays. */
void bt_gateway_limits_set(bt_gateway_t *g, const bt_config_t *config);
/* Checks everything, reaches for nothing: a store that is unavailable is no reason not to start. */
int bt_gateway_fleet_open(bt_gateway_t *g, char *err, size_t err_size);
int bt_gateway_fleet_loop_open(bt_gateway_loop_t *el);
/* On the main thread, when the loop's own has ended and its dispatcher is gone. */
void bt_gateway_fleet_loop_close(bt_gateway_loop_t *el);
int bt_gateway_fleet_start(bt_gateway_t *g);
void bt_gateway_fleet_publish(bt_gateway_t *g, bt_workers_t *workers);
/* done gets the gateway when the other replicas have heard of our end, or could not be told in time. Nothing to close: at once. */
void bt_gateway_fleet_close(bt_gateway_t *g, void (*done)(void *gateway));
void bt_gateway_fleet_free(bt_gateway_t *g);

#endif
