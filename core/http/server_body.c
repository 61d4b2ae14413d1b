/* server_body.c - reading a request's body.
 *
 * A body that fits behind its head stays where it is read. A longer one gets a buffer of its own, of which so much is made as has come
 * (doubled), not as Content-Length promises: a promise costs its maker nothing. Where an earlier body has left as much, it is taken at
 * once. What it takes is asked of `unfinished` first, and so may be taken away again, or refused, when memory is short.
 *
 * Three deadlines: silence (body_stall_ms), slowness (body_min_rate, after a grace), and the whole (body_timeout_ms). One timer has
 * the nearest.
 */
#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "http/server_impl.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#define FIRST_BYTES ((size_t) 256 << 10) /* usual prompts are read without a copy */

#define SPARE_BYTES                                                                                \
    ((size_t) 1) /* a read that fills its room is followed by one that finds nothing */

const char bt_conn_no_room[] = "too many bytes are buffered, try again";

/* Whoever has a /64 of IPv6 has all of its addresses. */
static uint64_t network_of(const char *peer)
{
    struct in6_addr ip;

    if (inet_pton(AF_INET6, peer, &ip) != 1 || IN6_IS_ADDR_V4MAPPED(&ip))
        return bt_str_hash(bt_str(peer));
    return bt_str_hash((bt_str_t){(const char *) &ip, 8});
}

static uint64_t sender_of(bt_server_conn_t *c)
{
    if (c->x.sender == 0)
        c->x.sender = network_of(c->x.peer) | 1;
    return c->x.sender;
}

bool bt_conn_has_room(bt_server_conn_t *c)
{
    const bt_server_t *server = c->x.server;
    const size_t limit = server->config.max_buffered_bytes;

    if (limit == SIZE_MAX)
        return true;
    if (bt_mem_is_short())
        return false;
    if (bt_mem_total_bytes() < limit)
        return true;
    return server->unfinished != NULL &&
           bt_unfinished_reserve(server->unfinished, NULL, sender_of(c), BT_BUF_STD_BYTES) == 0;
}

/* May the body's buffer become this much larger? */
static bool reserve(bt_server_conn_t *c, size_t more)
{
    const bt_server_t *server = c->x.server;

    if (server->unfinished != NULL)
        return bt_unfinished_reserve(server->unfinished, &c->unfinished, sender_of(c), more) == 0;
    return server->config.max_buffered_bytes > bt_mem_total_bytes() &&
           more <= server->config.max_buffered_bytes - bt_mem_total_bytes();
}

void bt_conn_note_unfinished(bt_server_conn_t *c)
{
    if ((c->state == BT_CONN_HEAD || c->state == BT_CONN_BODY) && c->in != NULL &&
        c->x.server->unfinished != NULL)
        bt_unfinished_note(c->x.server->unfinished, &c->unfinished, sender_of(c), c->in->cap);
}

void bt_conn_evict(bt_unfinished_entry_t *e)
{
    bt_server_conn_t *c = bt_container_of(e, bt_server_conn_t, unfinished);

    if (BT_SOFT(c->state != BT_CONN_HEAD && c->state != BT_CONN_BODY)) {
        bt_unfinished_close(e);
        return;
    }
    (void) bt_conn_refuse_request(
        c, 503,
        "memory is short, and this was the largest unfinished request of the client "
        "that holds most; try again");
}

/* ---- deadlines ---- */

static uint64_t received(const bt_server_conn_t *c)
{
    const bt_buf_t *own = c->x.body_buf;

    return own != NULL ? own->len : bt_conn_unread(c);
}

static void set_deadline(bt_server_conn_t *c)
{
    const bt_server_config_t *config = &c->x.server->config;
    const uint64_t now_ms = bt_clock_event_ms(), age_ms = now_ms - c->body_ms;
    uint64_t until_ms = config->body_stall_ms > 0 ? age_ms + config->body_stall_ms : UINT64_MAX;

    if (config->body_timeout_ms > 0 && config->body_timeout_ms < until_ms)
        until_ms = config->body_timeout_ms;
    if (config->body_min_rate > 0) {
        const uint64_t paid_ms = config->body_grace_ms + received(c) * 1000 / config->body_min_rate;
        until_ms = paid_ms < until_ms ? paid_ms : until_ms;
    }
    if (until_ms == UINT64_MAX)
        bt_conn_set_deadline(c, 0);
    else
        bt_conn_set_deadline(c, until_ms > age_ms ? until_ms - age_ms : 1);
}

/* ---- beginning ---- */

static bool dispatch(bt_server_conn_t *c)
{
    bt_exchange_t *x = &c->x;

    if (bt_unfinished_complete(&c->unfinished) < 0)
        return bt_conn_refuse_request(
            c, 503, "memory is short, and this client's requests hold most of it; try again");
    bt_conn_stop_reading_request(c);
    c->handling = true;
    x->server->active_count++;
    x->server->ops->on_request(x);
    return true;
}

static void answer_continue(bt_server_conn_t *c)
{
    static const char text[] = "HTTP/1.1 100 Continue\r\n\r\n";

    if (c->x.head.minor > 0 && bt_head_find(&c->x.head, BT_STR("expect")) != NULL)
        (void) bt_stream_write(&c->stream, NULL, text, sizeof(text) - 1);
}

