/* A key that this gateway cannot use is no mistake of the set: issuers list keys for encryption and for other algorithms in the same one.
 * What must not be there at all (a secret: kty oct, or a private key's d) is left out likewise, so that nothing can be verified by it. */
#include "identity/jwks.h"

#include "base/err.h"
#include "identity/base64url.h"
#include "identity/members.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/param_build.h>

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#define NUMBER_MAX 1024 /* bytes: RSA of 8192 bits */
#define RSA_BITS_MIN 2048
#define COORDINATE 32
#define ED25519_BYTES 32

const char *bt_jwt_algorithm_name(enum bt_jwt_algorithm algorithm)
{
    static const char *const names[] = {"RS256", "ES256", "EdDSA"};

    return names[algorithm];
}

/* ---- a key ---- */

/* A member of base64url; its bytes, or -1. */
static long bytes_of(const bt_identity_members_t *m, const char *name, unsigned char *out,
                     size_t size)
{
    char text[(NUMBER_MAX + 2) / 3 * 4 + 1];
    const long n = bt_identity_members_text(m, name, text, sizeof text);

    return n < 0 ? -1 : bt_base64url_decode((bt_str_t){text, (size_t) n}, out, size);
}

static EVP_PKEY *make(const char *type, OSSL_PARAM *params)
{
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new_from_name(NULL, type, NULL);
    EVP_PKEY *key = NULL;

    if (context == NULL || params == NULL || EVP_PKEY_fromdata_init(context) != 1 ||
        EVP_PKEY_fromdata(context, &key, EVP_PKEY_PUBLIC_KEY, params) != 1)
        key = NULL;
    EVP_PKEY_CTX_free(context);
    return key;
}

static EVP_PKEY *make_rsa(const bt_identity_members_t *m)
{
    unsigned char n[NUMBER_MAX], e[8];
    const long n_bytes = bytes_of(m, "n", n, sizeof n), e_bytes = bytes_of(m, "e", e, sizeof e);
    OSSL_PARAM_BLD *build = OSSL_PARAM_BLD_new();
    BIGNUM *modulus = n_bytes > 0 ? BN_bin2bn(n, (int) n_bytes, NULL) : NULL;
    BIGNUM *exponent = e_bytes > 0 ? BN_bin2bn(e, (int) e_bytes, NULL) : NULL;
    OSSL_PARAM *params = NULL;
    EVP_PKEY *key = NULL;

    if (build != NULL && modulus != NULL && exponent != NULL && BN_is_odd(exponent) &&
        !BN_is_one(exponent) && BN_num_bits(modulus) >= RSA_BITS_MIN &&
        OSSL_PARAM_BLD_push_BN(build, OSSL_PKEY_PARAM_RSA_N, modulus) == 1 &&
        OSSL_PARAM_BLD_push_BN(build, OSSL_PKEY_PARAM_RSA_E, exponent) == 1)
        params = OSSL_PARAM_BLD_to_param(build);
    if (params != NULL)
        key = make("RSA", params);
    OSSL_PARAM_free(params);
    BN_free(exponent);
    BN_free(modulus);
    OSSL_PARAM_BLD_free(build);
    return key;
}

static EVP_PKEY *make_p256(const bt_identity_members_t *m)
{
    unsigned char point[1 + 2 * COORDINATE] = {4}; /* uncompressed */
    char group[] = "P-256";

    if (bytes_of(m, "x", point + 1, COORDINATE) != COORDINATE ||
        bytes_of(m, "y", point + 1 + COORDINATE, COORDINATE) != COORDINATE)
        return NULL;
    OSSL_PARAM params[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_PKEY_PARAM_GROUP_NAME, group, 0),
        OSSL_PARAM_construct_octet_string(OSSL_PKEY_PARAM_PUB_KEY, point, sizeof point),
        OSSL_PARAM_construct_end()};
    return make("EC", params); /* which refuses points that are not on the curve */
}

static EVP_PKEY *make_ed25519(const bt_identity_members_t *m)
{
    unsigned char x[ED25519_BYTES];

    if (bytes_of(m, "x", x, sizeof x) != ED25519_BYTES)
        return NULL;
    return EVP_PKEY_new_raw_public_key_ex(NULL, "ED25519", NULL, x, sizeof x);
}

static bool is_text(const bt_identity_members_t *m, const char *name, const char *value)
{
    char text[64];

    return bt_identity_members_text(m, name, text, sizeof text) > 0 && strcmp(text, value) == 0;
}

/* Absent, or so. */
static bool may_be(const bt_identity_members_t *m, const char *name, const char *value)
{
    return !bt_identity_members_has(m, name) || is_text(m, name, value);
}

static void make_key(const bt_identity_members_t *m, bt_jwk_t *jwk)
{
    if (bt_identity_members_has(m, "d") || bt_identity_members_has(m, "k") ||
        !may_be(m, "use", "sig") ||
        (bt_identity_members_has(m, "kid") &&
         bt_identity_members_text(m, "kid", jwk->kid, sizeof jwk->kid) < 0))
        return;
    if (is_text(m, "kty", "RSA") && may_be(m, "alg", "RS256")) {
        jwk->algorithm = BT_JWT_RS256;
        jwk->key = make_rsa(m);
    } else if (is_text(m, "kty", "EC") && is_text(m, "crv", "P-256") && may_be(m, "alg", "ES256")) {
        jwk->algorithm = BT_JWT_ES256;
        jwk->key = make_p256(m);
    } else if (is_text(m, "kty", "OKP") && is_text(m, "crv", "Ed25519") &&
               (may_be(m, "alg", "EdDSA") || may_be(m, "alg", "Ed25519"))) {
        jwk->algorithm = BT_JWT_EDDSA;
        jwk->key = make_ed25519(m);
    }
}

