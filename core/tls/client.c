/* client.c - contexts and sessions of the side that dials. */
#include "tls/client.h"

#include "base/err.h"
#include "tls/files.h"
#include "tls/session.h"

#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>

struct bt_tls_client {
    atomic_uint refs;
    SSL_CTX *context;
    bt_tls_counts_t counts;
};

/* The newest is the best: TLS 1.3's are meant to be used once. */
static int on_new_session(SSL *ssl, SSL_SESSION *ticket)
{
    bt_tls_slot_t *slot = bt_tls_session_of(ssl)->owner;

    if (slot == NULL || !SSL_SESSION_is_resumable(ticket))
        return 0;
    bt_tls_slot_fini(slot);
    slot->session = ticket;
    return 1; /* ours now */
}

static int prepare(bt_tls_client_t *client, const bt_tls_client_config_t *config, char *err,
                   size_t err_size)
{
    SSL_CTX *context = client->context;

    bt_tls_prepare(context);
    SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL);
    SSL_CTX_sess_set_new_cb(context, on_new_session);
    if ((config->cert == NULL) != (config->key == NULL))
        return bt_err_refuse(err, err_size,
                             "a client certificate needs a key, and a key a certificate");
    int rc = bt_tls_use_ca(context, config->ca, err, err_size);
    if (rc == 0 && config->cert != NULL)
        rc = bt_tls_use_pair(context, config->cert, config->key, false, err, err_size);
    return rc;
}

int bt_tls_client_new(bt_tls_client_t **client_p, const bt_tls_client_config_t *config, char *err,
                      size_t err_size)
{
    bt_tls_client_t *client = calloc(1, sizeof(*client));
    int rc = BT_E_NOMEM;

    if (client == NULL)
        return rc;
    atomic_init(&client->refs, 1);
    bt_tls_open_key_heap();
    client->context = SSL_CTX_new(TLS_client_method());
    if (client->context != NULL)
        rc = prepare(client, config, err, err_size);
    ERR_clear_error();
    if (rc < 0) {
        bt_tls_client_unref(client);
        return rc;
    }
    *client_p = client;
    return 0;
}

bt_tls_client_t *bt_tls_client_ref(bt_tls_client_t *client)
{
    atomic_fetch_add_explicit(&client->refs, 1, memory_order_relaxed);
    return client;
}

void bt_tls_client_unref(bt_tls_client_t *client)
{
    if (client == NULL || atomic_fetch_sub_explicit(&client->refs, 1, memory_order_acq_rel) != 1)
        return;
    SSL_CTX_free(client->context);
    free(client);
}

/* SNI has names only (RFC 6066). */
static bool expect_name(SSL *ssl, const char *name)
{
    if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), name) == 1)
        return true;
    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    return SSL_set1_host(ssl, name) == 1 && SSL_set_tlsext_host_name(ssl, name) == 1;
}

int bt_tls_client_attach(bt_tls_client_t *client, bt_stream_t *stream, const char *name,
                         bt_tls_slot_t *slot)
{
    bt_tls_session_t *session = bt_tls_session_new(client->context, &client->counts);

    if (session == NULL)
        return BT_E_NOMEM;
    if (!expect_name(session->ssl, name)) {
        ERR_clear_error();
        bt_tls_session_free(session);
        return BT_E_INVAL;
    }
    session->owner = slot;
    if (slot != NULL && slot->session != NULL)
        (void) SSL_set_session(session->ssl, slot->session);
    SSL_set_connect_state(session->ssl);
    session->cipher.connects = true;
    bt_stream_set_cipher(stream, &session->cipher);
    return 0;
}

void bt_tls_slot_fini(bt_tls_slot_t *slot)
{
    SSL_SESSION_free(slot->session);
    slot->session = NULL;
}

const bt_tls_counts_t *bt_tls_client_counts(const bt_tls_client_t *client)
{
    return &client->counts;
}
