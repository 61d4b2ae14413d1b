/* tls.h - the listeners' certificates and those for workers, followed as their files change.
 *
 * Owner: the control loop; event threads have sessions of them.
 * Life:  open (before the servers are made) -> start, when the gateway begins to serve -> stop, before its loop ends -> free, when no
 *        connection is left.
 * Flow:  a file is another one, or SIGHUP -> a pool thread reads all of that listener's, or of those workers -> new handshakes get
 *        them. What cannot be used changes nothing, and is told.
 * Cost:  a few stats a second, on a pool thread; nothing where nothing speaks TLS.
 */
#ifndef BT_GATEWAY_TLS_H
#define BT_GATEWAY_TLS_H

#include "gateway/process.h"

/* Sets the server's and the admin side's contexts. */
int bt_gateway_tls_open(bt_gateway_t *g, char *err, size_t err_size);
void bt_gateway_tls_start(bt_gateway_t *g);
void bt_gateway_tls_again(bt_gateway_t *g); /* SIGHUP: whether they have changed or not */
void bt_gateway_tls_stop(bt_gateway_t *g);
void bt_gateway_tls_free(bt_gateway_t *g);

#endif
