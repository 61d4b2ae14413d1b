/* identity_fuzz.c - tokens, key sets and files of keys that anybody could have written.
 *
 * The first byte chooses: a token as it comes; a header, or claims, that the issuer has signed; a key set; a line of a file of keys. What is
 * believed keeps the rules: its issuer, an id, a tenant that is a name, and no other text than this one is the same token.
 */
#include "base/err.h"
#include "base/json.h"
#include "identity/jwt.h"
#include "identity/key_line.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(cond) ((cond) ? (void) 0 : abort())
#define NOW UINT64_C(1800000000000)

static const char *const claims[] = {"a", "groups", NULL};
static const bt_jwt_rules_t rules = {.issuer = "i",
                                     .audience = "b",
                                     .tenant_claim = "tenant",
                                     .scope_claim = "scope",
                                     .claims = claims,
                                     .skew_ms = 60000};
static EVP_PKEY *key;
static bt_jwks_t *jwks;

static size_t put_base64url(const void *bytes, size_t n, char *out)
{
    int length = EVP_EncodeBlock((unsigned char *) out, bytes, (int) n);

    while (length > 0 && out[length - 1] == '=')
        length--;
    for (int i = 0; i < length; i++)
        out[i] = out[i] == '+' ? '-' : out[i] == '/' ? '_' : out[i];
    return (size_t) length;
}

static void open_issuer(void)
{
    unsigned char raw[32];
    size_t n = sizeof raw;
    char text[128], x[64], err[256];

    key = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
    EVP_PKEY_get_raw_public_key(key, raw, &n);
    x[put_base64url(raw, n, x)] = '\0';
    snprintf(text, sizeof text, "{\"keys\":[{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"x\":\"%s\"}]}",
             x);
    CHECK(bt_jwks_read(bt_str(text), &jwks, err, sizeof err) == 0);
}

static void try_token(bt_str_t token)
{
    bt_jwt_t jwt;

    if (bt_jwt_verify(&rules, jwks, token, NOW, &jwt) == BT_AUTH_OK) {
        CHECK(jwt.identity.id.n > 0 && jwt.identity.id.n <= BT_JWT_SUB_MAX);
        CHECK(bt_tenant_is_name(jwt.identity.tenant) && jwt.identity.owner != 0);
        CHECK(jwt.expires_ms > NOW && jwt.identity.claims.n <= BT_JWT_CLAIMS_MAX);
        CHECK(bt_json_validate(jwt.identity.claims, &(size_t){0}) == 0);
    } else {
        CHECK(jwt.texts == NULL);
    }
    bt_jwt_fini(&jwt);
}

/* These bytes as the header, or as the claims. */
static void try_signed(const uint8_t *data, size_t n, bool is_header)
{
    static const char header[] = "{\"alg\":\"EdDSA\"}",
                      payload[] = "{\"iss\":\"i\",\"aud\":\"b\",\"sub\":\"s\",\"exp\":1800000300}";
    char token[2 * BT_JWT_BYTES_MAX];
    unsigned char signature[64];
    size_t at, size = sizeof signature;
    EVP_MD_CTX *c = EVP_MD_CTX_new();

    if (n > 5000)
        n = 5000;
    at =
        is_header ? put_base64url(data, n, token) : put_base64url(header, sizeof header - 1, token);
    token[at++] = '.';
    at += is_header ? put_base64url(payload, sizeof payload - 1, token + at)
                    : put_base64url(data, n, token + at);
    EVP_DigestSignInit(c, NULL, NULL, NULL, key);
    CHECK(EVP_DigestSign(c, signature, &size, (const unsigned char *) token, at) == 1);
    EVP_MD_CTX_free(c);
    token[at++] = '.';
    at += put_base64url(signature, size, token + at);
    try_token((bt_str_t){token, at});
}

static void try_set(bt_str_t text)
{
    bt_jwks_t *set = NULL;
    char err[256] = "";

    if (bt_jwks_read(text, &set, err, sizeof err) == 0)
        CHECK(set->count > 0 && set->count <= BT_JWKS_KEYS_MAX);
    else
        CHECK(set == NULL && err[0] != '\0');
    bt_jwks_unref(set);
}

static void try_line(bt_str_t text)
{
    bt_key_line_t line;
    bt_str_t name, secret;
    char why[256] = "";

    if (bt_key_line_read(text, &line, why, sizeof why) < 0)
        CHECK(why[0] != '\0');
    else if (line.tenant.p != NULL)
        CHECK(bt_tenant_is_name(line.tenant));
    if (bt_key_split(text, &name, &secret))
        CHECK(name.n + 1 + secret.n == text.n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (key == NULL)
        open_issuer();
    if (size == 0)
        return 0;
    const bt_str_t text = {(const char *) data + 1, size - 1};
    switch (data[0] % 5) {
    case 0:
        try_token(text);
        break;
    case 1:
    case 2:
        try_signed(data + 1, size - 1, data[0] % 5 == 1);
        break;
    case 3:
        try_set(text);
        break;
    default:
        try_line(text);
    }
    return 0;
}
