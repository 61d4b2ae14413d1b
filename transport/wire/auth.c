/* Who waits for what, by the type of the next message:
 *
 *     dialler:   GREET said, CHALLENGE wanted -> PROOF said, ANSWER wanted -> done
 *     acceptor:  GREET wanted -> CHALLENGE said, PROOF wanted -> ANSWER said, done
 *
 * Each message can come once, at its place; the nonces are this connection's, and a connection has one handshake.
 */
#include "transport/wire/auth.h"

#include "base/err.h"
#include "base/rand.h"
#include "transport/wire/cursor.h"

#include <string.h>

#define HEAD 8
#define GREET_BYTES (6 + BT_HMAC_BYTES)
#define MAGIC 0x414b5442u /* "BTKA" */
#define VERSION 1

static const char another[] = "another token: give both sides the same one";

enum { GREET = BT_KV_AUTH_GREET, CHALLENGE, PROOF, ANSWER };

static bt_str_t text_of(const void *p, size_t n)
{
    return (bt_str_t){p, n};
}

static void derive(const bt_kv_auth_t *auth, bt_str_t secret, char label,
                   uint8_t out[BT_HMAC_BYTES])
{
    const char roles[2] = {label, (char) auth->purpose};
    const bt_str_t pieces[] = {BT_STR("baton-kv auth 1"), text_of(roles, sizeof(roles)),
                               text_of(auth->dialler, sizeof(auth->dialler)),
                               text_of(auth->acceptor, sizeof(auth->acceptor))};

    bt_hmac_sha256(secret, pieces, 4, out);
}

/* The next line of *secrets_p that is not empty. */
static bool next_secret(const char **secrets_p, bt_str_t *secret_p)
{
    const char *p = *secrets_p != NULL ? *secrets_p : "";

    p += strspn(p, "\n");
    size_t n = strcspn(p, "\n");
    *secret_p = (bt_str_t){p, n};
    *secrets_p = p + n;
    return n > 0;
}

static size_t put_message(uint8_t *out, uint8_t type, const uint8_t *payload, size_t n)
{
    memset(out, 0, HEAD);
    bt_kv_store_u32(out, (uint32_t) n);
    out[4] = type;
    memcpy(out + HEAD, payload, n);
    return HEAD + n;
}

size_t bt_kv_auth_init(bt_kv_auth_t *auth, enum bt_kv_auth_purpose purpose, bool is_dialler,
                       uint8_t *out)
{
    uint8_t greeting[GREET_BYTES];

    *auth = (bt_kv_auth_t){.purpose = (uint8_t) purpose,
                           .is_dialler = is_dialler,
                           .wanted = is_dialler ? CHALLENGE : GREET};
    bt_rand_secure(is_dialler ? auth->dialler : auth->acceptor, BT_HMAC_BYTES);
    if (!is_dialler)
        return 0;
    bt_kv_store_u32(greeting, MAGIC);
    greeting[4] = VERSION;
    greeting[5] = auth->purpose;
    memcpy(greeting + 6, auth->dialler, BT_HMAC_BYTES);
    return put_message(out, GREET, greeting, sizeof(greeting));
}

static void be_done(bt_kv_auth_t *auth, bt_str_t secret)
{
    derive(auth, secret, 'd', auth->is_dialler ? auth->out.key : auth->in.key);
    derive(auth, secret, 'a', auth->is_dialler ? auth->in.key : auth->out.key);
    derive(auth, secret, 'x', auth->bind);
    auth->out.is_on = auth->in.is_on = auth->is_done = true;
    auth->wanted = 0;
}

static bool is_proof(const bt_kv_auth_t *auth, bt_str_t secret, char label, const uint8_t *proof)
{
    uint8_t own[BT_HMAC_BYTES];

    derive(auth, secret, label, own);
    return bt_str_is_secret(text_of(own, sizeof(own)), text_of(proof, sizeof(own)));
}

static const char *take_greeting(bt_kv_auth_t *auth, const uint8_t *p, uint8_t *out, size_t *out_n)
{
    if (bt_kv_get_u32(p) != MAGIC || p[4] != VERSION)
        return "a handshake of another release: use one on both sides";
    if (p[5] != auth->purpose)
        return "come to the wrong port: gateways and agents have ports of their own";
    memcpy(auth->dialler, p + 6, BT_HMAC_BYTES);
    auth->wanted = PROOF;
    *out_n = put_message(out, CHALLENGE, auth->acceptor, BT_HMAC_BYTES);
    return NULL;
}

