/* redis_wire.h - a connection's bytes: commands out of memory into the socket, replies out of the socket into hiredis' reader, through a TLS session where
 * there is one. Private to core/store.
 *
 * Owner: the connection, in which it is embedded.
 * Life:  zeroed -> open -> put, write, read ... -> close.
 * Flow:  put gathers; write encrypts a record at a time, and the next one when the kernel has taken it. read feeds what it brings, then says how the peer ended.
 * Cost:  a system call each; the memory of what waits is kept from one command to the next.
 */
#ifndef BT_STORE_REDIS_WIRE_H
#define BT_STORE_REDIS_WIRE_H

#include "base/text.h"
#include "loop/cipher.h"
#include "tls/client.h"

#include <hiredis/hiredis.h>

#define BT_REDIS_READ_BYTES ((size_t) 16 * 1024) /* a read takes no more at once */

typedef struct bt_redis_queue {
    bt_text_t text;
    size_t sent; /* of its front */
} bt_redis_queue_t;

typedef struct bt_redis_wire {
    int fd; /* -1: none */
    redisReader *reader;
    bt_cipher_t *cipher;               /* NULL: plain */
    bt_redis_queue_t commands, sealed; /* as they are; encrypted, where there is a cipher */
    int ended;                         /* < 0: what every further read says */
} bt_redis_wire_t;

/* Takes over fd. With tls the handshake begins: name is whom the certificate must be for. BT_E_NOMEM; BT_E_INVAL: it can be in none. */
int bt_redis_wire_open(bt_redis_wire_t *wire, int fd, bt_tls_client_t *tls, const char *name);
void bt_redis_wire_close(bt_redis_wire_t *wire);
bool bt_redis_wire_is_up(const bt_redis_wire_t *wire); /* no handshake is under way */
bool bt_redis_wire_waits(const bt_redis_wire_t *wire); /* there is something to write */
/* Copies. BT_E_NOMEM. */
int bt_redis_wire_put(bt_redis_wire_t *wire, bt_str_t bytes);
/* 0: all is out. BT_E_AGAIN: the kernel takes no more now. Else what is wrong: BT_E_TLS, or of the system. */
int bt_redis_wire_write(bt_redis_wire_t *wire);
/* Reads once. How many bytes came off the socket; 0: none now; else UV_EOF, BT_E_TLS, BT_E_NOMEM, or of the system. */
ssize_t bt_redis_wire_read(bt_redis_wire_t *wire);
/* What TLS has against it. NULL: nothing. */
const char *bt_redis_wire_why(const bt_redis_wire_t *wire);

#endif
