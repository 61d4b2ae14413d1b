/* file.h - baton.lua: a table with a closed schema.
 *
 * Owner: the caller.
 * Life:  start-up and SIGHUP.
 * Flow:  Lua table -> tree (script/value/luatable.h) -> settings, pools, workers. An unknown key is refused with its path and the
 *        nearest known key.
 * Cost:  not for the request path.
 */
#ifndef BT_CONFIG_FILE_H
#define BT_CONFIG_FILE_H

#include "config/config.h"
#include "script/value/value.h"

int bt_config_read_file(bt_config_t *c, const char *path, char *err, size_t err_size);
/* The same for a tree that is there already (path names it in errors). */
int bt_config_read_tree(bt_config_t *c, const char *path, const bt_value_t *root, char *err,
                        size_t err_size);

#endif