/* ---- a set ---- */

static int add(bt_jwks_t *jwks, bt_str_t text, char *err, size_t err_size)
{
    bt_identity_members_t m;
    bt_jwk_t *jwk = &jwks->keys[jwks->count];

    *jwk = (bt_jwk_t){.key = NULL};
    if (bt_identity_members_read(&m, text) == 0)
        make_key(&m, jwk);
    if (jwk->key == NULL) {
        jwks->left_out++;
        return 0;
    }
    for (unsigned i = 0; i < jwks->count; i++)
        if (strcmp(jwks->keys[i].kid, jwk->kid) == 0) {
            EVP_PKEY_free(jwk->key);
            return bt_err_refuse(err, err_size, "two keys have the kid \"%.64s\"", jwk->kid);
        }
    jwks->count++;
    return 0;
}

static int read_keys(bt_jwks_t *jwks, bt_str_t list, char *err, size_t err_size)
{
    bt_json_cursor_t cursor;
    bt_json_item_t item;
    int rc = bt_json_array(&cursor, list);

    while (rc == 0 && (rc = bt_json_next(&cursor, &item)) == 1) {
        if (jwks->count + jwks->left_out == BT_JWKS_KEYS_MAX)
            return bt_err_refuse(err, err_size, "more than %d keys", BT_JWKS_KEYS_MAX);
        rc = add(jwks, item.value, err, err_size);
    }
    if (rc < 0)
        return rc == BT_E_CONFIG ? rc : bt_err_refuse(err, err_size, "%s", bt_err_text(rc));
    if (jwks->count == 0)
        return bt_err_refuse(err, err_size,
                             "no key for RS256 (of 2048 bits or more), ES256 or EdDSA is in it");
    return 0;
}

int bt_jwks_read(bt_str_t text, bt_jwks_t **jwks_p, char *err, size_t err_size)
{
    bt_identity_members_t m;
    bt_jwks_t *jwks;
    int rc, at;

    if (text.n > BT_JWKS_BYTES_MAX)
        return bt_err_refuse(err, err_size, "a key set has at most 256 KiB");
    rc = bt_identity_members_read(&m, text);
    if (rc < 0)
        return bt_err_refuse(err, err_size, "no key set in JSON: %s", bt_err_text(rc));
    at = bt_identity_members_find(&m, "keys");
    if (at < 0 || m.items[at].type != BT_JSON_ARRAY)
        return bt_err_refuse(err, err_size, "no key set: a list \"keys\" is needed");
    jwks = calloc(1, sizeof *jwks + (BT_JWKS_KEYS_MAX + 1) * sizeof jwks->keys[0]);
    if (jwks == NULL)
        return BT_E_NOMEM;
    atomic_init(&jwks->refs, 1);
    jwks->fingerprint = bt_str_hash(text);
    rc = read_keys(jwks, m.items[at].value, err, err_size);
    if (rc < 0)
        bt_jwks_unref(jwks);
    else
        *jwks_p = jwks;
    return rc;
}

int bt_jwks_read_file(const char *path, bt_jwks_t **jwks_p, char *err, size_t err_size)
{
    FILE *in = fopen(path, "re");
    char *text = malloc(BT_JWKS_BYTES_MAX + 1), why[256] = "";
    int rc = in == NULL     ? bt_err_refuse(why, sizeof why, "%s", strerror(errno))
             : text == NULL ? BT_E_NOMEM
                            : 0;

    if (rc == 0) {
        const size_t n = fread(text, 1, BT_JWKS_BYTES_MAX + 1, in);
        rc = ferror(in) ? bt_err_refuse(why, sizeof why, "%s", strerror(errno))
                        : bt_jwks_read((bt_str_t){text, n}, jwks_p, why, sizeof why);
    }
    if (in != NULL)
        fclose(in);
    free(text);
    return rc == BT_E_CONFIG ? bt_err_refuse(err, err_size, "%s: %s", path, why) : rc;
}

bt_jwks_t *bt_jwks_ref(bt_jwks_t *jwks)
{
    atomic_fetch_add_explicit(&jwks->refs, 1, memory_order_relaxed);
    return jwks;
}

void bt_jwks_unref(bt_jwks_t *jwks)
{
    if (jwks == NULL || atomic_fetch_sub_explicit(&jwks->refs, 1, memory_order_acq_rel) > 1)
        return;
    for (unsigned i = 0; i < jwks->count; i++)
        EVP_PKEY_free(jwks->keys[i].key);
    free(jwks);
}

const bt_jwk_t *bt_jwks_find(const bt_jwks_t *jwks, bt_str_t kid)
{
    if (kid.n == 0)
        return jwks->count == 1 ? &jwks->keys[0] : NULL;
    for (unsigned i = 0; i < jwks->count; i++)
        if (bt_str_eq(bt_str(jwks->keys[i].kid), kid))
            return &jwks->keys[i];
    return NULL;
}
