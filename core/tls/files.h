/* files.h - certificates and keys, from PEM files into a context. Private to core/tls.
 *
 * Owner: the caller's context.
 * Life:  of a call; nothing of a file stays but what OpenSSL has made of it.
 * Flow:  a refusal names the file, what is wrong with it and what to do.
 * Cost:  reads files: at start, and off the loops on reload.
 */
#ifndef BT_TLS_FILES_H
#define BT_TLS_FILES_H

#include <openssl/ssl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The chain and its key, which must belong together, be of a sort that may be used here (a server's, or a client's) and strong enough.
 * The key's file must be nobody else's to write. BT_E_CONFIG with a line in err. */
int bt_tls_use_pair(SSL_CTX *context, const char *cert_file, const char *key_file, bool is_server,
                    char *err, size_t err_size);
/* Whom peers' certificates must come from; NULL: the system's. */
int bt_tls_use_ca(SSL_CTX *context, const char *ca_file, char *err, size_t err_size);
int bt_tls_refuse(char *err, size_t err_size, const char *file, const char *what,
                  const char *remedy);
int64_t bt_tls_expiry_s(const X509 *certificate); /* wall clock, seconds since 1970 */
/* A word that changes when the file does: size, time, inode. stamp: of the files before it. file may be NULL. */
uint64_t bt_tls_file_stamp(uint64_t stamp, const char *file);
/* Before the first key: a heap for keys that is locked, wiped and in no core dump. */
void bt_tls_open_key_heap(void);

#endif
