/* wheel.h - private to the folder: how a loop makes and ends its timer wheel.
 *
 * Owner: the loop.
 * Life:  bt_wheel_new in bt_loop_init -> bt_wheel_free in bt_loop_fini (the memory goes with uv's close callback).
 * Flow:  timers still active when the wheel goes are detached; stopping them later is harmless.
 * Cost:  16 KiB a loop.
 */
#ifndef BT_LOOP_WHEEL_H
#define BT_LOOP_WHEEL_H

#include "loop/loop.h"

int bt_wheel_new(bt_loop_t *loop);
void bt_wheel_free(bt_loop_t *loop);

#endif
