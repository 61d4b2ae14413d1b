/* sandbox.h - --sandbox: which files the gateway may still reach, from its configuration.
 *
 * Owner: the main thread, before any other runs.
 * Life:  of the process, and of those that take its place (upgrade.h): they cannot lift it.
 * Flow:  configuration -> directories -> base/sandbox.h.
 * Cost:  start-up.
 *
 * A configuration that is read later may name files in these directories only: another directory needs a restart.
 */
#ifndef BT_GATEWAY_SANDBOX_H
#define BT_GATEWAY_SANDBOX_H

#include "config/config.h"

/* BT_E_CONFIG: --sandbox strict, and there is none here, or a directory cannot be allowed. */
int bt_gateway_sandbox(const bt_config_t *config, char *err, size_t err_size);
const char *bt_gateway_sandbox_mode(const bt_config_t *config); /* as the flag spells it */

#endif
