/* files.c - PEM files. OpenSSL's own loaders say "no start line"; an operator has to know which file, and what it should hold. */
#include "tls/files.h"

#include "base/err.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_MAX ((size_t) 128 * 1024) /* of a key; also its share of the locked heap */
#define KEY_HEAP_BYTES ((size_t) 512 * 1024)
#define WARN_BEFORE_S (14 * 86400)

int bt_tls_refuse(char *err, size_t err_size, const char *file, const char *what,
                  const char *remedy)
{
    const char *why = ERR_reason_error_string(ERR_peek_last_error());

    snprintf(err, err_size, "%s: %s%s%s%s; %s", file, what, why != NULL ? " (" : "",
             why != NULL ? why : "", why != NULL ? ")" : "", remedy);
    ERR_clear_error();
    return BT_E_CONFIG;
}

static void open_heap(void)
{
    /* 2: not locked (RLIMIT_MEMLOCK), but still excluded and wiped */
    if (CRYPTO_secure_malloc_init(KEY_HEAP_BYTES, 32) == 0)
        bt_log_warn("tls", "no memory that core dumps leave out for keys");
    ERR_clear_error();
}

void bt_tls_open_key_heap(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, open_heap);
}

/* ---- keys ---- */

static int check_mode(int fd, const char *file, char *err, size_t err_size, size_t *size_p)
{
    struct stat st;

    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return bt_tls_refuse(err, err_size, file, "is no regular file",
                             "name the private key as PEM");
    if (st.st_mode & (S_IWGRP | S_IWOTH))
        return bt_tls_refuse(err, err_size, file, "others may write this private key",
                             "chmod 600 it, and make sure that it is still yours");
    if (st.st_mode & S_IROTH)
        bt_log_warn("tls", "%s: everybody on this machine may read this private key: chmod 600 it",
                    file);
    if ((size_t) st.st_size > FILE_MAX)
        return bt_tls_refuse(err, err_size, file, "is too large for a private key",
                             "name the private key as PEM");
    *size_p = (size_t) st.st_size;
    return 0;
}

static int no_password(char *out, int size, int is_write, void *user)
{
    (void) out;
    (void) size;
    (void) is_write;
    *(bool *) user = true;
    return -1;
}

static int parse_key(const char *file, const char *text, size_t n, EVP_PKEY **key_p, char *err,
                     size_t err_size)
{
    bool has_password = false;
    BIO *bio = BIO_new_mem_buf(text, (int) n);
    EVP_PKEY *key =
        bio != NULL ? PEM_read_bio_PrivateKey(bio, NULL, no_password, &has_password) : NULL;

    BIO_free(bio);
    if (key == NULL && has_password)
        return bt_tls_refuse(err, err_size, file, "this private key has a passphrase",
                             "write it without one: openssl pkey -in OLD -out NEW");
    if (key == NULL)
        return bt_tls_refuse(err, err_size, file, "holds no private key that can be read",
                             "it must be PEM (-----BEGIN PRIVATE KEY-----), and whole");
    *key_p = key;
    return 0;
}

/* Read into the heap for keys: the text is the key, too. */
static int read_key(const char *file, EVP_PKEY **key_p, char *err, size_t err_size)
{
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    size_t size = 0, n = 0;

    if (fd < 0)
        return bt_err_refuse(err, err_size, "%s: cannot be read: %s", file, strerror(errno));
    int rc = check_mode(fd, file, err, err_size, &size);
    char *text = rc == 0 ? OPENSSL_secure_malloc(size + 1) : NULL;
    if (rc == 0 && text == NULL)
        rc = BT_E_NOMEM;
    for (ssize_t got = 1; rc == 0 && n < size && got > 0; n += got > 0 ? (size_t) got : 0)
        got = read(fd, text + n, size - n);
    close(fd);
    if (rc == 0)
        rc = parse_key(file, text, n, key_p, err, err_size);
    OPENSSL_secure_clear_free(text, size + 1);
    return rc;
}

/* ---- certificates ---- */

static bool next_certificate(BIO *bio, X509 **certificate_p)
{
    *certificate_p = PEM_read_bio_X509(bio, NULL, NULL, NULL);
    return *certificate_p != NULL;
}

static bool is_at_end(void)
{
    unsigned long error = ERR_peek_last_error();

    return ERR_GET_LIB(error) == ERR_LIB_PEM && ERR_GET_REASON(error) == PEM_R_NO_START_LINE;
}

