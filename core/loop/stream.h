/* stream.h - a TCP byte stream with coalesced writes and back-pressure.
 *
 * Owner: embedded in its connection (server or client side); lives on one loop.
 * Life:  init -> open (accepted fd) or connect -> I/O -> close -> on_closed, only then may the memory go.
 * Flow:  writes are queued as slices and leave at the loop's flush point with one writev (up to 64 slices); reads come
 *        as slices of a refcounted buffer. After bt_stream_close no callback but on_closed runs.
 * Cost:  no allocation per read or write after warm-up; a stream with nothing to send or read holds its socket and counters.
 */
#ifndef BT_LOOP_STREAM_H
#define BT_LOOP_STREAM_H

#include "base/buf.h"
#include "base/list.h"
#include "loop/loop.h"
#include "loop/slice_queue.h"

#define BT_STREAM_HIGH_BYTES ((size_t) 96 * 1024) /* above: the producer should pause */
#define BT_STREAM_LOW_BYTES ((size_t) 32 * 1024)  /* below again: on_drain */

typedef struct bt_stream bt_stream_t;

typedef struct bt_stream_ops {
    void (*on_connect)(bt_stream_t *s, int rc); /* connect finished; rc < 0: close it */
    /* n bytes at p inside buf (borrowed: take a ref to keep them). */
    void (*on_read)(bt_stream_t *s, bt_buf_t *buf, char *p, size_t n);
    void (*on_eof)(bt_stream_t *s,
                   int rc);           /* 0 = FIN, < 0 = reset or other error; reading has stopped */
    void (*on_drain)(bt_stream_t *s); /* was above the high mark, is below the low mark */
    void (*on_write_error)(bt_stream_t *s, int rc); /* nothing more will be written; close it */
    void (*on_closed)(bt_stream_t *s);
    /* Optional: where the next read should land (a body's own buffer). False = use a standard buffer. When used,
     * on_read gets buf == NULL and p inside the given room. Must not close the stream. */
    bool (*on_alloc)(bt_stream_t *s, char **p_p, size_t *n_p);
    /* Optional: the kernel has accepted every byte written so far (the queue has become empty). Comes from a flush or the
     * loop, never from inside bt_stream_write. */
    void (*on_sent)(bt_stream_t *s);
    /* Optional, of a stream with a cipher: BT_E_AGAIN = the peer has begun the handshake, 0 = it is done, else why it failed (then
     * nothing more is read, and an alert may still be on its way: close after flush). A stream that connects hears of the end by
     * on_connect instead. */
    void (*on_handshake)(bt_stream_t *s, int rc);
    /* Optional: the queue is about to be sent, last moment to write what belongs to this turn (a chunk's head, once its
     * size is known). May write; nothing else. */
    void (*on_flush)(bt_stream_t *s);
} bt_stream_ops_t;

struct bt_stream {
    uv_tcp_t tcp;
    bt_loop_t *loop;
    const bt_stream_ops_t *ops;
    bt_list_t dirty_link; /* in loop->dirty while there is something to flush */
    struct bt_slice_queue queue;
    size_t in_write_bytes; /* of it, covered by the running uv_write; 0 = there is none */
    size_t pending_bytes;  /* queued and not yet accepted by the kernel */
    bt_buf_t
        *copy_buf; /* where small copied bytes are gathered; held only while something is queued */
    bt_buf_t *read_buf;       /* buffer of the read in progress */
    struct bt_cipher *cipher; /* loop/cipher.h; NULL = plain */
    bt_timer_t linger_timer;  /* runs from bt_stream_close_after_flush on */
    uint64_t written_bytes;
    int write_rc; /* why writing failed */
    unsigned reading : 1, above_high : 1, closing : 1, write_failed : 1, connected : 1, shut : 1,
        direct_read : 1;
    unsigned error_told : 1, lingering : 1, sent_untold : 1, replay : 1;
};

/* After it only bt_stream_close (and on_closed) ends the stream, also when open or connect have failed. */
int bt_stream_init(bt_stream_t *s, bt_loop_t *loop, const bt_stream_ops_t *ops);
/* Takes the fd (closed on failure too). Sets TCP_NODELAY. */
int bt_stream_open(bt_stream_t *s, int fd);
int bt_stream_connect(bt_stream_t *s, const struct sockaddr *addr);
int bt_stream_read_start(bt_stream_t *s); /* idempotent */
void bt_stream_read_stop(
    bt_stream_t *s); /* idempotent; FIN is then not seen: use bt_stream_peer_gone */
/* True when the peer has sent FIN or RST, seen without reading (poll with POLLRDHUP); for paused readers. */
bool bt_stream_peer_gone(bt_stream_t *s);
/* True when bytes have come that nobody has read yet: the loop has not got to them. */
bool bt_stream_has_input(bt_stream_t *s);
/* The bytes of the socket go through it from now on, in both directions. After init, before open or connect. Takes it: its free runs
 * before on_closed. */
void bt_stream_set_cipher(bt_stream_t *s, struct bt_cipher *cipher);
/* Tells the peer that nothing more will come, where there is a cipher and all that was written has left: before a close that is no error. */
void bt_stream_say_end(bt_stream_t *s);
/* Queues bytes; refs owner when given. Flushed at the end of the turn. BT_E_NOMEM; after a write error: does nothing, 0. */
int bt_stream_write(bt_stream_t *s, bt_buf_t *owner, const char *p, size_t n);
/* Queues one slice whose bytes are copied into a buffer of the stream (small things: chunk heads). */
int bt_stream_write_copy(bt_stream_t *s, const char *p, size_t n);
/* The same, without another copy: room for n bytes, or NULL, then what of it has been filled. No stream of the loop writes in
 * between. */
char *bt_stream_room(bt_stream_t *s, size_t n);
int bt_stream_write_room(bt_stream_t *s, size_t n);
/* Queues all of them. Those of a short message are put together: a slice costs more than its bytes, here and in the kernel. */
int bt_stream_write_slices(bt_stream_t *s, const struct bt_slice *slices, unsigned count);
/* Sends what is queued now instead of at the end of the turn. Callbacks that follow from it still come at its end. */
void bt_stream_flush(bt_stream_t *s);
/* Puts s on the list of the turn's end though nothing may be queued: on_flush and on_sent will come. */
void bt_stream_want_flush(bt_stream_t *s);
size_t bt_stream_pending(const bt_stream_t *s);
/* Bytes written so far that the kernel accepted: 0 means no byte has left. */
uint64_t bt_stream_written(const bt_stream_t *s);
/* Drops what is queued. linger=false on error paths sends RST instead of FIN where the peer should notice at once. */
void bt_stream_close(bt_stream_t *s);
void bt_stream_reset(bt_stream_t *s); /* close with RST (SO_LINGER 0) */
/* Closes after what is queued has left and the peer has answered our FIN with its own (what it still sends is dropped:
 * closing over unread bytes would send RST, which destroys the answer on its way), or after timeout_ms.
 * From here on only on_closed runs. */
void bt_stream_close_after_flush(bt_stream_t *s, uint64_t timeout_ms);

#endif
