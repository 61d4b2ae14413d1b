/* jwks_url.h - an issuer's keys, fetched: again when they are old, and when a token names one that is not among them.
 *
 * Owner: the control loop.
 * Life:  new (before the loop runs) -> start -> close, which frees it when nothing of it is under way any more.
 * Flow:  the name is looked up off the loop -> GET -> jwks.h -> identity/identities.h. Whatever goes wrong leaves the keys that were there.
 *        Tokens with unknown kids, however many, are one call every BT_JWKS_MISSED_MS.
 * Cost:  a timer of 500 ms.
 */
#ifndef BT_GATEWAY_JWKS_URL_H
#define BT_GATEWAY_JWKS_URL_H

#include "identity/identities.h"
#include "loop/loop.h"

#define BT_JWKS_MISSED_MS 5000

typedef struct bt_jwks_url bt_jwks_url_t;

typedef struct bt_jwks_url_config { /* strings are borrowed */
    const char *url, *ca_file;      /* NULL = the system's */
    uint64_t ttl_ms;
    bt_identities_t *identities;
} bt_jwks_url_config_t;

/* BT_E_CONFIG: the file of the CA, with a line in err. */
int bt_jwks_url_new(bt_jwks_url_t **j_p, bt_loop_t *loop, const bt_jwks_url_config_t *config,
                    char *err, size_t err_size);
void bt_jwks_url_start(bt_jwks_url_t *j);
void bt_jwks_url_again(bt_jwks_url_t *j); /* now */
void bt_jwks_url_close(bt_jwks_url_t *j); /* NULL is fine */

#endif
