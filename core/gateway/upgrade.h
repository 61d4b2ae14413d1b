/* upgrade.h - another process takes this one's place without a lost connection (SIGUSR2): another binary, or settings that SIGHUP cannot
 * change.
 *
 * Owner: the control loop.
 * Life:  one successor at a time; of the old process until it ends, of the new one until it listens.
 * Flow:  SIGUSR2: the file that this process was started from runs again, with the same arguments and our listening sockets. It starts
 *        as ever, waits until its workers are known, listens, and says so: only then do we drain and end. If it ends before, or says
 *        nothing in time, we go on as if nobody had asked.
 * Cost:  nothing until the signal.
 */
#ifndef BT_GATEWAY_UPGRADE_H
#define BT_GATEWAY_UPGRADE_H

#include "gateway/process.h"

/* ---- the old process ---- */

void bt_gateway_upgrade_init(bt_gateway_t *g); /* remembers which file this process runs */
void bt_gateway_upgrade(bt_gateway_t *g);
void bt_gateway_upgrade_stop(bt_gateway_t *g); /* a successor that is not ready is ended */

/* ---- the new process ---- */

bool bt_gateway_is_successor(void);
/* A successor listens only once its workers are known, or requests would be refused that the old one could serve; so does who was passed its sockets
 * by systemd, for clients wait in them. */
bool bt_gateway_listens_late(void);
/* Called again and again until it is true: whether to listen now. */
bool bt_gateway_may_listen(const bt_gateway_t *g);
void bt_gateway_tell_predecessor(bt_gateway_t *g);

#endif
