/* kv_events.h - engines that publish what their KV caches hold: followed for the workers that say where.
 *
 * Owner: the control loop.
 * Life:  made with the first such worker -> publish, with every change -> close, when no loop asks any more.
 * Flow:  the workers -> sources of kvindex/subscriber.h -> the parts of each worker, for policies (script/shared/kv_hits.h).
 * Cost:  O(workers) a change.
 */
#ifndef BT_GATEWAY_KV_EVENTS_H
#define BT_GATEWAY_KV_EVENTS_H

#include "gateway/process.h"

void bt_gateway_kv_publish(bt_gateway_t *g, bt_workers_t *workers);
void bt_gateway_kv_save(
    bt_gateway_t *g); /* --kv-snapshot, for a successor; it may read the one before */
void bt_gateway_kv_close(bt_gateway_t *g);

#endif
