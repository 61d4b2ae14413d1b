/* tokens.h - an issuer for specs: keys, key sets and tokens, made by OpenSSL from what a spec types. Shares no code with core/identity.
 *
 * Owner: the spec.
 * Life:  tokens_open -> tokens_close.
 * Flow:  each function returns malloc'ed text.
 * Cost:  an RSA key takes a tenth of a second.
 */
#ifndef SPEC_TOKENS_H
#define SPEC_TOKENS_H

#include <openssl/core_names.h>
#include <openssl/ecdsa.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rsa.h>
#include <openssl/x509.h>

#include <assert.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static EVP_PKEY *rsa, *rsa_other, *rsa_short, *ec, *ec_other, *p384, *ed, *ed_other;

static inline void tokens_open(void)
{
    rsa = EVP_RSA_gen(2048);
    rsa_other = EVP_RSA_gen(2048);
    rsa_short = EVP_RSA_gen(1024);
    ec = EVP_EC_gen("P-256");
    ec_other = EVP_EC_gen("P-256");
    p384 = EVP_EC_gen("P-384");
    ed = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
    ed_other = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
}

static inline void tokens_close(void)
{
    EVP_PKEY *all[] = {rsa, rsa_other, rsa_short, ec, ec_other, p384, ed, ed_other};

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        EVP_PKEY_free(all[i]);
}

static inline char *b64(const void *bytes, size_t n)
{
    char *text = malloc(4 * ((n + 2) / 3) + 1);
    int length = EVP_EncodeBlock((unsigned char *) text, bytes, (int) n);

    while (length > 0 && text[length - 1] == '=')
        length--;
    text[length] = '\0';
    for (char *p = text; *p != '\0'; p++)
        *p = *p == '+' ? '-' : *p == '/' ? '_' : *p;
    return text;
}

static inline char *joined(const char *a, const char *b)
{
    char *text = malloc(strlen(a) + strlen(b) + 2);

    sprintf(text, "%s.%s", a, b);
    return text;
}

/* header.payload of these JSON texts */
static inline char *unsigned_token(const char *header, const char *payload)
{
    char *h = b64(header, strlen(header)), *p = b64(payload, strlen(payload)), *t = joined(h, p);

    free(h);
    free(p);
    return t;
}

static inline size_t raw_of(const unsigned char *der, size_t n, unsigned char *raw)
{
    const unsigned char *at = der;
    ECDSA_SIG *sig = d2i_ECDSA_SIG(NULL, &at, (long) n);

    BN_bn2binpad(ECDSA_SIG_get0_r(sig), raw, 32);
    BN_bn2binpad(ECDSA_SIG_get0_s(sig), raw + 32, 32);
    ECDSA_SIG_free(sig);
    return 64;
}

/* JOSE's form of a signature; is_der: OpenSSL's own for ECDSA. */
static inline char *sign_as(const char *text, EVP_PKEY *key, bool is_der)
{
    EVP_MD_CTX *c = EVP_MD_CTX_new();
    unsigned char out[1024], raw[1024];
    size_t n = sizeof out;
    const bool is_ed = EVP_PKEY_is_a(key, "ED25519");

    EVP_DigestSignInit(c, NULL, is_ed ? NULL : EVP_sha256(), NULL, key);
    const int ok = EVP_DigestSign(c, out, &n, (const unsigned char *) text, strlen(text));
    assert(ok == 1);
    (void) ok;
    EVP_MD_CTX_free(c);
    if (EVP_PKEY_is_a(key, "EC") && !is_der && EVP_PKEY_get_bits(key) == 256) {
        n = raw_of(out, n, raw);
        memcpy(out, raw, n);
    }
    return b64(out, n);
}

static inline char *token_of(const char *header, const char *payload, EVP_PKEY *key)
{
    char *text = unsigned_token(header, payload), *s = sign_as(text, key, false),
         *t = joined(text, s);

    free(text);
    free(s);
    return t;
}

/* HS256 with these bytes as the secret */
static inline char *hmac_token(const char *header, const char *payload, const void *secret,
                               size_t n)
{
    char *text = unsigned_token(header, payload), *s, *t;
    unsigned char mac[64];
    unsigned length = 0;

    HMAC(EVP_sha256(), secret, (int) n, (const unsigned char *) text, strlen(text), mac, &length);
    s = b64(mac, length);
    t = joined(text, s);
    free(text);
    free(s);
    return t;
}

/* ---- key sets ---- */

static inline char *number_of(EVP_PKEY *key, const char *what, int size)
{
    BIGNUM *n = NULL;
    unsigned char bytes[1024];

    EVP_PKEY_get_bn_param(key, what, &n);
    const int length = size != 0 ? size : BN_num_bytes(n);
    BN_bn2binpad(n, bytes, length);
    BN_free(n);
    return b64(bytes, (size_t) length);
}

/* One key as JSON; more: members behind, with a comma before them. */
static inline char *jwk_of(EVP_PKEY *key, const char *kid, const char *more)
{
    char *text = malloc(4096), *a, *b = NULL;
    unsigned char raw[32];
    size_t n = sizeof raw;

    if (EVP_PKEY_is_a(key, "RSA")) {
        a = number_of(key, OSSL_PKEY_PARAM_RSA_N, 0);
        b = number_of(key, OSSL_PKEY_PARAM_RSA_E, 0);
        sprintf(text, "{\"kty\":\"RSA\",\"kid\":\"%s\",\"n\":\"%s\",\"e\":\"%s\"%s}", kid, a, b,
                more);
    } else if (EVP_PKEY_is_a(key, "EC")) {
        const int bytes = EVP_PKEY_get_bits(key) / 8;
        a = number_of(key, OSSL_PKEY_PARAM_EC_PUB_X, bytes);
        b = number_of(key, OSSL_PKEY_PARAM_EC_PUB_Y, bytes);
        sprintf(text,
                "{\"kty\":\"EC\",\"crv\":\"P-%d\",\"kid\":\"%s\",\"x\":\"%s\",\"y\":\"%s\"%s}",
                bytes * 8, kid, a, b, more);
    } else {
        EVP_PKEY_get_raw_public_key(key, raw, &n);
        a = b64(raw, n);
        sprintf(text, "{\"kty\":\"OKP\",\"crv\":\"Ed25519\",\"kid\":\"%s\",\"x\":\"%s\"%s}", kid, a,
                more);
    }
    free(a);
    free(b);
    return text;
}

static inline char *set_of(const char *const *keys, unsigned count)
{
    char *text = malloc(16384);
    size_t n = (size_t) sprintf(text, "{\"keys\":[");

    for (unsigned i = 0; i < count; i++)
        n += (size_t) sprintf(text + n, "%s%s", i > 0 ? "," : "", keys[i]);
    sprintf(text + n, "]}");
    return text;
}

#endif
