/* loop_impl.h - what a loop's turn needs of the files above it. Private to core/loop.
 *
 * Owner: the loop.
 * Life:  bt_wheel_new in bt_loop_init -> bt_wheel_free in bt_loop_fini (the memory goes with uv's close callback).
 * Flow:  timers still active when the wheel goes are detached; stopping them later is harmless.
 * Cost:  16 KiB a loop.
 */
#ifndef BT_LOOP_LOOP_IMPL_H
#define BT_LOOP_LOOP_IMPL_H

#include "loop/loop.h"

#define BT_LOOP_STALL_MS 20 /* so long others' tokens have waited: one for the flight recorder */

/* loop.c */
void bt_loop_note_stall(bt_loop_t *loop, uint64_t ms, const char *what);
/* timer.c */
int bt_wheel_new(bt_loop_t *loop);
void bt_wheel_free(bt_loop_t *loop);
/* stream.c: what all streams of a loop share. */
void bt_stream_init_shared(bt_loop_t *loop);
void bt_stream_fini_shared(bt_loop_t *loop);
/* stream_write.c: called at the loop's flush points. */
void bt_stream_flush_dirty(bt_loop_t *loop);

#endif
