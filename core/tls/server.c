/* server.c - bundles of certificates, their reload, and sessions.
 *
 * A session holds a reference to the bundle that it was made of: callbacks of its handshake look into it, and a reload may come in
 * between. What is kept over reloads is the tickets' keys and the counts, so that clients resume after one.
 *
 * Whom clients' certificates may name is asked while the certificate is verified, not afterwards: who is refused gets an alert, and no
 * ticket. Tickets are bound to who was allowed when they were given (the session id context): a changed list or CA makes them void.
 */
#include "tls/server.h"

#include "base/err.h"
#include "base/str.h"
#include "tls/files.h"
#include "tls/session.h"
#include "tls/tickets.h"

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Mozilla's intermediate configuration, version 5.7, without finite-field Diffie-Hellman. */
#define CIPHERS                                                                                    \
    "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384:"     \
    "ECDHE-RSA-AES256-GCM-SHA384:ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305"
#define GROUPS "X25519:P-256:P-384"

struct pair {
    SSL_CTX *context;
    const char *file;
    int64_t expiry_s;
};

struct bundle {
    atomic_uint refs;
    const bt_tls_server_config_t *config; /* the server's */
    unsigned count;
    struct pair pairs[BT_TLS_PAIRS_MAX];
};

struct bt_tls_server {
    bt_tls_server_config_t config;
    pthread_mutex_t lock; /* of bundle */
    struct bundle *bundle;
    bt_tls_tickets_t *tickets;
    bt_tls_counts_t counts;
};

/* ---- bundles ---- */

static void unref(struct bundle *bundle)
{
    if (bundle == NULL || atomic_fetch_sub_explicit(&bundle->refs, 1, memory_order_acq_rel) != 1)
        return;
    for (unsigned i = 0; i < bundle->count; i++)
        SSL_CTX_free(bundle->pairs[i].context);
    free(bundle);
}

static struct bundle *current(bt_tls_server_t *server)
{
    pthread_mutex_lock(&server->lock);
    struct bundle *bundle = server->bundle;
    atomic_fetch_add_explicit(&bundle->refs, 1, memory_order_relaxed);
    pthread_mutex_unlock(&server->lock);
    return bundle;
}

/* ---- what OpenSSL asks during a handshake ---- */

static bool is_for(SSL_CTX *context, const char *name)
{
    return X509_check_host(SSL_CTX_get0_certificate(context), name, 0,
                           X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS, NULL) == 1;
}

static int on_server_name(SSL *ssl, int *alert, void *user)
{
    const struct bundle *bundle = bt_tls_session_of(ssl)->owner;
    const char *name = SSL_get_servername(ssl, TLSEXT_NAMETYPE_host_name);

    (void) alert;
    (void) user;
    for (unsigned i = 0; name != NULL && i < bundle->count; i++)
        if (is_for(bundle->pairs[i].context, name)) {
            if (i > 0)
                SSL_set_SSL_CTX(ssl, bundle->pairs[i].context);
            return SSL_TLSEXT_ERR_OK;
        }
    return name == NULL ? SSL_TLSEXT_ERR_NOACK : SSL_TLSEXT_ERR_OK; /* the first one's */
}

/* RFC 7301: who offers protocols and none of ours is told so. */
static int on_protocols(SSL *ssl, const unsigned char **out, unsigned char *n,
                        const unsigned char *offered, unsigned offered_n, void *user)
{
    static const unsigned char ours[] = "\x02h2\x08http/1.1";
    const struct bundle *bundle = bt_tls_session_of(ssl)->owner;
    const unsigned skip = bundle->config->has_http2 ? 0 : 3;

    (void) user;
    if (SSL_select_next_proto((unsigned char **) (uintptr_t) out, n, ours + skip,
                              sizeof(ours) - 1 - skip, offered,
                              offered_n) == OPENSSL_NPN_NEGOTIATED)
        return SSL_TLSEXT_ERR_OK;
    return SSL_TLSEXT_ERR_ALERT_FATAL;
}

