/* stream_impl.h - what stream.c, stream_write.c and stream_cipher.c need of each other. Private to core/loop.
 *
 * Owner: a stream's.
 * Life:  of a call.
 * Flow:  a plain stream meets a cipher at five points: read_start, flush, connect, the last FIN, closed.
 * Cost:  plain streams pay for none of it: they have callbacks of their own.
 */
#ifndef BT_LOOP_STREAM_IMPL_H
#define BT_LOOP_STREAM_IMPL_H

#include "loop/stream.h"

static inline bt_stream_t *bt_stream_of(const void *handle)
{
    return ((const uv_handle_t *) handle)->data;
}

static inline int bt_stream_fd(const bt_stream_t *s)
{
    uv_os_fd_t fd;

    return uv_fileno((const uv_handle_t *) &s->tcp, &fd) == 0 ? fd : -1;
}

static inline bool bt_stream_takes_writes(const bt_stream_t *s)
{
    return !s->closing && !s->write_failed && !s->lingering;
}

/* stream.c */
bt_buf_t *bt_stream_shared_buf(bt_buf_t **buf_p, size_t room);
bt_buf_t *bt_stream_read_buf(bt_loop_t *loop);
void bt_stream_end_reading(bt_stream_t *s, int rc);
void bt_stream_note_read(bt_loop_t *loop, ssize_t nread);
void bt_stream_linger_on(bt_stream_t *s); /* closing after a flush: the next step, if it is time */

/* stream_write.c */
ssize_t bt_stream_send_now(const bt_stream_t *s, const uv_buf_t *bufs, unsigned count);
void bt_stream_consume(bt_stream_t *s, size_t n); /* n bytes of the queue's front have left */
void bt_stream_drop_queue(bt_stream_t *s);
void bt_stream_mark_dirty(bt_stream_t *s);
void bt_stream_fail_writes(bt_stream_t *s, int rc);
void bt_stream_go_on(bt_stream_t *s, int rc); /* uv has written what in_write_bytes stands for */

/* stream_cipher.c */
void bt_stream_flush_cipher(bt_stream_t *s);
int bt_stream_read_cipher(bt_stream_t *s);
void bt_stream_replay(bt_stream_t *s); /* what the reader left when it stopped */
void bt_stream_greet(bt_stream_t *s);  /* connected: the handshake begins */
bool bt_stream_end_cipher(
    bt_stream_t *s); /* all is said; false: some of it still waits for the socket */
void bt_stream_free_cipher(bt_stream_t *s);

#endif
