/* peer.h - who stands at the other end, by a certificate that was verified.
 *
 * Owner: the session.
 * Life:  made when a handshake with a certificate is done, or resumed -> freed with the session.
 * Flow:  certificate -> names, each with its kind in front ("CN:web-1", "O:Example", "DNS:a.example", "URI:spiffe://...", "IP:10.0.0.1",
 *        "email:...", "subject:CN=web-1,O=Example") -> compared with patterns; or one of them, as the name of who asks.
 * Cost:  a few allocations per handshake; none where no certificate is asked for.
 */
#ifndef BT_TLS_PEER_H
#define BT_TLS_PEER_H

#include <stdbool.h>

#define BT_TLS_PEER_NAMES_MAX 64U

struct x509_st;

typedef struct bt_tls_peer {
    const char *subject; /* as RFC 2253 writes it; names[0] without its kind */
    char *names[BT_TLS_PEER_NAMES_MAX];
    unsigned count;
} bt_tls_peer_t;

/* NULL: out of memory. Names with control bytes (a NUL would cut one) are left out. */
bt_tls_peer_t *bt_tls_peer_new(struct x509_st *certificate);
void bt_tls_peer_free(bt_tls_peer_t *peer); /* NULL is fine */
/* Is one of its names one of the patterns? A pattern is a name, or the beginning of one with * behind it. patterns ends with NULL. */
bool bt_tls_peer_is_one_of(const bt_tls_peer_t *peer, const char *const *patterns);
/* What tells it from all others of its authority, with the kind in front: its first URI (SPIFFE: the subject may be everybody's), else its
 * subject, where there is a CN in it, else its first other name. Never NULL. */
const char *bt_tls_peer_id(const bt_tls_peer_t *peer);
/* The short form of the same: the URI, the CN, or that other name. */
const char *bt_tls_peer_name(const bt_tls_peer_t *peer);
const char *bt_tls_peer_organization(
    const bt_tls_peer_t *peer); /* the first O; NULL: there is none */
/* NULL, or what is wrong with it. */
const char *bt_tls_pattern_error(const char *pattern);
/* Why a certificate is not trusted; lives for ever. */
const char *bt_tls_verify_text(long result);

#endif
