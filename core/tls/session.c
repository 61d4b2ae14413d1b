/* session.c - OpenSSL between a stream's plaintext and its socket.
 *
 * The BIO is ours: reading takes from the cipher's `in`, writing sends at once and keeps what the kernel does not take. So SSL_write
 * always finishes, and there is no state in which OpenSSL waits for the socket. Memory BIOs would copy everything once more.
 *
 * Renegotiation is off, and TLS 1.3's new keys are answered by OpenSSL inside SSL_read; how much a peer can make it say that way
 * without reading is bounded in stream_cipher.c.
 */
#include "tls/session.h"

#include "base/err.h"
#include "base/log.h"

#include <openssl/err.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- the BIO ---- */

static int bio_read(BIO *bio, char *out, int n)
{
    bt_cipher_t *c = BIO_get_data(bio);
    size_t take = (size_t) n < c->in_n ? (size_t) n : c->in_n;

    BIO_clear_retry_flags(bio);
    if (take == 0) {
        BIO_set_retry_read(bio);
        return -1;
    }
    memcpy(out, c->in, take);
    c->in += take;
    c->in_n -= take;
    return (int) take;
}

static int bio_write(BIO *bio, const char *p, int n)
{
    const bt_cipher_t *c = BIO_get_data(bio);

    BIO_clear_retry_flags(bio);
    return c->send(c->carrier, p, (size_t) n) < 0 ? -1 : n;
}

static long bio_ctrl(BIO *bio, int what, long number, void *p)
{
    (void) bio;
    (void) number;
    (void) p;
    return what == BIO_CTRL_FLUSH; /* all else, kernel TLS for one, is not there */
}

static int bio_create(BIO *bio)
{
    BIO_set_init(bio, 1);
    return 1;
}

static BIO_METHOD *bio_method;
static int session_index = -1;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void prepare_process(void)
{
    bio_method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "stream");
    if (bio_method == NULL)
        return;
    BIO_meth_set_read(bio_method, bio_read);
    BIO_meth_set_write(bio_method, bio_write);
    BIO_meth_set_ctrl(bio_method, bio_ctrl);
    BIO_meth_set_create(bio_method, bio_create);
    session_index = SSL_get_ex_new_index(0, NULL, NULL, NULL, NULL);
}

/* ---- why not ---- */

static enum bt_tls_failure class_of(int reason)
{
    switch (reason) {
    case SSL_R_UNSUPPORTED_PROTOCOL:
    case SSL_R_UNKNOWN_PROTOCOL:
    case SSL_R_VERSION_TOO_LOW:
    case SSL_R_VERSION_TOO_HIGH:
    case SSL_R_WRONG_VERSION_NUMBER:
        return BT_TLS_FAILED_VERSION;
    case SSL_R_NO_SHARED_CIPHER:
    case SSL_R_NO_SUITABLE_KEY_SHARE:
    case SSL_R_NO_SHARED_GROUPS:
    case SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM:
    case SSL_R_NO_SHARED_SIGNATURE_ALGORITHMS:
        return BT_TLS_FAILED_CIPHER;
    case SSL_R_CERTIFICATE_VERIFY_FAILED:
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
        return BT_TLS_FAILED_CERTIFICATE;
    case SSL_R_HTTP_REQUEST:
    case SSL_R_HTTPS_PROXY_REQUEST:
        return BT_TLS_FAILED_PLAIN;
    default:
        return reason >= SSL_AD_REASON_OFFSET ? BT_TLS_FAILED_ALERT : BT_TLS_FAILED_OTHER;
    }
}

static void note_failure(bt_tls_session_t *session, enum bt_tls_failure failure, const char *why)
{
    session->failure = failure;
    session->why = why;
    session->is_counted = true;
    bt_tls_count(&session->counts->failed[failure]);
}

/* The first error of the thread's queue is the cause, what stands behind it its consequences. */
static void explain(bt_tls_session_t *session)
{
    const unsigned long error = ERR_peek_error();
    const long verified = SSL_get_verify_result(session->ssl);
    const char *why = ERR_reason_error_string(error);
    enum bt_tls_failure failure = class_of(ERR_GET_REASON(error));

    if (failure == BT_TLS_FAILED_CERTIFICATE && verified != X509_V_OK)
        why = bt_tls_verify_text(verified);
    note_failure(session, failure, why != NULL ? why : "the connection broke");
    ERR_clear_error();
}

/* ---- the cipher ---- */

/* Of the thread's queue, in which others who use OpenSSL may have left something: whoever goes by it empties it before, and reading does, for
 * nothing else tells a goodbye from an alert. It is looked at first: emptying an empty one is 800 instructions. */
static void clear_errors(void)
{
    if (ERR_peek_error() != 0)
        ERR_clear_error();
}

static bt_tls_session_t *session_of(bt_cipher_t *c)
{
    return (bt_tls_session_t *) c;
}

static bool is_plain_http(const bt_cipher_t *c)
{
    return !c->connects && c->in_n > 0 && c->in[0] >= 'A' && c->in[0] <= 'Z';
}

/* A ticket brings a client's certificate, as it was verified then. */
static bool has_expired(const SSL *ssl)
{
    const X509 *certificate = SSL_get0_peer_certificate(ssl);

    return certificate != NULL && X509_cmp_current_time(X509_get0_notAfter(certificate)) <= 0;
}

