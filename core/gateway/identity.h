/* identity.h - the keys that count, and the issuer's keys, followed as they change.
 *
 * Owner: the control loop.
 * Life:  open (before the loops are made) -> start, when the gateway begins to serve -> stop, before its loop ends -> free, after the loops.
 * Flow:  a file or an answer -> read off the loops -> identity/identities.h. One that is wrong changes nothing, and the log says where.
 * Cost:  four stats a second and file.
 */
#ifndef BT_GATEWAY_IDENTITY_H
#define BT_GATEWAY_IDENTITY_H

#include "gateway/process.h"

int bt_gateway_identity_open(bt_gateway_t *g, char *err, size_t err_size);
int bt_gateway_identity_start(bt_gateway_t *g);
void bt_gateway_identity_again(bt_gateway_t *g); /* SIGHUP */
void bt_gateway_identity_stop(bt_gateway_t *g);
void bt_gateway_identity_free(bt_gateway_t *g);

#endif
