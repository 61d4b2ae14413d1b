/* exchange_body.c - what a request's body holds while it is read, and how long it may take; by whichever protocol it comes.
 *
 * Of its buffer so much is made as has come (doubled), not as Content-Length promises: a promise costs its maker nothing. Where an earlier
 * body has left as much, it is taken at once. What it takes is asked of `unfinished` first, and so may be taken away again, or refused,
 * when memory is short.
 *
 * Three deadlines: silence (body_stall_ms), slowness (body_min_rate, after a grace), and the whole (body_timeout_ms). One timer has
 * the nearest.
 */
#include "base/clock.h"
#include "base/mem.h"
#include "http/server_impl.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#define FIRST_BYTES ((size_t) 256 << 10) /* usual prompts are read without a copy */

const char bt_exchange_no_room[] = "too many bytes are buffered, try again";

/* Whoever has a /64 of IPv6 has all of its addresses. */
static uint64_t network_of(const char *peer)
{
    struct in6_addr ip;

    if (inet_pton(AF_INET6, peer, &ip) != 1 || IN6_IS_ADDR_V4MAPPED(&ip))
        return bt_str_hash(bt_str(peer));
    return bt_str_hash((bt_str_t){(const char *) &ip, 8});
}

static uint64_t sender_of(bt_exchange_t *x)
{
    if (x->sender == 0)
        x->sender = network_of(x->peer) | 1;
    return x->sender;
}

bool bt_exchange_has_room(bt_exchange_t *x)
{
    const bt_server_t *server = x->server;
    const size_t limit = server->config.max_buffered_bytes;

    if (limit == SIZE_MAX)
        return true;
    if (bt_mem_is_short())
        return false;
    if (bt_mem_total_bytes() < limit)
        return true;
    return server->unfinished != NULL &&
           bt_unfinished_reserve(server->unfinished, NULL, sender_of(x), BT_BUF_STD_BYTES) == 0;
}

bool bt_exchange_reserve(bt_exchange_t *x, size_t more)
{
    const bt_server_t *server = x->server;

    if (server->unfinished != NULL)
        return bt_unfinished_reserve(server->unfinished, &x->unfinished, sender_of(x), more) == 0;
    return server->config.max_buffered_bytes > bt_mem_total_bytes() &&
           more <= server->config.max_buffered_bytes - bt_mem_total_bytes();
}

void bt_exchange_note(bt_exchange_t *x, size_t bytes)
{
    if (x->server->unfinished != NULL)
        bt_unfinished_note(x->server->unfinished, &x->unfinished, sender_of(x), bytes);
}

void bt_exchange_evict(bt_unfinished_entry_t *e)
{
    bt_exchange_t *x = bt_container_of(e, bt_exchange_t, unfinished);

    x->wire->refuse(x, 503,
                    "memory is short, and this was the largest unfinished request of the client "
                    "that holds most; try again");
    bt_unfinished_close(e);
}

uint64_t bt_exchange_body_wait_ms(const bt_exchange_t *x, uint64_t received)
{
    const bt_server_config_t *config = &x->server->config;
    const uint64_t age_ms = bt_clock_event_ms() - x->body_ms;
    uint64_t until_ms = config->body_stall_ms > 0 ? age_ms + config->body_stall_ms : UINT64_MAX;

    if (config->body_timeout_ms > 0 && config->body_timeout_ms < until_ms)
        until_ms = config->body_timeout_ms;
    if (config->body_min_rate > 0) {
        const uint64_t paid_ms = config->body_grace_ms + received * 1000 / config->body_min_rate;
        until_ms = paid_ms < until_ms ? paid_ms : until_ms;
    }
    if (until_ms == UINT64_MAX)
        return 0;
    return until_ms > age_ms ? until_ms - age_ms : 1;
}

bt_buf_t *bt_exchange_first_buf(bt_exchange_t *x, size_t whole, const char **reason_p)
{
    const size_t cap = whole < FIRST_BYTES || bt_buf_is_there(whole) ? whole : FIRST_BYTES;
    bt_buf_t *buf;

    *reason_p = bt_exchange_no_room;
    if (!bt_exchange_reserve(x, cap))
        return NULL;
    buf = bt_buf_new(cap);
    if (buf == NULL)
        *reason_p = "out of memory";
    return buf;
}

/* Doubling: each byte is copied at most twice on average, and large buffers move by their pages. */
unsigned bt_exchange_grow_body(bt_exchange_t *x, size_t need, size_t most)
{
    bt_buf_t **buf = &x->body_buf;
    const size_t now = *buf != NULL ? (*buf)->cap : 0;
    size_t cap = 2 * need < BT_BUF_STD_BYTES ? BT_BUF_STD_BYTES : 2 * need;

    if (cap > most)
        cap = most > need ? most : need;
    if (!bt_exchange_reserve(x, cap - now))
        return 503;
    if (*buf == NULL)
        return (*buf = bt_buf_new(cap)) != NULL ? 0 : 503;
    return bt_buf_grow(buf, cap) == 0 ? 0 : 503;
}

unsigned bt_exchange_add_body(bt_exchange_t *x, bt_str_t data)
{
    const size_t most = x->server->config.max_body_bytes;
    const size_t len = x->body_buf != NULL ? x->body_buf->len : 0;
    unsigned status = 0;

    if (data.n > most - len)
        return 413;
    if (x->body_buf == NULL || x->body_buf->cap - len < data.n)
        status = bt_exchange_grow_body(x, len + data.n, SIZE_MAX / 4);
    if (status != 0)
        return status;
    memcpy(x->body_buf->data + len, data.p, data.n);
    x->body_buf->len += data.n;
    return 0;
}

void bt_exchange_drop_body(bt_exchange_t *x)
{
    bt_buf_unref(x->body_buf);
    x->body_buf = NULL;
    x->body = BT_STR("");
    bt_unfinished_close(&x->unfinished);
}
