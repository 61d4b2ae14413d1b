/* redis_tls.h - TLS to Redis, in builds that have hiredis_ssl (hiredis 1.0) and OpenSSL. Private to core/store.
 *
 * Owner: the store has one context; each connection a session of it, which hiredis frees with the connection.
 * Life:  new at open -> attach per connection -> free at close.
 * Flow:  the peer's certificate must be signed by ca_file (default: the system's), and be for server_name (default: the host dialled).
 * Cost:  a handshake per connection.
 */
#ifndef BT_STORE_REDIS_TLS_H
#define BT_STORE_REDIS_TLS_H

#include "store/store.h"

struct redisContext;
typedef struct bt_redis_tls bt_redis_tls_t;

/* BT_E_CONFIG with a line in err; in a build without TLS always. */
int bt_redis_tls_new(bt_redis_tls_t **tls_p, const bt_store_config_t *config, char *err,
                     size_t err_size);
void bt_redis_tls_free(bt_redis_tls_t *tls); /* NULL is fine */
/* host: as dialled; session_p is for the two below. NULL, or why not: a line that lives for ever. */
const char *bt_redis_tls_attach(bt_redis_tls_t *tls, struct redisContext *c, const char *host,
                                void **session_p);
/* What could not be written waits for bytes of the peer, not for room. */
bool bt_redis_tls_wants_read(void *session);
/* After a read or write that failed: what TLS has against it, or NULL. */
const char *bt_redis_tls_why(void *session);

#endif
