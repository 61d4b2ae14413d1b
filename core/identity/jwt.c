#include "identity/jwt.h"

#include "base/text.h"
#include "identity/base64url.h"
#include "identity/members.h"

#include <openssl/ecdsa.h>
#include <openssl/err.h>
#include <openssl/evp.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define SIGNATURE_MAX 1024 /* RSA of 8192 bits */
#define P256_BYTES 32
#define TIME_MAX 1e12 /* seconds; more is no time */

struct parts {
    bt_str_t signed_text, header, payload, signature;
};

static bool split(bt_str_t token, struct parts *p)
{
    const char *end = token.p + token.n;
    const char *first = memchr(token.p, '.', token.n);
    const char *second = first != NULL ? memchr(first + 1, '.', (size_t) (end - first - 1)) : NULL;

    if (second == NULL || memchr(second + 1, '.', (size_t) (end - second - 1)) != NULL)
        return false;
    p->signed_text = (bt_str_t){token.p, (size_t) (second - token.p)};
    p->header = (bt_str_t){token.p, (size_t) (first - token.p)};
    p->payload = (bt_str_t){first + 1, (size_t) (second - first - 1)};
    p->signature = (bt_str_t){second + 1, (size_t) (end - second - 1)};
    return p->header.n > 0 && p->payload.n > 0 && p->signature.n > 0;
}

bool bt_jwt_is_like(bt_str_t text)
{
    struct parts p;

    return bt_str_starts(text, BT_STR("ey")) && split(text, &p); /* base64url of '{"' */
}

/* ---- header ---- */

static bool is_type(const bt_identity_members_t *m)
{
    char typ[16];

    if (!bt_identity_members_has(m, "typ"))
        return true;
    return bt_identity_members_text(m, "typ", typ, sizeof typ) > 0 &&
           (strcasecmp(typ, "JWT") == 0 || strcasecmp(typ, "at+jwt") == 0);
}

/* crit: extensions that must be understood, and there are none; b64 is one that changes what is signed. */
static enum bt_auth_refusal find_key(const bt_jwks_t *jwks, bt_str_t text, const bt_jwk_t **key_p)
{
    char json[BT_JWT_HEADER_MAX], kid[BT_JWKS_KID_MAX + 1] = "", alg[16];
    const long n = bt_base64url_decode(text, (unsigned char *) json, sizeof json);
    bt_identity_members_t m;

    if (n < 0 || bt_identity_members_read(&m, (bt_str_t){json, (size_t) n}) < 0 || !is_type(&m) ||
        bt_identity_members_has(&m, "crit") || bt_identity_members_has(&m, "b64") ||
        bt_identity_members_text(&m, "alg", alg, sizeof alg) < 0 ||
        (bt_identity_members_has(&m, "kid") &&
         bt_identity_members_text(&m, "kid", kid, sizeof kid) < 0))
        return BT_AUTH_TOKEN_MALFORMED;
    *key_p = bt_jwks_find(jwks, bt_str(kid));
    if (*key_p == NULL)
        return BT_AUTH_TOKEN_KEY;
    return strcmp(alg, bt_jwt_algorithm_name((*key_p)->algorithm)) == 0 ? BT_AUTH_OK
                                                                        : BT_AUTH_TOKEN_ALGORITHM;
}

/* ---- signature ---- */

/* r and s, as JOSE has them, in the DER that OpenSSL wants. Freed by the caller; NULL: no such signature. */
static unsigned char *der_of(const unsigned char *raw, size_t *n)
{
    ECDSA_SIG *sig = *n == 2 * P256_BYTES ? ECDSA_SIG_new() : NULL;
    BIGNUM *r = sig != NULL ? BN_bin2bn(raw, P256_BYTES, NULL) : NULL;
    BIGNUM *s = r != NULL ? BN_bin2bn(raw + P256_BYTES, P256_BYTES, NULL) : NULL;
    unsigned char *der = NULL;
    int length = -1;

    if (s != NULL && ECDSA_SIG_set0(sig, r, s) == 1)
        length = i2d_ECDSA_SIG(sig, &der);
    else
        BN_free(r);
    ECDSA_SIG_free(sig);
    if (length <= 0)
        return NULL;
    *n = (size_t) length;
    return der;
}

static bool is_signed_by(const bt_jwk_t *jwk, bt_str_t text, const unsigned char *signature,
                         size_t n)
{
    const EVP_MD *md = jwk->algorithm == BT_JWT_EDDSA ? NULL : EVP_sha256();
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    const bool is_ours =
        context != NULL && EVP_DigestVerifyInit(context, NULL, md, NULL, jwk->key) == 1 &&
        EVP_DigestVerify(context, signature, n, (const unsigned char *) text.p, text.n) == 1;

    EVP_MD_CTX_free(context);
    return is_ours;
}

