/* refusal.h - why somebody is not let in: a status, a sentence, the label of a metric.
 *
 * Owner: nobody; a static table.
 * Life:  static.
 * Flow:  a check -> the answer in the form of the path's API family, and baton_auth_refused_total{reason}.
 * Cost:  none.
 */
#ifndef BT_IDENTITY_REFUSAL_H
#define BT_IDENTITY_REFUSAL_H

/* status 401: who are you; 403: not you; 503: nobody can be told from anybody yet. The sentences say nothing that helps to guess. */
#define BT_AUTH_MAP(X)                                                                             \
    X(MISSING, missing, 401, "missing or wrong API key")                                           \
    X(KEY_WRONG, key_wrong, 401, "missing or wrong API key")                                       \
    X(KEY_EXPIRED, key_expired, 401, "this API key has expired")                                   \
    X(KEY_REVOKED, key_revoked, 401, "this API key has been revoked")                              \
    X(TOKEN_MALFORMED, token_malformed, 401, "this token is no well-formed JWT")                   \
    X(TOKEN_ALGORITHM, token_algorithm, 401,                                                       \
      "this token's algorithm is not the one that its key is for")                                 \
    X(TOKEN_KEY, token_key, 401, "this token is signed by a key that its issuer does not list")    \
    X(TOKEN_SIGNATURE, token_signature, 401, "this token's signature is wrong")                    \
    X(TOKEN_ISSUER, token_issuer, 401, "this token is of another issuer")                          \
    X(TOKEN_AUDIENCE, token_audience, 401, "this token is for another audience")                   \
    X(TOKEN_EXPIRED, token_expired, 401, "this token has expired")                                 \
    X(TOKEN_EARLY, token_early, 401, "this token is not valid yet")                                \
    X(TOKEN_CLAIMS, token_claims, 401, "this token lacks a claim, or has one of the wrong type")   \
    X(SCOPE, scope, 403, "")                                                                       \
    X(MODEL, model, 403, "")                                                                       \
    X(KEYS_UNKNOWN, keys_unknown, 503, "the issuer's keys are not known yet, try again")

enum bt_auth_refusal {
    BT_AUTH_OK = 0,
#define BT_AUTH_ENUM(name, label, status, text) BT_AUTH_##name,
    BT_AUTH_MAP(BT_AUTH_ENUM)
#undef BT_AUTH_ENUM
        BT_AUTH_COUNT
};

unsigned bt_auth_status(enum bt_auth_refusal refusal);
const char *bt_auth_text(enum bt_auth_refusal refusal);
const char *bt_auth_label(enum bt_auth_refusal refusal);

#endif