/* Takes what is there of a body that needs a buffer of its own. */
static bool open_body_buf(bt_server_conn_t *c)
{
    const size_t length = (size_t) c->x.head.length, have = bt_conn_unread(c);
    const size_t whole = length + SPARE_BYTES;
    const size_t cap = whole < FIRST_BYTES || bt_buf_is_there(whole) ? whole : FIRST_BYTES;
    bt_buf_t *body;

    if (!reserve(c, cap))
        return bt_conn_refuse_request(c, 503, bt_conn_no_room);
    body = bt_buf_new(cap);
    if (body == NULL)
        return bt_conn_refuse_request(c, 503, "out of memory");
    BT_ASSERT(have < length);
    memcpy(body->data, c->in->data + c->in_at, have);
    body->len = have;
    c->in_at += have;
    c->x.body_buf = body;
    c->direct = true;
    return true;
}

bool bt_conn_begin_body(bt_server_conn_t *c)
{
    const bt_head_t *head = &c->x.head;

    if (!head->chunked && head->length == 0)
        return dispatch(c);
    c->state = BT_CONN_BODY;
    c->body_ms = bt_clock_event_ms();
    bt_timer_stop(&c->deadline); /* the head's */
    if (head->chunked)
        bt_chunk_init(&c->chunk);
    if (head->chunked || bt_conn_unread(c) < head->length)
        answer_continue(c);
    if (!head->chunked && head->length > c->in->cap - c->in_at)
        return open_body_buf(c);
    return true;
}

/* ---- going on ---- */

/* False: more has to come. */
static bool wait_for_more(bt_server_conn_t *c)
{
    set_deadline(c);
    return false;
}

/* 0, or the status to refuse with. Doubling: each byte is copied at most twice on average, and large buffers move by their pages. */
static unsigned grow_body(bt_server_conn_t *c, size_t need, size_t most)
{
    bt_buf_t **buf = &c->x.body_buf;
    const size_t now = *buf != NULL ? (*buf)->cap : 0;
    size_t cap = 2 * need < BT_BUF_STD_BYTES ? BT_BUF_STD_BYTES : 2 * need;

    if (cap > most)
        cap = most > need ? most : need;
    if (!reserve(c, cap - now))
        return 503;
    if (*buf == NULL)
        return (*buf = bt_buf_new(cap)) != NULL ? 0 : 503;
    return bt_buf_grow(buf, cap) == 0 ? 0 : 503;
}

size_t bt_conn_body_room(const bt_server_conn_t *c, char **p_p)
{
    const bt_buf_t *body = c->x.body_buf;
    const size_t most = (size_t) c->x.head.length + SPARE_BYTES;

    *p_p = body->data + body->len;
    return (body->cap < most ? body->cap : most) - body->len; /* not 0: read_direct_body */
}

bt_str_t bt_conn_add_body(bt_server_conn_t *c, size_t n)
{
    bt_buf_t *body = c->x.body_buf;
    const size_t missing = (size_t) c->x.head.length - body->len, own = n < missing ? n : missing;

    body->len += own;
    return (bt_str_t){body->data + body->len, n - own};
}

static bool read_direct_body(bt_server_conn_t *c)
{
    bt_exchange_t *x = &c->x;
    const size_t length = (size_t) x->head.length;

    if (x->body_buf->len < length) {
        if (x->body_buf->len == x->body_buf->cap &&
            grow_body(c, x->body_buf->len, length + SPARE_BYTES) != 0)
            return bt_conn_refuse_request(c, 503, bt_conn_no_room);
        return wait_for_more(c);
    }
    x->body = (bt_str_t){x->body_buf->data, x->body_buf->len};
    return dispatch(c);
}

static bool read_body_in_place(bt_server_conn_t *c)
{
    bt_exchange_t *x = &c->x;

    if (bt_conn_unread(c) < x->head.length)
        return wait_for_more(c);
    x->body = (bt_str_t){c->in->data + c->in_at, (size_t) x->head.length};
    x->body_buf = bt_buf_ref(c->in);
    c->in_at += x->body.n;
    return dispatch(c);
}

static unsigned append_body(bt_server_conn_t *c, bt_str_t data)
{
    const size_t most = c->x.server->config.max_body_bytes;
    const size_t len = c->x.body_buf != NULL ? c->x.body_buf->len : 0;
    unsigned status = 0;

    if (data.n > most - len)
        return 413;
    if (c->x.body_buf == NULL || c->x.body_buf->cap - len < data.n)
        status = grow_body(c, len + data.n, SIZE_MAX / 4);
    if (status != 0)
        return status;
    memcpy(c->x.body_buf->data + len, data.p, data.n);
    c->x.body_buf->len += data.n;
    return 0;
}

static bool read_chunked_body(bt_server_conn_t *c)
{
    bt_str_t piece = {c->in->data + c->in_at, bt_conn_unread(c)}, data;
    unsigned status = 0;
    size_t at = 0;
    int rc = BT_CHUNK_MORE;

    while (status == 0 && (rc = bt_chunk_next(&c->chunk, piece, &at, &data)) == BT_CHUNK_DATA)
        status = append_body(c, data);
    c->in_at += at;
    if (status != 0)
        return bt_conn_refuse_request(c, status, status == 503 ? bt_conn_no_room : NULL);
    if (rc < 0)
        return bt_conn_refuse_request(c, 400, "malformed chunk");
    if (rc != BT_CHUNK_END)
        return wait_for_more(c);
    if (c->x.body_buf != NULL)
        c->x.body = (bt_str_t){c->x.body_buf->data, c->x.body_buf->len};
    return dispatch(c);
}

void bt_conn_drop_body(bt_server_conn_t *c)
{
    bt_buf_unref(c->x.body_buf);
    c->x.body_buf = NULL;
    c->x.body = BT_STR("");
    bt_unfinished_close(&c->unfinished);
}

bool bt_conn_read_body(bt_server_conn_t *c)
{
    if (c->x.head.chunked)
        return bt_conn_unread(c) > 0 ? read_chunked_body(c) : wait_for_more(c);
    return c->direct ? read_direct_body(c) : read_body_in_place(c);
}
