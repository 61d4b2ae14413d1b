/* workers_file.h - --workers-file, followed as it changes.
 *
 * Owner: the control loop.
 * Life:  start, when the gateway begins to serve -> stop, before its loop ends.
 *        The path is that of the start: SIGHUP applies no other one.
 * Flow:  the file is another one -> a pool thread runs its Lua -> checked on the control loop -> the registry's source "file".
 * Cost:  four stats a second, on a pool thread.
 */
#ifndef BT_GATEWAY_WORKERS_FILE_H
#define BT_GATEWAY_WORKERS_FILE_H

#include "gateway/process.h"

int bt_gateway_workers_file_start(bt_gateway_t *g); /* nothing without --workers-file */
void bt_gateway_workers_file_stop(bt_gateway_t *g);

#endif
