/* --tls-*: what belongs together, and whether the files can be used at all. */
#include "config/config_impl.h"

#include "base/err.h"
#include "tls/peer.h"

#include <stdio.h>

static const struct listener {
    size_t offset;
    const char *cert, *key, *client_ca, *client_allow, *name;
} listeners[] = {
    {offsetof(bt_config_t, tls), "tls-cert", "tls-key", "tls-client-ca", "tls-client-allow",
     "clients"},
    {offsetof(bt_config_t, admin_tls), "admin-tls-cert", "admin-tls-key", "admin-tls-client-ca",
     "admin-tls-client-allow", "admin"},
};
#define LISTENERS (sizeof listeners / sizeof listeners[0])

static const bt_config_tls_t *tls_at(const bt_config_t *c, const struct listener *l)
{
    return (const void *) ((const char *) c + l->offset);
}

static int check_listener(const bt_config_tls_t *tls, const struct listener *l, char *err,
                          size_t err_size)
{
    if (tls->cert_count != tls->key_count)
        return bt_err_refuse(err, err_size,
                             "--%s: there are %u of them and %u of --%s: each certificate needs "
                             "its key, in the same order",
                             l->cert, tls->cert_count, tls->key_count, l->key);
    if (tls->client_ca != NULL && tls->cert_count == 0)
        return bt_err_refuse(err, err_size, "--%s: only with --%s and --%s", l->client_ca, l->cert,
                             l->key);
    if (tls->client_allow_count > 0 && tls->client_ca == NULL)
        return bt_err_refuse(err, err_size,
                             "--%s: only with --%s: names count where somebody vouches for them",
                             l->client_allow, l->client_ca);
    for (unsigned i = 0; i < tls->client_allow_count; i++) {
        const char *why = bt_tls_pattern_error(tls->client_allow[i]);
        if (why != NULL)
            return bt_err_refuse(err, err_size, "--%s: \"%.120s\" %s", l->client_allow,
                                 tls->client_allow[i], why);
    }
    return 0;
}

int bt_config_check_tls(const bt_config_t *c, char *err, size_t err_size)
{
    int rc = 0;

    for (unsigned i = 0; i < LISTENERS && rc == 0; i++)
        rc = check_listener(tls_at(c, &listeners[i]), &listeners[i], err, err_size);
    if (rc == 0 && c->tls_client_auth != 0 && c->tls.client_ca == NULL)
        rc = bt_err_refuse(err, err_size, "--tls-client-auth: only with --tls-client-ca");
    if (rc == 0 && c->tls_client_tenant != 0 && c->tls.client_ca == NULL)
        rc = bt_err_refuse(err, err_size, "--tls-client-tenant: only with --tls-client-ca");
    if (rc == 0 && c->admin_tls_client_scope != 0 && c->admin_tls.client_ca == NULL)
        rc = bt_err_refuse(err, err_size,
                           "--admin-tls-client-scope: only with --admin-tls-client-ca: it would be "
                           "anybody's");
    if (rc == 0 && (c->worker_tls_cert == NULL) != (c->worker_tls_key == NULL))
        rc = bt_err_refuse(err, err_size, "--worker-tls-%s: only with --worker-tls-%s",
                           c->worker_tls_cert != NULL ? "cert" : "key",
                           c->worker_tls_cert != NULL ? "key" : "cert");
    return rc;
}

bt_tls_server_config_t bt_config_tls_of(const bt_config_t *c, const bt_config_tls_t *tls)
{
    return (bt_tls_server_config_t){
        .certs = (const char *const *) tls->certs,
        .keys = (const char *const *) tls->keys,
        .client_ca = tls->client_ca,
        .client_allow = (const char *const *) tls->client_allow,
        .ciphers = c->tls_ciphers,
        .client_may_be_nobody = tls == &c->tls && c->tls_client_auth != 0,
        .is_13_only = c->tls_min_version != 0,
        .has_http2 = tls == &c->tls && c->server.has_http2,
    };
}

int bt_config_check_tls_files(const bt_config_t *c, char *err, size_t err_size)
{
    int rc = 0;

    for (unsigned i = 0; i < LISTENERS && rc == 0; i++) {
        const bt_config_tls_t *tls = tls_at(c, &listeners[i]);
        const bt_tls_server_config_t config = bt_config_tls_of(c, tls);
        bt_tls_server_t *server = NULL;
        char why[BT_CONFIG_ERR_BYTES / 2] = "";
        if (tls->cert_count > 0)
            rc = bt_tls_server_new(&server, &config, why, sizeof why);
        if (rc < 0)
            snprintf(err, err_size, "--%s: %s", listeners[i].cert,
                     rc == BT_E_CONFIG ? why : bt_err_text(rc));
        bt_tls_server_free(server);
    }
    return rc;
}

void bt_config_describe_tls(const bt_config_t *c, bt_text_t *out)
{
    for (unsigned i = 0; i < LISTENERS; i++) {
        const bt_config_tls_t *tls = tls_at(c, &listeners[i]);
        if (tls->cert_count > 0)
            bt_text_printf(out, "TLS for %s: %u certificate%s%s\n", listeners[i].name,
                           tls->cert_count, tls->cert_count > 1 ? "s" : "",
                           tls->client_ca == NULL ? ""
                           : tls == &c->tls && c->tls_client_auth != 0
                               ? ", a client's is checked"
                               : ", one of --tls-client-ca is asked for");
    }
}
