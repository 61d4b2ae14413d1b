/* watched_file.h - a file that is read again whenever it is another one.
 *
 * The name is asked, not a handle watched: it works where the file is replaced, where a link beside it is swapped (a ConfigMap) and on file
 * systems without events.
 *
 * Owner: the control loop.
 * Life:  open (which reads it once) -> close. What it embeds in is freed by `freed`, after the last of the threads.
 * Flow:  another file, or look() -> read, on a pool thread -> take, on the loop. Never two reads at a time: what was taken last was read last.
 * Cost:  four stats a second, on a pool thread.
 */
#ifndef BT_GATEWAY_WATCHED_FILE_H
#define BT_GATEWAY_WATCHED_FILE_H

#include "loop/offload.h"

typedef struct bt_watched_file bt_watched_file_t;
struct bt_watched_file {
    const char *path;                   /* borrowed */
    void (*read)(bt_watched_file_t *f); /* pool thread: keeps what it finds beside f */
    void (*take)(bt_watched_file_t *f); /* loop; not after close */
    void (*drop)(bt_watched_file_t *f); /* loop: what was read is over, taken or not; may be NULL */
    void (*failed)(bt_watched_file_t *f, const char *why); /* its name cannot be looked up */
    void (*freed)(bt_watched_file_t *f);
    /* private */
    bt_loop_t *loop;
    uv_fs_poll_t poll;
    bt_offload_t work;
    bool is_reading, look_again, is_stopped, is_closed;
};

/* The caller has filled the first members. < 0: nothing has begun, and freed is not called. */
int bt_watched_file_open(bt_watched_file_t *f, bt_loop_t *loop);
void bt_watched_file_look(bt_watched_file_t *f);
void bt_watched_file_close(bt_watched_file_t *f);

#endif