static bool is_signed(const bt_jwk_t *jwk, const struct parts *p)
{
    unsigned char raw[SIGNATURE_MAX], *der = NULL;
    const long length = bt_base64url_decode(p->signature, raw, sizeof raw);
    size_t n = length > 0 ? (size_t) length : 0;
    bool is_ours = false;

    if (n > 0 && jwk->algorithm != BT_JWT_ES256)
        is_ours = is_signed_by(jwk, p->signed_text, raw, n);
    else if (n > 0 && (der = der_of(raw, &n)) != NULL)
        is_ours = is_signed_by(jwk, p->signed_text, der, n);
    OPENSSL_free(der);
    if (!is_ours)
        ERR_clear_error(); /* TLS sessions of this thread look at the same queue */
    return is_ours;
}

/* ---- claims ---- */

static bool is_string(bt_str_t value, const char *wanted)
{
    char text[1024];
    const long n =
        bt_json_type_of(value) == BT_JSON_STRING ? bt_json_unescape(value, text, sizeof text) : -1;

    return n >= 0 && bt_str_eq((bt_str_t){text, (size_t) n}, bt_str(wanted));
}

static bool is_for(const bt_identity_members_t *m, const char *audience)
{
    const int at = bt_identity_members_find(m, "aud");
    bt_json_cursor_t cursor;
    bt_json_item_t item;
    bool found = false;
    int rc;

    if (at < 0 || m->items[at].type != BT_JSON_ARRAY)
        return at >= 0 && is_string(m->items[at].value, audience);
    rc = bt_json_array(&cursor, m->items[at].value);
    while (rc == 0 && (rc = bt_json_next(&cursor, &item)) == 1) {
        found = found || is_string(item.value, audience);
        rc = 0;
    }
    return rc == 0 && found;
}

/* A time in ms; false: it is there, and is none. Absent: *ms_p stays. */
static bool read_time(const bt_identity_members_t *m, const char *name, uint64_t *ms_p)
{
    const int at = bt_identity_members_find(m, name);
    double seconds;

    if (at < 0)
        return true;
    if (m->items[at].type != BT_JSON_NUMBER || bt_json_double(m->items[at].value, &seconds) < 0 ||
        !(seconds >= 0 && seconds < TIME_MAX))
        return false;
    *ms_p = (uint64_t) (seconds * 1000);
    return true;
}

static enum bt_auth_refusal check(const bt_jwt_rules_t *rules, const bt_identity_members_t *m,
                                  uint64_t wall_ms, uint64_t *expires_ms_p)
{
    const int iss = bt_identity_members_find(m, "iss");
    uint64_t exp = UINT64_MAX, nbf = 0;

    if (!read_time(m, "exp", &exp) || !read_time(m, "nbf", &nbf) || exp == UINT64_MAX)
        return BT_AUTH_TOKEN_CLAIMS;
    if (iss < 0 || !is_string(m->items[iss].value, rules->issuer))
        return BT_AUTH_TOKEN_ISSUER;
    if (!is_for(m, rules->audience))
        return BT_AUTH_TOKEN_AUDIENCE;
    if (wall_ms >= exp + rules->skew_ms)
        return BT_AUTH_TOKEN_EXPIRED;
    if (nbf > wall_ms + rules->skew_ms)
        return BT_AUTH_TOKEN_EARLY;
    *expires_ms_p = exp + rules->skew_ms;
    return BT_AUTH_OK;
}

/* ---- who it is ---- */

struct words {
    char sub[BT_JWT_SUB_MAX + 1], tenant[BT_TENANT_MAX + 1], scopes[512];
    uint64_t owner;
};

/* It goes into logs and records. */
static bool is_printable(const char *text)
{
    for (; *text != '\0'; text++)
        if ((unsigned char) *text < ' ' || *text == 0x7f)
            return false;
    return true;
}

/* A list becomes a text of words. */
static bool read_scope_list(bt_str_t list, char *out, size_t size)
{
    bt_json_cursor_t cursor;
    bt_json_item_t item;
    size_t used = 0;
    long n;
    int rc = bt_json_array(&cursor, list);

    while (rc == 0 && (rc = bt_json_next(&cursor, &item)) == 1) {
        if (item.type != BT_JSON_STRING || used + 2 >= size ||
            (n = bt_json_unescape(item.value, out + used, size - used - 2)) < 0 ||
            memchr(out + used, '\0', (size_t) n) != NULL)
            return false;
        used += (size_t) n;
        out[used++] = ' ';
        rc = 0;
    }
    out[used] = '\0';
    return rc == 0;
}

