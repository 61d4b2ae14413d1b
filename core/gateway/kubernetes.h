/* kubernetes.h - --workers-kubernetes: pods become workers.
 *
 * Owner: the control loop.
 * Life:  open (before the threads run) -> start, when the gateway begins to serve -> stop, before its loop ends.
 * Flow:  core/discovery's changes -> completed and checked as the configuration's own workers -> the registry's source "kubernetes".
 * Cost:  that of the changes.
 */
#ifndef BT_GATEWAY_KUBERNETES_H
#define BT_GATEWAY_KUBERNETES_H

#include "gateway/process.h"

int bt_gateway_kubernetes_open(bt_gateway_t *g, char *err, size_t err_size);
void bt_gateway_kubernetes_start(bt_gateway_t *g);
void bt_gateway_kubernetes_again(bt_gateway_t *g); /* the configuration is another one */
void bt_gateway_kubernetes_stop(bt_gateway_t *g);

#endif
