/* client.c - contexts and sessions of the side that dials.
 *
 * A system's CAs are some hundred certificates: workers with the same files share a context, found in one list. A session takes what
 * it needs of OpenSSL's context when it is made, so the context behind a client may be another one for the next session.
 */
#include "tls/client.h"

#include "base/clock.h"
#include "base/err.h"
#include "base/list.h"
#include "base/str.h"
#include "tls/files.h"
#include "tls/session.h"

#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <stdlib.h>

#define VERIFY_AGAIN_MS (10 * 60 * 1000ULL)

struct bt_tls_client {
    bt_list_t link; /* in all; for the list's lock, as refs and context */
    unsigned refs;
    SSL_CTX *context;
    unsigned generation; /* of it */
    char *ca, *cert, *key;
    uint64_t taken, seen; /* stamps; of bt_tls_clients_look alone */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bt_list_t all = {&all, &all};
static const bt_tls_client_config_t *fallback;
static bt_tls_counts_t counts;

/* ---- contexts ---- */

/* The newest is the best: TLS 1.3's are meant to be used once. */
static int on_new_session(SSL *ssl, SSL_SESSION *ticket)
{
    bt_tls_slot_t *slot = bt_tls_session_of(ssl)->owner;

    if (slot == NULL || !SSL_SESSION_is_resumable(ticket))
        return 0;
    if (SSL_session_reused(ssl) && bt_tls_session_of(ssl)->generation != slot->generation)
        return 0; /* what was verified by the CA before the last reload is no ticket past it */
    SSL_SESSION_free(slot->session);
    slot->session = ticket;
    if (!SSL_session_reused(ssl)) {
        slot->generation = bt_tls_session_of(ssl)->generation;
        slot->verified_ms = bt_clock_ms();
    }
    return 1; /* ours now */
}

static int prepare(SSL_CTX *context, const bt_tls_client_config_t *config, char *err,
                   size_t err_size)
{
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

static int make_context(SSL_CTX **context_p, const bt_tls_client_config_t *config, char *err,
                        size_t err_size)
{
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    int rc = BT_E_NOMEM;

    bt_tls_open_key_heap();
    if (context != NULL)
        rc = prepare(context, config, err, err_size);
    ERR_clear_error();
    if (rc < 0)
        SSL_CTX_free(context);
    else
        *context_p = context;
    return rc;
}

static uint64_t stamp_of(const bt_tls_client_t *client)
{
    return bt_tls_file_stamp(bt_tls_file_stamp(bt_tls_file_stamp(0, client->ca), client->cert),
                             client->key);
}

/* ---- who has them ---- */

static void free_client(bt_tls_client_t *client)
{
    SSL_CTX_free(client->context);
    free(client->ca);
    free(client->cert);
    free(client->key);
    free(client);
}

static bool copy(char **to, const char *from)
{
    *to = from != NULL ? bt_str_dup(bt_str(from)) : NULL;
    return from == NULL || *to != NULL;
}

static int make_client(bt_tls_client_t **client_p, const bt_tls_client_config_t *config, char *err,
                       size_t err_size)
{
    bt_tls_client_t *client = calloc(1, sizeof(*client));
    int rc = BT_E_NOMEM;

    if (client == NULL)
        return rc;
    bt_list_init(&client->link);
    client->refs = 1;
    if (copy(&client->ca, config->ca) && copy(&client->cert, config->cert) &&
        copy(&client->key, config->key))
        rc = make_context(&client->context, config, err, err_size);
    if (rc < 0) {
        free_client(client);
        return rc;
    }
    client->taken = client->seen = stamp_of(client);
    *client_p = client;
    return 0;
}

static bool is_same(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

static bt_tls_client_t *find(const bt_tls_client_config_t *config)
{
    bt_list_t *it, *tmp;

    bt_list_each (&all, it, tmp) {
        bt_tls_client_t *client = bt_container_of(it, bt_tls_client_t, link);
        if (is_same(client->ca, config->ca) && is_same(client->cert, config->cert) &&
            is_same(client->key, config->key))
            return client;
    }
    return NULL;
}

/* Under the lock, files and all: whoever makes workers is one thread. */
int bt_tls_client_get(bt_tls_client_t **client_p, const bt_tls_client_config_t *config, char *err,
                      size_t err_size)
{
    int rc = 0;

    pthread_mutex_lock(&lock);
    bt_tls_client_t *client = find(config);
    if (client != NULL)
        client->refs++;
    else if ((rc = make_client(&client, config, err, err_size)) == 0)
        bt_list_push(&all, &client->link);
    pthread_mutex_unlock(&lock);
    if (rc == 0)
        *client_p = client;
    return rc;
}

bt_tls_client_t *bt_tls_client_ref(bt_tls_client_t *client)
{
    pthread_mutex_lock(&lock);
    client->refs++;
    pthread_mutex_unlock(&lock);
    return client;
}

void bt_tls_client_unref(bt_tls_client_t *client)
{
    if (client == NULL)
        return;
    pthread_mutex_lock(&lock);
    const bool is_last = --client->refs == 0;
    if (is_last)
        bt_list_remove(&client->link);
    pthread_mutex_unlock(&lock);
    if (is_last)
        free_client(client);
}

void bt_tls_client_set_default(const bt_tls_client_config_t *config)
{
    fallback = config;
}

int bt_tls_client_of_worker(bt_tls_client_t **client_p, const bt_tls_client_config_t *own,
                            char *err, size_t err_size)
{
    bt_tls_client_config_t config = *own;

    if (config.ca == NULL && fallback != NULL)
        config.ca = fallback->ca;
    if (config.cert == NULL && config.key == NULL && fallback != NULL) {
        config.cert = fallback->cert;
        config.key = fallback->key;
    }
    return bt_tls_client_get(client_p, &config, err, err_size);
}

/* ---- files that change ---- */

static void look_at(bt_tls_client_t *client, bool is_forced, bt_tls_client_told told, void *user)
{
    const bt_tls_client_config_t config = {client->ca, client->cert, client->key};
    const uint64_t stamp = stamp_of(client);
    const bool is_stable = stamp == client->seen;
    SSL_CTX *context = NULL;
    char err[1024] = "";

    client->seen = stamp;
    if (!is_forced && (stamp == client->taken || !is_stable))
        return;
    client->taken = stamp;
    int rc = make_context(&context, &config, err, sizeof(err));
    if (rc == 0) {
        pthread_mutex_lock(&lock);
        SSL_CTX *before = client->context;
        client->context = context;
        client->generation++;
        pthread_mutex_unlock(&lock);
        SSL_CTX_free(before);
    }
    told(user, rc, err[0] != '\0' ? err : bt_err_text(rc));
}

/* The n-th, referenced: the list is free meanwhile. One that is missed for another's sake is seen the next time. */
static bt_tls_client_t *nth(unsigned n)
{
    bt_tls_client_t *client = NULL;
    bt_list_t *it, *tmp;

    pthread_mutex_lock(&lock);
    bt_list_each (&all, it, tmp)
        if (client == NULL && n-- == 0)
            client = bt_container_of(it, bt_tls_client_t, link);
    if (client != NULL)
        client->refs++;
    pthread_mutex_unlock(&lock);
    return client;
}

bool bt_tls_clients_are_there(void)
{
    pthread_mutex_lock(&lock);
    const bool is_any = !bt_list_empty(&all);
    pthread_mutex_unlock(&lock);
    return is_any;
}

void bt_tls_clients_look(bool is_forced, bt_tls_client_told told, void *user)
{
    bt_tls_client_t *client;

    for (unsigned i = 0; (client = nth(i)) != NULL; i++) {
        look_at(client, is_forced, told, user);
        bt_tls_client_unref(client);
    }
}

/* ---- sessions ---- */

/* SNI has names only (RFC 6066). */
static bool expect_name(SSL *ssl, const char *name)
{
    if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), name) == 1)
        return true;
    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    return SSL_set1_host(ssl, name) == 1 && SSL_set_tlsext_host_name(ssl, name) == 1;
}

