/* client.h - TLS of connections that we begin: to workers, to Redis.
 *
 * Owner: whoever dials; one context is shared by all loops, a slot belongs to one.
 * Life:  new -> attach per connection -> free, when no stream has a session of it.
 * Flow:  the peer's certificate must come from the CA file (NULL: the system's), be of a server, be valid now, and be for the name: an
 *        address is compared with the certificate's addresses, a name with its names. There is no way to turn that off.
 * Cost:  a handshake per connection; a slot keeps the last ticket, so that the next one is short.
 */
#ifndef BT_TLS_CLIENT_H
#define BT_TLS_CLIENT_H

#include "loop/stream.h"
#include "tls/counts.h"

typedef struct bt_tls_client bt_tls_client_t;

/* What a server gave us to resume with. Zeroed, it is empty; one loop's. */
typedef struct bt_tls_slot {
    void *session;
} bt_tls_slot_t;

typedef struct bt_tls_client_config {
    const char *ca;         /* PEM; NULL: the system's */
    const char *cert, *key; /* ours, if it asks; both or none */
} bt_tls_client_config_t;

int bt_tls_client_new(bt_tls_client_t **client_p, const bt_tls_client_config_t *config, char *err,
                      size_t err_size);
bt_tls_client_t *bt_tls_client_ref(bt_tls_client_t *client);
void bt_tls_client_unref(bt_tls_client_t *client); /* NULL is fine */
/* After bt_stream_init, before bt_stream_connect. name: as dialled, numeric or not. slot (NULL: none) must outlive the stream.
 * BT_E_NOMEM; BT_E_INVAL: this name can be in no certificate. */
int bt_tls_client_attach(bt_tls_client_t *client, bt_stream_t *stream, const char *name,
                         bt_tls_slot_t *slot);
void bt_tls_slot_fini(bt_tls_slot_t *slot);
const bt_tls_counts_t *bt_tls_client_counts(const bt_tls_client_t *client);

#endif
