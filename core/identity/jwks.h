/* jwks.h - an issuer's public keys (RFC 7517), and what each may sign.
 *
 * Owner: counted references, from any thread. It never changes.
 * Life:  read from a file or an answer, off the loops -> identities.h hands it to the loops -> the last unref.
 * Flow:  what a key is decides the algorithm: RSA is RS256, P-256 is ES256, Ed25519 is EdDSA. Whatever else stands in the set is left out.
 * Cost:  kids are compared one by one: there are a few.
 */
#ifndef BT_IDENTITY_JWKS_H
#define BT_IDENTITY_JWKS_H

#include "base/str.h"

#define BT_JWKS_BYTES_MAX ((size_t) 256 << 10)
#define BT_JWKS_KEYS_MAX 64
#define BT_JWKS_KID_MAX 256

enum bt_jwt_algorithm { BT_JWT_RS256, BT_JWT_ES256, BT_JWT_EDDSA };
const char *bt_jwt_algorithm_name(enum bt_jwt_algorithm algorithm);

typedef struct bt_jwk {
    char kid[BT_JWKS_KID_MAX + 1]; /* "" = it has none */
    enum bt_jwt_algorithm algorithm;
    void *key; /* EVP_PKEY */
} bt_jwk_t;

typedef struct bt_jwks {
    _Atomic unsigned refs;
    unsigned count, left_out;
    uint64_t fingerprint; /* of the text: the same keys are no other set */
    bt_jwk_t keys[];
} bt_jwks_t;

/* 0, BT_E_NOMEM, or BT_E_CONFIG with a line in err. One that leaves no key is refused. */
int bt_jwks_read(bt_str_t text, bt_jwks_t **jwks_p, char *err, size_t err_size);
int bt_jwks_read_file(const char *path, bt_jwks_t **jwks_p, char *err, size_t err_size);
bt_jwks_t *bt_jwks_ref(bt_jwks_t *jwks);
void bt_jwks_unref(bt_jwks_t *jwks); /* NULL is fine */
/* Of this kid; without one, the only key of the set. */
const bt_jwk_t *bt_jwks_find(const bt_jwks_t *jwks, bt_str_t kid);

#endif
