#include "gateway/identity.h"

#include "admin/call/audit.h"
#include "base/err.h"
#include "base/log.h"
#include "gateway/jwks_url.h"
#include "gateway/keys_store.h"
#include "gateway/watched_file.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct key_file {
    bt_watched_file_t file;
    bt_gateway_t *gateway;
    bt_identities_t *all;
    bt_key_table_t *now;  /* that counts; a reference */
    uint64_t fingerprint; /* likewise, of a key set */
    /* the pool thread's while it reads */
    bt_key_table_t *keys;
    bt_jwks_t *jwks;
    int rc;
    char err[512];
} key_file_t;

struct bt_gateway_identity {
    bt_identities_t *all;
    key_file_t *keys, *jwks; /* NULL = no such file */
    bt_jwks_url_t *url;
    bt_keys_store_t *store; /* NULL = keys are of a file, or there are none */
};

static key_file_t *of(bt_watched_file_t *file)
{
    return bt_container_of(file, key_file_t, file);
}

/* ---- clients' keys ---- */

static void read_keys(bt_watched_file_t *file)
{
    key_file_t *f = of(file);

    f->rc = bt_key_table_read(file->path, &f->keys, f->err, sizeof f->err);
}

static void say_refused(const key_file_t *f, const char *what)
{
    const char *why = f->rc == BT_E_CONFIG ? f->err : bt_err_text(f->rc);
    bt_audit_change_t change;

    bt_gateway_audit_keys(f->gateway, f->file.path, &change);
    bt_audit_end(&change, 0, bt_str(why));
    bt_log_error("gateway", "%s refused, those before count on: %s", what, why);
}

static void take_keys(bt_watched_file_t *file)
{
    key_file_t *f = of(file);
    bt_audit_change_t change;

    if (f->rc < 0) {
        say_refused(f, "client keys");
        return;
    }
    if (bt_key_table_same(f->keys, f->now))
        return;
    bt_key_table_unref(f->now);
    f->now = bt_key_table_ref(f->keys);
    bt_gateway_audit_keys(f->gateway, file->path, &change);
    bt_identities_set_keys(f->all, bt_key_table_ref(f->keys));
    bt_audit_end(&change, 0, BT_STR(""));
    bt_log_info("gateway", "%u client keys count from now on", bt_key_table_count(f->keys));
}

/* ---- an issuer's keys ---- */

static void read_jwks(bt_watched_file_t *file)
{
    key_file_t *f = of(file);

    f->rc = bt_jwks_read_file(file->path, &f->jwks, f->err, sizeof f->err);
}

static void take_jwks(bt_watched_file_t *file)
{
    key_file_t *f = of(file);
    bt_audit_change_t change;

    if (f->rc < 0) {
        say_refused(f, "the issuer's keys");
        return;
    }
    if (f->jwks->fingerprint == f->fingerprint)
        return;
    f->fingerprint = f->jwks->fingerprint;
    bt_gateway_audit_keys(f->gateway, file->path, &change);
    (void) bt_identities_set_jwks(f->all, bt_jwks_ref(f->jwks));
    bt_audit_end(&change, 0, BT_STR(""));
    bt_log_info("gateway", "%u keys of the issuer count from now on, %u are of no use here",
                f->jwks->count, f->jwks->left_out);
}

/* ---- both ---- */

static void drop(bt_watched_file_t *file)
{
    key_file_t *f = of(file);

    bt_key_table_unref(f->keys);
    bt_jwks_unref(f->jwks);
    f->keys = NULL;
    f->jwks = NULL;
}

static void on_failed(bt_watched_file_t *file, const char *why)
{
    bt_log_warn("gateway", "%s: %s; the keys that were in it count on", file->path, why);
}

static void on_freed(bt_watched_file_t *file)
{
    key_file_t *f = of(file);

    bt_key_table_unref(f->now);
    free(f);
}