static int on_ticket(SSL *ssl, unsigned char *name, unsigned char *iv, EVP_CIPHER_CTX *cipher,
                     EVP_MAC_CTX *mac, int seals)
{
    bt_tls_server_t *server =
        SSL_CTX_get_ex_data(SSL_get_SSL_CTX(ssl), 0); /* app data: never another server's */

    int rc = bt_tls_tickets_use(server->tickets, name, iv, cipher, mac, seals ? name : NULL);

    /* 1.3's are meant to be used once: without a new one the next connection could not resume. */
    return rc == 1 && !seals && SSL_version(ssl) == TLS1_3_VERSION ? 2 : rc;
}

static int on_verify(int is_fine, X509_STORE_CTX *store)
{
    const SSL *ssl = X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx());
    const struct bundle *bundle = bt_tls_session_of(ssl)->owner;
    const char *const *allow = bundle->config->client_allow;

    if (!is_fine || X509_STORE_CTX_get_error_depth(store) != 0 || allow == NULL || *allow == NULL)
        return is_fine;
    bt_tls_peer_t *peer = bt_tls_peer_new(X509_STORE_CTX_get_current_cert(store));
    bool is_allowed = peer != NULL && bt_tls_peer_is_one_of(peer, allow);
    bt_tls_peer_free(peer);
    if (!is_allowed)
        X509_STORE_CTX_set_error(store, X509_V_ERR_APPLICATION_VERIFICATION);
    return is_allowed;
}

/* ---- making a bundle ---- */

static int set_protocol(SSL_CTX *context, const bt_tls_server_config_t *config, char *err,
                        size_t err_size)
{
    bt_tls_prepare(context);
    SSL_CTX_set_min_proto_version(context, config->is_13_only ? TLS1_3_VERSION : TLS1_2_VERSION);
    if (SSL_CTX_set_cipher_list(context, config->ciphers != NULL ? config->ciphers : CIPHERS) != 1)
        return bt_tls_refuse(err, err_size, config->ciphers != NULL ? config->ciphers : CIPHERS,
                             "no cipher of this list can be used",
                             "see openssl ciphers -v -tls1_2");
    if (SSL_CTX_set1_groups_list(context, GROUPS) != 1)
        return BT_E_NOMEM;
    SSL_CTX_set_session_cache_mode(context,
                                   SSL_SESS_CACHE_OFF); /* tickets, and no memory of ours */
    SSL_CTX_set_timeout(context, BT_TLS_TICKET_SECS);
    SSL_CTX_set_tlsext_servername_callback(context, on_server_name);
    SSL_CTX_set_alpn_select_cb(context, on_protocols, NULL);
    SSL_CTX_set_tlsext_ticket_key_evp_cb(context, on_ticket);
    return 0;
}

static void digest_file(EVP_MD_CTX *md, const char *file)
{
    char bytes[4096];
    size_t n;
    FILE *f = fopen(file, "re");

    while (f != NULL && (n = fread(bytes, 1, sizeof(bytes), f)) > 0)
        EVP_DigestUpdate(md, bytes, n);
    if (f != NULL)
        fclose(f);
}

