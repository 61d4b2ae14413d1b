/* traces.h - traces of requests, to a collector.
 *
 * Owner: the control loop.
 * Life:  open (before the loops, after the fleet, which names us) -> start -> close, when no loop has requests -> free.
 * Flow:  core/trace does it; without --trace-endpoint nothing of it is there.
 * Cost:  none then.
 */
#ifndef BT_GATEWAY_TRACES_H
#define BT_GATEWAY_TRACES_H

#include "gateway/process.h"

int bt_gateway_traces_open(bt_gateway_t *g, char *err, size_t err_size);
void bt_gateway_traces_start(bt_gateway_t *g);
/* done: once, now or after 2 s at most. */
void bt_gateway_traces_close(bt_gateway_t *g, void (*done)(void *gateway));
void bt_gateway_traces_free(bt_gateway_t *g);

#endif
