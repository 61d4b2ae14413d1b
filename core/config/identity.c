/* Who may ask: the file of keys, and the issuer whose tokens are believed. */
#include "config/config_impl.h"

#include "base/err.h"

#include <stdio.h>

#define URL_MAX_BYTES 1024

/* The host of a URL, without brackets and port. */
static bool host_of(const char *url, char *host, size_t size)
{
    const char *from = strstr(url, "://"), *end;

    if (from == NULL)
        return false;
    from += 3;
    if (*from == '[') {
        end = strchr(++from, ']');
    } else {
        end = from + strcspn(from, "/:?#");
    }
    const size_t n = end != NULL ? (size_t) (end - from) : 0;
    if (n == 0 || n >= size)
        return false;
    memcpy(host, from, n);
    host[n] = '\0';
    return true;
}

/* Whoever can change the answer signs tokens of his own: it comes encrypted, or from this machine. */
static int check_url(const char *url, char *err, size_t err_size)
{
    char host[256];
    const bool is_https = strncmp(url, "https://", 8) == 0;

    if ((!is_https && strncmp(url, "http://", 7) != 0) || strlen(url) > URL_MAX_BYTES ||
        strpbrk(url, " \t\r\n@#") != NULL || !host_of(url, host, sizeof host))
        return bt_err_refuse(err, err_size,
                             "--jwt-jwks-url: expected https://HOST/PATH, got \"%.120s\"", url);
    if (!is_https && !bt_host_is_loopback(host))
        return bt_err_refuse(err, err_size,
                             "--jwt-jwks-url: http:// is for this machine only: whoever is on the "
                             "way could put keys into the answer; use https://, with "
                             "--jwt-jwks-ca-file if its CA is your own");
    return 0;
}

static int check_jwt(const bt_config_t *c, char *err, size_t err_size)
{
    const bool has_keys = c->jwt_jwks_file != NULL || c->jwt_jwks_url != NULL;

    if (!has_keys && (c->jwt_issuer != NULL || c->jwt_audience != NULL))
        return bt_err_refuse(err, err_size,
                             "--jwt-issuer, --jwt-audience: the issuer's public keys are missing: "
                             "add --jwt-jwks-file FILE or --jwt-jwks-url URL");
    if (!has_keys)
        return 0;
    if (c->jwt_jwks_file != NULL && c->jwt_jwks_url != NULL)
        return bt_err_refuse(err, err_size,
                             "--jwt-jwks-file and --jwt-jwks-url: only one of them may be given");
    if (c->jwt_issuer == NULL || c->jwt_audience == NULL)
        return bt_err_refuse(err, err_size,
                             "%s: missing: a token that the same keys sign for somebody else would "
                             "be believed",
                             c->jwt_issuer == NULL ? "--jwt-issuer" : "--jwt-audience");
    return c->jwt_jwks_url != NULL ? check_url(c->jwt_jwks_url, err, err_size) : 0;
}

static int set_default(char **to, const char *text)
{
    if (*to == NULL)
        *to = bt_str_dup(bt_str(text));
    return *to != NULL ? 0 : BT_E_NOMEM;
}

static int read_jwks(bt_config_t *c, char *err, size_t err_size)
{
    char why[512] = "";
    int rc = c->jwt_jwks_file != NULL
                 ? bt_jwks_read_file(c->jwt_jwks_file, &c->jwks, why, sizeof why)
                 : 0;

    return rc == BT_E_CONFIG ? bt_err_refuse(err, err_size, "--jwt-jwks-file: %s", why) : rc;
}

static int finish_jwt(bt_config_t *c, char *err, size_t err_size)
{
    int rc = check_jwt(c, err, err_size);

    if (rc < 0 || c->jwt_issuer == NULL)
        return rc;
    rc = set_default(&c->jwt_tenant_claim, "tenant");
    if (rc == 0)
        rc = set_default(&c->jwt_scope_claim, "scope");
    if (rc == 0)
        rc = read_jwks(c, err, err_size);
    c->jwt = (bt_jwt_rules_t){.issuer = c->jwt_issuer,
                              .audience = c->jwt_audience,
                              .tenant_claim = c->jwt_tenant_claim,
                              .scope_claim = c->jwt_scope_claim,
                              .skew_ms = c->jwt_skew_ms};
    if (c->jwt_claim_count > 0)
        c->jwt.claims = (const char *const *) c->jwt_claims;
    return rc;
}

/* Who shows no key, beside those who do. */
static int finish_anonymous(bt_config_t *c, char *err, size_t err_size)
{
    bt_str_t unknown = BT_STR_NULL;

    if (c->anonymous_scopes == NULL && c->anonymous_models == NULL)
        return 0;
    if (c->anonymous_scopes == NULL)
        return bt_err_refuse(
            err, err_size,
            "--anonymous-models: only with --anonymous-scopes: who shows no key is "
            "refused");
    if (!c->dispatch.asks_identity)
        return bt_err_refuse(
            err, err_size,
            "--anonymous-scopes: nobody is asked for a key: add "
            "--client-api-keys-file, --client-api-keys-in-store or --jwt-issuer, or leave it out");
    const unsigned scopes = bt_scopes_read(bt_str(c->anonymous_scopes), &unknown);
    if (unknown.n > 0 || scopes == 0 || (scopes & ~(unsigned) BT_MAY_AS_CLIENT) != 0)
        return bt_err_refuse(err, err_size,
                             "--anonymous-scopes: expected some of " BT_SCOPES_CLIENT
                             ", got \"%.120s\"",
                             c->anonymous_scopes);
    c->dispatch.anonymous = (bt_identity_t){
        .source = BT_IDENTITY_ANONYMOUS,
        .scopes = scopes,
        .tenant = BT_STR(BT_TENANT_ANONYMOUS),
        .scope_names = bt_str(c->anonymous_scopes),
        .models = c->anonymous_models != NULL ? bt_str(c->anonymous_models) : BT_STR_NULL};
    return 0;
}

int bt_config_finish_identity(bt_config_t *c, char *err, size_t err_size)
{
    char why[512] = "";
    int rc = finish_jwt(c, err, err_size);

    if (rc == 0 && c->client_keys_in_store && c->client_keys_file != NULL)
        return bt_err_refuse(
            err, err_size,
            "--client-api-keys-in-store: beside --client-api-keys-file: keys are in a "
            "file or in the store, leave one out");
    if (rc == 0 && c->client_keys_in_store && c->redis_url == NULL)
        return bt_err_refuse(
            err, err_size, "--client-api-keys-in-store: there is no --redis-url to read them from");
    if (rc == 0 && c->client_keys_file != NULL)
        rc = bt_key_table_read(c->client_keys_file, &c->client_keys, why, sizeof why);
    if (rc == BT_E_CONFIG && why[0] != '\0')
        return bt_err_refuse(err, err_size, "--client-api-keys-file: %s", why);
    c->dispatch.asks_identity =
        c->client_keys != NULL || c->client_keys_in_store || c->jwt_issuer != NULL;
    return rc == 0 ? finish_anonymous(c, err, err_size) : rc;
}
