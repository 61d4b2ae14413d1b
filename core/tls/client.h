/* client.h - TLS of connections that we begin: to workers, to Redis.
 *
 * Owner: whoever dials holds a reference; those with the same files share one, on all loops. A slot belongs to one loop.
 * Life:  get -> attach per connection -> unref, when no stream has a session of it.
 * Flow:  the peer's certificate must come from the CA file (NULL: the system's), be of a server, be valid now, and be for the name: an
 *        address is compared with the certificate's addresses, a name with its names. There is no way to turn that off. Files that change
 *        are read again by bt_tls_clients_look; what cannot be used changes nothing.
 * Cost:  a handshake per connection; a slot keeps the last ticket, so that the next one is short. A ticket shows no certificate: ten
 *        minutes after the last one, or when files have changed, there is a whole handshake again.
 */
#ifndef BT_TLS_CLIENT_H
#define BT_TLS_CLIENT_H

#include "loop/stream.h"
#include "tls/counts.h"

typedef struct bt_tls_client bt_tls_client_t;

/* What a server gave us to resume with. Zeroed, it is empty; one loop's. */
typedef struct bt_tls_slot {
    void *session;
    unsigned generation;  /* of the context that verified it */
    uint64_t verified_ms; /* when a certificate was last seen */
} bt_tls_slot_t;

typedef struct bt_tls_client_config {
    const char *ca;         /* PEM; NULL: the system's */
    const char *cert, *key; /* ours, if it asks; both or none */
} bt_tls_client_config_t;

/* One more holder of the context for these files. BT_E_CONFIG with a line in err. */
int bt_tls_client_get(bt_tls_client_t **client_p, const bt_tls_client_config_t *config, char *err,
                      size_t err_size);
bt_tls_client_t *bt_tls_client_ref(bt_tls_client_t *client);
void bt_tls_client_unref(bt_tls_client_t *client); /* NULL is fine */
/* Of workers that name no files of their own. Borrowed; set before there are any. NULL: the system's CAs, no certificate. */
void bt_tls_client_set_default(const bt_tls_client_config_t *config);
/* The worker's own files where it names some, else the default's. */
int bt_tls_client_of_worker(bt_tls_client_t **client_p, const bt_tls_client_config_t *own,
                            char *err, size_t err_size);
/* Reads changed files again, or all (is_forced), on any thread. Each context that was read is told: rc, and err where it stays as it was. */
typedef void (*bt_tls_client_told)(void *user, int rc, const char *err);
bool bt_tls_clients_are_there(void);
void bt_tls_clients_look(bool is_forced, bt_tls_client_told told, void *user);

/* A session for who has a socket of its own: it sets send and carrier, then drives cipher->ops (loop/cipher.h), and frees by them. Neither
 * tickets nor streams are known to it. counts lives as long. Errors as below. */
int bt_tls_client_cipher(bt_tls_client_t *client, const char *name, bt_tls_counts_t *counts,
                         struct bt_cipher **cipher_p);
/* Why the handshake failed or the session broke; NULL: it did not. Lives for ever. */
const char *bt_tls_cipher_why(const struct bt_cipher *cipher);
/* After bt_stream_init, before bt_stream_connect. name: as dialled, numeric or not. slot (NULL: none) must outlive the stream.
 * BT_E_NOMEM; BT_E_INVAL: this name can be in no certificate. */
int bt_tls_client_attach(bt_tls_client_t *client, bt_stream_t *stream, const char *name,
                         bt_tls_slot_t *slot);
void bt_tls_slot_fini(bt_tls_slot_t *slot);
/* Of all of the process that streams have. */
const bt_tls_counts_t *bt_tls_client_counts(void);

#endif