/* Tickets of clients that were verified by other rules are not taken. */
static bool bind_tickets(SSL_CTX *context, const bt_tls_server_config_t *config)
{
    unsigned char id[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    bool is_done = md != NULL && EVP_DigestInit_ex(md, EVP_sha256(), NULL) == 1;

    if (is_done && config->client_ca != NULL)
        digest_file(md, config->client_ca);
    for (const char *const *p = config->client_allow; is_done && p != NULL && *p != NULL; p++)
        EVP_DigestUpdate(md, *p, strlen(*p) + 1);
    is_done = is_done && EVP_DigestFinal_ex(md, id, &n) == 1 &&
              SSL_CTX_set_session_id_context(context, id, n) == 1;
    EVP_MD_CTX_free(md);
    return is_done;
}

static int ask_clients(SSL_CTX *context, const bt_tls_server_config_t *config, char *err,
                       size_t err_size)
{
    int mode = SSL_VERIFY_PEER;

    if (!bind_tickets(context, config))
        return BT_E_NOMEM;
    if (config->client_ca == NULL)
        return 0;
    int rc = bt_tls_use_ca(context, config->client_ca, err, err_size);
    STACK_OF(X509_NAME) *names = rc == 0 ? SSL_load_client_CA_file(config->client_ca) : NULL;
    if (rc < 0)
        return rc;
    if (names == NULL)
        return bt_tls_refuse(err, err_size, config->client_ca,
                             "holds no certificate that can be read",
                             "name a PEM file of the authorities to trust");
    SSL_CTX_set_client_CA_list(context, names);
    if (!config->client_may_be_nobody)
        mode |= SSL_VERIFY_FAIL_IF_NO_PEER_CERT;
    SSL_CTX_set_verify(context, mode, on_verify);
    return 0;
}

static int add_pair(bt_tls_server_t *server, struct bundle *bundle, unsigned i, char *err,
                    size_t err_size)
{
    const bt_tls_server_config_t *config = &server->config;
    SSL_CTX *context = SSL_CTX_new(TLS_server_method());

    if (context == NULL)
        return BT_E_NOMEM;
    bundle->pairs[i] = (struct pair){.context = context, .file = config->certs[i]};
    bundle->count = i + 1;
    SSL_CTX_set_app_data(context, server);
    int rc = set_protocol(context, config, err, err_size);
    if (rc == 0)
        rc = bt_tls_use_pair(context, config->certs[i], config->keys[i], true, err, err_size);
    if (rc == 0)
        bundle->pairs[i].expiry_s = bt_tls_expiry_s(SSL_CTX_get0_certificate(context));
    return rc == 0 ? ask_clients(context, config, err, err_size) : rc;
}

static int make_bundle(bt_tls_server_t *server, struct bundle **bundle_p, char *err,
                       size_t err_size)
{
    struct bundle *bundle = calloc(1, sizeof(*bundle));
    int rc = bundle != NULL ? 0 : BT_E_NOMEM;

    if (bundle == NULL)
        return rc;
    atomic_init(&bundle->refs, 1);
    bundle->config = &server->config;
    for (unsigned i = 0; rc == 0 && server->config.certs[i] != NULL; i++)
        rc = i < BT_TLS_PAIRS_MAX ? add_pair(server, bundle, i, err, err_size)
                                  : bt_err_refuse(err, err_size, "more than %u certificates",
                                                  (unsigned) BT_TLS_PAIRS_MAX);
    ERR_clear_error();
    if (rc == BT_E_NOMEM)
        snprintf(err, err_size, "%s", bt_err_text(rc));
    if (rc < 0)
        unref(bundle);
    else
        *bundle_p = bundle;
    return rc;
}

/* ---- life ---- */

int bt_tls_server_new(bt_tls_server_t **server_p, const bt_tls_server_config_t *config, char *err,
                      size_t err_size)
{
    bt_tls_server_t *server = calloc(1, sizeof(*server));

    if (server == NULL)
        return BT_E_NOMEM;
    bt_tls_open_key_heap();
    server->config = *config;
    pthread_mutex_init(&server->lock, NULL);
    server->tickets = bt_tls_tickets_new();
    int rc =
        server->tickets != NULL ? make_bundle(server, &server->bundle, err, err_size) : BT_E_NOMEM;
    if (rc < 0) {
        bt_tls_server_free(server);
        return rc;
    }
    *server_p = server;
    return 0;
}

void bt_tls_server_free(bt_tls_server_t *server)
{
    if (server == NULL)
        return;
    unref(server->bundle);
    bt_tls_tickets_free(server->tickets);
    pthread_mutex_destroy(&server->lock);
    free(server);
}

int bt_tls_server_reload(bt_tls_server_t *server, char *err, size_t err_size)
{
    struct bundle *bundle = NULL;
    int rc = make_bundle(server, &bundle, err, err_size);

    if (rc < 0)
        return rc;
    pthread_mutex_lock(&server->lock);
    struct bundle *before = server->bundle;
    server->bundle = bundle;
    pthread_mutex_unlock(&server->lock);
    unref(before);
    return 0;
}

void bt_tls_leave_thread(void)
{
    OPENSSL_thread_stop();
}

uint64_t bt_tls_server_stamp(const bt_tls_server_t *server)
{
    uint64_t stamp = bt_tls_file_stamp(0, server->config.client_ca);

    for (unsigned i = 0; server->config.certs[i] != NULL; i++)
        stamp = bt_tls_file_stamp(bt_tls_file_stamp(stamp, server->config.certs[i]),
                                  server->config.keys[i]);
    return stamp;
}

const bt_tls_counts_t *bt_tls_server_counts(const bt_tls_server_t *server)
{
    return &server->counts;
}

bool bt_tls_server_expiry(bt_tls_server_t *server, unsigned i, int64_t *expiry_s_p, char *file,
                          size_t size)
{
    struct bundle *bundle = current(server);
    bool is_there = i < bundle->count;

    if (is_there) {
        *expiry_s_p = bundle->pairs[i].expiry_s;
        bt_str_copy(file, size, bundle->pairs[i].file);
    }
    unref(bundle);
    return is_there;
}

void bt_tls_server_age(bt_tls_server_t *server, uint64_t ms)
{
    bt_tls_tickets_age(server->tickets, ms);
}

/* ---- sessions ---- */

static void let_go(bt_tls_session_t *session)
{
    unref(session->owner);
}

int bt_tls_server_attach(bt_tls_server_t *server, bt_stream_t *stream)
{
    struct bundle *bundle = current(server);
    bt_tls_session_t *session = bt_tls_session_new(bundle->pairs[0].context, &server->counts);

    if (session == NULL) {
        unref(bundle);
        return BT_E_NOMEM;
    }
    session->owner = bundle;
    session->on_free = let_go;
    SSL_set_accept_state(session->ssl);
    bt_stream_set_cipher(stream, &session->cipher);
    return 0;
}

static bt_tls_session_t *session_of(const bt_stream_t *stream)
{
    return (bt_tls_session_t *) stream->cipher; /* there is no other cipher */
}

/* A server's peer is made when somebody asks: a resumed session has its certificate too. */
static const bt_tls_peer_t *peer_of(bt_tls_session_t *session)
{
    X509 *certificate = SSL_get0_peer_certificate(session->ssl);

    if (session->peer == NULL && certificate != NULL &&
        SSL_get_verify_result(session->ssl) == X509_V_OK)
        session->peer = bt_tls_peer_new(certificate);
    return session->peer;
}

bool bt_tls_info(const bt_stream_t *stream, bt_tls_info_t *info_p)
{
    bt_tls_session_t *session = session_of(stream);
    const unsigned char *protocol = NULL;
    unsigned n = 0;

    if (session == NULL || !session->cipher.is_up || session->is_plain)
        return false;
    SSL_get0_alpn_selected(session->ssl, &protocol, &n);
    *info_p = (bt_tls_info_t){
        .version = SSL_get_version(session->ssl),
        .cipher = SSL_get_cipher_name(session->ssl),
        .server_name = SSL_get_servername(session->ssl, TLSEXT_NAMETYPE_host_name),
        .protocol = n == 8   ? "http/1.1"
                    : n == 2 ? "h2"
                             : NULL,
        .peer = peer_of(session),
        .is_resumed = session->is_resumed,
    };
    return true;
}

const char *bt_tls_why(const bt_stream_t *stream)
{
    return stream->cipher != NULL ? session_of(stream)->why : NULL;
}
