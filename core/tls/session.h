/* session.h - one TLS session: a stream's cipher made of OpenSSL. Private to core/tls.
 *
 * Owner: the stream it was attached to, which frees it.
 * Life:  new -> attach -> handshake -> reads and writes -> free.
 * Flow:  OpenSSL reads ciphertext from the cipher's `in` and writes it to the cipher's send: it never waits for room, and never has to
 *        be asked the same thing twice.
 * Cost:  record buffers (17 KiB each way) are there only while a record is under way; an idle session is OpenSSL's state alone.
 */
#ifndef BT_TLS_SESSION_H
#define BT_TLS_SESSION_H

#include "loop/cipher.h"
#include "tls/counts.h"
#include "tls/peer.h"

#include <openssl/ssl.h>

typedef struct bt_tls_session bt_tls_session_t;

struct bt_tls_session {
    bt_cipher_t cipher; /* first */
    SSL *ssl;
    bt_tls_counts_t *counts;
    const char *why; /* it failed; lives for ever */
    enum bt_tls_failure failure;
    bool is_counted; /* as a failure */
    bool is_broken;  /* the peer has sent what cannot be */
    bool is_plain;   /* the peer speaks HTTP without TLS */
    bool is_resumed; /* no certificate was sent */
    bt_tls_peer_t *peer;
    unsigned generation; /* of the client's context */
    void *owner;         /* the server's bundle, or the client's slot */
    void (*on_free)(bt_tls_session_t *session);
};

/* Of a context; counts lives as long as the session. NULL: out of memory. */
bt_tls_session_t *bt_tls_session_new(SSL_CTX *context, bt_tls_counts_t *counts);
void bt_tls_session_free(bt_tls_session_t *session); /* of one that no stream has taken */
/* The one that OpenSSL calls back about. */
bt_tls_session_t *bt_tls_session_of(const SSL *ssl);
/* What both sides' contexts have in common. */
void bt_tls_prepare(SSL_CTX *context);

#endif
