/* flags.h - the command line.
 *
 * Owner: the caller; argv is borrowed.
 * Life:  scan (names, shapes, the file) -> the file is read -> apply.
 * Flow:  --flag value, --flag=value, --no-switch. An unknown flag is refused with the nearest known one.
 * Cost:  start-up and SIGHUP only.
 */
#ifndef BT_CONFIG_FLAGS_H
#define BT_CONFIG_FLAGS_H

#include "config/config.h"

/* Checks that every argument is known; *file_p gets the positional one, or NULL. */
int bt_flags_scan(int argc, const char *const *argv, const char **file_p, char *err,
                  size_t err_size);
/* Is this flag of ours among the arguments, which a scan has found good? */
bool bt_flags_has(int argc, const char *const *argv, const char *name);
int bt_flags_apply(bt_config_t *c, int argc, const char *const *argv, char *err, size_t err_size);

#endif
