/* notify.h - what the service manager is told (sd_notify(3)), and its watchdog. Without NOTIFY_SOCKET nothing is.
 *
 * Owner: the control loop.
 * Life:  opened with the gateway; the watchdog runs until the control loop's parts close.
 * Flow:  READY=1 once serving; RELOADING=1 and READY=1 around a SIGHUP; STOPPING=1; WATCHDOG=1 as long as every event thread answers.
 * Cost:  a datagram an event, mail to each thread four times a watchdog's time-out.
 */
#ifndef BT_GATEWAY_NOTIFY_H
#define BT_GATEWAY_NOTIFY_H

#include "gateway/process.h"

/* Reads NOTIFY_SOCKET and WATCHDOG_USEC. */
void bt_gateway_notify_open(bt_gateway_t *g);
/* Assignments, a line each, as in sd_notify(3). */
void bt_gateway_notify(const bt_gateway_t *g, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
void bt_gateway_notify_reloading(const bt_gateway_t *g);
void bt_gateway_watchdog_start(bt_gateway_t *g); /* when the threads run */
void bt_gateway_watchdog_stop(bt_gateway_t *g);
void bt_gateway_notify_close(bt_gateway_t *g);

#endif