/* SSL_CTX_use_certificate_chain_file takes a file whose later certificates are broken, as if it ended there. */
static int use_chain(SSL_CTX *context, BIO *bio, const char *file, char *err, size_t err_size)
{
    X509 *certificate;
    int rc = 0;

    if (!next_certificate(bio, &certificate))
        return bt_tls_refuse(err, err_size, file, "holds no certificate that can be read",
                             "it must be PEM (-----BEGIN CERTIFICATE-----), and whole");
    if (SSL_CTX_use_certificate(context, certificate) != 1)
        rc = bt_tls_refuse(err, err_size, file, "this certificate cannot be used",
                           "RSA needs 2048 bits, and SHA-1 is no signature any more");
    X509_free(certificate);
    while (rc == 0 && next_certificate(bio, &certificate))
        if (SSL_CTX_add0_chain_cert(context, certificate) != 1) {
            X509_free(certificate);
            rc = bt_tls_refuse(err, err_size, file, "a certificate of its chain cannot be used",
                               "RSA needs 2048 bits, and SHA-1 is no signature any more");
        }
    if (rc == 0 && !is_at_end())
        rc = bt_tls_refuse(err, err_size, file, "a certificate of its chain cannot be read",
                           "is the file whole?");
    ERR_clear_error();
    return rc;
}

int64_t bt_tls_expiry_s(const X509 *certificate)
{
    int days = 0, seconds = 0;
    ASN1_TIME *epoch = ASN1_TIME_set(NULL, 0);
    bool is_known = epoch != NULL &&
                    ASN1_TIME_diff(&days, &seconds, epoch, X509_get0_notAfter(certificate)) == 1;

    ASN1_TIME_free(epoch);
    return is_known ? (int64_t) days * 86400 + seconds : 0;
}

static void warn_of_time(const char *file, const X509 *certificate)
{
    const int64_t left_s = bt_tls_expiry_s(certificate) - (int64_t) time(NULL);

    if (X509_cmp_current_time(X509_get0_notBefore(certificate)) > 0)
        bt_log_warn("tls", "%s: this certificate is not valid yet: peers refuse it", file);
    if (left_s <= 0)
        bt_log_warn("tls", "%s: this certificate has expired: peers refuse it", file);
    else if (left_s < WARN_BEFORE_S)
        bt_log_warn("tls", "%s: this certificate expires in %lld hours", file,
                    (long long) left_s / 3600);
}

static int check_use(const X509 *certificate, const char *file, bool is_server, char *err,
                     size_t err_size)
{
    X509 *c = (X509 *) (uintptr_t) certificate; /* it caches what it has looked up */
    const uint32_t extended = X509_get_extended_key_usage(c);
    const uint32_t wanted = is_server ? XKU_SSL_SERVER : XKU_SSL_CLIENT;

    if (extended != UINT32_MAX && (extended & (wanted | XKU_ANYEKU)) == 0)
        return bt_tls_refuse(err, err_size, file,
                             is_server ? "this certificate is for no server"
                                       : "this certificate is for no client",
                             is_server ? "its extended key usage must have serverAuth"
                                       : "its extended key usage must have clientAuth");
    warn_of_time(file, certificate);
    return 0;
}

int bt_tls_use_pair(SSL_CTX *context, const char *cert_file, const char *key_file, bool is_server,
                    char *err, size_t err_size)
{
    BIO *bio = BIO_new_file(cert_file, "r");
    EVP_PKEY *key = NULL;

    bt_tls_open_key_heap();
    if (bio == NULL) {
        ERR_clear_error();
        return bt_err_refuse(err, err_size, "%s: cannot be read: %s", cert_file, strerror(errno));
    }
    int rc = use_chain(context, bio, cert_file, err, err_size);
    BIO_free(bio);
    if (rc == 0)
        rc = check_use(SSL_CTX_get0_certificate(context), cert_file, is_server, err, err_size);
    if (rc == 0)
        rc = read_key(key_file, &key, err, err_size);
    if (rc == 0 && X509_check_private_key(SSL_CTX_get0_certificate(context), key) != 1)
        rc = bt_tls_refuse(err, err_size, key_file, "is not the key of the certificate", cert_file);
    if (rc == 0 && SSL_CTX_use_PrivateKey(context, key) != 1)
        rc = bt_tls_refuse(err, err_size, key_file, "this key cannot be used",
                           "use RSA of 2048 bits or more, ECDSA P-256 or Ed25519");
    EVP_PKEY_free(key);
    return rc;
}

int bt_tls_use_ca(SSL_CTX *context, const char *ca_file, char *err, size_t err_size)
{
    if (ca_file == NULL && SSL_CTX_set_default_verify_paths(context) == 1)
        return 0;
    if (ca_file != NULL && SSL_CTX_load_verify_file(context, ca_file) == 1)
        return 0;
    return bt_tls_refuse(err, err_size, ca_file != NULL ? ca_file : "the system's CA store",
                         "holds no certificate that can be read",
                         "name a PEM file of the authorities to trust");
}

/* ---- changes ---- */

static uint64_t mix(uint64_t stamp, uint64_t word)
{
    return (stamp ^ word) * UINT64_C(0x9e3779b97f4a7c15) + (stamp >> 29);
}

uint64_t bt_tls_file_stamp(uint64_t stamp, const char *file)
{
    struct stat st;

    if (file == NULL || stat(file, &st) < 0)
        return mix(stamp, 1);
    stamp = mix(mix(stamp, (uint64_t) st.st_ino), (uint64_t) st.st_size);
    return mix(mix(stamp, (uint64_t) st.st_mtim.tv_sec), (uint64_t) st.st_mtim.tv_nsec);
}
