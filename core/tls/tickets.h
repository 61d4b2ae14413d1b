/* tickets.h - the keys that session tickets are sealed with. Private to core/tls.
 *
 * Owner: a server context; sessions of all loops use them, under a lock (a handshake costs a thousand times as much).
 * Life:  new -> set on each SSL_CTX -> free.
 * Flow:  the newest key seals, all open. A new one comes each half of a ticket's life, so that a key is never used for longer than
 *        twice that. They are random and never leave the process: other replicas, and the next process, do not know them.
 * Cost:  three keys in locked memory that is in no core dump.
 */
#ifndef BT_TLS_TICKETS_H
#define BT_TLS_TICKETS_H

#include <openssl/ssl.h>

#define BT_TLS_TICKET_SECS 7200

typedef struct bt_tls_tickets bt_tls_tickets_t;

bt_tls_tickets_t *bt_tls_tickets_new(void); /* NULL: no memory, or no random bytes */
void bt_tls_tickets_free(bt_tls_tickets_t *tickets);
/* find: the tickets of a session's server. */
int bt_tls_tickets_use(bt_tls_tickets_t *tickets, const unsigned char name[16], unsigned char *iv,
                       EVP_CIPHER_CTX *cipher, EVP_MAC_CTX *mac, unsigned char *name_p);
void bt_tls_tickets_age(bt_tls_tickets_t *tickets, uint64_t ms); /* for specs: time goes by */

#endif
