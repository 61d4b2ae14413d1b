/* tickets.c - rotating keys for RFC 5077's tickets: AES-256-CBC, then HMAC-SHA-256. */
#include "tls/tickets.h"

#include "base/clock.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define KEYS 3U
#define ROTATE_MS ((uint64_t) BT_TLS_TICKET_SECS * 1000 / 2)

struct key {
    unsigned char name[16], aes[32], mac[32];
    uint64_t made_ms; /* 0 = not there */
};

struct bt_tls_tickets {
    pthread_mutex_t lock;
    struct key *keys; /* in secure memory; the newest first */
    uint64_t age_ms;  /* added to the clock */
};

static uint64_t now_ms(const bt_tls_tickets_t *tickets)
{
    return bt_clock_ms() + tickets->age_ms;
}

static bool make_key(bt_tls_tickets_t *tickets)
{
    struct key key = {.made_ms = now_ms(tickets) + 1};
    bool is_made = RAND_bytes(key.name, sizeof(key.name)) == 1 &&
                   RAND_priv_bytes(key.aes, sizeof(key.aes)) == 1 &&
                   RAND_priv_bytes(key.mac, sizeof(key.mac)) == 1;

    if (is_made) {
        memmove(&tickets->keys[1], &tickets->keys[0], (KEYS - 1) * sizeof(key));
        tickets->keys[0] = key;
    }
    OPENSSL_cleanse(&key, sizeof(key));
    return is_made;
}

bt_tls_tickets_t *bt_tls_tickets_new(void)
{
    bt_tls_tickets_t *tickets = calloc(1, sizeof(*tickets));

    if (tickets == NULL)
        return NULL;
    pthread_mutex_init(&tickets->lock, NULL);
    tickets->keys = OPENSSL_secure_zalloc(KEYS * sizeof(struct key));
    if (tickets->keys != NULL && make_key(tickets))
        return tickets;
    bt_tls_tickets_free(tickets);
    return NULL;
}

void bt_tls_tickets_free(bt_tls_tickets_t *tickets)
{
    if (tickets == NULL)
        return;
    OPENSSL_secure_clear_free(tickets->keys, KEYS * sizeof(struct key));
    pthread_mutex_destroy(&tickets->lock);
    free(tickets);
}

void bt_tls_tickets_age(bt_tls_tickets_t *tickets, uint64_t ms)
{
    tickets->age_ms += ms;
}

/* Old ones seal nothing any more, but what they have sealed is opened. */
static const struct key *find_key(bt_tls_tickets_t *tickets, const unsigned char *name)
{
    const uint64_t now = now_ms(tickets);

    if (now - (tickets->keys[0].made_ms - 1) >= ROTATE_MS && !make_key(tickets) && name == NULL)
        return NULL;
    if (name == NULL)
        return &tickets->keys[0];
    for (unsigned i = 0; i < KEYS; i++)
        if (tickets->keys[i].made_ms != 0 &&
            now - (tickets->keys[i].made_ms - 1) < ROTATE_MS + 1000ULL * BT_TLS_TICKET_SECS &&
            memcmp(tickets->keys[i].name, name, sizeof(tickets->keys[i].name)) == 0)
            return &tickets->keys[i];
    return NULL;
}

static bool set_keys(const struct key *key, unsigned char *iv, EVP_CIPHER_CTX *cipher,
                     EVP_MAC_CTX *mac, bool seals)
{
    OSSL_PARAM params[] = {
        OSSL_PARAM_construct_octet_string(OSSL_MAC_PARAM_KEY, (void *) (uintptr_t) key->mac,
                                          sizeof(key->mac)),
        OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, (char *) (uintptr_t) "SHA256", 0),
        OSSL_PARAM_construct_end()};

    if (EVP_CipherInit_ex(cipher, EVP_aes_256_cbc(), NULL, key->aes, iv, seals) != 1)
        return false;
    return EVP_MAC_CTX_set_params(mac, params) == 1;
}

int bt_tls_tickets_use(bt_tls_tickets_t *tickets, const unsigned char name[16], unsigned char *iv,
                       EVP_CIPHER_CTX *cipher, EVP_MAC_CTX *mac, unsigned char *name_p)
{
    const bool seals = name_p != NULL;
    int rc = -1;

    if (seals && RAND_bytes(iv, EVP_CIPHER_get_iv_length(EVP_aes_256_cbc())) != 1)
        return -1;
    pthread_mutex_lock(&tickets->lock);
    const struct key *key = find_key(tickets, seals ? NULL : name);
    if (key == NULL)
        rc = seals ? -1 : 0; /* 0: a full handshake, and a new ticket */
    else if (set_keys(key, iv, cipher, mac, seals))
        rc = seals || key == &tickets->keys[0] ? 1 : 2; /* 2: opened, but give it a new one */
    if (rc > 0 && seals)
        memcpy(name_p, key->name, sizeof(key->name));
    pthread_mutex_unlock(&tickets->lock);
    return rc;
}
