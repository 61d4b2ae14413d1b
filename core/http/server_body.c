/* server_body.c - reading a request's body in HTTP/1.1.
 *
 * A body that fits behind its head stays where it is read. A longer one gets a buffer of its own, into which it is read
 * (exchange_body.c: how large, and how long it may take).
 */
#include "base/clock.h"
#include "base/err.h"
#include "http/server_impl.h"

#define SPARE_BYTES                                                                                \
    ((size_t) 1) /* a read that fills its room is followed by one that finds nothing */

void bt_conn_note_unfinished(bt_server_conn_t *c)
{
    if ((c->state == BT_CONN_HEAD || c->state == BT_CONN_BODY) && c->in != NULL)
        bt_exchange_note(&c->x, c->in->cap);
}

static uint64_t received(const bt_server_conn_t *c)
{
    const bt_buf_t *own = c->x.body_buf;

    return own != NULL ? own->len : bt_conn_unread(c);
}

/* ---- beginning ---- */

static bool dispatch(bt_server_conn_t *c)
{
    bt_exchange_t *x = &c->x;

    if (bt_unfinished_complete(&c->x.unfinished) < 0)
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
    const char *reason;
    bt_buf_t *body = bt_exchange_first_buf(&c->x, whole, &reason);

    if (body == NULL)
        return bt_conn_refuse_request(c, 503, reason);
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
    c->x.body_ms = bt_clock_event_ms();
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
    bt_conn_set_deadline(c, bt_exchange_body_wait_ms(&c->x, received(c)));
    return false;
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
            bt_exchange_grow_body(x, x->body_buf->len, length + SPARE_BYTES) != 0)
            return bt_conn_refuse_request(c, 503, bt_exchange_no_room);
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

static bool read_chunked_body(bt_server_conn_t *c)
{
    bt_str_t piece = {c->in->data + c->in_at, bt_conn_unread(c)}, data;
    unsigned status = 0;
    size_t at = 0;
    int rc = BT_CHUNK_MORE;

    while (status == 0 && (rc = bt_chunk_next(&c->chunk, piece, &at, &data)) == BT_CHUNK_DATA)
        status = bt_exchange_add_body(&c->x, data);
    c->in_at += at;
    if (status != 0)
        return bt_conn_refuse_request(c, status, status == 503 ? bt_exchange_no_room : NULL);
    if (rc < 0)
        return bt_conn_refuse_request(c, 400, "malformed chunk");
    if (rc != BT_CHUNK_END)
        return wait_for_more(c);
    if (c->x.body_buf != NULL)
        c->x.body = (bt_str_t){c->x.body_buf->data, c->x.body_buf->len};
    return dispatch(c);
}

bool bt_conn_read_body(bt_server_conn_t *c)
{
    if (c->x.head.chunked)
        return bt_conn_unread(c) > 0 ? read_chunked_body(c) : wait_for_more(c);
    return c->direct ? read_direct_body(c) : read_body_in_place(c);
}