static int make_session(bt_tls_client_t *client, const char *name, bt_tls_counts_t *to,
                        bt_tls_session_t **session_p)
{
    pthread_mutex_lock(&lock);
    SSL_CTX *context = client->context;
    const unsigned generation = client->generation;
    SSL_CTX_up_ref(context);
    pthread_mutex_unlock(&lock);
    bt_tls_session_t *session = bt_tls_session_new(context, to);
    SSL_CTX_free(context);

    if (session == NULL)
        return BT_E_NOMEM;
    if (!expect_name(session->ssl, name)) {
        ERR_clear_error();
        bt_tls_session_free(session);
        return BT_E_INVAL;
    }
    session->generation = generation;
    SSL_set_connect_state(session->ssl);
    session->cipher.connects = true;
    *session_p = session;
    return 0;
}

int bt_tls_client_attach(bt_tls_client_t *client, bt_stream_t *stream, const char *name,
                         bt_tls_slot_t *slot)
{
    bt_tls_session_t *session;
    int rc = make_session(client, name, &counts, &session);

    if (rc < 0)
        return rc;
    session->owner = slot;
    if (slot != NULL && slot->session != NULL && slot->generation == session->generation &&
        bt_clock_ms() - slot->verified_ms < VERIFY_AGAIN_MS)
        (void) SSL_set_session(session->ssl, slot->session);
    bt_stream_set_cipher(stream, &session->cipher);
    return 0;
}

int bt_tls_client_cipher(bt_tls_client_t *client, const char *name, bt_tls_counts_t *to,
                         bt_cipher_t **cipher_p)
{
    bt_tls_session_t *session;
    int rc = make_session(client, name, to, &session);

    if (rc == 0)
        *cipher_p = &session->cipher;
    return rc;
}

const char *bt_tls_cipher_why(const bt_cipher_t *cipher)
{
    return ((const bt_tls_session_t *) cipher)->why;
}

void bt_tls_slot_fini(bt_tls_slot_t *slot)
{
    SSL_SESSION_free(slot->session);
    *slot = (bt_tls_slot_t){0};
}

const bt_tls_counts_t *bt_tls_client_counts(void)
{
    return &counts;
}
