/* startup.h - from loops that run to a gateway that serves, and what is told of it: the ready file, the service manager, the log.
 *
 * Owner: the control loop.
 * Life:  from the moment in which the threads run until workers are usable.
 * Flow:  begin_to_serve, at once or, with sockets that are passed (upgrade.h), once the workers are known and it listens -> the startup timer waits for
 *        the first usable topology.
 * Cost:  a timer until then.
 */
#ifndef BT_GATEWAY_STARTUP_H
#define BT_GATEWAY_STARTUP_H

#include "gateway/process.h"

#define BT_GATEWAY_STARTUP_MS 100 /* between two looks */

void bt_gateway_log_start(const bt_gateway_t *g); /* where, who, and what is open to all */
int bt_gateway_listen_admin(bt_gateway_t *g);     /* the admin side is there */
int bt_gateway_begin_to_serve(bt_gateway_t *g);   /* every port is listened on */
void bt_gateway_notify_ready(const bt_gateway_t *g);
void bt_gateway_on_startup(bt_timer_t *timer);

#endif
