/* certs.h - certificates made on the spot, in a folder that goes with the spec. */
#ifndef SPEC_UNIT_TLS_CERTS_H
#define SPEC_UNIT_TLS_CERTS_H

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "unit.h"

struct cert {
    X509 *x509;
    EVP_PKEY *key;
    char cert_file[256], key_file[256];
};

/* What a certificate is made of; zero: a server's for localhost and 127.0.0.1, valid for a day, signed by itself. */
struct wish {
    const char *cn, *san, *usage; /* cn "": none; san "": none */
    const char *organization;
    const struct cert *issuer; /* NULL: itself */
    bool is_ca;
    unsigned rsa_bits; /* 0: ECDSA P-256 */
    long from_s, to_s; /* from now */
};

static char cert_dir[64];

static inline void open_cert_dir(void)
{
    strcpy(cert_dir, "/tmp/bt-tls-XXXXXX");
    assert_non_null(mkdtemp(cert_dir));
}

static inline void close_cert_dir(void)
{
    char command[128];

    snprintf(command, sizeof(command), "rm -rf '%s'", cert_dir);
    assert_int_equal(system(command), 0);
}

static inline void extend(X509 *x, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX ctx;

    X509V3_set_ctx_nodb(&ctx);
    X509V3_set_ctx(&ctx, issuer, x, NULL, NULL, 0);
    X509_EXTENSION *e = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
    assert_non_null(e);
    X509_add_ext(x, e, -1);
    X509_EXTENSION_free(e);
}

static inline void write_pem(struct cert *c, const char *name)
{
    snprintf(c->cert_file, sizeof(c->cert_file), "%s/%s.crt", cert_dir, name);
    snprintf(c->key_file, sizeof(c->key_file), "%s/%s.key", cert_dir, name);
    FILE *f = fopen(c->cert_file, "w");
    assert_non_null(f);
    PEM_write_X509(f, c->x509);
    fclose(f);
    f = fopen(c->key_file, "w");
    assert_non_null(f);
    PEM_write_PrivateKey(f, c->key, NULL, NULL, 0, NULL, NULL);
    fclose(f);
    chmod(c->key_file, 0600);
}

static inline void make_cert(struct cert *c, const char *name, struct wish w)
{
    static long serial;
    X509 *x = X509_new();

    memset(c, 0, sizeof(*c));
    c->x509 = x;
    c->key = w.rsa_bits > 0 ? EVP_RSA_gen(w.rsa_bits) : EVP_EC_gen("P-256");
    assert_non_null(c->key);
    X509_set_version(x, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(x), ++serial + getpid());
    X509_gmtime_adj(X509_getm_notBefore(x), w.from_s != 0 ? w.from_s : -3600);
    X509_gmtime_adj(X509_getm_notAfter(x), w.to_s != 0 ? w.to_s : 86400);
    X509_set_pubkey(x, c->key);
    if (w.cn == NULL || w.cn[0] != '\0')
        X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_ASC,
                                   (const unsigned char *) (w.cn != NULL ? w.cn : name), -1, -1, 0);
    if (w.organization != NULL)
        X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "O", MBSTRING_ASC,
                                   (const unsigned char *) w.organization, -1, -1, 0);
    X509 *issuer = w.issuer != NULL ? w.issuer->x509 : x;
    X509_set_issuer_name(x, X509_get_subject_name(issuer));
    extend(x, issuer, NID_basic_constraints, w.is_ca ? "critical,CA:TRUE" : "critical,CA:FALSE");
    extend(x, issuer, NID_subject_key_identifier, "hash");
    if (w.issuer != NULL)
        extend(x, issuer, NID_authority_key_identifier, "keyid:always");
    if (!w.is_ca) {
        extend(x, issuer, NID_ext_key_usage, w.usage != NULL ? w.usage : "serverAuth");
        if (w.san == NULL || w.san[0] != '\0')
            extend(x, issuer, NID_subject_alt_name,
                   w.san != NULL ? w.san : "DNS:localhost,IP:127.0.0.1");
    }
    assert_true(X509_sign(x, w.issuer != NULL ? w.issuer->key : c->key, EVP_sha256()) > 0);
    write_pem(c, name);
}

static inline void free_cert(struct cert *c)
{
    X509_free(c->x509);
    EVP_PKEY_free(c->key);
}

#endif
