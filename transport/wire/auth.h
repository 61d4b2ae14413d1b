/* auth.h - two ends of a control connection prove to each other that they have the same secret, and seal what they say from then on.
 *
 * Owner: whoever owns the connection; no I/O. Secrets are passed in with each call and not kept.
 * Life:  bt_kv_auth_init, then bytes in and bytes out until is_done or refused.
 * Flow:  the dialler greets; bt_kv_auth_take turns each message into the next one. Once done: a seal behind every frame, in both directions.
 * Cost:  a handshake is some ten HMACs; a frame one, over its bytes. Nothing is allocated.
 *
 * The protocol: three pass mutual authentication with nonces and a keyed check function (ISO/IEC 9798-4), which is HMAC-SHA256 (RFC 2104), behind a greeting of
 * the dialler's. K is the secret, D and A the nonces of 32 random bytes, P the purpose ('P': agent and agent; 'G': agent and gateway).
 *
 *     dialler -> acceptor   GREET      "BTKA", version, P, D
 *     acceptor -> dialler   CHALLENGE  A
 *     dialler -> acceptor   PROOF      f('D')          f(label) = HMAC(K, "baton-kv auth 1" label P D A)
 *     acceptor -> dialler   ANSWER     f('A')
 *
 * Whoever has dialled proves first, so that a stranger that dials is told nothing that could be guessed at. Roles have labels of their own: what one side has said
 * is no proof of the other's (reflection). Both nonces are in each proof: a recorded one proves nothing (replay). f('d') and f('a') are the keys of what the dialler
 * and the acceptor say from then on: behind each frame stand the first 16 bytes of HMAC(key, number of the frame, frame), so that whoever relays the
 * handshake can change, repeat, leave out or add nothing behind it. f('x') makes the secrets by which data connections are let in (bt_kv_auth_bind).
 *
 * `secrets` are one or several, one a line: the first is proved by the dialler, any of them is taken by the acceptor, which goes on with the same one. Rotation:
 * old and new everywhere, then new and old, then new; in whatever order processes take it over.
 *
 * Messages have the heads of frame.h; anything else, and anything longer, is refused by its head, so an unknown peer makes nobody keep more than 72 bytes.
 */
#ifndef BT_TRANSPORT_AUTH_H
#define BT_TRANSPORT_AUTH_H

#include "base/hmac.h"

#include <stdbool.h>
#include <stddef.h>

#define BT_KV_AUTH_OUT 64    /* no message is longer */
#define BT_KV_AUTH_GREET 112 /* its type: in neither protocol anything else */
#define BT_KV_SEAL_BYTES 16
#define BT_KV_SECRET_MAX 1024u /* bytes of all secrets */

enum bt_kv_auth_purpose { BT_KV_AUTH_PEERS = 'P', BT_KV_AUTH_GATEWAY = 'G' };

typedef struct bt_kv_seal {
    uint8_t key[BT_HMAC_BYTES];
    uint64_t frames;
    bool is_on;
} bt_kv_seal_t;

typedef struct bt_kv_auth {
    uint8_t purpose, wanted; /* type of the message that comes next; 0: none */
    bool is_dialler, is_done;
    uint8_t dialler[BT_HMAC_BYTES], acceptor[BT_HMAC_BYTES]; /* nonces */
    bt_kv_seal_t out, in;
    uint8_t bind[BT_HMAC_BYTES];
} bt_kv_auth_t;

/* What is to be said is appended to out[BT_KV_AUTH_OUT]; its length. The acceptor says nothing yet: 0. */
size_t bt_kv_auth_init(bt_kv_auth_t *auth, enum bt_kv_auth_purpose purpose, bool is_dialler,
                       uint8_t *out);
/* A handshake is under way: everything that is read goes to bt_kv_auth_take. */
static inline bool bt_kv_auth_is_open(const bt_kv_auth_t *auth)
{
    return auth->wanted != 0;
}
/* Bytes used of [p, p + n), 0 when the message is not all there; what is to be said is in out[BT_KV_AUTH_OUT], *out_n_p bytes. < 0: it has *why_p. */
ptrdiff_t bt_kv_auth_take(bt_kv_auth_t *auth, const char *secrets, const uint8_t *p, size_t n,
                          uint8_t *out, size_t *out_n_p, const char **why_p);

/* Of the next frame. */
void bt_kv_seal_put(bt_kv_seal_t *seal, const uint8_t *frame, size_t n,
                    uint8_t out[BT_KV_SEAL_BYTES]);
/* Of the next frame that comes; the seal stands behind its n bytes. */
bool bt_kv_seal_is_good(bt_kv_seal_t *seal, const uint8_t *frame, size_t n);
/* What was told over the connection becomes a secret of its two ends; in place. Nothing changes where no secret was proved. */
void bt_kv_auth_bind(const bt_kv_auth_t *auth, uint8_t *bytes, size_t n);

#endif