static bool read_scopes(const bt_jwt_rules_t *rules, const bt_identity_members_t *m, char *out,
                        size_t size)
{
    const int at = bt_identity_members_find(m, rules->scope_claim);

    out[0] = '\0';
    if (at < 0) {
        bt_str_copy(out, size, BT_SCOPES_CLIENT);
        return true;
    }
    if (m->items[at].type == BT_JSON_ARRAY)
        return read_scope_list(m->items[at].value, out, size);
    return bt_str_eq(m->items[at].value, BT_STR("\"\"")) ||
           bt_identity_members_text(m, rules->scope_claim, out, size) > 0;
}

static bool read_words(const bt_jwt_rules_t *rules, const bt_identity_members_t *m, struct words *w)
{
    char name[1024];

    if (bt_identity_members_text(m, "sub", w->sub, sizeof w->sub) < 0 || !is_printable(w->sub) ||
        !read_scopes(rules, m, w->scopes, sizeof w->scopes))
        return false;
    snprintf(name, sizeof name, "%s\n%s", rules->issuer, w->sub);
    w->owner = bt_identity_owner(BT_STR("jwt:"), bt_str(name));
    if (!bt_identity_members_has(m, rules->tenant_claim)) {
        snprintf(w->tenant, sizeof w->tenant, "jwt-%08x", (unsigned) w->owner);
        return true;
    }
    return bt_identity_members_text(m, rules->tenant_claim, w->tenant, sizeof w->tenant) > 0 &&
           bt_tenant_is_name(bt_str(w->tenant));
}

static void put_claims(const bt_jwt_rules_t *rules, const bt_identity_members_t *m, bt_text_t *out)
{
    bool is_first = true;

    bt_text_puts(out, "{");
    for (unsigned i = 0; rules->claims != NULL && rules->claims[i] != NULL; i++) {
        const int at = bt_identity_members_find(m, rules->claims[i]);
        if (at < 0)
            continue;
        bt_text_puts(out, is_first ? "" : ",");
        bt_text_json_str(out, bt_str(rules->claims[i]));
        bt_text_puts(out, ":");
        bt_text_put(out, m->items[at].value);
        is_first = false;
    }
    bt_text_puts(out, "}");
}

static enum bt_auth_refusal describe(const bt_jwt_rules_t *rules, const bt_identity_members_t *m,
                                     bt_jwt_t *jwt)
{
    bt_identity_t *who = &jwt->identity;
    bt_text_t claims;
    struct words w;

    if (!read_words(rules, m, &w))
        return BT_AUTH_TOKEN_CLAIMS;
    bt_text_init(&claims);
    if (rules->claims != NULL)
        put_claims(rules, m, &claims);
    const size_t size = strlen(w.sub) + strlen(w.tenant) + strlen(w.scopes) + claims.len;
    char *at = claims.failed || claims.len > BT_JWT_CLAIMS_MAX ? NULL : malloc(size + 1);
    jwt->texts = at;
    if (at != NULL) {
        *who = (bt_identity_t){.source = BT_IDENTITY_JWT,
                               .scopes = bt_scopes_read(bt_str(w.scopes), NULL),
                               .owner = w.owner};
        who->id = bt_str_put(&at, bt_str(w.sub));
        who->tenant = bt_str_put(&at, bt_str(w.tenant));
        who->scope_names = bt_str_put(&at, bt_str(w.scopes));
        who->claims = bt_str_put(&at, bt_text_str(&claims));
    }
    bt_text_fini(&claims);
    return jwt->texts != NULL ? BT_AUTH_OK : BT_AUTH_TOKEN_CLAIMS;
}

enum bt_auth_refusal bt_jwt_verify(const bt_jwt_rules_t *rules, const bt_jwks_t *jwks,
                                   bt_str_t token, uint64_t wall_ms, bt_jwt_t *jwt)
{
    char json[BT_JWT_BYTES_MAX];
    enum bt_auth_refusal refusal;
    const bt_jwk_t *key = NULL;
    bt_identity_members_t m;
    struct parts p;
    long n;

    *jwt = (bt_jwt_t){.texts = NULL};
    if (token.n > BT_JWT_BYTES_MAX || !split(token, &p))
        return BT_AUTH_TOKEN_MALFORMED;
    refusal = find_key(jwks, p.header, &key);
    if (refusal != BT_AUTH_OK)
        return refusal;
    if (!is_signed(key, &p))
        return BT_AUTH_TOKEN_SIGNATURE;
    n = bt_base64url_decode(p.payload, (unsigned char *) json, sizeof json);
    if (n < 0 || bt_identity_members_read(&m, (bt_str_t){json, (size_t) n}) < 0)
        return BT_AUTH_TOKEN_MALFORMED;
    refusal = check(rules, &m, wall_ms, &jwt->expires_ms);
    return refusal == BT_AUTH_OK ? describe(rules, &m, jwt) : refusal;
}

void bt_jwt_fini(bt_jwt_t *jwt)
{
    free(jwt->texts);
    jwt->texts = NULL;
}
