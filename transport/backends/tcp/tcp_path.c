/* A path opens in four steps, over two connections:
 *
 *     receiver (it dialled the link)                    sender
 *     path_open: token and its own address  --tell-->   told: dials `tcp_streams` connections
 *     listener: greeting with the token     <--------   greeting
 *     ready when all have joined            --welcome->  ready when all are welcomed
 *
 * Both sides then write blocks and read blocks; who sends KV is not fixed by who dialled.
 *
 * A lost connection breaks the path, whichever it was: what is under way in the others could not be told apart any more. The agent hears of it
 * after BT_TCP_GRACE_MS, since the control connection usually ends in the same moment and says why in better words.
 */
#include "transport/backends/tcp/tcp.h"

#include "base/clock.h"
#include "base/rand.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int bt_tcp_path_open(bt_kv_path_t **path_p, bt_kv_backend_t *backend, bt_kv_link_t *link,
                     const uint8_t *offer, size_t size, bool is_initiator)
{
    bt_tcp_t *tcp = (bt_tcp_t *) (void *) backend;
    bt_tcp_offer_t there;

    if (bt_tcp_offer_get(offer, size, &there) != 0)
        return BT_E_INVAL;
    bt_tcp_path_t *path = calloc(1, sizeof(*path));
    if (path == NULL)
        return BT_E_NOMEM;
    path->base = (bt_kv_path_t){.backend = backend, .link = link};
    path->is_initiator = is_initiator;
    path->offer = there;
    path->deadline_ms = bt_clock_ms() + BT_TCP_HANDSHAKE_MS;
    path->opened_us = bt_clock_us();
    bt_list_init(&path->waiting);
    bt_list_push(&tcp->paths, &path->link);
    if (is_initiator) {
        bt_rand_secure(path->token, sizeof(path->token));
        int rc = bt_kv_path_send(&path->base, path->token, sizeof(path->token));
        bt_kv_path_bind(&path->base, path->token, sizeof(path->token));
        if (rc != 0)
            bt_tcp_path_break(path, rc, "the peer could not be told where to connect");
    }
    *path_p = &path->base;
    return 0;
}

int bt_tcp_path_received(bt_kv_path_t *base, const uint8_t *message, size_t size)
{
    bt_tcp_path_t *path = bt_tcp_path_of(base);

    if (path->is_initiator || path->has_dialled || size != BT_TCP_TOKEN_BYTES)
        return BT_E_INVAL;
    memcpy(path->token, message, size);
    bt_kv_path_bind(base, path->token, sizeof(path->token));
    path->has_dialled = true;
    path->streams = bt_tcp_of(path)->streams;
    bt_tcp_dial(path);
    return 0;
}

static void close_conns(bt_tcp_path_t *path)
{
    for (uint32_t i = 0; i < BT_TCP_STREAMS_MAX; i++) {
        if (path->conns[i] != NULL)
            bt_tcp_conn_close(path->conns[i]);
        path->conns[i] = NULL;
    }
    path->open = 0;
}

void bt_tcp_path_close(bt_kv_path_t *base)
{
    bt_tcp_path_t *path = bt_tcp_path_of(base);

    path->stage = BT_TCP_BROKEN;
    bt_tcp_tx_drop(path);
    close_conns(path);
    bt_list_remove(&path->link);
    free(path);
}

void bt_tcp_path_break(bt_tcp_path_t *path, int rc, const char *fmt, ...)
{
    va_list args;

    if (path->stage == BT_TCP_BROKEN)
        return;
    path->stage = BT_TCP_BROKEN;
    path->has_told = false;
    path->rc = rc;
    path->tell_ms = bt_clock_ms();
    va_start(args, fmt);
    vsnprintf(path->why, sizeof(path->why), fmt, args);
    va_end(args);
}

/* While it opens, another of the peer's addresses may do. */
static bool try_next_address(bt_tcp_path_t *path)
{
    if (path->is_initiator || path->stage != BT_TCP_OPENING || path->open > 0 ||
        path->address_at + 1 >= path->offer.address_count)
        return false;
    path->address_at++;
    close_conns(path);
    path->deadline_ms = bt_clock_ms() + BT_TCP_HANDSHAKE_MS;
    bt_tcp_dial(path);
    return true;
}

void bt_tcp_path_lost(bt_tcp_conn_t *conn, int error)
{
    bt_tcp_path_t *path = conn->path;
    uint16_t stream = conn->stream;
    bool was_up = conn->state == BT_TCP_OPEN;

    conn->may_read = conn->may_write = false;
    if (try_next_address(path))
        return; /* conn is gone */
    bt_tcp_path_break(path, was_up ? BT_E_RESET : BT_E_CONNECT, "tcp data connection %u of %u: %s",
                      stream + 1u, path->streams,
                      error == 0 ? "closed by the peer" : strerror(error));
    if (was_up)
        path->tell_ms += BT_TCP_GRACE_MS;
}

void bt_tcp_path_opened(bt_tcp_path_t *path)
{
    path->open++;
    if (path->open == path->streams && path->stage == BT_TCP_OPENING)
        path->stage = BT_TCP_READY;
}

int bt_tcp_path_step(bt_tcp_path_t *path, uint64_t now_ms)
{
    if (path->dial_errno != 0 && path->stage == BT_TCP_OPENING)
        bt_tcp_path_lost(path->conns[0], path->dial_errno);
    if (path->stage == BT_TCP_OPENING && now_ms >= path->deadline_ms) {
        path->deadline_ms = now_ms + BT_TCP_HANDSHAKE_MS;
        if (!try_next_address(path))
            bt_tcp_path_break(path, BT_E_CONNECT_TIMEOUT, "no tcp data connection for %u s: %s",
                              BT_TCP_HANDSHAKE_MS / 1000,
                              path->is_initiator ? "the peer did not connect"
                                                 : "the peer's listener did not welcome it");
    }
    if (path->has_told || path->stage == BT_TCP_OPENING)
        return 0;
    if (path->stage == BT_TCP_READY)
        bt_kv_path_ready(&path->base);
    else if (now_ms < path->tell_ms)
        return 0;
    else
        bt_kv_path_failed(&path->base, path->rc, path->why);
    path->has_told = true;
    return 1;
}

/* Would a turn find something to do? */
bool bt_tcp_path_has_news(const bt_tcp_path_t *path)
{
    if (path->stage == BT_TCP_BROKEN)
        return !path->has_told && bt_clock_ms() >= path->tell_ms;
    if ((path->stage == BT_TCP_READY && !path->has_told) || path->dial_errno != 0)
        return true;
    for (uint32_t i = 0; i < path->streams; i++) {
        const bt_tcp_conn_t *conn = path->conns[i];
        if (conn != NULL && (bt_tcp_can_take(conn) || (conn->may_write && bt_tcp_has_output(conn))))
            return true;
    }
    return false;
}
