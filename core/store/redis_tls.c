/* redis_tls.c - hiredis carries the session (redisInitiateSSL); the session is made here, because hiredis' own helper does not compare the certificate's name
 * with the host. */
#include "store/redis_tls.h"

#include "base/err.h"

#include <stdio.h>

#if BT_HAS_REDIS_TLS
#include <hiredis/hiredis.h>
#include <hiredis/hiredis_ssl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdlib.h>

struct bt_redis_tls {
    SSL_CTX *context;
    char *server_name;
};

static int refuse(char *err, size_t err_size, const char *what, const char *file)
{
    const char *why = ERR_reason_error_string(ERR_peek_last_error());

    snprintf(err, err_size, "store: %s \"%s\" cannot be used: %s", what, file,
             why != NULL ? why : "no reason given");
    ERR_clear_error();
    return BT_E_CONFIG;
}

static int load_files(SSL_CTX *context, const bt_store_config_t *config, char *err, size_t err_size)
{
    const char *ca = config->tls_ca_file;
    const char *cert = config->tls_cert_file, *key = config->tls_key_file;

    if ((cert == NULL) != (key == NULL)) {
        snprintf(err, err_size, "store: a client certificate needs a key, and a key a certificate");
        return BT_E_CONFIG;
    }
    if (ca != NULL && SSL_CTX_load_verify_locations(context, ca, NULL) != 1)
        return refuse(err, err_size, "the CA file", ca);
    if (ca == NULL && SSL_CTX_set_default_verify_paths(context) != 1)
        return refuse(err, err_size, "the CA store", "of this system");
    if (cert != NULL && SSL_CTX_use_certificate_chain_file(context, cert) != 1)
        return refuse(err, err_size, "the certificate", cert);
    if (key != NULL && (SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) != 1 ||
                        SSL_CTX_check_private_key(context) != 1))
        return refuse(err, err_size, "the key", key);
    return 0;
}

int bt_redis_tls_new(bt_redis_tls_t **tls_p, const bt_store_config_t *config, char *err,
                     size_t err_size)
{
    bt_redis_tls_t *tls = calloc(1, sizeof(*tls));
    int rc = BT_E_NOMEM;

    if (tls == NULL)
        return rc;
    tls->context = SSL_CTX_new(TLS_client_method());
    if (config->tls_server_name != NULL)
        tls->server_name = bt_str_dup(bt_str(config->tls_server_name));
    if (tls->context != NULL && (config->tls_server_name == NULL || tls->server_name != NULL)) {
        SSL_CTX_set_min_proto_version(tls->context, TLS1_2_VERSION);
        SSL_CTX_set_verify(tls->context, SSL_VERIFY_PEER, NULL);
        /* The output moves when it grows while a write waits. */
        SSL_CTX_set_mode(tls->context,
                         SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_ENABLE_PARTIAL_WRITE);
        rc = load_files(tls->context, config, err, err_size);
    }
    if (rc != 0) {
        bt_redis_tls_free(tls);
        return rc;
    }
    *tls_p = tls;
    return 0;
}

void bt_redis_tls_free(bt_redis_tls_t *tls)
{
    if (tls == NULL)
        return;
    SSL_CTX_free(tls->context);
    free(tls->server_name);
    free(tls);
}

/* An address is compared with the certificate's addresses, a name with its names. */
static bool expect_name(SSL *ssl, const char *name)
{
    if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), name) == 1)
        return true;
    return SSL_set1_host(ssl, name) == 1 && SSL_set_tlsext_host_name(ssl, name) == 1;
}

static const char *why_of(SSL *ssl)
{
    long verified = SSL_get_verify_result(ssl);
    const char *why = ERR_reason_error_string(ERR_peek_last_error());

    ERR_clear_error(); /* it is the thread's: the next session must not see it */
    return verified != X509_V_OK ? X509_verify_cert_error_string(verified) : why;
}

const char *bt_redis_tls_why(void *session)
{
    return why_of(session);
}

const char *bt_redis_tls_attach(bt_redis_tls_t *tls, struct redisContext *c, const char *host,
                                void **session_p)
{
    SSL *ssl = SSL_new(tls->context);
    const char *why = "out of memory";

    if (ssl == NULL)
        return why;
    if (!expect_name(ssl, tls->server_name != NULL ? tls->server_name : host)) {
        why = "this name can be in no certificate";
    } else if (redisInitiateSSL(c, ssl) == REDIS_OK) {
        *session_p = ssl;
        return NULL;
    } else {
        why = why_of(ssl);
    }
    SSL_free(ssl);
    return why != NULL ? why : "it cannot begin";
}

bool bt_redis_tls_wants_read(void *session)
{
    return SSL_want_read((SSL *) session);
}

#else
int bt_redis_tls_new(bt_redis_tls_t **tls_p, const bt_store_config_t *config, char *err,
                     size_t err_size)
{
    (void) tls_p;
    (void) config;
    snprintf(err, err_size,
             "store: this build has no TLS to Redis (rediss://): it needs hiredis 1.0 with "
             "hiredis_ssl, and OpenSSL; use redis:// or build with them");
    return BT_E_CONFIG;
}

void bt_redis_tls_free(bt_redis_tls_t *tls)
{
    (void) tls;
}

const char *bt_redis_tls_attach(bt_redis_tls_t *tls, struct redisContext *c, const char *host,
                                void **session_p)
{
    (void) tls;
    (void) c;
    (void) host;
    (void) session_p;
    return "not in this build";
}

const char *bt_redis_tls_why(void *session)
{
    (void) session;
    return NULL;
}

bool bt_redis_tls_wants_read(void *session)
{
    (void) session;
    return false;
}
#endif
