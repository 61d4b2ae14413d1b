/* jwt.h - one signed token (RFC 7515, 7519, 8725), read, verified, and what it says of who asks.
 *
 * Owner: the caller.
 * Life:  a call; the identity lives in what bt_jwt_t holds, until fini.
 * Flow:  three parts -> header -> the key of its kid -> signature -> claims. The key decides the algorithm, the header may only agree.
 *        Nothing that the token says about where keys are (jku, x5u, jwk) is looked at.
 * Cost:  30 to 150 us of computing for the signature: tokens that were verified are kept (checker.h).
 */
#ifndef BT_IDENTITY_JWT_H
#define BT_IDENTITY_JWT_H

#include "identity/identity.h"
#include "identity/jwks.h"
#include "identity/refusal.h"

#define BT_JWT_BYTES_MAX 8192
#define BT_JWT_HEADER_MAX 1024
#define BT_JWT_SUB_MAX 128
#define BT_JWT_CLAIMS_MAX 2048 /* bytes of those that are kept */

typedef struct bt_jwt_rules { /* borrowed; constant */
    const char *issuer, *audience;
    const char *tenant_claim, *scope_claim;
    const char *const *claims; /* kept for policies; NULL-terminated, or NULL */
    uint64_t skew_ms;
} bt_jwt_rules_t;

typedef struct bt_jwt {
    bt_identity_t identity; /* its texts: */
    char *texts;
    uint64_t expires_ms; /* wall clock, the skew included */
} bt_jwt_t;

/* Worth trying as a token? */
bool bt_jwt_is_like(bt_str_t text);
enum bt_auth_refusal bt_jwt_verify(const bt_jwt_rules_t *rules, const bt_jwks_t *jwks,
                                   bt_str_t token, uint64_t wall_ms, bt_jwt_t *jwt);
void bt_jwt_fini(bt_jwt_t *jwt);

#endif
