/* gateway.h - the running process: who lives on which thread, and how they are wired.
 *
 * Owner: main(). The main thread runs the control loop (signals, registry, monitor, admin listener); each event thread
 *        runs one bt_gateway_loop_t.
 * Life:  open (everything that can fail, nothing serves yet) -> run (until a signal ends it) -> close.
 * Flow:  registry change -> publish -> one mail per loop -> bt_dispatcher_set_workers. SIGHUP -> the configuration is read
 *        aside and checked, then applied to the registry. SIGTERM -> listeners close, loops report when idle -> exit.
 * Cost:  nothing per request.
 */
#ifndef BT_GATEWAY_GATEWAY_H
#define BT_GATEWAY_GATEWAY_H

#include "config/config.h"

typedef struct bt_gateway bt_gateway_t;

/* argv: after the command word. config must outlive the gateway. err: one line; nothing to close after an error. */
int bt_gateway_open(bt_gateway_t **gateway_p, bt_config_t *config, int argc,
                    const char *const *argv, char *err, size_t err_size);
/* Returns the exit status. */
int bt_gateway_run(bt_gateway_t *g);
void bt_gateway_close(bt_gateway_t *g);

#endif
