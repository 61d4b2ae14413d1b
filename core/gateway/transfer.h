/* transfer.h - what serves KV transfer in the running process (hub, SGLang's registry, metaserver): ports, fleet, end.
 *
 * Owner: the control loop. Nothing here happens without --transfer-port, --registry-port, --metaserver-port or a port where engines
 *        register.
 * Life:  open (ports bound, hub made) -> start (listens) -> publish on every change -> close when no loop has a request any more
 *        and the admin side, which looks into it, is closed.
 * Flow:  agents -> core/transfer -> worker->has_agents -> candidates; dispatchers find the hub in shared->transfer.
 * Cost:  nothing per request here.
 */
#ifndef BT_GATEWAY_TRANSFER_H
#define BT_GATEWAY_TRANSFER_H

#include "gateway/process.h"

int bt_gateway_transfer_open(bt_gateway_t *g, char *err, size_t err_size);
int bt_gateway_transfer_start(bt_gateway_t *g);
void bt_gateway_transfer_publish(bt_gateway_t *g, bt_workers_t *workers);
/* SIGHUP's; borrowed. */
void bt_gateway_transfer_set_token(bt_gateway_t *g, const char *tokens);
void bt_gateway_transfer_log(const bt_gateway_t *g);
/* done (may be NULL) gets the gateway when all is closed, maybe at once. Once more: at once. */
void bt_gateway_transfer_close(bt_gateway_t *g, void (*done)(void *gateway));

#endif