static int shake_hands(bt_cipher_t *c)
{
    bt_tls_session_t *session = session_of(c);

    if (!c->has_spoken && is_plain_http(c)) {
        c->in_n = 0;
        session->is_plain = true;
        note_failure(session, BT_TLS_FAILED_PLAIN, "it speaks HTTP without TLS");
        return BT_E_PLAIN;
    }
    c->has_spoken = c->has_spoken || c->in_n > 0;
    clear_errors();
    int rc = SSL_do_handshake(session->ssl);
    if (rc == 1) {
        session->is_resumed = SSL_session_reused(session->ssl) == 1;
        if (session->is_resumed && !c->connects && has_expired(session->ssl)) {
            note_failure(session, BT_TLS_FAILED_CERTIFICATE,
                         "its certificate has expired since it was shown");
            return BT_E_TLS;
        }
        bt_tls_count(SSL_version(session->ssl) == TLS1_3_VERSION ? &session->counts->done_13
                                                                 : &session->counts->done_12);
        if (session->is_resumed)
            bt_tls_count(&session->counts->resumed);
        c->has_pending = SSL_pending(session->ssl) > 0;
        return 0;
    }
    if (SSL_get_error(session->ssl, rc) == SSL_ERROR_WANT_READ)
        return BT_E_AGAIN;
    explain(session);
    return BT_E_TLS;
}

static ssize_t read_plain(bt_cipher_t *c, char *room, size_t n)
{
    SSL *ssl = session_of(c)->ssl;

    clear_errors();
    int rc = SSL_read(ssl, room, (int) n);
    c->has_pending = rc > 0 && SSL_pending(ssl) > 0;
    if (rc > 0)
        return rc;
    switch (SSL_get_error(ssl, rc)) {
    case SSL_ERROR_WANT_READ:
        return BT_E_AGAIN;
    case SSL_ERROR_ZERO_RETURN:
        return UV_EOF;
    default:
        session_of(c)->is_broken = true;
        session_of(c)->why = ERR_reason_error_string(ERR_peek_error());
        bt_log_debug("tls", "a session broke: %s",
                     session_of(c)->why != NULL ? session_of(c)->why : "the connection broke");
        clear_errors();
        return UV_ECONNRESET;
    }
}

static int write_plain(bt_cipher_t *c, const char *p, size_t n)
{
    bt_tls_session_t *session = session_of(c);

    if (session->is_plain)
        return c->send(c->carrier, p, n);
    if (SSL_write(session->ssl, p, (int) n) == (int) n)
        return 0;
    clear_errors();
    return UV_ECONNRESET;
}

static void say_end(bt_cipher_t *c)
{
    bt_tls_session_t *session = session_of(c);

    if (session->is_plain)
        return;
    (void) SSL_shutdown(session->ssl); /* what the peer says to it nobody waits for */
    clear_errors();
}

static void on_cut(bt_cipher_t *c, int rc)
{
    (void) rc;
    session_of(c)->why = "it closed the connection during the handshake";
}

/* Who has said nothing at all (a load balancer that looks whether the port is there) is no failure. */
static void free_cipher(bt_cipher_t *c)
{
    bt_tls_session_t *session = session_of(c);

    if (!c->is_up && c->has_begun && !session->is_counted)
        note_failure(session, BT_TLS_FAILED_CLOSED, NULL);
    bt_tls_session_free(session);
}

static const bt_cipher_ops_t cipher_ops = {.handshake = shake_hands,
                                           .read = read_plain,
                                           .write = write_plain,
                                           .end = say_end,
                                           .cut = on_cut,
                                           .free = free_cipher};

/* ---- life ---- */

bt_tls_session_t *bt_tls_session_new(SSL_CTX *context, bt_tls_counts_t *counts)
{
    bt_tls_session_t *session = calloc(1, sizeof(*session));

    if (session == NULL)
        return NULL;
    pthread_once(&once, prepare_process);
    session->cipher.ops = &cipher_ops;
    session->counts = counts;
    session->ssl = SSL_new(context);
    BIO *bio = bio_method != NULL ? BIO_new(bio_method) : NULL;
    if (session->ssl == NULL || bio == NULL ||
        SSL_set_ex_data(session->ssl, session_index, session) != 1) {
        BIO_free(bio);
        bt_tls_session_free(session);
        return NULL;
    }
    BIO_set_data(bio, &session->cipher);
    SSL_set_bio(session->ssl, bio, bio);
    return session;
}

void bt_tls_session_free(bt_tls_session_t *session)
{
    if (session->cipher.is_up && !session->is_broken) /* else OpenSSL makes its ticket void */
        SSL_set_shutdown(session->ssl, SSL_SENT_SHUTDOWN | SSL_RECEIVED_SHUTDOWN);
    SSL_free(session->ssl);
    bt_tls_peer_free(session->peer);
    if (session->on_free != NULL)
        session->on_free(session);
    free(session);
}

bt_tls_session_t *bt_tls_session_of(const SSL *ssl)
{
    return SSL_get_ex_data(ssl, session_index);
}

void bt_tls_prepare(SSL_CTX *context)
{
    SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_security_level(context, 2); /* RSA of 2048 bits and more, no SHA-1 */
}