static int follow(bt_gateway_t *g, const char *path, bool is_jwks, key_file_t **file_p)
{
    key_file_t *f = calloc(1, sizeof *f);
    int rc;

    if (f == NULL)
        return BT_E_NOMEM;
    f->gateway = g;
    f->all = g->identity->all;
    f->fingerprint = is_jwks ? g->config->jwks->fingerprint : 0;
    f->now = is_jwks ? NULL : bt_key_table_ref(g->config->client_keys);
    f->file = (bt_watched_file_t){.path = path,
                                  .read = is_jwks ? read_jwks : read_keys,
                                  .take = is_jwks ? take_jwks : take_keys,
                                  .drop = drop,
                                  .failed = on_failed,
                                  .freed = on_freed};
    if ((rc = bt_watched_file_open(&f->file, &g->control)) < 0) {
        on_freed(&f->file);
        return rc;
    }
    *file_p = f;
    return 0;
}

/* ---- life ---- */

int bt_gateway_identity_open(bt_gateway_t *g, char *err, size_t err_size)
{
    const bt_config_t *c = g->config;
    struct bt_gateway_identity *i;
    int rc;

    if (!c->dispatch.asks_identity)
        return 0;
    if ((i = calloc(1, sizeof *i)) == NULL)
        return BT_E_NOMEM;
    g->identity = i;
    if ((rc = bt_identities_new(&i->all, c->jwt_issuer != NULL ? &c->jwt : NULL)) < 0)
        return rc;
    if (c->client_keys != NULL)
        bt_identities_set_keys(i->all, bt_key_table_ref(c->client_keys));
    if (c->jwks != NULL)
        (void) bt_identities_set_jwks(i->all, bt_jwks_ref(c->jwks));
    g->shared.identities = i->all;
    if (c->jwt_jwks_url == NULL)
        return 0;
    return bt_jwks_url_new(&i->url, &g->control,
                           &(bt_jwks_url_config_t){.url = c->jwt_jwks_url,
                                                   .ca_file = c->jwt_jwks_ca_file,
                                                   .ttl_ms = c->jwt_jwks_ttl_ms,
                                                   .identities = i->all},
                           err, err_size);
}

int bt_gateway_identity_start(bt_gateway_t *g)
{
    struct bt_gateway_identity *i = g->identity;
    int rc = 0;

    if (i == NULL)
        return 0;
    if (g->config->client_keys_file != NULL)
        rc = follow(g, g->config->client_keys_file, false, &i->keys);
    if (rc == 0 && g->config->client_keys_in_store)
        rc = bt_keys_store_open(&i->store, g, i->all);
    if (rc == 0 && g->config->jwt_jwks_file != NULL)
        rc = follow(g, g->config->jwt_jwks_file, true, &i->jwks);
    if (i->url != NULL)
        bt_jwks_url_start(i->url);
    return rc;
}

/* The files are read again, and not taken from the configuration that SIGHUP has loaded: while its policies were tried, a key may have been
 * revoked. */
void bt_gateway_identity_again(bt_gateway_t *g)
{
    struct bt_gateway_identity *i = g->identity;

    if (i != NULL && i->keys != NULL)
        bt_watched_file_look(&i->keys->file);
    if (i != NULL && i->jwks != NULL)
        bt_watched_file_look(&i->jwks->file);
    if (i != NULL && i->url != NULL)
        bt_jwks_url_again(i->url);
}

void bt_gateway_identity_stop(bt_gateway_t *g)
{
    struct bt_gateway_identity *i = g->identity;

    if (i == NULL)
        return;
    if (i->keys != NULL)
        bt_watched_file_close(&i->keys->file);
    if (i->jwks != NULL)
        bt_watched_file_close(&i->jwks->file);
    bt_jwks_url_close(i->url);
    bt_keys_store_close(i->store);
    i->store = NULL;
    i->keys = i->jwks = NULL;
    i->url = NULL;
}

void bt_gateway_identity_free(bt_gateway_t *g)
{
    if (g->identity != NULL)
        bt_identities_free(g->identity->all);
    free(g->identity);
    g->identity = NULL;
}
