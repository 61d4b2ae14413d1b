/* The next turn comes by mail to our own loop: I/O and other mail have their say in between. */
#include "admin/call/rows.h"

#include "admin/call/wait.h"

#include <stdlib.h>

typedef struct sender {
    struct bt_admin_wait base;
    bt_mail_t envelope;
    bt_exchange_t *x; /* NULL = its client has left, and the mail is not back yet */
    bt_rows_t *rows;
    bool is_mailed;
} sender_t;

static void drop(sender_t *s)
{
    s->rows->free(s->rows);
    free(s);
}

static void on_turn(bt_loop_t *loop, bt_mail_t *envelope);

static void wait_turn(sender_t *s)
{
    if (s->is_mailed)
        return;
    s->is_mailed = true;
    bt_loop_post(s->x->loop, &s->envelope, on_turn);
}

static bool send_piece(bt_exchange_t *x, bt_str_t piece)
{
    bt_buf_t *buf = piece.n > 0 ? bt_buf_copy(piece.p, piece.n) : NULL;

    if (buf != NULL)
        bt_exchange_write(x, buf, buf->data, buf->len);
    bt_buf_unref(buf);
    return buf != NULL || piece.n == 0;
}

static void end(sender_t *s, bool is_whole)
{
    bt_exchange_t *x = s->x;

    x->user = NULL;
    if (is_whole)
        bt_exchange_end(x);
    else
        bt_exchange_abort(x); /* no memory: its client sees that something is missing */
    drop(s);
}

static void on_turn(bt_loop_t *loop, bt_mail_t *envelope)
{
    sender_t *s = bt_container_of(envelope, sender_t, envelope);
    bt_text_t text;

    (void) loop;
    s->is_mailed = false;
    if (s->x == NULL) {
        drop(s);
        return;
    }
    if (bt_exchange_blocked(s->x))
        return; /* on_drain comes */
    bt_text_init(&text);
    const bool is_last = s->rows->write(s->rows, &text);
    const bool is_sent = !text.failed && send_piece(s->x, bt_text_str(&text));
    bt_text_fini(&text);
    if (is_last || !is_sent)
        end(s, is_sent);
    else
        wait_turn(s);
}

static void on_gone(struct bt_admin_wait *base)
{
    sender_t *s = bt_container_of(base, sender_t, base);

    s->x = NULL;
    if (!s->is_mailed)
        drop(s);
}

static void on_drain(struct bt_admin_wait *base)
{
    wait_turn(bt_container_of(base, sender_t, base));
}

void bt_rows_send(bt_exchange_t *x, const bt_header_t *headers, unsigned header_count,
                  bt_str_t first, bt_rows_t *rows)
{
    sender_t *s = calloc(1, sizeof *s);

    if (s == NULL) {
        rows->free(rows);
        bt_exchange_respond(x, 503, "text/plain", BT_STR("out of memory\n"), NULL, 0);
        return;
    }
    s->base.gone = on_gone;
    s->base.drain = on_drain;
    s->x = x;
    s->rows = rows;
    x->user = &s->base;
    bt_exchange_start(x, 200, headers, header_count, BT_LENGTH_CHUNKED);
    if (send_piece(x, first))
        wait_turn(s);
    else
        end(s, false);
}