static const char *take_challenge(bt_kv_auth_t *auth, const char *secrets, const uint8_t *p,
                                  uint8_t *out, size_t *out_n)
{
    uint8_t proof[BT_HMAC_BYTES];
    bt_str_t secret;

    (void) next_secret(&secrets, &secret);
    memcpy(auth->acceptor, p, BT_HMAC_BYTES);
    derive(auth, secret, 'D', proof);
    auth->wanted = ANSWER;
    *out_n = put_message(out, PROOF, proof, sizeof(proof));
    return NULL;
}

/* All secrets are looked at, so that time tells nothing of which it was. */
static const char *take_proof(bt_kv_auth_t *auth, const char *secrets, const uint8_t *p,
                              uint8_t *out, size_t *out_n)
{
    uint8_t answer[BT_HMAC_BYTES];
    bt_str_t secret, found = BT_STR_NULL;

    while (next_secret(&secrets, &secret))
        if (is_proof(auth, secret, 'D', p))
            found = secret;
    if (found.n == 0)
        return another;
    derive(auth, found, 'A', answer);
    *out_n = put_message(out, ANSWER, answer, sizeof(answer));
    be_done(auth, found);
    return NULL;
}

static const char *take_answer(bt_kv_auth_t *auth, const char *secrets, const uint8_t *p)
{
    bt_str_t secret;

    if (!next_secret(&secrets, &secret) || !is_proof(auth, secret, 'A', p))
        return another;
    be_done(auth, secret);
    return NULL;
}

ptrdiff_t bt_kv_auth_take(bt_kv_auth_t *auth, const char *secrets, const uint8_t *p, size_t n,
                          uint8_t *out, size_t *out_n_p, const char **why_p)
{
    size_t wanted = auth->wanted == GREET ? GREET_BYTES : BT_HMAC_BYTES;

    *out_n_p = 0;
    if (n < HEAD)
        return 0;
    *why_p = auth->wanted == GREET ? "no proof of the token: give both sides the same one"
                                   : "no handshake of this protocol: use one release on both sides";
    if (bt_kv_get_u32(p) != wanted || p[4] != auth->wanted || p[6] != 0 || p[7] != 0)
        return BT_E_INVAL;
    if (n < HEAD + wanted)
        return 0;
    const uint8_t *payload = p + HEAD;
    switch (auth->wanted) {
    case GREET:
        *why_p = take_greeting(auth, payload, out, out_n_p);
        break;
    case CHALLENGE:
        *why_p = take_challenge(auth, secrets, payload, out, out_n_p);
        break;
    case PROOF:
        *why_p = take_proof(auth, secrets, payload, out, out_n_p);
        break;
    default:
        *why_p = take_answer(auth, secrets, payload);
    }
    return *why_p == NULL ? (ptrdiff_t) (HEAD + wanted) : BT_E_INVAL;
}

/* ---- afterwards ---- */
void bt_kv_seal_put(bt_kv_seal_t *seal, const uint8_t *frame, size_t n,
                    uint8_t out[BT_KV_SEAL_BYTES])
{
    uint8_t number[8], full[BT_HMAC_BYTES];
    const bt_str_t pieces[] = {text_of(number, sizeof(number)), text_of(frame, n)};

    bt_kv_store_u64(number, seal->frames++);
    bt_hmac_sha256(text_of(seal->key, sizeof(seal->key)), pieces, 2, full);
    memcpy(out, full, BT_KV_SEAL_BYTES);
}

bool bt_kv_seal_is_good(bt_kv_seal_t *seal, const uint8_t *frame, size_t n)
{
    uint8_t own[BT_KV_SEAL_BYTES];

    bt_kv_seal_put(seal, frame, n, own);
    return bt_str_is_secret(text_of(own, sizeof(own)), text_of(frame + n, sizeof(own)));
}

void bt_kv_auth_bind(const bt_kv_auth_t *auth, uint8_t *bytes, size_t n)
{
    uint8_t full[BT_HMAC_BYTES];
    const bt_str_t told = text_of(bytes, n);

    if (!auth->is_done)
        return;
    bt_hmac_sha256(text_of(auth->bind, sizeof(auth->bind)), &told, 1, full);
    memcpy(bytes, full, n < sizeof(full) ? n : sizeof(full));
}
