/* server.h - TLS of one port: its certificates, and sessions made of them.
 *
 * Owner: the process; the loops that accept share it.
 * Life:  new -> attach per connection -> reload, any number of times -> free, when no stream has a session of it.
 * Flow:  files -> bundle (one context per certificate, chosen by SNI; the first where no name fits) -> sessions, which keep theirs
 *        while a reload puts another in its place. A bundle that cannot be made changes nothing.
 * Cost:  a lock per handshake; reload reads files and belongs to a pool thread.
 */
#ifndef BT_TLS_SERVER_H
#define BT_TLS_SERVER_H

#include "loop/stream.h"
#include "tls/counts.h"
#include "tls/peer.h"

#define BT_TLS_PAIRS_MAX 32

typedef struct bt_tls_server bt_tls_server_t;

/* Strings are borrowed for the server's life. Lists end with NULL. */
typedef struct bt_tls_server_config {
    const char *const *certs, *const *keys; /* PEM: chain and key, by the same index */
    const char *client_ca; /* clients must have a certificate of it; NULL: none is asked for */
    const char *const *client_allow; /* of those, these only (peer.h); NULL or empty: all */
    const char *ciphers;             /* of TLS 1.2; NULL: Mozilla's intermediate ones */
    bool client_may_be_nobody;       /* a client without a certificate is served too */
    bool is_13_only;
    bool has_http2; /* ALPN offers h2 before http/1.1 */
} bt_tls_server_config_t;

/* What a connection turned out to be. */
typedef struct bt_tls_info {
    const char *version, *cipher; /* "TLSv1.3", "TLS_AES_128_GCM_SHA256" */
    const char *server_name;      /* SNI; NULL: none */
    const char *protocol;         /* by ALPN: "http/1.1"; NULL: none */
    const bt_tls_peer_t *peer;    /* verified; NULL: it showed no certificate */
    bool is_resumed;
} bt_tls_info_t;

/* BT_E_CONFIG: err has a line that names the file. */
int bt_tls_server_new(bt_tls_server_t **server_p, const bt_tls_server_config_t *config, char *err,
                      size_t err_size);
void bt_tls_server_free(bt_tls_server_t *server); /* NULL is fine */
/* Reads the files again, on any thread. After an error everything is as it was. */
int bt_tls_server_reload(bt_tls_server_t *server, char *err, size_t err_size);
/* On a thread that is not ours to end, after a reload: gives up what OpenSSL keeps for it. */
void bt_tls_leave_thread(void);
/* A word that changes when one of the files does: name, size, time, inode. For who looks whether to reload; reads only metadata. */
uint64_t bt_tls_server_stamp(const bt_tls_server_t *server);
/* After bt_stream_init, before bt_stream_open. BT_E_NOMEM. */
int bt_tls_server_attach(bt_tls_server_t *server, bt_stream_t *stream);
const bt_tls_counts_t *bt_tls_server_counts(const bt_tls_server_t *server);
/* When the i-th certificate expires, in seconds since 1970; false: there is none. names: what it is for, cut to fit. */
bool bt_tls_server_expiry(bt_tls_server_t *server, unsigned i, int64_t *expiry_s_p, char *file,
                          size_t size);
/* For specs: the tickets' keys get older. */
void bt_tls_server_age(bt_tls_server_t *server, uint64_t ms);

/* Of a stream with a session whose handshake is done; false: it is plain, or not done. Borrowed from the session. */
bool bt_tls_info(const bt_stream_t *stream, bt_tls_info_t *info_p);
/* Why the handshake failed; NULL: it did not. Lives for ever. */
const char *bt_tls_why(const bt_stream_t *stream);

#endif
