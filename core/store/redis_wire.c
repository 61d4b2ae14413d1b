/* redis_wire.c - send, recv, and the cipher between them. */
#include "store/redis_wire.h"

#include "base/err.h"
#include "store/store.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#define KEEP_BYTES ((size_t) 64 * 1024) /* a queue that has grown larger gives its memory back */
/* A peer that makes the session say things (new keys) and does not read them. */
#define SESSION_MAX ((size_t) 256 * 1024)

static bt_tls_counts_t counts;

/* ---- queues ---- */

static size_t left_in(const bt_redis_queue_t *q)
{
    return q->text.len - q->sent;
}

static int put(bt_redis_queue_t *q, bt_str_t bytes)
{
    if (q->sent > KEEP_BYTES && q->sent >= q->text.len / 2) {
        memmove(q->text.data, q->text.data + q->sent, left_in(q));
        q->text.len -= q->sent;
        q->sent = 0;
    }
    bt_text_put(&q->text, bytes);
    return q->text.failed ? BT_E_NOMEM : 0;
}

static void take(bt_redis_queue_t *q, size_t n)
{
    q->sent += n;
    if (left_in(q) > 0)
        return;
    q->sent = q->text.len = 0;
    if (q->text.cap > KEEP_BYTES)
        bt_text_fini(&q->text);
}

/* ---- writing ---- */

static int on_ciphertext(void *carrier, const char *p, size_t n)
{
    bt_redis_wire_t *wire = carrier;

    if (left_in(&wire->sealed) + n > SESSION_MAX)
        return BT_E_LIMIT;
    return put(&wire->sealed, (bt_str_t){p, n});
}

static int seal_record(bt_redis_wire_t *wire)
{
    bt_redis_queue_t *q = &wire->commands;
    const size_t left = left_in(q);
    const size_t n = left < BT_CIPHER_RECORD_BYTES ? left : BT_CIPHER_RECORD_BYTES;

    if (wire->cipher->ops->write(wire->cipher, q->text.data + q->sent, n) < 0)
        return BT_E_TLS;
    take(q, n);
    return 0;
}

int bt_redis_wire_write(bt_redis_wire_t *wire)
{
    bt_redis_queue_t *q = wire->cipher != NULL ? &wire->sealed : &wire->commands;

    for (;;) {
        if (q == &wire->sealed && left_in(q) == 0 && wire->cipher->is_up &&
            left_in(&wire->commands) > 0 && seal_record(wire) < 0)
            return BT_E_TLS;
        if (left_in(q) == 0)
            return 0;
        ssize_t n = send(wire->fd, q->text.data + q->sent, left_in(q), MSG_NOSIGNAL);
        if (n >= 0)
            take(q, (size_t) n);
        else if (errno == EAGAIN || errno == EWOULDBLOCK)
            return BT_E_AGAIN;
        else if (errno != EINTR)
            return -errno;
    }
}

int bt_redis_wire_put(bt_redis_wire_t *wire, bt_str_t bytes)
{
    return put(&wire->commands, bytes);
}

bool bt_redis_wire_waits(const bt_redis_wire_t *wire)
{
    return left_in(&wire->commands) + left_in(&wire->sealed) > 0;
}

/* ---- reading ---- */

static int feed(bt_redis_wire_t *wire, const char *p, size_t n)
{
    return redisReaderFeed(wire->reader, p, n) == REDIS_OK ? 0 : BT_E_NOMEM;
}

/* What it has against the peer goes out at once, if it can: the peer's log should say it too. */
static int end_session(bt_redis_wire_t *wire, int rc)
{
    wire->cipher->in_n = 0;
    (void) bt_redis_wire_write(wire);
    return rc;
}

/* Until all of `in` is used. */
static int decrypt(bt_redis_wire_t *wire)
{
    bt_cipher_t *c = wire->cipher;
    char room[BT_CIPHER_RECORD_BYTES];
    ssize_t n;

    if (!c->is_up) {
        int rc = c->ops->handshake(c);
        if (rc == BT_E_AGAIN)
            return 0;
        if (rc < 0)
            return end_session(wire, rc);
        c->is_up = true;
    }
    while ((n = c->ops->read(c, room, sizeof(room))) > 0)
        if (feed(wire, room, (size_t) n) < 0)
            return BT_E_NOMEM;
    if (n == BT_E_AGAIN)
        return 0;
    return end_session(wire, n == UV_EOF ? UV_EOF : BT_E_TLS);
}

ssize_t bt_redis_wire_read(bt_redis_wire_t *wire)
{
    char room[BT_REDIS_READ_BYTES];

    if (wire->ended < 0)
        return wire->ended;
    ssize_t n = recv(wire->fd, room, sizeof(room), 0);
    if (n < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -errno;
    if (n == 0)
        return UV_EOF;
    if (wire->cipher == NULL) {
        wire->ended = feed(wire, room, (size_t) n);
    } else {
        wire->cipher->in = room;
        wire->cipher->in_n = (size_t) n;
        wire->cipher->has_begun = true;
        wire->ended = decrypt(wire); /* of the next read: what came before it counts */
    }
    return n;
}

/* ---- beginning and end ---- */

int bt_redis_wire_open(bt_redis_wire_t *wire, int fd, bt_tls_client_t *tls, const char *name)
{
    int rc = 0;

    wire->fd = fd;
    wire->reader = redisReaderCreate();
    if (wire->reader == NULL)
        return BT_E_NOMEM;
    if (tls != NULL)
        rc = bt_tls_client_cipher(tls, name, &counts, &wire->cipher);
    if (tls == NULL || rc < 0)
        return rc;
    wire->cipher->send = on_ciphertext;
    wire->cipher->carrier = wire;
    rc = wire->cipher->ops->handshake(wire->cipher);
    return rc == BT_E_AGAIN ? 0 : rc;
}

void bt_redis_wire_close(bt_redis_wire_t *wire)
{
    if (wire->cipher != NULL)
        wire->cipher->ops->free(wire->cipher);
    if (wire->reader != NULL)
        redisReaderFree(wire->reader);
    if (wire->fd >= 0)
        close(wire->fd);
    bt_text_fini(&wire->commands.text);
    bt_text_fini(&wire->sealed.text);
}

bool bt_redis_wire_is_up(const bt_redis_wire_t *wire)
{
    return wire->cipher == NULL || wire->cipher->is_up;
}

const char *bt_redis_wire_why(const bt_redis_wire_t *wire)
{
    return wire->cipher != NULL ? bt_tls_cipher_why(wire->cipher) : NULL;
}

const bt_tls_counts_t *bt_store_tls_counts(void)
{
    return &counts;
}
