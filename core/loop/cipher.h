/* cipher.h - what encrypts a stream's bytes, seen from the stream. The stream's user writes and reads as on a plain one.
 *
 * Owner: its carrier: the stream, from bt_stream_set_cipher on, or whoever else has a socket (core/store). It is embedded in the session of
 *        whoever knows the protocol (core/tls).
 * Life:  set_cipher -> handshake -> up -> end -> free, before the stream's on_closed.
 * Flow:  ciphertext that has come lies in `in` and is used from its front; ciphertext to be sent goes to the carrier's send at once.
 *        A reader that stops leaves the rest in `in`, and in the session; it is read again before the socket is.
 * Cost:  small slices of one turn are copied together into one record; what the kernel does not take is kept, and nothing more is
 *        encrypted until it has left.
 */
#ifndef BT_LOOP_CIPHER_H
#define BT_LOOP_CIPHER_H

#include "loop/stream.h"

#define BT_CIPHER_RECORD_BYTES ((size_t) 16384) /* of plaintext, at most, in one write */

typedef struct bt_cipher bt_cipher_t;

/* BT_E_AGAIN: all of `in` is used, and more has to come. BT_E_PLAIN: the peer does not speak what was expected, but something plain; write
 * then passes bytes as they are. */
typedef struct bt_cipher_ops {
    int (*handshake)(bt_cipher_t *c); /* 0 = done */
    /* Plaintext to room; how much, UV_EOF (the peer says that nothing more will come), or an error. */
    ssize_t (*read)(bt_cipher_t *c, char *room, size_t n);
    int (*write)(bt_cipher_t *c, const char *p, size_t n); /* all of it, or an error */
    void (*end)(bt_cipher_t *c);                           /* says that nothing more will come */
    void (*cut)(bt_cipher_t *c, int rc); /* Optional: the socket ended before the handshake did */
    void (*free)(bt_cipher_t *c);
} bt_cipher_ops_t;

struct bt_cipher {
    const bt_cipher_ops_t *ops;
    int (*send)(void *carrier, const char *p, size_t n); /* all of it, as it is, or an error */
    void *carrier;
    const char *in; /* in_n bytes of in_buf */
    size_t in_n;
    bt_buf_t *in_buf;
    bt_buf_t *out;     /* what the kernel has not taken; NULL = nothing */
    bt_buf_t *writing; /* what uv sends meanwhile */
    bool is_up;        /* the handshake is done */
    bool gathers;      /* a step of the handshake is under way: what it says leaves at its end */
    bool has_begun;    /* bytes of the peer have come */
    bool has_spoken;   /* the session has seen some of them */
    bool connects;     /* we have begun it */
    bool has_pending;  /* the session holds plaintext; kept by read */
    bool has_rest;     /* the reader stopped before all was read */
    bool has_ended;    /* end was called */
};

#endif
